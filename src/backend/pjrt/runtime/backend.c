/* The table of the backend "pjrt": XLA behind a plugin. One thread dispatches; sets and executables remember
 * the newest ticket that touches them. A set may be written while queued runs still read it: they hold the
 * buffers they were dispatched with. */
#include <string.h>

#include "backend/entries.h"
#include "backend/pjrt/runtime/pjrt.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/pool.h"

static trd__pjrt_backend *of(trd__backend *backend)
{
    return (trd__pjrt_backend *)backend;
}

extern const trd__backend_table trd__backend_pjrt;

static void backend_free(trd__backend *base)
{
    trd__pjrt_backend *backend = of(base);
    trd__pjrt_queue_free(backend->queue);
    trd__pjrt_client_close(&backend->client);
    trd__free(backend->cache_directory);
    trd__free(backend);
}

static trd_status backend_create(const trd__backend_options *options, trd__backend **out)
{
    *out = NULL;
    trd__pjrt_backend *backend = trd__calloc(1, sizeof *backend);
    if (!backend) return TRD_NO_MEMORY;
    backend->base.table = &trd__backend_pjrt;
    backend->log = options->log;
    backend->recorder = options->recorder;
    backend->placement = trd__mesh_devices(options->placement) > 1 ? options->placement : NULL;
    backend->host_threads = options->threads > 0 ? options->threads : trd__processor_count();
    trd_status status = TRD_OK;
    if (options->cache_directory && !(backend->cache_directory = trd__strdup(options->cache_directory)))
        status = TRD_NO_MEMORY;
    if (!status) status = trd__pjrt_client_open(options, backend->placement, &backend->client);
    if (!status) status = trd__pjrt_client_use_flags(&backend->client, options->compile_flags);
    if (!status)
        status = trd__pjrt_queue_create(backend->client.api, backend->client.device_count, backend->recorder,
                                        &backend->queue);
    if (status) {
        backend_free(&backend->base);
        return status;
    }
    trd__log(&backend->log, TRD_LOG_INFO, "backend pjrt: %d of the plugin's devices, platform %s (%s)",
             backend->client.mesh_count, backend->client.platform, backend->client.version);
    *out = &backend->base;
    return TRD_OK;
}

/* All sets and the largest program must fit on each device. Without a set nothing can run: such a backend
 * only tells what a program would need. */
static trd_status check_memory(const trd__pjrt_backend *backend, uint64_t sets, uint64_t temporary)
{
    uint64_t limit = backend->client.memory_limit;
    if (!sets) return TRD_OK;
    if (backend->client.is_host)
        return trd__memory_check((sets + temporary) * (uint64_t)backend->client.device_count);
    if (!limit || sets + temporary <= limit) return TRD_OK;
    return trd__fail(TRD_NO_MEMORY,
                     "sets take %.1f MB and programs %.1f MB of temporaries, the device has %.1f MB",
                     (double)sets / 1e6, (double)temporary / 1e6, (double)limit / 1e6);
}

static trd_status set_create(trd__backend *base, const char *name, const trd__entry *entries, int count,
                             trd__set **out)
{
    trd__pjrt_backend *backend = of(base);
    trd__pjrt_set *set;
    *out = NULL;
    TRD_TRY(trd__pjrt_set_create(backend, name, entries, count, &set));
    trd_status status = check_memory(backend, backend->set_bytes + set->bytes, backend->temporary_bytes);
    if (status) {
        trd__pjrt_set_free(&backend->client, set);
        return trd__fail_in(status, "set \"%s\"", name);
    }
    backend->set_bytes += set->bytes;
    *out = &set->base;
    return TRD_OK;
}

static uint64_t set_bytes(const trd__entry *entries, int count)
{
    uint64_t bytes = 0;
    for (int i = 0; i < count; i++) bytes += trd__entry_bytes(&entries[i]);
    return bytes;
}

static void set_free(trd__backend *base, trd__set *set)
{
    trd__pjrt_backend *backend = of(base);
    if (!set) return;
    trd__pjrt_queue_wait(backend->queue, ((trd__pjrt_set *)set)->last_use);
    backend->set_bytes -= ((trd__pjrt_set *)set)->bytes;
    trd__pjrt_set_free(&backend->client, (trd__pjrt_set *)set);
}

