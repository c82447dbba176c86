/* One pass over the text for what cJSON lets through: invalid UTF-8, control characters and \u0000 in
 * strings, numbers outside the grammar, control characters as white space, deep nesting. Invariant: no byte
 * past text + bytes is read. */
#include "formats/json_scan.h"

#include <stdbool.h>
#include <string.h>

/* cJSON copies a number to 64 bytes with its terminator before it converts it. */
enum { NUMBER_BYTES = 63 };

/* Length of the UTF-8 sequence at s, 0 if it is invalid (RFC 3629: no overlong forms, surrogates, or beyond
 * U+10FFFF). */
static size_t utf8_length(const unsigned char *s, size_t left)
{
    if (s[0] < 0xc2 || s[0] > 0xf4) return 0;
    size_t length = s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    if (left < length) return 0;
    unsigned low = s[0] == 0xe0 ? 0xa0 : s[0] == 0xf0 ? 0x90 : 0x80;
    unsigned high = s[0] == 0xed ? 0x9f : s[0] == 0xf4 ? 0x8f : 0xbf;
    if (s[1] < low || s[1] > high) return 0;
    for (size_t i = 2; i < length; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    return length;
}

/* Passes a string whose opening quote is at *at - 1; leaves *at after the closing quote. */
static const char *scan_string(const unsigned char *s, size_t bytes, size_t *at)
{
    size_t i = *at;
    const char *reason = "string without closing quote";
    while (i < bytes) {
        unsigned char c = s[i];
        if (c == '"') {
            *at = i + 1;
            return NULL;
        }
        if (c == '\\') {
            if (bytes - i >= 6 && memcmp(s + i, "\\u0000", 6) == 0) {
                reason = "the character \\u0000, which is not supported in text";
                break;
            }
            i += 2;
        } else if (c < 0x20) {
            reason = "control character in a string, where an escape such as \\n is expected";
            break;
        } else if (c < 0x80) {
            i++;
        } else {
            size_t length = utf8_length(s + i, bytes - i);
            if (length == 0) {
                reason = "bytes that are not UTF-8";
                break;
            }
            i += length;
        }
    }
    *at = i < bytes ? i : bytes;
    return reason;
}

static size_t digits(const unsigned char *s, size_t bytes, size_t *i)
{
    size_t start = *i;
    while (*i < bytes && s[*i] >= '0' && s[*i] <= '9') ++*i;
    return *i - start;
}

static bool number_grammar(const unsigned char *s, size_t bytes, size_t *i)
{
    if (s[*i] == '-') ++*i;
    bool zero = *i < bytes && s[*i] == '0';
    size_t whole = digits(s, bytes, i);
    if (whole == 0 || (zero && whole > 1)) return false;
    if (*i < bytes && s[*i] == '.') {
        ++*i;
        if (digits(s, bytes, i) == 0) return false;
    }
    if (*i < bytes && (s[*i] == 'e' || s[*i] == 'E')) {
        ++*i;
        if (*i < bytes && (s[*i] == '+' || s[*i] == '-')) ++*i;
        if (digits(s, bytes, i) == 0) return false;
    }
    return true;
}

static const char *scan_number(const unsigned char *s, size_t bytes, size_t *at)
{
    size_t i = *at;
    if (!number_grammar(s, bytes, &i))
        return i < bytes && s[i] == 'I' ? "Infinity, which is not JSON" : "malformed number";
    if (i - *at > NUMBER_BYTES) return "number of more than 63 characters";
    *at = i;
    return NULL;
}

const char *trd__json_scan(const char *text, size_t bytes, size_t *at)
{
    const unsigned char *s = (const unsigned char *)text;
    size_t depth = 0, i = 0;
    const char *reason = NULL;
    while (i < bytes && !reason) {
        unsigned char c = s[i];
        *at = i;
        if (c == '"') {
            *at = ++i;
            reason = scan_string(s, bytes, at);
            i = *at;
        } else if (c == '-' || (c >= '0' && c <= '9')) {
            reason = scan_number(s, bytes, &i);
        } else {
            if (c == '{' || c == '[') {
                if (++depth > TRD__JSON_DEPTH) reason = "nesting deeper than 512 levels";
            } else if (c == '}' || c == ']') {
                if (depth > 0) depth--;
            } else if (c == 'N' || c == 'I') {
                reason = "NaN or Infinity, which are not JSON";
            } else if (c >= 0x80 || (c < ' ' && c != '\t' && c != '\n' && c != '\r')) {
                reason = "a byte that is neither JSON nor inside a string";
            }
            i++;
        }
    }
    return reason;
}
