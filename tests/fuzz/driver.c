/* A fuzzer for any compiler: driver RUNS SEED FILE... feeds the target each file as it is, then RUNS
 * mutations of them (20 times as many at night). Everything follows from the seed, so a failure repeats;
 * "--run I" does that one mutation only, under a debugger say. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "fuzz/fuzz.h"
#include "support/nightly.h"

enum { MAX_BYTES = 1 << 16, MAX_SEEDS = 64, MAX_EDITS = 6 };

typedef struct input {
    uint8_t data[MAX_BYTES];
    size_t bytes;
} input;

static input seeds[MAX_SEEDS];

static void load(const char *path, input *seed)
{
    FILE *file = fopen(path, "rb");
    if (!file) {
        fprintf(stderr, "cannot open %s\n", path);
        exit(2);
    }
    seed->bytes = fread(seed->data, 1, MAX_BYTES, file);
    fclose(file);
}

/* Overwrites up to width bytes with a number that parsers get wrong. */
static void put_number(input *in, uint64_t choice, size_t at, size_t width)
{
    static const uint64_t numbers[] = {0,
                                       1,
                                       0x7f,
                                       0x80,
                                       0xff,
                                       0xffff,
                                       0x7fffffff,
                                       0x80000000,
                                       0xffffffff,
                                       UINT64_C(0x7fffffffffffffff),
                                       UINT64_C(0x8000000000000000),
                                       UINT64_MAX};
    uint64_t number = numbers[choice % (sizeof numbers / sizeof *numbers)];
    for (size_t i = 0; i < width && at + i < in->bytes; i++) in->data[at + i] = (uint8_t)(number >> 8 * i);
}

static void edit(input *in, uint64_t kind, uint64_t where, uint64_t what)
{
    if (in->bytes == 0) return;
    /* Headers are where the decisions are: every other edit is near the start. */
    size_t at = (size_t)(where >> 1) % (where & 1 && in->bytes > 512 ? 512 : in->bytes),
           room = MAX_BYTES - in->bytes;
    size_t length = (size_t)(what >> 32) % 64 + 1;
    switch (kind % 7) {
    case 0:
        in->data[at] ^= (uint8_t)(1u << what % 8);
        break;
    case 1:
        in->data[at] = (uint8_t)what;
        break;
    case 2:
        put_number(in, what, at, 8);
        break;
    case 3:
        put_number(in, what, at, 4);
        break;
    case 4:
        in->bytes = at;
        break;
    case 5: /* removes a piece */
        if (length > in->bytes - at) length = in->bytes - at;
        memmove(in->data + at, in->data + at + length, in->bytes - at - length);
        in->bytes -= length;
        break;
    default: /* repeats a piece */
        if (length > in->bytes - at) length = in->bytes - at;
        if (length > room) length = room;
        memmove(in->data + at + length, in->data + at, in->bytes - at);
        in->bytes += length;
    }
}

static void run(uint64_t seed, uint64_t i, size_t seed_count)
{
    static input in;
    uint64_t draw = 0, edits = trd__rng_below(seed, i, draw++, MAX_EDITS) + 1;
    in = seeds[trd__rng_below(seed, i, draw++, seed_count)];
    for (uint64_t e = 0; e < edits; e++, draw += 3)
        edit(&in, trd__rng_u64(seed, i, draw), trd__rng_u64(seed, i, draw + 1),
             trd__rng_u64(seed, i, draw + 2));
    /* An exact copy on the heap, so that a sanitizer sees the first byte read beyond it. */
    uint8_t *copy = malloc(in.bytes ? in.bytes : 1);
    fuzz_require(copy != NULL, "memory for a copy");
    memcpy(copy, in.data, in.bytes);
    LLVMFuzzerTestOneInput(copy, in.bytes);
    free(copy);
}

int main(int argc, char **argv)
{
    const char *only = argc > 2 && strcmp(argv[1], "--run") == 0 ? argv[2] : NULL;
    char **rest = argv + (only ? 3 : 1);
    int left = argc - (only ? 3 : 1);
    if (left < 3 || left - 2 > MAX_SEEDS) {
        fprintf(stderr, "usage: %s [--run I] RUNS SEED FILE... (at most %d files)\n", argv[0], MAX_SEEDS);
        return 2;
    }
    uint64_t runs = nightly_times(strtoull(rest[0], NULL, 10), 20), seed = strtoull(rest[1], NULL, 10);
    size_t count = (size_t)left - 2;
    for (size_t i = 0; i < count; i++) {
        load(rest[2 + i], &seeds[i]);
        if (!only) LLVMFuzzerTestOneInput(seeds[i].data, seeds[i].bytes);
    }
    if (only) run(seed, strtoull(only, NULL, 10), count);
    for (uint64_t i = 0; !only && i < runs; i++) run(seed, i, count);
    printf("%llu inputs of %zu files\n", only ? 1ull : (unsigned long long)runs, count);
    return 0;
}
