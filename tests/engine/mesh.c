/* Meshes without devices: what options are refused, what is switched off with a warning, plans for meshes
 * that are not there, and the programs that deferred reduction makes. */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/shape.h"
#include "engine/internal.h"
#include "graph/passes.h"
#include "support/engine.h"
#include "support/scratch.h"

typedef struct warnings {
    int count;
    char last[512];
} warnings;

static void keep_warning(void *user, trd_log_level level, const char *line)
{
    warnings *w = user;
    if (level < TRD_LOG_WARNING) return;
    w->count++;
    snprintf(w->last, sizeof w->last, "%s", line);
}

static trd_engine_options mesh_options(int rows, int data, int fsdp, warnings *w)
{
    trd_engine_options o = test_adamw();
    o.model_name = "tiny";
    o.backend = "cpu";
    o.rows = rows;
    o.mesh.ici = (trd_mesh_axes){.data = data, .fsdp = fsdp};
    *w = (warnings){0};
    o.log = (trd_log_sink){keep_warning, w};
    return o;
}

static void refused(const trd_engine_options *o, const char *message)
{
    trd_engine *engine = NULL;
    assert_int_not_equal(trd__engine_create_bare(o, &engine), TRD_OK);
    assert_null(engine);
    expect_message(message);
}

static void bad_meshes_are_refused(void **state)
{
    (void)state;
    warnings w;
    trd_engine_options o = mesh_options(6, 2, 2, &w);
    refused(&o, "micro_batch_size_to_train_on expected a multiple of data x fsdp = 4, found 6 rows");
    o = mesh_options(4, -2, 1, &w);
    refused(&o, "ici_data_parallelism expected 1 or more, found -2");
    o = mesh_options(4, 1, 1, &w);
    o.mesh.dcn.tensor = 1 << 20;
    refused(&o, "at most 65536 devices");
    o.mesh.ici = (trd_mesh_axes){.data = 1 << 16, .tensor = INT_MAX}; /* the product is beyond 64 bits */
    o.mesh.dcn = (trd_mesh_axes){.tensor = INT_MAX};
    refused(&o, "at most 65536 devices");
    const char *const axes[] = {"fspd"};
    const trd_axis_rule rule = {"embed", axes, 1};
    o = mesh_options(4, 1, 1, &w);
    o.mesh.rules = &rule;
    o.mesh.rule_count = 1;
    refused(&o, "logical_axis_rules: embed: \"fspd\" is no axis of the mesh; did you mean \"fsdp\"?");
    const char *const repeated[] = {"fsdp", "tensor", "fsdp"};
    const trd_axis_rule twice = {"embed", repeated, 3};
    o.mesh.rules = &twice;
    refused(&o, "logical_axis_rules: embed: the axis \"fsdp\" is named twice");
}

static void a_mistyped_name_of_a_rule_is_told(void **state)
{
    (void)state;
    warnings w;
    trd_engine *engine;
    const char *const axes[] = {"fsdp"};
    const trd_axis_rule rules[] = {{"embde", axes, 1}, {"mlp", axes, 1}, {"of_another_engine", axes, 1}};
    trd_engine_options o = mesh_options(4, 1, 1, &w);
    o.mesh.rules = rules;
    o.mesh.rule_count = 3;
    assert_int_equal(trd__engine_create_bare(&o, &engine), TRD_OK);
    assert_int_equal(w.count, 1);
    assert_non_null(strstr(w.last, "no parameter has a dimension \"embde\"; did you mean \"embed\"?"));
    trd__engine_destroy_bare(engine);
}

/* The backend says so; a plan is made all the same. */
static void processes_hold_all_of_the_state(void **state)
{
    (void)state;
    warnings w;
    trd_engine_options o = mesh_options(4, 1, 1, &w);
    o.mesh.process = 1;
    refused(&o, "process_id: expected 0 to 0 (num_processes - 1), found 1");
    o.mesh.process = 0;
    o.mesh.processes = 2;
    trd_engine *engine;
    trd_plan plan;
    OK(trd_plan_options(&o, &plan));
    assert_int_equal(trd_engine_create(&o, &engine), TRD_UNSUPPORTED);
    expect_message("backend cpu runs in one process, num_processes is 2");
    o.mesh.process = 2;
    refused(&o, "process_id: expected 0 to 1 (num_processes - 1), found 2");
    o.mesh.process = 1;
    o.mesh.dcn.fsdp = 2;
    refused(&o, "dcn_fsdp_parallelism: only the data axis may lie between processes");
    o.mesh.dcn = (trd_mesh_axes){.data = 2};
    o.mesh.shard_optimizer_over_data = true;
    refused(&o, "shard_optimizer_over_data: with several processes it would leave state on other hosts");
}

static void one_device_is_no_mesh(void **state)
{
    (void)state;
    warnings w;
    trd_engine *engine = NULL;
    trd_engine_options o = mesh_options(4, 2, 2, &w);
    assert_int_equal(trd_engine_create(&o, &engine), TRD_UNSUPPORTED);
    expect_message("backend cpu: has 1 device, the mesh has 4");
}

