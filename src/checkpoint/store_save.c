/* Writing one checkpoint. Invariants: every file is durable before the folder gets its name; an older
 * checkpoint goes only once the new one is durable; what fails leaves the older ones as they were. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/checksum.h"
#include "base/file.h"
#include "base/shape.h"
#include "checkpoint/store.h"
#include "checkpoint/store_files.h"
#include "checkpoint/sums.h"
#include "formats/json.h"
#include "formats/safetensors.h"

enum { INDENT = 1 };

static size_t array_bytes(const trd_array *array)
{
    return trd__tensor_bytes(&array->shape, array->dtype);
}

/* Beside the writing of the tensors file go the checksums that the manifest needs. */
typedef struct tensors_file {
    const char *path;
    const trd_array *arrays;
    size_t count;
    uint64_t header_sum;
    trd__summed *sums; /* of the arrays */
} tensors_file;

/* Widest elements first, so that each tensor is aligned to its element without holes. */
static trd_status write_tensors(void *context)
{
    tensors_file *file = context;
    trd__safetensors_writer *writer;
    trd_array *ordered = trd__alloc(file->count, sizeof *ordered);
    if (!ordered) return TRD_NO_MEMORY;
    size_t used = 0;
    for (size_t width = 8; width > 0; width /= 2)
        for (size_t i = 0; i < file->count; i++)
            if (trd_dtype_bytes(file->arrays[i].dtype) == width) ordered[used++] = file->arrays[i];
    trd_status status = trd__safetensors_writer_open(file->path, ordered, used, NULL, 0, true, &writer);
    if (!status) {
        file->header_sum = trd__safetensors_writer_header_checksum(writer);
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

static void put_tensor(trd__json_writer *out, const trd_array *array, uint64_t sum)
{
    trd__json_open_object(out);
    out->indent = 0; /* a tensor is a line */
    trd__json_put_string(out, "name", array->name);
    trd__json_put_string(out, "dtype", trd_dtype_name(array->dtype));
    trd__json_write_key(out, "shape");
    trd__json_open_array(out);
    for (int d = 0; d < array->shape.rank; d++) trd__json_write_i64(out, array->shape.dim[d]);
    trd__json_close(out);
    trd__json_put_i64(out, "bytes", (int64_t)array_bytes(array));
    put_sum(out, "xxh3", sum);
    trd__json_close(out);
    out->indent = INDENT;
}

static void put_time(trd__json_writer *out)
{
    char text[32] = "";
    time_t now = time(NULL);
    struct tm utc;
    if (gmtime_r(&now, &utc)) strftime(text, sizeof text, TRD__STORE_TIME, &utc);
    trd__json_put_string(out, "saved_at", text);
}

static trd_status write_manifest(const char *path, trd__store_name name, const tensors_file *file,
                                 const char *json, size_t json_bytes)
{
    trd__json_writer out = {.indent = INDENT};
    uint64_t bytes = 0;
    for (size_t i = 0; i < file->count; i++) bytes += file->sums[i].bytes;
    trd__json_open_object(&out);
    trd__json_put_i64(&out, "format", TRD__STORE_FORMAT);
    trd__json_put_i64(&out, "step", name.step);
    trd__json_put_i64(&out, "micro", name.micro);
    put_time(&out);
    trd__json_put_i64(&out, "tensor_count", (int64_t)file->count);
    trd__json_put_i64(&out, "tensor_bytes", (int64_t)bytes);
    put_sum(&out, "state_xxh3", trd__checksum(json, json_bytes));
    put_sum(&out, "header_xxh3", file->header_sum);
    trd__json_write_key(&out, "tensors");
    trd__json_open_array(&out);
    for (size_t i = 0; i < file->count; i++) put_tensor(&out, &file->arrays[i], file->sums[i].sum);
    trd__json_close(&out);
    if (!out.status) put_sum(&out, TRD__STORE_MANIFEST_SUM, trd__checksum(out.text, out.bytes));
    trd__json_close(&out);
    trd_status status = trd__json_finish(&out);
    if (!status) status = trd__file_save(path, out.text, out.bytes);
    trd__json_writer_free(&out);
    return status;
}

static trd_status write_files(const char *folder, trd__store_name name, const trd_array *arrays, size_t count,
                              const char *json, size_t json_bytes)
{
    char *tensors = trd__path_join(folder, TRD__STORE_TENSORS),
         *state = trd__path_join(folder, TRD__STORE_STATE);
    char *manifest = trd__path_join(folder, TRD__STORE_MANIFEST);
    trd__summed *sums = trd__alloc(count + 1, sizeof *sums);
    tensors_file file = {.path = tensors, .arrays = arrays, .count = count, .sums = sums};
    trd_status status = tensors && state && manifest && sums ? trd__make_directories(folder) : TRD_NO_MEMORY;
    for (size_t i = 0; !status && i < count; i++)
        sums[i] = (trd__summed){arrays[i].data, array_bytes(&arrays[i]), 0};
    if (!status) status = trd__sums(sums, count, write_tensors, &file);
    if (!status) status = trd__file_save(state, json, json_bytes);
    if (!status) status = write_manifest(manifest, name, &file, json, json_bytes);
    if (!status) status = trd__sync_directory(folder);
    trd__free(sums);
    trd__free(manifest);
    trd__free(state);
    trd__free(tensors);
    return status;
}

/* Whether the checkpoint at path is intact and holds exactly this. One that cannot be read does not; want of
 * memory is an error. */
static trd_status holds_same(const char *path, const trd_array *arrays, size_t count, const char *json,
                             size_t json_bytes, bool *same)
{
    trd__stored *stored;
    size_t bytes;
    *same = false;
    if (!trd__file_exists(path)) return TRD_OK;
    trd_status status = trd__stored_open(path, &stored);
    if (status != TRD_OK) return status == TRD_NO_MEMORY ? status : TRD_OK;
    const char *text = trd__stored_json(stored, &bytes);
    *same = trd__stored_count(stored) == count && bytes == json_bytes && memcmp(text, json, bytes) == 0;
    for (size_t i = 0; *same && i < count; i++) {
        const trd_array *have = trd__stored_at(stored, i), *want = &arrays[i];
        size_t size = array_bytes(want);
        *same = strcmp(have->name, want->name) == 0 && have->dtype == want->dtype &&
                trd__shape_equal(&have->shape, &want->shape) &&
                (size == 0 || memcmp(have->data, want->data, size) == 0);
    }
    trd__stored_close(stored);
    return TRD_OK;
}

/* On a file system that cannot exchange two names the old one steps aside, and comes back should the new one
 * not get its place. */
static trd_status replace(const char *temporary, const char *path, const char *aside)
{
    if (rename(path, aside) != 0)
        return trd__fail(TRD_IO, "moving the earlier checkpoint %s aside: %s", path, strerror(errno));
    if (rename(temporary, path) == 0) return TRD_OK;
    int error = errno;
    rename(aside, path);
    return trd__fail(TRD_IO, "naming checkpoint %s: %s", path, strerror(error));
}

/* Gives the finished checkpoint its name; one that had it before goes once the new one is durable. */
static trd_status publish(const trd__store *store, trd__store_name name, const char *temporary,
                          const char *path)
{
    if (!trd__file_exists(path)) {
        if (rename(temporary, path) != 0)
            return trd__fail(TRD_IO, "naming checkpoint %s: %s", path, strerror(errno));
        return trd__sync_directory(store->folder);
    }
    char *aside = trd__store_temporary(store, "remove", name);
    if (!aside) return TRD_NO_MEMORY;
    trd_status status = trd__remove_tree(aside);
    if (!status && renameat2(AT_FDCWD, temporary, AT_FDCWD, path, RENAME_EXCHANGE) == 0) {
        status = trd__sync_directory(store->folder);
        if (!status) status = trd__remove_tree(temporary);
    } else if (!status) {
        status = replace(temporary, path, aside);
        if (!status) status = trd__sync_directory(store->folder);
        if (!status) status = trd__remove_tree(aside);
    }
    trd__free(aside);
    return status;
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

/* The first failure is the one to report. */
static void clean_up(const char *temporary)
{
    char *message = trd__strdup(trd_error_message());
    trd__remove_tree(temporary);
    if (message) trd__set_error_message(message);
    trd__free(message);
}

trd_status trd__store_save(const trd__store *store, trd__store_name name, const trd_array *arrays,
                           size_t count, const char *json, size_t json_bytes, bool *wrote)
{
    if (wrote) *wrote = false;
    TRD_TRY(check_arrays(arrays, count));
    char *path = trd__store_path(store, name), *temporary = trd__store_temporary(store, "save", name);
    bool same = false;
    trd_status status = path && temporary ? TRD_OK : TRD_NO_MEMORY;
    if (!status) status = holds_same(path, arrays, count, json, json_bytes, &same);
    if (!status && !same) {
        status = trd__remove_tree(temporary);
        if (!status) status = write_files(temporary, name, arrays, count, json, json_bytes);
        if (!status) status = publish(store, name, temporary, path);
        if (status) {
            trd__fail_in(status, "saving checkpoint %s", path);
            clean_up(temporary);
        }
    }
    trd__free(temporary);
    trd__free(path);
    if (!status) status = remove_less_complete(store, name);
    if (!status && wrote) *wrote = !same;
    return status;
}
