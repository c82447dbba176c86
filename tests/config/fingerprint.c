/* A run's identity: free keys may change on resume, portable ones warn, fixed ones are an error that names
 * the key and both values. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <treadle/config.h>

#include "support/engine.h"
#include "support/scratch.h"

typedef struct lines {
    int count;
    char last[512];
} lines;

static void keep(void *user, trd_log_level level, const char *line)
{
    lines *l = user;
    assert_int_equal(level, TRD_LOG_WARNING);
    l->count++;
    snprintf(l->last, sizeof l->last, "%s", line);
}

static trd_config *config_of(const char *override)
{
    const char *overrides[] = {"model_name=tiny", "run_name=r", override};
    trd_config *config = NULL;
    OK(trd_config_load(NULL, overrides, override ? 3 : 2, &config));
    return config;
}

/* Compares a run that began without the override with one that has it. */
static trd_status resume_with(const char *override, lines *l)
{
    trd_config *before = config_of(NULL), *now = config_of(override);
    const trd_engine_options *e = trd_config_engine(now);
    *l = (lines){.count = 0};
    trd_config_set_log(now, (trd_log_sink){.write = keep, .user = l});
    trd_status status =
        e->compare_fingerprint(e->compare_user, trd_config_engine(before)->fingerprint, e->fingerprint);
    trd_config_free(before);
    trd_config_free(now);
    return status;
}

static void by_kind_of_key(void **state)
{
    (void)state;
    lines l;
    const char *const free_keys[] = {"steps=9",        "learning_rate=1", "run_name=other", "log_period=7",
                                     "prefetch=false", "train_files=[a]", "eval_interval=3"};
    for (size_t i = 0; i < sizeof free_keys / sizeof *free_keys; i++) {
        OK(resume_with(free_keys[i], &l));
        assert_int_equal(l.count, 0);
    }
    OK(resume_with("grad_dtype=bfloat16", &l));
    assert_int_equal(l.count, 1);
    assert_string_equal(
        l.last,
        "resuming: grad_dtype was float32 and is bfloat16 now; results may differ in their last bits");
    OK(resume_with("num_threads=3", &l));
    assert_int_equal(l.count, 1);
    OK(resume_with("per_device_batch_size=2", &l)); /* and the key derived from it */
    assert_int_equal(l.count, 2);
    assert_non_null(strstr(l.last, "now; results differ where a step has another number of rows"));
    assert_int_equal(resume_with("weight_dtype=bfloat16", &l), TRD_INVALID_ARGUMENT);
    expect_message("resuming: weight_dtype was float32 in the checkpoint and is bfloat16 now; set it back");
    assert_int_equal(resume_with("data_shuffle_seed=1", &l), TRD_INVALID_ARGUMENT);
    expect_message("data_shuffle_seed was 0 in the checkpoint and is 1 now");
    assert_int_equal(resume_with("vocab_size=300", &l), TRD_INVALID_ARGUMENT);
    assert_int_equal(resume_with("model_name=qwen3-0.6b", &l), TRD_INVALID_ARGUMENT);
    expect_message("model_name was 'tiny' in the checkpoint and is 'qwen3-0.6b' now; set it back");
    assert_int_equal(resume_with("opt_type=sgd", &l), TRD_INVALID_ARGUMENT);
    assert_int_equal(resume_with("freeze=[embed]", &l), TRD_INVALID_ARGUMENT);
    expect_message("resuming: freeze was [] in the checkpoint and is ['embed'] now");
}

/* All keys that keep a run from going on are told at once. */
static void several_keys(void **state)
{
    (void)state;
    trd_config *now = config_of(NULL);
    const trd_engine_options *e = trd_config_engine(now);
    assert_int_equal(
        e->compare_fingerprint(e->compare_user, "opt_type=sgd\nhead_dim=3\n", "opt_type=adamw\nhead_dim=4\n"),
        TRD_INVALID_ARGUMENT);
    expect_message("head_dim was 3 in the checkpoint and is 4 now; ");
    expect_message("opt_type was sgd in the checkpoint and is adamw now");
    expect_message("set them back");
    trd_config_free(now);
}

/* The table's word for each key decides, for every key. */
static void every_key(void **state)
{
    (void)state;
    trd_config *config = config_of(NULL);
    const char *fingerprint = trd_config_engine(config)->fingerprint;
    trd_config_key key;
    char line[256];
    for (int i = 0; trd_config_describe(i, &key); i++) {
        snprintf(line, sizeof line, "%s=", key.name);
        const char *at = strstr(fingerprint, line);
        bool found = at && (at == fingerprint || at[-1] == '\n');
        assert_int_equal(found, strcmp(key.resume, "free") != 0);
    }
    trd_config_free(config);
}

/* What one side does not know (a key that is older or newer than the checkpoint) is passed over. */
static void keys_of_other_versions(void **state)
{
    (void)state;
    trd_config *config = config_of(NULL);
    const trd_engine_options *e = trd_config_engine(config);
    OK(e->compare_fingerprint(e->compare_user, "", e->fingerprint));
    OK(e->compare_fingerprint(e->compare_user, "gone=1\nopt_type=adamw", e->fingerprint));
    OK(e->compare_fingerprint(e->compare_user, e->fingerprint, "opt_type=adamw\n"));
    assert_int_equal(e->compare_fingerprint(e->compare_user, "opt_type=adam", e->fingerprint),
                     TRD_INVALID_ARGUMENT);
    assert_int_equal(e->compare_fingerprint(e->compare_user, "opt_type=adamw2\n", e->fingerprint),
                     TRD_INVALID_ARGUMENT);
    trd_config_free(config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_kind_of_key),
        cmocka_unit_test(several_keys),
        cmocka_unit_test(every_key),
        cmocka_unit_test(keys_of_other_versions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
