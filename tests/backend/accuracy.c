/* How far the fast kernels are from float64 in float32: each runs on float32 operands with every instruction
 * set and with 1 and 2 workers, and the plain kernel on the same values in float64. An error is the largest
 * of a row (the last axis), in units of the row's largest element; the worst row counts.
 *
 * With --table the sizes are those of real models and the figures of docs/numerics.md are printed. */
#include "backend/cpu/row_math.h"
#include "backend/cpu/tiles.h"
#include "backend/kernels.h"

extern const trd__cpu_op trd__cpu_rms_norm[], trd__cpu_swiglu[], trd__cpu_rope[], trd__cpu_attention[],
    trd__cpu_token_logprobs[], trd__cpu_reduce[], trd__cpu_matmul[];

enum { SIZES = 4 };

typedef struct experiment experiment;
struct experiment {
    const char *name; /* what is computed from what */
    const trd_op *op;
    const trd__cpu_op *family;
    const char *variant;
    void (*fill)(kernel_case *c, const experiment *e, const int64_t *size);
    double spread; /* of the main operand, as fill says */
    int64_t small[SIZES], large[SIZES];
    const char *results[MAX_OUTPUTS];
    double limits[MAX_OUTPUTS];
    bool whole; /* all rows count as one: gradients of a saturated softmax are 0 but for rounding */
};

static bool print_table;

/* -- operands -- */

/* Rows of very different magnitude: row r times 10^(-6 .. 6). */
static void spread_rows(tensor *t)
{
    int64_t width = t->type.shape.dim[t->type.shape.rank - 1];
    for (size_t i = 0; i < tensor_count(t); i++)
        ((float *)t->data)[i] *= (float)pow(10.0, (double)((int64_t)i / width % 13) - 6.0);
}

static void fill_norm(kernel_case *c, const experiment *e, const int64_t *size)
{
    static const trd__rms_norm_attr attr = {1e-6};
    trd_shape x = TRD__SHAPE(size[0], size[1]), scale = TRD__SHAPE(size[1]);
    c->attr = &attr;
    tensor *rows = case_random(c, TRD_F32, x, 1.0);
    if (e->spread > 0)
        spread_rows(rows);
    else if (e->spread < 0) /* a large mean */
        for (size_t i = 0; i < tensor_count(rows); i++) ((float *)rows->data)[i] -= (float)e->spread;
    case_random(c, TRD_F32, scale, 1.0);
    bool gradient = c->op == &trd__op_rms_norm_grad;
    if (gradient) case_random(c, TRD_F32, x, 1.0);
    if (gradient) case_null(c);
    case_output(c, TRD_F32, x);
    if (gradient) case_output(c, TRD_F32, scale);
}

static void fill_rope(kernel_case *c, const experiment *e, const int64_t *size)
{
    static const trd__rope_attr attr = {0};
    trd_shape x = TRD__SHAPE(1, size[0], size[1], size[2]);
    c->attr = &attr;
    case_random(c, TRD_F32, x, e->spread);
    float *table = case_input(c, TRD_F32, TRD__SHAPE(1, size[0], size[2] / 2, 2))->data;
    for (int64_t i = 0; i < size[0] * size[2] / 2; i++) {
        table[2 * i] = cosf((float)i);
        table[2 * i + 1] = sinf((float)i);
    }
    case_output(c, TRD_F32, x);
}

static void fill_swiglu(kernel_case *c, const experiment *e, const int64_t *size)
{
    trd_shape x = TRD__SHAPE(size[0], 64);
    case_random(c, TRD_F32, x, e->spread);
    case_random(c, TRD_F32, x, 1.0);
    if (c->op == &trd__op_swiglu_grad) case_random(c, TRD_F32, x, 1.0);
    for (int i = 1; i < c->input_count; i++) case_output(c, TRD_F32, x);
}

