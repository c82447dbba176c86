/* Frozen parameters: they keep every bit, have no gradient, no optimizer state and no part in the norm, and
 * the backward pass stops where only they would need it. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cpu/cpu.h"
#include "base/shape.h"
#include "engine/internal.h"
#include "support/engine.h"
#include "support/scratch.h"

enum { MOST = 64, HIDDEN = 16 };

/* What parts of the tests' llama are called, as patterns. */
static const char *const lower[] = {"embed_tokens", "^model\\.layers\\.0\\."};
static const char *const embedding[] = {"^model\\.embed_tokens\\.weight$"};
static const char *const all_but_the_norm[] = {"^(?!model\\.norm\\.)"};
static const char *const all_but_a_layer[] = {"^(?!model\\.layers\\.1\\.)"};

#define FREEZE(o, patterns)                                                                                  \
    ((o)->freeze = (patterns), (o)->freeze_count = sizeof(patterns) / sizeof *(patterns))

static bool is_frozen(const trd_engine *engine, int i)
{
    for (int k = 0; k < engine->trainable_count; k++)
        if (engine->trainable[k] == i) return false;
    return true;
}

static void run(trd_engine *engine, int begin, int end)
{
    for (int i = begin; i < end; i++) {
        test_batch b;
        OK(trd_engine_fwd_bwd(engine, test_batch_fill(&b, (uint64_t)i + 1)));
        if (i % 2) OK(trd_engine_update(engine));
    }
}

/* Entry i of a view as doubles; *count is their number. Free with free. */
static double *read_entry(trd_view view, int i, size_t *count)
{
    trd_array array = trd_view_describe(view, i);
    *count = (size_t)trd__shape_count(&array.shape);
    void *raw = malloc(*count * trd_dtype_bytes(array.dtype));
    double *values = malloc(*count * sizeof *values);
    assert_true(raw && values);
    OK(trd_view_read(view, i, raw));
    for (size_t k = 0; k < *count; k++) values[k] = trd__load(array.dtype, raw, k);
    free(raw);
    return values;
}

static bool same_entry(trd_view a, int i, trd_view b, int j)
{
    size_t m, n;
    double *x = read_entry(a, i, &m), *y = read_entry(b, j, &n);
    bool same = m == n && memcmp(x, y, m * sizeof *x) == 0;
    free(x);
    free(y);
    return same;
}

static void frozen_bits_stay(void **state)
{
    (void)state;
    static const char *const types[] = {"adamw", "adam_pax", "adafactor", "muon", "sgd"};
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        trd_engine_options o = test_adamw();
        o.optimizer.type = types[t];
        trd_engine *before = test_engine(&o);
        FREEZE(&o, lower);
        trd_engine *engine = test_engine(&o);
        run(engine, 0, 6);
        trd_view params = trd_engine_params(engine), old = trd_engine_params(before);
        assert_int_equal(trd_view_count(params), trd_view_count(old));
        for (int i = 0; i < trd_view_count(params); i++) {
            const char *name = trd_view_describe(params, i).name;
            bool frozen = strstr(name, "embed_tokens") || strstr(name, "layers.0.");
            assert_int_equal(is_frozen(engine, i), frozen);
            assert_int_equal(same_entry(params, i, old, i), frozen);
        }
        OK(trd_engine_close(before));
        OK(trd_engine_close(engine));
    }
}

/* Views list what is trained only, in the table's order, and its gradients are those of a run that trains
 * everything. */
static void views_leave_them_out(void **state)
{
    (void)state;
    trd_engine_options o = test_adamw();
    trd_engine *whole = test_engine(&o);
    FREEZE(&o, lower);
    trd_engine *engine = test_engine(&o);
    test_batch b;
    OK(trd_engine_fwd_bwd(engine, test_batch_fill(&b, 3)));
    OK(trd_engine_fwd_bwd(whole, &b.batch));
    trd_view gradients = trd_engine_gradients(engine), all = trd_engine_gradients(whole);
    trd_view optimizer = trd_engine_optimizer_state(engine);
    const trd_model *model = trd_engine_model(engine);
    assert_int_equal(trd_view_count(gradients), engine->trainable_count + TRD__SUM_COUNT);
    assert_int_equal(trd_view_count(optimizer), 2 * engine->trainable_count + 1);
    double squares = 0;
    for (int k = 0; k < engine->trainable_count; k++) {
        size_t count;
        const char *name = model->parameters[engine->trainable[k]].name;
        assert_string_equal(trd_view_describe(gradients, k).name, name);
        assert_true(strncmp(trd_view_describe(optimizer, 2 * k).name, name, strlen(name)) == 0);
        assert_true(same_entry(gradients, k, all, trd_view_find(all, name)));
        double *g = read_entry(gradients, k, &count);
        for (size_t i = 0; i < count; i++) squares += g[i] * g[i];
        free(g);
    }
    assert_int_equal(trd_view_find(gradients, "model.embed_tokens.weight"), -1);
    double denominator = test_double(gradients, "denominator");
    OK(trd_engine_update(engine));
    OK(trd_engine_update(whole));
    double norm = test_metric(engine, "gradient_norm");
    assert_true(fabs(norm / (sqrt(squares) / denominator) - 1) < 1e-9);
    assert_true(norm < test_metric(whole, "gradient_norm"));
    OK(trd_engine_close(whole));
    OK(trd_engine_close(engine));
}