static void indivisible_batches_may_be_replicated(void **state)
{
    (void)state;
    warnings w;
    trd_engine *engine;
    trd_engine_options o = mesh_options(6, 2, 2, &w);
    o.mesh.indivisible_batch = TRD_INDIVISIBLE_REPLICATE;
    OK(trd__engine_create_bare(&o, &engine));
    assert_int_equal(w.count, 1);
    assert_non_null(strstr(w.last,
                           "6 rows are no multiple of data x fsdp = 4: they are split 2 ways, so that "
                           "each row is computed 2 times"));
    trd__engine_destroy_bare(engine);
    /* A rule of the caller's says how the batch is split. */
    const char *const axes[] = {"data"};
    const trd_axis_rule rule = {"activation_batch", axes, 1};
    o = mesh_options(6, 2, 2, &w);
    o.mesh.rules = &rule;
    o.mesh.rule_count = 1;
    OK(trd__engine_create_bare(&o, &engine));
    assert_int_equal(w.count, 0);
    trd__engine_destroy_bare(engine);
}

static trd_plan plan_of(const trd_engine_options *o)
{
    trd_plan plan;
    OK(trd_plan_options(o, &plan));
    return plan;
}

static void plans_are_of_each_device(void **state)
{
    (void)state;
    warnings w;
    trd_engine_options o = mesh_options(4, 1, 1, &w);
    trd_plan whole = plan_of(&o);
    assert_int_equal(whole.devices, 1);
    assert_true(whole.compiled && whole.activation_bytes > 0);
    assert_true(whole.flops_per_device == whole.flops_per_step);
    o = mesh_options(4, 2, 2, &w);
    trd_plan plan = plan_of(&o);
    assert_int_equal(plan.devices, 4);
    assert_false(plan.compiled);
    assert_int_equal(plan.activation_bytes, 0);
    assert_true(plan.flops_per_step == whole.flops_per_step);
    assert_true(plan.flops_per_device == whole.flops_per_step / 4);
    assert_true(plan.parameter_bytes < whole.parameter_bytes * 55 / 100); /* norms are whole */
    assert_true(plan.parameter_bytes >= whole.parameter_bytes / 2);
    assert_int_equal(plan.checkpoint_bytes, whole.checkpoint_bytes);
    o.mesh.shard_optimizer_over_data = true;
    trd_plan sharded = plan_of(&o);
    assert_true(sharded.optimizer_bytes < plan.optimizer_bytes * 55 / 100);
    assert_int_equal(sharded.parameter_bytes, plan.parameter_bytes);
    assert_int_equal(w.count, 0);
    o.mesh.defer_grad_reduction = true;
    o.gradient_accumulation_steps = 2;
    trd_plan deferred = plan_of(&o); /* one whole gradient on each place along data, as before */
    assert_int_equal(deferred.gradient_bytes, sharded.gradient_bytes);
}

static void what_cannot_be_split_is_said(void **state)
{
    (void)state;
    warnings w;
    trd_engine *engine;
    trd_engine_options o = mesh_options(4, 1, 2, &w);
    o.mesh.shard_optimizer_over_data = true;
    OK(trd__engine_create_bare(&o, &engine));
    trd__engine_destroy_bare(engine);
    assert_int_equal(w.count, 1);
    assert_non_null(strstr(w.last, "shard_optimizer_over_data: the mesh has one place along data"));
    o = mesh_options(7, 7, 1, &w);
    o.mesh.shard_optimizer_over_data = true;
    OK(trd__engine_create_bare(&o, &engine));
    assert_int_equal(w.count, 1);
    assert_non_null(
        strstr(w.last, "arrays of the optimizer's state have no dimension that data = 7 divides"));
    assert_non_null(strstr(w.last, engine->layout[TRD__ROLE_OPTIMIZER].entries[0].name));
    trd__engine_destroy_bare(engine);
    o = mesh_options(3, 1, 3, &w);
    OK(trd__engine_create_bare(&o, &engine));
    assert_int_equal(w.count, 1);
    assert_non_null(
        strstr(w.last, "ici_fsdp_parallelism: no parameter has a dimension that 3 places divide"));
    trd__engine_destroy_bare(engine);
}

static void switched_off(const trd_engine_options *options, warnings *w, const char *why)
{
    trd_engine *engine;
    trd_engine_options o = *options;
    o.mesh.defer_grad_reduction = true;
    OK(trd__engine_create_bare(&o, &engine));
    assert_int_equal(trd__mesh_replicas(engine), 1);
    assert_int_equal(w->count, 1);
    assert_non_null(strstr(w->last, "defer_grad_reduction: gradients are reduced with every micro-batch"));
    if (!strstr(w->last, why)) fail_msg("expected \"%s\", found \"%s\"", why, w->last);
    trd__engine_destroy_bare(engine);
}

