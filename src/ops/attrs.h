/* Typed attribute structs of every op, and the registry of descriptors made from ops.def. Attributes are
 * plain data without padding garbage (zero-initialize before filling), because equality is by bytes. */
#ifndef TRD_OPS_ATTRS_H
#define TRD_OPS_ATTRS_H

#include <treadle/ops.h>

#include "graph/node.h"

#define TRD_OP(name, family) extern const trd_op trd__op_##name;
#include "ops/ops.def"
#undef TRD_OP

/* All descriptors, in ops.def's order, and the family name of each. */
int trd__op_count(void);
const trd_op *trd__op_at(int index);

typedef struct trd__constant_attr {
    trd_dtype dtype;
    trd_shape shape;
    double value;
} trd__constant_attr;
typedef struct trd__iota_attr {
    trd_dtype dtype;
    int axis;
    trd_shape shape;
} trd__iota_attr;
typedef struct trd__cast_attr {
    trd_dtype dtype;
} trd__cast_attr;
typedef struct trd__reduce_attr {
    unsigned axes_mask;
    int keep_dims;
    trd_dtype dtype;
} trd__reduce_attr;
typedef struct trd__shape_attr {
    trd_shape shape;
} trd__shape_attr; /* reshape, broadcast */
typedef struct trd__transpose_attr {
    int permutation[TRD_MAX_RANK];
} trd__transpose_attr;
typedef struct trd__slice_attr {
    int64_t axis, begin, end;
} trd__slice_attr;
typedef struct trd__pad_attr {
    int64_t axis, before, after;
    double value;
} trd__pad_attr;
enum { TRD__CONCAT_PARTS = 64 }; /* most of one concat */
typedef struct trd__concat_attr {
    int axis;
} trd__concat_attr;
/* scatter_add_rows: ids (...) i32, updates (..., C) [, accumulator (rows, C)] -> (rows, C) in the
 * accumulator's dtype, else the updates'. put_last: values (...), index (...) i32 -> (..., rows) zeros with
 * each value at its index of the last axis. */
typedef struct trd__rows_attr {
    int64_t rows;
} trd__rows_attr;
/* matmul: optional third input is an accumulator of the result's type: accumulator + x y. transpose_x is
 * never set with a y of rank 2 under an x of higher rank (the builder transposes x instead). */
typedef struct trd__matmul_attr {
    int transpose_x, transpose_y;
    trd_dtype dtype;
} trd__matmul_attr;
/* rms_norm: x (..., C), scale (C) -> (..., C). rms_norm_grad: x, scale, dy, accumulator (C) or null -> dx,
 * dscale (the accumulator's dtype, else scale's). */
typedef struct trd__rms_norm_attr {
    double eps;
} trd__rms_norm_attr;
/* swiglu: gate, up -> result. swiglu_grad: gate, up, dy -> dgate, dup. No attributes. */
/* rope_table: positions (B, T) i32 -> (B, T, rotary / 2, 2) f32 with cos and sin of the rotary / 2
 * frequencies. */
typedef struct trd__rope_table_attr {
    trd_rope_options options;
    int64_t head_dim;
} trd__rope_table_attr;
/* Inverse frequency of pair i of a rotary dimension. */
double trd__rope_frequency(const trd_rope_options *options, int64_t i, int64_t rotary);
/* rope: x (B, T, H, D), table -> x's type; pairs (i, i + rotary / 2) of the first rotary lanes are rotated,
 * the other lanes pass. inverse: by the negative angle, which is the gradient. */
typedef struct trd__rope_attr {
    int inverse;
} trd__rope_attr;
/* dropout: x, counter () i32, site () i32 -> x's type. Element i belongs to group i / 32; its word is the
 * first one of Threefry's block 16 (i / 32) + i % 16 where i % 32 < 16, else the second one, so that vectors
 * of up to 16 lanes draw neighbours together. It is kept where the word's upper 24 bits are no less than the
 * threshold. The key is the block (counter, site) drawn with the seed as key. */
typedef struct trd__dropout_attr {
    double rate;
    uint64_t seed;
} trd__dropout_attr;
enum { TRD__DROPOUT_LANES = 16, TRD__DROPOUT_GROUP = 32 };
uint32_t trd__dropout_threshold(const trd__dropout_attr *attr); /* rate * 2^24 */
/* attention: inputs q, k, v, segments [, positions when cached] -> output, log-sum-exp (B, H, T) f32 (f64 for
 * f64 operands; any finite value for padding). attention_grad: inputs q, k, v, segments, output, log-sum-exp,
 * d_output -> dq, dk, dv; never cached. */
typedef struct trd__attention_attr {
    double scale;
    int cached;
    int pad_;
} trd__attention_attr;
/* token_logprobs: hidden (..., C), weight (V, C), targets (...), row_mask (...) or null -> log-probabilities
 * and log-sum-exps (...) f32 (f64 for f64 operands). token_logprobs_grad: hidden, weight, targets, row_mask
 * or null, d_logprobs, accumulator or null, d_log_sums or null -> log-probabilities, d_hidden, d_weight
 * (weight_grad_dtype: the accumulator's, else weight's), log-sum-exps. merged: the node stands for the
 * forward op too, so its log-probabilities are used and the forward product counts as model FLOPs.
 * hidden_gradient, weight_gradient: whether somebody asked for them; the other one is not to be read. */
typedef struct trd__token_logprobs_attr {
    double temperature;
    trd_dtype weight_grad_dtype;
    int merged, hidden_gradient, weight_gradient;
    int pad_;
} trd__token_logprobs_attr;
/* repeat: carries, shared, stacked, sums -> carries, sums, made. Stacked and sums operands, sums and made
 * results have a leading axis of length count. What the body is: ops/repeat.h. */
typedef struct trd__repeat_attr {
    int64_t count;
    int reverse; /* rows count - 1 .. 0 */
    int carries, shared, stacked, sums, made;
} trd__repeat_attr;

#endif
