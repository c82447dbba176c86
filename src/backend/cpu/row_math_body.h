/* Bodies of the row loops, compiled once per instruction set: the including file defines ROW_MATH_TABLE.
 * Every loop handles whole vectors and then one partial vector, so a row's bits depend on its contents alone.
 */
#include <math.h>

#include "backend/cpu/product_body.h"
#include "backend/cpu/row_math.h"
#include "backend/cpu/simd.h"
#include "base/rng.h"

/* e^x of a softmax: 0 below e^-60, which no sum that holds a 1 can see. Products with what would be left down
 * there run into subnormal numbers and take a hundred times as long, and so would e^x itself: it sees no less
 * than -60. */
static inline vf softmax_exp(vf x)
{
    return (vf)((vi)vexp_within(vmin(vset(89.0f), vmax(vset(-60.0f), x))) & ~(x < -60.0f));
}

static void widen(const trd__bf16 *x, float *y, int64_t n)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) vstore(y + i, vload_bf16(x + i));
    for (; i < n; i++) y[i] = trd__bf16_to_f32(x[i]);
}

static void narrow(const float *x, trd__bf16 *y, int64_t n)
{
    int64_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) vstore2_bf16(y + i, vload(x + i), vload(x + i + LANES));
    for (; i + LANES <= n; i += LANES) vstore_bf16(y + i, vload(x + i));
    for (; i < n; i++) y[i] = trd__f32_to_bf16(x[i]);
}

static void narrow_add(const float *x, const trd__bf16 *accumulator, trd__bf16 *y, int64_t n)
{
    int64_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES)
        vstore2_bf16(y + i, vload_bf16(accumulator + i) + vload(x + i),
                     vload_bf16(accumulator + i + LANES) + vload(x + i + LANES));
    for (; i + LANES <= n; i += LANES) vstore_bf16(y + i, vload_bf16(accumulator + i) + vload(x + i));
    for (; i < n; i++) y[i] = trd__f32_to_bf16(trd__bf16_to_f32(accumulator[i]) + x[i]);
}

static void add(const float *x, const float *y, float *z, int64_t n)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) vstore(z + i, vload(x + i) + vload(y + i));
    for (; i < n; i++) z[i] = x[i] + y[i];
}

static void scale(float *x, float factor, int64_t n)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) vstore(x + i, vload(x + i) * factor);
    for (; i < n; i++) x[i] *= factor;
}

static float dot(const float *x, const float *y, int64_t n)
{
    vf sum[4] = {{0}, {0}, {0}, {0}};
    int64_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES)
        for (int u = 0; u < 4; u++) sum[u] = vfma(vload(x + i + u * LANES), vload(y + i + u * LANES), sum[u]);
    for (; i + LANES <= n; i += LANES) sum[0] = vfma(vload(x + i), vload(y + i), sum[0]);
    if (i < n) sum[1] = vfma(vload_n(x + i, n - i, 0.0f), vload_n(y + i, n - i, 0.0f), sum[1]);
    return vsum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

static float dot3(const float *x, const float *y, const float *z, int64_t n)
{
    vf sum[4] = {{0}, {0}, {0}, {0}};
    int64_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES)
        for (int u = 0; u < 4; u++) {
            int64_t at = i + u * LANES;
            sum[u] = vfma(vload(x + at) * vload(y + at), vload(z + at), sum[u]);
        }
    for (; i + LANES <= n; i += LANES) sum[0] = vfma(vload(x + i) * vload(y + i), vload(z + i), sum[0]);
    if (i < n) {
        int64_t rest = n - i;
        sum[1] =
            vfma(vload_n(x + i, rest, 0.0f) * vload_n(y + i, rest, 0.0f), vload_n(z + i, rest, 0.0f), sum[1]);
    }
    return vsum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

static float largest(const float *x, int64_t n)
{
    vf top[2] = {vset(-INFINITY), vset(-INFINITY)};
    int64_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES)
        for (int u = 0; u < 2; u++) top[u] = vmax(top[u], vload(x + i + u * LANES));
    for (; i + LANES <= n; i += LANES) top[0] = vmax(top[0], vload(x + i));
    if (i < n) top[1] = vmax(top[1], vload_n(x + i, n - i, -INFINITY));
    return vlargest(vmax(top[0], top[1]));
}

static float exp_sum(const float *x, float shift, int64_t n)
{
    vf sum[2] = {{0}, {0}};
    int64_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES)
        for (int u = 0; u < 2; u++) sum[u] += softmax_exp(vload(x + i + u * LANES) - shift);
    for (; i + LANES <= n; i += LANES) sum[0] += softmax_exp(vload(x + i) - shift);
    if (i < n) sum[1] += softmax_exp(vload_n(x + i, n - i, -INFINITY) - shift);
    return vsum(sum[0] + sum[1]);
}

