/* Rematerialization on a small stack of layers: what each policy keeps and computes again, that memory falls,
 * that copies come just before their first use, and that FLOPs stay the model's. */
#include "autodiff/autodiff.h"
#include "graph/fixture.h"

enum { LAYERS = 12, SIDE = 128, SMALL_SIDE = 16 };

/* x + exp(norm(x) W1) W2, where norm stands for a cheap op whose gradient needs its input. */
static trd_value layer(trd_builder *b, trd_value x, trd_value w1, trd_value w2, trd_value table)
{
    trd_value h = trd_mul(b, trd_tanh(b, x), table);
    trd_value up = trd_square(b, trd_matmul(b, h, w1, false, false, TRD_F32));
    return trd_layer_boundary(b, trd_add(b, x, trd_matmul(b, up, w2, false, false, TRD_F32)));
}

/* Forward, backward and gradient outputs of the stack under a policy. */
static trd__program *stack_of(int64_t side, trd__remat_policy policy)
{
    trd__program *p = fixture_program_of(side);
    trd_builder *b = p->builder;
    trd_value w1 = fixture_input(p, 0), w2 = fixture_input(p, 1), x = fixture_input(p, 2);
    trd_value table = trd_exp(b, fixture_input(p, 3)); /* what all layers share */
    for (int i = 0; i < LAYERS; i++) x = layer(b, x, w1, w2, table);
    trd_value loss = trd_sum_all(b, trd_square(b, x));
    trd__gradient g[2] = {{.of = w1, .accumulator = fixture_input(p, 4)},
                          {.of = w2, .accumulator = fixture_input(p, 5)}};
    assert_int_equal(trd__autodiff(b, loss, g, 2), TRD_OK);
    fixture_output(p, 0, g[0].result);
    fixture_output(p, 1, g[1].result);
    assert_int_equal(trd__cse(p), TRD_OK);
    assert_int_equal(trd__remat(p, trd__remat_everywhere(policy)), TRD_OK);
    assert_int_equal(trd__fuse_accumulate(p), TRD_OK);
    assert_valid(p);
    return p;
}

static trd__program *stack(trd__remat_policy policy)
{
    return stack_of(SIDE, policy);
}

/* Largest number of values alive at once that are no leaves, in units of whole values. */
static int peak(const trd__program *p)
{
    const trd_graph *graph = &p->builder->graph;
    int *last = calloc((size_t)graph->node_count, sizeof *last);
    for (int i = 0; i < graph->node_count; i++)
        for (int j = 0; j < graph->nodes[i]->input_count; j++) last[graph->nodes[i]->inputs[j].node->id] = i;
    int live = 0, most = 0;
    for (int i = 0; i < graph->node_count; i++) {
        bool leaf = graph->nodes[i]->input_count == 0;
        live += !leaf;
        if (live > most) most = live;
        for (int j = 0; j < i; j++)
            if (last[j] == i && graph->nodes[j]->input_count > 0) live--;
    }
    free(last);
    return most;
}

static void none_recomputes_no_product(void **state)
{
    (void)state;
    trd__program *p = stack(TRD__REMAT_NONE);
    assert_int_equal(count_recomputed(p, "matmul"), 0);
    assert_int_equal(count_op(p, "matmul"), 6 * LAYERS - 1);  /* nobody asks for the input gradient of x */
    assert_true(count_recomputed(p, "square") >= LAYERS - 1); /* the product's result is kept anyway */
    assert_true(count_recomputed(p, "mul") >= LAYERS - 1);    /* so is tanh's, which its gradient uses */
    assert_int_equal(count_recomputed(p, "add"), 0);          /* would keep a product nobody else needs */
    trd__program_free(p);
}

static void none_keeps_small_values(void **state)
{
    (void)state;
    trd__program *p = stack_of(SMALL_SIDE, TRD__REMAT_NONE);
    assert_int_equal(count_recomputed(p, "square"), 0);
    assert_int_equal(count_recomputed(p, "mul"), 0);
    trd__program_free(p);
}

static void minimal_keeps_products(void **state)
{
    (void)state;
    trd__program *p = stack(TRD__REMAT_MINIMAL);
    assert_int_equal(count_recomputed(p, "matmul"), 0);
    assert_int_equal(count_recomputed(p, "square"), LAYERS);
    assert_int_equal(count_recomputed(p, "add"), 0); /* boundaries */
    trd__program_free(p);
}

static void full_recomputes_a_layer_once(void **state)
{
    (void)state;
    trd__program *p = stack(TRD__REMAT_FULL);
    assert_int_equal(count_recomputed(p, "matmul"), LAYERS); /* the second one ends in the boundary */
    assert_int_equal(count_recomputed(p, "square"), LAYERS);
    assert_int_equal(count_recomputed(p, "tanh"), LAYERS);
    assert_int_equal(count_op(p, "exp"), 1); /* the shared table is kept */
    trd__program_free(p);
}

