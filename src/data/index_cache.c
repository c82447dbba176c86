/* Cache file: header, sample references, lengths; the header holds a checksum of all that follows it. Written
 * atomically in the machine's byte order, which the magic number gives away. */
#include "data/index_cache.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checksum.h"
#include "base/file.h"

enum { VERSION = 1 };
#define MAGIC 0x7864692d61746164ull /* "data-idx", little-endian */

typedef struct cache_header {
    uint64_t magic;
    uint64_t version;
    uint64_t key;
    uint64_t count;
    uint64_t checksum;
    trd_data_stats stats;
} cache_header;

/* A tokenizer has no hash of its own; its sizes, special ids, template and what it makes of a text that meets
 * its rules (case, digits, spaces, scripts, contractions) tell two apart. A sample whose length differs from
 * the index is an error when it is read, so a collision cannot go unseen. */
static trd_status tokenizer_hash(const trd_tokenizer *tokenizer, uint64_t *hash)
{
    static const char probe[] =
        "The quick brown fox can't jump 12345 times, isn't it?\n\n    return x[0] += 3.14e-7;\t"
        "Na\xc3\xafve caf\xc3\xa9 \xe4\xbd\xa0\xe5\xa5\xbd \xd0\xbc\xd0\xb8\xd1\x80 "
        "\xf0\x9f\x98\x80 WordNet's glosses: anti-establishmentarian \xff\xfe";
    trd_ids ids = {0};
    trd_status status = trd_tokenizer_encode(tokenizer, probe, sizeof probe - 1, &ids);
    if (!status) {
        int32_t facts[] = {trd_tokenizer_vocab_size(tokenizer), trd_tokenizer_bos(tokenizer),
                           trd_tokenizer_eos(tokenizer), trd_tokenizer_adds_bos(tokenizer)};
        const char *template = trd_tokenizer_chat_template(tokenizer);
        *hash = trd__checksum_more(*hash, facts, sizeof facts);
        *hash = trd__checksum_more(*hash, ids.ids, ids.count * sizeof *ids.ids);
        if (template) *hash = trd__checksum_more(*hash, template, strlen(template));
    }
    trd_ids_free(&ids);
    return status;
}

trd_status trd__index_cache_key(const trd_data_options *options, uint64_t content_hash, uint64_t *key)
{
    int64_t facts[] = {VERSION, options->length, options->too_long, options->bad_line,
                       options->completion_only_loss};
    *key = trd__checksum_more(content_hash, facts, sizeof facts);
    return tokenizer_hash(options->tokenizer, key);
}

static char *cache_path(const char *folder, uint64_t key)
{
    char name[64];
    snprintf(name, sizeof name, "data-index-%016" PRIx64 ".bin", key);
    return trd__path_join(folder, name);
}

static uint64_t body_checksum(const cache_header *header, const void *refs, const void *lengths)
{
    uint64_t sum = trd__checksum(&header->stats, sizeof header->stats);
    sum = trd__checksum_more(sum, refs, header->count * sizeof(trd__sample_ref));
    return trd__checksum_more(sum, lengths, header->count * sizeof(uint32_t));
}

/* Copies the parts out of the file's bytes, where they make up an intact cache file. */
static trd_status unpack(const trd__file_map *map, uint64_t key, trd__index *index, bool *found)
{
    const size_t per_sample = sizeof *index->refs + sizeof *index->lengths;
    cache_header header;
    if (map->bytes < sizeof header) return TRD_OK;
    memcpy(&header, map->data, sizeof header);
    size_t body = map->bytes - sizeof header;
    if (header.magic != MAGIC || header.version != VERSION || header.key != key || body % per_sample != 0 ||
        header.count != body / per_sample)
        return TRD_OK;
    const unsigned char *refs = map->data + sizeof header;
    const unsigned char *lengths = refs + header.count * sizeof *index->refs;
    if (header.checksum != body_checksum(&header, refs, lengths)) return TRD_OK;
    index->refs = trd__alloc(header.count, sizeof *index->refs);
    index->lengths = trd__alloc(header.count, sizeof *index->lengths);
    if (!index->refs || !index->lengths) {
        trd__index_free(index);
        return TRD_NO_MEMORY;
    }
    memcpy(index->refs, refs, header.count * sizeof *index->refs);
    memcpy(index->lengths, lengths, header.count * sizeof *index->lengths);
    index->count = header.count;
    index->stats = header.stats;
    *found = true;
    return TRD_OK;
}

trd_status trd__index_cache_load(const char *folder, uint64_t key, trd__index *index, bool *found)
{
    *index = (trd__index){0};
    *found = false;
    char *path = cache_path(folder, key);
    if (!path) return TRD_NO_MEMORY;
    trd__file_map map = {0};
    trd_status status = trd__file_exists(path) ? trd__file_map_open(path, &map) : TRD_OK;
    if (!status && map.data) status = unpack(&map, key, index, found);
    trd__file_map_close(&map);
    trd__free(path);
    return status == TRD_NO_MEMORY ? status : TRD_OK;
}

trd_status trd__index_cache_save(const char *folder, uint64_t key, const trd__index *index)
{
    TRD_TRY(trd__make_directories(folder));
    TRD_TRY(trd__file_sweep(folder));
    char *path = cache_path(folder, key);
    if (!path) return TRD_NO_MEMORY;
    cache_header header = {.magic = MAGIC, .version = VERSION, .key = key, .count = index->count};
    header.stats = index->stats;
    header.checksum = body_checksum(&header, index->refs, index->lengths);
    trd__file_writer *writer;
    trd_status status = trd__file_writer_open(path, &writer);
    trd__free(path);
    TRD_TRY(status);
    trd__file_write(writer, &header, sizeof header); /* sticky: commit reports it */
    trd__file_write(writer, index->refs, index->count * sizeof *index->refs);
    trd__file_write(writer, index->lengths, index->count * sizeof *index->lengths);
    return trd__file_writer_commit(writer);
}