static void expect_refused(const char *const *patterns, int count, const char *message)
{
    trd_engine_options o = test_adamw();
    trd_engine *engine = NULL;
    o.freeze = patterns;
    o.freeze_count = count;
    assert_int_equal(trd__engine_create_with_model(&o, test_llama(), &engine), TRD_INVALID_ARGUMENT);
    expect_message(message);
    assert_null(engine);
}

static void patterns_must_make_sense(void **state)
{
    (void)state;
    static const char *const nothing[] = {"norm", "layers\\.7\\."}, *const all[] = {"layers", "norm|embed"},
                             *const broken[] = {"layers.(0"};
    expect_refused(nothing, 2, "freeze: the regular expression \"layers\\.7\\.\" matches no parameter");
    expect_refused(all, 2, "freeze: expected parameters to train, found all 20 frozen");
    expect_refused(broken, 1, "freeze: the regular expression \"layers.(0\" is wrong");
    const char *const endless[] = {"(?R)"};
    expect_refused(endless, 1, "freeze: the pattern \"(?R)\"");
}

/* Patterns as configurations of other trainers have them. */
static void patterns_are_regular_expressions(void **state)
{
    (void)state;
    static const struct {
        const char *pattern;
        int frozen;
    } cases[] = {{"layers\\.(0|1)\\.self_attn\\.[qk]_proj", 4},
                 {"^model\\.layers\\.\\d+\\.mlp\\.", 6},
                 {".*norm.*", 5},
                 {"^(?!.*(_proj))", 6},
                 {"(?i)EMBED", 1},
                 {"weight$(?<!_proj.weight)", 6}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        trd_engine_options o = test_options();
        o.freeze = &cases[i].pattern;
        o.freeze_count = 1;
        trd_engine *engine = test_engine(&o);
        assert_int_equal(trd_engine_model(engine)->parameter_count - engine->trainable_count,
                         cases[i].frozen);
        OK(trd_engine_close(engine));
    }
}

typedef struct costs {
    double flops, forward; /* of first and of eval */
    int attentions, scatters;
    trd_plan plan;
} costs;

static costs costs_of(const char *const *patterns, int count)
{
    trd_engine_options o = test_adamw();
    costs c = {.flops = 0};
    o.freeze = patterns;
    o.freeze_count = count;
    trd_engine *engine = test_engine(&o);
    OK(trd_engine_plan(engine, &c.plan));
    const trd__family *family = engine->families;
    c.flops = family->programs[TRD__PROGRAM_FIRST].flops;
    c.forward = family->programs[TRD__PROGRAM_EVAL].flops;
    const trd_graph *graph = &family->programs[TRD__PROGRAM_FIRST].executable->program->builder->graph;
    for (int i = 0; i < graph->node_count; i++) {
        c.attentions += graph->nodes[i]->op == &trd__op_attention_grad;
        c.scatters += graph->nodes[i]->op == &trd__op_scatter_add_rows;
    }
    OK(trd_engine_close(engine));
    return c;
}

#define COSTS(patterns) costs_of(patterns, sizeof(patterns) / sizeof *(patterns))

/* No product is made for frozen parameters only: FLOPs in closed form. */
static void the_backward_pass_stops(void **state)
{
    (void)state;
    const double rows = TEST_ROWS * TEST_LENGTH, head = 2.0 * rows * TEST_VOCAB * HIDDEN;
    const double linears = 2.0 * rows * (2 * 16 * 16 + 2 * 16 * 8 + 3 * 16 * 24); /* of one layer */
    costs all = costs_of(NULL, 0), norm = COSTS(all_but_the_norm), layer = COSTS(all_but_a_layer);
    costs head_only = COSTS(embedding), upper = COSTS(lower);
    double attention = (all.forward - head - 2 * linears) / 2; /* of one layer, forward */
    assert_true(attention > 0);
    assert_true(all.flops == 3 * all.forward);
    assert_true(head_only.flops == all.flops - head); /* tied: neither the head's product nor the lookup's */
    assert_true(norm.flops == all.forward + head);
    assert_true(layer.flops == all.forward + head + 2 * (linears + attention));
    assert_true(upper.flops == layer.flops);
    assert_int_equal(all.attentions, 2);
    assert_int_equal(head_only.attentions, 2);
    assert_int_equal(layer.attentions, 1);
    assert_int_equal(norm.attentions, 0);
    assert_int_equal(all.scatters - head_only.scatters, 1);
}

static uint64_t trained_elements(const char *const *patterns, int count)
{
    trd_engine_options o = test_adamw();
    uint64_t elements = 0;
    o.freeze = patterns;
    o.freeze_count = count;
    trd_engine *engine = test_engine(&o);
    for (int k = 0; k < engine->trainable_count; k++)
        elements += (uint64_t)trd__shape_count(&engine->model->parameters[engine->trainable[k]].shape);
    OK(trd_engine_close(engine));
    return elements;
}

