/* Loops on the CPU: one plan of the body, run count times. The unrolled program is the oracle, to the bit;
 * what is stacked is read and written by rows of odd sizes, carries and sums are updated in place, and the
 * report says what a loop costs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/shape.h"
#include "graph/passes.h"
#include "ops/repeat.h"
#include "support/program.h"

enum { SLOTS = 4, STATE = 0, WEIGHTS = 1, SUMS = 2, RESULTS = 3, WIDE = 4096 };

/* A stack of layers: x' = tanh(x W + shift), y' = x; sums: W's row += x' h; made: x and the rows' sums. */
typedef struct layers {
    int64_t count, rows, columns;
    trd_dtype dtype;      /* of what is stacked */
    bool reverse, reread; /* the first x is read again behind the loop */
} layers;

static trd__program *body_of(const layers *c)
{
    trd__program *p;
    assert_int_equal(trd__program_create("body", &p), TRD_OK);
    trd_builder *b = p->builder;
    trd_shape x_shape = TRD__SHAPE(c->rows, c->columns), w_shape = TRD__SHAPE(c->columns, c->columns);
    trd__entry carries[] = {test_entry("x", TRD_F32, x_shape), test_entry("y", TRD_F32, x_shape)};
    trd__entry shared[] = {test_entry("shift", TRD_F32, TRD__SHAPE(c->columns))};
    trd__entry stacked[] = {test_entry("w", c->dtype, w_shape)};
    trd__entry sums[] = {test_entry("dw", TRD_F32, w_shape)};
    trd__entry made[] = {test_entry("saved", TRD_F32, x_shape),
                         test_entry("sums", c->dtype, TRD__SHAPE(c->rows))};
    trd__program_slot(p, "carry", TRD__UPDATE, carries, 2);
    trd__program_slot(p, "shared", TRD__READ, shared, 1);
    trd__program_slot(p, "stacked", TRD__READ, stacked, 1);
    trd__program_slot(p, "sums", TRD__UPDATE, sums, 1);
    trd__program_slot(p, "made", TRD__WRITE, made, 2);
    trd_value x = trd__program_input(p, TRD__REPEAT_CARRY, 0),
              y = trd__program_input(p, TRD__REPEAT_CARRY, 1);
    trd_value w = trd__program_input(p, TRD__REPEAT_STACKED, 0),
              dw = trd__program_input(p, TRD__REPEAT_SUMS, 0);
    trd_value h = trd_add(b, trd_matmul(b, x, trd_cast(b, w, TRD_F32), false, false, TRD_F32), y);
    trd_value next = trd_tanh(b, trd_add(b, h, trd__program_input(p, TRD__REPEAT_SHARED, 0)));
    trd__program_output(p, TRD__REPEAT_CARRY, 0, next);
    trd__program_output(p, TRD__REPEAT_CARRY, 1, x);
    trd__program_output(p, TRD__REPEAT_SUMS, 0,
                        trd_accumulate(b, dw, trd_matmul(b, x, h, true, false, TRD_F32)));
    trd__program_output(p, TRD__REPEAT_MADE, 0, x);
    trd__program_output(p, TRD__REPEAT_MADE, 1,
                        trd_reduce_sum(b, trd_cast(b, next, c->dtype), 2, false, c->dtype));
    return p;
}

