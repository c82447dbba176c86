/* Dtypes, shapes and host arrays: what every other header speaks in.
 *
 * Tensors are row-major with at most TRD_MAX_RANK axes. Shapes are written (B, T, C): batch, time, channels.
 */
#ifndef TREADLE_TENSOR_H
#define TREADLE_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <treadle/status.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { TRD_MAX_RANK = 8 }; /* most axes of a tensor */

/* X(name, config and safetensors-style name, bytes per element): the only list of dtypes. Float8 kinds are
 * reserved: they have a size and a name, no kernel takes them yet. */
#define TRD_DTYPE_LIST(X)                                                                                    \
    X(F32, "float32", 4)                                                                                     \
    X(F64, "float64", 8)                                                                                     \
    X(BF16, "bfloat16", 2)                                                                                   \
    X(F16, "float16", 2)                                                                                     \
    X(I32, "int32", 4)                                                                                       \
    X(I64, "int64", 8)                                                                                       \
    X(U8, "uint8", 1)                                                                                        \
    X(BOOL, "bool", 1)                                                                                       \
    X(F8_E4M3, "float8_e4m3", 1)                                                                             \
    X(F8_E5M2, "float8_e5m2", 1)

/* TRD_F32, TRD_F64 and so on, as listed in TRD_DTYPE_LIST. */
typedef enum trd_dtype {
#define TRD_DTYPE_ENUM(name, text, bytes) TRD_##name,
    TRD_DTYPE_LIST(TRD_DTYPE_ENUM)
#undef TRD_DTYPE_ENUM
        TRD_DTYPE_COUNT /* how many there are */
} trd_dtype;

/* Name as in configs ("float32"), never NULL. */
TRD_API const char *trd_dtype_name(trd_dtype dtype);
TRD_API size_t trd_dtype_bytes(trd_dtype dtype); /* of one element */
/* Parses a name; also accepts the short forms f32, f64, bf16, f16, i32, u8. TRD_INVALID_ARGUMENT if unknown.
 */
TRD_API trd_status trd_dtype_parse(const char *name, trd_dtype *dtype);

/* The sizes of a tensor's axes. */
typedef struct trd_shape {
    int rank;                  /* axes; 0: a scalar */
    int64_t dim[TRD_MAX_RANK]; /* sizes, outermost first; those past rank are ignored */
} trd_shape;

/* A named array on the host. The data belongs to whoever made the struct. */
typedef struct trd_array {
    const char *name; /* as a loss asks for it, or a parameter's hub name */
    trd_dtype dtype;  /* of its elements */
    trd_shape shape;  /* of an extra input: (B, ...), zeros fill up the batch; or without rows, as it is */
    const void *data; /* row-major */
} trd_array;

/* A named compile-time constant of a payload (pad id, clip epsilon, ...). A changed value recompiles. */
typedef struct trd_constant {
    const char *name; /* as a loss asks for it */
    double value;     /* exact in float64 */
} trd_constant;

/* Whether a step ends with a payload. */
typedef enum trd_update_step {
    TRD_UPDATE_BY_COUNT, /* the training loop's count decides */
    TRD_UPDATE_NOW,      /* it does */
    TRD_UPDATE_LATER     /* it does not, whatever the count */
} trd_update_step;

/* One micro-batch of token rows. All pointers stay the caller's; the engine copies what it needs. */
typedef struct trd_batch {
    int rows;                   /* B */
    int length;                 /* T, tokens per row */
    const int32_t *token_ids;   /* (B, T) */
    const int32_t *segment_ids; /* (B, T), 0 = padding, contiguous runs; NULL: from token_mask, or all 1 */
    const uint8_t *token_mask;  /* (B, T), 0 = padding; used only without segment_ids; may be NULL */
    const float *loss_weights;  /* (B, T), aligned to the predicted token; NULL: all 1 */
    int extra_count;            /* of extras */
    const trd_array *extras; /* further loss inputs by name (advantages, reference log-probabilities, ...) */
    int constant_count;      /* of constants */
    const trd_constant *constants; /* compiled in */
    trd_update_step update_step;   /* for trd_engine_train */
    uint64_t position; /* data rows consumed once this batch is (below 2^53), saved in checkpoints */
} trd_batch;

#ifdef __cplusplus
}
#endif
#endif
