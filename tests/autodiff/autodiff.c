/* Reverse mode: chains of accumulators and their order, where gradients stop, merged nodes, and errors. What
 * the numbers are is the business of the op tests (finite differences); here the graph is looked at. */
#include "autodiff/autodiff.h"
#include "graph/fixture.h"

/* Adds the gradient outputs of inputs 0 .. count-1, accumulated into inputs 4 .. */
static trd_status differentiate(trd__program *p, trd_value loss, int count, trd__gradient *gradients)
{
    for (int i = 0; i < count; i++)
        gradients[i] = (trd__gradient){.of = fixture_input(p, i), .accumulator = fixture_input(p, 4 + i)};
    trd_status status = trd__autodiff(p->builder, loss, gradients, count);
    for (int i = 0; i < count; i++) fixture_output(p, i, gradients[i].result);
    return status;
}

static void one_contribution_is_one_accumulate(void **state)
{
    (void)state;
    trd__program *p = fixture_program();
    trd_builder *b = p->builder;
    trd_value x = fixture_input(p, 0), w = fixture_input(p, 1);
    trd_value loss = trd_sum_all(b, trd_square(b, trd_matmul(b, x, w, false, false, TRD_F32)));
    trd__gradient g[2];
    assert_int_equal(differentiate(p, loss, 2, g), TRD_OK);
    assert_int_equal(trd__dce(p), TRD_OK);
    assert_valid(p);
    assert_int_equal(count_op(p, "accumulate"), 2);
    assert_int_equal(count_op(p, "matmul"), 3);
    assert_true(trd_same(g[0].result.node->inputs[0], g[0].accumulator));
    assert_int_equal(trd__fuse_accumulate(p), TRD_OK);
    assert_valid(p);
    assert_int_equal(count_op(p, "accumulate"), 0);
    trd__program_free(p);
}

static void tied_parameter_chains_in_the_order_formed(void **state)
{
    (void)state;
    trd__program *p = fixture_program();
    trd_builder *b = p->builder;
    trd_value x = fixture_input(p, 3), w = fixture_input(p, 0);
    trd_value h = trd_matmul(b, x, w, false, false, TRD_F32); /* first use: last in the sweep */
    trd_value y = trd_matmul(b, trd_exp(b, h), w, false, true, TRD_F32);
    trd__gradient g[1];
    assert_int_equal(differentiate(p, trd_sum_all(b, y), 1, g), TRD_OK);
    assert_valid(p);
    const trd_node *second = g[0].result.node, *first = second->inputs[0].node;
    assert_string_equal(second->op->name, "accumulate");
    assert_string_equal(first->op->name, "accumulate");
    assert_true(trd_same(first->inputs[0], g[0].accumulator));
    assert_true(first->inputs[1].node->id < second->inputs[1].node->id);
    assert_int_equal(count_op(p, "add"), 0); /* never a sum first */
    trd__program_free(p);
}

static void several_uses_are_summed(void **state)
{
    (void)state;
    trd__program *p = fixture_program();
    trd_builder *b = p->builder;
    trd_value h = trd_exp(b, fixture_input(p, 0));
    trd_value loss = trd_sum_all(b, trd_mul(b, h, trd_mul(b, h, h)));
    trd__gradient g[1];
    assert_int_equal(differentiate(p, loss, 1, g), TRD_OK);
    assert_valid(p);
    assert_int_equal(count_op(p, "add"), 2); /* three cotangents of h */
    assert_int_equal(count_op(p, "accumulate"), 1);
    trd__program_free(p);
}

static void unused_parameter_keeps_its_accumulator(void **state)
{
    (void)state;
    trd__program *p = fixture_program();
    trd_builder *b = p->builder;
    trd_value zero = trd_constant_fill(b, TRD_F32, TRD__SHAPE(4, 4), 0);
    trd__gradient g[2] = {{.of = fixture_input(p, 0), .accumulator = zero},
                          {.of = fixture_input(p, 1), .accumulator = zero}};
    trd_value loss = trd_sum_all(b, trd_neg(b, fixture_input(p, 1)));
    assert_int_equal(trd__autodiff(b, loss, g, 2), TRD_OK);
    assert_true(trd_same(g[0].result, zero));
    assert_false(trd_same(g[1].result, zero));

    /* A loss that depends on no requested value at all. */
    trd__gradient none = {.of = fixture_input(p, 0), .accumulator = zero};
    assert_int_equal(trd__autodiff(b, trd_scalar(b, TRD_F32, 3), &none, 1), TRD_OK);
    assert_true(trd_same(none.result, zero));
    trd__program_free(p);
}

