/* Printable bytes of Latin-1 stand for themselves, the other 68 for U+0100 onwards in order. */
#include "tokenizer/byte_level.h"

#include "tokenizer/unicode.h"

void trd__byte_level_init(trd__byte_level *map)
{
    uint16_t next = 0x100;
    for (size_t i = 0; i < sizeof map->byte_of / sizeof map->byte_of[0]; i++) map->byte_of[i] = -1;
    for (int byte = 0; byte < 256; byte++) {
        bool printable = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
        uint16_t code = printable ? (uint16_t)byte : next++;
        map->code_of[byte] = code;
        map->byte_of[code] = (int16_t)byte;
    }
}

bool trd__byte_level_decode(const trd__byte_level *map, const char *token, size_t length, uint8_t *out,
                            size_t *out_length)
{
    size_t used = 0;
    const uint8_t *text = (const uint8_t *)token;
    for (size_t i = 0; i < length;) {
        uint32_t code = text[i];
        unsigned step = 1;
        if (code >= 0x80) {
            /* The whole alphabet lies below U+0144: one or two bytes. */
            if (code < 0xc2 || code > 0xc5 || i + 1 == length || (text[i + 1] & 0xc0) != 0x80) return false;
            code = trd__utf8_decode(text + i, &step);
            if (code >= sizeof map->byte_of / sizeof map->byte_of[0]) return false;
        }
        if (map->byte_of[code] < 0) return false;
        out[used++] = (uint8_t)map->byte_of[code];
        i += step;
    }
    *out_length = used;
    return true;
}

size_t trd__byte_level_encode(const trd__byte_level *map, const uint8_t *bytes, size_t length, char *out)
{
    size_t used = 0;
    for (size_t i = 0; i < length; i++) used += trd__utf8_encode(map->code_of[bytes[i]], out + used);
    return used;
}
