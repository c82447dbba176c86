/* Dropout: a random mask and a factor, without a stored mask. The op is its own gradient, because it is
 * linear in x and draws the same mask from the same seed, counter and site. Expanded, the generator itself
 * becomes plain integer ops, bit for bit. */
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "ops/rules.h"

uint32_t trd__dropout_threshold(const trd__dropout_attr *attr)
{
    return (uint32_t)(attr->rate * 0x1p24 + 0.5);
}

static trd_status infer(const trd_node *n, trd__type *results)
{
    const trd_shape scalar = trd__shape_scalar();
    TRD_TRY(trd__want(n, 0, "x", TRD__FLOATS));
    const trd__type *x = trd__operand(n, 0);
    if (trd__shape_count(&x->shape) > INT32_MAX)
        return trd__fail_shape_of(n, "x", x, "fewer than 2^31 elements");
    TRD_TRY(trd__want_type(n, 1, "counter", TRD_I32, &scalar));
    TRD_TRY(trd__want_type(n, 2, "site", TRD_I32, &scalar));
    results[0] = *x;
    return TRD_OK;
}

static void gradient(trd_builder *b, const trd_node *n, const trd_value *dy, const bool *needs, trd_value *dx)
{
    trd_value inputs[3] = {dy[0], n->inputs[1], n->inputs[2]};
    if (needs[0]) dx[0] = trd__add_node(b, &trd__op_dropout, n->attr, inputs, 3);
}

static trd_value word(trd_builder *b, uint32_t bits)
{
    return trd_scalar(b, TRD_I32, (double)(int32_t)bits);
}

static trd_value rotate(trd_builder *b, trd_value x, int by)
{
    trd_value high = trd_shift_left(b, x, word(b, (uint32_t)by));
    return trd_xor(b, high, trd_shift_right(b, x, word(b, (uint32_t)(32 - by))));
}

/* trd__threefry on values that broadcast. */
static void threefry(trd_builder *b, const trd_value key[2], trd_value *x, trd_value *y)
{
    static const int rotations[8] = TRD__THREEFRY_ROTATIONS;
    const trd_value parity = trd_xor(b, trd_xor(b, key[0], key[1]), word(b, TRD__THREEFRY_PARITY));
    const trd_value schedule[3] = {key[0], key[1], parity};
    *x = trd_add(b, *x, schedule[0]);
    *y = trd_add(b, *y, schedule[1]);
    for (uint32_t round = 0; round < TRD__THREEFRY_ROUNDS; round++) {
        *x = trd_add(b, *x, *y);
        *y = trd_xor(b, rotate(b, *y, rotations[round % 8]), *x);
        uint32_t injection = round / 4 + 1;
        if (round % 4 != 3) continue;
        *x = trd_add(b, *x, schedule[injection % 3]);
        *y = trd_add(b, *y, trd_add(b, schedule[(injection + 1) % 3], word(b, injection)));
    }
}

/* Bool of x's shape: which elements are kept. */
static trd_value kept(trd_builder *b, const trd_node *n)
{
    const trd__dropout_attr *attr = n->attr;
    const trd_shape *shape = &n->results[0].shape;
    trd_value seed[2] = {word(b, (uint32_t)attr->seed), word(b, (uint32_t)(attr->seed >> 32))};
    trd_value key[2] = {n->inputs[1], n->inputs[2]};
    threefry(b, seed, &key[0], &key[1]);
    trd_value i = trd_iota(b, TRD_I32, TRD__SHAPE(trd__shape_count(shape)), 0);
    trd_value half = trd_shift_right(b, i, word(b, 4)), group = trd_shift_right(b, i, word(b, 5));
    trd_value lane = trd_sub(b, i, trd_shift_left(b, half, word(b, 4)));
    trd_value first = trd_add(b, trd_shift_left(b, group, word(b, 4)), lane), second = word(b, 0);
    threefry(b, key, &first, &second);
    trd_value even = trd_equal(b, half, trd_shift_left(b, group, word(b, 1)));
    trd_value upper = trd_shift_right(b, trd_select(b, even, first, second), word(b, 8));
    return trd_reshape(b, trd_greater_equal(b, upper, word(b, trd__dropout_threshold(attr))), *shape);
}

static void expand(trd_builder *b, const trd_node *n, trd_value *results)
{
    const trd__dropout_attr *attr = n->attr;
    trd_dtype dtype = n->results[0].dtype, wide = trd__compute_dtype(dtype);
    trd_value x = trd_cast(b, n->inputs[0], wide);
    results[0] = trd_cast(b, trd__mask(b, kept(b, n), trd__times(b, x, 1.0 / (1.0 - attr->rate))), dtype);
}

static void print(const trd_node *n, char *text, size_t bytes)
{
    const trd__dropout_attr *attr = n->attr;
    snprintf(text, bytes, "rate=%g", attr->rate);
}

trd_value trd_dropout(trd_builder *b, trd_value x, trd_value counter, trd_value site, double rate,
                      uint64_t seed)
{
    if (!(rate >= 0 && rate < 1))
        return trd_builder_fail(b, TRD_INVALID_ARGUMENT, "dropout: rate expected in [0, 1), found %g", rate);
    if (rate == 0) return x;
    trd__dropout_attr attr = {.rate = rate, .seed = seed};
    return trd__add_node(b, &trd__op_dropout, &attr, (trd_value[]){x, counter, site}, 3);
}

const trd_op trd__op_dropout = {.name = "dropout",
                                .min_inputs = 3,
                                .max_inputs = 3,
                                .results = 1,
                                .attr_size = sizeof(trd__dropout_attr),
                                .cost = TRD__COST_CHEAP,
                                .infer = infer,
                                .gradient = gradient,
                                .expand = expand,
                                .print = print};
