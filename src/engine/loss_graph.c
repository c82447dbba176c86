/* Traces a loss into the programs that run micro-batches. The differentiated value is the loss's unreduced
 * sum, so that gradients of any number of micro-batches add up before they are divided once. Invariant: the
 * sums are f64, and "first" is the same graph as "accum" with every accumulator a constant 0. */
#include "autodiff/autodiff.h"
#include "base/alloc.h"
#include "base/shape.h"
#include "engine/internal.h"
#include "graph/passes.h"
#include "ops/rules.h"

static trd_value to_f64(trd_builder *b, trd_value x)
{
    return trd_value_dtype(x) == TRD_F64 ? x : trd_cast(b, x, TRD_F64);
}

static trd_status check_metric(const char *what, const trd_weighted_metric *metric)
{
    if (trd_is_null(metric->unreduced_sum) || trd_is_null(metric->denominator))
        return trd__fail(TRD_INVALID_ARGUMENT,
                         "tracing the loss: %s expected a weighted metric (unreduced sum and denominator), "
                         "found a null value; use trd_weighted or trd_loss_mean",
                         what);
    trd_shape sum = trd_value_shape(metric->unreduced_sum),
              denominator = trd_value_shape(metric->denominator);
    char text[TRD__SHAPE_TEXT];
    if (sum.rank != 0 || denominator.rank != 0)
        return trd__fail(TRD_SHAPE, "tracing the loss: %s expected scalars, found shape %s", what,
                         trd__shape_text(sum.rank ? &sum : &denominator, text));
    return TRD_OK;
}

/* Binds the model's state, as the micro-batch finds it. */
static trd_status bind_states(trd__trace *trace)
{
    const int count = trace->engine->model->state_count;
    trd__arena *arena = trace->program->builder->graph.arena;
    trd__states *states = trd__arena_alloc(arena, 1, sizeof *states);
    trd_value *current = trd__arena_alloc(arena, (size_t)count, sizeof *current);
    if (!states || !current) return TRD_NO_MEMORY;
    for (int i = 0; i < count; i++) current[i] = trd__trace_input(trace, TRD__ROLE_MODEL_STATE, i);
    states->current = current;
    states->next = trd__arena_alloc(arena, (size_t)count, sizeof *states->next);
    trace->inputs.states = states;
    return states->next ? TRD_OK : TRD_NO_MEMORY;
}

/* Binds parameters, model state and the named inputs, as a loss or a forward graph sees them. */
static trd_status bind_inputs(trd__trace *trace, bool training)
{
    trd_builder *b = trace->program->builder;
    const trd_model *model = trace->engine->model;
    const trd__family *family = trace->family;
    trd__arena *arena = b->graph.arena;
    trd_value *parameters = trd__arena_alloc(arena, (size_t)model->parameter_count, sizeof *parameters);
    trd_value *stacks = trd__arena_alloc(arena, (size_t)model->stack_count, sizeof *stacks);
    trd__named_value *named = trd__arena_alloc(arena, (size_t)family->inputs.count, sizeof *named);
    if (!parameters || !stacks || !named) return TRD_NO_MEMORY;
    for (int i = 0; i < model->stack_count; i++) stacks[i] = trd__trace_input(trace, TRD__ROLE_PARAMS, i);
    trd__model_unstack(b, model, stacks, false, parameters);
    for (int i = 0; i < family->inputs.count; i++)
        named[i] =
            (trd__named_value){family->inputs.entries[i].name, trd__trace_input(trace, TRD__ROLE_INPUTS, i)};
    trace->inputs = (trd_inputs){.dtype = trace->engine->options.dtype,
                                 .parameters = parameters,
                                 .stacks = stacks,
                                 .named = named,
                                 .named_count = family->inputs.count,
                                 .constants = family->constants,
                                 .constant_count = family->constant_count,
                                 .rows = {.segments = named[TRD__INPUT_SEGMENTS].value,
                                          .positions = named[TRD__INPUT_POSITIONS].value},
                                 .training = training};
    TRD_TRY(bind_states(trace));
    return trd_builder_status(b);
}

static trd_status record_info(trd_engine *engine, const trd_loss_output *output, trd__loss_info *info)
{
    *info = (trd__loss_info){.eps = output->primary_loss.eps,
                             .min_denom = output->primary_loss.min_denom,
                             .aux_count = output->aux_count};
    for (int i = 0; i < output->aux_count; i++) {
        const trd_aux_metric *aux = &output->aux_metrics[i];
        const char *name;
        TRD_TRY(trd__metrics_name_of_caller(engine, aux->name, &name));
        info->aux[i] = (trd__aux_info){name, aux->value.eps, aux->value.min_denom};
    }
    return TRD_OK;
}

