/* The CPU backend's table: joins sets, compile and the executor behind backend.h. One thread dispatches; sets
 * and executables remember the newest ticket that touches them, so waiting is for exactly that work. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "backend/entries.h"
#include "base/alloc.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/memory.h"
#include "base/pool.h"

static trd__cpu_backend *of(trd__backend *backend)
{
    return (trd__cpu_backend *)backend;
}

static const char *const isa_names[] = {
    [TRD__ISA_BASELINE] = "baseline", [TRD__ISA_AVX2] = "avx2", [TRD__ISA_AVX512] = "avx512"};

/* -1: it is none of them. */
static int find_name(const char *name, const char *const *names, int count)
{
    for (int i = 0; i < count; i++)
        if (strcmp(name, names[i]) == 0) return i;
    return -1;
}

static trd_status choose_isa(const char *name, trd__isa *isa)
{
    trd__isa best = trd__cpu_detect();
    if (!name) name = getenv("TRD_CPU_ISA");
    *isa = best;
    if (!name || !*name) return TRD_OK;
    int found = find_name(name, isa_names, (int)(sizeof isa_names / sizeof *isa_names));
    if (found < 0)
        return trd__fail(TRD_INVALID_ARGUMENT,
                         "cpu_isa (TRD_CPU_ISA): expected baseline, avx2 or avx512, found \"%s\"", name);
    if (found > (int)best)
        return trd__fail(TRD_UNSUPPORTED, "cpu_isa (TRD_CPU_ISA): this processor has no %s, its best is %s",
                         name, isa_names[best]);
    *isa = (trd__isa)found;
    return TRD_OK;
}

static const char *const bf16_ways[] = {
    [TRD__BF16_AUTO] = "auto", [TRD__BF16_NATIVE] = "native", [TRD__BF16_WIDEN] = "widen"};

static trd_status choose_bf16_way(const char *name, trd__bf16_way *way)
{
    if (!name) name = getenv("TRD_CPU_BF16");
    *way = TRD__BF16_AUTO;
    if (!name || !*name) return TRD_OK;
    int found = find_name(name, bf16_ways, (int)(sizeof bf16_ways / sizeof *bf16_ways));
    if (found < 0)
        return trd__fail(TRD_INVALID_ARGUMENT,
                         "cpu_bf16 (TRD_CPU_BF16): expected auto, native or widen, found \"%s\"", name);
    *way = (trd__bf16_way)found;
    return TRD_OK;
}

/* OMP_NUM_THREADS may be a list, of which the outermost level's number comes first. */
static int choose_threads(int threads, const trd__machine *machine, const trd_log_sink *log)
{
    enum { MOST_THREADS = 1024 };
    if (threads > 0) return threads;
    const char *text = getenv("OMP_NUM_THREADS");
    if (!text || !*text) return machine->workers;
    char *end;
    long wanted = strtol(text, &end, 10);
    end += strspn(end, " \t");
    if (end > text && (!*end || *end == ',') && wanted > 0 && wanted <= MOST_THREADS) return (int)wanted;
    trd__log(log, TRD_LOG_WARNING,
             "OMP_NUM_THREADS: expected a number from 1 to %d, found \"%s\"; using %d threads", MOST_THREADS,
             text, machine->workers);
    return machine->workers;
}

static void describe(const trd__cpu_backend *cpu, const trd__machine *m)
{
    char quota[48] = "no quota";
    if (m->quota < INT_MAX) snprintf(quota, sizeof quota, "a quota of %d", m->quota);
    trd__log(&cpu->log, TRD_LOG_INFO,
             "backend cpu: %d threads, %s; this machine: %d processors, %d cores (%d fast), %s",
             cpu->info.workers, isa_names[cpu->info.isa], m->processors, m->cores, m->fast_cores, quota);
}

extern const trd__backend_table trd__backend_cpu;

static void backend_free(trd__backend *backend)
{
    trd__cpu_backend *cpu = of(backend);
    trd__executor_free(cpu->executor);
    trd__unmap(cpu->scratch, cpu->scratch_bytes);
    trd__unmap(cpu->arena, cpu->arena_bytes);
    trd__bf16_product_free(cpu->bf16_product);
    trd__free(cpu);
}

