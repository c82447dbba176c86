/* Counts of heap allocations in this process, told apart by who asked: this program's own code, or the
 * libraries it uses (the product library above all). Counting stands in front of the C allocator and of mmap.
 */
#ifndef TRD_CLI_HEAP_H
#define TRD_CLI_HEAP_H

#include <stdint.h>

typedef struct cli_heap_counts {
    uint64_t ours;
    uint64_t libraries;
} cli_heap_counts;

/* Allocations since the program started; both 0 in sanitizer builds, which bring an allocator of their own.
 */
cli_heap_counts cli_heap_count(void);

#endif
