/* Compiled programs on disk, so that a second start compiles nothing. A file is found by what was compiled
 * and by whom: the module's text, the options, the plugin's file and the processor. */
#ifndef TRD_BACKEND_PJRT_RUNTIME_CACHE_H
#define TRD_BACKEND_PJRT_RUNTIME_CACHE_H

#include "backend/pjrt/lower.h"
#include "backend/pjrt/runtime/client.h"

/* *loaded stays NULL where there is no file for the module or it is damaged; another failure is the plugin's,
 * which may refuse what it wrote itself. */
trd_status trd__pjrt_cache_load(const trd__pjrt_client *client, const char *folder,
                                const trd__pjrt_module *module, PJRT_LoadedExecutable **loaded);
/* Writes atomically and makes folder where it is missing. TRD_UNSUPPORTED: the plugin cannot serialize. */
trd_status trd__pjrt_cache_save(const trd__pjrt_client *client, const char *folder,
                                const trd__pjrt_module *module, PJRT_LoadedExecutable *loaded);

#endif
