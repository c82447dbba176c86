/* treadle generate: text from a model or from a run's newest checkpoint. */
#include <string.h>
#include <unistd.h>

#include <treadle/treadle.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/status.h"
#include "checkpoint/store.h"
#include "cli/cli.h"
#include "cli/generate_prompts.h"

enum { MOST_ROWS = 32, MOST_STOP_IDS = 8 };

/* Everything a run of the command opens. */
typedef struct session {
    cli_generate_options options;
    trd_sampling sampling;
    trd_config *config; /* NULL: a model's path was given */
    trd_engine *engine; /* only for random starting weights */
    trd_generator *generator;
    trd_tokenizer *own_tokenizer;
    const trd_tokenizer *tokenizer; /* NULL: none beside the weights, token ids only */
    cli_prompts prompts;
    trd_generated *results;
    trd_generate_stats stats;
    bool stream;
    char tail[4]; /* bytes of a character that is not complete yet */
    size_t tail_bytes;
} session;

static bool is_config(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot && (!strcmp(dot, ".yml") || !strcmp(dot, ".yaml"));
}

/* Where the weights are: a run's newest checkpoint, or what it starts from. *path NULL: random weights. */
static trd_status find_weights(session *s, char **newest, const char **path)
{
    *newest = NULL;
    *path = s->options.model;
    if (!s->config) return TRD_OK;
    const trd_engine_options *engine = trd_config_engine(s->config);
    if (engine->checkpoint_directory) TRD_TRY(trd__store_newest_path(engine->checkpoint_directory, newest));
    *path = *newest ? *newest : engine->load_parameters_path;
    if (!*newest) cli_say_start("generating with", *path);
    return TRD_OK;
}

static trd_status open_generator(session *s)
{
    trd_generator_options o = trd_generator_defaults();
    o.rows = s->prompts.count < MOST_ROWS ? (int)s->prompts.count : MOST_ROWS;
    o.length = cli_prompts_longest(&s->prompts) + s->options.max_tokens;
    o.num_threads = (int)s->options.threads;
    o.log = cli_log;
    TRD_TRY(trd_dtype_parse(s->options.dtype, &o.dtype));
    char *newest;
    const char *path;
    TRD_TRY(find_weights(s, &newest, &path));
    if (path) {
        trd_status status = trd_generator_open(path, &o, &s->generator);
        trd_text_free(newest);
        return status;
    }
    trd_engine_options engine = *trd_config_engine(s->config);
    engine.checkpoint_directory = NULL;
    engine.weight_dtype = o.dtype;
    engine.num_threads = o.num_threads;
    TRD_TRY(trd_engine_create(&engine, &s->engine));
    return trd_generator_from_engine(s->engine, &o, &s->generator);
}

static trd_status open_tokenizer(session *s)
{
    trd_status status;
    if (s->config && !s->options.tokenizer) {
        status = trd_config_tokenizer(s->config, &s->tokenizer);
    } else {
        const char *path = s->options.tokenizer ? s->options.tokenizer : s->options.model;
        status = trd_tokenizer_open(path, &s->own_tokenizer);
        s->tokenizer = s->own_tokenizer;
    }
    if (!status || (s->options.ids && !s->options.tokenizer)) return TRD_OK;
    return s->options.tokenizer
               ? status
               : trd__fail_in(status, "give --tokenizer PATH, or --ids, or a run's config.yml");
}

/* The ends of a text and of a turn, wherever they are said: config.json, tokenizer, chat template. */
static int stop_ids(const session *s, int32_t *ids)
{
    static const char *const turn_ends[] = {"<|im_end|>", "<|eot_id|>", "<|eom_id|>"};
    int count = 0;
    int32_t model = trd_model_describe(trd_generator_model(s->generator)).eos;
    if (model >= 0) ids[count++] = model;
    if (!s->tokenizer) return count;
    int32_t own = trd_tokenizer_eos(s->tokenizer);
    if (own >= 0) ids[count++] = own;
    for (size_t i = 0; i < sizeof turn_ends / sizeof *turn_ends; i++) {
        int32_t id = trd_tokenizer_id(s->tokenizer, turn_ends[i]);
        if (id >= 0) ids[count++] = id;
    }
    return count;
}