static trd__program *program_of(const layers *c)
{
    trd__program *p;
    assert_int_equal(trd__program_create("layers", &p), TRD_OK);
    trd_builder *b = p->builder;
    trd_shape x_shape = TRD__SHAPE(c->rows, c->columns),
              w_shape = TRD__SHAPE(c->count, c->columns, c->columns);
    trd__entry state[] = {test_entry("x", TRD_F32, x_shape), test_entry("y", TRD_F32, x_shape)};
    trd__entry weights[] = {test_entry("w", c->dtype, w_shape),
                            test_entry("shift", TRD_F32, TRD__SHAPE(c->columns))};
    trd__entry sums[] = {test_entry("other", TRD_F32, TRD__SHAPE(3)), test_entry("dw", TRD_F32, w_shape)};
    trd__entry results[] = {test_entry("saved", TRD_F32, TRD__SHAPE(c->count, c->rows, c->columns)),
                            test_entry("sums", TRD_F32, TRD__SHAPE(c->count, c->rows)),
                            test_entry("both", TRD_F32, x_shape)};
    trd__program_slot(p, "state", TRD__UPDATE, state, 2);
    trd__program_slot(p, "weights", TRD__READ, weights, 2);
    trd__program_slot(p, "sums", TRD__UPDATE, sums, 2);
    trd__program_slot(p, "results", TRD__WRITE, results, 3);
    trd_value x = trd__program_input(p, STATE, 0);
    trd_value operands[] = {x, trd__program_input(p, STATE, 1), trd__program_input(p, WEIGHTS, 1),
                            trd__program_input(p, WEIGHTS, 0), trd__program_input(p, SUMS, 1)};
    const trd_node *n = trd__repeat_add(b, c->count, c->reverse, operands, body_of(c));
    if (!n) fail_msg("%s", (trd_builder_status(b), trd_error_message()));
    trd__program_output(p, STATE, 0, trd__result(n, 0));
    trd__program_output(p, STATE, 1, trd__result(n, 1));
    trd__program_output(p, SUMS, 1, trd__result(n, 2));
    trd__program_output(p, RESULTS, 0, trd__result(n, 3));
    trd__program_output(p, RESULTS, 1, trd_cast(b, trd__result(n, 4), TRD_F32));
    trd__program_output(p, RESULTS, 2, trd_add(b, trd__result(n, 0), c->reread ? x : trd__result(n, 1)));
    return p;
}

static bool is_no_repeat(const trd_node *n, void *user)
{
    (void)user;
    return n->op != &trd__op_repeat;
}

static trd__program *unroll(const trd__program *p)
{
    trd__program *unrolled;
    assert_int_equal(trd__program_copy(p, &unrolled), TRD_OK);
    assert_int_equal(trd__expand(unrolled, is_no_repeat, NULL), TRD_OK);
    for (int i = 0; i < unrolled->builder->graph.node_count; i++)
        assert_ptr_not_equal(unrolled->builder->graph.nodes[i]->op, &trd__op_repeat);
    return unrolled;
}

typedef struct world {
    trd__backend *backend;
    trd__executable *executable;
    trd__set *sets[TRD__MAX_SLOTS];
    int slots;
} world;

static world make_world(const trd__program *p, int threads, bool reference)
{
    world w = {.backend = test_backend(threads), .slots = p->slot_count};
    w.executable = test_compile(w.backend, p, reference);
    for (int s = 0; s < w.slots; s++) {
        w.sets[s] = test_set(w.backend, &p->slots[s]);
        for (int e = 0; e < p->slots[s].entry_count; e++)
            test_fill(w.backend, w.sets[s], e, 10 * (uint64_t)s + (uint64_t)e);
    }
    return w;
}

static void run(world *w)
{
    if (w->backend->table->execute(w->backend, w->executable, w->sets, NULL))
        fail_msg("%s", trd_error_message());
}

static void end(world *w)
{
    w->backend->table->executable_free(w->backend, w->executable);
    for (int s = 0; s < w->slots; s++) w->backend->table->set_free(w->backend, w->sets[s]);
    trd__backend_free(w->backend);
}

static void expect_same(world *a, world *b)
{
    for (int s = 0; s < a->slots; s++)
        for (int e = 0; e < a->sets[s]->entry_count; e++) {
            double *x = test_read(a->backend, a->sets[s], e), *y = test_read(b->backend, b->sets[s], e);
            for (int64_t i = 0; i < test_count(a->sets[s], e); i++)
                if (memcmp(&x[i], &y[i], sizeof *x) != 0)
                    fail_msg("%s %s [%d]: unrolled %.9g, looped %.9g", a->sets[s]->name,
                             a->sets[s]->entries[e].name, (int)i, x[i], y[i]);
            trd__free(x);
            trd__free(y);
        }
}