/* size: queries, heads, groups, head size; spread: of q and k. */
static void fill_attention(kernel_case *c, const experiment *e, const int64_t *size)
{
    static trd__attention_attr attr;
    attr.scale = 1 / sqrt((double)size[3]);
    c->attr = &attr;
    trd_shape q = TRD__SHAPE(1, size[0], size[1], size[3]), k = TRD__SHAPE(1, size[0], size[2], size[3]);
    case_random(c, TRD_F32, q, e->spread);
    case_random(c, TRD_F32, k, e->spread);
    case_random(c, TRD_F32, k, 1.0);
    int32_t *segments = case_input(c, TRD_I32, TRD__SHAPE(1, size[0]))->data;
    for (int64_t i = 0; i < size[0]; i++) segments[i] = 1;
    case_output(c, TRD_F32, q);
    case_output(c, TRD_F32, TRD__SHAPE(1, size[1], size[0]));
    if (c->op == &trd__op_attention) return;
    const trd_op *op = c->op;
    c->op = &trd__op_attention;
    case_run(c, kernel_named(trd__cpu_attention, c->op, "blocked"), trd__cpu_detect(), 2, c->outputs);
    c->op = op;
    for (int i = 0; i < 2; i++) c->inputs[c->input_count++] = c->outputs[i];
    case_random(c, TRD_F32, q, 1.0);
    c->output_count = 0;
    case_output(c, TRD_F32, q);
    case_output(c, TRD_F32, k);
    case_output(c, TRD_F32, k);
}

/* size: rows, channels, vocabulary; spread: of the logits. */
static void fill_logprobs(kernel_case *c, const experiment *e, const int64_t *size)
{
    static const trd__token_logprobs_attr attr = {.temperature = 1.0, .weight_grad_dtype = TRD_F32};
    trd_shape hidden = TRD__SHAPE(size[0], size[1]), weight = TRD__SHAPE(size[2], size[1]),
              rows = TRD__SHAPE(size[0]);
    c->attr = &attr;
    case_random(c, TRD_F32, hidden, 1.0);
    case_random(c, TRD_F32, weight, e->spread / sqrt((double)size[1]));
    int32_t *targets = case_input(c, TRD_I32, rows)->data;
    for (int64_t i = 0; i < size[0]; i++)
        targets[i] = (int32_t)trd__rng_below(c->seed, 99, (uint64_t)i, (uint64_t)size[2]);
    case_null(c);
    bool gradient = c->op == &trd__op_token_logprobs_grad;
    if (gradient) {
        case_random(c, TRD_F32, rows, 1.0);
        case_null(c);
        case_null(c);
    }
    case_output(c, TRD_F32, rows);
    if (gradient) case_output(c, TRD_F32, hidden);
    if (gradient) case_output(c, TRD_F32, weight);
    case_output(c, TRD_F32, rows);
}

static void fill_sum(kernel_case *c, const experiment *e, const int64_t *size)
{
    static const trd__reduce_attr rows = {2, 0, TRD_F32}, columns = {1, 0, TRD_F32};
    c->attr = e->spread > 0 ? &rows : &columns;
    case_random(c, TRD_F32, TRD__SHAPE(size[0], size[1]), 1.0);
    case_output(c, TRD_F32, TRD__SHAPE(e->spread > 0 ? size[0] : size[1]));
}

static void fill_linear(kernel_case *c, const experiment *e, const int64_t *size)
{
    static const trd__matmul_attr attr = {.transpose_y = 1, .dtype = TRD_F32};
    c->attr = &attr;
    case_random(c, TRD_F32, TRD__SHAPE(size[0], size[1]), e->spread);
    case_random(c, TRD_F32, TRD__SHAPE(size[2], size[1]), 1.0);
    case_output(c, TRD_F32, TRD__SHAPE(size[0], size[2]));
}

/* -- measuring -- */

/* A copy, float32 as dtype. */
static tensor widen(const tensor *t, trd_dtype dtype)
{
    if (!t->data) return (tensor){0};
    tensor wide = tensor_make(t->type.dtype == TRD_F32 ? dtype : t->type.dtype, t->type.shape);
    for (size_t i = 0; i < tensor_count(t); i++)
        trd__store(wide.type.dtype, wide.data, i, trd__load(t->type.dtype, t->data, i));
    return wide;
}

