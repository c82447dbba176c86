/* Repeated layers against the same layers one by one, to the bit: forward, gradients by every parameter, into
 * what accumulators hold, under every policy. And what the split leaves: how much is kept, where accumulators
 * go. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <treadle/ops.h>

#include "autodiff/autodiff.h"
#include "base/alloc.h"
#include "base/shape.h"
#include "graph/passes.h"
#include "ops/repeat.h"
#include "support/program.h"

enum { B = 2, T = 5, C = 8, H = 2, D = 4, F = 12, LAYERS = 3 };
enum { NORM, Q, K, VALUE, O, NORM2, GATE, UP, DOWN, PARAMS };
enum { SLOT_PARAMS, SLOT_INPUTS, SLOT_GRADIENTS, SLOT_RESULTS, SLOTS };

typedef struct variant {
    bool scanned, accumulate, unroll, remat;
    trd__remat_policy policy;
    trd_dtype dtype;
    unsigned frozen; /* bit i: parameter i has no gradient */
} variant;

static trd_shape shape_of(int parameter)
{
    static const int64_t dims[PARAMS][2] = {
        [NORM] = {C},  [Q] = {H * D, C}, [K] = {H * D, C}, [VALUE] = {H * D, C}, [O] = {C, H * D},
        [NORM2] = {C}, [GATE] = {F, C},  [UP] = {F, C},    [DOWN] = {C, F}};
    return trd__shape_of(dims[parameter][1] ? 2 : 1, dims[parameter]);
}

static trd_value heads(trd_builder *b, trd_value x)
{
    return trd_reshape(b, x, TRD__SHAPE(B, T, H, D));
}

static trd_value layer(trd_builder *b, trd_value x, const trd_value *w, const trd_rows *rows)
{
    static const trd_rope_options rope = {.theta = 100};
    trd_value h = trd_rms_norm(b, x, w[NORM], 1e-5);
    trd_value q = trd_rope(b, heads(b, trd_linear(b, h, w[Q])), rows, &rope);
    trd_value k = trd_rope(b, heads(b, trd_linear(b, h, w[K])), rows, &rope);
    trd_value mixed = trd_attention(b, q, k, heads(b, trd_linear(b, h, w[VALUE])), rows);
    x = trd_add(b, x, trd_linear(b, trd_reshape(b, mixed, TRD__SHAPE(B, T, H * D)), w[O]));
    h = trd_rms_norm(b, x, w[NORM2], 1e-5);
    trd_value fed = trd_swiglu(b, trd_linear(b, h, w[GATE]), trd_linear(b, h, w[UP]));
    return trd_layer_boundary(b, trd_add(b, x, trd_linear(b, fed, w[DOWN])));
}

static void body(trd_builder *b, const trd_iteration *in, trd_value *out, void *user)
{
    (void)user;
    trd_rows rows = {.segments = in->shared[0], .positions = in->shared[1]};
    out[0] = layer(b, in->carries[0], in->stacked, &rows);
}

/* params: the stacked ones, or those of layer 0, layer 1, ... */
static trd_value forward(trd_builder *b, const variant *how, trd_value x, const trd_value *params,
                         const trd_rows *rows)
{
    for (int i = 0; i < LAYERS && !how->scanned; i++) x = layer(b, x, params + i * PARAMS, rows);
    if (!how->scanned) return x;
    const trd_value shared[2] = {rows->segments, rows->positions};
    trd_repeat(b,
               &(trd_repeat_options){.count = LAYERS,
                                     .carries = &x,
                                     .carry_count = 1,
                                     .shared = shared,
                                     .shared_count = 2,
                                     .stacked = params,
                                     .stacked_count = PARAMS,
                                     .body = body},
               &x);
    return x;
}

static bool keep_none(const trd_node *n, void *user)
{
    (void)user;
    return n->op != &trd__op_repeat;
}