/* Bytes of text up to the last complete UTF-8 character. */
static size_t complete_bytes(const char *text, size_t bytes)
{
    for (size_t back = 1; back <= 3 && back <= bytes; back++) {
        unsigned char c = (unsigned char)text[bytes - back];
        if ((c & 0xc0) == 0x80) continue;
        size_t length = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : c >= 0xc0 ? 2 : 1;
        return length > back ? bytes - back : bytes;
    }
    return bytes;
}

static void print_piece(session *s, const char *piece, size_t bytes)
{
    char text[256];
    if (s->tail_bytes + bytes > sizeof text) { /* a long token: whole characters by construction */
        fwrite(s->tail, 1, s->tail_bytes, stdout);
        fwrite(piece, 1, bytes, stdout);
        s->tail_bytes = 0;
        return;
    }
    memcpy(text, s->tail, s->tail_bytes);
    memcpy(text + s->tail_bytes, piece, bytes);
    bytes += s->tail_bytes;
    size_t whole = complete_bytes(text, bytes);
    fwrite(text, 1, whole, stdout);
    s->tail_bytes = bytes - whole;
    memcpy(s->tail, text + whole, s->tail_bytes);
}

static bool on_token(void *user, int64_t prompt, int32_t id)
{
    session *s = user;
    char *piece;
    size_t bytes;
    (void)prompt;
    if (s->stream && trd_tokenizer_decode(s->tokenizer, &id, 1, false, &piece, &bytes) == TRD_OK) {
        print_piece(s, piece, bytes);
        trd_text_free(piece);
        fflush(stdout);
    }
    return !cli_stop;
}

static trd_status generate(session *s)
{
    int32_t stops[MOST_STOP_IDS];
    trd_generate_options o = trd_generate_defaults();
    o.sampling = s->sampling;
    o.max_tokens = s->options.max_tokens;
    o.stop_ids = stops;
    o.stop_count = stop_ids(s, stops);
    o.on_token = on_token;
    o.user = s;
    trd_prompt *prompts = trd__calloc((size_t)s->prompts.count, sizeof *prompts);
    s->results = trd__calloc((size_t)s->prompts.count, sizeof *s->results);
    trd_status status = TRD_NO_MEMORY;
    if (prompts && s->results) {
        for (int64_t i = 0; i < s->prompts.count; i++)
            prompts[i] = (trd_prompt){s->prompts.ids[i].ids, (int64_t)s->prompts.ids[i].count};
        status = trd_generate(s->generator, prompts, s->prompts.count, &o, s->results, &s->stats);
    }
    trd__free(prompts);
    return status;
}

/* Text of a result without the token that ended it. */
static trd_status text_of(const session *s, const trd_generated *result, char **text, size_t *bytes)
{
    size_t count = (size_t)result->count - (result->finish == TRD_FINISH_STOP);
    return trd_tokenizer_decode(s->tokenizer, result->ids, count, false, text, bytes);
}

static trd_status print_texts(session *s)
{
    for (int64_t i = 0; i < s->prompts.count; i++) {
        const trd_generated *result = &s->results[i];
        if (s->prompts.count > 1) printf("%s[%lld]\n", i ? "\n" : "", (long long)i);
        if (s->stream) {
            fwrite(s->tail, 1, s->tail_bytes, stdout);
        } else if (s->tokenizer) {
            char *text;
            size_t bytes;
            TRD_TRY(text_of(s, result, &text, &bytes));
            fwrite(text, 1, bytes, stdout);
            trd_text_free(text);
        } else {
            for (int64_t t = 0; t < result->count; t++) printf("%s%d", t ? "," : "", result->ids[t]);
        }
        printf("\n");
    }
    return TRD_OK;
}

