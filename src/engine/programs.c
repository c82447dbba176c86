/* Builds and compiles the engine's programs, each once. Invariant: which sets a program binds, and how, is
 * the table below and nowhere else; slots come in the order of the roles. */
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "base/shape.h"
#include "engine/internal.h"
#include "graph/passes.h"
#include "ops/attrs.h"

static const trd__access bindings[TRD__PROGRAM_COUNT][TRD__ROLE_COUNT] = {
    [TRD__PROGRAM_FIRST] = {[TRD__ROLE_PARAMS] = TRD__READ,
                            [TRD__ROLE_GRADIENTS] = TRD__WRITE,
                            [TRD__ROLE_MODEL_STATE] = TRD__UPDATE,
                            [TRD__ROLE_INPUTS] = TRD__READ,
                            [TRD__ROLE_RESULTS] = TRD__WRITE},
    [TRD__PROGRAM_ACCUM] = {[TRD__ROLE_PARAMS] = TRD__READ,
                            [TRD__ROLE_GRADIENTS] = TRD__UPDATE,
                            [TRD__ROLE_MODEL_STATE] = TRD__UPDATE,
                            [TRD__ROLE_INPUTS] = TRD__READ,
                            [TRD__ROLE_RESULTS] = TRD__WRITE},
    [TRD__PROGRAM_EVAL] = {[TRD__ROLE_PARAMS] = TRD__READ,
                           [TRD__ROLE_MODEL_STATE] = TRD__READ,
                           [TRD__ROLE_INPUTS] = TRD__READ,
                           [TRD__ROLE_RESULTS] = TRD__WRITE},
    [TRD__PROGRAM_FORWARD] = {[TRD__ROLE_PARAMS] = TRD__READ,
                              [TRD__ROLE_MODEL_STATE] = TRD__READ,
                              [TRD__ROLE_INPUTS] = TRD__READ,
                              [TRD__ROLE_RESULTS] = TRD__WRITE},
    [TRD__PROGRAM_UPDATE] = {[TRD__ROLE_PARAMS] = TRD__UPDATE,
                             [TRD__ROLE_OPTIMIZER] = TRD__UPDATE,
                             [TRD__ROLE_GRADIENTS] = TRD__READ,
                             [TRD__ROLE_SCALARS] = TRD__READ,
                             [TRD__ROLE_RESULTS] = TRD__WRITE},
    [TRD__PROGRAM_TRAIN_STEP] = {[TRD__ROLE_PARAMS] = TRD__UPDATE,
                                 [TRD__ROLE_OPTIMIZER] = TRD__UPDATE,
                                 [TRD__ROLE_GRADIENTS] = TRD__WRITE,
                                 [TRD__ROLE_MODEL_STATE] = TRD__UPDATE,
                                 [TRD__ROLE_INPUTS] = TRD__READ,
                                 [TRD__ROLE_SCALARS] = TRD__READ,
                                 [TRD__ROLE_RESULTS] = TRD__WRITE},
    [TRD__PROGRAM_DEFINE] = {[TRD__ROLE_GRADIENTS] = TRD__WRITE, [TRD__ROLE_CONTRIBUTION] = TRD__READ},
    [TRD__PROGRAM_ADD] = {[TRD__ROLE_GRADIENTS] = TRD__UPDATE, [TRD__ROLE_CONTRIBUTION] = TRD__READ}};

static const char *const role_names[] = {
#define ROLE_NAME(name, text) text,
    TRD__ROLE_LIST(ROLE_NAME)
#undef ROLE_NAME
};
static const char *const program_names[] = {
#define PROGRAM_NAME(name, text) text,
    TRD__PROGRAM_LIST(PROGRAM_NAME)
#undef PROGRAM_NAME
};

const char *trd__program_name(trd__program_kind kind)
{
    return program_names[kind];
}

/* Without clipping and decisions to skip, a train_step needs no gradient but while it is formed. */
bool trd__consumes_gradients(const trd_engine *engine)
{
    const trd_engine_options *o = &engine->options;
    return o->gradient_clipping_threshold == 0 && !o->skip_step_on_spikes && !o->skip_step_on_nonfinite;
}

/* Gradients that are reduced by update only leave the micro-batch's program unreduced. */
bool trd__step_is_pair(const trd_engine *engine)
{
    return trd__mesh_replicas(engine) > 1;
}

