/* The graph of one update: divide by the summed denominator, norm, clip, optimizer, and the decision to skip,
 * all on the device. Invariant: a skipped update is a select that leaves every bit of parameters and
 * optimizer state as it was.
 *
 * The norm is taken as scale * sqrt(sum of squares of the accumulators): norms of divided copies would round
 * each element once more and need memory of a parameter's size. */
#include "base/alloc.h"
#include "base/shape.h"
#include "engine/internal.h"
#include "ops/repeat.h"

typedef struct update {
    trd__trace *trace;
    trd_builder *b;
    const trd_engine_options *options;
    trd_value keep;  /* bool: the update is applied */
    trd_value scale; /* f32: 1 / denominator, 0 when it is not applied */
    trd_value clip;  /* f32 */
    trd__update_scalars scalars;
} update;

static trd_value f64(const update *u, double value)
{
    return trd_scalar(u->b, TRD_F64, value);
}

static const trd__stack *stack_of(const update *u, int i)
{
    const trd_engine *engine = u->trace->engine;
    return &engine->model->stacks[engine->trainable[i]];
}

/* What is squared of a gradient: the accumulator, or what is made of it. */
typedef trd_value (*squared)(const update *u, trd_value accumulated);

static trd_value accumulator(const update *u, trd_value accumulated)
{
    (void)u;
    return accumulated;
}

typedef struct layer_norms {
    const update *u;
    squared of;
    int count;
} layer_norms;

/* Carry: the sum so far; shared: the scale, where it is known. */
static void add_layer(trd_builder *b, const trd_iteration *iteration, trd_value *out, void *user)
{
    const layer_norms *norms = user;
    update inner = *norms->u;
    inner.b = b;
    if (!trd_is_null(inner.scale)) inner.scale = iteration->shared[0];
    out[0] = iteration->carries[0];
    for (int i = 0; i < norms->count; i++)
        out[0] = trd_add(b, out[0], trd_sum_squares(b, norms->of(&inner, iteration->stacked[i])));
}

/* Adds the squares of count stacked gradients, layer by layer. */
static trd_value add_layers(const update *u, trd_value sum, int64_t layers, const trd_value *gradients,
                            int count, squared of)
{
    layer_norms norms = {u, of, count};
    const trd_repeat_options repeat = {.count = layers,
                                       .carries = &sum,
                                       .carry_count = 1,
                                       .shared = &u->scale,
                                       .shared_count = trd_is_null(u->scale) ? 0 : 1,
                                       .stacked = gradients,
                                       .stacked_count = count,
                                       .body = add_layer,
                                       .user = &norms};
    trd_value result;
    trd_repeat(u->b, &repeat, &result);
    return result;
}

/* f64 sum of the squares of all gradients, in the order of the parameters, so that stacks change no bit of
 * it. Leaves that take a value instead of a gradient stay out. All squares come before the additions: a pass
 * over memory needs all threads, and an addition between two passes would make them wait for one another. */
static trd_value sum_of_squares(const update *u, const trd_value *gradients, squared of)
{
    const trd_engine *engine = u->trace->engine;
    trd_value sum = f64(u, 0.0);
    size_t count = (size_t)engine->trainable_count;
    trd_value *squares = trd__arena_alloc(u->b->graph.arena, count + 1, sizeof *squares);
    if (!squares)
        return trd_builder_fail(u->b, TRD_NO_MEMORY, "the gradient's norm: no memory for %zu squares", count);
    for (int i = 0; i < engine->trainable_count; i++) {
        const trd__stack *stack = stack_of(u, i);
        bool one = !stack->one.flags && !stack->layers;
        squares[i] = one ? trd_sum_squares(u->b, of(u, gradients[i])) : (trd_value){0};
    }
    for (int i = 0, next; i < engine->trainable_count; i = next) {
        const trd__stack *stack = stack_of(u, i);
        next = i + 1;
        if (stack->one.flags) continue;
        if (stack->layers) {
            while (next < engine->trainable_count && stack_of(u, next)->layers == stack->layers &&
                   !stack_of(u, next)->one.flags)
                next++;
            sum = add_layers(u, sum, stack->layers, gradients + i, next - i, of);
        } else {
            sum = trd_add(u->b, sum, squares[i]);
        }
    }
    return sum;
}

static trd_value optimizer_scalar(const update *u, int extra)
{
    return trd__trace_input(u->trace, TRD__ROLE_OPTIMIZER, trd__optimizer_entry(u->trace->engine, extra));
}

static void set_optimizer(const update *u, int extra, trd_value value)
{
    trd__trace_output(u->trace, TRD__ROLE_OPTIMIZER, trd__optimizer_entry(u->trace->engine, extra), value);
}