static void expect_as_unrolled(const trd__program *p, int threads, bool reference)
{
    trd__program *unrolled = unroll(p);
    world a = make_world(unrolled, threads, reference), b = make_world(p, threads, reference);
    for (int i = 0; i < 2; i++) {
        run(&a);
        run(&b);
        expect_same(&a, &b);
    }
    trd__memory_report x = a.backend->table->memory(a.executable), y = b.backend->table->memory(b.executable);
    assert_true(x.flops == y.flops);
    assert_true(y.arena_bytes >= y.lower_bound_bytes);
    end(&a);
    end(&b);
    trd__program_free(unrolled);
}

static void loops_as_unrolled(void **state)
{
    (void)state;
    for (int i = 0; i < 48; i++) {
        layers c = {.count = (const int64_t[]){1, 2, 5}[i % 3],
                    .rows = i & 1 ? 64 : 5,
                    .columns = i & 1 ? 331 : 7,
                    .dtype = i & 2 ? TRD_BF16 : TRD_F32,
                    .reverse = i & 4,
                    .reread = i & 8};
        trd__program *p = program_of(&c);
        expect_as_unrolled(p, 1 + i / 16, i % 3 == 0 && !(i & 1));
        trd__program_free(p);
    }
}

/* More iterations than anything is deep, all threads in every step. */
static void loops_long_on_many_workers(void **state)
{
    (void)state;
    layers c = {.count = 100, .rows = 33, .columns = 130, .dtype = TRD_F32, .reverse = true};
    trd__program *p = program_of(&c);
    expect_as_unrolled(p, 4, false);
    trd__program_free(p);
}

/* -- What a loop costs -- */

/* Carries x, y (elements) and a stacked "row", a sum of x, and made "rows" of x + y. */
typedef struct sums {
    bool swap; /* x' = y, y' = x, which needs copies; else x' = x + row */
} sums;

static void add_row(trd_builder *b, const trd_iteration *in, trd_value *out, void *user)
{
    const sums *c = user;
    trd_value x = in->carries[0], y = in->carries[1];
    out[0] = c->swap ? y : trd_add(b, x, in->stacked[0]);
    out[1] = c->swap ? x : y;
    out[2] = trd_add(b, x, y);
}

/* state: x, y; rows: stacked, made. The made result is bound to its entry where read is set. */
static trd__program *row_program(int64_t count, int64_t elements, const sums *c, bool read)
{
    trd__program *p;
    assert_int_equal(trd__program_create("rows", &p), TRD_OK);
    trd__entry state[] = {test_entry("x", TRD_F32, TRD__SHAPE(elements)),
                          test_entry("y", TRD_F32, TRD__SHAPE(elements))};
    trd__entry rows[] = {test_entry("row", TRD_F32, TRD__SHAPE(count, elements)),
                         test_entry("made", TRD_F32, TRD__SHAPE(count, elements))};
    int slot = trd__program_slot(p, "state", TRD__UPDATE, state, 2);
    int more = trd__program_slot(p, "rows", TRD__UPDATE, rows, 2);
    trd_value carries[] = {trd__program_input(p, slot, 0), trd__program_input(p, slot, 1)}, results[3];
    trd_value row = trd__program_input(p, more, 0);
    trd_repeat(p->builder,
               &(trd_repeat_options){.count = count,
                                     .carries = carries,
                                     .carry_count = 2,
                                     .stacked = &row,
                                     .stacked_count = 1,
                                     .made_count = 1,
                                     .body = add_row,
                                     .user = (void *)(uintptr_t)c},
               results);
    for (int i = 0; i < 2; i++) trd__program_output(p, slot, i, results[i]);
    if (read) trd__program_output(p, more, 1, results[2]);
    if (trd_builder_status(p->builder)) fail_msg("%s", trd_error_message());
    return p;
}

static void expect_all(world *w, int slot, int entry, double expected)
{
    double *found = test_read(w->backend, w->sets[slot], entry);
    for (int64_t i = 0; i < test_count(w->sets[slot], entry); i++) assert_true(found[i] == expected);
    trd__free(found);
}

