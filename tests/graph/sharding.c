/* What a mesh and its rules make of tensors: which dimensions are split over what, parts and their places. */
#include "graph/fixture.h"

#include "graph/sharding.h"

static const trd__axis_rule rules[] = {
    {.logical = "batch", .axes = {TRD__MESH_DATA, TRD__MESH_FSDP}, .axis_count = 2},
    {.logical = "embed", .axes = {TRD__MESH_FSDP}, .axis_count = 1},
    {.logical = "mlp", .axes = {TRD__MESH_FSDP}, .axis_count = 1},
    {.logical = "mlp", .axes = {TRD__MESH_TENSOR}, .axis_count = 1},
    {.logical = "length"},
};
static const trd__placement mesh = {
    .size = {2, 3, 4, 1}, .hosts = {1, 1, 1, 1}, .rules = rules, .rule_count = 5};

static void sizes(void **state)
{
    (void)state;
    assert_int_equal(trd__mesh_devices(&mesh), 24);
    assert_int_equal(trd__mesh_devices(NULL), 1);
    assert_string_equal(trd__mesh_axis_name(TRD__MESH_EXPERT), "expert");
}

static trd_shape part(trd_shape shape, const char *first, const char *second, bool over_data)
{
    const char *const axes[] = {first, second};
    trd__sharding s = trd__shard(&mesh, &shape, axes, over_data);
    return trd__shard_shape(&mesh, &s, &shape);
}

static void expect_part(trd_shape found, int64_t rows, int64_t columns)
{
    if (found.dim[0] != rows || found.dim[1] != columns)
        fail_msg("expected (%d, %d), found (%d, %d)", (int)rows, (int)columns, (int)found.dim[0],
                 (int)found.dim[1]);
}

static void dimensions_are_split(void **state)
{
    (void)state;
    expect_part(part(TRD__SHAPE(12, 5), "batch", "length", false), 2, 5);
    expect_part(part(TRD__SHAPE(4, 5), "batch", NULL, false), 2, 5); /* 3 does not divide what is left */
    expect_part(part(TRD__SHAPE(9, 5), "batch", NULL, false), 3, 5); /* 2 does not divide, 3 does */
    expect_part(part(TRD__SHAPE(7, 5), "batch", "unknown", false), 7, 5);
    expect_part(part(TRD__SHAPE(24, 24), "embed", "mlp", false), 8, 6); /* fsdp is taken: the next rule */
    expect_part(part(TRD__SHAPE(24, 24), "mlp", "embed", false), 8, 24);
    expect_part(part(TRD__SHAPE(7, 24), "embed", "mlp", false), 7, 8);
}

static void over_data_takes_the_first_that_divides(void **state)
{
    (void)state;
    expect_part(part(TRD__SHAPE(12, 8), "embed", NULL, true), 2, 8);
    expect_part(part(TRD__SHAPE(9, 8), "embed", NULL, true), 3, 4);
    expect_part(part(TRD__SHAPE(9, 7), "embed", NULL, true), 3, 7);
    expect_part(part(TRD__SHAPE(12, 8), "batch", NULL, true), 2, 8); /* data is in use */
    expect_part(part(TRD__SHAPE(4, 8), "layers", NULL, true), 4, 4);
}

/* Every element has exactly one place among the parts of devices that differ in the axes used. */
static void parts_cover_the_tensor(void **state)
{
    (void)state;
    const trd_shape shape = TRD__SHAPE(12, 8);
    const char *const axes[] = {"batch", "mlp"};
    trd__sharding s = trd__shard(&mesh, &shape, axes, false);
    trd_shape p = trd__shard_shape(&mesh, &s, &shape);
    expect_part(p, 2, 2);
    int seen[12][8] = {{0}};
    for (int64_t device = 0; device < 24; device++) {
        int64_t origin[TRD_MAX_RANK];
        trd__shard_origin(&mesh, &s, &p, device, origin);
        for (int64_t i = 0; i < 2; i++)
            for (int64_t j = 0; j < 2; j++) seen[origin[0] + i][origin[1] + j]++;
    }
    for (int i = 0; i < 12; i++)
        for (int j = 0; j < 8; j++) assert_int_equal(seen[i][j], 1);
    assert_false(trd__sharding_is_whole(&s));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes),
        cmocka_unit_test(dimensions_are_split),
        cmocka_unit_test(over_data_takes_the_first_that_divides),
        cmocka_unit_test(parts_cover_the_tensor),
    };
    return cmocka_run_group_tests_name("graph/sharding", tests, NULL, NULL);
}
