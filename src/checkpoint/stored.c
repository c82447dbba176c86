/* Reading one checkpoint. Invariant: a checkpoint that was opened is the one that was written, byte for byte:
 * the manifest is checked against the folder's name, the header and every tensor against the manifest. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/alloc.h"
#include "base/checksum.h"
#include "base/file.h"
#include "checkpoint/store.h"
#include "checkpoint/store_files.h"
#include "checkpoint/sums.h"
#include "formats/json.h"
#include "formats/safetensors.h"

struct trd__stored {
    char *path;
    trd__store_name name;
    trd__safetensors *file;
    trd_array *arrays;
    size_t count;
    char *json;
    size_t json_bytes;
    trd__damage_function report; /* NULL: the first damage ends the reading */
    void *user;
    bool damaged;
};

/* A damage is told and gone past by a verification, and else returned. What cannot be read at all, or not by
 * this version, is no damage. */
static trd_status pass(trd__stored *s, trd_status status, const char *file, const char *tensor)
{
    if ((status != TRD_CORRUPT && status != TRD_NOT_FOUND) || !s->report) return status;
    s->damaged = true;
    s->report(s->user, file, tensor, trd_error_message());
    return TRD_OK;
}

static trd_status compare_sum(trd__json object, const char *key, uint64_t sum, const char *what)
{
    char text[TRD__STORE_SUM_TEXT];
    const char *expected = "";
    TRD_TRY(trd__json_get_string(object, key, &expected));
    snprintf(text, sizeof text, "%016" PRIx64, sum);
    if (strcmp(text, expected) == 0) return TRD_OK;
    return trd__fail(TRD_CORRUPT, "%s was altered or torn (its checksum differs)", what);
}

static trd_status check_sum(trd__json object, const char *key, const void *data, size_t bytes,
                            const char *what)
{
    return compare_sum(object, key, trd__checksum(data, bytes), what);
}

/* The manifest's last member is a checksum of the text before it; format 1 had none. */
static trd_status check_manifest(trd__json root, const char *text, size_t bytes)
{
    int64_t format = 0;
    TRD_TRY(trd__json_get_i64(root, "format", &format));
    if (format != 1 && format != TRD__STORE_FORMAT)
        return trd__fail(TRD_UNSUPPORTED,
                         "expected format %d, found %" PRId64 "; it was written by another version",
                         TRD__STORE_FORMAT, format);
    if (format == 1 && !trd__json_exists(trd__json_find(root, TRD__STORE_MANIFEST_SUM))) return TRD_OK;
    static const char mark[] = ",\n \"" TRD__STORE_MANIFEST_SUM "\"";
    const char *end = memmem(text, bytes, mark, sizeof mark - 1);
    return check_sum(root, TRD__STORE_MANIFEST_SUM, text, end ? (size_t)(end - text) : bytes,
                     TRD__STORE_MANIFEST);
}

static trd_status check_name(const trd__stored *s, trd__json root)
{
    int64_t step = 0, micro = 0;
    TRD_TRY(trd__json_get_i64(root, "step", &step));
    TRD_TRY(trd__json_get_i64(root, "micro", &micro));
    if (step == s->name.step && micro == s->name.micro) return TRD_OK;
    char text[TRD__STORE_NAME_TEXT];
    return trd__fail(TRD_CORRUPT, "it was saved as %s and renamed since; give it that name back",
                     trd__store_name_text((trd__store_name){step, micro}, text));
}

/* The path of one of the checkpoint's files; what stands there and is no file is damage. */
static trd_status find_file(const trd__stored *s, const char *name, char **path)
{
    struct stat info;
    *path = trd__path_join(s->path, name);
    if (!*path) return TRD_NO_MEMORY;
    if (stat(*path, &info) != 0 || S_ISREG(info.st_mode)) return TRD_OK;
    trd__free(*path);
    return trd__fail(TRD_CORRUPT, "%s: expected a file, found a folder, a pipe or a device", name);
}