/* The case in float64, run by the plain kernel. */
static kernel_case float64_case(const kernel_case *c, const experiment *e)
{
    static const trd__matmul_attr linear = {.transpose_y = 1, .dtype = TRD_F64};
    kernel_case wide = {.op = c->op, .attr = c->attr, .seed = c->seed};
    if (c->op == &trd__op_matmul) wide.attr = &linear;
    for (int i = 0; i < c->input_count; i++) {
        bool table = c->op == &trd__op_rope && i == 1; /* float32 whatever the operand */
        wide.inputs[wide.input_count++] = widen(&c->inputs[i], table ? TRD_F32 : TRD_F64);
    }
    for (int i = 0; i < c->output_count; i++) case_output(&wide, TRD_F64, c->outputs[i].type.shape);
    case_run(&wide, kernel_named(e->family, wide.op, NULL), TRD__ISA_BASELINE, 2, wide.outputs);
    return wide;
}

static double worst_row(const tensor *expected, const tensor *found, bool whole)
{
    const double *want = expected->data;
    const float *have = found->data;
    int64_t width = expected->type.shape.dim[expected->type.shape.rank - 1];
    if (whole) width = (int64_t)tensor_count(expected);
    double worst = 0;
    for (size_t row = 0; row < tensor_count(expected); row += (size_t)width) {
        double error = 0, largest = 1e-30;
        for (size_t i = row; i < row + (size_t)width; i++) {
            double difference = fabs((double)have[i] - want[i]);
            if (!(difference <= error)) error = difference; /* a NaN is kept */
            largest = fmax(largest, fabs(want[i]));
        }
        if (error != 0 && !(error / largest <= worst)) worst = error / largest;
    }
    return worst;
}

static void print_size(const int64_t *size)
{
    for (int i = 0; i < SIZES && size[i]; i++) printf("%s%lld", i ? " x " : "", (long long)size[i]);
}

static void measure(const experiment *e)
{
    const int64_t *size = print_table ? e->large : e->small;
    kernel_case c = {.op = e->op, .seed = 1};
    e->fill(&c, e, size);
    kernel_case wide = float64_case(&c, e);
    double worst[MAX_OUTPUTS] = {0};
    for (int isa = TRD__ISA_BASELINE; isa <= (int)trd__cpu_detect(); isa++)
        for (int workers = 1; workers <= 2; workers++) {
            case_run(&c, kernel_named(e->family, e->op, e->variant), (trd__isa)isa, workers, c.outputs);
            for (int i = 0; i < c.output_count; i++)
                worst[i] = fmax(worst[i], worst_row(&wide.outputs[i], &c.outputs[i], e->whole));
        }
    for (int i = 0; i < c.output_count && print_table; i++) {
        printf("| %s | %s | ", e->name, e->results[i]);
        print_size(size);
        printf(" | %.1e |\n", worst[i]);
    }
    for (int i = 0; i < c.output_count; i++)
        if (!(worst[i] <= e->limits[i]))
            fail_msg("%s: %s is off by %g of the row's largest, at most %g expected", e->name, e->results[i],
                     worst[i], e->limits[i]);
    case_free(&c);
    case_free(&wide);
}

/* -- elementwise -- */

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}
static double rsqrt(double x)
{
    return 1 / sqrt(x);
}

/* Over every so many floats between the bounds, both signs where low < 0, in units of the last place of a
 * normal result. */
static double worst_ulp(trd__tile_function run, double (*exact)(double), float low, float high)
{
    uint32_t step = print_table ? 97 : 9973;
    double worst = 0;
    float x[TRD__TILE], y[TRD__TILE];
    uint32_t end, bits = 0;
    memcpy(&end, &high, sizeof end);
    while (bits < end) {
        for (int i = 0; i < TRD__TILE; i++, bits += step) {
            uint32_t word = (bits < end ? bits : end) | (low < 0 && i % 2 ? 0x80000000u : 0);
            memcpy(x + i, &word, sizeof word);
            x[i] = fmaxf(x[i], low);
        }
        run(y, (const float *[]){x, x, x, x}, TRD__TILE);
        for (int i = 0; i < TRD__TILE; i++) {
            double want = exact((double)x[i]), size = fmax(fabs(want), 1.1754944e-38);
            if (!(size < 3.4e38)) continue;
            int exponent;
            frexp(size, &exponent);
            worst = fmax(worst, fabs((double)y[i] - want) / ldexp(1.0, exponent - 24));
        }
    }
    return worst;
}

