/* JSON access: strict parsing, typed getters whose messages name the path of the value, iteration, and a
 * writer.
 *
 * Parsing accepts RFC 8259 only: UTF-8, no NaN, no comments, no repeated keys, nesting up to 512, numbers
 * that a double holds, no \u0000. A document is immutable once parsed: any number of threads may read it. A
 * value is a small handle that lives as long as its document. */
#ifndef TRD_FORMATS_JSON_H
#define TRD_FORMATS_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct trd__json_doc trd__json_doc;

typedef struct trd__json {
    const trd__json_doc *doc;
    const void *node; /* NULL: absent */
} trd__json;

typedef enum trd__json_kind {
    TRD__JSON_ABSENT,
    TRD__JSON_NULL,
    TRD__JSON_BOOL,
    TRD__JSON_NUMBER,
    TRD__JSON_STRING,
    TRD__JSON_ARRAY,
    TRD__JSON_OBJECT
} trd__json_kind;

/* Parses bytes of text, which need not end in NUL and is not kept. what names the text in messages (a path,
 * "file.jsonl line 3"). TRD_CORRUPT with line and column. */
trd_status trd__json_parse(const char *text, size_t bytes, const char *what, trd__json_doc **doc);
trd_status trd__json_parse_file(const char *path, trd__json_doc **doc);
void trd__json_free(trd__json_doc *doc); /* NULL is fine */

trd__json trd__json_root(const trd__json_doc *doc);
trd__json_kind trd__json_kind_of(trd__json value);
static inline bool trd__json_exists(trd__json value)
{
    return value.node != NULL;
}

/* Member by key (exact case), absent if there is none or object is no object. Linear in the object's size. */
trd__json trd__json_find(trd__json object, const char *key);
/* Number of members or elements; 0 for other kinds. Linear. */
size_t trd__json_count(trd__json value);

/* Iteration in file order over an array or object, constant time a step:
 * for (trd__json v = trd__json_first(x); trd__json_exists(v); v = trd__json_next(v)) ... trd__json_key(v) */
trd__json trd__json_first(trd__json container);
trd__json trd__json_next(trd__json value);
const char *trd__json_key(trd__json value); /* "" for an array's element */

/* The value as a C type, else TRD_CORRUPT naming the document, the path, what was expected and what was
 * found. Integers must be whole and within 2^53. Strings live as long as the document. */
trd_status trd__json_as_string(trd__json value, const char **text);
trd_status trd__json_as_i64(trd__json value, int64_t *number);
trd_status trd__json_as_f64(trd__json value, double *number);
trd_status trd__json_as_bool(trd__json value, bool *flag);
trd_status trd__json_as_array(trd__json value);
trd_status trd__json_as_object(trd__json value);

/* The same for a member that must be there. */
trd_status trd__json_get_string(trd__json object, const char *key, const char **text);
trd_status trd__json_get_i64(trd__json object, const char *key, int64_t *number);
trd_status trd__json_get_f64(trd__json object, const char *key, double *number);
trd_status trd__json_get_bool(trd__json object, const char *key, bool *flag);
trd_status trd__json_get_array(trd__json object, const char *key, trd__json *array);
trd_status trd__json_get_object(trd__json object, const char *key, trd__json *member);

/* The same for a member that may be missing or null: *out keeps what it held. */
trd_status trd__json_opt_string(trd__json object, const char *key, const char **text);
trd_status trd__json_opt_i64(trd__json object, const char *key, int64_t *number);
trd_status trd__json_opt_f64(trd__json object, const char *key, double *number);
trd_status trd__json_opt_bool(trd__json object, const char *key, bool *flag);

/* Fails with "document: path: message", for what only the caller can judge. */
trd_status trd__json_fail(trd__json value, trd_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A growing text. Zero-initialize (indent 0: one line); the first failure sticks and trd__json_finish returns
 * it. Commas are put by the writer. After finish, text is NUL-terminated and holds bytes bytes. */
enum { TRD__JSON_WRITE_DEPTH = 64 };

typedef struct trd__json_writer {
    char *text;
    size_t bytes;
    size_t capacity;
    int indent; /* spaces a level; 0: everything on one line */
    int depth;
    bool after_key;
    trd_status status;
    char closers[TRD__JSON_WRITE_DEPTH];
    bool filled[TRD__JSON_WRITE_DEPTH + 1];
} trd__json_writer;

void trd__json_open_object(trd__json_writer *writer);
void trd__json_open_array(trd__json_writer *writer);
void trd__json_close(trd__json_writer *writer); /* the innermost open object or array */
void trd__json_write_key(trd__json_writer *writer, const char *key);
void trd__json_write_string(trd__json_writer *writer, const char *text);
void trd__json_write_bytes(trd__json_writer *writer, const char *text, size_t bytes); /* UTF-8 expected */
void trd__json_write_i64(trd__json_writer *writer, int64_t number);
void trd__json_write_f64(trd__json_writer *writer,
                         double number); /* shortest that reads back; not finite: null */
void trd__json_write_bool(trd__json_writer *writer, bool flag);
void trd__json_write_null(trd__json_writer *writer);
void trd__json_write_raw(trd__json_writer *writer, const char *json, size_t bytes); /* a value that is JSON */
void trd__json_write_value(trd__json_writer *writer, trd__json value); /* copies a parsed value */
trd_status trd__json_finish(trd__json_writer *writer); /* also fails when something is still open */
void trd__json_clear(trd__json_writer *writer);        /* empties it for the next text, keeps the memory */
void trd__json_writer_free(trd__json_writer *writer);

/* key: value in one call, for the common case. */
void trd__json_put_string(trd__json_writer *writer, const char *key, const char *text);
void trd__json_put_i64(trd__json_writer *writer, const char *key, int64_t number);
void trd__json_put_f64(trd__json_writer *writer, const char *key, double number);
void trd__json_put_bool(trd__json_writer *writer, const char *key, bool flag);

#endif
