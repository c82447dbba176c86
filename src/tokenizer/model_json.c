/* A pull reader for two shapes of JSON. Invariant: it never reads outside [text, end), and whatever it
 * accepts is JSON; what it refuses it names with the byte where it stood. */
#include "tokenizer/model_json.h"

#include <string.h>

#include "base/alloc.h"
#include "tokenizer/unicode.h"

typedef struct reader {
    const char *path, *text; /* for messages */
    const char *at, *end;
    char *unescaped[2]; /* strings with escapes are rewritten here: two may be alive */
    size_t capacity[2];
} reader;

static trd_status unexpected(const reader *r, const char *expected)
{
    if (r->at == r->end) return trd__fail(TRD_CORRUPT, "%s: expected %s, found the end", r->path, expected);
    return trd__fail(TRD_CORRUPT, "%s: expected %s at byte %zu, found '%c'", r->path, expected,
                     (size_t)(r->at - r->text), *r->at);
}

static inline void skip_space(reader *r)
{
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\n' || *r->at == '\r' || *r->at == '\t')) r->at++;
}

/* Takes one character of syntax. */
static inline bool take(reader *r, char c)
{
    skip_space(r);
    if (r->at == r->end || *r->at != c) return false;
    r->at++;
    return true;
}

/* Moves from after an opening quote to the closing one; false if there is none or a control character comes
 * first. *escapes tells of backslashes. */
static bool find_quote(reader *r, bool *escapes)
{
    *escapes = false;
    for (; r->at < r->end; r->at++) {
        unsigned char c = (unsigned char)*r->at;
        if (c == '"') return true;
        if (c < 0x20) return false;
        if (c != '\\') continue;
        *escapes = true;
        if (++r->at == r->end) return false;
    }
    return false;
}