static int parameter_entries(const variant *how, trd__entry *entries)
{
    for (int i = 0; i < LAYERS * PARAMS; i++) {
        trd_shape row = shape_of(i % PARAMS), rows = {.rank = row.rank + 1, .dim = {LAYERS}};
        for (int d = 0; d < row.rank; d++) rows.dim[d + 1] = row.dim[d];
        entries[i] = test_entry("w", how->dtype, how->scanned ? rows : row);
    }
    return how->scanned ? PARAMS : LAYERS * PARAMS;
}

static trd__program *build(const variant *how)
{
    trd__program *p;
    trd__entry params[LAYERS * PARAMS];
    trd_value w[LAYERS * PARAMS];
    trd__gradient g[LAYERS * PARAMS];
    int count = parameter_entries(how, params), asked = 0;
    trd__entry inputs[] = {test_entry("x", how->dtype, TRD__SHAPE(B, T, C)),
                           test_entry("segments", TRD_I32, TRD__SHAPE(B, T)),
                           test_entry("positions", TRD_I32, TRD__SHAPE(B, T))};
    trd__entry results[] = {inputs[0], test_entry("loss", TRD_F32, trd__shape_scalar())};
    assert_int_equal(trd__program_create("layers", &p), TRD_OK);
    p->builder->remat = trd__remat_everywhere(how->policy);
    trd__program_slot(p, "params", TRD__READ, params, count);
    trd__program_slot(p, "inputs", TRD__READ, inputs, 3);
    trd__program_slot(p, "gradients", how->accumulate ? TRD__UPDATE : TRD__WRITE, params, count);
    trd__program_slot(p, "results", TRD__WRITE, results, 2);
    for (int i = 0; i < count; i++) w[i] = trd__program_input(p, SLOT_PARAMS, i);
    trd_value x = trd__program_input(p, SLOT_INPUTS, 0);
    trd_rows rows = {.segments = trd__program_input(p, SLOT_INPUTS, 1),
                     .positions = trd__program_input(p, SLOT_INPUTS, 2)};
    trd_value y = forward(p->builder, how, x, w, &rows);
    trd_value loss = trd_cast(p->builder, trd_sum_all(p->builder, trd_tanh(p->builder, y)), TRD_F32);
    for (int i = 0; i < count; i++) {
        if (how->frozen >> i % PARAMS & 1u) continue;
        g[asked].of = w[i];
        g[asked++].accumulator = how->accumulate
                                     ? trd__program_input(p, SLOT_GRADIENTS, i)
                                     : trd_constant_fill(p->builder, how->dtype, params[i].shape, 0);
    }
    if (trd__autodiff(p->builder, loss, g, asked)) fail_msg("%s", trd_error_message());
    asked = 0;
    for (int i = 0; i < count; i++)
        if (!(how->frozen >> i % PARAMS & 1u)) trd__program_output(p, SLOT_GRADIENTS, i, g[asked++].result);
    trd__program_output(p, SLOT_RESULTS, 0, trd__autodiff_current(p->builder, y));
    trd__program_output(p, SLOT_RESULTS, 1, trd__autodiff_current(p->builder, loss));
    assert_int_equal(trd__cse(p), TRD_OK);
    if (how->remat) assert_int_equal(trd__remat(p, trd__remat_everywhere(how->policy)), TRD_OK);
    if (how->unroll) assert_int_equal(trd__expand(p, keep_none, NULL), TRD_OK);
    if (trd__verify(p)) fail_msg("%s", trd_error_message());
    return p;
}

/* Layer l's part of parameter entry i, whichever form the set has: moved from or to the entry's bytes. */
static size_t part_of(const variant *how, int parameter, int l, size_t *offset, int *entry)
{
    trd_shape shape = shape_of(parameter);
    size_t bytes = trd__tensor_bytes(&shape, how->dtype);
    *entry = how->scanned ? parameter : l * PARAMS + parameter;
    *offset = how->scanned ? (size_t)l * bytes : 0;
    return bytes;
}

