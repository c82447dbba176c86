/* Listing, removing and reading checkpoints. Invariant: a folder with a checkpoint's name was durable before
 * it got that name, and loses the name before its files are removed; what is half written or half removed
 * begins with ".tmp-" and is swept away at open. */
#include "checkpoint/store.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/log.h"
#include "base/shape.h"
#include "checkpoint/store_files.h"

const char *trd__store_name_text(trd__store_name name, char *text)
{
    int used = snprintf(text, TRD__STORE_NAME_TEXT, "step-%" PRId64, name.step);
    if (name.micro > 0) snprintf(text + used, TRD__STORE_NAME_TEXT - (size_t)used, ".m%" PRId64, name.micro);
    return text;
}

bool trd__store_parse_name(const char *text, trd__store_name *name)
{
    char again[TRD__STORE_NAME_TEXT];
    long long step, micro = 0;
    if (sscanf(text, "step-%18lld.m%18lld", &step, &micro) < 1 || step < 0 || micro < 0) return false;
    *name = (trd__store_name){step, micro};
    return strcmp(trd__store_name_text(*name, again), text) ==
           0; /* refuses signs, leading zeros and other tails */
}

int trd__store_compare(trd__store_name a, trd__store_name b)
{
    if (a.step != b.step) return a.step < b.step ? -1 : 1;
    if (a.micro == b.micro) return 0;
    if (a.micro == 0 || b.micro == 0) return a.micro == 0 ? 1 : -1;
    return a.micro < b.micro ? -1 : 1;
}

static int compare_names(const void *a, const void *b)
{
    return trd__store_compare(*(const trd__store_name *)a, *(const trd__store_name *)b);
}

char *trd__store_path(const trd__store *store, trd__store_name name)
{
    char text[TRD__STORE_NAME_TEXT];
    return trd__path_join(store->folder, trd__store_name_text(name, text));
}

char *trd__store_temporary(const trd__store *store, const char *purpose, trd__store_name name)
{
    char text[TRD__STORE_NAME_TEXT];
    return trd__format("%s/" TRD__STORE_TEMPORARY "%s-%s.%ld", store->folder, purpose,
                       trd__store_name_text(name, text), (long)getpid());
}

/* Whether trd__store_temporary made a name: what others put there stays. */
static bool is_leftover(const char *name)
{
    static const char *const begins[] = {TRD__STORE_TEMPORARY "save-step-",
                                         TRD__STORE_TEMPORARY "remove-step-"};
    return strncmp(name, begins[0], strlen(begins[0])) == 0 ||
           strncmp(name, begins[1], strlen(begins[1])) == 0;
}

trd_status trd__store_leftovers(const trd__store *store, trd__store_leftover_function function, void *user)
{
    trd_status status = TRD_OK;
    DIR *directory = opendir(store->folder);
    if (!directory) return trd__fail(TRD_IO, "opening folder %s: %s", store->folder, strerror(errno));
    for (struct dirent *entry; !status && (entry = readdir(directory));) {
        if (!is_leftover(entry->d_name)) continue;
        char *path = trd__path_join(store->folder, entry->d_name);
        status = path ? function(user, path) : TRD_NO_MEMORY;
        trd__free(path);
    }
    closedir(directory);
    return status;
}

static trd_status sweep_one(void *user, const char *path)
{
    const trd__store *store = user;
    TRD_TRY(trd__remove_tree(path));
    trd__log(&store->log, TRD_LOG_INFO, "removed %s, left by an interrupted save", path);
    return TRD_OK;
}

trd_status trd__store_view(const char *folder, const trd_log_sink *log, trd__store **out)
{
    *out = NULL;
    trd__store *store = trd__calloc(1, sizeof *store);
    if (!store) return TRD_NO_MEMORY;
    if (log) store->log = *log;
    store->folder = trd__strdup(folder);
    if (!store->folder) {
        trd__free(store);
        return TRD_NO_MEMORY;
    }
    *out = store;
    return TRD_OK;
}

trd_status trd__store_open(const char *folder, const trd_log_sink *log, trd__store **out)
{
    trd__store *store;
    *out = NULL;
    TRD_TRY(trd__make_directories(folder));
    TRD_TRY(trd__store_view(folder, log, &store));
    trd_status status = trd__store_leftovers(store, sweep_one, store);
    if (status) {
        trd__store_close(store);
        return status;
    }
    *out = store;
    return TRD_OK;
}

void trd__store_close(trd__store *store)
{
    if (!store) return;
    trd__free(store->folder);
    trd__free(store);
}

trd_status trd__store_list(const trd__store *store, trd__store_name **names, size_t *count)
{
    size_t capacity = 16;
    *count = 0;
    *names = NULL;
    DIR *directory = opendir(store->folder);
    if (!directory && errno == ENOENT) return TRD_OK;
    if (!directory) return trd__fail(TRD_IO, "opening folder %s: %s", store->folder, strerror(errno));
    trd__store_name *list = trd__alloc(capacity, sizeof *list);
    for (struct dirent *entry; list && (entry = readdir(directory));) {
        trd__store_name name;
        if (!trd__store_parse_name(entry->d_name, &name)) continue;
        if (*count == capacity) {
            trd__store_name *grown = trd__realloc(list, capacity * 2, sizeof *list);
            if (!grown) trd__free(list);
            list = grown;
            capacity *= 2;
            if (!list) break;
        }
        list[(*count)++] = name;
    }
    closedir(directory);
    if (!list) return TRD_NO_MEMORY;
    qsort(list, *count, sizeof *list, compare_names);
    *names = list;
    return TRD_OK;
}

