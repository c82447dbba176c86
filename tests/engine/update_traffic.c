/* What one update moves: docs/profiling.md, "Bytes of an update". With N elements of a parameter, and bytes
 * per element G of its gradient, W of its weight and S of its optimizer states together, an update reads N *
 * (2 G + W + S) and writes N * (W + S): the norm reads each gradient once, then one pass does clip and
 * optimizer. Scalars come on top: for every norm and every pass the same, and a constant that knows nothing
 * of the model. Parameters that lie behind one another share a pass. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "backend/cpu/cpu.h"
#include "backend/cpu/group.h"
#include "base/shape.h"
#include "engine/internal.h"
#include "support/engine.h"

enum { F32_BYTES = 4 };

/* Bytes of scalars: the f64 sum of a parameter's squares is written, added to the total (read two, write
 * one), and a pass reads scale, clip, learning rate (f32) and the flag that keeps or skips; AdamW two
 * bias corrections (f32) besides, adam_pax two decays and their complements. */
enum { SUM_READ = 16, SUM_WRITTEN = 16, PASS_READ = 3 * F32_BYTES + 1 };
enum { ADAMW_READ = 2 * F32_BYTES, ADAM_PAX_READ = 4 * F32_BYTES };
enum { CONSTANT_AT_MOST = 1024, TOY_LEAVES = 5 };

typedef struct traffic {
    int64_t read, written;
} traffic;

static const trd__executable *update_of(trd_engine *engine)
{
    const trd__compiled *compiled;
    OK(trd__update_get(engine, 0, 0, &compiled));
    return compiled->executable;
}

/* Parameters of several shapes; the toy has as many as are asked for. */
static trd_engine *toy_engine(const trd_engine_options *options, int leaves)
{
    static const test_leaf all[TOY_LEAVES] = {
        {"a", 5000, 0}, {"b", 16, 0}, {"c", 333, 0}, {"d", 70000, 0}, {"e", 4096, 0}};
    trd_engine *engine;
    OK(trd__engine_create_with_model(options, test_toy(all, leaves), &engine));
    return engine;
}

/* Bytes of scalars that the optimizer's pass reads, 0: it keeps no moments. */
static int64_t own_scalars(const trd_engine *engine)
{
    const char *type = engine->options.optimizer.type;
    return strcmp(type, "adamw") == 0 ? ADAMW_READ : strcmp(type, "adam_pax") == 0 ? ADAM_PAX_READ : 0;
}

/* What is left when the tensors are taken away. */
static traffic scalars_of(trd_engine *engine)
{
    const trd_engine_options *o = &engine->options;
    int64_t gradient = (int64_t)trd_dtype_bytes(o->grad_dtype),
            weight = (int64_t)trd_dtype_bytes(o->weight_dtype);
    int64_t states = own_scalars(engine) ? (int64_t)trd_dtype_bytes(o->optimizer.mu_dtype) + F32_BYTES : 0;
    int64_t elements = 0;
    for (int i = 0; i < engine->trainable_count; i++)
        elements += trd__shape_count(&engine->model->parameters[engine->trainable[i]].shape);
    trd__memory_report report = engine->backend->table->memory(update_of(engine));
    return (traffic){(int64_t)report.bytes_read - elements * (2 * gradient + weight + states),
                     (int64_t)report.bytes_written - elements * (weight + states)};
}

static void set_formats(trd_engine_options *o, int formats)
{
    o->grad_dtype = formats & 1 ? TRD_BF16 : TRD_F32;
    o->weight_dtype = formats & 2 ? TRD_BF16 : TRD_F32;
    o->optimizer.mu_dtype = formats & 4 ? TRD_BF16 : TRD_F32;
}

/* Passes of the optimizer: fused steps that read gradients and reduce nothing. */
static int64_t passes_of(const trd__executable *update)
{
    int64_t count = 0;
    for (int s = 0; s < update->step_count; s++) {
        const trd__cpu_step *step = &update->steps[s];
        const trd__group *group = step->state;
        bool reads = false;
        for (int i = 0; i < step->input_count; i++) {
            int region = step->inputs[i].region;
            reads |= region < update->program->slot_count &&
                     strcmp(update->program->slots[region].name, "gradients") == 0;
        }
        count += reads && step->kernel == &trd__kernel_group && !group->reduction_count;
    }
    return count;
}

/* The constant part, after the formula was taken away. */
static traffic constant_of(trd_engine *engine)
{
    int64_t count = engine->trainable_count;
    traffic rest = scalars_of(engine);
    rest.read -= count * SUM_READ + passes_of(update_of(engine)) * (PASS_READ + own_scalars(engine));
    rest.written -= count * SUM_WRITTEN;
    OK(trd_engine_close(engine));
    return rest;
}