/* Fills entries of the set so that both forms hold the same layers. */
static void fill(trd__backend *backend, trd__set *set, const variant *how, uint64_t seed)
{
    variant single = *how;
    single.scanned = false;
    trd__program *one = build(&single);
    trd__set *parts = test_set(backend, &one->slots[SLOT_PARAMS]);
    unsigned char *whole = trd__calloc(LAYERS, C * F * 8), *part = trd__calloc(1, C * F * 8);
    assert_true(whole && part);
    for (int parameter = 0; parameter < PARAMS; parameter++)
        for (int l = 0; l < LAYERS; l++) {
            size_t offset;
            int entry;
            test_fill(backend, parts, l * PARAMS + parameter, seed + (uint64_t)(l * PARAMS + parameter));
            backend->table->set_read(backend, parts, l * PARAMS + parameter, part);
            size_t bytes = part_of(how, parameter, l, &offset, &entry);
            memcpy(whole + offset, part, bytes);
            if (!how->scanned || l == LAYERS - 1) backend->table->set_write(backend, set, entry, whole);
        }
    trd__free(part);
    trd__free(whole);
    backend->table->set_free(backend, parts);
    trd__program_free(one);
}

static unsigned char *append(unsigned char *data, size_t *used, const void *more, size_t bytes)
{
    data = realloc(data, *used + bytes);
    assert_non_null(data);
    memcpy(data + *used, more, bytes);
    *used += bytes;
    return data;
}

/* Results and gradients of one run, layer by layer, as stored bytes. arena (may be NULL): what it took. */
static unsigned char *run(const variant *how, size_t *bytes, uint64_t *arena)
{
    trd__backend *backend = test_backend(2);
    trd__program *p = build(how);
    trd__executable *executable = test_compile(backend, p, false);
    trd__set *sets[SLOTS];
    for (int s = 0; s < SLOTS; s++) sets[s] = test_set(backend, &p->slots[s]);
    fill(backend, sets[SLOT_PARAMS], how, 3);
    if (how->accumulate) fill(backend, sets[SLOT_GRADIENTS], how, 77);
    test_fill(backend, sets[SLOT_INPUTS], 0, 5);
    const double segments[B * T] = {1, 1, 1, 2, 2, 1, 1, 1, 0, 0},
                              positions[B * T] = {0, 1, 2, 0, 1, 0, 1, 2, 0, 0};
    test_write(backend, sets[SLOT_INPUTS], 1, segments);
    test_write(backend, sets[SLOT_INPUTS], 2, positions);
    trd__event event;
    assert_int_equal(backend->table->execute(backend, executable, sets, &event), TRD_OK);
    if (backend->table->event_wait(backend, event)) fail_msg("%s", trd_error_message());
    unsigned char *data = NULL, *entry_data = trd__calloc(LAYERS, C * F * 8);
    assert_non_null(entry_data);
    *bytes = 0;
    for (int r = 0; r < 2; r++) {
        backend->table->set_read(backend, sets[SLOT_RESULTS], r, entry_data);
        data = append(data, bytes, entry_data, trd__entry_bytes(&p->slots[SLOT_RESULTS].entries[r]));
    }
    for (int i = 0; i < PARAMS * LAYERS; i++) {
        size_t offset;
        int entry, parameter = i % PARAMS;
        size_t part = part_of(how, parameter, i / PARAMS, &offset, &entry);
        if (how->frozen >> parameter & 1u) continue;
        backend->table->set_read(backend, sets[SLOT_GRADIENTS], entry, entry_data);
        data = append(data, bytes, entry_data + offset, part);
    }
    if (arena) *arena = backend->table->memory(executable).arena_bytes;
    trd__free(entry_data);
    backend->table->executable_free(backend, executable);
    for (int s = 0; s < SLOTS; s++) backend->table->set_free(backend, sets[s]);
    trd__program_free(p);
    trd__backend_free(backend);
    return data;
}

static void assert_same(const variant *a, const variant *b)
{
    size_t bytes, again;
    unsigned char *want = run(a, &bytes, NULL), *have = run(b, &again, NULL);
    assert_int_equal(bytes, again);
    assert_memory_equal(want, have, bytes);
    free(want);
    free(have);
}

