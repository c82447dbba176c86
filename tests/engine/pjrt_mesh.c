/* Engines over meshes of four devices against one device: losses, gradients, parameters, evaluation, forward
 * graphs. By day some of the ways in which a mesh can be used, by night all of them. */
#include "engine/mesh_fixture.h"
#include "support/nightly.h"

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
        {.name = "data=2 fsdp=2, deferred, optimizer over data, scanned",
         .options = {.ici = {.data = 2, .fsdp = 2},
                     .defer_grad_reduction = true,
                     .shard_optimizer_over_data = true},
         .scanned = true}};
    test_need_plugin();
    agrees_with_one_device(&fsdp4);
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) agrees_with_one_device(&meshes[i]);
}

/* Bit 0 to 3 of way: explicit, scanned, deferred, optimizer over data. */
static void every_way_agrees(void **state)
{
    (void)state;
    static const trd_mesh_axes arrangements[] = {
        {.data = 4}, {.fsdp = 4}, {.data = 2, .fsdp = 2}, {.data = 2, .tensor = 2}};
    test_need_plugin();
    if (!nightly()) skip();
    for (size_t a = 0; a < sizeof arrangements / sizeof *arrangements; a++)
        for (unsigned way = 0; way < (arrangements[a].data > 1 ? 16 : 4); way++) {
            char name[160];
            snprintf(name, sizeof name, "data=%d fsdp=%d tensor=%d%s%s%s%s", arrangements[a].data,
                     arrangements[a].fsdp, arrangements[a].tensor, way & 1 ? ", explicit" : "",
                     way & 2 ? ", scanned" : "", way & 4 ? ", deferred" : "",
                     way & 8 ? ", optimizer over data" : "");
            print_message("%s\n", name);
            const mesh m = {.name = name,
                            .options = {.ici = arrangements[a],
                                        .shard_mode = way & 1 ? TRD_SHARD_EXPLICIT : TRD_SHARD_AUTO,
                                        .defer_grad_reduction = way & 4,
                                        .shard_optimizer_over_data = way & 8},
                            .scanned = way & 2};
            agrees_with_one_device(&m);
        }
}

static void rows_that_do_not_divide_agree(void **state)
{
    (void)state;
    static const mesh three = {
        .name = "data=3", .options = {.ici = {.data = 3}, .indivisible_batch = TRD_INDIVISIBLE_REPLICATE}};
    test_need_plugin();
    agrees_with_one_device(&three);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(meshes_agree),
        cmocka_unit_test(every_way_agrees),
        cmocka_unit_test(rows_that_do_not_divide_agree),
    };
    return cmocka_run_group_tests_name("engine/pjrt_mesh", tests, NULL, NULL);
}
