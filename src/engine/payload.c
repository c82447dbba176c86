/* From a caller's batch to an input set: checks everything before anything changes, derives segments and
 * positions, zeroes weights where nothing is predicted, pads to the compiled rows, copies. Invariant: what a
 * graph sees has weight 0 on padding and on each segment's first token, so every loss and denominator agrees.
 */
#include <math.h>
#include <string.h>

#include "base/shape.h"
#include "engine/internal.h"

const char *const trd__input_names[TRD__INPUT_COUNT] = {
#define INPUT_NAME(name, text) text,
    TRD__INPUT_LIST(INPUT_NAME)
#undef INPUT_NAME
};

static trd_status check_extra(const trd_batch *batch, int i)
{
    const trd_array *extra = &batch->extras[i];
    if (!extra->name || !extra->data)
        return trd__fail(TRD_INVALID_ARGUMENT,
                         "checking the payload: extra array %d expected a name and data, found %s", i,
                         extra->name ? "no data" : "no name");
    for (int k = 0; k < TRD__INPUT_COUNT; k++)
        if (strcmp(extra->name, trd__input_names[k]) == 0)
            return trd__fail(TRD_INVALID_ARGUMENT,
                             "checking the payload: extra array \"%s\" has the name of a standard input; "
                             "use the batch's own field",
                             extra->name);
    for (int k = 0; k < i; k++)
        if (strcmp(extra->name, batch->extras[k].name) == 0)
            return trd__fail(TRD_INVALID_ARGUMENT, "checking the payload: extra array \"%s\" appears twice",
                             extra->name);
    if (trd__shape_count(&extra->shape) < 0)
        return trd__fail(TRD_SHAPE, "checking the payload: extra array \"%s\" has a bad shape", extra->name);
    return TRD_OK;
}

static trd_status check_size(const trd_engine *engine, const trd_batch *batch)
{
    const trd_engine_options *o = &engine->options;
    if (!batch->token_ids)
        return trd__fail(TRD_INVALID_ARGUMENT,
                         "checking the payload: token_ids expected an array, found NULL");
    if (batch->rows < 1 || batch->rows > o->rows)
        return trd__fail(TRD_SHAPE,
                         "checking the payload: expected 1 to %d rows (micro_batch_size_to_train_on), found "
                         "%d; split the batch or raise the key",
                         o->rows, batch->rows);
    if (batch->length < 1 || batch->length > o->length)
        return trd__fail(TRD_SHAPE,
                         "checking the payload: expected rows of 1 to %d tokens (max_target_length), found "
                         "%d; cut the rows or raise the key",
                         o->length, batch->length);
    if (batch->position > TRD__MOST_WHOLE)
        return trd__fail(TRD_INVALID_ARGUMENT,
                         "checking the payload: position expected at most %lld, found %llu",
                         (long long)TRD__MOST_WHOLE, (unsigned long long)batch->position);
    if (batch->extra_count < 0 || batch->extra_count > TRD__MAX_EXTRAS)
        return trd__fail(TRD_INVALID_ARGUMENT,
                         "checking the payload: expected at most %d extra arrays, found %d", TRD__MAX_EXTRAS,
                         batch->extra_count);
    return TRD_OK;
}

trd_status trd__payload_check(const trd_engine *engine, const trd_batch *batch)
{
    int64_t vocab = engine->model->info.vocab;
    if (!batch) return trd__fail(TRD_INVALID_ARGUMENT, "checking the payload: expected a batch, found NULL");
    TRD_TRY(check_size(engine, batch));
    for (int i = 0; i < batch->extra_count; i++) TRD_TRY(check_extra(batch, i));
    for (int r = 0; r < batch->rows; r++)
        for (int t = 0; t < batch->length; t++) {
            size_t i = (size_t)r * (size_t)batch->length + (size_t)t;
            if (batch->token_ids[i] < 0 || batch->token_ids[i] >= vocab)
                return trd__fail(TRD_INVALID_ARGUMENT,
                                 "checking the payload: token id at row %d, position %d expected 0 to %lld, "
                                 "found %d; does the model's vocab_size cover the tokenizer?",
                                 r, t, (long long)vocab - 1, (int)batch->token_ids[i]);
            if (batch->loss_weights && !isfinite(batch->loss_weights[i]))
                return trd__fail(TRD_INVALID_ARGUMENT,
                                 "checking the payload: loss weight at row %d, position %d expected a finite "
                                 "number, found %g",
                                 r, t, (double)batch->loss_weights[i]);
        }
    return TRD_OK;
}

