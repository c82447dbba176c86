/* Restoring onto something else: what may differ is taken over with a warning, what may not is named in full,
 * and a refusal leaves every bit as it was. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/dtype.h"
#include "engine/internal.h"
#include "support/engine.h"
#include "support/scratch.h"

typedef struct lines {
    int warnings;
    char last[512];
} lines;

static void keep_warnings(void *user, trd_log_level level, const char *line)
{
    lines *l = user;
    if (level != TRD_LOG_WARNING) return;
    l->warnings++;
    snprintf(l->last, sizeof l->last, "%s", line);
}

static trd_engine_options options_in(void **state, const char *name, lines *l)
{
    static char path[600];
    snprintf(path, sizeof path, "%s/%s", (const char *)*state, name);
    trd_engine_options o = test_adamw();
    o.checkpoint_directory = path;
    o.log = (trd_log_sink){keep_warnings, l};
    return o;
}

static void feed(trd_engine *engine, int begin, int end)
{
    for (int i = begin; i < end; i++) {
        test_batch b;
        OK(trd_engine_fwd_bwd(engine, test_batch_fill(&b, (uint64_t)i + 1)));
    }
}

static double product(void *user, double so_far, double value, int count)
{
    (void)user;
    return count ? so_far * value : value;
}

static double sum(void *user, double so_far, double value, int count)
{
    (void)user;
    (void)count;
    return so_far + value;
}

static void record(trd_engine *engine, double v)
{
    static const char *const names[] = {"mean", "sum", "last", "min", "max"};
    for (int a = 0; a < 5; a++)
        OK(trd_engine_record_metrics(engine, names[a], trd_recorded_number(v), (trd_aggregation)a));
    OK(trd_engine_record_metrics(engine, "weighted", trd_recorded_weighted(v, 2 * v), TRD_AGGREGATE_MEAN));
    OK(trd_engine_record_folded(engine, "product", v, product, NULL));
    OK(trd_engine_record_metrics(engine, "infinite", trd_recorded_number(-INFINITY), TRD_AGGREGATE_LAST));
}

/* What the caller recorded within the unfinished step goes on, whatever its aggregation. */
static void recorded_metrics_go_on(void **state)
{
    static const char *const names[] = {"mean", "sum",      "last",    "min",
                                        "max",  "weighted", "product", "infinite"};
    lines l = {0};
    trd_engine_options o = options_in(state, "recorded", &l), plain = o;
    plain.checkpoint_directory = NULL;
    plain.metrics_prefix = "p/";
    trd_engine *whole = test_engine(&plain), *engine = test_engine(&o);
    trd_engine *both[] = {whole, engine};
    for (int e = 0; e < 2; e++) {
        feed(both[e], 0, 1);
        record(both[e], 0.1);
        record(both[e], 3);
    }
    OK(trd_engine_save(engine, NULL, false, NULL));
    record(engine, 1e9); /* of a future that is abandoned: close saves it under the same name, so no close */
    OK(trd_engine_restore(engine, -1, NULL));
    assert_int_equal(trd_engine_record_folded(engine, "mean", 1, product, NULL), TRD_INVALID_ARGUMENT);
    for (int e = 0; e < 2; e++) {
        record(both[e], 0.7);
        assert_int_equal(trd_engine_record_folded(both[e], "product", 1, sum, NULL), TRD_INVALID_ARGUMENT);
        feed(both[e], 1, 2);
        OK(trd_engine_update(both[e]));
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char prefixed[32];
        snprintf(prefixed, sizeof prefixed, "p/%s", names[i]);
        assert_true(test_metric(whole, prefixed) == test_metric(engine, names[i]));
    }
    OK(trd_engine_save(engine, NULL, true, NULL)); /* the history holds the infinite one too */
    OK(trd_engine_restore(engine, -1, NULL));
    assert_true(test_metric(engine, "infinite") == -INFINITY);
    OK(trd_engine_close(engine));
    OK(trd_engine_close(whole));
}

/* close finds that something was recorded since the last save. */
static void recorded_metrics_are_saved_at_close(void **state)
{
    lines l = {0};
    trd_engine_options o = options_in(state, "recorded-last", &l);
    trd_engine *engine = test_engine(&o);
    feed(engine, 0, 1);
    OK(trd_engine_save(engine, NULL, false, NULL));
    record(engine, 5);
    OK(trd_engine_close(engine));
    engine = test_engine(&o);
    OK(trd_engine_restore(engine, -1, NULL));
    feed(engine, 1, 2);
    OK(trd_engine_update(engine));
    assert_true(test_metric(engine, "last") == 5);
    OK(trd_engine_close(engine));
}

