/* Metadata of weights files as text, for people to read. */
#ifndef TRD_CHECKPOINT_WEIGHTS_METADATA_H
#define TRD_CHECKPOINT_WEIGHTS_METADATA_H

#include "base/arena.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"

/* Pairs of whichever of gguf, file and config are not NULL, in arena. GGUF arrays and texts are shortened. */
trd_status trd__weights_describe(const trd__gguf *gguf, const trd__safetensors *file, const char *config,
                                 trd__arena *arena, trd__pair **pairs, size_t *count);

#endif