/* Whether x lies within factor deviations above the mean of the seen values of history: Bessel-corrected, two
 * passes over at most a few hundred values. */
static trd_value within(const update *u, trd_value history, trd_value held, trd_value seen, trd_value x)
{
    trd_builder *b = u->b;
    trd_value zero = f64(u, 0.0), one = f64(u, 1.0);
    trd_value mean = trd_div(b, trd_reduce_sum(b, trd_select(b, held, history, zero), 1, false, TRD_F64),
                             trd_max(b, seen, one));
    trd_value off = trd_select(b, held, trd_sub(b, history, mean), zero);
    trd_value sum = trd_reduce_sum(b, trd_mul(b, off, off), 1, false, TRD_F64);
    trd_value deviation = trd_sqrt(b, trd_div(b, sum, trd_max(b, trd_sub(b, seen, one), one)));
    return trd_less_equal(b, trd_sub(b, x, mean),
                          trd_mul(b, f64(u, u->options->skip_step_scaling_factor), deviation));
}

/* Judges loss and norm by the past values, then adds them to the history. Returns true (kept) or false. */
static trd_value judge_spikes(const update *u, trd_value loss, trd_value norm, trd_value counts)
{
    trd_builder *b = u->b;
    double interval = u->options->skip_step_interval;
    trd_value seen = optimizer_scalar(u, TRD__OPT_SPIKE_SEEN);
    trd_value next = optimizer_scalar(u, TRD__OPT_SPIKE_NEXT);
    trd_value losses = optimizer_scalar(u, TRD__OPT_SPIKE_LOSS);
    trd_value norms = optimizer_scalar(u, TRD__OPT_SPIKE_NORM);
    trd_shape shape = trd_value_shape(losses);
    trd_value place = trd_cast(b, trd_iota(b, TRD_I32, shape, 0), TRD_F64);
    trd_value held = trd_less(b, place, seen);
    double needed = interval / 2 > 2 ? (double)(u->options->skip_step_interval / 2) : 2.0;
    trd_value kept = trd_and(b, within(u, losses, held, seen, loss), within(u, norms, held, seen, norm));
    kept = trd_or(b, kept, trd_less(b, seen, f64(u, needed)));
    /* A ring: the oldest value makes room. Values that do not count leave it as it is. */
    trd_value here = trd_and(b, trd_equal(b, place, next), counts);
    set_optimizer(u, TRD__OPT_SPIKE_LOSS, trd_select(b, here, loss, losses));
    set_optimizer(u, TRD__OPT_SPIKE_NORM, trd_select(b, here, norm, norms));
    trd_value one = f64(u, 1.0), last = f64(u, interval - 1);
    trd_value after = trd_select(b, trd_less(b, next, last), trd_add(b, next, one), f64(u, 0.0));
    set_optimizer(u, TRD__OPT_SPIKE_NEXT, trd_select(b, counts, after, next));
    trd_value more = trd_min(b, trd_add(b, seen, one), f64(u, interval));
    set_optimizer(u, TRD__OPT_SPIKE_SEEN, trd_select(b, counts, more, seen));
    return kept;
}

static trd_value to_result(const update *u, trd_value flag)
{
    return trd_select(u->b, flag, f64(u, 1.0), f64(u, 0.0));
}

/* The accumulator divided in f32 and rounded once to its own dtype, then clipped once that is decided. */
static trd_value final_gradient(const update *u, trd_value accumulated)
{
    trd_builder *b = u->b;
    trd_dtype dtype = trd_value_dtype(accumulated);
    trd_value g = dtype == TRD_F32 ? accumulated : trd_cast(b, accumulated, TRD_F32);
    g = trd_mul(b, g, u->scale);
    if (dtype != TRD_F32) g = trd_cast(b, trd_cast(b, g, dtype), TRD_F32);
    return trd_is_null(u->clip) ? g : trd_mul(b, g, u->clip);
}

/* The norm of the divided gradients: one more pass over all accumulators, for clip_norm: recompute. Squares
 * of other values than the accumulators are never shared with those of the first norm. */
static trd_value recomputed_norm(const update *u, const trd_value *gradients)
{
    return trd_sqrt(u->b, sum_of_squares(u, gradients, final_gradient));
}

/* Squares of finite accumulators add up to a finite f64. Division by less than 1 can carry an element out of
 * float32 too; none is larger than the norm, so a norm that float32 holds proves that it did not. */
