/* The list of backends and the choice among them by name. */
#include <string.h>

#include "backend/backend.h"

/* X(name): each backend's table is trd__backend_<name>; the first is the default. */
#ifdef TRD_PJRT
#define BACKENDS(X) X(cpu) X(pjrt)
#define LEFT_OUT ""
#else
#define BACKENDS(X) X(cpu)
#define LEFT_OUT "; \"pjrt\" was left out: run tools/fetch-pjrt and build again"
#endif

#define DECLARE(name) extern const trd__backend_table trd__backend_##name;
BACKENDS(DECLARE)
#undef DECLARE

#define ENTRY(name) &trd__backend_##name,
static const trd__backend_table *const backends[] = {BACKENDS(ENTRY)};
#undef ENTRY

trd_status trd__backend_create(const trd__backend_options *options, trd__backend **backend)
{
    *backend = NULL;
    if (!options->name) return backends[0]->create(options, backend);
    for (size_t i = 0; i < sizeof backends / sizeof *backends; i++)
        if (strcmp(backends[i]->name, options->name) == 0) return backends[i]->create(options, backend);
#define NAME(name) " " #name
    return trd__fail(TRD_INVALID_ARGUMENT, "backend: \"%s\" is unknown; built in:" BACKENDS(NAME) LEFT_OUT,
                     options->name);
#undef NAME
}

void trd__backend_free(trd__backend *backend)
{
    if (backend) backend->table->free(backend);
}
