/* From a program to a loaded executable, and one run of it. The executable keeps what binding needs: slots,
 * argument and result tables; arrays for a run's buffers are made here, so that dispatch allocates nothing.
 */
#include <string.h>

#include "backend/entries.h"
#include "backend/pjrt/runtime/cache.h"
#include "backend/pjrt/runtime/pjrt.h"
#include "base/alloc.h"
#include "base/checksum.h"
#include "base/log.h"
#include "graph/passes.h"

static trd_status keep_slots(const trd__placement *placement, trd__executable *e, const trd__program *program)
{
    e->slot_count = program->slot_count;
    for (int s = 0; s < program->slot_count; s++) {
        const trd__slot *from = &program->slots[s];
        trd__slot *to = &e->slots[s];
        *to = (trd__slot){.name = trd__arena_strdup(e->arena, from->name),
                          .access = from->access,
                          .entry_count = from->entry_count};
        if (!to->name) return TRD_NO_MEMORY;
        TRD_TRY(trd__entries_copy(e->arena, from->name, from->entries, from->entry_count, &to->entries));
        const trd__pjrt_split *splits;
        TRD_TRY(trd__pjrt_splits_create(e->arena, placement, from->entries, from->entry_count, &splits,
                                        &e->keys[s]));
    }
    return TRD_OK;
}

static trd_status compile(const trd__pjrt_client *c, const char *dump_folder, trd__executable *e)
{
    unsigned char *options;
    size_t options_size;
    static const char format[] = "mlir";
    TRD_TRY(trd__pjrt_compile_options(c, dump_folder, &options, &options_size));
    PJRT_Program code = TRD__PJRT(PJRT_Program, .code = e->module.text, .code_size = e->module.bytes,
                                  .format = format, .format_size = sizeof format - 1);
    PJRT_Client_Compile_Args compile =
        TRD__PJRT(PJRT_Client_Compile_Args, .client = c->client, .program = &code,
                  .compile_options = (const char *)options, .compile_options_size = options_size);
    trd_status status = trd__pjrt_check(c->api, c->api->PJRT_Client_Compile(&compile), "XLA");
    trd__free(options);
    e->loaded = compile.executable;
    return status;
}

/* From the cache, or compiled and put there. A cache that fails costs a warning. What is dumped must be
 * compiled. */
static trd_status load(const trd__pjrt_backend *backend, const char *dump_folder, trd__executable *e)
{
    const trd__pjrt_client *c = &backend->client;
    const char *folder = backend->cache_directory;
    if (!folder || dump_folder) return compile(c, dump_folder, e);
    if (trd__pjrt_cache_load(c, folder, &e->module, &e->loaded))
        trd__log(&backend->log, TRD_LOG_WARNING, "%s is compiled anew: %s", e->name, trd_error_message());
    e->from_cache = e->loaded != NULL;
    if (e->loaded) return TRD_OK;
    TRD_TRY(compile(c, NULL, e));
    trd_status status = trd__pjrt_cache_save(c, folder, &e->module, e->loaded);
    if (status && status != TRD_UNSUPPORTED)
        trd__log(&backend->log, TRD_LOG_WARNING, "%s is not kept: %s", e->name, trd_error_message());
    return TRD_OK;
}

/* What the plugin tells of memory. Temporaries are apart: its peak leaves them out. */
static trd_status ask_memory(const trd__pjrt_client *c, trd__executable *e)
{
    PJRT_Executable *executable;
    TRD_TRY(trd__pjrt_executable_of(c->api, e->loaded, &executable));
    PJRT_Executable_GetCompiledMemoryStats_Args stats =
        TRD__PJRT(PJRT_Executable_GetCompiledMemoryStats_Args, .executable = executable);
    trd_status status =
        trd__pjrt_check(c->api, c->api->PJRT_Executable_GetCompiledMemoryStats(&stats), "memory");
    trd__pjrt_executable_release(c->api, executable);
    if (status == TRD_UNSUPPORTED) return TRD_OK;
    e->report.arena_bytes = e->report.lower_bound_bytes = (uint64_t)stats.temp_size_in_bytes;
    e->report.bytes_read = (uint64_t)stats.argument_size_in_bytes;
    e->report.bytes_written = (uint64_t)stats.output_size_in_bytes;
    return status;
}

static trd_status make_list(trd__arena *arena, int devices, int count, PJRT_Buffer ***buffers,
                            PJRT_Buffer ****lists)
{
    *buffers = trd__arena_alloc(arena, (size_t)devices * (size_t)count + 1, sizeof **buffers);
    *lists = trd__arena_alloc(arena, (size_t)devices, sizeof **lists);
    if (!*buffers || !*lists) return TRD_NO_MEMORY;
    for (int d = 0; d < devices; d++) (*lists)[d] = *buffers + (ptrdiff_t)d * count;
    return TRD_OK;
}

static trd_status make_lists(trd__executable *e, int devices)
{
    const trd__pjrt_module *m = &e->module;
    TRD_TRY(make_list(e->arena, devices, m->argument_count, &e->arguments, &e->argument_lists));
    TRD_TRY(make_list(e->arena, devices, m->result_count, &e->results, &e->result_lists));
    e->done = trd__arena_alloc(e->arena, (size_t)devices, sizeof *e->done);
    return e->done ? TRD_OK : TRD_NO_MEMORY;
}

