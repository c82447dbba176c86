/* A folder of checkpoints on disk: what listing, writing, reading and repairing must agree on. */
#ifndef TRD_CHECKPOINT_STORE_FILES_H
#define TRD_CHECKPOINT_STORE_FILES_H

#include "checkpoint/store.h"

#define TRD__STORE_TENSORS "tensors.safetensors"
#define TRD__STORE_STATE "state.json"
#define TRD__STORE_MANIFEST "manifest.json"
#define TRD__STORE_TEMPORARY ".tmp-" /* how the name of what is half written or half removed begins */
#define TRD__STORE_TIME "%Y-%m-%dT%H:%M:%SZ"
#define TRD__STORE_MANIFEST_SUM "manifest_xxh3"

enum { TRD__STORE_FORMAT = 2, TRD__STORE_SUM_TEXT = 17 }; /* 16 hexadecimal digits */

struct trd__store {
    char *folder;
    trd_log_sink log;
};

/* Paths of a checkpoint and of a folder that becomes one or was one ("save", "remove"). Free with
 * trd__free; NULL: no memory. */
char *trd__store_path(const trd__store *store, trd__store_name name);
char *trd__store_temporary(const trd__store *store, const char *purpose, trd__store_name name);

/* Calls function for the path of everything that an interrupted save left. */
typedef trd_status (*trd__store_leftover_function)(void *user, const char *path);
trd_status trd__store_leftovers(const trd__store *store, trd__store_leftover_function function, void *user);

#endif