static void has_the_bits_of_layers_one_by_one(void **state)
{
    (void)state;
    test_cpu_only();
    static const trd_dtype dtypes[] = {TRD_F32, TRD_BF16, TRD_F64};
    for (size_t d = 0; d < 3; d++)
        for (int accumulate = 0; accumulate < 2; accumulate++)
            for (int unroll = 0; unroll < 2; unroll++) {
                variant single = {.dtype = dtypes[d], .accumulate = accumulate}, scanned = single;
                if (dtypes[d] == TRD_BF16 && accumulate && unroll) continue; /* rounds before it adds */
                scanned.scanned = true;
                scanned.unroll = unroll;
                assert_same(&single, &scanned);
            }
}

static void has_them_under_every_policy(void **state)
{
    (void)state;
    test_cpu_only();
    variant single = {.dtype = TRD_F32, .accumulate = true}, scanned = single;
    scanned.scanned = scanned.remat = true;
    for (int policy = TRD__REMAT_NONE; policy <= TRD__REMAT_FULL; policy++) {
        scanned.policy = (trd__remat_policy)policy;
        for (int unroll = 0; unroll < 2; unroll++) {
            scanned.unroll = unroll;
            assert_same(&single, &scanned);
        }
    }
}

static void has_them_with_frozen_parameters(void **state)
{
    (void)state;
    test_cpu_only();
    variant single = {.dtype = TRD_F32, .accumulate = true, .frozen = 1u << Q | 1u << NORM2 | 1u << DOWN};
    variant scanned = single;
    scanned.scanned = true;
    assert_same(&single, &scanned);
}

/* The forward node first, the backward one behind it. */
static const trd_node *find_repeat(const trd__program *p, int number)
{
    const trd_graph *graph = &p->builder->graph;
    for (int i = 0; i < graph->node_count; i++)
        if (graph->nodes[i]->op == &trd__op_repeat && number-- == 0) return graph->nodes[i];
    return NULL;
}

static void a_policy_says_what_is_kept(void **state)
{
    (void)state;
    int kept[3];
    double flops[3];
    for (int policy = TRD__REMAT_NONE; policy <= TRD__REMAT_FULL; policy++) {
        variant how = {.scanned = true, .dtype = TRD_F32, .policy = (trd__remat_policy)policy};
        trd__program *p = build(&how);
        kept[policy] = trd__repeat_attr_of(find_repeat(p, 0))->made;
        flops[policy] = trd__program_flops(p);
        trd__program_free(p);
    }
    assert_int_equal(kept[TRD__REMAT_FULL], 1); /* what the layer reads */
    assert_true(kept[TRD__REMAT_MINIMAL] > 1);
    assert_true(kept[TRD__REMAT_MINIMAL] <= kept[TRD__REMAT_NONE]);
    assert_true(flops[TRD__REMAT_NONE] == flops[TRD__REMAT_FULL]); /* copies do not count */
}

static void the_flops_are_those_of_layers_one_by_one(void **state)
{
    (void)state;
    double flops[2];
    for (int scanned = 0; scanned < 2; scanned++) {
        variant how = {.scanned = scanned, .dtype = TRD_F32};
        trd__program *p = build(&how);
        flops[scanned] = trd__program_flops(p);
        trd__program_free(p);
    }
    assert_true(flops[0] > 0 && flops[0] == flops[1]);
}

static void frozen_rows_cost_nothing(void **state)
{
    (void)state;
    variant how = {.scanned = true, .dtype = TRD_F32, .frozen = 1u << Q | 1u << DOWN};
    trd__program *p = build(&how);
    assert_int_equal(trd__repeat_attr_of(find_repeat(p, 1))->made, PARAMS - 2);
    assert_null(find_repeat(p, 2));
    trd__program_free(p);
}