static void plans_are_smaller(void **state)
{
    (void)state;
    costs all = costs_of(NULL, 0), embed = COSTS(embedding), layer = COSTS(all_but_a_layer);
    const uint64_t table = TEST_VOCAB * HIDDEN; /* a multiple of a cache line */
    assert_int_equal(all.plan.parameter_bytes, layer.plan.parameter_bytes);
    assert_int_equal(all.plan.gradient_bytes - embed.plan.gradient_bytes, 4 * table);
    assert_int_equal(all.plan.optimizer_bytes - embed.plan.optimizer_bytes, 8 * table);
    assert_int_equal(all.plan.checkpoint_bytes - embed.plan.checkpoint_bytes, 8 * table);
    assert_true(layer.plan.peak_bytes < embed.plan.peak_bytes && embed.plan.peak_bytes < all.plan.peak_bytes);
    assert_true(layer.plan.activation_bytes < all.plan.activation_bytes);
    uint64_t elements = trained_elements(all_but_a_layer, 1);
    assert_true(layer.plan.gradient_bytes >= 4 * elements);
    assert_true(layer.plan.gradient_bytes < 4 * elements + 64 * 16);
    assert_true(layer.plan.flops_per_step < 0.8 * all.plan.flops_per_step);
}

static void train_step_and_switches_agree(void **state)
{
    (void)state;
    for (int clip = 0; clip < 2; clip++) {
        trd_engine_options o = test_adamw();
        o.gradient_clipping_threshold = clip;
        o.skip_step_on_nonfinite = clip; /* off with the norm: gradients are consumed as they are formed */
        FREEZE(&o, lower);
        trd_engine *pair = test_engine(&o), *fused = test_engine(&o), *separate;
        o.diagnostics[TRD_DIAGNOSTIC_ACCUMULATE] = true;
        separate = test_engine(&o);
        for (int i = 0; i < 3; i++) {
            test_batch b;
            test_batch_fill(&b, (uint64_t)i + 1);
            OK(trd_engine_fwd_bwd(pair, &b.batch));
            OK(trd_engine_fwd_bwd(separate, &b.batch));
            OK(trd_engine_update(pair));
            OK(trd_engine_update(separate));
            OK(trd_engine_train_step(fused, &b.batch));
        }
        test_expect_same(pair, fused);
        test_expect_same(pair, separate);
        OK(trd_engine_close(pair));
        OK(trd_engine_close(fused));
        OK(trd_engine_close(separate));
    }
}

/* Interrupted inside a step and resumed: the bits of a run that was not. The frozen parameters come from the
 * checkpoint, which does not fit a run with other patterns. */
static void resumes_in_a_step(void **state)
{
    trd_engine_options o = test_adamw(), plain;
    FREEZE(&o, lower);
    plain = o;
    o.checkpoint_directory = scratch_path(*state, "run");
    trd_engine *whole = test_engine(&plain), *first = test_engine(&o), *second;
    run(whole, 0, 8);
    run(first, 0, 5);
    OK(trd_engine_save(first, NULL, true, NULL));
    OK(trd_engine_close(first));
    o.init_weights_seed = 99;
    second = test_engine(&o);
    OK(trd_engine_restore(second, -1, NULL));
    assert_int_equal(trd_engine_micro_step_count(second), 1);
    run(second, 5, 8);
    test_expect_same(whole, second);
    OK(trd_engine_close(second));
    OK(trd_engine_close(whole));
    FREEZE(&o, embedding);
    trd_engine *other = test_engine(&o);
    unsigned char *params = test_state(trd_engine_params(other), NULL);
    assert_int_not_equal(trd_engine_restore(other, -1, NULL), TRD_OK);
    test_same_state(trd_engine_params(other), params);
    free(params);
    o.checkpoint_directory = NULL;
    OK(trd_engine_close(other));
}

static void exports_hold_everything(void **state)
{
    trd_engine_options o = test_adamw();
    FREEZE(&o, all_but_the_norm);
    trd_engine *engine = test_engine(&o), *loaded = NULL;
    run(engine, 0, 2);
    const char *folder = scratch_path(*state, "hub");
    OK(trd_engine_export(engine, folder, TRD_F32));
    o.load_parameters_path = folder;
    o.freeze_count = 0;
    OK(trd_engine_create(&o, &loaded));
    unsigned char *params = test_state(trd_engine_params(engine), NULL);
    test_same_state(trd_engine_params(loaded), params);
    free(params);
    OK(trd_engine_close(loaded));
    OK(trd_engine_close(engine));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frozen_bits_stay),         cmocka_unit_test(views_leave_them_out),
        cmocka_unit_test(patterns_must_make_sense), cmocka_unit_test(patterns_are_regular_expressions),
        cmocka_unit_test(the_backward_pass_stops),  cmocka_unit_test(plans_are_smaller),
        cmocka_unit_test(resumes_in_a_step),        cmocka_unit_test(train_step_and_switches_agree),
        cmocka_unit_test(exports_hold_everything),
    };
    return cmocka_run_group_tests(tests, scratch_create, scratch_remove);
}
