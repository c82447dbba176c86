/* The byte-level alphabet of GPT-2: every byte stands for one printable character, so that a vocabulary of
 * texts can hold any bytes. Radford et al. 2019, section 2.2. */
#ifndef TRD_TOKENIZER_BYTE_LEVEL_H
#define TRD_TOKENIZER_BYTE_LEVEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct trd__byte_level {
    uint16_t code_of[256]; /* code point of each byte */
    int16_t byte_of[324];  /* byte of each code point, -1: none */
} trd__byte_level;

void trd__byte_level_init(trd__byte_level *map);

/* Bytes that token (UTF-8, length bytes) stands for into out (room for length bytes); false, and out of no
 * meaning, if it holds a character outside the alphabet. */
bool trd__byte_level_decode(const trd__byte_level *map, const char *token, size_t length, uint8_t *out,
                            size_t *out_length);

/* The reverse: out has room for 2 * length bytes. Returns the bytes written. */
size_t trd__byte_level_encode(const trd__byte_level *map, const uint8_t *bytes, size_t length, char *out);

#endif
