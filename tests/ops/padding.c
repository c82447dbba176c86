/* Padding leaves no trace: a batch with all-padding rows and left-padded rows gives the gradients of the
 * batch without them, for every way the ops can be run, the pad token's embedding row included. The model is
 * one decoder block over an embedding, with a tied or an own head. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cpu/kernel.h"
#include "base/dtype.h"
#include "base/rng.h"
#include "base/shape.h"
#include "graph/passes.h"
#include "support/normal.h"
#include "support/small_program.h"

enum { ROWS = 2, LENGTH = 11, PADDING = 6, VOCABULARY = 19, PAD = 0, CHANNELS = 32, HEADS = 4, LANES = 16 };
enum { TOKENS, SEGMENTS, POSITIONS, WEIGHTS, FIRST_PARAMETER };

typedef struct way {
    trd_dtype dtype;
    bool reference, expand, tied;
    int groups, padded_length, padded_rows; /* padded_rows all-padding rows around the real ones */
    const char *isa;
} way;

static const char *const isa_names[] = {"baseline", "avx2", "avx512"};

/* Shapes of the parameters, in order: embedding, norm, q, k, v, o, gate, up, down, final norm, head. */
static int parameter_shapes(const way *w, trd_shape *shapes)
{
    int64_t q = HEADS * LANES, kv = (int64_t)w->groups * LANES, wide = 48;
    trd_shape all[] = {TRD__SHAPE(VOCABULARY, CHANNELS), TRD__SHAPE(CHANNELS),
                       TRD__SHAPE(q, CHANNELS),          TRD__SHAPE(kv, CHANNELS),
                       TRD__SHAPE(kv, CHANNELS),         TRD__SHAPE(CHANNELS, q),
                       TRD__SHAPE(wide, CHANNELS),       TRD__SHAPE(wide, CHANNELS),
                       TRD__SHAPE(CHANNELS, wide),       TRD__SHAPE(CHANNELS),
                       TRD__SHAPE(VOCABULARY, CHANNELS)};
    int count = (int)(sizeof all / sizeof *all) - (w->tied ? 1 : 0);
    memcpy(shapes, all, (size_t)count * sizeof *shapes);
    return count;
}

/* Row r's column t of the batch without padding: two segments, ids other than PAD. */
static void real_token(int r, int t, int32_t *token, int32_t *segment, int32_t *position, float *weight)
{
    int first = r == 0 ? 4 : 7;
    *token = 1 + (int32_t)trd__rng_below(3, 1, (uint64_t)(r * LENGTH + t), VOCABULARY - 1);
    *segment = t < first ? 1 : 2;
    *position = t < first ? t : t - first;
    *weight = *position == 0 ? 0 : (float)(1 + t % 2);
}

static void make_batch(const way *w, small_tensor *inputs)
{
    int rows = ROWS + w->padded_rows, length = LENGTH + w->padded_length;
    trd_shape shape = TRD__SHAPE(rows, length);
    const char *names[] = {"tokens", "segments", "positions", "weights"};
    for (int i = 0; i < FIRST_PARAMETER; i++)
        inputs[i] = small_tensor_make(names[i], i == WEIGHTS ? TRD_F32 : TRD_I32, shape);
    int32_t *tokens = inputs[TOKENS].data, *segments = inputs[SEGMENTS].data;
    int32_t *positions = inputs[POSITIONS].data;
    float *weights = inputs[WEIGHTS].data;
    for (int i = 0; i < rows * length; i++) tokens[i] = PAD;
    int above = w->padded_rows ? 1 : 0;
    for (int r = 0; r < ROWS; r++)
        for (int t = 0; t < LENGTH; t++) {
            int i = (above + r) * length + w->padded_length + t;
            real_token(r, t, &tokens[i], &segments[i], &positions[i], &weights[i]);
        }
}

static trd_value split_heads(trd_builder *b, trd_value x, trd_value weight)
{
    trd_shape shape = trd_value_shape(x);
    return trd_reshape(b, trd_linear(b, x, weight), TRD__SHAPE(shape.dim[0], shape.dim[1], -1, LANES));
}

/* The token to predict and its weight, moved to the row that predicts it. */
static trd_value shift(trd_builder *b, trd_value x)
{
    int64_t length = trd_value_shape(x).dim[1];
    return trd_pad(b, trd_slice(b, x, 1, 1, length), 1, 0, 1, 0);
}