static trd_status entry_range(const trd__set *set, int entry)
{
    if (entry >= 0 && entry < set->entry_count) return TRD_OK;
    return trd__fail(TRD_INVALID_ARGUMENT, "set \"%s\": expected an entry below %d, found %d", set->name,
                     set->entry_count, entry);
}

static trd_status set_write(trd__backend *base, trd__set *set, int entry, const void *data)
{
    trd__pjrt_backend *backend = of(base);
    const trd__pjrt_client *c = &backend->client;
    const trd__pjrt_set *own = (const trd__pjrt_set *)set;
    TRD_TRY(entry_range(set, entry));
    trd__pjrt_parts_free(c, trd__pjrt_set_buffers(c, own, entry));
    trd_status status = trd__pjrt_parts_create(c, backend->placement, &own->splits[entry], data,
                                               trd__pjrt_set_buffers(c, own, entry));
    if (!status) return TRD_OK;
    return trd__fail_in(status, "set \"%s\", entry \"%s\"", set->name, set->entries[entry].name);
}

static trd_status set_read(trd__backend *base, trd__set *set, int entry, void *data)
{
    trd__pjrt_backend *backend = of(base);
    const trd__pjrt_set *own = (const trd__pjrt_set *)set;
    TRD_TRY(entry_range(set, entry));
    trd__pjrt_queue_wait(backend->queue, own->last_write);
    if (own->last_write) TRD_TRY(trd__pjrt_queue_error(backend->queue));
    PJRT_Buffer *const *buffers = trd__pjrt_set_buffers(&backend->client, own, entry);
    if (!buffers[0]) {
        memset(data, 0, trd__entry_bytes(&set->entries[entry]));
        return TRD_OK;
    }
    trd_status status =
        trd__pjrt_parts_read(&backend->client, backend->placement, &own->splits[entry], buffers, data);
    if (!status) return TRD_OK;
    return trd__fail_in(status, "set \"%s\", entry \"%s\"", set->name, set->entries[entry].name);
}

/* Whole and then cut: few bytes are asked for seldom. */
static trd_status set_read_part(trd__backend *base, trd__set *set, int entry, size_t offset, size_t bytes,
                                void *data)
{
    TRD_TRY(entry_range(set, entry));
    size_t all = trd__entry_bytes(&set->entries[entry]);
    char *whole = trd__map(all);
    if (!whole) return TRD_NO_MEMORY;
    trd_status status = set_read(base, set, entry, whole);
    if (!status && bytes) memcpy(data, whole + offset, bytes);
    trd__unmap(whole, all);
    return status;
}

static trd_status compile(trd__backend *base, const trd__program *program,
                          const trd__compile_options *options, trd__executable **out)
{
    trd__pjrt_backend *backend = of(base);
    trd__executable *e;
    *out = NULL;
    if (options && options->plan_only)
        return trd__fail(
            TRD_UNSUPPORTED,
            "planning \"%s\": the plugin's compiler plans memory by itself, so remat_policy auto "
            "cannot compare plans; choose none, minimal or full",
            program->name);
    uint64_t begin_ns = trd__now_ns();
    TRD_TRY(trd__pjrt_compile(backend, program, options ? options->dump_folder : NULL, &e));
    uint64_t temporary = backend->temporary_bytes;
    if (e->report.arena_bytes > temporary) temporary = e->report.arena_bytes;
    trd_status status = check_memory(backend, backend->set_bytes, temporary);
    if (status) {
        trd__pjrt_executable_free(&backend->client, e);
        return trd__fail_in(status, "compile of \"%s\"", program->name);
    }
    backend->temporary_bytes = temporary;
    trd__log(&backend->log, TRD_LOG_INFO, "%s %s: %d nodes, %d arguments, temporaries %.1f MB, %.2f s",
             e->from_cache ? "loaded from the cache" : "compiled", e->name, e->report.node_count,
             e->module.argument_count, (double)e->report.arena_bytes / 1e6,
             (double)(trd__now_ns() - begin_ns) / 1e9);
    *out = e;
    return TRD_OK;
}

