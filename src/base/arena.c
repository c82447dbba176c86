/* Arena of chained chunks. Chunks double up to 1 MiB; a large request gets a chunk of its own. */
#include "base/arena.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

enum { FIRST_CHUNK = 4096, LAST_CHUNK = 1 << 20, ALIGN = 16 };

typedef struct chunk {
    struct chunk *next;
    size_t used;
    size_t capacity;
    size_t padding; /* keeps data 16-byte aligned */
    unsigned char data[];
} chunk;

struct trd__arena {
    chunk *chunks;
    size_t next_capacity;
};

trd__arena *trd__arena_create(void)
{
    trd__arena *arena = trd__calloc(1, sizeof *arena);
    if (arena) arena->next_capacity = FIRST_CHUNK;
    return arena;
}

void trd__arena_free(trd__arena *arena)
{
    if (!arena) return;
    for (chunk *c = arena->chunks; c;) {
        chunk *next = c->next;
        trd__free(c);
        c = next;
    }
    trd__free(arena);
}

static chunk *grow(trd__arena *arena, size_t bytes)
{
    size_t capacity = arena->next_capacity;
    if (capacity < bytes) capacity = bytes;
    if (capacity > SIZE_MAX - sizeof(chunk)) return trd__alloc(SIZE_MAX, 2);
    chunk *c = trd__alloc(1, sizeof *c + capacity);
    if (!c) return NULL;
    *c = (chunk){.next = arena->chunks, .capacity = capacity};
    arena->chunks = c;
    if (arena->next_capacity < LAST_CHUNK) arena->next_capacity *= 2;
    return c;
}

void *trd__arena_alloc(trd__arena *arena, size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > SIZE_MAX - ALIGN)
        return trd__alloc(SIZE_MAX, 2);
    bytes = (bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    chunk *c = arena->chunks;
    if (!c || c->capacity - c->used < bytes) c = grow(arena, bytes);
    if (!c) return NULL;
    void *block = c->data + c->used;
    c->used += bytes;
    return memset(block, 0, bytes);
}

char *trd__arena_strndup(trd__arena *arena, const char *text, size_t length)
{
    char *copy = trd__arena_alloc(arena, length + 1, 1);
    if (copy) memcpy(copy, text, length);
    return copy;
}

char *trd__arena_strdup(trd__arena *arena, const char *text)
{
    return trd__arena_strndup(arena, text, strlen(text));
}

char *trd__arena_format(trd__arena *arena, const char *format, ...)
{
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    char *text = length < 0 ? NULL : trd__arena_alloc(arena, (size_t)length + 1, 1);
    if (text) vsnprintf(text, (size_t)length + 1, format, again);
    va_end(again);
    va_end(arguments);
    return text;
}