bool trd__loop_fuses(const trd_engine *engine)
{
    for (int i = 0; i < TRD_DIAGNOSTIC_COUNT; i++)
        if (engine->options.diagnostics[i]) return false; /* they are about the pair */
    if (trd__step_is_pair(engine)) return false;
    /* An adapter may say of a payload that its step goes on, which is too late for the loop. */
    return engine->options.gradient_accumulation_steps == 1 && !engine->adapter &&
           trd__consumes_gradients(engine);
}

trd__access trd__program_access(const trd_engine *engine, trd__program_kind kind, trd__role role)
{
    bool consumed = kind == TRD__PROGRAM_TRAIN_STEP && role == TRD__ROLE_GRADIENTS;
    return consumed && trd__consumes_gradients(engine) ? 0 : bindings[kind][role];
}

trd_value trd__trace_input(trd__trace *trace, trd__role role, int entry)
{
    return trd__program_input(trace->program, trace->slot[role], entry);
}

void trd__trace_output(trd__trace *trace, trd__role role, int entry, trd_value value)
{
    if (trace->slot[role] < 0) return; /* consumed within the program */
    trd__program_output(trace->program, trace->slot[role], entry, value);
}

/* Programs that work on gradients of replicas, each on its own. */
static bool has_replicas(trd__program_kind kind)
{
    return kind == TRD__PROGRAM_FIRST || kind == TRD__PROGRAM_ACCUM || kind == TRD__PROGRAM_DEFINE ||
           kind == TRD__PROGRAM_ADD;
}

static trd_status trace_begin(trd_engine *engine, const trd__family *family, trd__program_kind kind,
                              trd__trace *trace)
{
    *trace = (trd__trace){.engine = engine, .family = family};
    TRD_TRY(trd__program_create(program_names[kind], &trace->program));
    if (has_replicas(kind)) trace->program->replicas = trd__mesh_replicas(engine);
    trace->replicated = trace->program->replicas > 1;
    trace->program->precision = (trd__precision)engine->options.matmul_precision;
    for (int role = 0; role < TRD__ROLE_COUNT; role++) {
        trace->slot[role] = -1;
        trd__access access = trd__program_access(engine, kind, role);
        if (!access || (kind == TRD__PROGRAM_FORWARD && role == TRD__ROLE_RESULTS)) continue;
        const trd__layout *layout =
            role == TRD__ROLE_INPUTS ? &family->inputs : trd__mesh_device_layout(engine, (trd__role)role);
        trace->slot[role] =
            trd__program_slot(trace->program, role_names[role], access, layout->entries, layout->count);
    }
    return trd_builder_status(trace->program->builder);
}

/* FLOPs of the final projection per row: rows without weight do not pay them. */
static double head_flops_per_row(const trd__program *program)
{
    const trd_graph *graph = &program->builder->graph;
    double total = 0;
    for (int i = 0; i < graph->node_count; i++) {
        const trd_node *n = graph->nodes[i];
        bool head = n->op == &trd__op_token_logprobs || n->op == &trd__op_token_logprobs_grad;
        if (!head || !n->op->flops) continue;
        trd_shape hidden = trd_value_shape(n->inputs[0]);
        double rows = 1;
        for (int axis = 0; axis + 1 < hidden.rank; axis++) rows *= (double)hidden.dim[axis];
        if (rows > 0) total += n->op->flops(n) / rows;
    }
    return total;
}

/* What autodiff left is tidied, and recomputed where the rule says. */
static trd_status tidy(trd__trace *trace, trd__program_kind kind, trd__compiled *compiled)
{
    trd__program *program = trace->program;
    TRD_TRY(trd__dce(program));
    compiled->kind = kind;
    compiled->flops = trd__program_flops(program);
    compiled->flops_per_weighted_row = head_flops_per_row(program);
    if (trace->differentiated) TRD_TRY(trd__remat(program, compiled->rule));
    compiled->recomputed_flops = trd__recomputed_flops(program);
    return TRD_OK;
}

static trd_status finish(trd__trace *trace, trd__compiled *compiled)
{
    trd_engine *engine = trace->engine;
    const trd__program *program = trace->program;
    if (engine->visit) return engine->visit(program, trd__mesh_placement(engine), engine->visit_user);
    if (engine->away) return TRD_OK;
    const trd__backend_table *table = engine->backend->table;
    TRD_TRY(table->compile(engine->backend, program, &(trd__compile_options){0}, &compiled->executable));
    compiled->memory = table->memory(compiled->executable);
    trd_status status = trd__remat_admit(engine, trace->family, compiled);
    if (status == TRD_OK) return TRD_OK;
    table->executable_free(engine->backend, compiled->executable);
    compiled->executable = NULL;
    return status;
}

