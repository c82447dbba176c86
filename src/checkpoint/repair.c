/* Repairing a folder of checkpoints. Invariant: an intact checkpoint is never touched, and a damaged one
 * keeps its files under another name. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "checkpoint/store.h"
#include "checkpoint/store_files.h"

typedef struct repair {
    const trd__store *store;
    bool dry;
    trd__repair_function report;
    void *user;
} repair;

static trd_status remove_leftover(void *user, const char *path)
{
    const repair *r = user;
    if (!r->dry) TRD_TRY(trd__remove_tree(path));
    r->report(r->user, "removed", path, NULL);
    return TRD_OK;
}

/* "damaged-step-N", or the first of "damaged-step-N.2", ... that is free. */
static char *free_name(const trd__store *store, trd__store_name name)
{
    char text[TRD__STORE_NAME_TEXT];
    trd__store_name_text(name, text);
    char *path = trd__format("%s/damaged-%s", store->folder, text);
    for (int n = 2; path && trd__name_exists(path); n++) {
        trd__free(path);
        path = trd__format("%s/damaged-%s.%d", store->folder, text, n);
    }
    return path;
}

static trd_status move_aside(const repair *r, trd__store_name name, const char *path)
{
    char *to = free_name(r->store, name);
    if (!to) return TRD_NO_MEMORY;
    trd_status status = TRD_OK;
    if (!r->dry && rename(path, to) != 0)
        status = trd__fail(TRD_IO, "moving %s to %s: %s", path, to, strerror(errno));
    if (!status) r->report(r->user, "moved", path, to);
    trd__free(to);
    return status;
}

static void note_damage(void *user, const char *file, const char *tensor, const char *message)
{
    (void)user;
    (void)file;
    (void)tensor;
    (void)message; /* `verify` tells them; here one is enough */
}

static trd_status repair_one(const repair *r, trd__store_name name)
{
    char *path = trd__store_path(r->store, name);
    if (!path) return TRD_NO_MEMORY;
    trd_status status = trd__stored_verify(path, note_damage, NULL);
    if (status == TRD_CORRUPT)
        status = move_aside(r, name, path);
    else if (status != TRD_OK)
        trd__fail_in(status, "checking checkpoint %s", path);
    trd__free(path);
    return status;
}

trd_status trd__store_repair(const trd__store *store, bool dry, trd__repair_function report, void *user)
{
    repair r = {.store = store, .dry = dry, .report = report, .user = user};
    trd__store_name *names;
    size_t count;
    TRD_TRY(trd__store_leftovers(store, remove_leftover, &r));
    TRD_TRY(trd__store_list(store, &names, &count));
    trd_status first = TRD_OK;
    char message[1024]; /* one that cannot be judged keeps none of the others from being repaired */
    for (size_t i = 0; i < count; i++) {
        trd_status status = repair_one(&r, names[i]);
        if (first != TRD_OK || status == TRD_OK) continue;
        first = status;
        snprintf(message, sizeof message, "%s", trd_error_message());
    }
    trd__free(names);
    trd_status status = dry ? TRD_OK : trd__sync_directory(store->folder);
    return first == TRD_OK ? status : trd__fail(first, "%s", message);
}
