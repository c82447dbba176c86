/* Documents over cJSON. The library is called for parsing only: lookups compare case, and what it lets
 * through (see json_scan.c; repeated keys and infinite numbers here) is refused. Invariant: a document that
 * was returned holds finite numbers and unique keys.
 *
 * cJSON's allocation hooks are process-wide, so they are left alone and nodes come from malloc. */
#include "formats/json.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/checksum.h"
#include "base/file.h"
#include "formats/json_scan.h"
#include "formats/sniff.h"

enum { PATH_BYTES = 512 };

struct trd__json_doc {
    cJSON *root;
    char *what;
};

static const char *const kind_names[] = {"nothing",  "null",     "a boolean", "a number",
                                         "a string", "an array", "an object"};

static trd_status fail_at(const char *text, size_t at, const char *what, const char *reason)
{
    size_t line = 1, start = 0;
    for (size_t i = 0; i < at; i++)
        if (text[i] == '\n') {
            line++;
            start = i + 1;
        }
    return trd__fail(TRD_CORRUPT, "reading JSON of %s: line %zu, column %zu: %s", what, line, at - start + 1,
                     reason);
}

/* The path of target below node, as "model.merges[12]", appended at used. */
static bool find_path(const cJSON *node, const cJSON *target, char *path, size_t used)
{
    path[used] = '\0';
    if (node == target) return true;
    bool object = cJSON_IsObject(node);
    size_t index = 0;
    for (const cJSON *child = node->child; child; child = child->next, index++) {
        if (child != target && !child->child) continue;
        int length = object ? snprintf(path + used, PATH_BYTES - used, used ? ".%s" : "%s", child->string)
                            : snprintf(path + used, PATH_BYTES - used, "[%zu]", index);
        size_t end = used + (length < 0 ? 0 : (size_t)length);
        if (end >= PATH_BYTES) end = PATH_BYTES - 1;
        if (find_path(child, target, path, end)) return true;
    }
    path[used] = '\0';
    return false;
}

/* Whether the object repeats a key; table has capacity slots, a power of two at least twice the members. */
static const cJSON *repeated_in_table(const cJSON *object, const cJSON **table, size_t capacity)
{
    memset(table, 0, capacity * sizeof *table);
    for (const cJSON *child = object->child; child; child = child->next) {
        size_t slot = (size_t)trd__checksum(child->string, strlen(child->string)) & (capacity - 1);
        while (table[slot] && strcmp(table[slot]->string, child->string) != 0)
            slot = (slot + 1) & (capacity - 1);
        if (table[slot]) return child;
        table[slot] = child;
    }
    return NULL;
}

static trd_status find_repeated(const cJSON *object, const cJSON **repeated)
{
    size_t count = 0, capacity = 64;
    *repeated = NULL;
    for (const cJSON *child = object->child; child; child = child->next) count++;
    if (count <= 8) {
        for (const cJSON *a = object->child; a; a = a->next)
            for (const cJSON *b = a->next; b; b = b->next)
                if (strcmp(a->string, b->string) == 0) *repeated = b;
        return TRD_OK;
    }
    while (capacity < 2 * count) capacity *= 2;
    const cJSON *few[512];
    const cJSON **table = capacity <= 512 ? few : trd__alloc(capacity, sizeof *table);
    if (!table) return TRD_NO_MEMORY;
    *repeated = repeated_in_table(object, table, capacity);
    if (table != few) trd__free(table);
    return TRD_OK;
}

/* Depth is bounded by the scan, so recursion is too. */
static trd_status check_tree(const trd__json_doc *doc, const cJSON *node)
{
    if (cJSON_IsNumber(node) && !isfinite(node->valuedouble))
        return trd__json_fail((trd__json){doc, node}, TRD_CORRUPT, "expected a number that a double holds");
    if (cJSON_IsObject(node)) {
        const cJSON *repeated;
        TRD_TRY(find_repeated(node, &repeated));
        if (repeated)
            return trd__json_fail((trd__json){doc, repeated}, TRD_CORRUPT,
                                  "expected each key once, found it twice");
    }
    for (const cJSON *child = node->child; child; child = child->next)
        if (child->child || cJSON_IsNumber(child)) TRD_TRY(check_tree(doc, child));
    return TRD_OK;
}