static const size_t bytes_of[] = {[TRD_F32] = 4, [TRD_BF16] = 2};

/* Another grad_dtype in the middle of a step: the gradients are converted, with a warning. */
static void change_grad_dtype(void **state, trd_dtype from, trd_dtype to)
{
    enum { SIZE = 16 };
    unsigned char before[4 * SIZE], after[4 * SIZE], expected[4 * SIZE];
    lines l = {0};
    trd_engine_options o = options_in(state, from == TRD_F32 ? "narrower" : "wider", &l);
    o.grad_dtype = from;
    trd_engine *engine = test_engine(&o);
    feed(engine, 0, 2);
    int norm = trd_view_find(trd_engine_gradients(engine), "model.norm.weight");
    OK(trd_view_read(trd_engine_gradients(engine), norm, before));
    OK(trd_engine_close(engine));
    o.grad_dtype = to;
    engine = test_engine(&o);
    OK(trd_engine_restore(engine, -1, NULL));
    assert_int_equal(l.warnings, 1);
    assert_non_null(strstr(l.last, "converted to grad_dtype"));
    OK(trd_view_read(trd_engine_gradients(engine), norm, after));
    trd__convert(from, before, to, expected, SIZE);
    assert_memory_equal(after, expected, SIZE * bytes_of[to]);
    feed(engine, 2, 3);
    OK(trd_engine_update(engine));
    assert_true(test_metric(engine, "gradient_norm") > 0 && isfinite(test_metric(engine, "gradient_norm")));
    OK(trd_engine_close(engine));
}

static void other_grad_dtype(void **state)
{
    change_grad_dtype(state, TRD_F32, TRD_BF16);
    change_grad_dtype(state, TRD_BF16, TRD_F32);
}

/* Another micro-batch size, also in the middle of a step: the sums go on. */
static void other_micro_batch_size(void **state)
{
    lines l = {0};
    trd_engine_options o = options_in(state, "rows", &l);
    trd_engine *engine = test_engine(&o);
    feed(engine, 0, 2);
    OK(trd_engine_close(engine));
    o.rows = TEST_ROWS + 1;
    engine = test_engine(&o);
    OK(trd_engine_restore(engine, -1, NULL));
    assert_int_equal(trd_engine_micro_step_count(engine), 2);
    feed(engine, 2, 3); /* fewer rows than fit */
    OK(trd_engine_update(engine));
    double norm = test_metric(engine, "gradient_norm"), weights = test_metric(engine, "total_weights");
    OK(trd_engine_close(engine));
    o.rows = TEST_ROWS;
    o.checkpoint_directory = NULL;
    engine = test_engine(&o);
    feed(engine, 0, 3);
    OK(trd_engine_update(engine));
    assert_true(fabs(norm - test_metric(engine, "gradient_norm")) <= 1e-6 * norm);
    assert_true(weights == test_metric(engine, "total_weights"));
    OK(trd_engine_close(engine));
}

static trd_engine *engine_of(const trd_engine_options *o, const char *dimensions)
{
    char config[512];
    trd_model *model = NULL;
    trd_engine *engine = NULL;
    snprintf(config, sizeof config,
             "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", %s,"
             " \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 8, \"vocab_size\": 40,"
             " \"rms_norm_eps\": 1e-5, \"max_position_embeddings\": 64, \"tie_word_embeddings\": true}",
             dimensions);
    OK(trd_model_from_json(config, strlen(config), &model));
    OK(trd__engine_create_with_model(o, model, &engine));
    return engine;
}

static trd_status refuse(void *user, const char *saved, const char *current)
{
    (void)user;
    (void)saved;
    (void)current;
    return trd__fail(TRD_INVALID_ARGUMENT, "base_emb_dim was 16");
}

/* Every tensor that does not fit is told, up to a cap and then as a count. */
static void another_model(void **state)
{
    lines l = {0};
    trd_engine_options o = options_in(state, "model", &l);
    trd_engine *engine = test_engine(&o); /* two layers of width 16 and 24 */
    feed(engine, 0, 1);
    OK(trd_engine_update(engine));
    OK(trd_engine_close(engine));

    o.read_only_checkpoints = true;
    engine = engine_of(&o, "\"hidden_size\": 16, \"intermediate_size\": 24, \"num_hidden_layers\": 1");
    unsigned char *before = test_state(trd_engine_params(engine), NULL);
    assert_int_equal(trd_engine_restore(engine, -1, NULL), TRD_SHAPE);
    expect_message("restoring checkpoint step-1: 27 tensors do not fit");
    expect_message("model.layers.1.input_layernorm.weight (expected none, found float32 (16))");
    expect_message("; and 17 more");
    test_same_state(trd_engine_params(engine), before);
    free(before);
    OK(trd_engine_close(engine));

    engine = engine_of(&o, "\"hidden_size\": 16, \"intermediate_size\": 32, \"num_hidden_layers\": 2");
    assert_int_equal(trd_engine_restore(engine, -1, NULL), TRD_SHAPE);
    expect_message("18 tensors do not fit");
    expect_message("model.layers.0.mlp.gate_proj.weight (expected float32 (32, 16), found float32 (24, 16))");
    OK(trd_engine_close(engine));
}