static trd_status fill(const trd__pjrt_backend *backend, const trd__program *program, const char *dump_folder,
                       trd__executable *e)
{
    const trd__pjrt_client *c = &backend->client;
    e->arena = trd__arena_create();
    if (!e->arena) return TRD_NO_MEMORY;
    e->name = e->counter.program = trd__arena_strdup(e->arena, program->name);
    if (!e->name) return TRD_NO_MEMORY;
    TRD_TRY(keep_slots(backend->placement, e, program));
    TRD_TRY(trd__pjrt_lower(program, backend->placement, &e->module));
    e->report.flops = trd__program_flops(program);
    e->report.node_count = e->module.node_count;
    e->report.kernel_count = 1;
    e->report.fingerprint =
        trd__checksum_more(trd__checksum(e->module.text, e->module.bytes), c->version, strlen(c->version));
    TRD_TRY(make_lists(e, c->device_count));
    TRD_TRY(load(backend, dump_folder, e));
    TRD_TRY(ask_memory(c, e));
    trd__free(e->module.text);
    e->module.text = NULL;
    if (!backend->recorder) return TRD_OK;
    const trd__label label = {.category = "program",
                              .name = e->name,
                              .flops = e->report.flops,
                              .bytes_read = e->report.bytes_read,
                              .bytes_written = e->report.bytes_written,
                              .fingerprint = e->report.fingerprint};
    return trd__recorder_label(backend->recorder, &label, &e->counter.label);
}

trd_status trd__pjrt_compile(const trd__pjrt_backend *backend, const trd__program *program,
                             const char *dump_folder, trd__executable **executable)
{
    *executable = NULL;
    trd__executable *e = trd__calloc(1, sizeof *e);
    if (!e) return TRD_NO_MEMORY;
    trd_status status = fill(backend, program, dump_folder, e);
    if (status) {
        trd__pjrt_executable_free(&backend->client, e);
        return trd__fail_in(status, "compile of \"%s\"", program->name);
    }
    *executable = e;
    return TRD_OK;
}

void trd__pjrt_executable_free(const trd__pjrt_client *c, trd__executable *e)
{
    if (!e) return;
    if (e->loaded)
        (void)trd__pjrt_check(c->api,
                              c->api->PJRT_LoadedExecutable_Destroy(
                                  &TRD__PJRT(PJRT_LoadedExecutable_Destroy_Args, .executable = e->loaded)),
                              "freeing an executable");
    trd__pjrt_module_free(&e->module);
    trd__arena_free(e->arena);
    trd__free(e);
}

static trd_status bind_arguments(const trd__pjrt_backend *backend, trd__executable *e, trd__set *const *sets)
{
    const trd__pjrt_client *c = &backend->client;
    for (int i = 0; i < e->module.argument_count; i++) {
        const trd__pjrt_binding *from = &e->module.arguments[i];
        const trd__pjrt_set *set = (const trd__pjrt_set *)sets[from->slot];
        PJRT_Buffer **buffers = trd__pjrt_set_buffers(c, set, from->entry);
        if (!buffers[0])
            TRD_TRY(trd__pjrt_parts_create(c, backend->placement, &set->splits[from->entry], NULL, buffers));
        for (int d = 0; d < c->device_count; d++) e->argument_lists[d][i] = buffers[d];
    }
    return TRD_OK;
}

/* What the run replaces and takes no memory from goes first, so that old and new contents need not fit at
 * once. Queued runs hold the buffers that they use. What was written before a failure may hold that failure,
 * which a run that took its memory would fail with again. */
static void drop_overwritten(const trd__pjrt_backend *backend, const trd__executable *e,
                             trd__set *const *sets)
{
    const trd__pjrt_client *c = &backend->client;
    for (int i = 0; i < e->module.result_count; i++) {
        const trd__pjrt_binding *to = &e->module.results[i];
        const trd__pjrt_set *set = (const trd__pjrt_set *)sets[to->slot];
        if (e->slots[to->slot].access != TRD__WRITE) continue;
        if (to->alias < 0 || set->last_write < backend->first_sound)
            trd__pjrt_parts_free(c, trd__pjrt_set_buffers(c, set, to->entry));
    }
}

trd_status trd__pjrt_dispatch(const trd__pjrt_backend *backend, trd__executable *e, trd__set *const *sets)
{
    const trd__pjrt_client *c = &backend->client;
    drop_overwritten(backend, e, sets);
    TRD_TRY(bind_arguments(backend, e, sets));
    PJRT_ExecuteOptions options = TRD__PJRT(PJRT_ExecuteOptions);
    PJRT_LoadedExecutable_Execute_Args execute =
        TRD__PJRT(PJRT_LoadedExecutable_Execute_Args, .executable = e->loaded, .options = &options,
                  .argument_lists = (PJRT_Buffer *const *const *)e->argument_lists,
                  .num_devices = (size_t)c->device_count, .num_args = (size_t)e->module.argument_count,
                  .output_lists = (PJRT_Buffer * *const *)e->result_lists, .device_complete_events = e->done);
    TRD_TRY(
        trd__pjrt_check(c->api, c->api->PJRT_LoadedExecutable_Execute(&execute), "execute \"%s\"", e->name));
    for (int i = 0; i < e->module.result_count; i++) {
        const trd__pjrt_binding *to = &e->module.results[i];
        PJRT_Buffer **buffers = trd__pjrt_set_buffers(c, (const trd__pjrt_set *)sets[to->slot], to->entry);
        trd__pjrt_parts_free(c, buffers);
        for (int d = 0; d < c->device_count; d++) buffers[d] = e->result_lists[d][i];
    }
    return TRD_OK;
}
