/* Opening a plugin: the file, its entry point, the version of its interface; and its errors. */
#include "backend/pjrt/runtime/plugin.h"

#include <dlfcn.h>
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/checksum.h"
#include "base/file.h"

static trd_status status_of(PJRT_Error_Code code)
{
    switch (code) {
    case PJRT_Error_Code_INVALID_ARGUMENT:
    case PJRT_Error_Code_OUT_OF_RANGE:
        return TRD_INVALID_ARGUMENT;
    case PJRT_Error_Code_NOT_FOUND:
        return TRD_NOT_FOUND;
    case PJRT_Error_Code_RESOURCE_EXHAUSTED:
        return TRD_NO_MEMORY;
    case PJRT_Error_Code_UNIMPLEMENTED:
        return TRD_UNSUPPORTED;
    case PJRT_Error_Code_FAILED_PRECONDITION:
        return TRD_STATE;
    default:
        return TRD_INTERNAL;
    }
}

trd_status trd__pjrt_check(const PJRT_Api *api, PJRT_Error *error, const char *what, ...)
{
    if (!error) return TRD_OK;
    char context[256];
    va_list arguments;
    va_start(arguments, what);
    vsnprintf(context, sizeof context, what, arguments);
    va_end(arguments);
    PJRT_Error_Message_Args message = TRD__PJRT(PJRT_Error_Message_Args, .error = error);
    api->PJRT_Error_Message(&message);
    PJRT_Error_GetCode_Args code = TRD__PJRT(PJRT_Error_GetCode_Args, .error = error);
    PJRT_Error *second = api->PJRT_Error_GetCode(&code);
    trd_status status = trd__fail(second ? TRD_INTERNAL : status_of(code.code), "%s: %.*s", context,
                                  (int)message.message_size, message.message);
    PJRT_Error *errors[] = {error, second};
    for (int i = 0; i < 2; i++)
        if (errors[i]) api->PJRT_Error_Destroy(&TRD__PJRT(PJRT_Error_Destroy_Args, .error = errors[i]));
    return status;
}

void trd__pjrt_event_free(const PJRT_Api *api, PJRT_Event *event)
{
    /* Nothing could be done about a failure to free. */
    if (event)
        (void)trd__pjrt_check(api,
                              api->PJRT_Event_Destroy(&TRD__PJRT(PJRT_Event_Destroy_Args, .event = event)),
                              "freeing an event");
}

trd_status trd__pjrt_await(const PJRT_Api *api, PJRT_Event *event, const char *what)
{
    if (!event) return TRD_OK;
    PJRT_Event_Await_Args arguments = TRD__PJRT(PJRT_Event_Await_Args, .event = event);
    trd_status status = trd__pjrt_check(api, api->PJRT_Event_Await(&arguments), "%s", what);
    trd__pjrt_event_free(api, event);
    return status;
}

trd_status trd__pjrt_executable_of(const PJRT_Api *api, PJRT_LoadedExecutable *loaded,
                                   PJRT_Executable **executable)
{
    PJRT_LoadedExecutable_GetExecutable_Args get =
        TRD__PJRT(PJRT_LoadedExecutable_GetExecutable_Args, .loaded_executable = loaded);
    TRD_TRY(trd__pjrt_check(api, api->PJRT_LoadedExecutable_GetExecutable(&get), "executable"));
    *executable = get.executable;
    return TRD_OK;
}

void trd__pjrt_executable_release(const PJRT_Api *api, PJRT_Executable *executable)
{
    (void)trd__pjrt_check(
        api, api->PJRT_Executable_Destroy(&TRD__PJRT(PJRT_Executable_Destroy_Args, .executable = executable)),
        "freeing an executable");
}

/* The newest function of the interface that this backend calls. */
#define NEWEST PJRT_Executable_GetCompiledMemoryStats

static trd_status check_version(const PJRT_Api *api, const char *path)
{
    int major = api->pjrt_api_version.major_version, minor = api->pjrt_api_version.minor_version;
    if (major == PJRT_API_MAJOR && api->struct_size >= offsetof(PJRT_Api, NEWEST) + sizeof api->NEWEST)
        return TRD_OK;
    return trd__fail(TRD_UNSUPPORTED,
                     "backend pjrt: the plugin \"%s\" speaks version %d.%d of the PJRT interface; expected "
                     "version %d, %d.%d or a little older; take a newer plugin",
                     path, major, minor, PJRT_API_MAJOR, PJRT_API_MAJOR, PJRT_API_MINOR);
}

