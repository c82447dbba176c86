/* Creating a generator and moving its rows forward. */
#include "generate/generator.h"

#include <string.h>

#include "base/alloc.h"
#include "base/shape.h"
#include "engine/borrow.h"
#include "generate/sample.h"

enum { LEAST_CHUNK = 16 }; /* chunks are this many tokens times a power of two, up to prefill_chunk */

trd_generator_options trd_generator_defaults(void)
{
    return (trd_generator_options){.rows = 1, .prefill_chunk = 256, .dtype = TRD_F32};
}

static trd_status check_options(const trd_generator_options *o)
{
    if (o->rows < 1)
        return trd__fail(TRD_INVALID_ARGUMENT, "generator: rows expected 1 or more, found %d", o->rows);
    if (o->length < 0)
        return trd__fail(TRD_INVALID_ARGUMENT, "generator: length expected 0 or more, found %lld",
                         (long long)o->length);
    if (o->prefill_chunk < 1 || o->prefill_chunk > 65536)
        return trd__fail(TRD_INVALID_ARGUMENT, "generator: prefill_chunk expected 1 to 65536, found %d",
                         o->prefill_chunk);
    if (o->dtype != TRD_F32 && o->dtype != TRD_BF16)
        return trd__fail(TRD_INVALID_ARGUMENT, "generator: dtype expected float32 or bfloat16, found %s",
                         trd_dtype_name(o->dtype));
    return TRD_OK;
}

static void fit_length(trd_generator *g)
{
    int64_t most = g->model->info.max_positions;
    if (g->options.length == 0 || g->options.length > most) g->options.length = most;
}

static trd_status create_cache(trd_generator *g)
{
    const trd_model_info *info = &g->model->info;
    int count = 2 * (int)info->layers;
    trd__entry *entries = trd__arena_alloc(g->arena, (size_t)count + 1, sizeof *entries);
    if (!entries) return TRD_NO_MEMORY;
    for (int i = 0; i < count; i++) {
        bool values = i >= (int)info->layers;
        const char *name =
            trd__arena_format(g->arena, "layers.%d.%s", i % (int)info->layers, values ? "values" : "keys");
        if (!name) return TRD_NO_MEMORY;
        entries[i] = (trd__entry){
            .name = name,
            .dtype = g->options.dtype,
            .sparse = true,
            .shape = TRD__SHAPE(g->options.rows, g->options.length, info->kv_heads, info->head_dim)};
    }
    return g->backend->table->set_create(g->backend, "cache", entries, count, &g->cache);
}

static trd_status create_rows(trd_generator *g)
{
    size_t rows = (size_t)g->options.rows, vocab = (size_t)g->model->info.vocab;
    trd__entry logits = {
        .name = "logits", .dtype = TRD_F32, .shape = TRD__SHAPE(g->options.rows, g->model->info.vocab)};
    fit_length(g);
    TRD_TRY(create_cache(g));
    TRD_TRY(g->backend->table->set_create(g->backend, "results", &logits, 1, &g->results));
    g->start = trd__arena_alloc(g->arena, rows, sizeof *g->start);
    g->lengths = trd__arena_alloc(g->arena, rows, sizeof *g->lengths);
    g->logits = trd__arena_alloc(g->arena, rows * vocab, sizeof *g->logits);
    g->candidates = trd__arena_alloc(g->arena, vocab, TRD__CANDIDATE_BYTES);
    return g->start && g->lengths && g->logits && g->candidates ? TRD_OK : TRD_NO_MEMORY;
}

static trd_status create(const trd_generator_options *options, trd_generator **generator)
{
    *generator = NULL;
    TRD_TRY(check_options(options));
    trd_generator *g = trd__calloc(1, sizeof *g);
    if (!g) return TRD_NO_MEMORY;
    g->options = *options;
    g->arena = trd__arena_create();
    if (!g->arena) {
        trd__free(g);
        return TRD_NO_MEMORY;
    }
    *generator = g;
    return TRD_OK;
}

static trd_status finish(trd_generator *g, trd_status status, trd_generator **generator)
{
    if (!status) status = create_rows(g);
    if (status) {
        trd_generator_close(g);
        g = NULL;
    }
    *generator = g;
    return status;
}