static void write_all(world *w, int slot, int entry, double value)
{
    double *values = trd__alloc((size_t)test_count(w->sets[slot], entry), sizeof *values);
    for (int64_t i = 0; i < test_count(w->sets[slot], entry); i++) values[i] = value;
    test_write(w->backend, w->sets[slot], entry, values);
    trd__free(values);
}

/* Everything where the sets keep it: no memory of its own, no copy, one kernel an iteration. */
static void updates_in_place(void **state)
{
    (void)state;
    test_cpu_only();
    enum { COUNT = 6, ELEMENTS = 5000 };
    trd__program *p = row_program(COUNT, ELEMENTS, &(sums){.swap = false}, true);
    world w = make_world(p, 2, false);
    trd__memory_report report = w.backend->table->memory(w.executable);
    assert_int_equal(report.arena_bytes, 0);
    assert_int_equal(report.kernel_count, COUNT);
    assert_int_equal(report.bytes_read, COUNT * 3 * ELEMENTS * sizeof(float));
    assert_int_equal(report.bytes_written, COUNT * 2 * ELEMENTS * sizeof(float));
    write_all(&w, 0, 0, 1);
    write_all(&w, 0, 1, 10);
    write_all(&w, 1, 0, 2);
    run(&w);
    expect_all(&w, 0, 0, 1 + 2 * COUNT);
    expect_all(&w, 0, 1, 10);
    double *made = test_read(w.backend, w.sets[1], 1);
    for (int i = 0; i < COUNT * ELEMENTS; i++) assert_true(made[i] == 11 + 2 * (i / ELEMENTS));
    trd__free(made);
    end(&w);
    trd__program_free(p);
}

static void carries_may_swap(void **state)
{
    (void)state;
    for (int count = 1; count <= 4; count++) {
        trd__program *p = row_program(count, 37, &(sums){.swap = true}, false);
        world w = make_world(p, 2, false);
        write_all(&w, 0, 0, 1);
        write_all(&w, 0, 1, 10);
        run(&w);
        expect_all(&w, 0, 0, count % 2 ? 10 : 1);
        expect_all(&w, 0, 1, count % 2 ? 1 : 10);
        end(&w);
        trd__program_free(p);
    }
}

/* A body's own memory is needed once, however often it runs, and what nobody reads is not made. */
static void memory_is_of_one_iteration(void **state)
{
    (void)state;
    test_cpu_only();
    trd__memory_report reports[2];
    for (int i = 0; i < 2; i++) {
        layers c = {.count = i ? 9 : 1, .rows = 64, .columns = 128, .dtype = TRD_F32};
        trd__program *p = program_of(&c);
        world w = make_world(p, 2, false);
        reports[i] = w.backend->table->memory(w.executable);
        end(&w);
        trd__program_free(p);
    }
    assert_true(reports[0].arena_bytes > 0);
    assert_int_equal(reports[0].arena_bytes, reports[1].arena_bytes);
    assert_int_equal(reports[0].lower_bound_bytes, reports[1].lower_bound_bytes);
    assert_int_equal(reports[0].scratch_bytes, reports[1].scratch_bytes);
    trd__program *p = row_program(9, 5000, &(sums){.swap = false}, false);
    world w = make_world(p, 2, false);
    assert_int_equal(w.backend->table->memory(w.executable).arena_bytes, 0);
    end(&w);
    trd__program_free(p);
}

/* Works on twice as much as it carries, and makes it. */
static void widen(trd_builder *b, const trd_iteration *in, trd_value *out, void *user)
{
    (void)user;
    trd_value x = in->carries[0], wide = trd_concat(b, (trd_value[]){trd_exp(b, x), x}, 2, 0);
    wide = trd_concat(b, (trd_value[]){trd_slice(b, wide, 0, 1, WIDE + 1), trd_slice(b, wide, 0, 0, WIDE)}, 2,
                      0);
    out[0] = trd_slice(b, wide, 0, WIDE / 2, WIDE / 2 + WIDE);
    out[1] = trd_sqrt(b, trd_abs(b, wide));
}

