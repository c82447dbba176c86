/* Finds the safetensors files of a Hugging Face folder. */
#ifndef TRD_CHECKPOINT_HUB_FOLDER_H
#define TRD_CHECKPOINT_HUB_FOLDER_H

#include "formats/json.h"

typedef struct trd__hub_folder {
    char **files; /* paths of the weights files, each once */
    size_t count;
    trd__json_doc *index; /* model.safetensors.index.json; NULL for a single file */
} trd__hub_folder;

/* TRD_NOT_FOUND says what the folder holds instead of weights (a pickle, an adapter, shards without index);
 * TRD_CORRUPT when index and shards do not agree. */
trd_status trd__hub_folder_open(const char *path, trd__hub_folder *folder);
void trd__hub_folder_close(trd__hub_folder *folder); /* safe on a zeroed struct */

/* The shard that the index gives for a tensor, as an index into files; TRD_CORRUPT when it is no file name.
 */
trd_status trd__hub_folder_shard(const trd__hub_folder *folder, trd__json entry, size_t *shard);

#endif
