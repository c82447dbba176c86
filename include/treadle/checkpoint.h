/* What is inside a weights file, a Hugging Face folder or a checkpoint: names, shapes, types, sizes,
 * metadata.
 *
 * A trd_contents is immutable once open: any number of threads may read it. All strings belong to it. */
#ifndef TREADLE_CHECKPOINT_H
#define TREADLE_CHECKPOINT_H

#include <treadle/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Opaque: trd_contents_open makes one, trd_contents_close frees it. */
typedef struct trd_contents trd_contents;

/* One tensor as stored. */
typedef struct trd_contents_tensor {
    const char *name; /* Hugging Face hub name where there is one */
    const char *type; /* as stored: "F32", "BF16", "Q4_K", ... */
    trd_shape shape;  /* row-major, outermost first */
    uint64_t bytes;   /* as stored */
} trd_contents_tensor;

/* Opens path: a .safetensors or .gguf file, a Hugging Face folder, one checkpoint (step-N), a folder of
 * checkpoints or a run that has one (the newest intact one). Checksums of checkpoints are verified. Errors:
 * TRD_NOT_FOUND, TRD_IO, TRD_CORRUPT, TRD_UNSUPPORTED; the message names the file and what is wrong with it.
 */
TRD_API trd_status trd_contents_open(const char *path, trd_contents **contents);
TRD_API void trd_contents_close(trd_contents *contents); /* NULL is fine */

/* "safetensors", "gguf" or "checkpoint". */
TRD_API const char *trd_contents_kind(const trd_contents *contents);
TRD_API const char *trd_contents_path(const trd_contents *contents); /* what was opened in the end */

TRD_API size_t trd_contents_tensor_count(const trd_contents *contents); /* tensors */
/* Tensor i < count: weights ordered by name, a checkpoint's in the order saved. */
TRD_API trd_contents_tensor trd_contents_tensor_at(const trd_contents *contents, size_t i);

TRD_API size_t trd_contents_metadata_count(const trd_contents *contents); /* entries of metadata */
/* Entry i < count: a GGUF key, an entry of __metadata__, a file of the folder ("config.json"), or a member of
 * a checkpoint's state.json. Long arrays are shortened or counted. */
TRD_API void trd_contents_metadata_at(const trd_contents *contents, size_t i, const char **key,
                                      const char **value);

#ifdef __cplusplus
}
#endif
#endif