static void narrow(trd_builder *b, const trd_iteration *in, trd_value *out, void *user)
{
    (void)user;
    trd_value x = trd_exp(b, in->stacked[0]); /* may be computed in the row it is made of */
    trd_value y = trd_slice(b, trd_concat(b, (trd_value[]){x, in->carries[0]}, 2, 0), 0, WIDE, 3 * WIDE);
    out[0] = trd_slice(b, trd_concat(b, (trd_value[]){y, x}, 2, 0), 0, WIDE + 1, 2 * WIDE + 1);
}

static trd__program *wide_program(int64_t count, bool kept)
{
    trd__program *p;
    assert_int_equal(trd__program_create("wide", &p), TRD_OK);
    trd__entry state[] = {test_entry("x", TRD_F32, TRD__SHAPE(WIDE)),
                          test_entry("sums", TRD_F32, TRD__SHAPE(count))};
    int slot = trd__program_slot(p, "state", TRD__UPDATE, state, 2);
    trd_value x = trd__program_input(p, slot, 0), results[2];
    trd_repeat_options o = {.count = count, .carries = &x, .carry_count = 1, .made_count = 1, .body = widen};
    trd_repeat(p->builder, &o, results);
    trd_value made = results[1], again;
    o = (trd_repeat_options){.count = count,
                             .reverse = true,
                             .carries = results,
                             .carry_count = 1,
                             .stacked = &made,
                             .stacked_count = 1,
                             .body = narrow};
    trd_repeat(p->builder, &o, &again);
    trd__program_output(p, slot, 0, again);
    if (kept) trd__program_output(p, slot, 1, trd_reduce_sum(p->builder, made, 2, false, TRD_F32));
    if (trd_builder_status(p->builder)) fail_msg("%s", trd_error_message());
    return p;
}

/* Rows that are not written yet, and rows that were read for the last time, are memory to compute in; those
 * that are read once more behind the loop are not. */
static void computes_in_rows(void **state)
{
    (void)state;
    test_cpu_only();
    enum { COUNT = 4 };
    uint64_t bytes[2];
    for (int kept = 0; kept < 2; kept++) {
        trd__program *p = wide_program(COUNT, kept);
        expect_as_unrolled(p, 2, false);
        expect_as_unrolled(p, 1, true);
        world w = make_world(p, 2, false);
        bytes[kept] = w.backend->table->memory(w.executable).arena_bytes;
        end(&w);
        trd__program_free(p);
    }
    assert_true(bytes[0] + 2 * WIDE * sizeof(float) <= bytes[1]);
}

/* -- Failures, profiles -- */

static void look_up(trd_builder *b, const trd_iteration *in, trd_value *out, void *user)
{
    (void)user;
    out[0] = trd_gather_rows(b, in->carries[0], in->stacked[0]);
}

static void a_failure_names_the_iteration(void **state)
{
    (void)state;
    test_cpu_only();
    for (int reverse = 0; reverse < 2; reverse++) {
        trd__program *p;
        assert_int_equal(trd__program_create("lookups", &p), TRD_OK);
        trd__entry entries[] = {test_entry("x", TRD_F32, TRD__SHAPE(4, 3)),
                                test_entry("ids", TRD_I32, TRD__SHAPE(3, 4))};
        int slot = trd__program_slot(p, "state", TRD__UPDATE, entries, 2);
        trd_value x = trd__program_input(p, slot, 0), ids = trd__program_input(p, slot, 1), result;
        trd_repeat(p->builder,
                   &(trd_repeat_options){.count = 3,
                                         .reverse = reverse,
                                         .carries = &x,
                                         .carry_count = 1,
                                         .stacked = &ids,
                                         .stacked_count = 1,
                                         .body = look_up},
                   &result);
        trd__program_output(p, slot, 0, result);
        world w = make_world(p, 2, false);
        test_write(w.backend, w.sets[0], 1, (double[]){0, 1, 2, 3, 3, 2, 1, 0, 0, 7, 0, 0});
        run(&w);
        assert_int_equal(w.backend->table->drain(w.backend), TRD_INTERNAL);
        assert_non_null(
            strstr(trd_error_message(), "program \"lookups\", op gather_rows in iteration 2: index 7"));
        end(&w);
        trd__program_free(p);
    }
}

