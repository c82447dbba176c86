/* What a run of the backend pjrt costs the host by the number of arrays in its state, and what packing the
 * state into one array costs the program. Usage: bench_dispatch [runs]; the plugin is the environment's
 * PJRT_PLUGIN_LIBRARY_PATH. Each program updates all of its state, which is donated. Times are the least of
 * all runs, as other load on the machine only adds. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <treadle/ops.h>

#include "backend/backend.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/shape.h"

enum { MOST = 1024, GROUP = 64, ROWS = 512 };

typedef struct figures {
    double wall_us, thread_us; /* of the call; of the calling thread in it */
    double run_ms, all_ms;     /* until it is done; of all threads until then */
    trd__memory_report memory;
} figures;

static void die(const char *what)
{
    fprintf(stderr, "bench_dispatch: %s: %s\n", what, trd_error_message());
    exit(1);
}

static void need(trd_status status, const char *what)
{
    if (status) die(what);
}

/* A weight's share of a step: a product with it, the gradient's product, and the update. */
static trd_value train(trd_builder *b, trd_value weight)
{
    trd_shape shape = trd_value_shape(weight);
    if (shape.rank < 2) return trd_mul(b, weight, trd_scalar(b, TRD_F32, 0.999));
    trd_value x = trd_constant_fill(b, TRD_F32, TRD__SHAPE(ROWS, shape.dim[0]), 1e-3);
    trd_value y = trd_matmul(b, x, weight, false, false, TRD_F32);
    trd_value gradient = trd_matmul(b, x, y, true, false, TRD_F32);
    return trd_sub(b, weight, trd_mul(b, gradient, trd_scalar(b, TRD_F32, 1e-6)));
}

static trd_value concat_all(trd_builder *b, const trd_value *parts, int count)
{
    trd_value groups[MOST / GROUP];
    int n = 0;
    for (int i = 0; i < count; i += GROUP)
        groups[n++] = trd_concat(b, parts + i, count - i < GROUP ? count - i : GROUP, 0);
    return n > 1 ? trd_concat(b, groups, n, 0) : groups[0];
}

static void fill_packed(trd__program *p, int count, trd_shape each)
{
    trd_value parts[MOST];
    int64_t size = trd__shape_count(&each);
    const trd__entry entry = {.name = "state", .dtype = TRD_F32, .shape = TRD__SHAPE(count * size)};
    int slot = trd__program_slot(p, "state", TRD__UPDATE, &entry, 1);
    trd_value all = trd__program_input(p, slot, 0);
    for (int i = 0; i < count; i++) {
        trd_value part = trd_slice(p->builder, all, 0, i * size, (i + 1) * size);
        part = train(p->builder, trd_reshape(p->builder, part, each));
        parts[i] = trd_reshape(p->builder, part, TRD__SHAPE(size));
    }
    trd__program_output(p, slot, 0, concat_all(p->builder, parts, count));
}

static void fill_apart(trd__program *p, int count, trd_shape each)
{
    static char names[MOST][16];
    static trd__entry entries[MOST];
    for (int i = 0; i < count; i++) {
        snprintf(names[i], sizeof names[i], "state%d", i);
        entries[i] = (trd__entry){.name = names[i], .dtype = TRD_F32, .shape = each};
    }
    int slot = trd__program_slot(p, "state", TRD__UPDATE, entries, count);
    for (int i = 0; i < count; i++)
        trd__program_output(p, slot, i, train(p->builder, trd__program_input(p, slot, i)));
}

static double spent_us(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

static void keep_least(double *least, double value)
{
    if (*least == 0 || value < *least) *least = value;
}

static figures measure(trd__backend *backend, int count, trd_shape each, bool packed, int runs)
{
    const trd__backend_table *table = backend->table;
    figures f = {0};
    trd__program *p;
    trd__executable *executable;
    trd__set *set;
    need(trd__program_create("dispatch", &p), "program");
    (packed ? fill_packed : fill_apart)(p, count, each);
    need(trd_builder_status(p->builder), "program");
    need(table->compile(backend, p, &(trd__compile_options){0}, &executable), "compile");
    need(table->set_create(backend, "state", p->slots[0].entries, p->slots[0].entry_count, &set), "set");
    for (int i = 0; i < runs; i++) {
        uint64_t begin = trd__now_ns();
        double thread = spent_us(CLOCK_THREAD_CPUTIME_ID), all = spent_us(CLOCK_PROCESS_CPUTIME_ID);
        need(table->execute(backend, executable, &set, NULL), "execute");
        thread = spent_us(CLOCK_THREAD_CPUTIME_ID) - thread;
        double wall = 1e-3 * (double)(trd__now_ns() - begin);
        need(table->drain(backend), "run");
        all = spent_us(CLOCK_PROCESS_CPUTIME_ID) - all;
        if (!i) continue; /* makes the state */
        keep_least(&f.wall_us, wall);
        keep_least(&f.thread_us, thread);
        keep_least(&f.run_ms, 1e-6 * (double)(trd__now_ns() - begin));
        keep_least(&f.all_ms, 1e-3 * all);
    }
    f.memory = table->memory(executable);
    table->set_free(backend, set);
    table->executable_free(backend, executable);
    trd__program_free(p);
    return f;
}

static void row(trd__backend *backend, int count, trd_shape each, bool packed, int runs)
{
    figures f = measure(backend, count, each, packed, runs);
    char shape[64];
    snprintf(shape, sizeof shape, each.rank == 2 ? "%lldx%lld" : "%lld", (long long)each.dim[0],
             (long long)each.dim[1]);
    printf("| %d x %s | %s | %.0f us | %.0f us | %.2f ms | %.2f ms | %.1f MB |\n", count, shape,
           packed ? "one" : "each", f.wall_us, f.thread_us, f.run_ms, f.all_ms,
           (double)f.memory.arena_bytes / 1e6);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static const int counts[] = {1, 10, 100, 310, 620};
    int runs = argc > 1 ? atoi(argv[1]) : 300;
    trd__backend *backend;
    need(trd__backend_create(&(trd__backend_options){.name = "pjrt"}, &backend), "backend");
    printf("| state | arrays | execute | of its thread | run | of all threads | temporaries "
           "|\n|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (int packed = 0; packed < 2; packed++) row(backend, counts[i], TRD__SHAPE(16), packed, runs);
    for (int packed = 0; packed < 2; packed++)
        row(backend, 24, TRD__SHAPE(1024, 1024), packed, 1 + runs / 20);
    trd__backend_free(backend);
    return 0;
}