static trd_status backend_create(const trd__backend_options *options, trd__backend **backend)
{
    *backend = NULL;
    if (trd__mesh_devices(options->placement) > 1)
        return trd__fail(TRD_UNSUPPORTED,
                         "backend cpu: has 1 device, the mesh has %lld; set backend: pjrt (docs/meshes.md)",
                         (long long)trd__mesh_devices(options->placement));
    if (options->processes > 1)
        return trd__fail(TRD_UNSUPPORTED,
                         "backend cpu runs in one process, num_processes is %d; set backend=pjrt "
                         "(docs/meshes.md)",
                         options->processes);
    trd__isa isa;
    trd__bf16_way bf16_way;
    TRD_TRY(choose_isa(options->cpu_isa, &isa));
    TRD_TRY(choose_bf16_way(options->cpu_bf16, &bf16_way));
    trd__cpu_backend *cpu = trd__calloc(1, sizeof *cpu);
    if (!cpu) return TRD_NO_MEMORY;
    cpu->base.table = &trd__backend_cpu;
    cpu->log = options->log;
    if (options->compile_flags)
        trd__log(&cpu->log, TRD_LOG_WARNING, "backend cpu has no compiler: the flags \"%s\" do nothing",
                 options->compile_flags);
    trd__machine machine = trd__machine_read("", NULL);
    cpu->info = (trd__cpu_info){.isa = isa, .workers = choose_threads(options->threads, &machine, &cpu->log)};
    cpu->bf16_way = bf16_way;
    cpu->recorder = options->recorder;
    trd_status status = trd__executor_create(cpu->info.workers, cpu->recorder, &cpu->executor);
    if (status) {
        backend_free(&cpu->base);
        return status;
    }
    describe(cpu, &machine);
    *backend = &cpu->base;
    return TRD_OK;
}

/* Maps reserve no memory: what does not fit would be found out in the middle of a step. Without a set nothing
 * can run: such a backend only tells what a program would need. */
static trd_status check_memory(const trd__cpu_backend *cpu, size_t more_sets, size_t more)
{
    if (cpu->needed_bytes + more_sets == 0) return TRD_OK;
    return trd__memory_check(cpu->needed_bytes + cpu->arena_bytes + cpu->scratch_bytes + more_sets + more);
}

/* What the entries come to; one whose size overflows is refused when the set is made. */
static size_t needed_bytes(const trd__entry *entries, int count)
{
    size_t bytes = 0;
    for (int i = 0; i < count; i++)
        if (!entries[i].sparse && trd__shape_count(&entries[i].shape) >= 0)
            bytes += trd__entry_bytes(&entries[i]);
    return bytes;
}

static trd_status set_create(trd__backend *backend, const char *name, const trd__entry *entries, int count,
                             trd__set **out)
{
    trd__cpu_backend *cpu = of(backend);
    trd__cpu_set *set;
    size_t needed = needed_bytes(entries, count);
    *out = NULL;
    trd_status status = check_memory(cpu, needed, 0);
    if (status) return trd__fail_in(status, "set \"%s\"", name);
    TRD_TRY(trd__cpu_set_create(name, entries, count, &set));
    set->needed_bytes = needed;
    cpu->set_bytes += set->bytes;
    cpu->needed_bytes += needed;
    *out = &set->base;
    return TRD_OK;
}

static uint64_t set_bytes(const trd__entry *entries, int count)
{
    return trd__cpu_layout(entries, count, NULL);
}

static void set_free(trd__backend *backend, trd__set *base)
{
    trd__cpu_set *set = (trd__cpu_set *)base;
    if (!set) return;
    trd__executor_wait(of(backend)->executor, set->last_use);
    of(backend)->set_bytes -= set->bytes;
    of(backend)->needed_bytes -= set->needed_bytes;
    trd__cpu_set_free(set);
}

static trd_status entry_range(const trd__cpu_set *set, int entry, size_t *bytes)
{
    if (entry < 0 || entry >= set->base.entry_count)
        return trd__fail(TRD_INVALID_ARGUMENT, "set \"%s\": expected an entry below %d, found %d",
                         set->base.name, set->base.entry_count, entry);
    *bytes = trd__entry_bytes(&set->base.entries[entry]);
    return TRD_OK;
}

enum { PAGE = 1 << 12 }; /* bytes of a copy that stay together */

