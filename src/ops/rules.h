/* What shape rules and gradients share: checks of operands that fail with precise messages, and small
 * compositions of public builders. Builders here are as tolerant of null values as the public ones. */
#ifndef TRD_OPS_RULES_H
#define TRD_OPS_RULES_H

#include "base/shape.h"
#include "ops/attrs.h"

/* Sets of dtypes, a bit each. */
#define TRD__DTYPE_BIT(d) (1u << (d))
enum {
    TRD__FLOATS = TRD__DTYPE_BIT(TRD_F32) | TRD__DTYPE_BIT(TRD_F64) | TRD__DTYPE_BIT(TRD_BF16) |
                  TRD__DTYPE_BIT(TRD_F16),
    TRD__INT32 = TRD__DTYPE_BIT(TRD_I32),
    TRD__BOOLEAN = TRD__DTYPE_BIT(TRD_BOOL),
    TRD__NUMBERS = TRD__FLOATS | TRD__INT32,
    TRD__ANY = TRD__NUMBERS | TRD__BOOLEAN | TRD__DTYPE_BIT(TRD_U8) | TRD__DTYPE_BIT(TRD_I64)
};

/* Type of operand i, NULL where it is null or left out. */
const trd__type *trd__operand(const trd_node *n, int i);
/* Operand i, which is not null, has a dtype of the set. */
trd_status trd__want(const trd_node *n, int i, const char *name, unsigned dtypes);
/* The same, and its rank is at least min_rank. */
trd_status trd__want_rank(const trd_node *n, int i, const char *name, unsigned dtypes, int min_rank);
/* The same, with exactly this dtype and shape. */
trd_status trd__want_type(const trd_node *n, int i, const char *name, trd_dtype dtype,
                          const trd_shape *shape);
/* trd__fail_shape with a formatted expectation. */
trd_status trd__fail_shape_of(const trd_node *n, const char *operand, const trd__type *found,
                              const char *format, ...) __attribute__((format(printf, 4, 5)));

/* The first `rank` dims of a shape. */
trd_shape trd__leading(const trd_shape *shape, int rank);
/* Product of dims [begin, end). */
int64_t trd__dims_product(const trd_shape *shape, int begin, int end);
/* A type without axis names. */
trd__type trd__plain_type(trd_dtype dtype, const trd_shape *shape);

/* What math on d is done in: float64 for float64, else float32. */
trd_dtype trd__compute_dtype(trd_dtype d);

/* Whether v is a constant 0 of any shape: an accumulator that starts from zero. */
bool trd__is_zero(trd_value v);

/* Builders without a public name. */
trd_value trd__sign(trd_builder *b, trd_value x);
trd_value trd__replica_sum(trd_builder *b, trd_value x); /* not differentiable */
trd_value trd__put_last(trd_builder *b, trd_value values, trd_value index, int64_t size);

/* Broadcasts the operands to their common shape as NumPy does. Shapes that do not fit are left as they are,
 * so that the op's own shape rule reports them. */
void trd__broadcast_together(trd_builder *b, trd_value *operands, int count);
/* A node of x and y, broadcast together. */
trd_value trd__add_pair(trd_builder *b, const trd_op *op, trd_value x, trd_value y);
/* The infer rule of such an op: y has x's type, and so has the result. */
trd_status trd__infer_pair(const trd_node *n, trd__type *results, unsigned dtypes);

/* x * c for a constant c. */
trd_value trd__times(trd_builder *b, trd_value x, double c);
/* x with its leading axes flattened: (R, C). Free. */
trd_value trd__flatten_rows(trd_builder *b, trd_value x);
/* x with a new axis of length 1 before `axis`. Free. */
trd_value trd__unsqueeze(trd_builder *b, trd_value x, int axis);
/* Row i of x, without the leading axis. */
trd_value trd__take_row(trd_builder *b, trd_value x, int64_t i);
/* Sum of x over its last axis, kept as length 1. Mean likewise. */
trd_value trd__sum_last(trd_builder *b, trd_value x);
trd_value trd__mean_last(trd_builder *b, trd_value x);
/* condition ? x : 0, condition broadcast to x; x itself where condition is null. */
trd_value trd__mask(trd_builder *b, trd_value condition, trd_value x);

#endif
