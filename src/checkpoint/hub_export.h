/* Writes a Hugging Face folder: model.safetensors (shards with an index above a size), config.json,
 * generation_config.json. The tokenizer's files are written by the tokenizer. */
#ifndef TRD_CHECKPOINT_HUB_EXPORT_H
#define TRD_CHECKPOINT_HUB_EXPORT_H

#include <treadle/tensor.h>

typedef struct trd__hub_export_options {
    const char *config;   /* config.json's text to start from; required */
    trd_dtype dtype;      /* of the written tensors: f32, bf16 or f16 */
    uint64_t shard_bytes; /* 0: 5e9 */
    const char *source;   /* the folder the model came from, for its generation_config.json; may be NULL */
} trd__hub_export_options;

/* Writes arrays (hub names, any float dtype; converted while writing with a bounded buffer). Rotary settings
 * in the config are written both as rope_theta/rope_scaling and as rope_parameters, whichever it had. Shards
 * come first and the index last, each file atomic. A tied lm_head must be left out by the caller. */
trd_status trd__hub_export(const char *folder, const trd_array *arrays, size_t count,
                           const trd__hub_export_options *options);

/* config.json as export writes it: a copy with both spellings of the rotary settings and the dtype. Free with
 * trd__free. */
trd_status trd__hub_config(const char *config, trd_dtype dtype, char **text);

#endif
