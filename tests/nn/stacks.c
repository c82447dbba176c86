/* How a model's parameters are held: one by one, or the same weight of every layer in a stack. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/shape.h"
#include "nn/model.h"
#include "support/engine.h"
#include "support/scratch.h"

enum { LAYERS = 2, OF_A_LAYER = 9, PARAMETERS = 2 + LAYERS * OF_A_LAYER }; /* of test_llama */

/* Every parameter is the row of its stack that the stack says. */
static void expect_rows(const trd_model *model)
{
    for (int i = 0; i < model->parameter_count; i++) {
        const trd__parameter *p = &model->parameters[i];
        const trd__stack *stack = &model->stacks[p->stack];
        assert_int_equal(stack->first + (int)p->row * stack->stride, i);
        assert_true(p->row == 0 || p->row < stack->layers);
        assert_true(trd__shape_equal(&stack->one.shape, &p->shape));
        assert_string_equal(stack->one.name, stack->layers ? p->layer_name : p->name);
    }
}

static void one_by_one_until_stacked(void **state)
{
    (void)state;
    trd_model *model = test_llama();
    assert_int_equal(model->parameter_count, PARAMETERS);
    assert_int_equal(model->stack_count, PARAMETERS);
    expect_rows(model);
    for (int i = 0; i < PARAMETERS; i++) assert_int_equal(model->parameters[i].stack, i);
    trd_model_info before = model->info;
    OK(trd__model_stack_layers(model));
    assert_int_equal(model->parameter_count, PARAMETERS);
    assert_int_equal(model->stack_count, 2 + OF_A_LAYER);
    assert_memory_equal(&before, &model->info, sizeof before);
    expect_rows(model);
    trd_model_free(model);
}

static void a_stack_has_an_axis_of_layers(void **state)
{
    (void)state;
    trd_model *model = test_llama();
    OK(trd__model_stack_layers(model));
    const trd__stack *table = &model->stacks[0], *q = &model->stacks[2];
    const char *axes[TRD_MAX_RANK] = {NULL};
    assert_string_equal(q->one.name, "model.layers.*.self_attn.q_proj.weight");
    trd_shape shape = trd__stack_shape(q, axes), expected = TRD__SHAPE(LAYERS, 16, 16);
    assert_true(trd__shape_equal(&shape, &expected));
    assert_string_equal(axes[0], "layers");
    assert_string_equal(axes[1], "q_heads");
    assert_string_equal(axes[2], "embed");
    shape = trd__stack_shape(table, NULL);
    assert_true(trd__shape_equal(&shape, &table->one.shape));
    trd_model_free(model);
}

static void choices_are_of_whole_stacks(void **state)
{
    (void)state;
    trd_model *model = test_llama();
    bool chosen[PARAMETERS] = {false}, by_stack[PARAMETERS];
    OK(trd__model_stack_layers(model));
    chosen[2] = chosen[2 + OF_A_LAYER] = true;
    OK(trd__model_by_stack(model, "freeze", chosen, by_stack));
    for (int i = 0; i < model->stack_count; i++) assert_int_equal(by_stack[i], i == 2);
    chosen[2 + OF_A_LAYER] = false;
    assert_int_equal(trd__model_by_stack(model, "freeze", chosen, by_stack), TRD_INVALID_ARGUMENT);
    expect_message("freeze: ");
    expect_message("model.layers.0.self_attn.q_proj.weight from model.layers.1.self_attn.q_proj.weight");
    trd_model_free(model);
}

/* A stack of rows that differ is a fault of the model file. */
static void layers_must_be_alike(void **state)
{
    (void)state;
    const test_leaf leaf = {"first", 3, 0};
    trd_model *model = test_toy(&leaf, 1);
    trd__parameter p = {.name = "layers.0.w", .layer_name = "layers.*.w", .shape = TRD__SHAPE(2)};
    int index;
    OK(trd__model_declare(model, &p, &index));
    p.name = "layers.1.w";
    p.shape = TRD__SHAPE(3);
    OK(trd__model_declare(model, &p, &index));
    assert_int_equal(trd__model_stack_layers(model), TRD_INTERNAL);
    expect_message("layers.1.w");
    trd_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_by_one_until_stacked),
        cmocka_unit_test(a_stack_has_an_axis_of_layers),
        cmocka_unit_test(choices_are_of_whole_stacks),
        cmocka_unit_test(layers_must_be_alike),
    };
    return cmocka_run_group_tests_name("nn/stacks", tests, NULL, NULL);
}
