/* treadle bench checkpoint: the rate at which the state is saved, to the durable end, and restored from a
 * warm cache, checksums included. Every round is another step's checkpoint of the same parameters.
 * Invariant: what it writes lies in a folder of its own, which is removed. */
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/shape.h"
#include "checkpoint/store.h"
#include "cli/bench.h"

enum { MOST_ROUNDS = 1000 };

typedef struct checkpoint_bench {
    cli_run run;
    char *folder;
    int64_t rounds;
    bool json, lines; /* a round for each line of the standard input, told as JSON */
    double *save_ms, *load_ms;
    uint64_t bytes; /* of a checkpoint */
    uint32_t *words;
    int64_t parameter_bytes, parameter_sum; /* of all parameters, after the last restore */
} checkpoint_bench;

static size_t parameter_bytes(trd_view params, int i)
{
    trd_array array = trd_view_describe(params, i);
    return trd__tensor_bytes(&array.shape, array.dtype);
}

static size_t word_count(size_t bytes)
{
    return (bytes + sizeof(uint32_t) - 1) / sizeof(uint32_t);
}

static trd_status make_words(checkpoint_bench *b)
{
    trd_view params = trd_engine_params(b->run.engine);
    size_t most = 0;
    for (int i = 0; i < trd_view_count(params); i++) {
        size_t bytes = parameter_bytes(params, i);
        b->parameter_bytes += (int64_t)bytes;
        if (bytes > most) most = bytes;
    }
    b->words = trd__calloc(word_count(most) + 1, sizeof *b->words);
    return b->words ? TRD_OK : TRD_NO_MEMORY;
}

static trd_status start(checkpoint_bench *b, int words, char **argv)
{
    TRD_TRY(cli_bench_config(&b->run, words, argv));
    trd_engine_options *o = &b->run.options;
    b->folder = trd__format("%s/bench-checkpoint-%ld", b->run.folder, (long)getpid());
    b->save_ms = trd__calloc((size_t)b->rounds, sizeof *b->save_ms);
    b->load_ms = trd__calloc((size_t)b->rounds, sizeof *b->load_ms);
    if (!b->folder || !b->save_ms || !b->load_ms) return TRD_NO_MEMORY;
    o->checkpoint_directory = b->folder;
    o->async_checkpointing = false;
    o->read_only_checkpoints = false;
    o->max_num_checkpoints_to_keep = 1;
    o->keep_period = 0;
    TRD_TRY(trd__make_directories(b->run.folder));
    TRD_TRY(trd__remove_tree(b->folder));
    TRD_TRY(trd_engine_create(o, &b->run.engine));
    return make_words(b);
}

/* Zeros, so that what is there after a restore came from the file. */
static trd_status clear_parameters(checkpoint_bench *b)
{
    trd_view params = trd_engine_params(b->run.engine);
    for (int i = 0; i < trd_view_count(params); i++) {
        memset(b->words, 0, parameter_bytes(params, i));
        TRD_TRY(trd_view_write(params, i, b->words));
    }
    return TRD_OK;
}

/* The sum of the parameters' 32-bit words: a program that is to have the same ones can form it too. */
static trd_status sum_parameters(checkpoint_bench *b)
{
    trd_view params = trd_engine_params(b->run.engine);
    b->parameter_sum = 0;
    for (int i = 0; i < trd_view_count(params); i++) {
        size_t count = word_count(parameter_bytes(params, i));
        if (count) b->words[count - 1] = 0;
        TRD_TRY(trd_view_read(params, i, b->words));
        for (size_t w = 0; w < count; w++) b->parameter_sum += b->words[w];
    }
    return TRD_OK;
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
    TRD_TRY(trd_engine_set_step(b->run.engine, trd_engine_step(b->run.engine) + 1));
    uint64_t begin = trd__now_ns();
    TRD_TRY(trd_engine_save(b->run.engine, NULL, true, NULL));
    *save_ms = 1e-6 * (double)(trd__now_ns() - begin);
    TRD_TRY(find_saved(b));
    TRD_TRY(clear_parameters(b));
    begin = trd__now_ns();
    TRD_TRY(trd_engine_restore(b->run.engine, -1, NULL));
    *load_ms = 1e-6 * (double)(trd__now_ns() - begin);
    return sum_parameters(b);
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
    trd__json_put_i64(&w, "parameter_bytes", b->parameter_bytes);
    trd__json_put_i64(&w, "parameter_sum", b->parameter_sum);
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
    enum { ROUNDS = 3 };
    checkpoint_bench b = {.rounds = 0};
    const cli_option options[] = {
        {.name = "--json", .kind = CLI_FLAG, .target = &b.json},
        {.name = "--lines", .kind = CLI_FLAG, .target = &b.lines},
        {.name = "--rounds", .kind = CLI_INT, .target = &b.rounds, .min = 1, .max = MOST_ROUNDS},
        {0}};
    int words, code = cli_parse(&cli_command_bench, options, argc, argv, &words);
    if (code) return code;
    if (!words) return cli_usage_error(&cli_command_bench, "checkpoint: needs a config file");
    if (b.lines && (b.rounds || b.json))
        return cli_usage_error(&cli_command_bench, "checkpoint: --lines takes neither --rounds nor --json");
    if (!b.rounds) b.rounds = ROUNDS;
    trd_status status = start(&b, words, argv);
    if (!status) status = run_rounds(&b);
    if (status) code = cli_fail();
    b.run.options.checkpoint_directory = NULL;
    if (cli_run_close(&b.run) && !code) code = cli_fail();
    if (b.folder && trd__remove_tree(b.folder) && !code) code = cli_fail();
    trd__free(b.words);
    trd__free(b.load_ms);
    trd__free(b.save_ms);
    trd__free(b.folder);
    return code;
}
