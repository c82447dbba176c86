/* Graphs inside graphs: what the builder of a repeat refuses, and that every pass goes through bodies. */
#include "graph/fixture.h"

#include "ops/repeat.h"

enum { COUNT = 3 };

static trd_value constant(trd_builder *b, double value)
{
    return trd_constant_fill(b, TRD_F32, TRD__SHAPE(4, 4), value);
}

/* Where the body of a case finds what it should not use, and what it leaves out. */
typedef struct fault {
    trd_value outside;
    bool no_carry, no_made, wrong_shape;
} fault;

static void body(trd_builder *b, const trd_iteration *in, trd_value *out, void *user)
{
    const fault *f = user;
    trd_value h = trd_swiglu(b, in->carries[0], in->shared[0]);
    trd_exp(b, h); /* for nothing */
    if (!trd_is_null(f->outside)) h = trd_add(b, h, f->outside);
    if (!f->no_carry) out[0] = trd_matmul(b, trd_mul(b, h, h), in->stacked[0], false, false, TRD_F32);
    if (f->wrong_shape) out[0] = trd_reshape(b, out[0], TRD__SHAPE(16));
    if (!f->no_made) out[1] = h;
}

typedef struct sizes {
    int64_t count, rows;
    bool null_carry;
} sizes;

/* A program with one repeat; its results are not bound. */
static trd__program *build(fault *f, sizes size, trd_value *results)
{
    trd__program *p = fixture_program();
    trd_builder *b = p->builder;
    trd_value x = fixture_input(p, 0), shared = fixture_input(p, 1);
    trd_value stacked = trd_broadcast(b, fixture_input(p, 2), TRD__SHAPE(size.rows, 4, 4));
    if (size.null_carry) x = (trd_value){NULL, 0};
    trd_repeat(b,
               &(trd_repeat_options){.count = size.count,
                                     .carries = &x,
                                     .carry_count = 1,
                                     .shared = &shared,
                                     .shared_count = 1,
                                     .stacked = &stacked,
                                     .stacked_count = 1,
                                     .made_count = 1,
                                     .body = body,
                                     .user = f},
               results);
    return p;
}

static trd__program *build_sound(void)
{
    fault none = {.no_made = false};
    trd_value results[2];
    trd__program *p = build(&none, (sizes){COUNT, COUNT, false}, results);
    fixture_output(p, 0, results[0]);
    fixture_output(p, 1,
                   trd_reshape(p->builder, trd_slice(p->builder, results[1], 0, 1, 2), TRD__SHAPE(4, 4)));
    assert_valid(p);
    return p;
}

static trd_node *find_node(const trd__program *p, const char *name)
{
    for (int i = 0; i < p->builder->graph.node_count; i++)
        if (strcmp(p->builder->graph.nodes[i]->op->name, name) == 0) return p->builder->graph.nodes[i];
    fail_msg("no %s", name);
    return NULL;
}

static trd__program *body_of(const trd__program *p)
{
    return find_node(p, "repeat")->bodies[0];
}

static void refuses(fault *f, sizes size, const char *message)
{
    trd_value results[2];
    trd__program *p = build(f, size, results);
    assert_int_not_equal(trd_builder_status(p->builder), TRD_OK);
    if (!strstr(trd_error_message(), message)) fail_msg("%s", trd_error_message());
    assert_true(trd_is_null(results[0]) && trd_is_null(results[1]));
    trd__program_free(p);
}

static void broken_use_is_refused(void **state)
{
    (void)state;
    const sizes sound = {COUNT, COUNT, false};
    refuses(&(fault){.no_made = false}, (sizes){0, COUNT, false}, "at least 1 iteration");
    refuses(&(fault){.no_made = false}, (sizes){-1, COUNT, false}, "at least 1 iteration");
    refuses(&(fault){.no_made = false}, (sizes){COUNT, 2, false}, "a leading axis of 3 iterations, found 2");
    refuses(&(fault){.no_made = false}, (sizes){COUNT, COUNT, true}, "carry operand 0 expected a value");
    refuses(&(fault){.no_carry = true}, sound, "expected a value, found null");
    refuses(&(fault){.no_made = true}, sound, "made value 0 expected a value");
    refuses(&(fault){.wrong_shape = true}, sound, "expected (4, 4) float32, found (16) float32");
}