static float exp_in_place(float *x, float shift, int64_t n)
{
    vf sum[2] = {{0}, {0}};
    int64_t i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES)
        for (int u = 0; u < 2; u++) {
            vf y = softmax_exp(vload(x + i + u * LANES) - shift);
            vstore(x + i + u * LANES, y);
            sum[u] += y;
        }
    for (; i < n; i += LANES) {
        int64_t rest = n - i < LANES ? n - i : LANES;
        vf y = softmax_exp(vload_n(x + i, rest, -INFINITY) - shift);
        vstore_n(x + i, y, rest);
        sum[0] += y;
    }
    return vsum(sum[0] + sum[1]);
}

static void logit_gradient(float *x, float shift, float factor, int64_t n)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) vstore(x + i, -factor * softmax_exp(vload(x + i) - shift));
    if (i < n) vstore_n(x + i, -factor * softmax_exp(vload_n(x + i, n - i, 0.0f) - shift), n - i);
}

static void attention_gradient(const float *p, float *dp, float delta, int64_t n)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) vstore(dp + i, vload(p + i) * (vload(dp + i) - delta));
    for (; i < n; i++) dp[i] = p[i] * (dp[i] - delta);
}

/* inverse[r] = 1 / sqrt(mean of the squares of row r + eps): what a row's sum leads to takes long for one
 * row, but not for several next to each other. */
static inline void inverse_rms(const float *x, double eps, int64_t rows, int64_t n, float *inverse)
{
    for (int64_t r = 0; r < rows; r++) inverse[r] = dot(x + r * n, x + r * n, n);
    for (int64_t r = 0; r < rows; r++) inverse[r] = (float)(1.0 / sqrt((double)inverse[r] / (double)n + eps));
}

static void norm(const float *x, const float *scales, double eps, float *y, int64_t rows, int64_t n)
{
    float inverse[TRD__NORM_ROWS];
    inverse_rms(x, eps, rows, n, inverse);
    for (int64_t r = 0; r < rows; r++, x += n, y += n) {
        int64_t i = 0;
        for (; i + LANES <= n; i += LANES) vstore(y + i, vload(x + i) * inverse[r] * vload(scales + i));
        for (; i < n; i++) y[i] = x[i] * inverse[r] * scales[i];
    }
}

static inline void norm_gradient_row(const float *x, const float *scales, const float *dy, float inverse,
                                     float shared, float *dx, float *d_scale, int64_t n)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        vf vx = vload(x + i), g = inverse * vload(dy + i);
        vstore(d_scale + i, vload(d_scale + i) + g * vx);
        if (dx) vstore(dx + i, g * vload(scales + i) - shared * vx);
    }
    if (i == n) return;
    int64_t rest = n - i;
    vf vx = vload_n(x + i, rest, 0.0f), g = inverse * vload_n(dy + i, rest, 0.0f);
    vstore_n(d_scale + i, vload_n(d_scale + i, rest, 0.0f) + g * vx, rest);
    if (dx) vstore_n(dx + i, g * vload_n(scales + i, rest, 0.0f) - shared * vx, rest);
}

static void norm_gradient(const float *x, const float *scales, double eps, const float *dy, float *dx,
                          float *d_scale, int64_t rows, int64_t n)
{
    float inverse[TRD__NORM_ROWS], shared[TRD__NORM_ROWS];
    inverse_rms(x, eps, rows, n, inverse);
    for (int64_t r = 0; r < rows; r++) shared[r] = dot3(dy + r * n, scales, x + r * n, n);
    for (int64_t r = 0; r < rows; r++)
        shared[r] = inverse[r] * inverse[r] * inverse[r] * shared[r] / (float)n;
    for (int64_t r = 0; r < rows; r++)
        norm_gradient_row(x + r * n, scales, dy + r * n, inverse[r], shared[r], dx ? dx + r * n : NULL,
                          d_scale, n);
}

static void swiglu(const float *gate, const float *up, float *y, int64_t n)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        vf g = vload(gate + i);
        vstore(y + i, g * vsigmoid(g) * vload(up + i));
    }
    if (i < n) {
        vf g = vload_n(gate + i, n - i, 0.0f);
        vstore_n(y + i, g * vsigmoid(g) * vload_n(up + i, n - i, 0.0f), n - i);
    }
}

static void swiglu_gradient(const float *gate, const float *up, const float *dy, float *d_gate, float *d_up,
                            int64_t n)
{
    for (int64_t i = 0; i < n; i += LANES) {
        int64_t rest = n - i < LANES ? n - i : LANES;
        bool whole = rest == LANES;
        vf g = whole ? vload(gate + i) : vload_n(gate + i, rest, 0.0f);
        vf u = whole ? vload(up + i) : vload_n(up + i, rest, 0.0f);
        vf d = whole ? vload(dy + i) : vload_n(dy + i, rest, 0.0f);
        vf s = vsigmoid(g);
        vf gate_out = d * u * s * (1.0f + g * (1.0f - s)), up_out = d * g * s;
        if (whole) {
            if (d_gate) vstore(d_gate + i, gate_out);
            if (d_up) vstore(d_up + i, up_out);
        } else {
            if (d_gate) vstore_n(d_gate + i, gate_out, rest);
            if (d_up) vstore_n(d_up + i, up_out, rest);
        }
    }
}

