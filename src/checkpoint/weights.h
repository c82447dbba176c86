/* A read-only source of weights: a Hugging Face folder (one model.safetensors or an index of shards), a
 * single .safetensors file, or a .gguf file. Tensors carry Hugging Face hub names and layout whatever the
 * file: GGUF names are mapped and the rotary permutation of Llama q/k rows is undone on reading.
 *
 * Files are memory-mapped. An open source is immutable: any number of threads may read different tensors. */
#ifndef TRD_CHECKPOINT_WEIGHTS_H
#define TRD_CHECKPOINT_WEIGHTS_H

#include <treadle/tensor.h>

#include "formats/safetensors.h"

typedef struct trd__weights trd__weights;

typedef struct trd__weight {
    const char *name; /* hub name: "model.layers.0.self_attn.q_proj.weight" */
    const char *type; /* as stored: "F32", "BF16", "Q4_1", ... */
    trd_dtype dtype;  /* as stored; float32 for quantized types; TRD_DTYPE_COUNT: cannot be read */
    trd_shape shape;  /* as on the hub, a projection is (out, in) */
    size_t bytes;     /* as stored */
} trd__weight;

/* Errors name the file: TRD_NOT_FOUND (no weights there; which files were looked for), TRD_CORRUPT,
 * TRD_UNSUPPORTED. */
trd_status trd__weights_open(const char *path, trd__weights **weights);
void trd__weights_close(trd__weights *weights); /* NULL is fine */

size_t trd__weights_count(const trd__weights *weights);
const trd__weight *trd__weights_at(const trd__weights *weights, size_t i);           /* ordered by name */
const trd__weight *trd__weights_find(const trd__weights *weights, const char *name); /* NULL: none */
/* Reads a whole tensor into out as f32, bf16 or f16 (or its own dtype), row-major. TRD_NOT_FOUND when there
 * is no such tensor, TRD_UNSUPPORTED when its type cannot be converted. */
trd_status trd__weights_read(const trd__weights *weights, const char *name, trd_dtype dtype, void *out);

/* The model's config.json: the file's text, or the same made from GGUF metadata. NULL where there is none
 * beside the weights. NUL-terminated, lives as long as weights. */
const char *trd__weights_config(const trd__weights *weights);

const char *trd__weights_format(const trd__weights *weights); /* "safetensors" or "gguf" */
const char *trd__weights_path(const trd__weights *weights);
/* Key-value metadata as text (arrays are shortened), for people to read. */
size_t trd__weights_metadata(const trd__weights *weights, const trd__pair **pairs);

#endif
