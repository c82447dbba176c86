/* The programs of generation: the model's forward pass over a key-value cache that is updated in place. */
#include <string.h>

#include "base/shape.h"
#include "generate/generator.h"

static trd__entry entry(const char *name, trd_dtype dtype, trd_shape shape)
{
    return (trd__entry){.name = name, .dtype = dtype, .shape = shape};
}

static void feed_layout(const trd_generator *g, int64_t length, trd__entry *entries)
{
    trd_shape tokens = TRD__SHAPE(g->options.rows, length);
    entries[TRD__FEED_TOKENS] = entry("token_ids", TRD_I32, tokens);
    entries[TRD__FEED_SEGMENTS] = entry("segment_ids", TRD_I32, tokens);
    entries[TRD__FEED_POSITIONS] = entry("positions", TRD_I32, tokens);
    entries[TRD__FEED_START] = entry("start", TRD_I32, TRD__SHAPE(g->options.rows));
}

/* Slots of every program, in this order. */
enum { SLOT_PARAMS, SLOT_CACHE, SLOT_INPUTS, SLOT_RESULTS };

static trd_status bind(const trd_generator *g, const trd__entry *inputs, bool logits, trd__program *p)
{
    const struct {
        const char *name;
        trd__access access;
        const trd__entry *entries;
        int count;
    } slots[] = {[SLOT_PARAMS] = {"params", TRD__READ, g->params->entries, g->params->entry_count},
                 [SLOT_CACHE] = {"cache", TRD__UPDATE, g->cache->entries, g->cache->entry_count},
                 [SLOT_INPUTS] = {"inputs", TRD__READ, inputs, TRD__FEED_COUNT},
                 [SLOT_RESULTS] = {"results", TRD__WRITE, g->results->entries, g->results->entry_count}};
    for (int s = SLOT_PARAMS; s <= (logits ? SLOT_RESULTS : SLOT_INPUTS); s++)
        if (trd__program_slot(p, slots[s].name, slots[s].access, slots[s].entries, slots[s].count) < 0) break;
    return trd_builder_status(p->builder);
}

/* Logits of the one token a row: (B, 1, C) -> (B, V) float32. */
static trd_value head(trd_builder *b, const trd_model *model, const trd_inputs *in, trd_value hidden)
{
    trd_shape shape = trd_value_shape(hidden);
    if (trd_is_null(hidden)) return hidden;
    trd_value rows = trd_reshape(b, hidden, TRD__SHAPE(shape.dim[0], shape.dim[2]));
    return trd_matmul(b, rows, model->type->head(b, model, in), false, true, TRD_F32);
}

static trd_status trace(const trd_generator *g, bool logits, trd__program *p)
{
    trd_builder *b = p->builder;
    const trd_model *model = g->model;
    int layers = (int)model->info.layers;
    trd_value *parameters =
        trd__arena_alloc(b->graph.arena, (size_t)model->parameter_count + 1, sizeof *parameters);
    trd_value *stacks = trd__arena_alloc(b->graph.arena, (size_t)model->stack_count + 1, sizeof *stacks);
    trd_value *cached = trd__arena_alloc(b->graph.arena, 2 * (size_t)layers + 1, sizeof *cached);
    if (!parameters || !stacks || !cached) return TRD_NO_MEMORY;
    for (int i = 0; i < model->stack_count; i++) stacks[i] = trd__program_input(p, SLOT_PARAMS, i);
    trd__model_unstack(b, model, stacks, true, parameters); /* each layer has a cache of its own */
    for (int i = 0; i < 2 * layers; i++) cached[i] = trd__program_input(p, SLOT_CACHE, i);
    trd_value inputs[TRD__FEED_COUNT];
    for (int i = 0; i < TRD__FEED_COUNT; i++) inputs[i] = trd__program_input(p, SLOT_INPUTS, i);
    const trd__named_value named[] = {{"token_ids", inputs[TRD__FEED_TOKENS]},
                                      {"segment_ids", inputs[TRD__FEED_SEGMENTS]},
                                      {"positions", inputs[TRD__FEED_POSITIONS]}};
    trd__cache cache = {.keys = cached, .values = cached + layers, .start = inputs[TRD__FEED_START]};
    const trd_inputs in = {.dtype = g->options.dtype,
                           .parameters = parameters,
                           .named = named,
                           .named_count = sizeof named / sizeof *named,
                           .rows = {.segments = inputs[TRD__FEED_SEGMENTS],
                                    .positions = inputs[TRD__FEED_POSITIONS],
                                    .cached = true},
                           .cache = &cache};
    trd_value hidden = trd_model_hidden(b, model, &in);
    for (int i = 0; i < 2 * layers; i++) trd__program_output(p, SLOT_CACHE, i, cached[i]);
    if (logits) trd__program_output(p, SLOT_RESULTS, 0, head(b, model, &in, hidden));
    return trd_builder_status(b);
}

