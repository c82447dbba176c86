/* Out of memory anywhere: building, differentiating and rewriting a program fails with TRD_NO_MEMORY at every
 * single allocation, leaks nothing, and works when the memory is there. */
#include <stdlib.h>

#include "autodiff/autodiff.h"
#include "graph/fixture.h"

#include "support/failing_heap.h"

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

static void body(trd_builder *b, const trd_iteration *in, trd_value *out, void *user)
{
    (void)user;
    trd_value h = trd_mul(b, in->carries[0], in->stacked[0]);
    out[0] = trd_tanh(b, trd_add(b, h, trd_exp(b, in->shared[0]))); /* the same in every iteration */
    out[1] = trd_name(b, trd_exp(b, out[0]), "made");
}

/* The rows of w one after the other, in a loop. */
static trd_value repeated_model(trd__program *p, trd_value w)
{
    trd_value x = fixture_input(p, 2), shared = fixture_input(p, 1), results[2];
    trd_repeat(p->builder,
               &(trd_repeat_options){.count = 4,
                                     .carries = &x,
                                     .carry_count = 1,
                                     .shared = &shared,
                                     .shared_count = 1,
                                     .stacked = &w,
                                     .stacked_count = 1,
                                     .made_count = 1,
                                     .body = body},
               results);
    trd_value made = trd_sum_all(p->builder, results[1]);
    return trd_add(p->builder, trd_sum_all(p->builder, results[0]), made);
}

static bool keep_none(const trd_node *n, void *user)
{
    (void)n, (void)user;
    return false;
}

static trd_status rewrite(trd__program *p, bool unroll)
{
    trd__program *copy = NULL;
    TRD_TRY(trd__cse(p));
    TRD_TRY(trd__remat(p, trd__remat_everywhere(TRD__REMAT_FULL)));
    TRD_TRY(trd__program_copy(p, &copy));
    trd_status status = trd__fuse_accumulate(copy);
    if (status == TRD_OK) status = trd__dce(copy);
    if (status == TRD_OK && unroll) status = trd__expand(copy, keep_none, NULL);
    if (status == TRD_OK) status = trd__verify(copy);
    trd__program_free(copy);
    return status;
}

typedef struct subject {
    trd__entry entries[3];
    trd_value (*model)(trd__program *p, trd_value w);
    bool unroll;
} subject;

/* The fixture without its assertions, which may not run while allocations fail. */
static trd_status everything(void *context)
{
    const subject *s = context;
    const trd__entry *entries = s->entries;
    trd__program *p = NULL;
    TRD_TRY(trd__program_create("no memory", &p));
    trd__program_slot(p, "inputs", TRD__READ, entries, 3);
    trd__program_slot(p, "results", TRD__WRITE, entries, 3);
    trd_value w = trd__program_input(p, 0, 0);
    trd__gradient g = {.of = w, .accumulator = trd__program_input(p, 0, 1)};
    trd_value loss = s->model(p, w);
    trd_status status = trd_builder_status(p->builder);
    if (status == TRD_OK) status = trd__autodiff(p->builder, loss, &g, 1);
    if (status == TRD_OK) trd__program_output(p, 1, 0, g.result);
    if (status == TRD_OK) status = rewrite(p, s->unroll);
    trd__program_free(p);
    return status;
}

static void message_says_so(trd_status status)
{
    if (status == TRD_NO_MEMORY && !strstr(trd_error_message(), "memory"))
        fail_msg("\"%s\" does not say so", trd_error_message());
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    subject s = {.entries = {{.name = "a", .dtype = TRD_F32, .shape = TRD__SHAPE(4, 4), .axes = {"embed"}},
                             {.name = "b", .dtype = TRD_F32, .shape = TRD__SHAPE(4, 4)},
                             {.name = "c", .dtype = TRD_F32, .shape = TRD__SHAPE(4, 4)}},
                 .model = model};
    assert_true(heap_fail_each("graph", everything, &s, true, 1, message_says_so) >= 20);
    s.model = repeated_model;
    assert_true(heap_fail_each("repeat", everything, &s, true, 1, message_says_so) >= 20);
    s.unroll = true;
    assert_true(heap_fail_each("unrolled", everything, &s, true, 1, message_says_so) >= 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_allocation_may_fail)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
