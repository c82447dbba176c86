/* Bodies of the tile loops, compiled once per instruction set: the including file defines TILES_TABLE. The
 * expressions have no order that depends on the vector's width. Exp and sigmoid may differ in the last bit
 * between instruction sets, and below -87 a sigmoid is 0 with AVX-512; the others use no fused multiply-add
 * where it would round differently. */
#include <math.h>

#include "backend/cpu/simd.h"
#include "backend/cpu/tiles.h"

/* Lane by lane: ops too rare for a vector form of their own. */
#define EACH(function)                                                                                       \
    static inline vf each_##function(vf x)                                                                   \
    {                                                                                                        \
        for (int i = 0; i < LANES; i++) x[i] = function(x[i]);                                               \
        return x;                                                                                            \
    }
EACH(logf)
EACH(tanhf)

static inline vf each_powf(vf x, vf y)
{
    for (int i = 0; i < LANES; i++) x[i] = powf(x[i], y[i]);
    return x;
}

static inline vf truth(vi mask)
{
    return vselect(mask, vset(1.0f), vset(0.0f));
}

/* X(op, expression in x, y, z) */
#define TILE_OPS(X)                                                                                          \
    X(neg, -x)                                                                                               \
    X(abs, vabs(x))                                                                                          \
    X(sign, truth(x > 0.0f) - truth(x < 0.0f))                                                               \
    X(exp, vexp(x))                                                                                          \
    X(log, each_logf(x))                                                                                     \
    X(sqrt, vsqrt(x))                                                                                        \
    X(rsqrt, 1.0f / vsqrt(x))                                                                                \
    X(tanh, each_tanhf(x))                                                                                   \
    X(sigmoid, vsigmoid(x))                                                                                  \
    X(square, x *x)                                                                                          \
    X(not, truth(x == 0.0f))                                                                                 \
    X(is_finite, truth(vabs(x) < INFINITY))                                                                  \
    X(add, x + y)                                                                                            \
    X(sub, x - y)                                                                                            \
    X(mul, x *y)                                                                                             \
    X(div, x / y)                                                                                            \
    X(max, vselect((x > y) | (x != x), x, y))                                                                \
    X(min, vselect((x < y) | (x != x), x, y))                                                                \
    X(pow, each_powf(x, y))                                                                                  \
    X(and, truth((x != 0.0f) & (y != 0.0f)))                                                                 \
    X(or, truth((x != 0.0f) | (y != 0.0f)))                                                                  \
    X(equal, truth(x == y))                                                                                  \
    X(not_equal, truth(x != y))                                                                              \
    X(less, truth(x < y))                                                                                    \
    X(less_equal, truth(x <= y))                                                                             \
    X(greater, truth(x > y))                                                                                 \
    X(greater_equal, truth(x >= y))                                                                          \
    X(select, vselect(x != 0.0f, y, z))                                                                      \
    X(accumulate, x + y)

#define TILE_FUNCTION(op_name, expression)                                                                   \
    static void op_name##_tile(float *out, const float *const *in, int n)                                    \
    {                                                                                                        \
        const float *xs = in[0], *ys = in[1], *zs = in[2], *ws = in[3];                                      \
        for (int i = 0; i < n; i += LANES) {                                                                 \
            vf x = vload(xs + i), y = vload(ys + i), z = vload(zs + i), w = vload(ws + i);                   \
            (void)x, (void)y, (void)z, (void)w;                                                              \
            vstore(out + i, expression);                                                                     \
        }                                                                                                    \
    }
TILE_OPS(TILE_FUNCTION)
TILE_FUNCTION(to_bool, truth(x != 0.0f))

#define DO_add(x, y) ((x) + (y))
#define DO_sub(x, y) ((x) - (y))
#define DO_mul(x, y) ((x) * (y))
#define DO_div(x, y) ((x) / (y))

