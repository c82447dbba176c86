/* Out of memory anywhere: building, differentiating and rewriting a program fails with TRD_NO_MEMORY at every
 * single allocation, leaks nothing, and works when the memory is there. */
#include <stdlib.h>

#include "autodiff/autodiff.h"
#include "graph/fixture.h"

#ifdef TRD_SANITIZED
int main(void)
{
    return 0; /* the sanitizer owns the allocator */
}
#else
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *block, size_t bytes);
void __libc_free(void *block);

static struct {
    bool armed;
    long until_failure; /* allocations that still succeed */
    long live;
} heap;

static bool fails(void)
{
    return heap.armed && heap.until_failure-- <= 0;
}

static void *counted(void *block)
{
    if (heap.armed && block) heap.live++;
    return block;
}

void *malloc(size_t bytes)
{
    return fails() ? NULL : counted(__libc_malloc(bytes));
}

void *calloc(size_t count, size_t size)
{
    return fails() ? NULL : counted(__libc_calloc(count, size));
}

void *realloc(void *block, size_t bytes)
{
    if (fails()) return NULL;
    return block ? __libc_realloc(block, bytes) : counted(__libc_malloc(bytes));
}

void free(void *block)
{
    if (heap.armed && block) heap.live--;
    __libc_free(block);
}

static trd_value model(trd__program *p, trd_value w)
{
    trd_builder *b = p->builder;
    trd_value x = fixture_input(p, 2);
    for (int i = 0; i < 20; i++) {
        x = trd_tanh(b, trd_matmul(b, x, w, false, false, TRD_F32));
        x = trd_layer_boundary(b, trd_name(b, x, "layers.%d", i));
    }
    return trd_sum_all(b, trd_square(b, x));
}

static trd_status rewrite(trd__program *p)
{
    trd__program *copy = NULL;
    TRD_TRY(trd__cse(p));
    TRD_TRY(trd__remat(p, TRD__REMAT_FULL));
    TRD_TRY(trd__program_copy(p, &copy));
    trd_status status = trd__fuse_accumulate(copy);
    if (status == TRD_OK) status = trd__dce(copy);
    if (status == TRD_OK) status = trd__verify(copy);
    trd__program_free(copy);
    return status;
}

/* The fixture without its assertions, which may not run while allocations fail. */
static trd_status everything(const trd__entry *entries)
{
    trd__program *p = NULL;
    TRD_TRY(trd__program_create("no memory", &p));
    trd__program_slot(p, "inputs", TRD__READ, entries, 3);
    trd__program_slot(p, "results", TRD__WRITE, entries, 3);
    trd_value w = trd__program_input(p, 0, 0);
    trd__gradient g = {.of = w, .accumulator = trd__program_input(p, 0, 1)};
    trd_value loss = model(p, w);
    trd_status status = trd_builder_status(p->builder);
    if (status == TRD_OK) status = trd__autodiff(p->builder, loss, &g, 1);
    if (status == TRD_OK) trd__program_output(p, 1, 0, g.result);
    if (status == TRD_OK) status = rewrite(p);
    trd__program_free(p);
    return status;
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    const trd__entry entries[3] = {{"a", TRD_F32, TRD__SHAPE(4, 4), {"embed", NULL}},
                                   {"b", TRD_F32, TRD__SHAPE(4, 4), {NULL}},
                                   {"c", TRD_F32, TRD__SHAPE(4, 4), {NULL}}};
    trd_status status = TRD_NO_MEMORY;
    long n = 0;
    for (; n < 100000 && status != TRD_OK; n++) {
        heap.live = 0;
        heap.until_failure = n;
        heap.armed = true;
        status = everything(entries);
        heap.armed = false;
        if (status != TRD_OK && status != TRD_NO_MEMORY)
            fail_msg("allocation %ld: status %d: %s", n, (int)status, trd_error_message());
        if (status == TRD_NO_MEMORY && !strstr(trd_error_message(), "memory"))
            fail_msg("allocation %ld: \"%s\"", n, trd_error_message());
        if (heap.live != 0) fail_msg("allocation %ld: %ld blocks leaked", n, heap.live);
    }
    assert_int_equal(status, TRD_OK);
    assert_true(n > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_allocation_may_fail)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