static const struct {
    const trd_op *op;
    double (*exact)(double);
    float low, high;
    double limit;
} functions[] = {
    {&trd__op_exp, exp, -104.0f, 88.7f, 1.5},     {&trd__op_sigmoid, sigmoid, -87.0f, 87.0f, 2.5},
    {&trd__op_log, log, 1e-38f, 3e38f, 1.0},      {&trd__op_tanh, tanh, -20.0f, 20.0f, 2.5},
    {&trd__op_rsqrt, rsqrt, 1e-38f, 3e38f, 1.51}, {&trd__op_sqrt, sqrt, 0.0f, 3e38f, 0.51},
};

static void elementwise(void **state)
{
    (void)state;
    for (size_t f = 0; f < sizeof functions / sizeof *functions; f++) {
        double worst = 0;
        for (int isa = TRD__ISA_BASELINE; isa <= (int)trd__cpu_detect(); isa++) {
            trd__tile_function run = trd__tile_find(trd__tiles_for((trd__isa)isa), functions[f].op);
            assert_non_null(run);
            worst = fmax(worst, worst_ulp(run, functions[f].exact, functions[f].low, functions[f].high));
        }
        if (print_table) printf("| %s | | | %.2f ulp |\n", functions[f].op->name, worst);
        if (!(worst <= functions[f].limit))
            fail_msg("%s is off by %.2f ulp, at most %g expected", functions[f].op->name, worst,
                     functions[f].limit);
    }
}

/* -- the list -- */

#define E(label, op_name, family_name, variant_name, fill_name, how, ...)                                    \
    {                                                                                                        \
        .name = label, .op = &trd__op_##op_name, .family = trd__cpu_##family_name, .variant = variant_name,  \
        .fill = fill_name, .spread = how, __VA_ARGS__                                                        \
    }
#define SIZE(...)                                                                                            \
    {                                                                                                        \
        __VA_ARGS__                                                                                          \
    }
#define NORM(label, op, how, ...)                                                                            \
    E(label, op, rms_norm, "rows", fill_norm, how, .small = {600, 256}, .large = {2048, 4096}, __VA_ARGS__)
#define ATTENTION(label, op, how, ...)                                                                       \
    E(label, op, attention, "blocked", fill_attention, how, .small = {160, 2, 1, 64},                        \
      .large = {1024, 2, 1, 128}, __VA_ARGS__)
#define HEAD(label, op, how, size, ...)                                                                      \
    E(label, op, token_logprobs, "blocks", fill_logprobs, how, .small = {20, 256, 3000}, .large = size,      \
      __VA_ARGS__)
#define RESULTS(...) .results = {__VA_ARGS__}
#define LIMITS(...) .limits = {__VA_ARGS__}