static void expect_formula(trd_engine_options *o)
{
    traffic first = constant_of(toy_engine(o, 1));
    assert_in_range(first.read, 1, CONSTANT_AT_MOST);
    assert_in_range(first.written, 1, CONSTANT_AT_MOST);
    for (int formats = 0; formats < 8; formats++) {
        set_formats(o, formats);
        for (int leaves = 0; leaves <= TOY_LEAVES; leaves++) {
            traffic rest = constant_of(leaves ? toy_engine(o, leaves) : test_engine(o));
            if (rest.read == first.read && rest.written == first.written) continue;
            fail_msg(
                "%s, formats %d, leaves %d (0: llama): %lld bytes read and %lld written beyond the formula",
                o->optimizer.type, formats, leaves, (long long)(rest.read - first.read),
                (long long)(rest.written - first.written));
        }
    }
}

static void bytes_match_the_formula(void **state)
{
    static const char *const types[] = {"sgd", "adamw", "adam_pax"};
    (void)state;
    for (int threads = 1; threads <= 2; threads++) {
        trd_engine_options o = test_adamw();
        o.num_threads = threads;
        for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
            o.optimizer.type = types[i];
            expect_formula(&o);
        }
    }
}

/* The passes in the formula are fewer than the parameters: matrices of a layer lie behind one another. */
static void like_parameters_share_passes(void **state)
{
    (void)state;
    trd_engine_options o = test_adamw();
    o.optimizer.type = "sgd";
    trd_engine *engine = test_engine(&o);
    assert_in_range(passes_of(update_of(engine)), 1, engine->trainable_count / 2);
    OK(trd_engine_close(engine));
}

/* A frozen parameter moves nothing. */
static void frozen_parameters_move_no_bytes(void **state)
{
    (void)state;
    static const char *const patterns[] = {"embed_tokens", "layers\\.0\\.", "norm"};
    trd_engine_options o = test_adamw();
    traffic first = constant_of(test_engine(&o));
    o.freeze = patterns;
    for (o.freeze_count = 1; o.freeze_count <= 3; o.freeze_count++) {
        traffic rest = constant_of(test_engine(&o));
        assert_int_equal(rest.read, first.read);
        assert_int_equal(rest.written, first.written);
    }
}

/* Reductions over gradients in the graph that runs, each entry of the gradients at most once. */
static int norm_reductions(const trd_engine *engine, const trd__executable *update, bool *seen)
{
    int count = 0;
    for (int i = 0; i < update->program->builder->graph.node_count; i++) {
        const trd_node *n = update->program->builder->graph.nodes[i];
        if (n->op != &trd__op_sum_squares) continue;
        assert_ptr_equal(n->inputs[0].node->op, &trd__op_input);
        const trd__input_attr *attr = n->inputs[0].node->attr;
        assert_string_equal(update->program->slots[attr->slot].name, "gradients");
        assert_in_range(attr->entry, 0, engine->model->parameter_count - 1);
        assert_false(seen[attr->entry]);
        seen[attr->entry] = true;
        count++;
    }
    return count;
}

static int reductions_that_run(const trd__executable *update)
{
    int count = 0;
    for (int s = 0; s < update->step_count; s++) {
        const trd__cpu_step *step = &update->steps[s];
        const trd__group *group = step->state;
        if (step->kernel == &trd__kernel_group)
            for (int r = 0; r < group->reduction_count; r++) count += group->reductions[r].squares;
        else
            count += step->node->op == &trd__op_sum_squares;
    }
    return count;
}

static void the_norm_is_reduced_once(void **state)
{
    (void)state;
    for (int formats = 0; formats < 2; formats++) {
        trd_engine_options o = test_adamw();
        bool seen[64] = {false};
        set_formats(&o, formats);
        trd_engine *engine = test_engine(&o);
        const trd__executable *update = update_of(engine);
        assert_int_equal(norm_reductions(engine, update, seen), engine->model->parameter_count);
        assert_int_equal(reductions_that_run(update), engine->model->parameter_count);
        OK(trd_engine_close(engine));
    }
}

/* The parts add up to the report. */
static void steps_add_up(void **state)
{
    (void)state;
    trd_engine_options o = test_adamw();
    trd_engine *engine = test_engine(&o);
    test_batch b;
    OK(trd_engine_compile(engine, test_batch_fill(&b, 1)));
    for (int kind = 0; kind < TRD__PROGRAM_COUNT; kind++) {
        const trd__executable *e = engine->families->programs[kind].executable;
        uint64_t read = 0, written = 0;
        double flops = 0;
        if (!e) continue;
        for (int s = 0; s < e->step_count; s++) {
            read += e->steps[s].bytes_read;
            written += e->steps[s].bytes_written;
            flops += e->steps[s].flops;
        }
        assert_int_equal(read, e->report.bytes_read);
        assert_int_equal(written, e->report.bytes_written);
        assert_true(flops == e->report.flops);
    }
    OK(trd_engine_close(engine));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_match_the_formula), cmocka_unit_test(like_parameters_share_passes),
        cmocka_unit_test(frozen_parameters_move_no_bytes), cmocka_unit_test(the_norm_is_reduced_once),
        cmocka_unit_test(steps_add_up)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