static trd_value build_loss(trd_builder *b, const way *w, const trd_value *in)
{
    const trd_value *p = in + FIRST_PARAMETER;
    trd_rows rows = {.segments = in[SEGMENTS], .positions = in[POSITIONS]};
    trd_rope_options rope = {.theta = 10000};
    trd_value x = trd_gather_rows(b, p[0], in[TOKENS]), h = trd_rms_norm(b, x, p[1], 1e-6);
    trd_value q = trd_rope(b, split_heads(b, h, p[2]), &rows, &rope);
    trd_value k = trd_rope(b, split_heads(b, h, p[3]), &rows, &rope);
    trd_value attended = trd_attention(b, q, k, split_heads(b, h, p[4]), &rows);
    trd_shape shape = trd_value_shape(x);
    attended = trd_reshape(b, attended, TRD__SHAPE(shape.dim[0], shape.dim[1], HEADS * LANES));
    x = trd_add(b, x, trd_linear(b, attended, p[5]));
    x = trd_add(b, x, trd_linear(b, trd_swiglu(b, trd_linear(b, x, p[6]), trd_linear(b, x, p[7])), p[8]));
    x = trd_rms_norm(b, x, p[9], 1e-6);
    trd_value weights = shift(b, in[WEIGHTS]);
    trd_value mask = trd_not_equal(b, weights, trd_scalar(b, TRD_F32, 0));
    trd_value logprobs =
        trd_token_logprobs(b, x, w->tied ? p[0] : p[10], shift(b, in[TOKENS]), mask, 1, NULL);
    return trd_neg(b, trd_sum_all(b, trd_mul(b, logprobs, weights)));
}

static bool keep_none(const trd_node *n, void *user)
{
    (void)n, (void)user;
    return false;
}

static void run(const way *w, small_program *p)
{
    small_tensor inputs[SMALL_MAX], accumulators[SMALL_MAX];
    trd_shape shapes[SMALL_MAX];
    int count = parameter_shapes(w, shapes), of[SMALL_MAX];
    make_batch(w, inputs);
    for (int i = 0; i < count; i++) {
        small_tensor *t = &inputs[FIRST_PARAMETER + i];
        *t = small_tensor_make("parameter", w->dtype, shapes[i]);
        for (size_t e = 0; e < small_tensor_count(t); e++)
            trd__store(w->dtype, t->data, e,
                       (shapes[i].rank == 1 ? 1 : 0) + 0.3 * test_normal(5, (uint64_t)i, e));
        accumulators[i] = (small_tensor){.name = "gradient", .dtype = TRD_F32, .shape = shapes[i]};
        of[i] = FIRST_PARAMETER + i;
    }
    small_program_begin(p, inputs, FIRST_PARAMETER + count);
    trd_builder *b = small_program_builder(p);
    trd_value loss = build_loss(b, w, p->values);
    small_program_result(p, "loss", loss);
    small_program_differentiate(p, loss, of, accumulators, count);
    small_program_finish(p);
    expect_ok(trd__fuse_accumulate(p->program), "fuse accumulators");
    if (w->expand) expect_ok(trd__expand(p->program, keep_none, NULL), "expand");
    trd__backend *backend = small_backend(w->isa, 2);
    small_program_run(p, backend, w->reference);
    trd__backend_free(backend);
}

static double l2(const float *x, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

/* The padded batch's gradients against those of the batch without padding. */
static void check(const way *w)
{
    way plain = *w;
    plain.padded_length = plain.padded_rows = 0;
    small_program want, have;
    run(&plain, &want);
    run(w, &have);
    double limit = w->dtype == TRD_BF16 ? 1e-2 : 1e-5;
    for (int i = 0; i < want.gradient_count; i++) {
        const float *a = want.gradients[i].data, *c = have.gradients[i].data;
        size_t count = small_tensor_count(&want.gradients[i]);
        double scale = l2(a, count) / sqrt((double)count);
        for (size_t e = 0; e < count; e++)
            if (!(fabs((double)a[e] - (double)c[e]) <= 10 * limit * scale))
                fail_msg("parameter %d element %zu: expected %g, found %g (%s%s%s, %s, %d groups)", i, e,
                         (double)a[e], (double)c[e], w->reference ? "plain" : w->isa,
                         w->expand ? " expanded" : "", w->tied ? " tied" : "", trd_dtype_name(w->dtype),
                         w->groups);
        for (size_t e = 0; !w->tied && i == 0 && e < CHANNELS; e++)
            if (c[PAD * CHANNELS + e] != 0) fail_msg("the pad token's embedding row has a gradient");
    }
    small_program_end(&want);
    small_program_end(&have);
}

/* All dtypes, head ratios and kinds of head for one way of running. */
static void check_models(way w)
{
    w.padded_length = PADDING;
    w.padded_rows = 2;
    for (int bf16 = 0; bf16 < 2; bf16++)
        for (int tied = 0; tied < 2; tied++)
            for (w.groups = 1; w.groups <= HEADS; w.groups *= 2) {
                w.dtype = bf16 ? TRD_BF16 : TRD_F32;
                w.tied = tied;
                check(&w);
            }
}

static void plain_kernels(void **state)
{
    (void)state;
    check_models((way){.reference = true});
}

static void expansions(void **state)
{
    (void)state;
    check_models((way){.reference = true, .expand = true});
}

static void expansions_fused(void **state)
{
    (void)state;
    check_models((way){.expand = true, .isa = isa_names[trd__cpu_detect()]});
}

static void fast_kernels(void **state)
{
    (void)state;
    for (int isa = 0; isa <= (int)trd__cpu_detect(); isa++) check_models((way){.isa = isa_names[isa]});
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(plain_kernels), cmocka_unit_test(expansions),
                                       cmocka_unit_test(expansions_fused), cmocka_unit_test(fast_kernels)};
    return cmocka_run_group_tests_name("ops/padding", tests, NULL, NULL);
}