static void nest(trd_builder *b, const trd_iteration *in, trd_value *out, void *user)
{
    trd_repeat(b,
               &(trd_repeat_options){.count = 2,
                                     .carries = in->carries,
                                     .carry_count = 1,
                                     .stacked = in->shared,
                                     .stacked_count = 1,
                                     .body = look_up,
                                     .user = user},
               out);
}

/* One loop runs at a time, so the outer one is unrolled. */
static void loops_in_loops(void **state)
{
    (void)state;
    trd__program *p;
    assert_int_equal(trd__program_create("nested", &p), TRD_OK);
    trd__entry entries[] = {test_entry("x", TRD_F32, TRD__SHAPE(4, 3)),
                            test_entry("ids", TRD_I32, TRD__SHAPE(2, 4))};
    int slot = trd__program_slot(p, "state", TRD__UPDATE, entries, 2);
    trd_value x = trd__program_input(p, slot, 0), ids = trd__program_input(p, slot, 1), result;
    trd_repeat(
        p->builder,
        &(trd_repeat_options){
            .count = 3, .carries = &x, .carry_count = 1, .shared = &ids, .shared_count = 1, .body = nest},
        &result);
    trd__program_output(p, slot, 0, result);
    expect_as_unrolled(p, 2, false);
    trd__program_free(p);
}

/* Every call of every iteration is recorded, one after the other, with its own cost. */
static void profiles_hold_every_iteration(void **state)
{
    (void)state;
    test_cpu_only();
    enum { COUNT = 5, ELEMENTS = 5000 };
    trd__recorder *recorder;
    assert_int_equal(trd__recorder_create(&recorder), TRD_OK);
    trd__backend *backend;
    assert_int_equal(
        trd__backend_create(&(trd__backend_options){.threads = 2, .recorder = recorder}, &backend), TRD_OK);
    trd__program *p = row_program(COUNT, ELEMENTS, &(sums){.swap = true}, true);
    world w = {.backend = backend, .slots = p->slot_count, .executable = test_compile(backend, p, false)};
    for (int s = 0; s < w.slots; s++) w.sets[s] = test_set(backend, &p->slots[s]);
    trd__recorder_switch(recorder, true);
    run(&w);
    assert_int_equal(backend->table->drain(backend), TRD_OK);
    trd__track *device;
    assert_int_equal(trd__recorder_track(recorder, "device", false, &device), TRD_OK);
    trd__span span;
    int calls = 0;
    uint64_t read = 0, written = 0, last = 0;
    while (trd__track_take(device, &span)) {
        if (strcmp(span.label->category, "op") != 0) continue;
        assert_true(span.begin_ns <= span.end_ns && (last == 0 || span.begin_ns == last));
        last = span.end_ns;
        calls++;
        read += span.label->bytes_read;
        written += span.label->bytes_written;
    }
    trd__memory_report report = backend->table->memory(w.executable);
    assert_int_equal(calls % COUNT, 0);
    assert_int_equal(calls, report.kernel_count);
    assert_int_equal(read, report.bytes_read);
    assert_int_equal(written, report.bytes_written);
    end(&w);
    trd__recorder_free(recorder);
    trd__program_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(loops_as_unrolled),
                                       cmocka_unit_test(loops_long_on_many_workers),
                                       cmocka_unit_test(updates_in_place),
                                       cmocka_unit_test(carries_may_swap),
                                       cmocka_unit_test(memory_is_of_one_iteration),
                                       cmocka_unit_test(computes_in_rows),
                                       cmocka_unit_test(a_failure_names_the_iteration),
                                       cmocka_unit_test(loops_in_loops),
                                       cmocka_unit_test(profiles_hold_every_iteration)};
    return cmocka_run_group_tests_name("backend/repeat", tests, NULL, NULL);
}