/* An accumulator, summed over the replicas where each has its own: the one reduction of a step. */
static trd_value reduced_gradient(trd__trace *trace, int i)
{
    trd_builder *b = trace->program->builder;
    trd_value gradient = trd__trace_input(trace, TRD__ROLE_GRADIENTS, i);
    if (trd__mesh_replicas(trace->engine) == 1) return gradient;
    const trd__entry *entry = &trace->engine->layout[TRD__ROLE_GRADIENTS].entries[i];
    return trd_axes(b, trd_reduce_sum(b, gradient, 1, false, entry->dtype), entry->axes);
}

static trd_status build(trd__trace *trace, trd__program_kind kind, trd__compiled *compiled)
{
    const trd_engine *engine = trace->engine;
    size_t count = (size_t)engine->trainable_count;
    trd_value *gradients = trd__arena_alloc(trace->program->builder->graph.arena, count, sizeof *gradients);
    trd_value sums[TRD__SUM_COUNT];
    if (!gradients) return TRD_NO_MEMORY;
    if (kind == TRD__PROGRAM_EVAL) return trd__trace_eval(trace, &compiled->loss);
    if (bindings[kind][TRD__ROLE_CONTRIBUTION]) return trd__trace_merge(trace, kind == TRD__PROGRAM_ADD);
    if (kind != TRD__PROGRAM_UPDATE) {
        bool accumulate = kind == TRD__PROGRAM_ACCUM;
        TRD_TRY(trd__trace_micro_batch(trace, accumulate, &compiled->loss, gradients, sums));
        if (kind != TRD__PROGRAM_TRAIN_STEP) return TRD_OK;
    } else {
        for (size_t i = 0; i < count; i++) gradients[i] = reduced_gradient(trace, (int)i);
        for (size_t i = 0; i < TRD__SUM_COUNT; i++)
            sums[i] = trd__trace_input(trace, TRD__ROLE_GRADIENTS, (int)(count + i));
    }
    const trd_graph *graph = &trace->program->builder->graph;
    int formed = graph->node_count;
    TRD_TRY(trd__trace_update(trace, compiled->loss.eps, compiled->loss.min_denom, gradients, sums));
    for (int i = formed; i < graph->node_count; i++)
        if (graph->nodes[i]->op->flops)
            compiled->optimizer_flops += graph->nodes[i]->op->flops(graph->nodes[i]);
    return kind == TRD__PROGRAM_TRAIN_STEP ? trd__hoist(trace->program, trace->backward_end) : TRD_OK;
}

trd_status trd__program_trace(trd_engine *engine, const trd__family *family, trd__program_kind kind,
                              trd__trace *trace, trd__compiled *compiled)
{
    TRD_TRY(trace_begin(engine, family, kind, trace));
    trace->program->builder->remat = compiled->rule;
    TRD_TRY(build(trace, kind, compiled));
    return tidy(trace, kind, compiled);
}

static trd_status compile(trd_engine *engine, trd__family *family, trd__program_kind kind,
                          trd__compiled *compiled)
{
    trd__trace trace = {.program = NULL};
    trd_status status = trd__remat_choose(engine, family, kind, &compiled->rule);
    if (status == TRD_OK) status = trd__program_trace(engine, family, kind, &trace, compiled);
    if (status == TRD_OK) status = finish(&trace, compiled);
    trd__program_free(trace.program);
    return status == TRD_OK ? TRD_OK : trd__fail_in(status, "compiling %s", program_names[kind]);
}

trd_status trd__program_get(trd_engine *engine, trd__family *family, trd__program_kind kind,
                            const trd__compiled **compiled)
{
    trd__compiled *program = &family->programs[kind];
    *compiled = program;
    return program->executable ? TRD_OK : compile(engine, family, kind, program);
}

trd_status trd__merge_get(trd_engine *engine, bool add, const trd__compiled **compiled)
{
    trd__compiled *program = &engine->merges[add];
    *compiled = program;
    if (program->executable) return TRD_OK;
    return compile(engine, NULL, add ? TRD__PROGRAM_ADD : TRD__PROGRAM_DEFINE, program);
}

