/* What pre-tokenizers and normalizers need to know of Unicode: UTF-8 stepping and validation, four character
 * classes, and NFC. The tables are built once per tokenizer, so lookups cost one load for the basic plane. */
#ifndef TRD_TOKENIZER_UNICODE_H
#define TRD_TOKENIZER_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/status.h"

/* Classes of the pre-tokenizer patterns, exclusive: \p{L}, \p{N}, \s, anything else. */
enum { TRD__OTHER, TRD__LETTER, TRD__NUMBER, TRD__SPACE, TRD__CLASS_MASK = 3 };
/* Further bits of a class byte. */
enum {
    TRD__WORD = 4,    /* \w: letters, marks, numbers, connectors */
    TRD__NFC_STEP = 8 /* may change under NFC, alone or after another character */
};

enum { TRD__PLANE = 0x10000 };

typedef struct trd__unicode {
    uint8_t basic[TRD__PLANE]; /* class byte per code point of the basic plane */
} trd__unicode;

void trd__unicode_init(trd__unicode *unicode);
uint8_t trd__unicode_lookup(uint32_t code); /* class byte of any code point, computed */

/* Length of the longest prefix of text that is valid UTF-8. */
size_t trd__utf8_valid(const uint8_t *text, size_t bytes);

/* Start of the character that ends before `at` > 0. A stray byte is a character of its own. */
size_t trd__utf8_before(const uint8_t *text, size_t at);

/* Code point at text, which must be valid UTF-8; *length gets its bytes. */
static inline uint32_t trd__utf8_decode(const uint8_t *text, unsigned *length)
{
    uint32_t c = text[0];
    if (c < 0x80) return *length = 1, c;
    if (c < 0xe0) return *length = 2, (c & 0x1f) << 6 | (text[1] & 0x3fu);
    if (c < 0xf0) return *length = 3, (c & 0x0f) << 12 | (text[1] & 0x3fu) << 6 | (text[2] & 0x3fu);
    *length = 4;
    return (c & 7) << 18 | (text[1] & 0x3fu) << 12 | (text[2] & 0x3fu) << 6 | (text[3] & 0x3fu);
}

/* Writes code as UTF-8 to text (up to 4 bytes) and returns its length. */
unsigned trd__utf8_encode(uint32_t code, char *text);

/* Class byte of the code point at text; *length gets its bytes. */
static inline uint8_t trd__class_at(const trd__unicode *unicode, const uint8_t *text, unsigned *length)
{
    uint32_t code = trd__utf8_decode(text, length);
    return code < TRD__PLANE ? unicode->basic[code] : trd__unicode_lookup(code);
}

/* NFC of text (valid UTF-8). *changed stays false, and *normalized unset, where text already is NFC; else
 * *normalized is a block of *normalized_bytes to free with trd__free. */
trd_status trd__nfc(const trd__unicode *unicode, const uint8_t *text, size_t bytes, bool *changed,
                    uint8_t **normalized, size_t *normalized_bytes);

#endif
