/* Logits from the key-value cache against a full forward pass of the engine over the same tokens. */
#include "generate/fixture.h"
#include "support/program.h"

/* Reads the first lengths[r] tokens of row r as its prompt, then feeds the rest one by one; every step's
 * logits must be those of the full pass at that place. A row that reaches the end rests while the others go
 * on. */
static void follow(trd_generator *g, const int32_t *tokens, const int *lengths, const float *expected,
                   double tolerance)
{
    trd_prompt prompts[ROWS];
    int32_t next[ROWS];
    bool active[ROWS];
    for (int r = 0; r < ROWS; r++) prompts[r] = (trd_prompt){tokens + r * LENGTH, lengths[r]};
    trd__generator_clear(g);
    OK(trd__generator_prefill(g, prompts, ROWS));
    for (int step = 0;; step++) {
        int running = 0;
        for (int r = 0; r < ROWS; r++) {
            int at = lengths[r] - 1 + step;
            active[r] = at < LENGTH;
            next[r] = active[r] ? tokens[r * LENGTH + at] : 0;
            running += active[r];
        }
        if (!running) break;
        OK(trd__generator_step(g, next, active));
        for (int r = 0; r < ROWS; r++) {
            int at = lengths[r] - 1 + step;
            if (!active[r]) continue;
            double distance =
                fixture_distance(expected + (r * LENGTH + at) * VOCAB, g->logits + r * VOCAB, VOCAB);
            if (!(distance <= tolerance)) fail_msg("row %d, token %d: logits are off by %g", r, at, distance);
        }
    }
}

/* Where every program takes a second to compile, one family in both forms and one size of chunk must do. */
static bool on_cpu(void)
{
    return strcmp(test_backend_name(), "cpu") == 0;
}

static void check(const family *f, trd_dtype dtype, double tolerance)
{
    static const int lengths[][ROWS] = {{1, 1, 1}, {20, 33, 7}, {2, 48, 17}, {40, 1, 16}};
    static const int chunks[] = {5, 16, 256};
    int32_t tokens[ROWS * LENGTH];
    trd_engine *engine = fixture_engine(f, dtype, NULL);
    fixture_tokens(tokens, ROWS * LENGTH, 11);
    float *expected = fixture_logits(engine, tokens);
    for (size_t c = on_cpu() ? 0 : 2; c < sizeof chunks / sizeof *chunks; c++) {
        trd_generator *g = fixture_generator(engine, ROWS, chunks[c]);
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
            follow(g, tokens, lengths[i], expected, tolerance);
        trd_generator_close(g);
    }
    free(expected);
    OK(trd_engine_close(engine));
}

static void cache_equals_full_forward(void **state)
{
    (void)state;
    for (int i = on_cpu() ? 0 : 2; i < FAMILIES; i++) check(&families[i], TRD_F32, 2e-5);
}

static void cache_in_bfloat16(void **state)
{
    (void)state;
    for (int i = on_cpu() ? 0 : FAMILIES - 1; i < FAMILIES; i++) check(&families[i], TRD_BF16, 6e-2);
}

/* Whatever else runs beside a row, and whatever an earlier use left in the cache. */
static void rows_are_independent(void **state)
{
    (void)state;
    int32_t tokens[ROWS * LENGTH];
    trd_engine *engine = fixture_engine(&families[2], TRD_F32, NULL);
    trd_generator *together = fixture_generator(engine, ROWS, 16), *alone = fixture_generator(engine, 1, 16);
    for (uint64_t seed = 0; seed < 3; seed++) {
        fixture_tokens(tokens, ROWS * LENGTH, seed);
        trd_prompt prompts[ROWS];
        int32_t next[ROWS];
        bool active[ROWS];
        for (int r = 0; r < ROWS; r++) {
            prompts[r] = (trd_prompt){tokens + r * LENGTH, 10 + 13 * ((r + (int)seed) % ROWS)};
            next[r] = prompts[r].ids[prompts[r].count - 1];
            active[r] = true;
        }
        trd__generator_clear(together);
        OK(trd__generator_prefill(together, prompts, ROWS));
        OK(trd__generator_step(together, next, active));
        for (int r = 0; r < ROWS; r++) {
            trd__generator_clear(alone);
            OK(trd__generator_prefill(alone, &prompts[r], 1));
            OK(trd__generator_step(alone, &next[r], active));
            assert_true(fixture_distance(alone->logits, together->logits + r * VOCAB, VOCAB) <= 2e-5);
        }
    }
    trd_generator_close(alone);
    trd_generator_close(together);
    OK(trd_engine_close(engine));
}

/* A generator that shares an engine's parameters sees every update. */
static void follows_training(void **state)
{
    (void)state;
    int32_t tokens[ROWS * LENGTH];
    const int lengths[ROWS] = {44, 40, 30};
    trd_engine *engine = fixture_engine(&families[0], TRD_F32, NULL);
    trd_generator *g = fixture_generator(engine, ROWS, 256);
    fixture_tokens(tokens, ROWS * LENGTH, 5);
    trd_batch batch = {.rows = ROWS, .length = LENGTH, .token_ids = tokens};
    float *before = fixture_logits(engine, tokens);
    follow(g, tokens, lengths, before, 2e-5);
    OK(trd_engine_train_step(engine, &batch));
    float *after = fixture_logits(engine, tokens);
    assert_true(fixture_distance(before, after, ROWS * LENGTH * VOCAB) > 1e-2);
    follow(g, tokens, lengths, after, 2e-5);
    free(after);
    free(before);
    trd_generator_close(g);
    OK(trd_engine_close(engine));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cache_equals_full_forward), cmocka_unit_test(cache_in_bfloat16),
        cmocka_unit_test(rows_are_independent), cmocka_unit_test(follows_training)};
    return cmocka_run_group_tests_name("generate/decode", tests, NULL, NULL);
}