trd_status trd_generator_open(const char *path, const trd_generator_options *options,
                              trd_generator **generator)
{
    trd_generator *g;
    *generator = NULL;
    TRD_TRY(create(options, &g));
    trd__backend_options backend = {.name = options->backend,
                                    .plugin_path = options->plugin_path,
                                    .threads = options->num_threads,
                                    .log = options->log};
    trd_status status = trd__backend_create(&backend, &g->backend);
    g->own_backend = status == TRD_OK;
    if (!status) status = trd__generator_load(g, path);
    return finish(g, status, generator);
}

trd_status trd_generator_from_engine(trd_engine *engine, const trd_generator_options *options,
                                     trd_generator **generator)
{
    trd_generator *g;
    trd__borrowed borrowed;
    *generator = NULL;
    TRD_TRY(trd__engine_borrow(engine, &borrowed));
    trd_generator_options shared = *options;
    shared.dtype = borrowed.weight_dtype;
    TRD_TRY(create(&shared, &g));
    g->model = borrowed.model;
    g->backend = borrowed.backend;
    g->params = borrowed.params;
    return finish(g, TRD_OK, generator);
}

void trd_generator_close(trd_generator *g)
{
    if (!g) return;
    if (g->backend) {
        const trd__backend_table *table = g->backend->table;
        for (int i = 0; i < g->feed_count; i++) {
            table->executable_free(g->backend, g->feeds[i].executable);
            table->set_free(g->backend, g->feeds[i].inputs);
        }
        trd__set *sets[] = {g->results, g->cache, g->own_params};
        for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
            if (sets[i]) table->set_free(g->backend, sets[i]);
    }
    if (g->own_backend) trd__backend_free(g->backend);
    trd_model_free(g->own_model);
    trd__arena_free(g->arena);
    trd__free(g);
}

const trd_model *trd_generator_model(const trd_generator *g)
{
    return g->model;
}

void trd__generator_clear(trd_generator *g)
{
    memset(g->lengths, 0, (size_t)g->options.rows * sizeof *g->lengths);
}

/* Stages tokens[0, count) of a row behind what its cache holds. Count 0 leaves the row alone: its queries see
 * nothing, and what they would write falls outside the cache. */
static void stage_row(trd_generator *g, trd__feed *feed, int row, const int32_t *tokens, int64_t count)
{
    int64_t at = row * feed->length;
    g->start[row] = (int32_t)(count ? g->lengths[row] : g->options.length);
    for (int64_t t = 0; t < feed->length; t++) {
        bool used = t < count;
        feed->tokens[at + t] = used ? tokens[t] : 0;
        feed->segments[at + t] = used;
        feed->positions[at + t] = (int32_t)(used ? g->lengths[row] + t : 0);
    }
    g->lengths[row] += count;
}

static int64_t smaller(int64_t x, int64_t y)
{
    return x < y ? x : y;
}

/* The shortest chunk that takes `rest` tokens, or the longest there is. */
static int64_t chunk_length(const trd_generator *g, int64_t rest)
{
    int64_t most = smaller(g->options.prefill_chunk, g->options.length), length = LEAST_CHUNK;
    while (length < rest && length < most) length *= 2;
    return smaller(length, most);
}

trd_status trd__generator_prefill(trd_generator *g, const trd_prompt *prompts, int count)
{
    int64_t longest = 0;
    for (int i = 0; i < count; i++)
        if (prompts[i].count - 1 > longest) longest = prompts[i].count - 1;
    for (int64_t done = 0; done < longest;) {
        trd__feed *feed;
        TRD_TRY(trd__feed_get(g, chunk_length(g, longest - done), false, &feed));
        for (int row = 0; row < g->options.rows; row++) {
            int64_t rest = row < count ? prompts[row].count - 1 - done : 0;
            stage_row(g, feed, row, rest > 0 ? prompts[row].ids + done : NULL,
                      rest > 0 ? smaller(rest, feed->length) : 0);
        }
        TRD_TRY(trd__feed_run(g, feed));
        done += feed->length;
    }
    return TRD_OK;
}

trd_status trd__generator_step(trd_generator *g, const int32_t *tokens, const bool *active)
{
    trd__feed *feed;
    TRD_TRY(trd__feed_get(g, 1, true, &feed));
    for (int row = 0; row < g->options.rows; row++) stage_row(g, feed, row, &tokens[row], active[row]);
    TRD_TRY(trd__feed_run(g, feed));
    return g->backend->table->set_read(g->backend, g->results, 0, g->logits);
}