/* What the model left becomes the next micro-batch's state; outside training it left nothing. */
static void store_states(trd__trace *trace)
{
    const trd_value *next = trace->inputs.states->next;
    for (int i = 0; i < trace->engine->model->state_count; i++)
        if (!trd_is_null(next[i])) trd__trace_output(trace, TRD__ROLE_MODEL_STATE, i, next[i]);
}

/* Marks what depends on rows of the payload, of which each replica has others. */
static void mark_rows(const trd__trace *trace, bool *by_rows)
{
    const trd_graph *graph = &trace->program->builder->graph;
    for (int i = 0; i < graph->node_count; i++) {
        const trd_node *n = graph->nodes[i];
        by_rows[i] = false;
        if (n->op == &trd__op_input) {
            const trd__input_attr *attr = n->attr;
            by_rows[i] = trace->program->slots[attr->slot].entries[attr->entry].replica == TRD__REPLICA_ROWS;
        }
        for (int j = 0; j < n->input_count && !by_rows[i]; j++)
            by_rows[i] = n->inputs[j].node && by_rows[n->inputs[j].node->id];
    }
}

static trd_status check_sum(const char *what, const bool *by_rows, const trd_weighted_metric *metric)
{
    if (by_rows[metric->unreduced_sum.node->id] && by_rows[metric->denominator.node->id]) return TRD_OK;
    return trd__fail(TRD_UNSUPPORTED,
                     "tracing the loss: %s expected a sum and a denominator over the rows of the payload, "
                     "found a %s that is the same for any rows, so that replicas cannot add theirs up; set "
                     "defer_grad_reduction: false",
                     what, by_rows[metric->unreduced_sum.node->id] ? "denominator" : "sum");
}

/* With replicas each metric is summed over them, numerator and denominator. */
static trd_status check_sums(const trd__trace *trace, const trd_loss_output *output)
{
    const trd_graph *graph = &trace->program->builder->graph;
    bool *by_rows = trd__arena_alloc(graph->arena, (size_t)graph->node_count, sizeof *by_rows);
    if (!by_rows) return TRD_NO_MEMORY;
    mark_rows(trace, by_rows);
    TRD_TRY(check_sum("the primary loss", by_rows, &output->primary_loss));
    for (int i = 0; i < output->aux_count; i++)
        TRD_TRY(check_sum(output->aux_metrics[i].name, by_rows, &output->aux_metrics[i].value));
    return TRD_OK;
}

/* Sum and denominator of a metric become two results. */
static void put_metric(trd__trace *trace, int result, const trd_weighted_metric *metric)
{
    trd_builder *b = trace->program->builder;
    const trd_value parts[] = {metric->unreduced_sum, metric->denominator};
    for (int i = 0; i < 2; i++) {
        trd_value part = to_f64(b, parts[i]);
        trd__trace_output(trace, TRD__ROLE_RESULTS, result + i,
                          trace->replicated ? trd__replica_sum(b, part) : part);
    }
}

/* Runs the loss function and makes its metrics results of the program, which is then tidied. */
static trd_status trace_loss(trd__trace *trace, bool training, trd_loss_function loss, void *user,
                             trd__loss_info *info)
{
    trd_builder *b = trace->program->builder;
    TRD_TRY(bind_inputs(trace, training));
    trd_loss_output output = loss(b, trace->engine->model, &trace->inputs, user);
    TRD_TRY(trd_builder_status(b));
    TRD_TRY(check_metric("the primary loss", &output.primary_loss));
    for (int i = 0; i < output.aux_count; i++)
        TRD_TRY(check_metric(output.aux_metrics[i].name, &output.aux_metrics[i].value));
    TRD_TRY(record_info(trace->engine, &output, info));
    store_states(trace);
    if (trace->replicated) TRD_TRY(check_sums(trace, &output));
    put_metric(trace, TRD__RESULT_LOSS, &output.primary_loss);
    for (int i = 0; i < output.aux_count; i++)
        put_metric(trace, TRD__RESULT_AUX + 2 * i, &output.aux_metrics[i].value);
    TRD_TRY(trd_builder_status(b));
    return trd__cse(trace->program);
}

trd_status trd__trace_eval(trd__trace *trace, trd__loss_info *info)
{
    const trd_engine *engine = trace->engine;
    trd_loss_function loss = engine->eval_loss ? engine->eval_loss : engine->loss;
    void *user = engine->eval_loss ? engine->eval_loss_user : engine->loss_user;
    TRD_TRY(trace_loss(trace, false, loss, user, info));
    return trd__dce(trace->program);
}

/* Value of result entry as the program now has it, after passes and merges. */
static trd_value traced_result(const trd__trace *trace, int entry)
{
    const trd__program *program = trace->program;
    for (int i = 0; i < program->output_count; i++) {
        const trd__output *output = &program->outputs[i];
        if (output->slot == trace->slot[TRD__ROLE_RESULTS] && output->entry == entry)
            return trd__autodiff_current(program->builder, output->value);
    }
    return (trd_value){NULL, 0};
}