static trd_value all_finite(const update *u, trd_value norm, trd_value scale)
{
    trd_builder *b = u->b;
    trd_value shrunk = trd_less_equal(b, trd_abs(b, scale), f64(u, 1.0));
    trd_value held = trd_is_finite(b, trd_cast(b, norm, TRD_F32));
    return trd_and(b, trd_is_finite(b, norm), trd_or(b, shrunk, held));
}

/* Norm, the decision, clipping and what the optimizer needs; everything scalar. */
static void decide(update *u, double eps, double min_denom, const trd_value *gradients, const trd_value *sums)
{
    trd_builder *b = u->b;
    double threshold = u->options->gradient_clipping_threshold;
    trd_value zero = f64(u, 0.0);
    trd_value scale = trd_weighted_scale(b, sums[TRD__SUM_DENOMINATOR], eps, min_denom);
    trd_value norm = trd_mul(b, scale, trd_sqrt(b, sum_of_squares(u, gradients, accumulator)));
    trd_value finite = all_finite(u, norm, scale);
    trd_value learned = trd_not_equal(b, sums[TRD__SUM_DENOMINATOR], zero);
    u->keep = u->options->skip_step_on_nonfinite ? trd_and(b, learned, finite) : learned;
    if (u->options->skip_step_on_spikes) {
        trd_value nonempty = trd_max(b, sums[TRD__SUM_NONEMPTY], f64(u, 1.0));
        trd_value loss = trd_div(b, sums[TRD__SUM_MEANS], nonempty);
        trd_value counts = trd_and(b, trd_and(b, learned, finite), trd_is_finite(b, loss));
        u->keep = trd_and(b, u->keep, judge_spikes(u, loss, norm, counts));
    }
    u->scale = trd_cast(b, trd_select(b, u->keep, scale, zero), TRD_F32);
    if (threshold > 0) {
        bool again = u->options->diagnostics[TRD_DIAGNOSTIC_CLIP_NORM];
        trd_value limit = f64(u, threshold), length = again ? recomputed_norm(u, gradients) : norm;
        trd_value clip = trd_select(b, trd_less(b, length, limit), f64(u, 1.0), trd_div(b, limit, length));
        u->clip = trd_cast(b, clip, TRD_F32);
    }
    trd_value count = optimizer_scalar(u, TRD__OPT_COUNT);
    trd_value counted = trd_add(b, count, f64(u, 1.0));
    set_optimizer(u, TRD__OPT_COUNT, trd_select(b, u->keep, counted, count));
    u->scalars.count = trd_cast(b, counted, TRD_F32);
    u->scalars.learning_rate = trd__trace_input(u->trace, TRD__ROLE_SCALARS, 0);
    trd__trace_output(u->trace, TRD__ROLE_RESULTS, TRD__RESULT_NORM, norm);
    trd__trace_output(u->trace, TRD__ROLE_RESULTS, TRD__RESULT_SKIPPED, to_result(u, trd_not(b, u->keep)));
    trd__trace_output(u->trace, TRD__ROLE_RESULTS, TRD__RESULT_NONFINITE, to_result(u, trd_not(b, finite)));
}

/* The optimizer's word on one parameter, unless the update is skipped. */
static void apply(const update *u, trd_value accumulated, int states, trd__parameter_update *one)
{
    const trd_engine *engine = u->trace->engine;
    one->gradient = final_gradient(u, accumulated);
    engine->optimizer->update(u->b, &engine->options.optimizer, &u->scalars, one);
    one->new_parameter = trd_select(u->b, u->keep, one->new_parameter, one->parameter);
    for (int k = 0; k < states; k++)
        one->new_states[k] = trd_select(u->b, u->keep, one->new_states[k], one->states[k]);
}

/* A layer's update as the body of a repeat: shared are the step's scalars, stacked the gradients, and the
 * sums are parameter and states, which are updated in place. */
typedef struct layer_update {
    trd__program *body;
    trd_value inputs[5 + TRD__OPTIMIZER_SCALARS + 2 + TRD__OPTIMIZER_STATES];
    int input_count;
} layer_update;

static void add_operands(layer_update *l, trd_builder *b, trd__repeat_slot slot, trd_value *const *values,
                         int count)
{
    trd__entry entries[5 + TRD__OPTIMIZER_SCALARS];
    int used = 0;
    for (int i = 0; i < count; i++) {
        if (trd_is_null(*values[i])) continue;
        entries[used] = trd__repeat_entry(b, slot, used, *values[i], slot != TRD__REPEAT_SHARED);
        l->inputs[l->input_count++] = *values[i];
        used++;
    }
    trd__repeat_body_slot(l->body, slot, entries, used);
    for (int i = 0, entry = 0; i < count; i++)
        if (!trd_is_null(*values[i])) *values[i] = trd__program_input(l->body, (int)slot, entry++);
}

