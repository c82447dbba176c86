/* Reduction of gradients put off to the update (defer_grad_reduction): the same numbers, and checkpoints
 * inside a step that go on without it, on other meshes and on another backend. */
#include "engine/mesh_fixture.h"

static const mesh data4 = {.name = "data=4", .options = {.ici = {.data = 4}}};
static const mesh fsdp4 = {.name = "fsdp=4", .options = {.ici = {.fsdp = 4}}};
static const mesh deferred4 = {.name = "data=4, deferred",
                               .options = {.ici = {.data = 4}, .defer_grad_reduction = true}};
static const mesh scanned4 = {.name = "data=4, deferred, scanned",
                              .options = {.ici = {.data = 4}, .defer_grad_reduction = true},
                              .scanned = true};
static const mesh deferred22 = {.name = "data=2 fsdp=2, deferred",
                                .options = {.ici = {.data = 2, .fsdp = 2}, .defer_grad_reduction = true}};

static void deferred_reduction_agrees(void **state)
{
    (void)state;
    static const mesh scanned = {.name = "data=2 fsdp=2, deferred, scanned",
                                 .options = {.ici = {.data = 2, .fsdp = 2}, .defer_grad_reduction = true},
                                 .scanned = true};
    test_need_plugin();
    agrees_with_one_device(&scanned);
    agrees_with_one_device(&deferred4);
    agrees_with_one_device(&deferred22);
}

/* The gradient as each place along data has it is its own, and only their sum is shown. */
static void gradients_stay_apart(void **state)
{
    (void)state;
    test_need_plugin();
    trd_engine *engine = engine_on(&deferred4, NULL, "pjrt");
    feed(engine, 0, 0, 1);
    const trd__entry *own = &trd__mesh_device_layout(engine, TRD__ROLE_GRADIENTS)->entries[0];
    trd_array shown = trd_view_describe(trd_engine_gradients(engine), 0);
    assert_int_equal(own->shape.rank, shown.shape.rank + 1);
    size_t count;
    float *sum = read_floats(trd_engine_gradients(engine), 0, &count);
    float *shares = malloc(4 * count * sizeof *shares);
    assert_non_null(shares);
    OK(engine->backend->table->set_read(engine->backend, engine->state[TRD__ROLE_GRADIENTS], 0, shares));
    assert_memory_not_equal(shares, shares + count, count * sizeof *shares);
    for (size_t k = 0; k < count; k++) {
        double total = 0;
        for (size_t r = 0; r < 4; r++) total += (double)shares[r * count + k];
        assert_true(sum[k] == (float)total);
    }
    free(shares);
    free(sum);
    OK(trd_engine_close(engine));
}

static void train_step_is_the_pair(void **state)
{
    (void)state;
    test_need_plugin();
    trd_engine *pair = engine_on(&deferred4, NULL, "pjrt"), *fused = engine_on(&deferred4, NULL, "pjrt");
    payload p;
    for (int step = 0; step < STEPS; step++) {
        feed(pair, step, 0, 1);
        OK(trd_engine_update(pair));
        OK(trd_engine_train_step(fused, fill(&p, step, 0)));
    }
    test_expect_same(pair, fused);
    OK(trd_engine_close(pair));
    OK(trd_engine_close(fused));
}

/* Saved inside a step on one mesh, gone on with on another. */
static void resumes(void **state, const mesh *from, const mesh *to, const char *backend)
{
    static int number;
    char name[32], what[160];
    snprintf(name, sizeof name, "run%d", number++);
    snprintf(what, sizeof what, "%s, then %s on %s", from->name, to->name, backend);
    const char *folder = scratch_path(*state, name);
    trd_engine *expected = engine_on(from, NULL, "pjrt"), *saved = engine_on(from, folder, "pjrt");
    bool wrote;
    for (int step = 0; step < STEPS; step++) {
        feed(expected, step, 0, MICRO);
        if (step + 1 < STEPS) OK(trd_engine_update(expected));
    }
    feed(saved, 0, 0, MICRO);
    OK(trd_engine_update(saved));
    feed(saved, 1, 0, 1);
    OK(trd_engine_save(saved, NULL, true, &wrote));
    assert_true(wrote);
    OK(trd_engine_close(saved));
    trd_engine *resumed = engine_on(to, folder, backend);
    OK(trd_engine_restore(resumed, -1, NULL));
    assert_int_equal(trd_engine_micro_step_count(resumed), 1);
    feed(resumed, 1, 1, MICRO);
    expect_near(what, trd_engine_gradients(expected), trd_engine_gradients(resumed), 1e-5);
    OK(trd_engine_update(expected));
    OK(trd_engine_update(resumed));
    expect_same_step(what, expected, resumed);
    OK(trd_engine_close(expected));
    OK(trd_engine_close(resumed));
}

static void resumes_on_another_mesh(void **state)
{
    test_need_plugin();
    resumes(state, &deferred4, &data4, "pjrt");
    resumes(state, &deferred4, &deferred4, "pjrt");
    resumes(state, &deferred4, &deferred22, "pjrt");
    resumes(state, &deferred4, &fsdp4, "pjrt");
    resumes(state, &deferred4, &one, "pjrt");
    resumes(state, &deferred4, &one, "cpu");
    resumes(state, &scanned4, &one, "cpu");
    resumes(state, &deferred4, &scanned4, "pjrt");
    resumes(state, &fsdp4, &deferred4, "pjrt");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deferred_reduction_agrees),
        cmocka_unit_test(gradients_stay_apart),
        cmocka_unit_test(train_step_is_the_pair),
        cmocka_unit_test(resumes_on_another_mesh),
    };
    return cmocka_run_group_tests_name("engine/pjrt_deferred", tests, scratch_create, scratch_remove);
}
