/* Building the index in three passes: cut the files into lines, tokenize the lines on all processors, then
 * judge them in order, so messages, counts and the first error are those of a plain walk from top to bottom.
 */
#include "data/index.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/checksum.h"
#include "base/log.h"
#include "base/pool.h"
#include "data/index_cache.h"
#include "formats/jsonl.h"

enum {
    LINES_PER_THREAD = 256, /* below this many a thread costs more than it saves */
    MAX_THREADS = 16,
    WARNINGS = 10, /* skipped lines that get a log line of their own */
    MAX_LINE_BYTES = 1 << 30
};

typedef struct line_result {
    trd_status status;
    size_t tokens; /* before truncation */
    uint32_t loss_tokens;
} line_result;

typedef struct build {
    const trd_data_options *options;
    trd__jsonl *files; /* [file_count], opened so far */
    size_t count, capacity;
    trd__sample_ref *lines;
    line_result *results;
    _Atomic size_t stop_at; /* lines beyond it need no result: an earlier one ends the build */
    int warnings;
} build;

trd__sample_options trd__sample_options_of(const trd_data_options *options)
{
    return (trd__sample_options){options->tokenizer, options->completion_only_loss};
}

void trd__line_name(const trd_data_options *options, const trd__sample_ref *ref, char *name)
{
    snprintf(name, TRD__LINE_NAME_BYTES, "%s line %" PRIu64, options->files[ref->file], ref->line);
}

void trd__index_free(trd__index *index)
{
    trd__free(index->lengths);
    trd__free(index->refs);
    *index = (trd__index){0};
}

static trd_status open_files(build *b, uint64_t *content_hash)
{
    const trd_data_options *options = b->options;
    b->files = trd__calloc((size_t)options->file_count, sizeof *b->files);
    if (!b->files) return TRD_NO_MEMORY;
    *content_hash = 0;
    for (int i = 0; i < options->file_count; i++) {
        TRD_TRY(trd__jsonl_open(options->files[i], &b->files[i]));
        uint64_t part[] = {trd__checksum(b->files[i].map.data, b->files[i].map.bytes), b->files[i].map.bytes};
        *content_hash = trd__checksum_more(*content_hash, part, sizeof part);
    }
    return TRD_OK;
}

static trd_status add_line(build *b, const trd__sample_ref *ref)
{
    if (b->count == b->capacity) {
        size_t capacity = b->capacity ? 2 * b->capacity : 1024;
        trd__sample_ref *grown = trd__realloc(b->lines, capacity, sizeof *grown);
        if (!grown) return TRD_NO_MEMORY;
        b->lines = grown;
        b->capacity = capacity;
    }
    b->lines[b->count++] = *ref;
    return TRD_OK;
}

static trd_status cut_lines(build *b)
{
    for (int i = 0; i < b->options->file_count; i++) {
        trd__jsonl_line line;
        while (trd__jsonl_next(&b->files[i], &line)) {
            /* A longer line is cut here and refused when it is judged. */
            size_t bytes = line.bytes > MAX_LINE_BYTES ? MAX_LINE_BYTES + 1u : line.bytes;
            trd__sample_ref ref = {line.offset, line.number, (uint32_t)bytes, (uint32_t)i};
            TRD_TRY(add_line(b, &ref));
        }
    }
    return TRD_OK;
}

static trd_status read_line(const build *b, size_t i, trd__sample *sample)
{
    const trd__sample_ref *ref = &b->lines[i];
    trd__sample_options options = trd__sample_options_of(b->options);
    char name[TRD__LINE_NAME_BYTES];
    trd__line_name(b->options, ref, name);
    if (ref->bytes > MAX_LINE_BYTES)
        return trd__fail(TRD_CORRUPT, "reading %s: expected at most %d bytes in a line, found more", name,
                         MAX_LINE_BYTES);
    const char *text = (const char *)b->files[ref->file].map.data + ref->offset;
    return trd__sample_read(sample, &options, text, ref->bytes, name);
}

static size_t kept_tokens(const build *b, size_t tokens)
{
    size_t limit = (size_t)b->options->length;
    return tokens < limit ? tokens : limit;
}

static void measure(build *b, size_t i, trd__sample *sample)
{
    line_result *result = &b->results[i];
    result->status = read_line(b, i, sample);
    if (result->status) return;
    result->tokens = sample->count;
    result->loss_tokens = trd__sample_loss_tokens(sample, kept_tokens(b, sample->count));
}

static bool ends_build(const build *b, const line_result *result)
{
    if (result->status == TRD_CORRUPT) return b->options->bad_line == TRD_BAD_LINE_ERROR;
    if (result->status) return true;
    return result->tokens > (size_t)b->options->length && b->options->too_long == TRD_TOO_LONG_ERROR;
}

static void measure_part(void *context, int worker, int workers)
{
    build *b = context;
    trd__sample sample = {0};
    int64_t begin, end;
    trd__partition(worker, workers, (int64_t)b->count, 1, &begin, &end);
    for (size_t i = (size_t)begin; i < (size_t)end && i <= atomic_load(&b->stop_at); i++) {
        measure(b, i, &sample);
        if (!ends_build(b, &b->results[i])) continue;
        size_t first = atomic_load(&b->stop_at);
        while (i < first && !atomic_compare_exchange_weak(&b->stop_at, &first, i)) continue;
    }
    trd__sample_free(&sample);
}