static trd_status compile(trd_generator *g, trd__feed *feed)
{
    const trd__backend_table *table = g->backend->table;
    trd__entry inputs[TRD__FEED_COUNT];
    feed_layout(g, feed->length, inputs);
    TRD_TRY(table->set_create(g->backend, "inputs", inputs, TRD__FEED_COUNT, &feed->inputs));
    trd__program *program;
    TRD_TRY(trd__program_create(feed->logits ? "decode" : "prefill", &program));
    trd_status status = bind(g, inputs, feed->logits, program);
    if (!status) status = trace(g, feed->logits, program);
    if (!status) status = table->compile(g->backend, program, NULL, &feed->executable);
    trd__program_free(program);
    return status;
}

static trd_status create(trd_generator *g, trd__feed *feed)
{
    size_t count = (size_t)g->options.rows * (size_t)feed->length;
    int32_t **staging[] = {&feed->tokens, &feed->segments, &feed->positions};
    for (size_t i = 0; i < sizeof staging / sizeof *staging; i++) {
        *staging[i] = trd__arena_alloc(g->arena, count, sizeof **staging[i]);
        if (!*staging[i]) return TRD_NO_MEMORY;
    }
    return compile(g, feed);
}

trd_status trd__feed_get(trd_generator *g, int64_t length, bool logits, trd__feed **found)
{
    for (int i = 0; i < g->feed_count; i++) {
        *found = &g->feeds[i];
        if ((*found)->length == length && (*found)->logits == logits) return TRD_OK;
    }
    if (g->feed_count == TRD__MOST_CHUNKS)
        return trd__fail(TRD_INTERNAL, "generating: expected at most %d lengths of chunks", TRD__MOST_CHUNKS);
    trd__feed *feed = *found = &g->feeds[g->feed_count];
    *feed = (trd__feed){.length = length, .logits = logits};
    trd_status status = create(g, feed);
    if (!status) {
        g->feed_count++;
        return TRD_OK;
    }
    if (feed->inputs) g->backend->table->set_free(g->backend, feed->inputs);
    return status;
}

trd_status trd__feed_run(trd_generator *g, trd__feed *feed)
{
    const trd__backend_table *table = g->backend->table;
    const void *staging[TRD__FEED_COUNT] = {[TRD__FEED_TOKENS] = feed->tokens,
                                            [TRD__FEED_SEGMENTS] = feed->segments,
                                            [TRD__FEED_POSITIONS] = feed->positions,
                                            [TRD__FEED_START] = g->start};
    for (int i = 0; i < TRD__FEED_COUNT; i++)
        TRD_TRY(table->set_write(g->backend, feed->inputs, i, staging[i]));
    trd__set *const sets[] = {[SLOT_PARAMS] = g->params,
                              [SLOT_CACHE] = g->cache,
                              [SLOT_INPUTS] = feed->inputs,
                              [SLOT_RESULTS] = g->results};
    return table->execute(g->backend, feed->executable, sets, NULL);
}