static void counts_below_0_and_no_body_are_refused(void **state)
{
    (void)state;
    const trd_repeat_options cases[] = {
        {.count = COUNT, .carry_count = -1, .body = body},
        {.count = COUNT, .shared_count = -1, .body = body},
        {.count = COUNT, .stacked_count = -1, .body = body},
        {.count = COUNT, .made_count = -1, .body = body},
        {.count = COUNT, .body = NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        trd_value none;
        trd__program *p = fixture_program();
        trd_repeat(p->builder, &cases[i], &none);
        assert_int_equal(trd_builder_status(p->builder), TRD_INVALID_ARGUMENT);
        if (!strstr(trd_error_message(), "expected a body and counts of 0 or more"))
            fail_msg("%s", trd_error_message());
        trd__program_free(p);
    }
}

static void a_value_from_around_a_body_is_refused(void **state)
{
    (void)state;
    trd__program *around = fixture_program();
    fault f = {.outside = constant(around->builder, 1)};
    refuses(&f, (sizes){COUNT, COUNT, false}, "carries, shared or stacked operands");
    trd__program_free(around);
}

static void a_failed_builder_asks_for_no_body(void **state)
{
    (void)state;
    trd__program *p = fixture_program();
    trd_value x = fixture_input(p, 0), result = x;
    trd_builder_fail(p->builder, TRD_INVALID_ARGUMENT, "before");
    trd_repeat(p->builder, &(trd_repeat_options){.count = 1, .carries = &x, .carry_count = 1, .body = body},
               &result);
    assert_true(trd_is_null(result));
    assert_int_equal(trd_builder_status(p->builder), TRD_INVALID_ARGUMENT);
    assert_string_equal(trd_error_message(), "before");
    trd__program_free(p);
}

static void verify_looks_into_bodies(void **state)
{
    (void)state;
    trd__program *p = build_sound();
    trd_graph *inside = &body_of(p)->builder->graph;
    trd_node *first = inside->nodes[0];
    inside->nodes[0] = inside->nodes[1];
    assert_int_equal(trd__verify(p), TRD_INTERNAL);
    inside->nodes[0] = first;
    assert_valid(p);
    trd__program_free(p);
}

static void dce_and_cse_clean_bodies(void **state)
{
    (void)state;
    trd__program *p = build_sound();
    trd__program *inside = body_of(p);
    const trd_node *once = find_node(inside, "swiglu");
    inside->outputs[1].value = trd_swiglu(inside->builder, once->inputs[0], once->inputs[1]);
    assert_int_equal(count_op(inside, "exp"), 1);
    assert_int_equal(count_op(inside, "swiglu"), 2);
    assert_int_equal(trd__cse(p), TRD_OK);
    assert_int_equal(count_op(body_of(p), "swiglu"), 1);
    assert_int_equal(trd__dce(p), TRD_OK);
    assert_int_equal(count_op(body_of(p), "exp"), 0);
    assert_valid(p);
    trd__program_free(p);
}

static bool keep_all_but(const trd_node *n, void *user)
{
    return strcmp(n->op->name, user) != 0;
}

static void expand_goes_into_bodies(void **state)
{
    (void)state;
    trd__program *p = build_sound();
    assert_int_equal(trd__expand(p, keep_all_but, "swiglu"), TRD_OK);
    assert_int_equal(count_op(body_of(p), "swiglu"), 0);
    assert_true(count_op(body_of(p), "sigmoid") > 0);
    assert_valid(p);
    trd__program_free(p);
}

static void expanding_unrolls(void **state)
{
    (void)state;
    trd__program *p = build_sound();
    assert_int_equal(trd__expand(p, keep_all_but, "repeat"), TRD_OK);
    assert_int_equal(count_op(p, "repeat"), 0);
    assert_int_equal(count_op(p, "matmul"), COUNT);
    assert_valid(p);
    trd__program_free(p);
}

static void remat_computes_no_repeat_again(void **state)
{
    (void)state;
    fault none = {.no_made = false};
    trd_value results[2];
    trd__program *p = build(&none, (sizes){COUNT, COUNT, false}, results);
    trd_graph *graph = &p->builder->graph;
    trd_value last = trd_layer_boundary(p->builder, trd_square(p->builder, trd_exp(p->builder, results[0])));
    for (int i = 0; i < graph->node_count; i++) graph->nodes[i]->forward = true;
    fixture_output(p, 0, trd_mul(p->builder, last, trd_exp(p->builder, results[0])));
    assert_int_equal(trd__remat(p, trd__remat_everywhere(TRD__REMAT_FULL)), TRD_OK);
    assert_int_equal(count_op(p, "repeat"), 1);
    assert_int_equal(count_recomputed(p, "repeat"), 0);
    trd__program_free(p);
}

static void equal_repeats_stay_apart(void **state)
{
    (void)state;
    fault none = {.no_made = false};
    trd_value first[2], second[2];
    trd__program *p = build(&none, (sizes){COUNT, COUNT, false}, first);
    trd_value x = fixture_input(p, 0), shared = fixture_input(p, 1),
              stacked = find_node(p, "repeat")->inputs[2];
    trd_repeat(p->builder,
               &(trd_repeat_options){.count = COUNT,
                                     .carries = &x,
                                     .carry_count = 1,
                                     .shared = &shared,
                                     .shared_count = 1,
                                     .stacked = &stacked,
                                     .stacked_count = 1,
                                     .made_count = 1,
                                     .body = body,
                                     .user = &none},
               second);
    fixture_output(p, 0, first[0]);
    fixture_output(p, 1, second[0]);
    assert_int_equal(trd__cse(p), TRD_OK);
    assert_int_equal(count_op(p, "repeat"), 2);
    trd__program_free(p);
}

static void a_copy_has_bodies_of_its_own(void **state)
{
    (void)state;
    trd__program *p = build_sound(), *copy;
    assert_int_equal(trd__program_copy(p, &copy), TRD_OK);
    char *before = program_text(p), *text = program_text(copy);
    assert_string_equal(before, text);
    assert_true(trd__program_fingerprint(p) == trd__program_fingerprint(copy));
    assert_ptr_not_equal(body_of(p), body_of(copy));
    assert_int_equal(trd__cse(copy), TRD_OK);
    assert_int_equal(trd__dce(copy), TRD_OK);
    free(text);
    text = program_text(p);
    assert_string_equal(before, text);
    assert_true(trd__program_fingerprint(p) != trd__program_fingerprint(copy));
    free(text);
    free(before);
    trd__program_free(p);
    assert_valid(copy);
    trd__program_free(copy);
}

static void the_text_shows_bodies(void **state)
{
    (void)state;
    trd__program *p = build_sound();
    char *text = program_text(p);
    assert_non_null(strstr(text, "= repeat(%0, %1, %3) {count=3 carry=1 shared=1 stacked=1 made=1} : "));
    assert_non_null(strstr(text, "\n    program body: "));
    assert_non_null(strstr(text, "\n      carry.x0 <- %"));
    assert_non_null(strstr(text, "\n      made.made0 <- %"));
    free(text);
    trd__program_free(p);
}

static void flops_count_every_iteration(void **state)
{
    (void)state;
    trd__program *p = build_sound();
    assert_true(trd__program_flops(p) == COUNT * 2.0 * 4 * 4 * 4);
    trd__program_free(p);
}

enum { MANY = 100 };

static void annotate_outside(trd_builder *b, const trd_iteration *in, trd_value *out, void *user)
{
    const trd_value *outside = user;
    trd_name(b, *outside, "renamed");
    trd_axes(b, *outside, (const char *const[]){"embed", "mlp"});
    trd_layer_boundary(b, *outside);
    out[0] = trd_exp(b, in->carries[0]);
}

/* Its number is beyond the body's last node. */
static void a_body_annotates_no_value_from_around_it(void **state)
{
    (void)state;
    trd__program *p = fixture_program();
    trd_value outside = fixture_input(p, 0), result;
    for (int i = 0; i < MANY; i++) outside = trd_exp(p->builder, outside);
    trd_name(p->builder, outside, "named");
    trd_repeat(p->builder,
               &(trd_repeat_options){.count = COUNT,
                                     .carries = &outside,
                                     .carry_count = 1,
                                     .body = annotate_outside,
                                     .user = &outside},
               &result);
    assert_int_equal(trd_builder_status(p->builder), TRD_OK);
    assert_string_equal(outside.node->name, "named");
    assert_null(outside.node->results[0].axes[0]);
    assert_false(outside.node->layer_boundary);
    trd__program_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(broken_use_is_refused),
        cmocka_unit_test(counts_below_0_and_no_body_are_refused),
        cmocka_unit_test(a_value_from_around_a_body_is_refused),
        cmocka_unit_test(a_failed_builder_asks_for_no_body),
        cmocka_unit_test(verify_looks_into_bodies),
        cmocka_unit_test(dce_and_cse_clean_bodies),
        cmocka_unit_test(expand_goes_into_bodies),
        cmocka_unit_test(expanding_unrolls),
        cmocka_unit_test(remat_computes_no_repeat_again),
        cmocka_unit_test(equal_repeats_stay_apart),
        cmocka_unit_test(a_copy_has_bodies_of_its_own),
        cmocka_unit_test(the_text_shows_bodies),
        cmocka_unit_test(flops_count_every_iteration),
        cmocka_unit_test(a_body_annotates_no_value_from_around_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
