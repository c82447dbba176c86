/* What llama.cpp's converter changed on the way from a hub checkpoint to a GGUF file: tensor names, and the
 * row order of Llama's query and key projections. */
#ifndef TRD_CHECKPOINT_GGUF_NAMES_H
#define TRD_CHECKPOINT_GGUF_NAMES_H

#include "formats/gguf.h"

typedef struct trd__gguf_architecture {
    const char *name;      /* general.architecture, the same as the hub's model_type */
    const char *hub_class; /* the config's "architectures" */
    bool permuted;         /* rows of q and k are in the order of interleaved rotary pairs */
} trd__gguf_architecture;

/* NULL for an architecture whose names are not mapped. */
const trd__gguf_architecture *trd__gguf_architecture_of(const trd__gguf *file);

enum { TRD__GGUF_NAME_BYTES = 256 };
/* The hub's name of a GGUF tensor in out (TRD__GGUF_NAME_BYTES); false when the table has none. */
bool trd__gguf_hub_name(const char *name, char *out);

/* True for the hub names whose rows are permuted in a file of a permuted architecture; *key tells k from q.
 */
bool trd__gguf_permuted_name(const char *hub_name, bool *key);
/* The file's row that holds the hub's row, for heads of head_dim rows. A hub head has its first rotary
 * halves, then its second ones; the file has them in pairs. */
int64_t trd__gguf_permuted_row(int64_t row, int64_t head_dim);

#endif