static trd_status read_state(trd__stored *s, trd__json root)
{
    trd__file_map map;
    char *path;
    TRD_TRY(find_file(s, TRD__STORE_STATE, &path));
    trd_status status = trd__file_map_open(path, &map);
    trd__free(path);
    TRD_TRY(status);
    s->json = trd__alloc(map.bytes + 1, 1);
    status = s->json ? check_sum(root, "state_xxh3", map.data, map.bytes, TRD__STORE_STATE) : TRD_NO_MEMORY;
    if (!status) {
        if (map.bytes) memcpy(s->json, map.data, map.bytes);
        s->json[map.bytes] = '\0';
        s->json_bytes = map.bytes;
    }
    trd__file_map_close(&map);
    return status;
}

/* The checksums of the file's tensors, in the order of the data; free with trd__free. */
static trd_status sum_tensors(const trd__stored *s, trd__summed **sums)
{
    size_t count = trd__safetensors_count(s->file);
    *sums = trd__alloc(count + 1, sizeof **sums);
    if (!*sums) return TRD_NO_MEMORY;
    for (size_t i = 0; i < count; i++) {
        const trd__safetensor *tensor = trd__safetensors_at(s->file, i);
        (*sums)[i] = (trd__summed){tensor->data, tensor->bytes, 0};
    }
    return trd__sums(*sums, count, NULL, NULL);
}

static trd_status read_tensor(trd__stored *s, trd__json entry, const trd__summed *sums)
{
    const char *name = "";
    TRD_TRY(trd__json_get_string(entry, "name", &name));
    const trd__safetensor *tensor = trd__safetensors_find(s->file, name);
    if (!tensor)
        return pass(s,
                    trd__json_fail(entry, TRD_CORRUPT, "there is no tensor %s in " TRD__STORE_TENSORS, name),
                    TRD__STORE_TENSORS, name);
    uint64_t sum = sums[tensor - trd__safetensors_at(s->file, 0)].sum;
    TRD_TRY(pass(s, compare_sum(entry, "xxh3", sum, tensor->name), TRD__STORE_TENSORS, name));
    s->arrays[s->count++] = (trd_array){tensor->name, tensor->dtype, tensor->shape, tensor->data};
    return TRD_OK;
}

static trd_status read_tensors(trd__stored *s, trd__json root)
{
    trd__json list;
    size_t header_bytes;
    char *path;
    TRD_TRY(find_file(s, TRD__STORE_TENSORS, &path));
    trd_status status = trd__safetensors_open(path, &s->file);
    trd__free(path);
    TRD_TRY(status);
    const void *header = trd__safetensors_header(s->file, &header_bytes);
    TRD_TRY(pass(s, check_sum(root, "header_xxh3", header, header_bytes, "the header of " TRD__STORE_TENSORS),
                 TRD__STORE_TENSORS, ""));
    TRD_TRY(trd__json_get_array(root, "tensors", &list));
    size_t count = trd__json_count(list);
    if (count != trd__safetensors_count(s->file))
        return trd__json_fail(list, TRD_CORRUPT, "expected %zu tensors, found %zu",
                              trd__safetensors_count(s->file), count);
    s->arrays = trd__alloc(count + 1, sizeof *s->arrays);
    if (!s->arrays) return TRD_NO_MEMORY;
    trd__summed *sums = NULL;
    status = sum_tensors(s, &sums);
    for (trd__json v = trd__json_first(list); !status && trd__json_exists(v); v = trd__json_next(v))
        status = read_tensor(s, v, sums);
    trd__free(sums);
    return status;
}

static trd_status read_manifest(trd__stored *s, const char *text, size_t bytes, const char *path)
{
    trd__json_doc *doc;
    TRD_TRY(trd__json_parse(text, bytes, path, &doc));
    trd__json root = trd__json_root(doc);
    trd_status status = pass(s, check_manifest(root, text, bytes), TRD__STORE_MANIFEST, "");
    if (!status) status = pass(s, check_name(s, root), TRD__STORE_MANIFEST, "");
    if (!status) status = pass(s, read_state(s, root), TRD__STORE_STATE, "");
    if (!status) status = pass(s, read_tensors(s, root), TRD__STORE_TENSORS, "");
    trd__json_free(doc);
    return status;
}

