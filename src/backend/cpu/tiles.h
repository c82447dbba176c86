/* The loops that fused groups are made of: one op on a tile of float32 values that lies in L1. Bool is 0 or
 * 1; loads and stores convert dtypes. One table per instruction set, all made from tiles_body.h and computing
 * the same roundings, so a value's bits do not depend on where in a tile or in which group it is computed. */
#ifndef TRD_BACKEND_CPU_TILES_H
#define TRD_BACKEND_CPU_TILES_H

#include "backend/cpu/kernel.h"

enum { TRD__TILE = 512, TRD__TILE_STEP = 16, TRD__PARTIALS = 32, TRD__TILE_OPERANDS = 4 };
enum { TRD__STREAM_AHEAD = 1 << 14 }; /* bytes from those that are added to those that are asked for */

/* out[i] = op(in[0][i], ...) for n values, a multiple of TRD__TILE_STEP; out may equal an input. */
typedef void (*trd__tile_function)(float *out, const float *const *in, int n);

typedef struct trd__tile_op {
    const trd_op *op;
    trd__tile_function run;
} trd__tile_op;

/* The outer op with the inner one's result as its operand `place`, rounded twice like two ops. Its operands
 * are the outer op's with the inner op's in that place. A pair may be the outer op of another. */
typedef struct trd__tile_pair {
    trd__tile_function outer, inner;
    int place;
    trd__tile_function run;
} trd__tile_pair;

typedef struct trd__tiles {
    const trd__tile_op *ops;     /* ends with a zeroed row */
    const trd__tile_pair *pairs; /* likewise */
    trd__tile_function to_bool;
    /* n elements, any n; of the dtypes trd__tile_takes. */
    void (*load)(float *out, trd_dtype dtype, const void *data, int64_t at, int n);
    void (*store)(const float *in, trd_dtype dtype, void *data, int64_t at, int n);
    void (*round)(float *values, trd_dtype dtype, int n); /* to what dtype can hold; n as for ops */
    void (*fill)(float *out, float value, int n);
    /* Adds n values (any n), or their squares, to TRD__PARTIALS partial sums. */
    void (*sum)(double *partials, const float *in, int n);
    void (*sum_squares)(double *partials, const float *in, int n);
    /* The same bits from n elements of float32 or bfloat16 in memory, a multiple of TRD__PARTIALS, which are
     * read while those TRD__STREAM_AHEAD bytes behind them are asked for. */
    void (*stream_squares)(double *partials, trd_dtype dtype, const void *data, int64_t at, int n);
} trd__tiles;

extern const trd__tiles trd__tiles_baseline, trd__tiles_avx2, trd__tiles_avx512;

const trd__tiles *trd__tiles_for(trd__isa isa);
/* NULL: the op cannot be fused. cast is NULL too: it is a load, a rounding or to_bool. */
trd__tile_function trd__tile_find(const trd__tiles *tiles, const trd_op *op);

static inline bool trd__tile_takes(trd_dtype d)
{
    return d == TRD_F32 || d == TRD_BF16 || d == TRD_F16 || d == TRD_BOOL;
}

#endif