static void executable_free(trd__backend *base, trd__executable *e)
{
    if (!e) return;
    trd__pjrt_queue_wait(of(base)->queue, e->last_ticket);
    trd__pjrt_executable_free(&of(base)->client, e);
}

static trd__memory_report memory(const trd__executable *e)
{
    return e->report;
}

static trd__usage usage(const trd__executable *e)
{
    return (trd__usage){.runs = atomic_load(&e->counter.runs),
                        .busy_ns = atomic_load(&e->counter.busy_ns),
                        .least_ns = atomic_load(&e->counter.least_ns)};
}

static trd_status refuse_splits(const trd__executable *e, int slot, const trd__set *set)
{
    return trd__fail(TRD_SHAPE,
                     "execute \"%s\": slot \"%s\": expected the entries split over the mesh as the program "
                     "has them, found set \"%s\" with other axes; create the set from the program's slot",
                     e->name, e->slots[slot].name, set->name);
}

static trd_status check_sets(const trd__executable *e, trd__set *const *sets)
{
    for (int s = 0; s < e->slot_count; s++) {
        if (!sets[s])
            return trd__fail(TRD_INVALID_ARGUMENT, "execute \"%s\": no set bound to slot \"%s\"", e->name,
                             e->slots[s].name);
        const trd__pjrt_key *key = &((const trd__pjrt_set *)sets[s])->key;
        if (key->entries != e->keys[s].entries) return trd__entries_refuse(e->name, &e->slots[s], sets[s]);
        if (key->splits != e->keys[s].splits) return refuse_splits(e, s, sets[s]);
    }
    return TRD_OK;
}

static trd_status execute(trd__backend *base, trd__executable *e, trd__set *const *sets, trd__event *event)
{
    trd__pjrt_backend *backend = of(base);
    TRD_TRY(check_sets(e, sets));
    TRD_TRY(trd__pjrt_queue_ready(backend->queue));
    uint64_t begin_ns = trd__now_ns();
    trd_status status = trd__pjrt_dispatch(backend, e, sets);
    if (status == TRD_NO_MEMORY)
        status = trd__fail_in(status, "sets take %.1f MB, its temporaries %.1f MB",
                              (double)backend->set_bytes / 1e6, (double)e->report.arena_bytes / 1e6);
    if (status) return trd__pjrt_queue_stick(backend->queue, status);
    uint64_t ticket = trd__pjrt_queue_add(backend->queue, &e->counter, e->done, begin_ns);
    e->last_ticket = ticket;
    for (int s = 0; s < e->slot_count; s++) {
        trd__pjrt_set *set = (trd__pjrt_set *)sets[s];
        set->last_use = ticket;
        if (!(e->slots[s].access & TRD__WRITE)) continue;
        set->last_write = ticket;
        set->base.generation++;
    }
    if (event) event->ticket = ticket;
    return TRD_OK;
}

static bool event_ready(trd__backend *base, trd__event event)
{
    return trd__pjrt_queue_done(of(base)->queue, event.ticket);
}

static trd_status event_wait(trd__backend *base, trd__event event)
{
    trd__pjrt_queue_wait(of(base)->queue, event.ticket);
    return trd__pjrt_queue_error(of(base)->queue);
}

static trd_status drain(trd__backend *base)
{
    return event_wait(base, (trd__event){trd__pjrt_queue_last(of(base)->queue)});
}

static void reset(trd__backend *base)
{
    trd__pjrt_queue_reset(of(base)->queue);
    of(base)->first_sound = trd__pjrt_queue_last(of(base)->queue) + 1;
}

static trd__backend_stats stats(const trd__backend *base)
{
    const trd__pjrt_backend *backend = (const trd__pjrt_backend *)base;
    trd__backend_stats all = trd__pjrt_queue_stats(backend->queue);
    all.workers = backend->host_threads;
    all.memory_bytes = backend->set_bytes + backend->temporary_bytes;
    return all;
}

const trd__backend_table trd__backend_pjrt = {.name = "pjrt",
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
