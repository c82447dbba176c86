/* trd_generate: groups of prompts, ends, sources of weights, and what is refused. */
#include "generate/fixture.h"
#include "support/scratch.h"

enum { PROMPTS = 5, NEW_TOKENS = 9 };

typedef struct prompts {
    int32_t ids[PROMPTS][LENGTH];
    trd_prompt list[PROMPTS];
    trd_generated results[PROMPTS];
} prompts;

static void prompts_make(prompts *p)
{
    for (int i = 0; i < PROMPTS; i++) {
        fixture_tokens(p->ids[i], LENGTH, 20 + (uint64_t)i);
        p->list[i] = (trd_prompt){p->ids[i], 1 + 9 * i};
    }
}

static void prompts_free(prompts *p)
{
    for (int i = 0; i < PROMPTS; i++) trd_generated_free(&p->results[i]);
}

static void expect_same(const prompts *a, const prompts *b)
{
    for (int i = 0; i < PROMPTS; i++) {
        assert_int_equal(a->results[i].count, b->results[i].count);
        assert_memory_equal(a->results[i].ids, b->results[i].ids,
                            (size_t)a->results[i].count * sizeof(int32_t));
    }
}

static trd_generate_options drawn(void)
{
    trd_generate_options o = trd_generate_defaults();
    o.max_tokens = NEW_TOKENS;
    o.sampling = (trd_sampling){.temperature = 1, .top_k = 20, .top_p = 0.95, .seed = 3};
    return o;
}

/* How many prompts run together changes nothing. */
static void groups(void **state)
{
    (void)state;
    trd_engine *engine = fixture_engine(&families[2], TRD_F32, NULL);
    for (int greedy = 0; greedy < 2; greedy++) {
        prompts one, three;
        trd_generate_options o = drawn();
        trd_generate_stats stats;
        if (greedy) o.sampling.temperature = 0;
        prompts_make(&one);
        prompts_make(&three);
        trd_generator *a = fixture_generator(engine, 1, 16), *b = fixture_generator(engine, ROWS, 256);
        OK(trd_generate(a, one.list, PROMPTS, &o, one.results, &stats));
        assert_int_equal(stats.prompt_tokens, 1 + 10 + 19 + 28 + 37);
        assert_int_equal(stats.generated_tokens, PROMPTS * NEW_TOKENS);
        OK(trd_generate(b, three.list, PROMPTS, &o, three.results, NULL));
        expect_same(&one, &three);
        assert_int_equal(one.results[4].finish, TRD_FINISH_LENGTH);
        prompts_free(&one);
        prompts_free(&three);
        trd_generator_close(a);
        trd_generator_close(b);
    }
    OK(trd_engine_close(engine));
}

typedef struct listener {
    int64_t prompt;
    int left; /* tokens until it has heard enough */
    int heard[PROMPTS];
    int32_t last[PROMPTS];
} listener;

static bool listen(void *user, int64_t prompt, int32_t id)
{
    listener *l = user;
    l->heard[prompt]++;
    l->last[prompt] = id;
    return prompt != l->prompt || --l->left > 0;
}

static void ends(void **state)
{
    (void)state;
    trd_engine *engine = fixture_engine(&families[0], TRD_F32, NULL);
    trd_generator *g = fixture_generator(engine, ROWS, 256);
    prompts p, stopped;
    trd_generate_options o = drawn();
    prompts_make(&p);
    prompts_make(&stopped);
    OK(trd_generate(g, p.list, PROMPTS, &o, p.results, NULL));
    listener l = {.prompt = 4, .left = 2};
    const int32_t stops[2] = {-1, p.results[1].ids[3]};
    o.stop_ids = stops;
    o.stop_count = 2;
    o.on_token = listen;
    o.user = &l;
    OK(trd_generate(g, stopped.list, PROMPTS, &o, stopped.results, NULL));
    for (int i = 0; i < PROMPTS; i++) {
        const trd_generated *r = &stopped.results[i];
        assert_in_range(r->count, 1, NEW_TOKENS);
        assert_memory_equal(r->ids, p.results[i].ids, (size_t)r->count * sizeof *r->ids);
        assert_int_equal(l.heard[i], r->count);
        assert_int_equal(l.last[i], r->ids[r->count - 1]);
        for (int64_t t = 0; t + 1 < r->count; t++) assert_int_not_equal(r->ids[t], stops[1]);
        if (r->finish == TRD_FINISH_STOP) assert_int_equal(r->ids[r->count - 1], stops[1]);
        if (r->finish == TRD_FINISH_LENGTH) assert_int_equal(r->count, NEW_TOKENS);
    }
    assert_int_equal(stopped.results[1].finish, TRD_FINISH_STOP);
    assert_true(stopped.results[1].count <= 4);
    assert_int_equal(stopped.results[4].finish, TRD_FINISH_CANCELLED);
    assert_int_equal(stopped.results[4].count, 2);
    prompts_free(&p);
    prompts_free(&stopped);
    trd_generator_close(g);
    OK(trd_engine_close(engine));
}