/* How many bytes the file must have for everything that the loader maps of it; 0: it is nothing to load. */
static uint64_t bytes_needed(const trd__file_map *map)
{
    ElfW(Ehdr) file;
    ElfW(Phdr) part;
    if (map->bytes < sizeof file) return 0;
    memcpy(&file, map->data, sizeof file);
    if (memcmp(file.e_ident, ELFMAG, SELFMAG) != 0 || file.e_phentsize != sizeof part) return 0;
    uint64_t table = file.e_phoff, needed = table + (uint64_t)file.e_phnum * sizeof part;
    if (table > map->bytes || needed > map->bytes) return needed;
    for (int i = 0; i < file.e_phnum; i++) {
        memcpy(&part, map->data + table + (size_t)i * sizeof part, sizeof part);
        uint64_t end = part.p_offset + part.p_filesz;
        if (part.p_type == PT_LOAD && end > needed) needed = end;
    }
    return needed;
}

/* The loader maps what a file says that it has: one that was cut off, as by a download that broke, would end
 * the process by SIGBUS. */
static trd_status check_whole(const char *path)
{
    struct stat file;
    if (stat(path, &file) || !S_ISREG(file.st_mode)) return TRD_OK; /* the loader says what is wrong */
    trd__file_map map;
    TRD_TRY(trd__file_map_open(path, &map));
    uint64_t needed = bytes_needed(&map), found = map.bytes;
    trd__file_map_close(&map);
    if (needed <= found) return TRD_OK;
    return trd__fail(TRD_INVALID_ARGUMENT,
                     "backend pjrt: the plugin \"%s\" is cut off: expected at least %llu bytes, found %llu; "
                     "take it anew",
                     path, (unsigned long long)needed, (unsigned long long)found);
}

/* A name without a slash is a file here, as everywhere else, and not one that the loader searches for. */
static void *load(const char *path, int flags)
{
    char *here = strchr(path, '/') ? NULL : trd__format("./%s", path);
    void *library = dlopen(here ? here : path, flags);
    trd__free(here);
    return library;
}

static trd_status open_library(const char *path, void **library, bool *first)
{
    if (!trd__file_exists(path))
        return trd__fail(TRD_NOT_FOUND,
                         "backend pjrt: there is no plugin \"%s\"; see pjrt_plugin_path or "
                         "PJRT_PLUGIN_LIBRARY_PATH",
                         path);
    TRD_TRY(check_whole(path));
    *library = load(path, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    *first = !*library;
    if (*first) *library = load(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!*library)
        return trd__fail(TRD_INVALID_ARGUMENT, "backend pjrt: \"%s\" is no plugin that can be loaded: %s",
                         path, dlerror());
    return TRD_OK;
}

/* Size and time stand for the contents: reading 200 MB at each start would cost more than it is worth. */
static uint64_t identity_of(const PJRT_Api *api, const char *path)
{
    struct stat file = {0};
    (void)stat(path, &file); /* it was opened a moment ago */
    int64_t facts[] = {api->pjrt_api_version.major_version, api->pjrt_api_version.minor_version,
                       (int64_t)file.st_size, (int64_t)file.st_mtim.tv_sec, (int64_t)file.st_mtim.tv_nsec};
    return trd__checksum(facts, sizeof facts);
}

trd_status trd__pjrt_plugin_open(const char *path, const PJRT_Api **api, uint64_t *identity)
{
    void *library;
    bool first;
    *api = NULL;
    if (!path || !*path) path = getenv("PJRT_PLUGIN_LIBRARY_PATH");
    if (!path || !*path)
        return trd__fail(TRD_INVALID_ARGUMENT,
                         "backend pjrt: no plugin is named; set pjrt_plugin_path or the environment's "
                         "PJRT_PLUGIN_LIBRARY_PATH to a pjrt_c_api_*.so (tools/fetch-pjrt takes one for the "
                         "CPU; docs/xla.md)");
    TRD_TRY(open_library(path, &library, &first));
    const PJRT_Api *(*get_api)(void);
    *(void **)&get_api = dlsym(library, "GetPjrtApi");
    const PJRT_Api *found = get_api ? get_api() : NULL;
    trd_status status = found
                            ? check_version(found, path)
                            : trd__fail(TRD_INVALID_ARGUMENT, "backend pjrt: \"%s\" is no PJRT plugin: it %s",
                                        path, get_api ? "gives no interface" : "has no function GetPjrtApi");
    /* Only whoever loads it sets it up: that is once a process. */
    if (!status && first && found->PJRT_Plugin_Initialize)
        status =
            trd__pjrt_check(found, found->PJRT_Plugin_Initialize(&TRD__PJRT(PJRT_Plugin_Initialize_Args)),
                            "backend pjrt: setting up \"%s\"", path);
    dlclose(library); /* counts down only: RTLD_NODELETE keeps it */
    if (status) return status;
    *identity = identity_of(found, path);
    *api = found;
    return TRD_OK;
}