/* What contributions to gradient i are added to: the set's entry, or 0 where it is to be defined. */
static trd_value accumulator(trd__trace *trace, bool accumulate, int i)
{
    const trd__entry *entry = &trace->engine->layout[TRD__ROLE_GRADIENTS].entries[i];
    bool overwritten = trace->engine->model->stacks[trace->engine->trainable[i]].one.flags != 0;
    if (accumulate && !overwritten) return trd__trace_input(trace, TRD__ROLE_GRADIENTS, i);
    return trd_constant_fill(trace->program->builder, entry->dtype, entry->shape, 0.0);
}

static trd_status add_gradients(trd__trace *trace, bool accumulate, trd_value loss, trd_value *results)
{
    trd_builder *b = trace->program->builder;
    const trd_engine *engine = trace->engine;
    int count = engine->trainable_count;
    trd__gradient *gradients = trd__arena_alloc(b->graph.arena, (size_t)count, sizeof *gradients);
    if (!gradients) return TRD_NO_MEMORY;
    for (int i = 0; i < count; i++) {
        gradients[i].of = trd__trace_input(trace, TRD__ROLE_PARAMS, engine->trainable[i]);
        gradients[i].accumulator = accumulator(trace, accumulate, i);
    }
    TRD_TRY(trd_builder_status(b));
    TRD_TRY(trd__autodiff(b, loss, gradients, count));
    trace->backward_end = b->graph.node_count;
    for (int i = 0; i < trace->program->output_count; i++)
        trace->program->outputs[i].value = trd__autodiff_current(b, trace->program->outputs[i].value);
    for (int i = 0; i < count; i++) {
        unsigned flags = engine->model->stacks[engine->trainable[i]].one.flags;
        results[i] = gradients[i].result;
        if (accumulate && (flags & TRD_PARAM_OVERWRITE_MAX))
            results[i] = trd_max(b, trd__trace_input(trace, TRD__ROLE_GRADIENTS, i), results[i]);
        trd__trace_output(trace, TRD__ROLE_GRADIENTS, i, results[i]);
    }
    return trd_builder_status(b);
}

/* The step's running sums behind the gradients. */
static void add_sums(trd__trace *trace, bool accumulate, const trd__loss_info *info, trd_value *sums)
{
    trd_builder *b = trace->program->builder;
    int base = trace->engine->trainable_count;
    trd_value loss = traced_result(trace, TRD__RESULT_LOSS);
    trd_value denominator = traced_result(trace, TRD__RESULT_DENOMINATOR);
    trd_value zero = trd_scalar(b, TRD_F64, 0.0), one = trd_scalar(b, TRD_F64, 1.0);
    const trd_value terms[TRD__SUM_COUNT] = {
        [TRD__SUM_DENOMINATOR] = denominator,
        [TRD__SUM_LOSS] = loss,
        [TRD__SUM_MEANS] = trd_mul(b, loss, trd_weighted_scale(b, denominator, info->eps, info->min_denom)),
        [TRD__SUM_NONEMPTY] = trd_select(b, trd_equal(b, denominator, zero), zero, one)};
    for (int i = 0; i < TRD__SUM_COUNT; i++) {
        trd_value before = accumulate ? trd__trace_input(trace, TRD__ROLE_GRADIENTS, base + i) : zero;
        sums[i] = trd_add(b, before, terms[i]);
        trd__trace_output(trace, TRD__ROLE_GRADIENTS, base + i, sums[i]);
    }
}

trd_status trd__trace_micro_batch(trd__trace *trace, bool accumulate, trd__loss_info *info,
                                  trd_value *gradients, trd_value *sums)
{
    trd_engine *engine = trace->engine;
    TRD_TRY(trace_loss(trace, true, engine->loss, engine->loss_user, info));
    trd_value loss = traced_result(trace, TRD__RESULT_LOSS);
    if (trace->replicated) loss = loss.node->inputs[0]; /* what this replica has of it */
    TRD_TRY(add_gradients(trace, accumulate, loss, gradients));
    trace->differentiated = true;
    add_sums(trace, accumulate, info, sums);
    return trd_builder_status(trace->program->builder);
}

trd_status trd__trace_forward(trd__trace *trace, trd_forward_function build, void *user, trd_value *value)
{
    trd_builder *b = trace->program->builder;
    TRD_TRY(bind_inputs(trace, false));
    *value = build(b, trace->engine->model, &trace->inputs, user);
    TRD_TRY(trd_builder_status(b));
    if (trd_is_null(*value))
        return trd__fail(TRD_INVALID_ARGUMENT,
                         "tracing a forward graph: expected one value, found a null value");
    return TRD_OK;
}