/* Ops in one loop. X(outer, inner): two binary ones. Y(outer, left, right): both operands are made by one. */
#define TILE_INNERS(X, outer) X(outer, add) X(outer, sub) X(outer, mul) X(outer, div)
#define TILE_PAIRS(X) TILE_INNERS(X, add) TILE_INNERS(X, sub) TILE_INNERS(X, mul) TILE_INNERS(X, div)
#define TILE_RIGHTS(Y, outer, left) Y(outer, left, add) Y(outer, left, mul)
#define TILE_LEFTS(Y, outer) TILE_RIGHTS(Y, outer, add) TILE_RIGHTS(Y, outer, mul)
#define TILE_TRIPLES(Y) TILE_LEFTS(Y, add) TILE_LEFTS(Y, sub) TILE_LEFTS(Y, mul) TILE_LEFTS(Y, div)

#define TILE_PAIR(outer, inner)                                                                              \
    TILE_FUNCTION(outer##_##inner##_first, DO_##outer(DO_##inner(x, y), z))                                  \
    TILE_FUNCTION(outer##_##inner##_second, DO_##outer(x, DO_##inner(y, z)))
#define TILE_TRIPLE(outer, left, right)                                                                      \
    TILE_FUNCTION(outer##_##left##_##right, DO_##outer(DO_##left(x, y), DO_##right(z, w)))
TILE_PAIRS(TILE_PAIR)
TILE_TRIPLES(TILE_TRIPLE)
TILE_FUNCTION(mul_square_first, (x * x) * y)
TILE_FUNCTION(mul_square_second, x *(y *y))
TILE_FUNCTION(sqrt_mul, vsqrt(x *y))
TILE_FUNCTION(sqrt_add, vsqrt(x + y))

static void load(float *out, trd_dtype dtype, const void *data, int64_t at, int n)
{
    int i = 0;
    switch (dtype) {
    case TRD_F32:
        memcpy(out, (const float *)data + at, (size_t)n * sizeof *out);
        break;
    case TRD_BF16:
        for (; i + LANES <= n; i += LANES) vstore(out + i, vload_bf16((const trd__bf16 *)data + at + i));
        for (; i < n; i++) out[i] = trd__bf16_to_f32(((const trd__bf16 *)data)[at + i]);
        break;
    case TRD_BOOL:
        for (; i < n; i++) out[i] = ((const uint8_t *)data)[at + i] ? 1.0f : 0.0f;
        break;
    default:
        for (; i < n; i++) out[i] = (float)trd__load(dtype, data, (size_t)at + (size_t)i);
        break;
    }
}

static void store(const float *in, trd_dtype dtype, void *data, int64_t at, int n)
{
    int i = 0;
    switch (dtype) {
    case TRD_F32:
        memcpy((float *)data + at, in, (size_t)n * sizeof *in);
        break;
    case TRD_BF16:
        for (; i + 2 * LANES <= n; i += 2 * LANES)
            vstore2_bf16((trd__bf16 *)data + at + i, vload(in + i), vload(in + i + LANES));
        for (; i < n; i++) ((trd__bf16 *)data)[at + i] = trd__f32_to_bf16(in[i]);
        break;
    case TRD_BOOL:
        for (; i < n; i++) ((uint8_t *)data)[at + i] = in[i] != 0.0f;
        break;
    default:
        for (; i < n; i++) trd__store(dtype, data, (size_t)at + (size_t)i, (double)in[i]);
        break;
    }
}

static void round_to(float *values, trd_dtype dtype, int n)
{
    if (dtype == TRD_BF16)
        for (int i = 0; i < n; i += LANES) vstore(values + i, vround_bf16(vload(values + i)));
    else if (dtype == TRD_F16)
        for (int i = 0; i < n; i++) values[i] = trd__f16_to_f32(trd__f32_to_f16(values[i]));
}

static void fill(float *out, float value, int n)
{
    for (int i = 0; i < n; i += LANES) vstore(out + i, vset(value));
}

/* The same partial sums whatever the vector's width, so every instruction set adds in the same order. */
#define TILE_SUM(function, expression)                                                                       \
    static void function(double *partials, const float *in, int n)                                           \
    {                                                                                                        \
        vd sums[TRD__PARTIALS / WIDE_LANES];                                                                 \
        memcpy(sums, partials, sizeof sums);                                                                 \
        int i = 0;                                                                                           \
        for (; i + TRD__PARTIALS <= n; i += TRD__PARTIALS)                                                   \
            for (int j = 0; j < TRD__PARTIALS / WIDE_LANES; j++) {                                           \
                vd x = vload_wide(in + i + j * WIDE_LANES);                                                  \
                sums[j] += expression;                                                                       \
            }                                                                                                \
        memcpy(partials, sums, sizeof sums);                                                                 \
        for (int j = 0; i + j < n; j++) {                                                                    \
            double x = (double)in[i + j];                                                                    \
            partials[j] += expression;                                                                       \
        }                                                                                                    \
    }
TILE_SUM(sum, x)
TILE_SUM(sum_squares, x *x)

/* A square of a float32 is exact in float64, so that it does not matter whether it is added by one
 * instruction. What is asked for ahead may lie behind the array, which is harmless. */
#define STREAM_SQUARES(function, type, load_wide)                                                            \
    static void function(double *partials, const type *in, int n)                                            \
    {                                                                                                        \
        vd sums[TRD__PARTIALS / WIDE_LANES];                                                                 \
        memcpy(sums, partials, sizeof sums);                                                                 \
        for (int i = 0; i < n; i += TRD__PARTIALS) {                                                         \
            trd__prefetch((const char *)(in + i) + TRD__STREAM_AHEAD, TRD__PARTIALS * sizeof *in);           \
            for (int j = 0; j < TRD__PARTIALS / WIDE_LANES; j++) {                                           \
                vd x = load_wide(in + i + j * WIDE_LANES);                                                   \
                sums[j] = vfma_wide(x, x, sums[j]);                                                          \
            }                                                                                                \
        }                                                                                                    \
        memcpy(partials, sums, sizeof sums);                                                                 \
    }
STREAM_SQUARES(stream_f32, float, vload_wide)
STREAM_SQUARES(stream_bf16, trd__bf16, vload_wide_bf16)

static void stream_squares(double *partials, trd_dtype dtype, const void *data, int64_t at, int n)
{
    if (dtype == TRD_F32)
        stream_f32(partials, (const float *)data + at, n);
    else
        stream_bf16(partials, (const trd__bf16 *)data + at, n);
}

#define TILE_ROW(op_name, expression) {&trd__op_##op_name, op_name##_tile},
static const trd__tile_op tile_ops[] = {TILE_OPS(TILE_ROW){0}};

#define TILE_PAIR_ROWS(outer, inner)                                                                         \
    {outer##_tile, inner##_tile, 0, outer##_##inner##_first_tile},                                           \
        {outer##_tile, inner##_tile, 1, outer##_##inner##_second_tile},
#define TILE_TRIPLE_ROW(outer, left, right)                                                                  \
    {outer##_##left##_first_tile, right##_tile, 2, outer##_##left##_##right##_tile},
static const trd__tile_pair tile_pairs[] = {
    TILE_PAIRS(TILE_PAIR_ROWS) TILE_TRIPLES(TILE_TRIPLE_ROW){mul_tile, square_tile, 0, mul_square_first_tile},
    {mul_tile, square_tile, 1, mul_square_second_tile},
    {sqrt_tile, mul_tile, 0, sqrt_mul_tile},
    {sqrt_tile, add_tile, 0, sqrt_add_tile},
    {0}};

const trd__tiles TILES_TABLE = {.ops = tile_ops,
                                .pairs = tile_pairs,
                                .to_bool = to_bool_tile,
                                .load = load,
                                .store = store,
                                .round = round_to,
                                .fill = fill,
                                .sum = sum,
                                .sum_squares = sum_squares,
                                .stream_squares = stream_squares};
