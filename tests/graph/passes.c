/* The generic passes: what they remove, share, replace and keep, and the order they leave. */
#include "graph/fixture.h"

static void dce_drops_what_no_output_needs(void **state)
{
    (void)state;
    trd__program *p = fixture_program();
    trd_builder *b = p->builder;
    trd_value x = fixture_input(p, 0);
    trd_exp(b, trd_add(b, x, fixture_input(p, 1)));
    fixture_output(p, 0, trd_neg(b, x));
    assert_int_equal(trd__dce(p), TRD_OK);
    assert_valid(p);
    assert_int_equal(b->graph.node_count, 2);

    /* A leaf that went is made anew, one that stayed is found. */
    assert_int_equal(fixture_input(p, 1).node->id, 2);
    assert_int_equal(fixture_input(p, 0).node->id, 0);
    trd__program_free(p);
}

static void cse_shares_equal_nodes(void **state)
{
    (void)state;
    trd__program *p = fixture_program();
    trd_builder *b = p->builder;
    trd_value x = fixture_input(p, 0), y = fixture_input(p, 1);
    fixture_output(p, 0, trd_exp(b, trd_add(b, x, y)));
    fixture_output(p, 1, trd_exp(b, trd_add(b, y, x))); /* commuted */
    fixture_output(p, 2, trd_exp(b, trd_sub(b, x, y)));
    fixture_output(p, 3, trd_exp(b, trd_sub(b, y, x))); /* not the same */
    fixture_output(p, 4, trd_matmul(b, x, y, false, false, TRD_F32));
    fixture_output(p, 5, trd_matmul(b, x, y, true, false, TRD_F32)); /* other attributes */
    assert_int_equal(trd__cse(p), TRD_OK);
    assert_valid(p);
    assert_int_equal(count_op(p, "add"), 1);
    assert_int_equal(count_op(p, "exp"), 3);
    assert_int_equal(count_op(p, "sub"), 2);
    assert_int_equal(count_op(p, "matmul"), 2);
    assert_true(trd_same(p->outputs[0].value, p->outputs[1].value));
    assert_false(trd_same(p->outputs[2].value, p->outputs[3].value));
    trd__program_free(p);
}

static bool keep_all_but_fused(const trd_node *n, void *user)
{
    (*(int *)user)++;
    return strcmp(n->op->name, "outer") != 0 && strcmp(n->op->name, "inner") != 0;
}

static trd_status same_as_operand(const trd_node *n, trd__type *results)
{
    results[0] = *trd__type_of(n->inputs[0]);
    return TRD_OK;
}

static void expand_inner(trd_builder *b, const trd_node *n, trd_value *results)
{
    results[0] = trd_neg(b, trd_exp(b, n->inputs[0]));
}
static const trd_op inner = {.name = "inner",
                             .min_inputs = 1,
                             .max_inputs = 1,
                             .results = 1,
                             .infer = same_as_operand,
                             .expand = expand_inner};

static void expand_outer(trd_builder *b, const trd_node *n, trd_value *results)
{
    results[0] = trd_square(b, trd__add_node(b, &inner, NULL, n->inputs, 1));
}
static const trd_op outer = {.name = "outer",
                             .min_inputs = 1,
                             .max_inputs = 1,
                             .results = 1,
                             .infer = same_as_operand,
                             .expand = expand_outer};

static void expand_reaches_plain_ops(void **state)
{
    (void)state;
    trd__program *p = fixture_program();
    trd_builder *b = p->builder;
    trd_value x = fixture_input(p, 0);
    trd_value first = trd_layer_boundary(b, trd_name(b, trd__add_node(b, &outer, NULL, &x, 1), "first"));
    trd_value second = trd__add_node(b, &outer, NULL, &first, 1);
    fixture_output(p, 0, trd_abs(b, second));
    int asked = 0;
    assert_int_equal(trd__expand(p, keep_all_but_fused, &asked), TRD_OK);
    assert_true(asked > 0);
    assert_valid(p);
    char *text = program_text(p);
    assert_string_equal(text, "program test: 8 nodes\n"
                              "  %0 = input() {slot=0 entry=0} : float32 (4, 4) \"x0\"\n"
                              "  %1 = exp(%0) : float32 (4, 4) \"first\"\n"
                              "  %2 = neg(%1) : float32 (4, 4) \"first\"\n"
                              "  %3 = square(%2) : float32 (4, 4) \"first\" [boundary]\n"
                              "  %4 = exp(%3) : float32 (4, 4) \"outer\"\n"
                              "  %5 = neg(%4) : float32 (4, 4) \"outer\"\n"
                              "  %6 = square(%5) : float32 (4, 4) \"outer\"\n"
                              "  %7 = abs(%6) : float32 (4, 4)\n"
                              "  results.y0 <- %7\n");
    free(text);
    trd__program_free(p);
}

static void expand_loop(trd_builder *b, const trd_node *n, trd_value *results)
{
    results[0] = trd__add_node(b, n->op, NULL, n->inputs, 1);
}

static void endless_expansion_is_an_error(void **state)
{
    (void)state;
    static const trd_op loop = {.name = "outer",
                                .min_inputs = 1,
                                .max_inputs = 1,
                                .results = 1,
                                .infer = same_as_operand,
                                .expand = expand_loop};
    trd__program *p = fixture_program();
    trd_value x = fixture_input(p, 0);
    fixture_output(p, 0, trd__add_node(p->builder, &loop, NULL, &x, 1));
    int asked = 0;
    assert_int_equal(trd__expand(p, keep_all_but_fused, &asked), TRD_INTERNAL);
    trd__program_free(p);
}