/* Moves what the update reads into the body, whose builder it then uses. */
static void enter_body(layer_update *l, update *u, trd_value *accumulated, trd__parameter_update *one)
{
    trd_value *shared[5 + TRD__OPTIMIZER_SCALARS] = {&u->keep, &u->scale, &u->clip, &u->scalars.learning_rate,
                                                     &u->scalars.count};
    trd_value *sums[1 + TRD__OPTIMIZER_STATES] = {&one->parameter};
    for (int i = 0; i < TRD__OPTIMIZER_SCALARS; i++) shared[5 + i] = &u->scalars.prepared[i];
    for (int k = 0; k < TRD__OPTIMIZER_STATES; k++) sums[1 + k] = &one->states[k];
    trd__repeat_body_slot(l->body, TRD__REPEAT_CARRY, NULL, 0);
    add_operands(l, u->b, TRD__REPEAT_SHARED, shared, 5 + TRD__OPTIMIZER_SCALARS);
    add_operands(l, u->b, TRD__REPEAT_STACKED, (trd_value *[]){accumulated}, 1);
    add_operands(l, u->b, TRD__REPEAT_SUMS, sums, 1 + TRD__OPTIMIZER_STATES);
    trd__repeat_body_slot(l->body, TRD__REPEAT_MADE, NULL, 0);
    u->b = l->body->builder;
}

/* apply for each layer of a stack on its own, for an update that is not elementwise. */
static void apply_by_layer(const update *u, int64_t layers, trd_value accumulated, int states,
                           trd__parameter_update *one)
{
    update inner = *u;
    trd__parameter_update layer = *one;
    layer_update l = {.input_count = 0};
    trd_status status = trd__program_create("body", &l.body);
    if (status != TRD_OK) {
        trd__builder_stick(u->b, status);
        return;
    }
    enter_body(&l, &inner, &accumulated, &layer);
    apply(&inner, accumulated, states, &layer);
    trd__program_output(l.body, TRD__REPEAT_SUMS, 0, layer.new_parameter);
    for (int k = 0; k < states; k++)
        trd__program_output(l.body, TRD__REPEAT_SUMS, 1 + k, layer.new_states[k]);
    const trd_node *n = trd__repeat_add(u->b, layers, false, l.inputs, l.body);
    one->new_parameter = trd__result(n, 0);
    for (int k = 0; k < states; k++) one->new_states[k] = trd__result(n, 1 + k);
}

/* Gradient entry i and the stack it belongs to. */
static void update_stack(const update *u, int i, trd_value accumulated)
{
    trd_builder *b = u->b;
    trd_engine *engine = u->trace->engine;
    const trd__stack *stack = stack_of(u, i);
    int number = engine->trainable[i], first = engine->first_state[i];
    int states = engine->first_state[i + 1] - first;
    trd__parameter_update one = {.info = &stack->one,
                                 .decay = engine->decays[number],
                                 .parameter = trd__trace_input(u->trace, TRD__ROLE_PARAMS, number)};
    if (one.info->flags) {
        trd_value next = trd_cast(b, accumulated, trd_value_dtype(one.parameter));
        trd__trace_output(u->trace, TRD__ROLE_PARAMS, number, trd_select(b, u->keep, next, one.parameter));
        return;
    }
    for (int k = 0; k < states; k++)
        one.states[k] = trd__trace_input(u->trace, TRD__ROLE_OPTIMIZER, first + k);
    const trd__optimizer_type *type = engine->optimizer;
    if (!stack->layers || !type->elementwise || type->elementwise(&engine->options.optimizer, one.info))
        apply(u, accumulated, states, &one);
    else
        apply_by_layer(u, stack->layers, accumulated, states, &one);
    trd__trace_output(u->trace, TRD__ROLE_PARAMS, number, one.new_parameter);
    for (int k = 0; k < states; k++)
        trd__trace_output(u->trace, TRD__ROLE_OPTIMIZER, first + k, one.new_states[k]);
}

trd_status trd__trace_update(trd__trace *trace, double eps, double min_denom, const trd_value *gradients,
                             const trd_value *sums)
{
    trd_engine *engine = trace->engine;
    update u = {.trace = trace, .b = trace->program->builder, .options = &engine->options};
    decide(&u, eps, min_denom, gradients, sums);
    if (engine->optimizer->prepare) engine->optimizer->prepare(u.b, &engine->options.optimizer, &u.scalars);
    for (int i = 0; i < engine->trainable_count; i++) update_stack(&u, i, gradients[i]);
    return trd_builder_status(u.b);
}