static trd_status parse_grammar(const char *text, size_t bytes, const char *what, cJSON **root)
{
    const char *end = NULL;
    errno = 0; /* the library says no more than NULL, malloc tells why */
    *root = cJSON_ParseWithLengthOpts(text, bytes, &end, 0);
    if (!*root && errno == ENOMEM)
        return trd__fail(TRD_NO_MEMORY, "reading JSON of %s: the system has no memory left", what);
    size_t at = end >= text && end <= text + bytes ? (size_t)(end - text) : 0;
    if (!*root) {
        bool cut = at + 1 >= bytes;
        return fail_at(text, at, what,
                       cut ? "the text ends in the middle of a value (truncated?)" : "malformed value");
    }
    while (at < bytes && strchr(" \t\r\n", text[at]) && text[at]) at++;
    return at == bytes ? TRD_OK
                       : fail_at(text, at, what, "expected the end, found more text after the value");
}

trd_status trd__json_parse(const char *text, size_t bytes, const char *what, trd__json_doc **out)
{
    *out = NULL;
    if (bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) {
        text += 3;
        bytes -= 3;
    }
    if (bytes == 0)
        return trd__fail(TRD_CORRUPT, "reading JSON of %s: expected a value, found an empty text", what);
    const char *mistake = trd__sniff_mistake(text, bytes);
    if (mistake) return trd__fail(TRD_CORRUPT, "reading JSON: %s %s", what, mistake);
    size_t at = 0;
    const char *reason = trd__json_scan(text, bytes, &at);
    if (reason) return fail_at(text, at, what, reason);
    trd__json_doc *doc = trd__calloc(1, sizeof *doc);
    if (!doc) return TRD_NO_MEMORY;
    doc->what = trd__strdup(what);
    trd_status status = doc->what ? parse_grammar(text, bytes, what, &doc->root) : TRD_NO_MEMORY;
    if (!status) status = check_tree(doc, doc->root);
    if (status) {
        trd__json_free(doc);
        return status;
    }
    *out = doc;
    return TRD_OK;
}

trd_status trd__json_parse_file(const char *path, trd__json_doc **doc)
{
    trd__file_map map;
    *doc = NULL;
    TRD_TRY(trd__file_map_open(path, &map));
    trd_status status = trd__json_parse((const char *)map.data, map.bytes, path, doc);
    trd__file_map_close(&map);
    return status;
}

void trd__json_free(trd__json_doc *doc)
{
    if (!doc) return;
    cJSON_Delete(doc->root);
    trd__free(doc->what);
    trd__free(doc);
}

trd__json trd__json_root(const trd__json_doc *doc)
{
    return (trd__json){doc, doc->root};
}

trd__json_kind trd__json_kind_of(trd__json value)
{
    const cJSON *node = value.node;
    if (!node) return TRD__JSON_ABSENT;
    switch (node->type & 0xff) {
    case cJSON_False:
    case cJSON_True:
        return TRD__JSON_BOOL;
    case cJSON_Number:
        return TRD__JSON_NUMBER;
    case cJSON_String:
        return TRD__JSON_STRING;
    case cJSON_Array:
        return TRD__JSON_ARRAY;
    case cJSON_Object:
        return TRD__JSON_OBJECT;
    default:
        return TRD__JSON_NULL;
    }
}

trd__json trd__json_find(trd__json object, const char *key)
{
    trd__json none = {object.doc, NULL};
    if (trd__json_kind_of(object) != TRD__JSON_OBJECT) return none;
    for (const cJSON *child = ((const cJSON *)object.node)->child; child; child = child->next)
        if (strcmp(child->string, key) == 0) return (trd__json){object.doc, child};
    return none;
}

trd__json trd__json_first(trd__json container)
{
    const cJSON *node = container.node;
    return (trd__json){container.doc, node ? node->child : NULL};
}

trd__json trd__json_next(trd__json value)
{
    return (trd__json){value.doc, ((const cJSON *)value.node)->next};
}