static int hex4(const char *at, const char *end)
{
    int value = 0;
    if (end - at < 4) return -1;
    for (int i = 0; i < 4; i++) {
        char c = at[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* One escape, *from after its backslash, written to out; 0 if it is none. */
static size_t unescape(const char **from, const char *end, char *out)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    char c = *(*from)++;
    const char *name = strchr(names, c);
    if (c && name) {
        *out = values[name - names];
        return 1;
    }
    int high = c == 'u' ? hex4(*from, end) : -1;
    if (high < 0) return 0;
    *from += 4;
    if (high < 0xd800 || high > 0xdfff) return trd__utf8_encode((uint32_t)high, out);
    int low = end - *from >= 6 && (*from)[0] == '\\' && (*from)[1] == 'u' ? hex4(*from + 2, end) : -1;
    if (high > 0xdbff || low < 0xdc00 || low > 0xdfff) return 0;
    *from += 6;
    return trd__utf8_encode(0x10000u + ((uint32_t)(high - 0xd800) << 10) + (uint32_t)(low - 0xdc00), out);
}

static trd_status read_string(reader *r, int buffer, trd__json_text *string)
{
    bool escapes;
    if (!take(r, '"')) return unexpected(r, "a string");
    const char *from = r->at;
    if (!find_quote(r, &escapes)) return unexpected(r, "the end of a string");
    const char *end = r->at++;
    *string = (trd__json_text){from, (size_t)(end - from)};
    if (!escapes) return TRD_OK;
    if (string->bytes > r->capacity[buffer]) {
        char *grown = trd__realloc(r->unescaped[buffer], string->bytes * 2, 1);
        if (!grown) return TRD_NO_MEMORY;
        r->unescaped[buffer] = grown;
        r->capacity[buffer] = string->bytes * 2;
    }
    char *out = r->unescaped[buffer];
    size_t used = 0;
    while (from < end) {
        if (*from != '\\') {
            out[used++] = *from++;
            continue;
        }
        from++;
        size_t length = unescape(&from, end, out + used);
        if (!length) return unexpected(r, "valid escapes in the string before");
        used += length;
    }
    *string = (trd__json_text){out, used};
    return TRD_OK;
}

static trd_status read_id(reader *r, int64_t *id)
{
    const char *first = (skip_space(r), r->at);
    *id = 0;
    while (r->at < r->end && *r->at >= '0' && *r->at <= '9' && r->at - first < 12)
        *id = *id * 10 + (*r->at++ - '0');
    return r->at == first || (*first == '0' && r->at - first > 1) ? unexpected(r, "a token id") : TRD_OK;
}

/* Moves past one value without looking into it, except that brackets and strings must close. */
static bool skip_value(reader *r)
{
    bool escapes;
    size_t depth = 0;
    skip_space(r);
    for (; r->at < r->end; r->at++) {
        char c = *r->at;
        if (c == '"') {
            r->at++;
            if (!find_quote(r, &escapes)) return false;
        } else if (c == '{' || c == '[') {
            depth++;
        } else if (c == '}' || c == ']') {
            if (depth == 0) return true; /* the end of what holds a number, true, false or null */
            depth--;
        } else if (c == ',' && depth == 0) {
            return true;
        } else {
            continue;
        }
        if (depth == 0 && c != '{' && c != '[') return r->at++, true;
    }
    return false;
}

static bool is_key(trd__json_text string, const char *key)
{
    return string.bytes == strlen(key) && memcmp(string.text, key, string.bytes) == 0;
}

/* Walks the members of the object at r->at; member is called with each key, r->at before the value, and moves
 * past the value. */
static trd_status each_member(reader *r, trd_status (*member)(reader *, trd__json_text, void *),
                              void *context)
{
    trd__json_text key;
    if (!take(r, '{')) return unexpected(r, "an object");
    if (take(r, '}')) return TRD_OK;
    do {
        TRD_TRY(read_string(r, 0, &key));
        if (!take(r, ':')) return unexpected(r, "':'");
        TRD_TRY(member(r, key, context));
    } while (take(r, ','));
    return take(r, '}') ? TRD_OK : unexpected(r, "',' or '}'");
}

static trd_status read_merge(reader *r, trd__json_text *left, trd__json_text *right)
{
    if (take(r, '[')) {
        TRD_TRY(read_string(r, 0, left));
        if (!take(r, ',')) return unexpected(r, "','");
        TRD_TRY(read_string(r, 1, right));
        return take(r, ']') ? TRD_OK : unexpected(r, "']'");
    }
    TRD_TRY(read_string(r, 0, left));
    const char *space = memchr(left->text, ' ', left->bytes);
    size_t first = space ? (size_t)(space - left->text) : 0;
    if (!space || memchr(space + 1, ' ', left->bytes - first - 1))
        return unexpected(r, "two tokens with one space between in the merge before");
    *right = (trd__json_text){space + 1, left->bytes - first - 1};
    left->bytes = first;
    return TRD_OK;
}

static trd_status read_merges(reader *r, const trd__model_sink *sink)
{
    trd__json_text left, right;
    if (!take(r, '[')) return unexpected(r, "an array");
    if (take(r, ']')) return TRD_OK;
    do {
        TRD_TRY(read_merge(r, &left, &right));
        TRD_TRY(sink->merge(sink->context, left, right));
    } while (take(r, ','));
    return take(r, ']') ? TRD_OK : unexpected(r, "',' or ']'");
}

static trd_status vocab_member(reader *r, trd__json_text key, void *context)
{
    const trd__model_sink *sink = context;
    int64_t id;
    TRD_TRY(read_id(r, &id));
    return sink->token(sink->context, id, key);
}

typedef struct range {
    const char *begin, *end; /* NULL: not met */
} range;

/* Where the tables lie in the file. */
typedef struct tables {
    const trd__model_sink *sink;
    range vocab, merges;
    bool merges_read;
} tables;

static trd_status model_member(reader *r, trd__json_text key, void *context)
{
    tables *t = context;
    bool vocab = is_key(key, "vocab"), merges = is_key(key, "merges");
    skip_space(r);
    range place = {r->at, NULL};
    char opening = r->at < r->end ? *r->at : 0;
    if ((vocab && t->vocab.begin) || (merges && t->merges.begin)) return unexpected(r, "each table once");
    if (vocab && opening == '{') {
        TRD_TRY(each_member(r, vocab_member, (void *)(uintptr_t)t->sink));
        t->vocab = (range){place.begin, r->at};
    } else if (merges && opening == '[' && t->vocab.begin) {
        TRD_TRY(read_merges(r, t->sink));
        t->merges = (range){place.begin, r->at};
        t->merges_read = true;
    } else {
        if (!skip_value(r)) return unexpected(r, "a value that ends");
        if (merges && opening == '[') t->merges = (range){place.begin, r->at};
    }
    return TRD_OK;
}

static trd_status file_member(reader *r, trd__json_text key, void *context)
{
    skip_space(r);
    if (is_key(key, "model") && r->at < r->end && *r->at == '{') return each_member(r, model_member, context);
    return skip_value(r) ? TRD_OK : unexpected(r, "a value that ends");
}

/* The file with null in place of the tables; what lies between them is kept. */
static trd_status copy_rest(const char *text, size_t bytes, range first, range second, char **rest,
                            size_t *rest_bytes)
{
    const char *done = text;
    char *out =
        trd__alloc(bytes - (size_t)(first.end - first.begin) - (size_t)(second.end - second.begin) + 9, 1);
    if (!out) return TRD_NO_MEMORY;
    *rest = out;
    if (second.begin && (!first.begin || second.begin < first.begin)) {
        range swap = first;
        first = second;
        second = swap;
    }
    for (int i = 0; i < 2; i++) {
        range table = i == 0 ? first : second;
        if (!table.begin) continue;
        memcpy(out, done, (size_t)(table.begin - done));
        out += table.begin - done;
        memcpy(out, "null", 4);
        out += 4;
        done = table.end;
    }
    memcpy(out, done, (size_t)(text + bytes - done));
    *rest_bytes = (size_t)(out + (text + bytes - done) - *rest);
    return TRD_OK;
}

static void reader_free(reader *r)
{
    trd__free(r->unescaped[0]);
    trd__free(r->unescaped[1]);
}

trd_status trd__model_json_read(const char *path, const char *text, size_t bytes, const trd__model_sink *sink,
                                char **rest, size_t *rest_bytes)
{
    tables t = {.sink = sink};
    reader r = {.path = path, .text = text, .at = text, .end = text + bytes};
    *rest = NULL;
    trd_status status = each_member(&r, file_member, &t);
    if (!status && t.merges.begin && !t.merges_read && t.vocab.begin) {
        r.at = t.merges.begin;
        status = read_merges(&r, sink);
    }
    reader_free(&r);
    return status ? status : copy_rest(text, bytes, t.vocab, t.merges, rest, rest_bytes);
}
