/* The loop: prompts in groups of the generator's rows, one token a row and step, until every row has ended.
 * Invariant: what a prompt gives depends on its own tokens, the options and its number, not on its group. */
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "generate/generator.h"
#include "generate/sample.h"

trd_generate_options trd_generate_defaults(void)
{
    return (trd_generate_options){.sampling = {.top_p = 1}, .max_tokens = 128};
}

void trd_generated_free(trd_generated *result)
{
    trd__free(result->ids);
    *result = (trd_generated){0};
}

static trd_status check_prompt(const trd_generator *g, const trd_prompt *prompt, int64_t number,
                               int64_t max_tokens)
{
    int64_t vocab = g->model->info.vocab;
    if (prompt->count < 1)
        return trd__fail(TRD_INVALID_ARGUMENT,
                         "generating: prompt %lld is empty; give it at least one token (the BOS token, if "
                         "the model has one)",
                         (long long)number);
    /* The last new token is never fed back, so it needs no place. */
    if (prompt->count > g->options.length || max_tokens - 1 > g->options.length - prompt->count)
        return trd__fail(TRD_INVALID_ARGUMENT,
                         "generating: prompt %lld has %lld tokens, which with %lld new ones is more than the "
                         "%lld that fit (the model has %lld positions)",
                         (long long)number, (long long)prompt->count, (long long)max_tokens,
                         (long long)g->options.length + 1, (long long)g->model->info.max_positions);
    for (int64_t i = 0; i < prompt->count; i++)
        if (prompt->ids[i] < 0 || prompt->ids[i] >= vocab)
            return trd__fail(TRD_INVALID_ARGUMENT,
                             "generating: prompt %lld, token %lld: expected an id from 0 to %lld, found %d",
                             (long long)number, (long long)i, (long long)vocab - 1, prompt->ids[i]);
    return TRD_OK;
}

static trd_status check(const trd_generator *g, const trd_prompt *prompts, int64_t count,
                        const trd_generate_options *o)
{
    TRD_TRY(trd__sampling_check(&o->sampling));
    if (o->max_tokens < 1)
        return trd__fail(TRD_INVALID_ARGUMENT, "generating: max_tokens expected 1 or more, found %lld",
                         (long long)o->max_tokens);
    for (int64_t i = 0; i < count; i++) TRD_TRY(check_prompt(g, &prompts[i], i, o->max_tokens));
    return TRD_OK;
}

/* A group of prompts on the generator's rows. */
typedef struct row_group {
    trd_generator *generator;
    const trd_generate_options *options;
    const trd_prompt *prompts;
    trd_generated *results;
    int64_t first; /* number of row 0's prompt */
    int count;
    int32_t *tokens; /* (B): what each row is fed next */
    bool *active;    /* (B) */
} row_group;

static bool is_stop(const trd_generate_options *o, int32_t token)
{
    for (int i = 0; i < o->stop_count; i++)
        if (o->stop_ids[i] == token) return true;
    return false;
}

/* Takes one row's next token from its logits. */
static trd_status advance(row_group *group, int row)
{
    const trd_generate_options *o = group->options;
    trd_generator *g = group->generator;
    trd_generated *result = &group->results[row];
    int64_t vocab = g->model->info.vocab;
    int32_t token;
    TRD_TRY(trd__sample(&o->sampling, g->logits + row * vocab, vocab, (uint64_t)(group->first + row),
                        (uint64_t)result->count, g->candidates, &token));
    result->ids[result->count++] = token;
    group->tokens[row] = token;
    bool wanted = !o->on_token || o->on_token(o->user, group->first + row, token);
    result->finish = is_stop(o, token) ? TRD_FINISH_STOP : wanted ? TRD_FINISH_LENGTH : TRD_FINISH_CANCELLED;
    group->active[row] = result->finish == TRD_FINISH_LENGTH && result->count < o->max_tokens;
    return TRD_OK;
}

static bool any_active(const row_group *group)
{
    for (int row = 0; row < group->count; row++)
        if (group->active[row]) return true;
    return false;
}

static trd_status run_group(row_group *group, trd_generate_stats *stats)
{
    trd_generator *g = group->generator;
    memset(group->tokens, 0, (size_t)g->options.rows * sizeof *group->tokens);
    memset(group->active, 0, (size_t)g->options.rows * sizeof *group->active);
    for (int row = 0; row < group->count; row++) {
        group->tokens[row] = group->prompts[row].ids[group->prompts[row].count - 1];
        group->active[row] = true;
        stats->prompt_tokens += group->prompts[row].count;
    }
    uint64_t begin = trd__now_ns();
    trd__generator_clear(g);
    TRD_TRY(trd__generator_prefill(g, group->prompts, group->count));
    TRD_TRY(g->backend->table->drain(g->backend));
    uint64_t filled = trd__now_ns();
    stats->prefill_ns += filled - begin;
    while (any_active(group)) {
        TRD_TRY(trd__generator_step(g, group->tokens, group->active));
        for (int row = 0; row < group->count; row++) {
            if (!group->active[row]) continue;
            TRD_TRY(advance(group, row));
            stats->generated_tokens++;
        }
    }
    stats->decode_ns += trd__now_ns() - filled;
    return TRD_OK;
}

static trd_status run(row_group *group, const trd_prompt *prompts, int64_t count, trd_generated *results,
                      trd_generate_stats *stats)
{
    int rows = group->generator->options.rows;
    for (int64_t i = 0; i < count; i++) {
        results[i].ids = trd__alloc((size_t)group->options->max_tokens, sizeof *results[i].ids);
        if (!results[i].ids) return TRD_NO_MEMORY;
    }
    for (int64_t first = 0; first < count; first += rows) {
        group->first = first;
        group->count = count - first < rows ? (int)(count - first) : rows;
        group->prompts = prompts + first;
        group->results = results + first;
        TRD_TRY(run_group(group, stats));
    }
    return TRD_OK;
}

trd_status trd_generate(trd_generator *g, const trd_prompt *prompts, int64_t count,
                        const trd_generate_options *options, trd_generated *results,
                        trd_generate_stats *stats)
{
    trd_generate_stats own = {0};
    for (int64_t i = 0; i < count; i++) results[i] = (trd_generated){0};
    TRD_TRY(check(g, prompts, count, options));
    row_group group = {.generator = g, .options = options};
    group.tokens = trd__alloc((size_t)g->options.rows, sizeof *group.tokens);
    group.active = trd__alloc((size_t)g->options.rows, sizeof *group.active);
    trd_status status =
        group.tokens && group.active ? run(&group, prompts, count, results, &own) : TRD_NO_MEMORY;
    trd__free(group.active);
    trd__free(group.tokens);
    for (int64_t i = 0; status && i < count; i++) trd_generated_free(&results[i]);
    if (stats) *stats = own;
    return status;
}