/* A name with something else behind it than a folder is damage too. */
static trd_status check_folder(const trd__stored *s)
{
    struct stat info;
    if (stat(s->path, &info) == 0 && !S_ISDIR(info.st_mode))
        return trd__fail(TRD_CORRUPT, "expected a folder, found a file");
    if (!trd__file_exists(s->path) && trd__name_exists(s->path))
        return trd__fail(TRD_CORRUPT, "expected a folder, found a link that leads nowhere");
    return TRD_OK;
}

static trd_status open_path(trd__stored *s, const char *path)
{
    s->path = trd__strdup(path);
    if (!s->path) return TRD_NO_MEMORY;
    for (size_t end = strlen(s->path); end > 1 && s->path[end - 1] == '/';) s->path[--end] = '\0';
    const char *slash = strrchr(s->path, '/');
    if (!trd__store_parse_name(slash ? slash + 1 : s->path, &s->name))
        return trd__fail(TRD_INVALID_ARGUMENT, "expected a folder named step-N or step-N.mK");
    TRD_TRY(check_folder(s));
    trd__file_map map;
    char *manifest;
    TRD_TRY(find_file(s, TRD__STORE_MANIFEST, &manifest));
    trd_status status = trd__file_map_open(manifest, &map);
    if (!status) status = read_manifest(s, (const char *)map.data, map.bytes, manifest);
    trd__file_map_close(&map);
    trd__free(manifest);
    return status;
}

trd_status trd__stored_open(const char *path, trd__stored **out)
{
    *out = NULL;
    trd__stored *s = trd__calloc(1, sizeof *s);
    if (!s) return TRD_NO_MEMORY;
    trd_status status = open_path(s, path);
    if (status) {
        trd__stored_close(s);
        return trd__fail_in(status, "opening checkpoint %s", path);
    }
    *out = s;
    return TRD_OK;
}

trd_status trd__stored_verify(const char *path, trd__damage_function report, void *user)
{
    trd__stored *s = trd__calloc(1, sizeof *s);
    if (!s) return TRD_NO_MEMORY;
    s->report = report;
    s->user = user;
    trd_status status = pass(s, open_path(s, path), TRD__STORE_MANIFEST, "");
    bool damaged = s->damaged;
    trd__stored_close(s);
    if (status == TRD_OK && damaged) return trd__fail(TRD_CORRUPT, "checkpoint %s is damaged", path);
    return status;
}

static int64_t saved_at(const char *manifest)
{
    trd__json_doc *doc;
    const char *text = "";
    struct tm utc = {.tm_isdst = 0};
    if (trd__json_parse_file(manifest, &doc) != TRD_OK) return 0;
    bool said = trd__json_get_string(trd__json_root(doc), "saved_at", &text) == TRD_OK;
    said = said && strptime(text, TRD__STORE_TIME, &utc);
    trd__json_free(doc);
    return said ? (int64_t)timegm(&utc) : 0;
}

trd_status trd__stored_measure(const char *path, trd__stored_size *size)
{
    static const char *const files[] = {TRD__STORE_TENSORS, TRD__STORE_STATE, TRD__STORE_MANIFEST};
    *size = (trd__stored_size){0};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct stat info;
        char *file = trd__path_join(path, files[i]);
        if (!file) return TRD_NO_MEMORY;
        if (stat(file, &info) == 0) size->bytes += (uint64_t)info.st_size;
        if (strcmp(files[i], TRD__STORE_MANIFEST) == 0) size->saved_at = saved_at(file);
        trd__free(file);
    }
    return TRD_OK;
}

void trd__stored_close(trd__stored *s)
{
    if (!s) return;
    trd__free(s->json);
    trd__free(s->arrays);
    trd__safetensors_close(s->file);
    trd__free(s->path);
    trd__free(s);
}

trd__store_name trd__stored_name(const trd__stored *s)
{
    return s->name;
}
size_t trd__stored_count(const trd__stored *s)
{
    return s->count;
}
const trd_array *trd__stored_at(const trd__stored *s, size_t i)
{
    return &s->arrays[i];
}

const trd_array *trd__stored_find(const trd__stored *s, const char *name)
{
    for (size_t i = 0; i < s->count; i++)
        if (strcmp(s->arrays[i].name, name) == 0) return &s->arrays[i];
    return NULL;
}

const char *trd__stored_json(const trd__stored *s, size_t *bytes)
{
    if (bytes) *bytes = s->json_bytes;
    return s->json;
}