static void copies_come_just_before_their_use(void **state)
{
    (void)state;
    trd__program *p = stack(TRD__REMAT_FULL);
    const trd_graph *graph = &p->builder->graph;
    int copies_seen = 0, copies_of_a_layer = 3;
    for (int i = 0; i < graph->node_count; i++) {
        const trd_node *n = graph->nodes[i];
        if (!n->recomputed) continue;
        copies_seen++;
        int first_use = graph->node_count;
        for (int u = graph->node_count - 1; u > i; u--)
            for (int j = 0; j < graph->nodes[u]->input_count; j++)
                if (graph->nodes[u]->inputs[j].node == n) first_use = u;
        assert_true(first_use - i <= copies_of_a_layer + 1);
    }
    assert_true(copies_seen >= 3 * LAYERS);
    trd__program_free(p);
}

static void memory_falls_with_the_policy(void **state)
{
    (void)state;
    trd__program *none = stack(TRD__REMAT_NONE), *full = stack(TRD__REMAT_FULL);
    /* none: boundary and first product a layer; full: boundaries, and one layer's values. */
    assert_true(peak(none) <= 2 * LAYERS + 8);
    assert_true(peak(full) <= LAYERS + 10);
    assert_true(peak(full) < peak(none));
    trd__program_free(none);
    trd__program_free(full);
}

static void flops_are_the_models(void **state)
{
    (void)state;
    trd__program *none = stack(TRD__REMAT_NONE), *full = stack(TRD__REMAT_FULL);
    assert_true(trd__program_flops(none) > 0);
    assert_true(trd__program_flops(none) == trd__program_flops(full));
    trd__program_free(none);
    trd__program_free(full);
}

/* Neither on the program itself nor on the copy a backend compiles. */
static void cse_does_not_undo_it(void **state)
{
    (void)state;
    trd__program *original = stack(TRD__REMAT_FULL), *p;
    assert_int_equal(trd__program_copy(original, &p), TRD_OK);
    assert_true(trd__program_fingerprint(original) == trd__program_fingerprint(p));
    char *text = program_text(original), *text_of_copy = program_text(p);
    assert_string_equal(text, text_of_copy);
    free(text);
    free(text_of_copy);
    trd__program_free(original);
    int before = p->builder->graph.node_count;
    assert_int_equal(trd__cse(p), TRD_OK);
    assert_valid(p);
    assert_int_equal(p->builder->graph.node_count, before);
    trd__program_free(p);
}

/* Products over 12, 4 and 8 columns: where there is no room for all of them, the cheapest are told. */
static void intensities_are_the_smallest(void **state)
{
    (void)state;
    trd__program *p = fixture_program();
    trd_builder *b = p->builder;
    trd_value x = fixture_input(p, 0), sum = x;
    const trd_value wide = trd_concat(b, (trd_value[]){x, x}, 2, 1);
    const trd_value wider = trd_concat(b, (trd_value[]){wide, x}, 2, 1);
    sum = trd_add(b, sum, trd_matmul(b, wider, wider, false, true, TRD_F32));
    sum = trd_add(b, sum, trd_matmul(b, x, x, false, false, TRD_F32));
    sum = trd_add(b, sum, trd_matmul(b, wide, wide, false, true, TRD_F32));
    sum = trd_layer_boundary(b, sum);
    trd__gradient g = {.of = x, .accumulator = fixture_input(p, 4)};
    assert_int_equal(trd__autodiff(b, trd_sum_all(b, sum), &g, 1), TRD_OK);
    double all[4], few[2]; /* room for more, and for less, than there are */
    int layers = 0;
    assert_int_equal(trd__remat_intensities(p, all, 4, &layers), 3);
    assert_int_equal(layers, 1);
    assert_true(all[0] < all[1] && all[1] < all[2]);
    assert_int_equal(trd__remat_intensities(p, few, 2, &layers), 2);
    assert_memory_equal(few, all, sizeof few);
    trd__program_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(none_recomputes_no_product),
        cmocka_unit_test(none_keeps_small_values),
        cmocka_unit_test(minimal_keeps_products),
        cmocka_unit_test(full_recomputes_a_layer_once),
        cmocka_unit_test(copies_come_just_before_their_use),
        cmocka_unit_test(memory_falls_with_the_policy),
        cmocka_unit_test(flops_are_the_models),
        cmocka_unit_test(cse_does_not_undo_it),
        cmocka_unit_test(intensities_are_the_smallest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
