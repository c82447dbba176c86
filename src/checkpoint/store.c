/* Writing, listing and removing checkpoints. Invariant: a folder with a checkpoint's name was durable before
 * it got that name, and loses the name before its files are removed; what is half written or half removed
 * begins with
 * ".tmp-" and is swept away at open. */
#include "checkpoint/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/checksum.h"
#include "base/file.h"
#include "base/log.h"
#include "base/shape.h"
#include "checkpoint/store_files.h"
#include "formats/json.h"
#include "formats/safetensors.h"

static const char temporary_prefix[] = ".tmp-";

struct trd__store {
    char *folder;
    trd_log_sink log;
};

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

static char *name_path(const trd__store *store, trd__store_name name)
{
    char text[TRD__STORE_NAME_TEXT];
    return trd__path_join(store->folder, trd__store_name_text(name, text));
}

/* Removes leftovers of a crash. */
static trd_status sweep(const trd__store *store)
{
    trd_status status = TRD_OK;
    DIR *directory = opendir(store->folder);
    if (!directory) return trd__fail(TRD_IO, "opening folder %s: %s", store->folder, strerror(errno));
    for (struct dirent *entry; !status && (entry = readdir(directory));) {
        if (strncmp(entry->d_name, temporary_prefix, sizeof temporary_prefix - 1) != 0) continue;
        char *path = trd__path_join(store->folder, entry->d_name);
        status = path ? trd__remove_tree(path) : TRD_NO_MEMORY;
        if (!status) trd__log(&store->log, TRD_LOG_INFO, "removed %s, left by an interrupted save", path);
        trd__free(path);
    }
    closedir(directory);
    return status;
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
    trd_status status = sweep(store);
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

static char *temporary_path(const trd__store *store, const char *purpose, trd__store_name name)
{
    char text[TRD__STORE_NAME_TEXT];
    return trd__format("%s/%s%s-%s.%ld", store->folder, temporary_prefix, purpose,
                       trd__store_name_text(name, text), (long)getpid());
}

trd_status trd__store_remove(const trd__store *store, trd__store_name name)
{
    char *path = name_path(store, name), *doomed = temporary_path(store, "remove", name);
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

trd_status trd__store_prune(const trd__store *store, size_t keep)
{
    trd__store_name *names;
    size_t count;
    if (keep == 0) return TRD_OK;
    TRD_TRY(trd__store_list(store, &names, &count));
    trd_status status = TRD_OK;
    for (size_t i = 0; !status && i + keep < count; i++) status = trd__store_remove(store, names[i]);
    trd__free(names);
    return status;
}

static size_t array_bytes(const trd_array *array)
{
    return trd__tensor_bytes(&array->shape, array->dtype);
}

/* The tensors file: widest elements first, so that each tensor is aligned to its element without holes. */
static trd_status write_tensors(const char *path, const trd_array *arrays, size_t count, uint64_t *header_sum)
{
    trd__safetensors_writer *writer;
    trd_array *ordered = trd__alloc(count, sizeof *ordered);
    if (!ordered) return TRD_NO_MEMORY;
    size_t used = 0;
    for (size_t width = 8; width > 0; width /= 2)
        for (size_t i = 0; i < count; i++)
            if (trd_dtype_bytes(arrays[i].dtype) == width) ordered[used++] = arrays[i];
    trd_status status = trd__safetensors_writer_open(path, ordered, used, NULL, 0, &writer);
    if (!status) {
        *header_sum = trd__safetensors_writer_header_checksum(writer);
        for (size_t i = 0; !status && i < used; i++)
            status = trd__safetensors_write(writer, ordered[i].data, array_bytes(&ordered[i]));
        if (status)
            trd__safetensors_abandon(writer);
        else
            status = trd__safetensors_commit(writer);
    }
    trd__free(ordered);
    return status;
}

static void put_sum(trd__json_writer *out, const char *key, uint64_t sum)
{
    char text[TRD__STORE_SUM_TEXT];
    snprintf(text, sizeof text, "%016" PRIx64, sum);
    trd__json_put_string(out, key, text);
}

static trd_status write_manifest(const char *path, trd__store_name name, const trd_array *arrays,
                                 size_t count, uint64_t header_sum, const char *json, size_t json_bytes)
{
    trd__json_writer out = {.indent = 1};
    trd__json_open_object(&out);
    trd__json_put_i64(&out, "format", TRD__STORE_FORMAT);
    trd__json_put_i64(&out, "step", name.step);
    trd__json_put_i64(&out, "micro", name.micro);
    put_sum(&out, "state_xxh3", trd__checksum(json, json_bytes));
    put_sum(&out, "header_xxh3", header_sum);
    trd__json_write_key(&out, "tensors");
    trd__json_open_array(&out);
    for (size_t i = 0; i < count; i++) {
        trd__json_open_object(&out);
        trd__json_put_string(&out, "name", arrays[i].name);
        put_sum(&out, "xxh3", trd__checksum(arrays[i].data, array_bytes(&arrays[i])));
        trd__json_close(&out);
    }
    trd__json_close(&out);
    trd__json_close(&out);
    trd_status status = trd__json_finish(&out);
    if (!status) status = trd__file_save(path, out.text, out.bytes);
    trd__json_writer_free(&out);
    return status;
}

static trd_status write_files(const char *folder, trd__store_name name, const trd_array *arrays, size_t count,
                              const char *json, size_t json_bytes)
{
    uint64_t header_sum = 0;
    char *tensors = trd__path_join(folder, TRD__STORE_TENSORS),
         *state = trd__path_join(folder, TRD__STORE_STATE);
    char *manifest = trd__path_join(folder, TRD__STORE_MANIFEST);
    trd_status status = tensors && state && manifest ? trd__make_directories(folder) : TRD_NO_MEMORY;
    if (!status) status = write_tensors(tensors, arrays, count, &header_sum);
    if (!status) status = trd__file_save(state, json, json_bytes);
    if (!status) status = write_manifest(manifest, name, arrays, count, header_sum, json, json_bytes);
    if (!status) status = trd__sync_directory(folder);
    trd__free(manifest);
    trd__free(state);
    trd__free(tensors);
    return status;
}

/* Whether the checkpoint at path is intact and says the same as the one at temporary: the manifests tell. */
static bool same_content(const char *path, const char *temporary)
{
    trd__file_map a = {0}, b = {0};
    trd__stored *stored;
    char *old = trd__path_join(path, TRD__STORE_MANIFEST),
         *new = trd__path_join(temporary, TRD__STORE_MANIFEST);
    bool same = old && new && !trd__file_map_open(old, &a) && !trd__file_map_open(new, &b);
    same = same && a.bytes == b.bytes && memcmp(a.data, b.data, b.bytes) == 0;
    same = same && !trd__stored_open(path, &stored);
    if (same) trd__stored_close(stored);
    trd__file_map_close(&b);
    trd__file_map_close(&a);
    trd__free(new);
    trd__free(old);
    return same;
}

/* Gives the finished checkpoint its name. */
static trd_status publish(const trd__store *store, const char *temporary, const char *path, bool *wrote)
{
    *wrote = true;
    if (trd__file_exists(path)) {
        if (same_content(path, temporary)) {
            *wrote = false;
            return trd__remove_tree(temporary);
        }
        if (renameat2(AT_FDCWD, temporary, AT_FDCWD, path, RENAME_EXCHANGE) == 0) {
            TRD_TRY(trd__sync_directory(store->folder));
            return trd__remove_tree(temporary);
        }
        TRD_TRY(trd__remove_tree(path)); /* a file system that cannot exchange */
    }
    if (rename(temporary, path) != 0)
        return trd__fail(TRD_IO, "naming checkpoint %s: %s", path, strerror(errno));
    return trd__sync_directory(store->folder);
}

/* Removes the checkpoints of the same step that this one completes. */
static trd_status remove_less_complete(const trd__store *store, trd__store_name name)
{
    trd__store_name *names;
    size_t count;
    TRD_TRY(trd__store_list(store, &names, &count));
    trd_status status = TRD_OK;
    for (size_t i = 0; !status && i < count; i++)
        if (names[i].step == name.step && trd__store_compare(names[i], name) < 0)
            status = trd__store_remove(store, names[i]);
    trd__free(names);
    return status;
}

static trd_status check_arrays(const trd_array *arrays, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (trd__shape_count(&arrays[i].shape) < 0 || trd_dtype_bytes(arrays[i].dtype) == 0)
            return trd__fail(TRD_INVALID_ARGUMENT,
                             "saving a checkpoint: the shape or dtype of %s is not valid", arrays[i].name);
    return TRD_OK;
}

trd_status trd__store_save(const trd__store *store, trd__store_name name, const trd_array *arrays,
                           size_t count, const char *json, size_t json_bytes, bool *wrote)
{
    bool did_write = false;
    if (wrote) *wrote = false;
    TRD_TRY(check_arrays(arrays, count));
    char *path = name_path(store, name), *temporary = temporary_path(store, "save", name);
    trd_status status = path && temporary ? trd__remove_tree(temporary) : TRD_NO_MEMORY;
    if (!status) {
        status = write_files(temporary, name, arrays, count, json, json_bytes);
        if (!status) status = publish(store, temporary, path, &did_write);
        if (status) {
            trd__fail_in(status, "saving checkpoint %s", path);
            char *message = trd__strdup(trd_error_message());
            trd__remove_tree(temporary); /* the first failure is the one to report */
            if (message) trd__set_error_message(message);
            trd__free(message);
        }
    }
    trd__free(temporary);
    trd__free(path);
    if (!status) status = remove_less_complete(store, name);
    if (!status && wrote) *wrote = did_write;
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
    for (size_t i = 0; i < count; i++) bytes += array_bytes(&arrays[i]) + 2 * strlen(arrays[i].name) + 256;
    return bytes;
}

trd_status trd__store_read(const trd__store *store, trd__store_name name, trd__stored **stored)
{
    *stored = NULL;
    char *path = name_path(store, name);
    if (!path) return TRD_NO_MEMORY;
    trd_status status =
        trd__file_exists(path)
            ? trd__stored_open(path, stored)
            : trd__fail(TRD_NOT_FOUND, "opening checkpoint %s: there is no such checkpoint", path);
    trd__free(path);
    return status;
}

static trd_status read_one(const trd__store *store, const trd__store_name *names, size_t count,
                           trd__stored **stored)
{
    trd_status status = TRD_NOT_FOUND;
    for (size_t i = count; i-- > 0;) {
        status = trd__store_read(store, names[i], stored);
        if (status == TRD_OK || status == TRD_NO_MEMORY) break;
        trd__log(&store->log, TRD_LOG_WARNING, "%s; the one before it is tried", trd_error_message());
    }
    return status;
}

static bool is_there(const trd__store *store, trd__store_name name)
{
    char *path = name_path(store, name);
    bool there = !path || trd__file_exists(path);
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
        if (!status || status == TRD_NO_MEMORY) return status;
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
    *path = name_path(&store, trd__stored_name(stored));
    trd__stored_close(stored);
    return *path ? TRD_OK : TRD_NO_MEMORY;
}