static void gradients_stop_where_told(void **state)
{
    (void)state;
    trd__program *p = fixture_program();
    trd_builder *b = p->builder;
    trd_value x = fixture_input(p, 0), y = fixture_input(p, 1);
    trd_value mask = trd_greater(b, x, y);
    trd_value loss = trd_sum_all(b, trd_select(b, mask, trd_stop_gradient(b, trd_exp(b, x)), trd_neg(b, y)));
    trd__gradient g[2];
    assert_int_equal(differentiate(p, loss, 2, g), TRD_OK);
    assert_true(trd_same(g[0].result, g[0].accumulator));
    assert_false(trd_same(g[1].result, g[1].accumulator));
    trd__program_free(p);
}

static void only_the_path_is_visited(void **state)
{
    (void)state;
    trd__program *p = fixture_program();
    trd_builder *b = p->builder;
    trd_value frozen = fixture_input(p, 3);
    for (int i = 0; i < 50; i++) frozen = trd_exp(b, frozen);
    trd_value loss = trd_sum_all(b, trd_mul(b, frozen, fixture_input(p, 0)));
    int before = b->graph.node_count;
    trd__gradient g[1];
    assert_int_equal(differentiate(p, loss, 1, g), TRD_OK);
    assert_true(b->graph.node_count - before < 10);
    trd__program_free(p);
}

static void an_inner_value_can_be_requested(void **state)
{
    (void)state;
    trd__program *p = fixture_program();
    trd_builder *b = p->builder;
    trd_value x = fixture_input(p, 0), h = trd_exp(b, x);
    trd__gradient g[2] = {{.of = h, .accumulator = fixture_input(p, 4)},
                          {.of = x, .accumulator = fixture_input(p, 5)}};
    assert_int_equal(trd__autodiff(b, trd_sum_all(b, trd_square(b, h)), g, 2), TRD_OK);
    assert_string_equal(g[0].result.node->op->name, "accumulate");
    assert_string_equal(g[1].result.node->op->name, "accumulate");
    assert_string_equal(g[1].result.node->inputs[1].node->op->name, "mul"); /* dh * h, not the accumulator */
    trd__program_free(p);
}

/* Ops for the tests below: "twice" merges with its gradient; "broken" gives a cotangent of the wrong type. */
static trd_status same_as_operand(const trd_node *n, trd__type *results)
{
    for (int r = 0; r < n->result_count; r++) results[r] = *trd__type_of(n->inputs[0]);
    return TRD_OK;
}
static const trd_op twice_and_grad = {
    .name = "twice_and_grad", .min_inputs = 2, .max_inputs = 2, .results = 2, .infer = same_as_operand};

static bool merge_twice(trd_builder *b, const trd_node *n, const trd_value *dy, const bool *needs,
                        trd_value *results, trd_value *dx)
{
    (void)needs;
    const trd_node *merged = trd__node_add(b, &twice_and_grad, NULL, (trd_value[]){n->inputs[0], dy[0]}, 2);
    results[0] = trd__result(merged, 0);
    dx[0] = trd__result(merged, 1);
    return true;
}
static void gradient_twice(trd_builder *b, const trd_node *n, const trd_value *dy, const bool *needs,
                           trd_value *dx)
{
    (void)n;
    (void)needs;
    dx[0] = trd_add(b, dy[0], dy[0]);
}
static const trd_op twice = {.name = "twice",
                             .min_inputs = 1,
                             .max_inputs = 1,
                             .results = 1,
                             .infer = same_as_operand,
                             .gradient = gradient_twice,
                             .merge_gradient = merge_twice};

static void gradient_broken(trd_builder *b, const trd_node *n, const trd_value *dy, const bool *needs,
                            trd_value *dx)
{
    (void)n;
    (void)needs;
    dx[0] = trd_cast(b, dy[0], TRD_BF16);
}

static void merged_node_takes_the_old_ones_place(void **state)
{
    (void)state;
    trd__program *p = fixture_program();
    trd_builder *b = p->builder;
    trd_value x = fixture_input(p, 0), weights = fixture_input(p, 3);
    trd_value y = trd__add_node(b, &twice, NULL, &x, 1);
    trd_value weighted = trd_mul(b, y, weights);
    trd_value loss = trd_neg(b, trd_sum_all(b, weighted));
    trd__gradient g[1];
    assert_int_equal(differentiate(p, loss, 1, g), TRD_OK);
    trd_value now = trd__autodiff_current(b, y);
    assert_ptr_equal(now.node->op, &twice_and_grad);
    assert_true(trd_same(trd__autodiff_current(b, weighted), weighted));
    assert_true(trd_same(weighted.node->inputs[0], now)); /* users of the old result use the new one */
    fixture_output(p, 1, now);
    assert_valid(p);
    assert_int_equal(count_op(p, "twice"), 0);
    assert_true(now.node->id < weighted.node->id);
    trd__program_free(p);
}

