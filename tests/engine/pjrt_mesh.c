/* Engines over meshes of four devices against one device: losses, gradients, parameters, forward graphs. */
#include "engine/mesh_fixture.h"

static const mesh data4 = {.name = "data=4", .options = {.ici = {.data = 4}}};
static const mesh fsdp4 = {.name = "fsdp=4", .options = {.ici = {.fsdp = 4}}};

static void meshes_agree(void **state)
{
    (void)state;
    static const mesh meshes[] = {
        {.name = "fsdp=2 tensor=2, scanned", .options = {.ici = {.fsdp = 2, .tensor = 2}}, .scanned = true},
        {.name = "tensor=2 data=2, scanned, muon", /* whose update is a loop over rows of its own */
         .options = {.ici = {.data = 2, .tensor = 2}, .shard_optimizer_over_data = true},
         .scanned = true,
         .optimizer = "muon"},
        {.name = "data=2 fsdp=2, explicit",
         .options = {.ici = {.data = 2, .fsdp = 2},
                     .shard_mode = TRD_SHARD_EXPLICIT,
                     .shard_optimizer_over_data = true}},
        {.name = "tensor=2 data=2",
         .options = {.ici = {.data = 2, .tensor = 2}, .shard_optimizer_over_data = true}},
        {.name = "tensor=2 data=2, explicit",
         .options = {.ici = {.data = 2, .tensor = 2}, .shard_mode = TRD_SHARD_EXPLICIT}}};
    need_plugin();
    agrees_with_one_device(&data4);
    agrees_with_one_device(&fsdp4);
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) agrees_with_one_device(&meshes[i]);
}

static void rows_that_do_not_divide_agree(void **state)
{
    (void)state;
    static const mesh three = {
        .name = "data=3", .options = {.ici = {.data = 3}, .indivisible_batch = TRD_INDIVISIBLE_REPLICATE}};
    need_plugin();
    agrees_with_one_device(&three);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(meshes_agree),
        cmocka_unit_test(rows_that_do_not_divide_agree),
    };
    return cmocka_run_group_tests_name("engine/pjrt_mesh", tests, NULL, NULL);
}