static int32_t segment_of(const trd_batch *batch, size_t i)
{
    if (batch->segment_ids) return batch->segment_ids[i];
    if (batch->token_mask) return batch->token_mask[i] != 0;
    return 1;
}

/* A run that begins at t with segment id must not have been seen earlier in the row. Ids mostly rise, so the
 * search is for the others. */
static trd_status check_new_run(const int32_t *row, int r, int t, int32_t *highest)
{
    int32_t id = row[t];
    if (id < 0)
        return trd__fail(TRD_INVALID_ARGUMENT,
                         "checking the payload: segment id at row %d, position %d expected 0 or more, found "
                         "%d",
                         r, t, (int)id);
    if (id > *highest) {
        *highest = id;
        return TRD_OK;
    }
    for (int k = 0; k < t && id != 0; k++)
        if (row[k] == id)
            return trd__fail(
                TRD_INVALID_ARGUMENT,
                "checking the payload: segments expected contiguous runs, found segment %d again "
                "at row %d, position %d (first at position %d)",
                (int)id, r, t, k);
    return TRD_OK;
}

static trd_status stage_row(const trd_batch *batch, trd__family *family, int r, trd__payload_counts *counts)
{
    size_t length = (size_t)batch->length, base = (size_t)r * length;
    int32_t *segments = family->segments + base, *positions = family->positions + base;
    int32_t highest = 0;
    memcpy(family->tokens + base, batch->token_ids + base, length * sizeof *family->tokens);
    for (size_t t = 0; t < length; t++) {
        segments[t] = segment_of(batch, base + t);
        bool begins = t == 0 || segments[t] != segments[t - 1];
        if (begins) TRD_TRY(check_new_run(segments, r, (int)t, &highest));
        bool padding = segments[t] == 0;
        positions[t] = begins || padding ? 0 : positions[t - 1] + 1;
        float weight = batch->loss_weights ? batch->loss_weights[base + t] : 1.0f;
        family->weights[base + t] = begins || padding ? 0.0f : weight;
        counts->tokens += !padding;
        counts->weighted_rows += !begins && !padding && weight != 0.0f;
    }
    return TRD_OK;
}

static void clear_rows(trd__family *family, int from, int to)
{
    size_t begin = (size_t)from * (size_t)family->length;
    size_t count = (size_t)(to - from) * (size_t)family->length;
    memset(family->tokens + begin, 0, count * sizeof *family->tokens);
    memset(family->segments + begin, 0, count * sizeof *family->segments);
    memset(family->positions + begin, 0, count * sizeof *family->positions);
    memset(family->weights + begin, 0, count * sizeof *family->weights);
}

trd_status trd__payload_stage(const trd_engine *engine, const trd_batch *batch, trd__family *family,
                              trd__payload_counts *counts)
{
    *counts = (trd__payload_counts){0};
    for (int r = 0; r < batch->rows; r++) TRD_TRY(stage_row(batch, family, r, counts));
    clear_rows(family, batch->rows, engine->options.rows);
    for (int i = 0; i < batch->extra_count; i++) {
        const trd__entry *entry = &family->inputs.entries[TRD__INPUT_COUNT + i];
        size_t size = trd_dtype_bytes(entry->dtype);
        size_t given = (size_t)trd__shape_count(&batch->extras[i].shape) * size;
        size_t all = (size_t)trd__shape_count(&entry->shape) * size;
        memcpy(family->extra[i], batch->extras[i].data, given);
        memset((char *)family->extra[i] + given, 0, all - given);
    }
    return TRD_OK;
}

trd_status trd__payload_write(trd_engine *engine, const trd__family *family, trd__set *set)
{
    const trd__backend_table *table = engine->backend->table;
    const void *const data[TRD__INPUT_COUNT] = {family->tokens, family->segments, family->positions,
                                                family->weights};
    for (int i = 0; i < family->inputs.count; i++) {
        const void *from = i < TRD__INPUT_COUNT ? data[i] : family->extra[i - TRD__INPUT_COUNT];
        TRD_TRY(table->set_write(engine->backend, set, i, from));
    }
    return TRD_OK;
}
