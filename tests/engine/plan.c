/* What programs compute in: for every config in configs/, optimizer, dtype and policy the planned memory is
 * close to what is live at once, and widened gradients wait for no norm. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <treadle/treadle.h>

enum { MOST_OVERRIDES = 4 };

static const char *const configs[] = {"../configs/qwen3-0.6b.yml", "../configs/smollm2-135m-sft.yml",
                                      "../configs/tiny.yml"};

/* Every program of a config with overrides; the weights of the second one are not in the repository. */
static int programs_of(const char *config, const char *const *overrides, int count,
                       trd_program_info *programs)
{
    const char *all[MOST_OVERRIDES + 2];
    int given = 0, found;
    trd_config *c;
    memcpy(all, overrides, (size_t)count * sizeof *all);
    given = count;
    if (strstr(config, "smollm2")) {
        all[given++] = "load_parameters_path=";
        all[given++] = "model_name=smollm2-135m";
    }
    if (trd_config_load(config, all, given, &c)) fail_msg("%s", trd_error_message());
    trd_config_set_log(c, (trd_log_sink){0});
    if (trd_plan_programs(trd_config_engine(c), programs, TRD_PROGRAM_KINDS, &found))
        fail_msg("%s", trd_error_message());
    trd_config_free(c);
    return found;
}

static void stays_near_the_bound(void **state)
{
    (void)state;
    static const char *const variants[][MOST_OVERRIDES] = {
        {"opt_type=sgd"},
        {"opt_type=adamw", "gradient_accumulation_steps=2"},
        {"opt_type=sgd", "dtype=bfloat16", "weight_dtype=bfloat16", "grad_dtype=bfloat16"},
        {"opt_type=adafactor", "remat_policy=full"},
        {"opt_type=muon", "remat_policy=minimal"},
        {"opt_type=adamw", "scan_layers=true", "remat_policy=full"},
        {"opt_type=sgd", "base_num_decoder_layers=8", "max_target_length=4096"},
        {"opt_type=sgd", "gradient_clipping_threshold=0", "skip_step_on_nonfinite=false"}};
    for (size_t c = 0; c < sizeof configs / sizeof *configs; c++)
        for (size_t v = 0; v < sizeof variants / sizeof *variants; v++) {
            trd_program_info programs[TRD_PROGRAM_KINDS];
            int count = 0;
            while (count < MOST_OVERRIDES && variants[v][count]) count++;
            count = programs_of(configs[c], variants[v], count, programs);
            assert_int_equal(count, 5);
            for (int i = 0; i < count; i++) {
                const trd_program_info *p = &programs[i];
                assert_true(p->lower_bound_bytes > 0 && p->temporary_bytes <= p->peak_bytes);
                if ((double)p->temporary_bytes > 1.05 * (double)p->lower_bound_bytes)
                    fail_msg("%s, %s: %s: %llu bytes over the %llu that are live at once", configs[c],
                             variants[v][0], p->name, (unsigned long long)p->temporary_bytes,
                             (unsigned long long)p->lower_bound_bytes);
            }
        }
}

/* All of them at once would be 2.4 GB. */
static void widened_gradients_do_not_wait(void **state)
{
    (void)state;
    static const char *const all_bf16[] = {"dtype=bfloat16", "weight_dtype=bfloat16", "grad_dtype=bfloat16"};
    trd_program_info programs[TRD_PROGRAM_KINDS];
    int count = programs_of(configs[0], all_bf16, 3, programs);
    uint64_t first = 0, step = 0;
    for (int i = 0; i < count; i++) {
        if (strcmp(programs[i].name, "first") == 0) first = programs[i].temporary_bytes;
        if (strcmp(programs[i].name, "train_step") == 0) step = programs[i].temporary_bytes;
    }
    assert_true(first > 0 && step > 0 && step < 2 * first);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(stays_near_the_bound),
                                       cmocka_unit_test(widened_gradients_do_not_wait)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
