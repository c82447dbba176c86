/* The index on disk: one file per (content of the files, tokenizer, options that change the index), named by
 * a hash of them. Invariant: a file that is torn, altered or of another version is as good as none. */
#ifndef TRD_DATA_INDEX_CACHE_H
#define TRD_DATA_INDEX_CACHE_H

#include "data/index.h"

/* Hash of all that the index depends on; content_hash is that of the files' bytes. */
trd_status trd__index_cache_key(const trd_data_options *options, uint64_t content_hash, uint64_t *key);

/* *found and index filled, else not: a missing or unusable file is no error, only want of memory is. */
trd_status trd__index_cache_load(const char *folder, uint64_t key, trd__index *index, bool *found);
trd_status trd__index_cache_save(const char *folder, uint64_t key, const trd__index *index);

#endif