/* The last place of a row can be used, and no more. */
static void fits_exactly(void **state)
{
    (void)state;
    trd_engine *engine = fixture_engine(&families[0], TRD_F32, NULL);
    trd_generator *g = fixture_generator(engine, 1, 16);
    int32_t ids[LENGTH + 1];
    trd_generated result;
    trd_generate_options o = trd_generate_defaults();
    fixture_tokens(ids, LENGTH + 1, 1);
    o.max_tokens = 4;
    OK(trd_generate(g, &(trd_prompt){ids, LENGTH - 3}, 1, &o, &result, NULL));
    assert_int_equal(result.count, 4);
    trd_generated_free(&result);
    assert_int_equal(trd_generate(g, &(trd_prompt){ids, LENGTH - 2}, 1, &o, &result, NULL),
                     TRD_INVALID_ARGUMENT);
    o.max_tokens = 1;
    OK(trd_generate(g, &(trd_prompt){ids, LENGTH}, 1, &o, &result, NULL));
    trd_generated_free(&result);
    assert_int_equal(trd_generate(g, &(trd_prompt){ids, LENGTH + 1}, 1, &o, &result, NULL),
                     TRD_INVALID_ARGUMENT);
    expect_message("prompt 0 has 49 tokens");
    trd_generator_close(g);
    OK(trd_engine_close(engine));
}

/* The same parameters by three ways: shared, from a checkpoint, from an exported folder. */
static void sources(void **state)
{
    trd_engine *engine = fixture_engine(&families[1], TRD_F32, scratch_path(*state, "run"));
    const char *folder = scratch_path(*state, "exported");
    int32_t tokens[ROWS * LENGTH];
    prompts shared, loaded;
    bool wrote;
    fixture_tokens(tokens, ROWS * LENGTH, 2);
    OK(trd_engine_train_step(engine, &(trd_batch){.rows = ROWS, .length = LENGTH, .token_ids = tokens}));
    OK(trd_engine_save(engine, NULL, true, &wrote));
    assert_true(wrote);
    OK(trd_engine_export(engine, folder, TRD_F32));
    trd_generate_options o = drawn();
    trd_generator *g = fixture_generator(engine, 2, 16);
    prompts_make(&shared);
    OK(trd_generate(g, shared.list, PROMPTS, &o, shared.results, NULL));
    trd_generator_close(g);
    OK(trd_engine_close(engine)); /* waits for the save */
    const char *paths[] = {scratch_path(*state, "run/step-1"), folder};
    for (int i = 0; i < 2; i++) {
        trd_generator_options options = trd_generator_defaults();
        options.rows = 2;
        options.num_threads = 2;
        OK(trd_generator_open(paths[i], &options, &g));
        assert_int_equal(trd_model_describe(trd_generator_model(g)).vocab, VOCAB);
        prompts_make(&loaded);
        OK(trd_generate(g, loaded.list, PROMPTS, &o, loaded.results, NULL));
        expect_same(&shared, &loaded);
        prompts_free(&loaded);
        trd_generator_close(g);
    }
    prompts_free(&shared);
}

static void refused(trd_generator *g, trd_prompt prompt, const trd_generate_options *o, const char *part)
{
    int32_t good[1] = {1};
    const trd_prompt list[2] = {{good, 1}, prompt};
    trd_generated results[2];
    assert_int_equal(trd_generate(g, list, 2, o, results, NULL), TRD_INVALID_ARGUMENT);
    expect_message(part);
    assert_null(results[0].ids);
    assert_null(results[1].ids);
}

static void refusals(void **state)
{
    trd_engine *engine = fixture_engine(&families[0], TRD_F32, NULL);
    trd_generator *g = fixture_generator(engine, 2, 16), *none;
    trd_generate_options o = trd_generate_defaults();
    int32_t ids[3] = {1, 2, VOCAB};
    o.max_tokens = 4;
    refused(g, (trd_prompt){ids, 0}, &o, "prompt 1 is empty");
    refused(g, (trd_prompt){ids, 3}, &o, "prompt 1, token 2: expected an id from 0 to 49, found 50");
    ids[2] = -1;
    refused(g, (trd_prompt){ids, 3}, &o, "found -1");
    o.max_tokens = INT64_MAX;
    refused(g, (trd_prompt){ids, 2}, &o, "is more than the 49 that fit (the model has 64 positions)");
    o.max_tokens = 0;
    refused(g, (trd_prompt){ids, 2}, &o, "max_tokens");
    o.max_tokens = 4;
    o.sampling.top_p = 0;
    refused(g, (trd_prompt){ids, 2}, &o, "top_p");
    trd_generator_close(g);
    trd_generator_options bad = trd_generator_defaults();
    bad.rows = 0;
    assert_int_equal(trd_generator_from_engine(engine, &bad, &none), TRD_INVALID_ARGUMENT);
    assert_null(none);
    OK(trd_engine_close(engine));
    bad = trd_generator_defaults();
    assert_int_equal(trd_generator_open(scratch_path(*state, "nowhere"), &bad, &none), TRD_NOT_FOUND);
    expect_message("nowhere");
    bad.dtype = TRD_F64;
    assert_int_equal(trd_generator_open(scratch_path(*state, "nowhere"), &bad, &none), TRD_INVALID_ARGUMENT);
    trd_generator_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(groups), cmocka_unit_test(ends),
                                       cmocka_unit_test(fits_exactly), cmocka_unit_test(sources),
                                       cmocka_unit_test(refusals)};
    return cmocka_run_group_tests_name("generate/generate", tests, scratch_create, scratch_remove);
}