typedef struct copying {
    char *to;
    const char *from;
    size_t bytes;
} copying;

static void copy_part(void *context, int worker, int workers)
{
    const copying *c = context;
    int64_t begin, end;
    trd__partition(worker, workers, (int64_t)c->bytes, PAGE, &begin, &end);
    if (end > begin) memcpy(c->to + begin, c->from + begin, (size_t)(end - begin));
}

/* One thread's copy is far from what the memory gives; a payload's, which every micro-batch makes, is over
 * before that counts. The executor's threads may be busy with other sets. */
static void copy(const trd__cpu_backend *cpu, void *to, const void *from, size_t bytes)
{
    copying c = {to, from, bytes};
    if (bytes <= PAGE) {
        memcpy(to, from, bytes);
        return;
    }
    trd__pool_once(cpu->info.workers, bytes, copy_part, &c);
}

static trd_status set_write(trd__backend *backend, trd__set *base, int entry, const void *data)
{
    trd__cpu_set *set = (trd__cpu_set *)base;
    size_t bytes = 0;
    TRD_TRY(entry_range(set, entry, &bytes));
    trd__executor_wait(of(backend)->executor, set->last_use);
    copy(of(backend), set->memory + set->offsets[entry], data, bytes);
    return TRD_OK;
}

static trd_status set_read_part(trd__backend *backend, trd__set *base, int entry, size_t offset, size_t bytes,
                                void *data)
{
    trd__cpu_set *set = (trd__cpu_set *)base;
    size_t all = 0;
    TRD_TRY(entry_range(set, entry, &all));
    trd__executor_wait(of(backend)->executor, set->last_write);
    if (set->last_write) TRD_TRY(trd__executor_error(of(backend)->executor));
    copy(of(backend), data, set->memory + set->offsets[entry] + offset, bytes);
    return TRD_OK;
}

static trd_status set_read(trd__backend *backend, trd__set *base, int entry, void *data)
{
    size_t bytes = 0;
    TRD_TRY(entry_range((trd__cpu_set *)base, entry, &bytes));
    return set_read_part(backend, base, entry, 0, bytes, data);
}

/* Makes a shared region at least `bytes` big. It moves only while nothing runs. */
static trd_status grow(trd__cpu_backend *cpu, unsigned char **region, size_t *held, size_t bytes)
{
    if (bytes <= *held) return TRD_OK;
    TRD_TRY(check_memory(cpu, 0, bytes - *held));
    unsigned char *larger = trd__map(bytes);
    if (!larger) return TRD_NO_MEMORY;
    trd__executor_wait(cpu->executor, trd__executor_last(cpu->executor));
    trd__unmap(*region, *held);
    *region = larger;
    *held = bytes;
    return TRD_OK;
}

static bool has_bf16(const trd_graph *graph)
{
    for (int i = 0; i < graph->node_count; i++) {
        const trd_node *n = graph->nodes[i];
        for (int r = 0; r < n->result_count; r++)
            if (n->results[r].dtype == TRD_BF16) return true;
        for (int b = 0; b < n->body_count; b++)
            if (has_bf16(&n->bodies[b]->builder->graph)) return true;
    }
    return false;
}

/* How this backend's programs multiply bfloat16, chosen once and for all of them. */
static trd_status choose_bf16_product(trd__cpu_backend *cpu)
{
    if (cpu->bf16_chosen) return TRD_OK;
    TRD_TRY(trd__bf16_product_choose(cpu->bf16_way, cpu->info.isa, &cpu->log, &cpu->bf16_product));
    cpu->info.bf16_product = cpu->bf16_product;
    cpu->bf16_chosen = true;
    return TRD_OK;
}

static trd_status compile(trd__backend *backend, const trd__program *program,
                          const trd__compile_options *options, trd__executable **out)
{
    trd__cpu_backend *cpu = of(backend);
    trd__executable *executable;
    *out = NULL;
    if (has_bf16(&program->builder->graph)) TRD_TRY(choose_bf16_product(cpu));
    TRD_TRY(trd__cpu_compile(&cpu->info, &cpu->log, program, options, &executable));
    *out = executable;
    if (options && options->plan_only) return TRD_OK;
    trd_status status = grow(cpu, &cpu->arena, &cpu->arena_bytes, executable->report.arena_bytes);
    if (!status) status = grow(cpu, &cpu->scratch, &cpu->scratch_bytes, executable->report.scratch_bytes);
    if (!status && cpu->recorder) status = trd__cpu_label(cpu->recorder, executable);
    if (!status) return TRD_OK;
    *out = NULL;
    trd__cpu_executable_free(executable);
    return trd__fail_in(status, "compile of \"%s\"", program->name);
}

