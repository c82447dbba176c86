/* Bump allocation for objects that die together (a graph, a parsed file). Blocks are 64-byte aligned where
 * asked; everything is zeroed. Invariant: pointers stay valid until the arena is freed. Not thread-safe. */
#ifndef TRD_BASE_ARENA_H
#define TRD_BASE_ARENA_H

#include <stddef.h>

typedef struct trd__arena trd__arena;

trd__arena *trd__arena_create(void);     /* NULL: out of memory */
void trd__arena_free(trd__arena *arena); /* NULL is fine */
/* Zeroed, 16-byte aligned; NULL: out of memory. */
void *trd__arena_alloc(trd__arena *arena, size_t count, size_t size);
char *trd__arena_strdup(trd__arena *arena, const char *text);
char *trd__arena_strndup(trd__arena *arena, const char *text, size_t length);
char *trd__arena_format(trd__arena *arena, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