trd_status trd__update_get(trd_engine *engine, double eps, double min_denom, const trd__compiled **compiled)
{
    for (trd__update *u = engine->updates; u; u = u->next)
        if (u->compiled.loss.eps == eps && u->compiled.loss.min_denom == min_denom) {
            *compiled = &u->compiled;
            return TRD_OK;
        }
    trd__update *u = trd__calloc(1, sizeof *u);
    if (!u) return TRD_NO_MEMORY;
    u->compiled.loss = (trd__loss_info){.eps = eps, .min_denom = min_denom};
    trd_status status = compile(engine, NULL, TRD__PROGRAM_UPDATE, &u->compiled);
    if (status != TRD_OK) {
        trd__free(u);
        return status;
    }
    u->next = engine->updates;
    engine->updates = u;
    *compiled = &u->compiled;
    return TRD_OK;
}

trd_status trd__family_compile(trd_engine *engine, trd__family *family)
{
    static const trd__program_kind kinds[] = {TRD__PROGRAM_FIRST, TRD__PROGRAM_ACCUM, TRD__PROGRAM_EVAL,
                                              TRD__PROGRAM_TRAIN_STEP};
    const trd__compiled *compiled = NULL, *merge;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i] != TRD__PROGRAM_TRAIN_STEP || !trd__step_is_pair(engine))
            TRD_TRY(trd__program_get(engine, family, kinds[i], &compiled));
    bool separate = engine->options.diagnostics[TRD_DIAGNOSTIC_ACCUMULATE];
    for (int add = 0; separate && add < 2; add++) TRD_TRY(trd__merge_get(engine, add, &merge));
    const trd__loss_info *loss = &family->programs[TRD__PROGRAM_FIRST].loss;
    return trd__update_get(engine, loss->eps, loss->min_denom, &compiled);
}

static trd_status compile_forward(trd_engine *engine, trd__family *family, trd__forward *forward)
{
    trd__trace trace;
    trd_value value;
    trd_status status = trace_begin(engine, family, TRD__PROGRAM_FORWARD, &trace);
    if (status == TRD_OK) status = trd__trace_forward(&trace, forward->build, forward->user, &value);
    if (status == TRD_OK) {
        forward->output =
            (trd__entry){.name = "value", .dtype = trd_value_dtype(value), .shape = trd_value_shape(value)};
        trace.slot[TRD__ROLE_RESULTS] =
            trd__program_slot(trace.program, role_names[TRD__ROLE_RESULTS], TRD__WRITE, &forward->output, 1);
        trd__trace_output(&trace, TRD__ROLE_RESULTS, 0, value);
        status = trd_builder_status(trace.program->builder);
    }
    if (status == TRD_OK) status = trd__cse(trace.program);
    if (status == TRD_OK) status = tidy(&trace, TRD__PROGRAM_FORWARD, &forward->compiled);
    if (status == TRD_OK) status = finish(&trace, &forward->compiled);
    trd__program_free(trace.program);
    if (status != TRD_OK) return trd__fail_in(status, "compiling %s", program_names[TRD__PROGRAM_FORWARD]);
    return engine->backend->table->set_create(engine->backend, "forward results", &forward->output, 1,
                                              &forward->results);
}

trd_status trd__forward_get(trd_engine *engine, trd__family *family, trd_forward_function function,
                            void *user, trd__forward **forward)
{
    for (trd__forward *f = family->forwards; f; f = f->next)
        if (f->build == function && f->user == user) {
            *forward = f;
            return TRD_OK;
        }
    trd__forward *f = trd__calloc(1, sizeof *f);
    if (!f) return TRD_NO_MEMORY;
    f->build = function;
    f->user = user;
    trd_status status = compile_forward(engine, family, f);
    if (status != TRD_OK) {
        trd__forward_free(engine, f);
        return status;
    }
    f->next = family->forwards;
    family->forwards = f;
    *forward = f;
    return TRD_OK;
}

void trd__programs_drop(trd_engine *engine, const char *why)
{
    if (why && engine->families)
        trd__log(&engine->options.log, TRD_LOG_INFO, "compiled programs are dropped: %s", why);
    while (engine->families) {
        trd__family *family = engine->families;
        engine->families = family->next;
        trd__family_free(engine, family);
    }
    for (size_t i = 0; i < sizeof engine->merges / sizeof *engine->merges; i++) {
        trd__compiled *merge = &engine->merges[i];
        if (merge->executable) engine->backend->table->executable_free(engine->backend, merge->executable);
        *merge = (trd__compiled){0};
    }
    while (engine->updates) {
        trd__update *u = engine->updates;
        engine->updates = u->next;
        if (u->compiled.executable)
            engine->backend->table->executable_free(engine->backend, u->compiled.executable);
        trd__free(u);
    }
}
