/* config.json from GGUF metadata. */
#ifndef TRD_CHECKPOINT_GGUF_CONFIG_H
#define TRD_CHECKPOINT_GGUF_CONFIG_H

#include "formats/gguf.h"

/* The text a hub folder of the same model would have as config.json; for an architecture that is not known,
 * just its model_type. Free with trd__free. TRD_CORRUPT names a missing key; TRD_UNSUPPORTED a rotary scaling
 * that is none of Llama 3's. */
trd_status trd__gguf_config(const trd__gguf *file, char **text);

#endif