static const experiment experiments[] = {
    NORM("rms_norm", rms_norm, 0, RESULTS("y"), LIMITS(4e-7)),
    NORM("rms_norm, rows of 1e-6 to 1e6", rms_norm, 1, RESULTS("y"), LIMITS(4e-7)),
    NORM("rms_norm, mean 1000", rms_norm, -1000, RESULTS("y"), LIMITS(4e-7)),
    NORM("rms_norm_grad", rms_norm_grad, 0, RESULTS("dx", "dscale"), LIMITS(4e-7, 2e-7)),
    NORM("rms_norm_grad, rows of 1e-6 to 1e6", rms_norm_grad, 1, RESULTS("dx", "dscale"), LIMITS(4e-7, 2e-7)),
    E("rope", rope, rope, "rows", fill_rope, 1, .small = {64, 2, 64}, .large = {2048, 8, 128}, RESULTS("y"),
      LIMITS(2e-7)),
    E("swiglu", swiglu, swiglu, "tiles", fill_swiglu, 2, .small = {500}, .large = {50000}, RESULTS("y"),
      LIMITS(4e-7)),
    E("swiglu, gates of 30", swiglu, swiglu, "tiles", fill_swiglu, 30, .small = {500}, .large = {50000},
      RESULTS("y"), LIMITS(3e-7)),
    E("swiglu_grad", swiglu_grad, swiglu, "tiles", fill_swiglu, 2, .small = {500}, .large = {50000},
      RESULTS("dgate", "dup"), LIMITS(1.2e-6, 4e-7)),
    ATTENTION("attention", attention, 1, RESULTS("y", "log-sum-exp"), LIMITS(3e-6, 3e-7)),
    ATTENTION("attention, scores of 36", attention, 6, RESULTS("y", "log-sum-exp"), LIMITS(7e-5, 1e-6)),
    ATTENTION("attention_grad", attention_grad, 1, RESULTS("dq", "dk", "dv"), LIMITS(1e-6, 1e-6, 1e-6),
              .whole = true),
    ATTENTION("attention_grad, scores of 36", attention_grad, 6, RESULTS("dq", "dk", "dv"),
              LIMITS(4e-5, 4e-5, 1e-5), .whole = true),
    HEAD("token_logprobs", token_logprobs, 3, SIZE(4, 1024, 151936), RESULTS("log p", "log-sum-exp"),
         LIMITS(3e-7, 3e-7)),
    HEAD("token_logprobs, logits of 20", token_logprobs, 20, SIZE(24, 1024, 50000),
         RESULTS("log p", "log-sum-exp"), LIMITS(6e-7, 6e-7)),
    HEAD("token_logprobs_grad", token_logprobs_grad, 3, SIZE(4, 1024, 151936),
         RESULTS("log p", "dhidden", "dweight", "log-sum-exp"), LIMITS(3e-7, 2e-6, 1e-6, 3e-7),
         .whole = true),
    HEAD("token_logprobs_grad, logits of 20", token_logprobs_grad, 20, SIZE(24, 1024, 50000),
         RESULTS("log p", "dhidden", "dweight", "log-sum-exp"), LIMITS(6e-7, 1e-5, 1e-5, 6e-7),
         .whole = true),
    HEAD("token_logprobs_grad, many rows", token_logprobs_grad, 3, SIZE(512, 256, 1000),
         RESULTS("log p", "dhidden", "dweight", "log-sum-exp"), LIMITS(5e-7, 3e-6, 3e-6, 8e-7),
         .whole = true),
    E("reduce_sum of rows", reduce_sum, reduce, "blocks", fill_sum, 1, .small = {4, 9000},
      .large = {4, 3000000}, RESULTS("sum"), LIMITS(6e-8)),
    E("reduce_sum of columns", reduce_sum, reduce, "blocks", fill_sum, 0, .small = {900, 64},
      .large = {20000, 1024}, RESULTS("sum"), LIMITS(6e-8)),
    E("matmul", matmul, matmul, "gemm", fill_linear, 1, .small = {32, 512, 32}, .large = {256, 1024, 256},
      RESULTS("y"), LIMITS(1.6e-6)),
    E("matmul, longer", matmul, matmul, "gemm", fill_linear, 1, .small = {32, 2048, 32},
      .large = {256, 4096, 256}, RESULTS("y"), LIMITS(1.6e-6)),
};

static void kernels(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof experiments / sizeof *experiments; i++) measure(&experiments[i]);
}

int main(int argc, char **argv)
{
    print_table = argc == 2 && strcmp(argv[1], "--table") == 0;
    const struct CMUnitTest tests[] = {cmocka_unit_test(kernels), cmocka_unit_test(elementwise)};
    return cmocka_run_group_tests_name("backend/accuracy", tests, NULL, NULL);
}