static void a_cotangent_that_needs_the_result_is_not_merged(void **state)
{
    (void)state;
    trd__program *p = fixture_program();
    trd_builder *b = p->builder;
    trd_value x = fixture_input(p, 0);
    trd_value y = trd__add_node(b, &twice, NULL, &x, 1);
    trd__gradient g[1];
    assert_int_equal(differentiate(p, trd_sum_all(b, trd_square(b, y)), 1, g), TRD_OK);
    assert_valid(p);
    assert_int_equal(count_op(p, "twice"), 1);
    assert_int_equal(count_op(p, "twice_and_grad"), 0);
    trd__program_free(p);
}

/* Each cotangent is the other's result: merging one is fine, merging both would be a cycle. */
static void crossed_merges_do_not_make_a_cycle(void **state)
{
    (void)state;
    trd__program *p = fixture_program();
    trd_builder *b = p->builder;
    trd_value x = fixture_input(p, 0), w = fixture_input(p, 1);
    trd_value u = trd__add_node(b, &twice, NULL, &x, 1), v = trd__add_node(b, &twice, NULL, &w, 1);
    trd__gradient g[2];
    assert_int_equal(differentiate(p, trd_sum_all(b, trd_mul(b, u, v)), 2, g), TRD_OK);
    assert_valid(p);
    assert_int_equal(count_op(p, "twice_and_grad"), 1);
    assert_int_equal(count_op(p, "twice"), 1);
    trd__program_free(p);
}

static void errors_name_the_op(void **state)
{
    (void)state;
    static const trd_op broken = {.name = "broken",
                                  .min_inputs = 1,
                                  .max_inputs = 1,
                                  .results = 1,
                                  .infer = same_as_operand,
                                  .gradient = gradient_broken};
    static const trd_op missing = {
        .name = "missing", .min_inputs = 1, .max_inputs = 1, .results = 1, .infer = same_as_operand};
    trd__gradient g[1];

    trd__program *p = fixture_program();
    trd_value x = fixture_input(p, 0);
    trd_value loss = trd_sum_all(p->builder, trd__add_node(p->builder, &broken, NULL, &x, 1));
    assert_int_equal(differentiate(p, loss, 1, g), TRD_INTERNAL);
    assert_int_equal(trd_builder_status(p->builder), TRD_INTERNAL);
    assert_non_null(strstr(trd_error_message(),
                           "broken: the gradient rule gives operand 0 a cotangent of (4, 4) "
                           "bfloat16, expected (4, 4) float32"));
    trd__program_free(p);

    p = fixture_program();
    x = fixture_input(p, 0);
    loss = trd_sum_all(p->builder, trd__add_node(p->builder, &missing, NULL, &x, 1));
    assert_int_equal(differentiate(p, loss, 1, g), TRD_UNSUPPORTED);
    assert_non_null(strstr(trd_error_message(), "missing has no gradient"));
    trd__program_free(p);

    p = fixture_program();
    assert_int_equal(differentiate(p, fixture_input(p, 0), 1, g), TRD_SHAPE);
    assert_non_null(strstr(trd_error_message(), "the loss expected a float scalar, found (4, 4) float32"));
    trd__program_free(p);
}

static void deep_graphs_are_fine(void **state)
{
    (void)state;
    enum { DEPTH = 20000 };
    trd__program *p = fixture_program();
    trd_builder *b = p->builder;
    trd_value y = fixture_input(p, 0), w = fixture_input(p, 1);
    for (int i = 0; i < DEPTH; i++) {
        y = trd_mul(b, y, w);
        if (i % 10 == 9) y = trd_layer_boundary(b, trd_exp(b, y));
    }
    trd__gradient g[2];
    assert_int_equal(differentiate(p, trd_sum_all(b, y), 2, g), TRD_OK);
    assert_int_equal(trd__cse(p), TRD_OK);
    for (int policy = TRD__REMAT_NONE; policy <= TRD__REMAT_FULL; policy++) {
        assert_int_equal(trd__remat(p, trd__remat_everywhere((trd__remat_policy)policy)), TRD_OK);
        assert_valid(p);
    }
    assert_int_equal(trd__fuse_accumulate(p), TRD_OK);
    assert_valid(p);
    trd__program_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_contribution_is_one_accumulate),
        cmocka_unit_test(tied_parameter_chains_in_the_order_formed),
        cmocka_unit_test(several_uses_are_summed),
        cmocka_unit_test(unused_parameter_keeps_its_accumulator),
        cmocka_unit_test(gradients_stop_where_told),
        cmocka_unit_test(only_the_path_is_visited),
        cmocka_unit_test(an_inner_value_can_be_requested),
        cmocka_unit_test(merged_node_takes_the_old_ones_place),
        cmocka_unit_test(a_cotangent_that_needs_the_result_is_not_merged),
        cmocka_unit_test(crossed_merges_do_not_make_a_cycle),
        cmocka_unit_test(errors_name_the_op),
        cmocka_unit_test(deep_graphs_are_fine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
