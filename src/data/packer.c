/* Rows out of the window, which goes from epoch to epoch. See the header for the rule and the invariant. */
#include "data/packer.h"

#include <inttypes.h>

#include "base/alloc.h"
#include "data/window.h"

struct trd__packer {
    trd__packer_options options;
    trd__window *window;
    uint64_t epoch; /* of the window */
    uint64_t *row;  /* [row_length] samples of the row handed out */
};

static void start_epoch(trd__packer *packer, uint64_t epoch)
{
    packer->epoch = epoch;
    trd__window_start(packer->window, epoch);
}

static trd_status check(const trd__packer_options *options)
{
    if (options->count == 0 || options->row_length == 0 || options->window == 0)
        return trd__fail(
            TRD_INVALID_ARGUMENT,
            "packing: expected at least one sample, token per row and sample in the window, found "
            "%zu, %" PRIu32 " and %" PRIu32,
            options->count, options->row_length, options->window);
    for (size_t i = 0; i < options->count; i++)
        if (options->lengths[i] == 0 || options->lengths[i] > options->row_length)
            return trd__fail(TRD_INVALID_ARGUMENT,
                             "packing: expected samples of 1 to %" PRIu32
                             " tokens, found sample %zu with %" PRIu32,
                             options->row_length, i, options->lengths[i]);
    return TRD_OK;
}

trd_status trd__packer_create(const trd__packer_options *options, trd__packer **out)
{
    *out = NULL;
    TRD_TRY(check(options));
    trd__packer *packer = trd__calloc(1, sizeof *packer);
    if (!packer) return TRD_NO_MEMORY;
    packer->options = *options;
    if (packer->options.window > options->count) packer->options.window = (uint32_t)options->count;
    packer->row = trd__alloc(options->row_length, sizeof *packer->row);
    trd_status status = packer->row ? TRD_OK : TRD_NO_MEMORY;
    if (!status) status = trd__window_create(&packer->options, &packer->window);
    if (status) {
        trd__packer_free(packer);
        return status;
    }
    start_epoch(packer, 0);
    *out = packer;
    return TRD_OK;
}

void trd__packer_free(trd__packer *packer)
{
    if (!packer) return;
    trd__window_free(packer->window);
    trd__free(packer->row);
    trd__free(packer);
}

/* Moves on when an epoch is used up; false when that was the last one. */
static bool has_samples(trd__packer *packer)
{
    if (!trd__window_empty(packer->window)) return true;
    if (packer->options.epochs != 0 && packer->epoch + 1 >= packer->options.epochs) return false;
    start_epoch(packer, packer->epoch + 1);
    return true;
}

trd_status trd__packer_next(trd__packer *packer, const uint64_t **samples, size_t *count)
{
    if (!has_samples(packer)) return TRD_END;
    size_t used = 0;
    trd__window_take_oldest(packer->window, &packer->row[used++]);
    uint32_t room = packer->options.row_length - packer->options.lengths[packer->row[0]];
    while (packer->options.packing && room > 0 && has_samples(packer) &&
           trd__window_take_longest(packer->window, room, &packer->row[used]))
        room -= packer->options.lengths[packer->row[used++]];
    *samples = packer->row;
    *count = used;
    return TRD_OK;
}

trd_status trd__packer_seek(trd__packer *packer, uint64_t position)
{
    start_epoch(packer, 0);
    const uint64_t *samples;
    size_t count;
    for (uint64_t row = 0; row < position; row++)
        if (trd__packer_next(packer, &samples, &count) == TRD_END)
            return trd__fail(TRD_INVALID_ARGUMENT,
                             "seeking in the data: expected a position of at most %" PRIu64
                             " rows, found %" PRIu64 "; were the files or the epochs changed?",
                             row, position);
    return TRD_OK;
}

trd_status trd__packer_rows_per_epoch(const trd__packer_options *options, uint64_t *rows)
{
    trd__packer_options once = *options;
    once.epochs = 1;
    trd__packer *packer;
    *rows = 0;
    TRD_TRY(trd__packer_create(&once, &packer));
    const uint64_t *samples;
    size_t count;
    while (trd__packer_next(packer, &samples, &count) == TRD_OK) ++*rows;
    trd__packer_free(packer);
    return TRD_OK;
}