size_t trd__json_count(trd__json value)
{
    size_t count = 0;
    for (trd__json v = trd__json_first(value); trd__json_exists(v); v = trd__json_next(v)) count++;
    return count;
}

const char *trd__json_key(trd__json value)
{
    const cJSON *node = value.node;
    return node && node->string ? node->string : "";
}

trd_status trd__json_fail(trd__json value, trd_status status, const char *format, ...)
{
    char reason[1024], path[PATH_BYTES] = "";
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    if (value.node) find_path(value.doc->root, value.node, path, 0);
    return trd__fail(status, "reading JSON of %s: %s%s%s", value.doc->what, path, *path ? ": " : "", reason);
}

static trd_status expect(trd__json value, trd__json_kind kind)
{
    trd__json_kind found = trd__json_kind_of(value);
    if (found == kind) return TRD_OK;
    return trd__json_fail(value, TRD_CORRUPT, "expected %s, found %s", kind_names[kind], kind_names[found]);
}

trd_status trd__json_as_string(trd__json value, const char **text)
{
    TRD_TRY(expect(value, TRD__JSON_STRING));
    *text = ((const cJSON *)value.node)->valuestring;
    return TRD_OK;
}

trd_status trd__json_as_f64(trd__json value, double *number)
{
    TRD_TRY(expect(value, TRD__JSON_NUMBER));
    *number = ((const cJSON *)value.node)->valuedouble;
    return TRD_OK;
}

trd_status trd__json_as_i64(trd__json value, int64_t *number)
{
    double exact;
    TRD_TRY(trd__json_as_f64(value, &exact));
    if (exact != trunc(exact) || fabs(exact) > 9007199254740992.0)
        return trd__json_fail(value, TRD_CORRUPT, "expected a whole number within 2^53, found %.17g", exact);
    *number = (int64_t)exact;
    return TRD_OK;
}

trd_status trd__json_as_bool(trd__json value, bool *flag)
{
    TRD_TRY(expect(value, TRD__JSON_BOOL));
    *flag = cJSON_IsTrue((const cJSON *)value.node) != 0;
    return TRD_OK;
}

trd_status trd__json_as_array(trd__json value)
{
    return expect(value, TRD__JSON_ARRAY);
}

trd_status trd__json_as_object(trd__json value)
{
    return expect(value, TRD__JSON_OBJECT);
}

static trd_status member(trd__json object, const char *key, trd__json_kind kind, trd__json *value)
{
    TRD_TRY(trd__json_as_object(object));
    *value = trd__json_find(object, key);
    if (trd__json_exists(*value)) return TRD_OK;
    return trd__json_fail(object, TRD_CORRUPT, "expected %s under the key \"%s\", found no such key",
                          kind_names[kind], key);
}

/* get: the member must be there. opt: a missing member or null leaves the caller's value. */
#define GETTERS(name, type, kind)                                                                            \
    trd_status trd__json_get_##name(trd__json object, const char *key, type *out)                            \
    {                                                                                                        \
        trd__json value;                                                                                     \
        TRD_TRY(member(object, key, kind, &value));                                                          \
        return trd__json_as_##name(value, out);                                                              \
    }                                                                                                        \
    trd_status trd__json_opt_##name(trd__json object, const char *key, type *out)                            \
    {                                                                                                        \
        trd__json value = trd__json_find(object, key);                                                       \
        return trd__json_kind_of(value) <= TRD__JSON_NULL ? TRD_OK : trd__json_as_##name(value, out);        \
    }
GETTERS(string, const char *, TRD__JSON_STRING)
GETTERS(i64, int64_t, TRD__JSON_NUMBER)
GETTERS(f64, double, TRD__JSON_NUMBER)
GETTERS(bool, bool, TRD__JSON_BOOL)
#undef GETTERS

trd_status trd__json_get_array(trd__json object, const char *key, trd__json *array)
{
    TRD_TRY(member(object, key, TRD__JSON_ARRAY, array));
    return trd__json_as_array(*array);
}

trd_status trd__json_get_object(trd__json object, const char *key, trd__json *found)
{
    TRD_TRY(member(object, key, TRD__JSON_OBJECT, found));
    return trd__json_as_object(*found);
}
