/* The files of a checkpoint folder: what writing and reading must agree on. */
#ifndef TRD_CHECKPOINT_STORE_FILES_H
#define TRD_CHECKPOINT_STORE_FILES_H

#define TRD__STORE_TENSORS "tensors.safetensors"
#define TRD__STORE_STATE "state.json"
#define TRD__STORE_MANIFEST "manifest.json"

enum { TRD__STORE_FORMAT = 1, TRD__STORE_SUM_TEXT = 17 }; /* 16 hexadecimal digits */

#endif
