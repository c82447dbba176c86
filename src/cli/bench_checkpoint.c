/* treadle bench checkpoint: the rate at which the state is saved, to the durable end, and restored from a
 * warm cache, checksums included. Every round trains a step first, so that there is something new to save.
 * Invariant: what it writes lies in a folder of its own, which is removed. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "checkpoint/store.h"
#include "cli/bench.h"

enum { MOST_ROUNDS = 1000 };

typedef struct checkpoint_bench {
    cli_run run;
    char *folder;
    int64_t rounds;
    bool json, lines; /* a round for each line of the standard input, told as JSON */
    int32_t *tokens;
    double *save_ms, *load_ms;
    uint64_t bytes; /* of a checkpoint */
} checkpoint_bench;

static trd_status start(checkpoint_bench *b, int words, char **argv)
{
    TRD_TRY(cli_bench_config(&b->run, words, argv));
    trd_engine_options *o = &b->run.options;
    b->folder = trd__format("%s/bench-checkpoint", b->run.folder);
    b->save_ms = trd__calloc((size_t)b->rounds, sizeof *b->save_ms);
    b->load_ms = trd__calloc((size_t)b->rounds, sizeof *b->load_ms);
    if (!b->folder || !b->save_ms || !b->load_ms) return TRD_NO_MEMORY;
    o->checkpoint_directory = b->folder;
    o->async_checkpointing = false;
    o->read_only_checkpoints = false;
    o->max_num_checkpoints_to_keep = 1;
    o->keep_period = 0;
    TRD_TRY(trd__remove_tree(b->folder));
    TRD_TRY(trd_engine_create(o, &b->run.engine));
    return cli_bench_tokens(&b->run, 1, &b->tokens);
}

static trd_status one_step(const checkpoint_bench *b)
{
    const trd_engine_options *o = &b->run.options;
    trd_batch batch = {.rows = o->rows, .length = o->length, .token_ids = b->tokens};
    for (int i = 0; i < o->gradient_accumulation_steps; i++)
        TRD_TRY(trd_engine_fwd_bwd(b->run.engine, &batch));
    TRD_TRY(trd_engine_update(b->run.engine));
    return trd_engine_wait(b->run.engine);
}

/* Finding the newest intact checkpoint reads all of it, which is what warms the cache. */
static trd_status find_saved(checkpoint_bench *b)
{
    trd__stored_size size;
    char *path;
    TRD_TRY(trd__store_newest_path(b->folder, &path));
    trd_status status =
        path ? trd__stored_measure(path, &size) : trd__fail(TRD_INTERNAL, "nothing was saved");
    if (!status) b->bytes = size.bytes;
    trd__free(path);
    return status;
}

static trd_status one_round(checkpoint_bench *b, double *save_ms, double *load_ms)
{
    TRD_TRY(one_step(b));
    uint64_t begin = trd__now_ns();
    TRD_TRY(trd_engine_save(b->run.engine, NULL, true, NULL));
    *save_ms = 1e-6 * (double)(trd__now_ns() - begin);
    TRD_TRY(find_saved(b));
    begin = trd__now_ns();
    TRD_TRY(trd_engine_restore(b->run.engine, -1, NULL));
    *load_ms = 1e-6 * (double)(trd__now_ns() - begin);
    return TRD_OK;
}

static double rate(const checkpoint_bench *b, double ms)
{
    return 1e-6 * (double)b->bytes / ms;
}

static trd_status print_json(const checkpoint_bench *b, double save_ms, double load_ms)
{
    trd__json_writer w = {0};
    trd__json_open_object(&w);
    trd__json_put_f64(&w, "save_ms", save_ms);
    trd__json_put_f64(&w, "load_ms", load_ms);
    trd__json_put_f64(&w, "save_gb_per_s", rate(b, save_ms));
    trd__json_put_f64(&w, "load_gb_per_s", rate(b, load_ms));
    trd__json_put_i64(&w, "bytes", (int64_t)b->bytes);
    trd__json_close(&w);
    trd_status status = cli_print_json(&w);
    fflush(stdout);
    return status;
}

static trd_status answer_lines(checkpoint_bench *b)
{
    TRD_TRY(print_json(b, *b->save_ms, *b->load_ms));
    for (int c = 0; (c = getchar()) != EOF;) {
        if (c != '\n') continue;
        TRD_TRY(one_round(b, b->save_ms, b->load_ms));
        TRD_TRY(print_json(b, *b->save_ms, *b->load_ms));
    }
    return TRD_OK;
}

static trd_status run_rounds(checkpoint_bench *b)
{
    TRD_TRY(one_round(b, b->save_ms, b->load_ms)); /* the first round makes the memory's pages */
    if (b->lines) return answer_lines(b);
    for (int64_t i = 0; i < b->rounds; i++) TRD_TRY(one_round(b, &b->save_ms[i], &b->load_ms[i]));
    double save_ms = cli_quantile(b->save_ms, b->rounds, 0.5),
           load_ms = cli_quantile(b->load_ms, b->rounds, 0.5);
    if (b->json) return print_json(b, save_ms, load_ms);
    printf("save  %.0f ms, %.2f GB/s (median of %lld, to the durable end, checksums included)\n"
           "load  %.0f ms, %.2f GB/s (from a warm cache, every checksum verified)\n"
           "size  %s\n",
           save_ms, rate(b, save_ms), (long long)b->rounds, load_ms, rate(b, load_ms), cli_bytes(b->bytes));
    return TRD_OK;
}

int cli_bench_checkpoint(int argc, char **argv)
{
    checkpoint_bench b = {.rounds = 3};
    const cli_option options[] = {
        {.name = "--json", .kind = CLI_FLAG, .target = &b.json},
        {.name = "--lines", .kind = CLI_FLAG, .target = &b.lines},
        {.name = "--rounds", .kind = CLI_INT, .target = &b.rounds, .min = 1, .max = MOST_ROUNDS},
        {0}};
    int words, code = cli_parse(&cli_command_bench, options, argc, argv, &words);
    if (code) return code;
    if (!words) return cli_usage_error(&cli_command_bench, "checkpoint: needs a config file");
    trd_status status = start(&b, words, argv);
    if (!status) status = run_rounds(&b);
    if (status) code = cli_fail();
    b.run.options.checkpoint_directory = NULL;
    if (cli_run_close(&b.run) && !code) code = cli_fail();
    if (b.folder && trd__remove_tree(b.folder) && !code) code = cli_fail();
    trd__free(b.tokens);
    trd__free(b.load_ms);
    trd__free(b.save_ms);
    trd__free(b.folder);
    return code;
}