static void write_ids(trd__json_writer *w, const char *key, const int32_t *ids, int64_t count)
{
    trd__json_write_key(w, key);
    trd__json_open_array(w);
    for (int64_t i = 0; i < count; i++) trd__json_write_i64(w, ids[i]);
    trd__json_close(w);
}

static trd_status write_result(const session *s, int64_t i, trd__json_writer *w)
{
    static const char *const finishes[] = {
        [TRD_FINISH_LENGTH] = "length", [TRD_FINISH_STOP] = "stop", [TRD_FINISH_CANCELLED] = "cancelled"};
    const trd_generated *result = &s->results[i];
    write_ids(w, "ids", result->ids, result->count);
    if (s->tokenizer) {
        char *text;
        size_t bytes;
        TRD_TRY(text_of(s, result, &text, &bytes));
        trd__json_write_key(w, "text");
        trd__json_write_bytes(w, text, bytes);
        trd_text_free(text);
    }
    write_ids(w, "prompt_ids", s->prompts.ids[i].ids, (int64_t)s->prompts.ids[i].count);
    trd__json_put_string(w, "finish", finishes[result->finish]);
    return TRD_OK;
}

static double per_second(int64_t tokens, uint64_t ns)
{
    return ns ? (double)tokens * 1e9 / (double)ns : 0;
}

/* One prompt's members stand in the object itself, those of several in "results". */
static trd_status write_json(const session *s, trd__json_writer *w)
{
    trd__json_open_object(w);
    if (s->prompts.count == 1) {
        TRD_TRY(write_result(s, 0, w));
    } else {
        trd__json_write_key(w, "results");
        trd__json_open_array(w);
        for (int64_t i = 0; i < s->prompts.count; i++) {
            trd__json_open_object(w);
            TRD_TRY(write_result(s, i, w));
            trd__json_close(w);
        }
        trd__json_close(w);
    }
    trd__json_put_f64(w, "tokens_per_second", per_second(s->stats.generated_tokens, s->stats.decode_ns));
    trd__json_put_f64(w, "prompt_tokens_per_second", per_second(s->stats.prompt_tokens, s->stats.prefill_ns));
    trd__json_close(w);
    return TRD_OK;
}

static trd_status report(session *s)
{
    if (s->options.json) {
        trd__json_writer writer = {0};
        trd_status status = write_json(s, &writer);
        if (status) trd__json_writer_free(&writer);
        return status ? status : cli_print_json(&writer);
    }
    TRD_TRY(print_texts(s));
    fflush(stdout);
    fprintf(stderr, "%lld tokens, %.1f a second\n", (long long)s->stats.generated_tokens,
            per_second(s->stats.generated_tokens, s->stats.decode_ns));
    return TRD_OK;
}

static trd_status run_session(session *s)
{
    if (is_config(s->options.model)) {
        TRD_TRY(trd_config_load(s->options.model, NULL, 0, &s->config));
        trd_config_set_log(s->config, cli_log);
    } else if (!trd__file_exists(s->options.model)) {
        return trd__fail(TRD_NOT_FOUND, "opening %s: expected a model or a config, found nothing",
                         s->options.model);
    }
    TRD_TRY(open_tokenizer(s));
    TRD_TRY(cli_prompts_make(&s->options, s->tokenizer, &s->prompts));
    TRD_TRY(open_generator(s));
    cli_catch_signals();
    s->stream = s->prompts.count == 1 && s->tokenizer && !s->options.json && isatty(STDOUT_FILENO);
    TRD_TRY(generate(s));
    return report(s);
}

static void close_session(session *s)
{
    for (int64_t i = 0; s->results && i < s->prompts.count; i++) trd_generated_free(&s->results[i]);
    trd__free(s->results);
    trd_generator_close(s->generator);
    trd_engine_close(s->engine);
    cli_prompts_free(&s->prompts);
    trd_tokenizer_close(s->own_tokenizer);
    trd_config_free(s->config);
}