static void another_config_and_model(void **state)
{
    lines l = {0};
    trd_engine_options o = options_in(state, "config", &l);
    o.fingerprint = "x";
    o.compare_fingerprint = refuse;
    trd_engine *engine = test_engine(&o);
    feed(engine, 0, 1);
    OK(trd_engine_update(engine));
    OK(trd_engine_close(engine));
    engine = engine_of(&o, "\"hidden_size\": 24, \"intermediate_size\": 24, \"num_hidden_layers\": 3");
    assert_int_equal(trd_engine_restore(engine, -1, NULL), TRD_INVALID_ARGUMENT);
    expect_message("base_emb_dim was 16; and: 87 tensors do not fit");
    expect_message("model.embed_tokens.weight (expected float32 (40, 24), found float32 (40, 16))");
    OK(trd_engine_close(engine));
}

/* The time of a step that was resumed in its middle begins with the restore. */
static void time_of_a_resumed_step(void **state)
{
    lines l = {0};
    trd_engine_options o = options_in(state, "time", &l);
    trd_engine *engine = test_engine(&o);
    feed(engine, 0, 1);
    OK(trd_engine_close(engine));
    uint64_t begin = trd__now_ns();
    engine = test_engine(&o);
    OK(trd_engine_restore(engine, -1, NULL));
    feed(engine, 1, 2);
    OK(trd_engine_update(engine));
    double seconds = test_metric(engine, "step_time");
    assert_true(seconds > 0 && seconds <= 1e-9 * (double)(trd__now_ns() - begin));
    OK(trd_engine_close(engine));
}

/* A run that goes on from an earlier step gives up the later checkpoints once its own next one is durable,
 * and an engine that has restored nothing does not mix its steps into another run's. */
static void an_earlier_step(void **state)
{
    lines l = {0};
    trd_engine_options o = options_in(state, "rewound", &l);
    o.max_num_checkpoints_to_keep = 1;
    o.keep_period = 2;
    trd_engine *engine = test_engine(&o);
    for (int step = 0; step < 5; step++) {
        feed(engine, step, step + 1);
        OK(trd_engine_update(engine));
        OK(trd_engine_save(engine, NULL, true, NULL));
    }
    OK(trd_engine_restore(engine, 2, NULL));
    feed(engine, 7, 8);
    OK(trd_engine_update(engine));
    OK(trd_engine_save(engine, NULL, true, NULL));
    OK(trd_engine_close(engine));
    assert_int_equal(l.warnings, 1);
    assert_non_null(strstr(l.last, "checkpoint step-3 replaces 2 of later steps"));
    engine = test_engine(&o);
    OK(trd_engine_restore(engine, -1, NULL));
    assert_int_equal(trd_engine_step(engine), 3);
    OK(trd_engine_close(engine));
    engine = test_engine(&o);
    feed(engine, 0, 1);
    OK(trd_engine_update(engine));
    assert_int_equal(trd_engine_save(engine, NULL, true, NULL), TRD_STATE);
    expect_message("holds step-3, which this engine has not restored; restore first");
    OK(trd_engine_set_step(engine, 3)); /* the same step would take the other one's place */
    assert_int_equal(trd_engine_save(engine, NULL, true, NULL), TRD_STATE);
    OK(trd_engine_restore(engine, -1, NULL));
    OK(trd_engine_save(engine, NULL, true, NULL));
    assert_true(trd_engine_get_stats(engine).saves == 1 && trd_engine_get_stats(engine).save_ns > 0);
    OK(trd_engine_close(engine));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_metrics_go_on), cmocka_unit_test(recorded_metrics_are_saved_at_close),
        cmocka_unit_test(other_grad_dtype),       cmocka_unit_test(other_micro_batch_size),
        cmocka_unit_test(another_model),          cmocka_unit_test(another_config_and_model),
        cmocka_unit_test(time_of_a_resumed_step), cmocka_unit_test(an_earlier_step),
    };
    return cmocka_run_group_tests_name("engine/restore", tests, scratch_create, scratch_remove);
}