trd_status trd__store_remove(const trd__store *store, trd__store_name name)
{
    char *path = trd__store_path(store, name), *doomed = trd__store_temporary(store, "remove", name);
    trd_status status = path && doomed ? trd__remove_tree(doomed) : TRD_NO_MEMORY;
    if (!status) {
        if (rename(path, doomed) == 0)
            status = trd__remove_tree(doomed);
        else if (errno != ENOENT)
            status = trd__fail(TRD_IO, "removing checkpoint %s: %s", path, strerror(errno));
    }
    trd__free(doomed);
    trd__free(path);
    return status;
}

static bool kept_for_ever(trd__store_name name, int64_t keep_period)
{
    return keep_period > 0 && name.micro == 0 && name.step % keep_period == 0;
}

trd_status trd__store_prune(const trd__store *store, size_t keep, int64_t keep_period)
{
    trd__store_name *names;
    size_t count;
    if (keep == 0) return TRD_OK;
    TRD_TRY(trd__store_list(store, &names, &count));
    trd_status status = TRD_OK;
    for (size_t i = 0; !status && i + keep < count; i++)
        if (!kept_for_ever(names[i], keep_period)) status = trd__store_remove(store, names[i]);
    trd__free(names);
    return status;
}

trd_status trd__store_newest_name(const trd__store *store, trd__store_name *newest)
{
    trd__store_name *names;
    size_t count;
    *newest = (trd__store_name){-1, 0};
    TRD_TRY(trd__store_list(store, &names, &count));
    if (count) *newest = names[count - 1];
    trd__free(names);
    return TRD_OK;
}

trd_status trd__store_remove_after(const trd__store *store, trd__store_name name, int *removed)
{
    trd__store_name *names;
    size_t count;
    *removed = 0;
    TRD_TRY(trd__store_list(store, &names, &count));
    trd_status status = TRD_OK;
    for (size_t i = 0; !status && i < count; i++)
        if (trd__store_compare(names[i], name) > 0) {
            status = trd__store_remove(store, names[i]);
            ++*removed;
        }
    trd__free(names);
    return status;
}

trd_status trd__store_check_space(const trd__store *store, uint64_t bytes)
{
    uint64_t available = 0;
    TRD_TRY(trd__free_bytes(store->folder, &available));
    if (available >= bytes) return TRD_OK;
    return trd__fail(
        TRD_IO,
        "checking disk space of %s: checkpoints need %.1f MB, only %.1f MB are free; free some space, or "
        "keep fewer checkpoints",
        store->folder, (double)bytes / 1e6, (double)available / 1e6);
}

uint64_t trd__store_bytes(const trd_array *arrays, size_t count, size_t json_bytes)
{
    uint64_t bytes = 4096 + json_bytes; /* the manifest's frame, block rounding */
    for (size_t i = 0; i < count; i++)
        bytes += trd__tensor_bytes(&arrays[i].shape, arrays[i].dtype) + 2 * strlen(arrays[i].name) + 256;
    return bytes;
}

trd_status trd__store_read(const trd__store *store, trd__store_name name, trd__stored **stored)
{
    *stored = NULL;
    char *path = trd__store_path(store, name);
    if (!path) return TRD_NO_MEMORY;
    trd_status status =
        trd__name_exists(path)
            ? trd__stored_open(path, stored)
            : trd__fail(TRD_NOT_FOUND, "opening checkpoint %s: there is no such checkpoint", path);
    trd__free(path);
    return status;
}

/* Only what is damaged or gone is passed over. What cannot be read now, or not by this version, may be
 * intact, and a run that went on before it would replace it. */
static trd_status read_one(const trd__store *store, const trd__store_name *names, size_t count,
                           trd__stored **stored)
{
    trd_status status = TRD_NOT_FOUND;
    for (size_t i = count; i-- > 0;) {
        status = trd__store_read(store, names[i], stored);
        if (status != TRD_CORRUPT && status != TRD_NOT_FOUND) break;
        trd__log(&store->log, TRD_LOG_WARNING, "%s; the one before it is tried", trd_error_message());
    }
    return status;
}

static bool is_there(const trd__store *store, trd__store_name name)
{
    char *path = trd__store_path(store, name);
    bool there = !path || trd__name_exists(path);
    trd__free(path);
    return there;
}

/* A process that writes beside this one may replace all that was listed before it is read; then there is a
 * newer one. */
trd_status trd__store_read_newest(const trd__store *store, trd__stored **stored)
{
    trd__store_name *names;
    size_t count;
    bool replaced;
    *stored = NULL;
    do {
        TRD_TRY(trd__store_list(store, &names, &count));
        trd_status status = read_one(store, names, count, stored);
        replaced = status && count && !is_there(store, names[count - 1]);
        trd__free(names);
        if (!status || (status != TRD_CORRUPT && status != TRD_NOT_FOUND)) return status;
    } while (replaced);
    if (count == 0) return trd__fail(TRD_NOT_FOUND, "opening checkpoints: %s holds none", store->folder);
    return trd__fail(
        TRD_CORRUPT,
        "opening checkpoints: none of the %zu in %s is intact; put one back, or start another run "
        "with a new run_name",
        count, store->folder);
}

trd_status trd__store_newest_path(const char *folder, char **path)
{
    trd__store store = {.folder = (char *)(uintptr_t)folder};
    trd__stored *stored;
    *path = NULL;
    trd_status status = trd__store_read_newest(&store, &stored);
    if (status == TRD_NOT_FOUND) return TRD_OK;
    TRD_TRY(status);
    *path = trd__store_path(&store, trd__stored_name(stored));
    trd__stored_close(stored);
    return *path ? TRD_OK : TRD_NO_MEMORY;
}