static void executable_free(trd__backend *backend, trd__executable *executable)
{
    if (!executable) return;
    trd__executor_wait(of(backend)->executor, executable->last_ticket);
    trd__cpu_executable_free(executable);
}

static trd__memory_report memory(const trd__executable *executable)
{
    return executable->report;
}

static trd__usage usage(const trd__executable *executable)
{
    return (trd__usage){.runs = atomic_load(&executable->runs),
                        .busy_ns = atomic_load(&executable->busy_ns),
                        .least_ns = atomic_load(&executable->least_ns)};
}

static trd_status check_binding(const trd__executable *executable, int slot, const trd__set *set)
{
    const trd__slot *s = &executable->program->slots[slot];
    if (!set)
        return trd__fail(TRD_INVALID_ARGUMENT, "execute \"%s\": no set bound to slot \"%s\"",
                         executable->name, s->name);
    if (((const trd__cpu_set *)set)->layout == executable->layouts[slot]) return TRD_OK;
    return trd__entries_refuse(executable->name, s, set);
}

static trd_status execute(trd__backend *backend, trd__executable *executable, trd__set *const *sets,
                          trd__event *event)
{
    trd__cpu_backend *cpu = of(backend);
    const trd__program *program = executable->program;
    trd__run run = {.executable = executable,
                    .shared_scratch = cpu->scratch,
                    .worker_scratch = cpu->scratch ? cpu->scratch + executable->shared_scratch : NULL};
    for (int i = 0; i < program->slot_count; i++) {
        TRD_TRY(check_binding(executable, i, sets[i]));
        run.regions[i] = ((trd__cpu_set *)sets[i])->memory;
    }
    run.regions[TRD__REGION_ARENA] = cpu->arena;
    run.regions[TRD__REGION_CONSTANTS] = executable->constants;
    TRD_TRY(trd__executor_submit(cpu->executor, &run));
    executable->last_ticket = run.ticket;
    for (int i = 0; i < program->slot_count; i++) {
        trd__cpu_set *set = (trd__cpu_set *)sets[i];
        set->last_use = run.ticket;
        if (!(program->slots[i].access & TRD__WRITE)) continue;
        set->last_write = run.ticket;
        set->base.generation++;
    }
    if (event) event->ticket = run.ticket;
    return TRD_OK;
}

static bool event_ready(trd__backend *backend, trd__event event)
{
    return trd__executor_done(of(backend)->executor, event.ticket);
}

static trd_status event_wait(trd__backend *backend, trd__event event)
{
    trd__executor_wait(of(backend)->executor, event.ticket);
    return trd__executor_error(of(backend)->executor);
}

static trd_status drain(trd__backend *backend)
{
    return event_wait(backend, (trd__event){trd__executor_last(of(backend)->executor)});
}

static void reset(trd__backend *backend)
{
    trd__executor_reset(of(backend)->executor);
}

static trd__backend_stats stats(const trd__backend *backend)
{
    const trd__cpu_backend *cpu = (const trd__cpu_backend *)backend;
    trd__backend_stats all = trd__executor_stats(cpu->executor);
    all.workers = cpu->info.workers;
    all.memory_bytes = cpu->set_bytes + cpu->arena_bytes + cpu->scratch_bytes;
    return all;
}

const trd__backend_table trd__backend_cpu = {.name = "cpu",
                                             .create = backend_create,
                                             .free = backend_free,
                                             .set_create = set_create,
                                             .set_bytes = set_bytes,
                                             .set_free = set_free,
                                             .set_write = set_write,
                                             .set_read = set_read,
                                             .set_read_part = set_read_part,
                                             .compile = compile,
                                             .executable_free = executable_free,
                                             .memory = memory,
                                             .usage = usage,
                                             .execute = execute,
                                             .event_ready = event_ready,
                                             .event_wait = event_wait,
                                             .drain = drain,
                                             .reset = reset,
                                             .stats = stats};