static int check_usage(const cli_generate_options *o, int words)
{
    const cli_command *command = &cli_command_generate;
    int given = (o->prompt != NULL) + (o->prompts != NULL) + (o->ids != NULL);
    if (words != 1) return cli_usage_error(command, "expected one model or config, found %d", words);
    if (given != 1)
        return cli_usage_error(command, "expected one of --prompt, --prompts and --ids, found %d", given);
    if (o->system && (o->raw || o->ids))
        return cli_usage_error(command, "--system belongs to the chat template, which %s leaves out",
                               o->raw ? "--raw" : "--ids");
    return CLI_DONE;
}

static int run(int argc, char **argv)
{
    session s = {.options = {.max_tokens = 256, .dtype = "float32"}, .sampling = {.top_p = 1}};
    int64_t seed = 0;
    cli_generate_options *o = &s.options;
    const cli_option options[] = {
        {.name = "--prompt", .kind = CLI_TEXT, .target = &o->prompt},
        {.name = "--prompts", .kind = CLI_TEXT, .target = &o->prompts},
        {.name = "--ids", .kind = CLI_TEXT, .target = &o->ids},
        {.name = "--raw", .kind = CLI_FLAG, .target = &o->raw},
        {.name = "--system", .kind = CLI_TEXT, .target = &o->system},
        {.name = "--tokenizer", .kind = CLI_TEXT, .target = &o->tokenizer},
        {.name = "--max-tokens", .kind = CLI_INT, .target = &o->max_tokens, .min = 1, .max = 1e9},
        {.name = "--temperature", .kind = CLI_REAL, .target = &s.sampling.temperature, .max = 1000},
        {.name = "--top-k", .kind = CLI_INT, .target = &s.sampling.top_k, .max = 1e9},
        {.name = "--top-p", .kind = CLI_REAL, .target = &s.sampling.top_p, .min = 1e-9, .max = 1},
        {.name = "--seed", .kind = CLI_INT, .target = &seed},
        {.name = "--dtype", .kind = CLI_TEXT, .target = &o->dtype},
        {.name = "--threads", .kind = CLI_INT, .target = &o->threads, .max = 1024},
        {.name = "--json", .kind = CLI_FLAG, .target = &o->json},
        {0}};
    int words, code = cli_parse(&cli_command_generate, options, argc, argv, &words);
    if (!code) code = check_usage(o, words);
    if (code) return code;
    o->model = argv[0];
    s.sampling.seed = (uint64_t)seed;
    trd_status status = run_session(&s);
    code = status ? cli_fail() : CLI_DONE;
    close_session(&s);
    return code;
}

const cli_command cli_command_generate = {
    .name = "generate",
    .summary = "write text with a model or a run's newest checkpoint",
    .usage = "MODEL_OR_CONFIG (--prompt TEXT | --prompts FILE | --ids 1,2,3) [OPTION ...]",
    .help =
        "MODEL is a Hugging Face folder, a .gguf file or a checkpoint (out/run/checkpoints/step-12). A .yml\n"
        "config means its run's newest checkpoint, or the weights it starts from when there is none.\n\n"
        "  --prompt TEXT      a user's message, put through the chat template where the tokenizer has one\n"
        "  --prompts FILE     one prompt a line\n"
        "  --ids LIST         token ids, taken as they are; a semicolon ends a prompt: 1,2,3;4,5\n"
        "  --raw              no chat template: the model continues the text\n"
        "  --system TEXT      the system message of the chat template\n"
        "  --tokenizer PATH   tokenizer.json, folder or GGUF; default: beside the model\n"
        "  --max-tokens N     most new tokens of a prompt; default 256\n"
        "  --temperature F    0: always the most likely token (the default)\n"
        "  --top-k N          draw from the N most likely tokens; 0: all\n"
        "  --top-p F          draw from the most likely tokens that together reach F; 1: all\n"
        "  --seed N           of the draws; the same seed gives the same text\n"
        "  --dtype NAME       float32 (the default) or bfloat16: weights, cache and compute\n"
        "  --threads N        0: OMP_NUM_THREADS, or one a core\n"
        "  --json             one JSON object as the last line: ids, text, prompt_ids, finish,\n"
        "                     tokens_per_second; several prompts are a list \"results\"",
    .run = run};