static void accumulators_move_into_products(void **state)
{
    (void)state;
    trd__program *p = fixture_program();
    trd_builder *b = p->builder;
    trd_value x = fixture_input(p, 0), y = fixture_input(p, 1), acc = fixture_input(p, 2);
    trd_value first = trd_matmul(b, x, y, false, false, TRD_F32);
    trd_value between = trd_exp(b, x);
    trd_value second = trd_matmul(b, between, y, false, false, TRD_F32);
    fixture_output(p, 0, trd_accumulate(b, trd_accumulate(b, acc, first), second));
    assert_int_equal(trd__fuse_accumulate(p), TRD_OK);
    assert_valid(p);
    assert_int_equal(count_op(p, "accumulate"), 0);
    assert_int_equal(count_op(p, "matmul"), 2);
    const trd_node *last = p->outputs[0].value.node;
    assert_int_equal(last->input_count, 3);
    assert_true(trd_same(last->inputs[0], between));
    const trd_node *before = last->inputs[2].node; /* the chain's order is that of the contributions */
    assert_string_equal(before->op->name, "matmul");
    assert_true(trd_same(before->inputs[2], acc));
    assert_true(before->id < between.node->id); /* in its own place, not at the end */
    trd__program_free(p);
}

static void a_shared_product_keeps_its_accumulate(void **state)
{
    (void)state;
    trd__program *p = fixture_program();
    trd_builder *b = p->builder;
    trd_value product = trd_matmul(b, fixture_input(p, 0), fixture_input(p, 1), false, false, TRD_F32);
    fixture_output(p, 0, trd_accumulate(b, fixture_input(p, 2), product));
    fixture_output(p, 1, product);
    assert_int_equal(trd__fuse_accumulate(p), TRD_OK);
    assert_valid(p);
    assert_int_equal(count_op(p, "accumulate"), 1);
    trd__program_free(p);
}

static uint64_t fingerprint(double constant, const char *name, int entry)
{
    trd__program *p = fixture_program();
    trd_builder *b = p->builder;
    trd_value x = trd_name(b, fixture_input(p, 0), "%s", name);
    trd_value y = trd_mul(b, x, trd_constant_fill(b, TRD_F32, trd_value_shape(x), constant));
    fixture_output(p, entry, y);
    uint64_t result = trd__program_fingerprint(p);
    trd__program_free(p);
    return result;
}

static void fingerprint_is_of_meaning(void **state)
{
    (void)state;
    uint64_t base = fingerprint(2, "a", 0);
    assert_true(base == fingerprint(2, "b", 0)); /* names do not count */
    assert_true(base != fingerprint(3, "a", 0)); /* attributes do */
    assert_true(base != fingerprint(2, "a", 1)); /* bindings do */
}

static void verify_finds_broken_order(void **state)
{
    (void)state;
    trd__program *p = fixture_program();
    trd_builder *b = p->builder;
    fixture_output(p, 0, trd_exp(b, trd_neg(b, fixture_input(p, 0))));
    assert_valid(p);
    trd_node **nodes = b->graph.nodes;
    trd_node *first = nodes[1];
    nodes[1] = nodes[2], nodes[1]->id = 1;
    nodes[2] = first, nodes[2]->id = 2;
    assert_int_equal(trd__verify(p), TRD_INTERNAL);
    assert_non_null(strstr(trd_error_message(), "exp uses node 2 (neg), which comes after it"));
    trd__program_free(p);
}

static void verify_finds_altered_types(void **state)
{
    (void)state;
    trd__program *p = fixture_program();
    trd_value y = trd_neg(p->builder, fixture_input(p, 0));
    fixture_output(p, 0, y);
    p->builder->graph.nodes[1]->results[0].dtype = TRD_BF16;
    assert_int_equal(trd__verify(p), TRD_INTERNAL);
    assert_non_null(strstr(trd_error_message(), "node 1 (neg)"));
    trd__program_free(p);
}

/* Passes are linear and nothing recurses: a chain this deep would overflow or take minutes otherwise. */
static void deep_graphs_are_fine(void **state)
{
    (void)state;
    enum { DEPTH = 100000 };
    trd__program *p = fixture_program();
    trd_builder *b = p->builder;
    trd_value x = fixture_input(p, 0), w = fixture_input(p, 1), y = x;
    for (int i = 0; i < DEPTH; i++) y = trd_mul(b, trd_add(b, y, w), trd_add(b, w, y));
    fixture_output(p, 0, y);
    assert_valid(p);
    assert_int_equal(trd__cse(p), TRD_OK);
    assert_int_equal(count_op(p, "add"), DEPTH);
    assert_int_equal(trd__dce(p), TRD_OK);
    assert_int_equal(trd__fuse_accumulate(p), TRD_OK);
    assert_int_equal(trd__remat(p, trd__remat_everywhere(TRD__REMAT_FULL)), TRD_OK);
    assert_valid(p);
    assert_int_equal(b->graph.node_count, 2 * DEPTH + 2);
    trd__program_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dce_drops_what_no_output_needs),
        cmocka_unit_test(cse_shares_equal_nodes),
        cmocka_unit_test(expand_reaches_plain_ops),
        cmocka_unit_test(endless_expansion_is_an_error),
        cmocka_unit_test(accumulators_move_into_products),
        cmocka_unit_test(a_shared_product_keeps_its_accumulate),
        cmocka_unit_test(fingerprint_is_of_meaning),
        cmocka_unit_test(verify_finds_broken_order),
        cmocka_unit_test(verify_finds_altered_types),
        cmocka_unit_test(deep_graphs_are_fine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