static trd_status measure_all(build *b)
{
    b->results = trd__calloc(b->count, sizeof *b->results);
    if (!b->results) return TRD_NO_MEMORY;
    size_t wanted = b->count / LINES_PER_THREAD + 1, processors = (size_t)trd__processor_count();
    if (wanted > processors) wanted = processors;
    if (wanted > MAX_THREADS) wanted = MAX_THREADS;
    trd__pool *pool;
    TRD_TRY(trd__pool_create((int)wanted, &pool));
    trd__pool_run(pool, measure_part, b);
    trd__pool_free(pool);
    return TRD_OK;
}

/* A line that could not be read: skipped with a count, or the build's error. The message died with the thread
 * that met it, so the line is read again. */
static trd_status judge_failure(build *b, size_t i, trd__index *index)
{
    trd_status first = b->results[i].status;
    trd__sample sample = {0};
    trd_status again = read_line(b, i, &sample);
    trd__sample_free(&sample);
    if (again == TRD_OK) {
        /* Memory was short for a moment. Later lines may lack a result, so this cannot be mended here. */
        char name[TRD__LINE_NAME_BYTES];
        trd__line_name(b->options, &b->lines[i], name);
        return trd__fail(first, "reading %s: %s", name, trd_status_text(first));
    }
    if (again != TRD_CORRUPT || b->options->bad_line == TRD_BAD_LINE_ERROR) return again;
    index->stats.bad_lines++;
    if (b->warnings++ < WARNINGS)
        trd__log(&b->options->log, TRD_LOG_WARNING, "data: skipped a bad line: %s", trd_error_message());
    return TRD_OK;
}

/* Applies the policy for long samples to a readable line and appends it to the index. */
static trd_status judge_sample(build *b, size_t i, trd__index *index)
{
    const line_result *result = &b->results[i];
    const trd_data_options *options = b->options;
    bool too_long = result->tokens > (size_t)options->length;
    if (too_long && options->too_long == TRD_TOO_LONG_ERROR) {
        char name[TRD__LINE_NAME_BYTES];
        trd__line_name(options, &b->lines[i], name);
        return trd__fail(
            TRD_INVALID_ARGUMENT,
            "reading %s: expected at most %d tokens, found %zu; raise the length or choose to truncate "
            "or drop such samples",
            name, options->length, result->tokens);
    }
    if ((too_long && options->too_long == TRD_TOO_LONG_DROP) || result->loss_tokens == 0) {
        index->stats.dropped++;
        return TRD_OK;
    }
    index->stats.truncated += too_long;
    index->refs[index->count] = b->lines[i];
    index->lengths[index->count++] = (uint32_t)kept_tokens(b, result->tokens);
    index->stats.tokens += kept_tokens(b, result->tokens);
    index->stats.loss_tokens += result->loss_tokens;
    return TRD_OK;
}

static trd_status judge_all(build *b, trd__index *index)
{
    index->refs = trd__alloc(b->count, sizeof *index->refs);
    index->lengths = trd__alloc(b->count, sizeof *index->lengths);
    if (!index->refs || !index->lengths) return TRD_NO_MEMORY;
    for (size_t i = 0; i < b->count; i++) {
        if (b->results[i].status)
            TRD_TRY(judge_failure(b, i, index));
        else
            TRD_TRY(judge_sample(b, i, index));
    }
    index->stats.samples = index->count;
    return TRD_OK;
}

static trd_status check_usable(const trd_data_options *options, const trd__index *index)
{
    const trd_data_stats *stats = &index->stats;
    if (index->count > 0) return TRD_OK;
    return trd__fail(
        TRD_INVALID_ARGUMENT,
        "reading data of %s%s: expected at least one usable sample, found none (%" PRIu64
        " bad lines skipped, %" PRIu64 " samples dropped as too long or without a token that carries "
        "loss)",
        options->files[0], options->file_count > 1 ? " and others" : "", stats->bad_lines, stats->dropped);
}

static trd_status build_index(build *b, trd__index *index)
{
    TRD_TRY(cut_lines(b));
    TRD_TRY(measure_all(b));
    return judge_all(b, index);
}

static trd_status open_index(build *b, trd__index *index)
{
    const trd_data_options *options = b->options;
    uint64_t content_hash, key;
    bool found = false;
    TRD_TRY(open_files(b, &content_hash));
    TRD_TRY(trd__index_cache_key(options, content_hash, &key));
    if (options->cache_directory)
        TRD_TRY(trd__index_cache_load(options->cache_directory, key, index, &found));
    if (found) return TRD_OK;
    TRD_TRY(build_index(b, index));
    index->stats.content_hash = content_hash;
    if (!options->cache_directory || index->count == 0) return TRD_OK;
    trd_status status = trd__index_cache_save(options->cache_directory, key, index);
    if (status == TRD_NO_MEMORY || status == TRD_OK) return status;
    /* Training goes on without a cache, the next start is only slower. */
    trd__log(&options->log, TRD_LOG_WARNING, "data: the index was not kept: %s", trd_error_message());
    return TRD_OK;
}

trd_status trd__index_open(const trd_data_options *options, trd__index *index)
{
    build b = {.options = options, .stop_at = SIZE_MAX};
    *index = (trd__index){0};
    trd_status status = open_index(&b, index);
    if (!status) status = check_usable(options, index);
    if (status) trd__index_free(index);
    for (int i = 0; b.files && i < options->file_count; i++) trd__jsonl_close(&b.files[i]);
    trd__free(b.files);
    trd__free(b.results);
    trd__free(b.lines);
    return status;
}