/* Nodes of the program's graph that are no smaller than a stacked parameter and neither leaf nor repeat. */
static int count_large(const trd__program *p)
{
    int count = 0;
    for (int i = 0; i < p->builder->graph.node_count; i++) {
        const trd_node *n = p->builder->graph.nodes[i];
        bool own = !(n->op->flags & TRD__OP_LEAF) && n->op != &trd__op_repeat;
        count += own && n->results[0].shape.rank && n->results[0].shape.dim[0] == LAYERS;
    }
    return count;
}

static void accumulators_go_inside(void **state)
{
    (void)state;
    variant how = {.scanned = true, .accumulate = true, .dtype = TRD_F32};
    trd__program *p = build(&how);
    assert_int_equal(count_large(p), PARAMS);
    assert_int_equal(trd__fuse_accumulate(p), TRD_OK);
    if (trd__verify(p)) fail_msg("%s", trd_error_message());
    const trd_node *backward = find_repeat(p, 1);
    const trd__repeat_attr *attr = trd__repeat_attr_of(backward);
    assert_int_equal(count_large(p), 0);
    assert_int_equal(attr->sums, PARAMS);
    assert_int_equal(attr->made, 0);
    for (int i = 0; i < PARAMS; i++) {
        trd_value operand = backward->inputs[trd__repeat_operand(attr, TRD__REPEAT_SUMS, i)];
        assert_ptr_equal(operand.node->op, &trd__op_input);
    }
    /* Products take their row themselves. */
    const trd_graph *inside = &trd__repeat_body(backward)->builder->graph;
    for (int i = 0; i < inside->node_count; i++)
        assert_ptr_not_equal(inside->nodes[i]->op, &trd__op_accumulate);
    trd__program_free(p);
}

static void the_first_micro_batch_reads_no_accumulator(void **state)
{
    (void)state;
    variant how = {.scanned = true, .dtype = TRD_F32};
    trd__program *p = build(&how);
    assert_int_equal(trd__fuse_accumulate(p), TRD_OK);
    const trd__repeat_attr *attr = trd__repeat_attr_of(find_repeat(p, 1));
    assert_int_equal(count_large(p), 0);
    assert_int_equal(attr->sums, 0);
    assert_int_equal(attr->made, PARAMS);
    trd__program_free(p);
}

static void what_no_iteration_changes_is_computed_once(void **state)
{
    (void)state;
    variant how = {.scanned = true, .dtype = TRD_F32};
    trd__program *p = build(&how);
    const trd__program *inside[2] = {trd__repeat_body(find_repeat(p, 0)),
                                     trd__repeat_body(find_repeat(p, 1))};
    int around = 0;
    for (int i = 0; i < p->builder->graph.node_count; i++)
        around += p->builder->graph.nodes[i]->op == &trd__op_rope_table;
    assert_int_equal(around, 1);
    for (int half = 0; half < 2; half++)
        for (int i = 0; i < inside[half]->builder->graph.node_count; i++)
            assert_ptr_not_equal(inside[half]->builder->graph.nodes[i]->op, &trd__op_rope_table);
    trd__program_free(p);
}

static void keeping_less_needs_less_memory(void **state)
{
    (void)state;
    test_cpu_only();
    uint64_t arena[2];
    for (int i = 0; i < 2; i++) {
        variant how = {.scanned = true, .dtype = TRD_F32, .policy = i ? TRD__REMAT_FULL : TRD__REMAT_NONE};
        size_t bytes;
        free(run(&how, &bytes, &arena[i]));
    }
    assert_true(arena[1] < arena[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(has_the_bits_of_layers_one_by_one),
        cmocka_unit_test(has_them_under_every_policy),
        cmocka_unit_test(has_them_with_frozen_parameters),
        cmocka_unit_test(a_policy_says_what_is_kept),
        cmocka_unit_test(the_flops_are_those_of_layers_one_by_one),
        cmocka_unit_test(frozen_rows_cost_nothing),
        cmocka_unit_test(accumulators_go_inside),
        cmocka_unit_test(the_first_micro_batch_reads_no_accumulator),
        cmocka_unit_test(what_no_iteration_changes_is_computed_once),
        cmocka_unit_test(keeping_less_needs_less_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
