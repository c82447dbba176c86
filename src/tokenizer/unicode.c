/* UTF-8 validation, character classes and NFC on top of utf8proc. Invariant: a character without
 * TRD__NFC_STEP is a starter that NFC leaves alone and never joins to what precedes it, so text may be cut
 * before it. */
#include "tokenizer/unicode.h"

#include <utf8proc.h>

#include "base/alloc.h"

/* \s of the patterns is the White_Space property, which general categories do not give for the controls. */
static bool is_space(uint32_t code)
{
    return (code >= 9 && code <= 13) || code == ' ' || code == 0x85 || code == 0xa0 || code == 0x1680 ||
           (code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 || code == 0x202f ||
           code == 0x205f || code == 0x3000;
}

static uint8_t class_of(uint32_t code, utf8proc_category_t category)
{
    if (is_space(code)) return TRD__SPACE;
    switch (category) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
        return TRD__LETTER | TRD__WORD;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
        return TRD__NUMBER | TRD__WORD;
    case UTF8PROC_CATEGORY_NO:
        return TRD__NUMBER;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_PC:
        return TRD__OTHER | TRD__WORD;
    default:
        return TRD__OTHER;
    }
}

/* Conservative: true for everything that can change, or that can join the character before it. */
static bool nfc_may_change(uint32_t code, const utf8proc_property_t *property)
{
    if (property->combining_class != 0) return true;
    if (code >= 0x1161 && code <= 0x11ff) return true; /* Hangul vowels and finals join the initial */
    if (property->comb_index != UINT16_MAX && (property->comb_index & 0x8000))
        return true; /* second of a pair */
    if (property->decomp_seqindex == UINT16_MAX || property->decomp_type != 0) return false;
    utf8proc_int32_t parts[16];
    int boundary = 0;
    utf8proc_ssize_t count = utf8proc_decompose_char((utf8proc_int32_t)code, parts, 16,
                                                     UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, &boundary);
    if (count <= 0 || count > 16) return true;
    count = utf8proc_normalize_utf32(parts, count, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    return count != 1 || parts[0] != (utf8proc_int32_t)code;
}

uint8_t trd__unicode_lookup(uint32_t code)
{
    const utf8proc_property_t *property = utf8proc_get_property((utf8proc_int32_t)code);
    uint8_t class = class_of(code, (utf8proc_category_t)property->category);
    return nfc_may_change(code, property) ? (uint8_t)(class | TRD__NFC_STEP) : class;
}

void trd__unicode_init(trd__unicode *unicode)
{
    for (uint32_t code = 0; code < TRD__PLANE; code++) unicode->basic[code] = trd__unicode_lookup(code);
}

/* Bytes of the valid sequence at text, 0 if there is none (RFC 3629: no overlong forms, no surrogates). */
static size_t sequence(const uint8_t *text, size_t bytes)
{
    uint8_t c = text[0];
    if (c < 0x80) return 1;
    size_t length = c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    if (c < 0xc2 || c > 0xf4 || bytes < length) return 0;
    for (size_t i = 1; i < length; i++)
        if ((text[i] & 0xc0) != 0x80) return 0;
    if ((c == 0xe0 && text[1] < 0xa0) || (c == 0xed && text[1] > 0x9f)) return 0;
    if ((c == 0xf0 && text[1] < 0x90) || (c == 0xf4 && text[1] > 0x8f)) return 0;
    return length;
}

size_t trd__utf8_valid(const uint8_t *text, size_t bytes)
{
    size_t at = 0;
    while (at < bytes) {
        uint64_t eight;
        if (bytes - at >= 8) {
            memcpy(&eight, text + at, 8);
            if (!(eight & 0x8080808080808080u)) {
                at += 8;
                continue;
            }
        }
        size_t length = sequence(text + at, bytes - at);
        if (!length) break;
        at += length;
    }
    return at;
}

size_t trd__utf8_before(const uint8_t *text, size_t at)
{
    size_t start = at - 1;
    while (start > 0 && at - start < 4 && (text[start] & 0xc0) == 0x80) start--;
    return trd__utf8_valid(text + start, at - start) == at - start ? start : at - 1;
}

unsigned trd__utf8_encode(uint32_t code, char *text)
{
    return (unsigned)utf8proc_encode_char((utf8proc_int32_t)code, (utf8proc_uint8_t *)text);
}

/* End of the run that starts at `at` and must be normalized as one: its first character and every following
 * one that may join it. *at is moved to the start of the next such run, bytes when there is none. */
static size_t next_run(const trd__unicode *unicode, const uint8_t *text, size_t bytes, size_t *at)
{
    size_t start = *at, i = *at;
    unsigned length;
    for (; i < bytes; i += length) {
        if (text[i] < 0x80) {
            length = 1;
            start = i;
            continue;
        }
        if (trd__class_at(unicode, text + i, &length) & TRD__NFC_STEP) break;
        start = i;
    }
    *at = i < bytes ? start : bytes;
    for (; i < bytes; i += length)
        if (!(trd__class_at(unicode, text + i, &length) & TRD__NFC_STEP)) break;
    return i;
}

/* Normalizes one run onto the end of out, which has room for 3 bytes a byte (NFC's largest growth). */
static trd_status normalize_run(const uint8_t *text, size_t bytes, uint8_t *out, size_t *out_bytes)
{
    utf8proc_int32_t small[64], *codes = small;
    utf8proc_ssize_t room = 64;
    utf8proc_ssize_t count =
        utf8proc_decompose(text, (utf8proc_ssize_t)bytes, codes, room, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (count >= room) {
        room = count + 1;
        if (!(codes = trd__alloc((size_t)room, sizeof *codes))) return TRD_NO_MEMORY;
        count = utf8proc_decompose(text, (utf8proc_ssize_t)bytes, codes, room,
                                   UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    }
    if (count >= 0) count = utf8proc_normalize_utf32(codes, count, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    for (utf8proc_ssize_t i = 0; i < count; i++)
        *out_bytes += (size_t)utf8proc_encode_char(codes[i], out + *out_bytes);
    if (codes != small) trd__free(codes);
    if (count < 0) return trd__fail(TRD_INTERNAL, "normalizing text to NFC: %s", utf8proc_errmsg(count));
    return TRD_OK;
}

trd_status trd__nfc(const trd__unicode *unicode, const uint8_t *text, size_t bytes, bool *changed,
                    uint8_t **normalized, size_t *normalized_bytes)
{
    size_t done = 0, at = 0, used = 0;
    uint8_t *out = NULL;
    *changed = false;
    for (;;) {
        size_t end = next_run(unicode, text, bytes, &at);
        if (at == bytes) break;
        if (!out && !(out = trd__alloc(bytes, 3))) return TRD_NO_MEMORY;
        memcpy(out + used, text + done, at - done);
        used += at - done;
        trd_status status = normalize_run(text + at, end - at, out, &used);
        if (status) {
            trd__free(out);
            return status;
        }
        done = at = end;
    }
    if (!out) return TRD_OK;
    memcpy(out + used, text + done, bytes - done);
    *changed = true;
    *normalized = out;
    *normalized_bytes = used + bytes - done;
    return TRD_OK;
}
