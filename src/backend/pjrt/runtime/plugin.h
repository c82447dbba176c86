/* A PJRT plugin opened in this process, and how its calls are made: every argument struct says its size,
 * every error becomes a trd_status with the plugin's message.
 *
 * A plugin is never closed again: its threads and registrations outlive whoever opened it. */
#ifndef TRD_BACKEND_PJRT_RUNTIME_PLUGIN_H
#define TRD_BACKEND_PJRT_RUNTIME_PLUGIN_H

#include <pjrt_c_api.h>

#include "base/status.h"

/* An argument struct with its size filled in, the members that follow set and the rest zero. */
#define TRD__PJRT(type, ...) ((type){.struct_size = type##_STRUCT_SIZE, __VA_ARGS__})

/* path NULL: the environment's PJRT_PLUGIN_LIBRARY_PATH. *identity changes with the plugin's file and
 * version. */
trd_status trd__pjrt_plugin_open(const char *path, const PJRT_Api **api, uint64_t *identity);

/* TRD_OK for NULL; else the status that corresponds, with the plugin's message after "what: ". Frees error.
 */
trd_status trd__pjrt_check(const PJRT_Api *api, PJRT_Error *error, const char *what, ...)
    __attribute__((format(printf, 3, 4)));

/* Waits for the event, frees it and returns its error as trd__pjrt_check does. NULL is fine. */
trd_status trd__pjrt_await(const PJRT_Api *api, PJRT_Event *event, const char *what);
void trd__pjrt_event_free(const PJRT_Api *api, PJRT_Event *event); /* NULL is fine */

/* The executable behind a loaded one: what describes it. Give it back. */
trd_status trd__pjrt_executable_of(const PJRT_Api *api, PJRT_LoadedExecutable *loaded,
                                   PJRT_Executable **executable);
void trd__pjrt_executable_release(const PJRT_Api *api, PJRT_Executable *executable);

#endif
