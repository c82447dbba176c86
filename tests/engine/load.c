/* Weights that are not those of the model: what is missing, too much or of another shape is named, and no
 * engine comes of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <treadle/model.h>

#include "base/shape.h"
#include "checkpoint/hub_export.h"
#include "engine/internal.h"
#include "support/engine.h"
#include "support/scratch.h"

enum { MOST = 64 };

/* The tests' llama as a hub folder, its arrays altered by the caller. */
typedef struct weights {
    trd_array arrays[MOST];
    int count;
    char *json;
} weights;

static void take_weights(weights *w)
{
    trd_engine_options o = test_options();
    trd_engine *engine = test_engine(&o);
    trd_view view = trd_engine_params(engine);
    w->count = trd_view_count(view);
    assert_true(w->count < MOST);
    for (int i = 0; i < w->count; i++) {
        trd_array *array = &w->arrays[i];
        *array = trd_view_describe(view, i);
        array->name = strdup(array->name);
        void *data = calloc((size_t)trd__shape_count(&array->shape), sizeof(float));
        OK(trd_view_read(view, i, data));
        array->data = data;
    }
    OK(trd_model_to_json(trd_engine_model(engine), "float32", &w->json));
    OK(trd_engine_close(engine));
}

static void free_weights(weights *w)
{
    for (int i = 0; i < w->count; i++) {
        free((void *)(uintptr_t)w->arrays[i].name);
        free((void *)(uintptr_t)w->arrays[i].data);
    }
    trd_text_free(w->json);
}

static trd_status load(const weights *w, const char *folder, trd_engine **engine)
{
    trd__hub_export_options how = {w->json, TRD_F32, 0, NULL};
    trd_engine_options o = test_options();
    o.load_parameters_path = folder;
    OK(trd__hub_export(folder, w->arrays, (size_t)w->count, &how));
    return trd_engine_create(&o, engine);
}

static void what_does_not_fit_is_named(void **state)
{
    const char *folder = scratch_path(*state, "hub");
    weights w;
    trd_engine *engine;
    take_weights(&w);
    OK(load(&w, folder, &engine));
    OK(trd_engine_close(engine));

    weights fewer = w;
    fewer.count--;
    assert_int_equal(load(&fewer, folder, &engine), TRD_NOT_FOUND);
    assert_null(engine);
    expect_message("found 1 tensor (model.norm.weight) missing and no tensor unknown");

    weights more = w;
    more.arrays[more.count++] = (trd_array){"model.layers.9.odd", TRD_F32, {1, {16}}, w.arrays[0].data};
    assert_int_equal(load(&more, folder, &engine), TRD_NOT_FOUND);
    expect_message("found no tensor missing and 1 tensor (model.layers.9.odd) unknown");

    weights other = w;
    other.arrays[0].shape.dim[0]--;
    assert_int_equal(load(&other, folder, &engine), TRD_SHAPE);
    expect_message(w.arrays[0].name);
    expect_message("expected shape (40, 16), found (39, 16)");
    free_weights(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_does_not_fit_is_named)};
    return cmocka_run_group_tests_name("engine/load", tests, scratch_create, scratch_remove);
}
