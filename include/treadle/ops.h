/* Op builders: each appends one checked node (or a short composition) to the builder's graph.
 *
 * Conventions: shapes are given as (B, T, C). Binary ops broadcast as NumPy does and need equal dtypes; a
 * mixed pair is an error, trd_cast converts. Comparison results are bool. Float math is done in float32
 * (float64 for float64 inputs) and rounded once to the result's dtype; i32 wraps around. All float ops are
 * differentiable unless said. */
#ifndef TREADLE_OPS_H
#define TREADLE_OPS_H

#include <treadle/graph.h>

#ifdef __cplusplus
extern "C" {
#endif

/* -- Leaves -- */

/* shape filled with value. */
TRD_API trd_value trd_constant_fill(trd_builder *b, trd_dtype dtype, trd_shape shape, double value);
/* The same of rank 0. */
TRD_API trd_value trd_scalar(trd_builder *b, trd_dtype dtype, double value);
/* 0, 1, 2, ... along axis, i32 or float. */
TRD_API trd_value trd_iota(trd_builder *b, trd_dtype dtype, trd_shape shape, int axis);

/* -- Unary, elementwise -- */

TRD_API trd_value trd_neg(trd_builder *b, trd_value x);       /* -x */
TRD_API trd_value trd_abs(trd_builder *b, trd_value x);       /* |x| */
TRD_API trd_value trd_exp(trd_builder *b, trd_value x);       /* e^x */
TRD_API trd_value trd_log(trd_builder *b, trd_value x);       /* natural logarithm */
TRD_API trd_value trd_sqrt(trd_builder *b, trd_value x);      /* square root */
TRD_API trd_value trd_rsqrt(trd_builder *b, trd_value x);     /* 1 / sqrt(x) */
TRD_API trd_value trd_tanh(trd_builder *b, trd_value x);      /* hyperbolic tangent */
TRD_API trd_value trd_sigmoid(trd_builder *b, trd_value x);   /* 1 / (1 + e^-x) */
TRD_API trd_value trd_square(trd_builder *b, trd_value x);    /* x x */
TRD_API trd_value trd_not(trd_builder *b, trd_value x);       /* of a bool */
TRD_API trd_value trd_is_finite(trd_builder *b, trd_value x); /* float -> bool */
/* x in dtype: float to integer truncates towards 0, to bool is x != 0. */
TRD_API trd_value trd_cast(trd_builder *b, trd_value x, trd_dtype dtype);
/* x, with no gradient through it. */
TRD_API trd_value trd_stop_gradient(trd_builder *b, trd_value x);

/* -- Binary, elementwise with broadcasting -- */

TRD_API trd_value trd_add(trd_builder *b, trd_value x, trd_value y); /* x + y */
TRD_API trd_value trd_sub(trd_builder *b, trd_value x, trd_value y); /* x - y */
TRD_API trd_value trd_mul(trd_builder *b, trd_value x, trd_value y); /* x y */
TRD_API trd_value trd_div(trd_builder *b, trd_value x, trd_value y); /* x / y */
TRD_API trd_value trd_max(trd_builder *b, trd_value x, trd_value y); /* the larger; NaN where either is */
TRD_API trd_value trd_min(trd_builder *b, trd_value x, trd_value y); /* the smaller; NaN where either is */
TRD_API trd_value trd_pow(trd_builder *b, trd_value x, trd_value y); /* x^y */
TRD_API trd_value trd_and(trd_builder *b, trd_value x, trd_value y); /* of bools */
TRD_API trd_value trd_or(trd_builder *b, trd_value x, trd_value y);  /* of bools */
/* On the 32 bits of i32 operands; shifts are by y modulo 32. */
TRD_API trd_value trd_xor(trd_builder *b, trd_value x, trd_value y);         /* exclusive or */
TRD_API trd_value trd_shift_left(trd_builder *b, trd_value x, trd_value y);  /* x 2^y */
TRD_API trd_value trd_shift_right(trd_builder *b, trd_value x, trd_value y); /* zeros come in above */

/* -- Comparisons -> bool, not differentiable -- */

TRD_API trd_value trd_equal(trd_builder *b, trd_value x, trd_value y);         /* x = y */
TRD_API trd_value trd_not_equal(trd_builder *b, trd_value x, trd_value y);     /* x != y */
TRD_API trd_value trd_less(trd_builder *b, trd_value x, trd_value y);          /* x < y */
TRD_API trd_value trd_less_equal(trd_builder *b, trd_value x, trd_value y);    /* x <= y */
TRD_API trd_value trd_greater(trd_builder *b, trd_value x, trd_value y);       /* x > y */
TRD_API trd_value trd_greater_equal(trd_builder *b, trd_value x, trd_value y); /* x >= y */
/* condition ? x : y, all broadcast. A lane that is not chosen has no effect, NaN included. */
TRD_API trd_value trd_select(trd_builder *b, trd_value condition, trd_value x, trd_value y);

/* -- Reductions over axes: bit i of axes_mask is axis i; keep_dims leaves them as 1 -- */

/* Sum, rounded once to dtype. Inside it is float64 for floats; a backend of devices without fast float64 may
 * keep sums over some of the axes in float32, sums of everything never. */
TRD_API trd_value trd_reduce_sum(trd_builder *b, trd_value x, unsigned axes_mask, bool keep_dims,
                                 trd_dtype dtype);
/* Largest element, in x's dtype. */
TRD_API trd_value trd_reduce_max(trd_builder *b, trd_value x, unsigned axes_mask, bool keep_dims);
/* Scalar sum of all elements in x's dtype (f32 for bf16 and f16, i32 for bool). */
TRD_API trd_value trd_sum_all(trd_builder *b, trd_value x);
/* Scalar f64 sum of squares of all elements, squared and summed in float64 so that finite values never
 * overflow: the gradient norm's building block. Not differentiable. */
TRD_API trd_value trd_sum_squares(trd_builder *b, trd_value x);

/* -- Shape -- */

TRD_API trd_value trd_reshape(trd_builder *b, trd_value x, trd_shape shape); /* one dim may be -1 */
TRD_API trd_value trd_transpose(trd_builder *b, trd_value x,
                                const int *permutation); /* result axis i = x's permutation[i] */
TRD_API trd_value trd_broadcast(trd_builder *b, trd_value x, trd_shape shape); /* NumPy rules */
/* Elements begin .. end - 1 along axis. */
TRD_API trd_value trd_slice(trd_builder *b, trd_value x, int axis, int64_t begin, int64_t end);
/* before elements of value ahead of x along axis, and after behind it. */
TRD_API trd_value trd_pad(trd_builder *b, trd_value x, int axis, int64_t before, int64_t after, double value);
/* count parts one after the other along axis; they agree in dtype and in every other axis. */
TRD_API trd_value trd_concat(trd_builder *b, const trd_value *parts, int count, int axis);

/* -- Indexing -- */

/* Rows of table (V, C) at ids (...): (..., C). The gradient is a scatter-add that ignores no row: padding
 * rows get zero because their cotangent is zero. */
TRD_API trd_value trd_gather_rows(trd_builder *b, trd_value table, trd_value ids);
/* (rows, C) zeros with updates (..., C) added at ids (...), in order of the flattened ids. Zero updates leave
 * bits as they are. */
TRD_API trd_value trd_scatter_add_rows(trd_builder *b, trd_value ids, trd_value updates, int64_t rows);
/* x (..., V) at index (...) i32 of the last axis: (...). */
TRD_API trd_value trd_take_last(trd_builder *b, trd_value x, trd_value index);
/* cache (B, S, ...) with update (B, T, ...) written at rows start[b] .. start[b] + T; start (B) i32. Rows
 * outside S are dropped. Not differentiable: the decode program's cache. */
TRD_API trd_value trd_update_rows(trd_builder *b, trd_value cache, trd_value update, trd_value start);

/* -- Products -- */

/* x (..., M, K) by y (..., K, N); transpose_* say that the operand is stored transposed in its last
 * two axes. Batch axes are equal, or y is rank 2 and shared. dtype: the result's (accumulation is float32).
 */
TRD_API trd_value trd_matmul(trd_builder *b, trd_value x, trd_value y, bool transpose_x, bool transpose_y,
                             trd_dtype dtype);
/* x (..., K) by weight (N, K), as hub checkpoints store it: (..., N) in x's dtype. */
TRD_API trd_value trd_linear(trd_builder *b, trd_value x, trd_value weight);
/* accumulator + x in the accumulator's dtype: bf16 accumulators round once. Where x is a product the backend
 * adds it in place (beta = 1); an accumulator that is a constant 0 is defined instead of added to. */
TRD_API trd_value trd_accumulate(trd_builder *b, trd_value accumulator, trd_value x);

/* -- Fused ops -- */

/* What attention, rope and losses need to know of the rows of a batch. */
typedef struct trd_rows {
    trd_value segments;  /* (B, T) i32, 0 = padding */
    trd_value positions; /* (B, T) i32, restarting in each segment */
    bool cached;         /* keys are a cache indexed by position: a query sees keys 0 .. its position */
} trd_rows;

/* y = x / sqrt(mean(x^2) + eps) * scale over the last axis; x (..., C), scale (C). Zhang & Sennrich 2019. */
TRD_API trd_value trd_rms_norm(trd_builder *b, trd_value x, trd_value scale, double eps);
/* silu(gate) * up, elementwise. Shazeer 2020. */
TRD_API trd_value trd_swiglu(trd_builder *b, trd_value gate, trd_value up);

/* x / (1 - rate) where an element is kept, else 0; it is kept with probability 1 - rate, which lies in (0,
 * 1]. Which elements are kept is a function of (seed, counter, site, place in x) alone, drawn from
 * Threefry-2x32 (Salmon et al. 2011): no mask is stored, and the gradient draws it again. counter () i32:
 * another one, other masks. site () i32: tells apart the places of a model that share seed and counter. rate
 * 0 is x itself. Srivastava et al. 2014. */
TRD_API trd_value trd_dropout(trd_builder *b, trd_value x, trd_value counter, trd_value site, double rate,
                              uint64_t seed);

/* How a rotary embedding is stretched for longer sequences. */
typedef enum trd_rope_scaling {
    TRD_ROPE_DEFAULT, /* not at all */
    TRD_ROPE_LINEAR,  /* positions are divided by factor */
    TRD_ROPE_LLAMA3   /* long waves by factor, short ones not, as published with Llama 3.1 */
} trd_rope_scaling;
/* Rotary embedding options, named as in a hub config. Su et al. 2021. */
typedef struct trd_rope_options {
    double theta;                            /* base of the frequencies */
    trd_rope_scaling scaling;                /* the four below belong to linear (factor) and llama3 (all) */
    double factor;                           /* of the stretch */
    double low_freq_factor;                  /* waves longer than original / this are stretched in full */
    double high_freq_factor;                 /* waves shorter than original / this are left alone */
    double original_max_position_embeddings; /* "original" above: the length trained on before */
    double partial_rotary_factor; /* share of the head that is rotated, from the front; 0 or 1: all */
} trd_rope_options;
/* x (B, T, H, D) rotated by rows.positions, halves paired (i, i + D/2) as in hub checkpoints. */
TRD_API trd_value trd_rope(trd_builder *b, trd_value x, const trd_rows *rows,
                           const trd_rope_options *options);

/* softmax(q k^T / sqrt(D)) v, causal, grouped-query. q (B, T, H, D), k and v (B, S, G, D) with H a multiple
 * of G: (B, T, H, D). Without cache S = T: a query sees keys of its own segment up to itself. A query of
 * segment 0 gives output 0 and gradient 0. The log-sum-exp is saved for the gradient. Dao et al. 2022. */
TRD_API trd_value trd_attention(trd_builder *b, trd_value q, trd_value k, trd_value v, const trd_rows *rows);

/* log p(target) per row: log_softmax(hidden W^T / temperature)[target]. hidden (B, T, C), weight (V, C),
 * targets (B, T) i32, row_mask (B, T) bool or null (all rows): (B, T) f32, 0 on rows outside the mask, which
 * cost nothing on the CPU. Never holds all logits. row_mask and targets are not differentiable. log_sums (may
 * be NULL) receives the log-sum-exp of each row's logits / temperature, of the same shape, 0 outside the
 * mask. */
TRD_API trd_value trd_token_logprobs(trd_builder *b, trd_value hidden, trd_value weight, trd_value targets,
                                     trd_value row_mask, double temperature, trd_value *log_sums);

/* -- Repetition -- */

/* One iteration of trd_repeat, as its body sees it. All values belong to the body's own builder; those of the
 * graph around it may only come in through these three. */
typedef struct trd_iteration {
    const trd_value *carries; /* what the iteration before returned; at first the operands */
    const trd_value *shared;  /* the same in every iteration */
    const trd_value *stacked; /* row i of each stacked operand in iteration i, without the leading axis */
} trd_iteration;
/* Builds the body once. Fills out: the new carries, of the carries' types, then made_count values of any
 * type. */
typedef void (*trd_repeat_body)(trd_builder *b, const trd_iteration *iteration, trd_value *out, void *user);
/* What is repeated, over what. */
typedef struct trd_repeat_options {
    int64_t count;            /* iterations, at least 1 */
    bool reverse;             /* from row count - 1 down to row 0 */
    const trd_value *carries; /* handed from iteration to iteration, of any dtype */
    int carry_count;          /* of carries */
    const trd_value *shared;  /* the same in every iteration */
    int shared_count;         /* of shared */
    const trd_value *stacked; /* (count, ...) each */
    int stacked_count;        /* of stacked */
    int made_count;           /* results of every iteration that are stacked */
    trd_repeat_body body;     /* builds one iteration */
    void *user;               /* handed to body */
} trd_repeat_options;
/* Runs the body count times, the layers of a model for example: one node, whatever count is. results: the
 * carries after the last iteration, then made_count values (count, ...), row i made by iteration i.
 * Differentiable by float carries, shared and stacked operands; what the gradient needs of each iteration is
 * kept stacked or computed again, as the remat policy says. On failure results are null. */
TRD_API void trd_repeat(trd_builder *b, const trd_repeat_options *options, trd_value *results);

#ifdef __cplusplus
}
#endif
#endif
