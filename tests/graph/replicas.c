/* Programs of several replicas: local types, what cannot be shared out, copies, texts and fingerprints. */
#include "graph/fixture.h"

#include "graph/sharding.h"
#include "ops/rules.h"

enum { REPLICAS = 4 };

static const trd__entry inputs[] = {
    {.name = "rows", .dtype = TRD_F32, .shape = {.rank = 2, .dim = {8, 3}}, .replica = TRD__REPLICA_ROWS},
    {.name = "weight", .dtype = TRD_F32, .shape = {.rank = 1, .dim = {3}}},
    {.name = "sum",
     .dtype = TRD_F32,
     .shape = {.rank = 2, .dim = {REPLICAS, 3}},
     .axes = {TRD__AXIS_REPLICA, "embed"},
     .replica = TRD__REPLICA_OWN},
    {.name = "odd", .dtype = TRD_F32, .shape = {.rank = 1, .dim = {6}}, .replica = TRD__REPLICA_ROWS},
    {.name = "few", .dtype = TRD_F32, .shape = {.rank = 2, .dim = {2, 3}}, .replica = TRD__REPLICA_OWN},
};
enum { ROWS, WEIGHT, SUM, ODD, FEW, INPUTS };

static trd__program *make(int64_t replicas)
{
    trd__program *p;
    assert_int_equal(trd__program_create("test", &p), TRD_OK);
    p->replicas = replicas;
    assert_int_equal(trd__program_slot(p, "inputs", TRD__UPDATE, inputs, INPUTS), 0);
    return p;
}

/* sum += column sums of rows * weight; weight becomes the sum over all replicas. */
static trd__program *make_sum(void)
{
    trd__program *p = make(REPLICAS);
    trd_builder *b = p->builder;
    trd_value x = trd_mul(b, trd__program_input(p, 0, ROWS), trd__program_input(p, 0, WEIGHT));
    trd_value local = trd_reduce_sum(b, x, 1, false, TRD_F32);
    trd__program_output(p, 0, SUM, trd_add(b, trd__program_input(p, 0, SUM), local));
    trd__program_output(p, 0, WEIGHT, trd__replica_sum(b, local));
    return p;
}

static void leaves_have_local_types(void **state)
{
    (void)state;
    trd__program *p = make_sum();
    assert_valid(p);
    const trd_shape two_rows = TRD__SHAPE(2, 3), one_sum = TRD__SHAPE(3);
    trd_shape rows = trd_value_shape(trd__program_input(p, 0, ROWS));
    assert_true(trd__shape_equal(&rows, &two_rows));
    trd_value sum = trd__program_input(p, 0, SUM);
    trd_shape own = trd_value_shape(sum);
    assert_true(trd__shape_equal(&own, &one_sum));
    assert_string_equal(sum.node->results[0].axes[0], "embed");
    trd__program_free(p);
}

static void plain_programs_see_whole_entries(void **state)
{
    (void)state;
    trd__program *p = make(1);
    trd_shape rows = trd_value_shape(trd__program_input(p, 0, ROWS));
    trd_value sum = trd__program_input(p, 0, SUM);
    trd_shape own = trd_value_shape(sum);
    assert_true(trd__shape_equal(&rows, &inputs[ROWS].shape));
    assert_true(trd__shape_equal(&own, &inputs[SUM].shape));
    assert_string_equal(sum.node->results[0].axes[0], TRD__AXIS_REPLICA);
    assert_string_equal(sum.node->results[0].axes[1], "embed");
    trd__program_free(p);
}

static void what_cannot_be_shared_out(void **state)
{
    (void)state;
    static const struct {
        int entry;
        const char *message;
    } wrong[] = {{ODD, "entry \"odd\" of (6): expected a first dimension that divides among its 4 replicas"},
                 {FEW, "entry \"few\" of (2, 3): expected a first dimension that is that of its 4 replicas"}};
    for (int i = 0; i < 2; i++) {
        trd__program *p = make(REPLICAS);
        assert_true(trd_is_null(trd__program_input(p, 0, wrong[i].entry)));
        assert_int_equal(trd_builder_status(p->builder), TRD_SHAPE);
        assert_non_null(strstr(trd_error_message(), wrong[i].message));
        trd__program_free(p);
    }
    trd__program *p = make(REPLICAS);
    trd__program_output(p, 0, SUM, trd_constant_fill(p->builder, TRD_F32, inputs[SUM].shape, 0));
    assert_int_equal(trd_builder_status(p->builder), TRD_SHAPE);
    assert_non_null(strstr(trd_error_message(), "output \"sum\" expected (3) float32, found (4, 3)"));
    trd__program_free(p);
}

static void copies_are_the_same(void **state)
{
    (void)state;
    trd__program *p = make_sum(), *copy;
    assert_int_equal(trd__program_copy(p, &copy), TRD_OK);
    char *text = program_text(p), *text_of_copy = program_text(copy);
    assert_string_equal(text, text_of_copy);
    assert_non_null(strstr(text, ", 4 replicas\n"));
    assert_non_null(strstr(text, "replica_sum"));
    assert_true(trd__program_fingerprint(p) == trd__program_fingerprint(copy));
    copy->replicas = 2;
    assert_true(trd__program_fingerprint(p) != trd__program_fingerprint(copy));
    assert_int_equal(copy->slots[0].entries[SUM].replica, TRD__REPLICA_OWN);
    free(text);
    free(text_of_copy);
    trd__program_free(copy);
    trd__program_free(p);
}

static void own_copies_lie_along_the_data_axis(void **state)
{
    (void)state;
    const trd__axis_rule rules[] = {
        {.logical = "embed", .axes = {TRD__MESH_DATA, TRD__MESH_FSDP}, .axis_count = 2}};
    const trd__placement placement = {
        .size = {REPLICAS, 3, 1, 1}, .hosts = {1, 1, 1, 1}, .rules = rules, .rule_count = 1};
    trd__sharding s = trd__shard(&placement, &inputs[SUM].shape, inputs[SUM].axes, false);
    assert_int_equal(s.axis_count[0], 1);
    assert_int_equal(s.axes[0][0], TRD__MESH_DATA);
    assert_int_equal(s.axis_count[1], 1);
    assert_int_equal(s.axes[1][0], TRD__MESH_FSDP);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(leaves_have_local_types),
        cmocka_unit_test(plain_programs_see_whole_entries),
        cmocka_unit_test(what_cannot_be_shared_out),
        cmocka_unit_test(copies_are_the_same),
        cmocka_unit_test(own_copies_lie_along_the_data_axis),
    };
    return cmocka_run_group_tests_name("graph/replicas", tests, NULL, NULL);
}
