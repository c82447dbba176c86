/* Out of memory anywhere in a whole run, through the public headers: configs, tokenizers, data, training,
 * checkpoints, export, loading and generation. Every allocation of ours fails once, alone and with all later
 * ones; each time TRD_NO_MEMORY is reported and no block is left. */
#include <stdio.h>
#include <stdlib.h>

#include <treadle/treadle.h>

#include "base/file.h"
#include "support/failing_heap.h"
#include "support/nightly.h"
#include "support/scratch.h"

static const char *folder;

/* A run takes more than a thousand allocations: by day a prime share of them, which moves with the code. */
static long stride(void)
{
    return nightly() ? 1 : 7;
}

static const char *hub(void)
{
    static char path[1024];
    snprintf(path, sizeof path, "%s/hub", folder);
    return path;
}

static trd_status train(trd_engine *engine, trd_loader *loader)
{
    trd_batch batch;
    char *metadata = NULL;
    TRD_TRY(trd_loader_next(loader, &batch));
    TRD_TRY(trd_engine_fwd_bwd(engine, &batch));
    TRD_TRY(trd_engine_save(engine, "inside the step", true, NULL));
    TRD_TRY(trd_loader_next(loader, &batch));
    TRD_TRY(trd_engine_fwd_bwd(engine, &batch));
    TRD_TRY(trd_engine_update(engine));
    TRD_TRY(trd_engine_eval_begin(engine));
    TRD_TRY(trd_engine_eval_step(engine, &batch));
    TRD_TRY(trd_engine_eval_end(engine));
    TRD_TRY(trd_engine_save(engine, "after it", true, NULL));
    TRD_TRY(trd_engine_restore(engine, -1, &metadata));
    trd_text_free(metadata);
    TRD_TRY(trd_engine_train_step(engine, &batch));
    return trd_engine_export(engine, hub(), TRD_F32);
}

static trd_status generate(trd_generator *generator)
{
    static const int32_t ids[] = {3, 4, 5};
    const trd_prompt prompt = {ids, 3};
    trd_generate_options how = trd_generate_defaults();
    trd_generated result = {0};
    how.max_tokens = 2;
    trd_status status = trd_generate(generator, &prompt, 1, &how, &result, NULL);
    trd_generated_free(&result);
    return status;
}

static trd_status generate_from(trd_engine *engine)
{
    trd_generator_options options = trd_generator_defaults();
    trd_generator *generator = NULL;
    options.length = 16;
    TRD_TRY(trd_generator_from_engine(engine, &options, &generator));
    trd_status status = generate(generator);
    trd_generator_close(generator);
    return status;
}

static trd_status run(void *unused)
{
    (void)unused;
    char path[1024];
    trd_config *config = NULL;
    trd_loader *loader = NULL;
    trd_engine *engine = NULL;
    const trd_data_options *data;
    const char *const overrides[] = {"learning_rate=1e-3"};
    long left = heap.until_failure;
    heap.until_failure = LONG_MAX; /* each life is a run of its own */
    snprintf(path, sizeof path, "%s/run", folder);
    assert_int_equal(trd__remove_tree(path), TRD_OK);
    heap.until_failure = left;
    snprintf(path, sizeof path, "%s/config.yml", folder);
    trd_status status = trd_config_load(path, overrides, 1, &config);
    if (!status) status = trd_config_data(config, &data);
    if (!status) status = trd_loader_open(data, &loader);
    if (!status) status = trd_engine_create(trd_config_engine(config), &engine);
    if (!status) status = train(engine, loader);
    if (!status) status = generate_from(engine);
    trd_status closed = trd_engine_close(engine);
    trd_loader_close(loader);
    trd_config_free(config);
    return status ? status : closed;
}