static void deferral_is_switched_off(void **state)
{
    (void)state;
    warnings w;
    trd_engine_options o = mesh_options(4, 1, 4, &w);
    switched_off(&o, &w, "one place along data");
    o = mesh_options(4, 4, 1, &w);
    o.dropout_rate = 0.1;
    switched_off(&o, &w, "dropout counts micro-batches");
    const char *const reversed[] = {"fsdp", "data"}, *const data[] = {"data"};
    const trd_axis_rule batch = {"activation_batch", reversed, 2}, embed = {"embed", data, 1};
    o = mesh_options(4, 2, 2, &w);
    o.mesh.rules = &batch;
    o.mesh.rule_count = 1;
    switched_off(&o, &w, "not split over data before all other axes");
    o = mesh_options(4, 4, 1, &w);
    o.mesh.rules = &embed;
    o.mesh.rule_count = 1;
    switched_off(&o, &w, "split parameters over data");
}

/* Programs as the compiler would get them. */
typedef struct seen {
    int replicated, plain, sums, reductions;
    int64_t rows;
} seen;

static trd_status look(const trd__program *program, const trd__placement *placement, void *user)
{
    assert_non_null(placement);
    seen *s = user;
    if (trd__verify(program) != TRD_OK) fail_msg("%s", trd_error_message());
    bool replicated = program->replicas > 1;
    s->replicated += replicated;
    s->plain += !replicated;
    for (int i = 0; i < program->builder->graph.node_count; i++) {
        const trd_node *n = program->builder->graph.nodes[i];
        s->sums += !strcmp(n->op->name, "replica_sum");
        if (n->op != &trd__op_input || !n->name || strcmp(n->name, "token_ids") != 0) continue;
        if (replicated) s->rows = n->results[0].shape.dim[0];
    }
    return TRD_OK;
}

static seen programs_of(const trd_engine_options *o, trd_loss_function loss, trd_status expected)
{
    seen s = {0};
    trd_engine *engine;
    const trd_batch batch = {.rows = o->rows, .length = o->length};
    trd__family *family;
    OK(trd__engine_create_bare(o, &engine));
    engine->visit = look;
    engine->visit_user = &s;
    if (loss) engine->loss = loss;
    OK(trd__family_find(engine, &batch, &family));
    trd_status status = trd__family_compile(engine, family);
    if (status != expected) fail_msg("%s", trd_error_message());
    trd__engine_destroy_bare(engine);
    return s;
}

static void deferred_programs_work_on_local_rows(void **state)
{
    (void)state;
    warnings w;
    trd_engine_options o = mesh_options(8, 4, 1, &w);
    o.mesh.defer_grad_reduction = true;
    seen s = programs_of(&o, NULL, TRD_OK);
    assert_int_equal(s.replicated, 2); /* first and accum; train_step is the pair */
    assert_int_equal(s.plain, 2);      /* eval and update */
    assert_int_equal(s.sums, 4);       /* sum and denominator of each */
    assert_int_equal(s.rows, 2);
    o.mesh.defer_grad_reduction = false;
    s = programs_of(&o, NULL, TRD_OK);
    assert_int_equal(s.replicated, 0);
    assert_int_equal(s.plain, 5);
    assert_int_equal(s.sums, 0);
}

static trd_loss_output mean_loss(trd_builder *b, const trd_model *model, const trd_inputs *in, void *user)
{
    (void)user;
    return trd_loss(trd_loss_mean(b, trd_sum_all(b, trd_model_token_logprobs(b, model, in, (trd_value){0}))));
}

static trd_loss_output with_mean(trd_builder *b, const trd_model *model, const trd_inputs *in, void *user)
{
    trd_loss_output output = trd_loss_sft(b, model, in, user);
    trd_value weights = trd_inputs_get(b, in, "loss_weights");
    trd_loss_add_metric(b, &output, "share", trd_loss_mean(b, trd_sum_all(b, weights)));
    return output;
}

static void losses_have_to_be_sums(void **state)
{
    (void)state;
    warnings w;
    trd_engine_options o = mesh_options(8, 4, 1, &w);
    o.mesh.defer_grad_reduction = true;
    programs_of(&o, mean_loss, TRD_UNSUPPORTED);
    expect_message("the primary loss expected a sum and a denominator over the rows of the payload, found a "
                   "denominator that is the same for any rows");
    expect_message("set defer_grad_reduction: false");
    programs_of(&o, with_mean, TRD_UNSUPPORTED);
    expect_message("share expected a sum and a denominator");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mistyped_name_of_a_rule_is_told),     cmocka_unit_test(bad_meshes_are_refused),
        cmocka_unit_test(processes_hold_all_of_the_state),       cmocka_unit_test(one_device_is_no_mesh),
        cmocka_unit_test(indivisible_batches_may_be_replicated), cmocka_unit_test(plans_are_of_each_device),
        cmocka_unit_test(what_cannot_be_split_is_said),          cmocka_unit_test(deferral_is_switched_off),
        cmocka_unit_test(deferred_programs_work_on_local_rows),  cmocka_unit_test(losses_have_to_be_sums),
    };
    return cmocka_run_group_tests_name("engine/mesh", tests, NULL, NULL);
}