static inline void rotate_head(const float *x, const float *cosines, const float *sines, float *y,
                               int64_t pairs)
{
    int64_t i = 0;
    for (; i + LANES <= pairs; i += LANES) {
        vf a = vload(x + i), b = vload(x + pairs + i), c = vload(cosines + i), s = vload(sines + i);
        vstore(y + i, a * c - b * s);
        vstore(y + pairs + i, b * c + a * s);
    }
    if (i == pairs) return;
    int64_t rest = pairs - i;
    vf a = vload_n(x + i, rest, 0.0f), b = vload_n(x + pairs + i, rest, 0.0f);
    vf c = vload_n(cosines + i, rest, 0.0f), s = vload_n(sines + i, rest, 0.0f);
    vstore_n(y + i, a * c - b * s, rest);
    vstore_n(y + pairs + i, b * c + a * s, rest);
}

static void rotate(const float *x, const float *cosines, const float *sines, float *y, int64_t heads,
                   int64_t size, int64_t pairs)
{
    for (int64_t h = 0; h < heads; h++, x += size, y += size) {
        rotate_head(x, cosines, sines, y, pairs);
        if (y != x)
            for (int64_t i = 2 * pairs; i < size; i++) y[i] = x[i];
    }
}

#include "backend/cpu/few_tokens_body.h"

/* trd__threefry on as many blocks as a vector has lanes. */
static inline void threefry(const uint32_t *key, vu *x, vu *y)
{
    static const int rotations[8] = TRD__THREEFRY_ROTATIONS;
    const uint32_t schedule[3] = {key[0], key[1], key[0] ^ key[1] ^ TRD__THREEFRY_PARITY};
    vu a = *x + schedule[0], c = *y + schedule[1];
    for (uint32_t round = 0; round < TRD__THREEFRY_ROUNDS; round++) {
        int by = rotations[round % 8];
        a += c;
        c = (c << by | c >> (32 - by)) ^ a;
        uint32_t injection = round / 4 + 1;
        if (round % 4 != 3) continue;
        a += schedule[injection % 3];
        c += schedule[(injection + 1) % 3] + injection;
    }
    *x = a;
    *y = c;
}

/* One group's factors: draw->factor or 0. */
static inline void dropout_factors(const trd__dropout_draw *draw, uint32_t block, float *factors)
{
    const int32_t threshold = (int32_t)draw->threshold;
    const vf factor = vset(draw->factor), zero = vset(0.0f);
    vu lanes;
    for (uint32_t i = 0; i < LANES; i++) lanes[i] = i;
    for (uint32_t at = 0; at < TRD__DROPOUT_LANES; at += LANES) {
        vu x = lanes + (block + at), y = {0};
        threefry(draw->key, &x, &y);
        vstore(factors + at, vselect((vi)(x >> 8) >= threshold, factor, zero));
        vstore(factors + TRD__DROPOUT_LANES + at, vselect((vi)(y >> 8) >= threshold, factor, zero));
    }
}

static void dropout(const float *x, const trd__dropout_draw *draw, int64_t first, float *y, int64_t n)
{
    float factors[TRD__DROPOUT_GROUP];
    for (int64_t at = 0; at < n; at += TRD__DROPOUT_GROUP) {
        dropout_factors(draw, (uint32_t)((first + at) / 2), factors);
        int64_t count = n - at < TRD__DROPOUT_GROUP ? n - at : TRD__DROPOUT_GROUP, i = 0;
        for (; i + LANES <= count; i += LANES) {
            vf f = vload(factors + i);
            vstore(y + at + i, vselect(f != 0.0f, vload(x + at + i) * f, f));
        }
        for (; i < count; i++) y[at + i] = factors[i] != 0.0f ? x[at + i] * factors[i] : 0.0f;
    }
}

const trd__row_math ROW_MATH_TABLE = {.widen = widen,
                                      .narrow = narrow,
                                      .narrow_add = narrow_add,
                                      .add = add,
                                      .scale = scale,
                                      .dot = dot,
                                      .largest = largest,
                                      .exp_sum = exp_sum,
                                      .exp_in_place = exp_in_place,
                                      .logit_gradient = logit_gradient,
                                      .attention_gradient = attention_gradient,
                                      .norm = norm,
                                      .norm_gradient = norm_gradient,
                                      .swiglu = swiglu,
                                      .swiglu_gradient = swiglu_gradient,
                                      .rotate = rotate,
                                      .product = product,
                                      .attend = attend,
                                      .attend_gradient = attend_gradient,
                                      .dropout = dropout};