/* What run exported, as weights of an engine. */
static trd_status load_safetensors(void *unused)
{
    (void)unused;
    trd_engine_options options = trd_engine_defaults();
    trd_engine *engine = NULL;
    options.load_parameters_path = hub();
    options.rows = 1;
    options.length = 16;
    options.num_threads = 1;
    TRD_TRY(trd_engine_create(&options, &engine));
    return trd_engine_close(engine);
}

static trd_status load_gguf(void *unused)
{
    (void)unused;
    trd_generator_options options = trd_generator_defaults();
    trd_generator *generator = NULL;
    options.length = 16;
    options.num_threads = 1;
    TRD_TRY(trd_generator_open("checkpoint/data/llama.gguf", &options, &generator));
    trd_status status = generate(generator);
    trd_generator_close(generator);
    return status;
}

static trd_status tokenize(void *path)
{
    static const char text[] = "Caf\u00e9s: 12 it's <|im_end|>";
    const trd_message message = {"user", text};
    trd_tokenizer *tokenizer = NULL;
    trd_ids ids = {0};
    char *back = NULL;
    size_t bytes;
    TRD_TRY(trd_tokenizer_open(path, &tokenizer));
    trd_status status = trd_tokenizer_encode(tokenizer, text, sizeof text - 1, &ids);
    if (!status) status = trd_tokenizer_decode(tokenizer, ids.ids, ids.count, true, &back, &bytes);
    if (!status) status = trd_tokenizer_set_chat_template(tokenizer, "qwen3");
    if (!status) status = trd_tokenizer_chat(tokenizer, &message, 1, true, &ids);
    if (!status) status = trd_tokenizer_export(tokenizer, hub());
    trd_text_free(back);
    trd_ids_free(&ids);
    trd_tokenizer_close(tokenizer);
    return status;
}

static void a_run(void **state)
{
    folder = *state;
    char data[1024], text[4096];
    snprintf(data, sizeof data, "%s/train.jsonl", folder);
    const char lines[] = "{\"text\": \"abc\"}\n{\"prompt\": \"a\", \"completion\": \"b\"}\n"
                         "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, "
                         "{\"role\": \"assistant\", \"content\": \"b\"}]}\n";
    scratch_write(data, lines, sizeof lines - 1);
    int length = snprintf(
        text, sizeof text,
        "model_name: tiny\nvocab_size: 264\nbase_num_decoder_layers: 1\n"
        "tokenizer_path: data/data/bytes\nchat_template: qwen2.5\ntrain_files: ['%s']\n"
        "per_device_batch_size: 2\nmax_target_length: 64\nnum_threads: 1\nnum_epochs: 1000\nprefetch: false\n"
        "adamw_mask: [norm]\nbase_output_directory: '%s'\nrun_name: run\n",
        data, folder);
    scratch_write(scratch_path(folder, "config.yml"), text, (size_t)length);
    assert_true(heap_fail_each("a run", run, NULL, false, stride(), NULL) > 100);
    assert_int_equal(run(NULL), TRD_OK);
    assert_true(heap_fail_each("load safetensors", load_safetensors, NULL, false, 1, NULL) > 50);
}

static void a_generator(void **state)
{
    folder = *state;
    assert_true(heap_fail_each("load GGUF and generate", load_gguf, NULL, false, 1, NULL) > 50);
}

static void a_tokenizer(void **state)
{
    static char json[] = "tokenizer/data/llama3-small.json", gguf[] = "data/smollm2-tokenizer.gguf";
    folder = *state;
    assert_true(heap_fail_each("tokenizer.json", tokenize, json, true, 1, NULL) > 20);
    /* A vocabulary of 49152 tokens with an allocation each, all alike. */
    long few = nightly() ? 997 : 16001;
    assert_true(heap_fail_each("tokenizer of a GGUF", tokenize, gguf, false, few, NULL) > 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_run), cmocka_unit_test(a_generator),
                                       cmocka_unit_test(a_tokenizer)};
    return cmocka_run_group_tests_name("e2e/no_memory", tests, scratch_create, scratch_remove);
}
