/* What the descriptors say beside their kernels: messages of the shape rules, model FLOPs, how gradients are
 * put together (one product per weight gradient, merged log-probabilities, accumulators inside the op). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "autodiff/autodiff.h"
#include "base/shape.h"
#include "graph/passes.h"
#include "ops/attrs.h"
#include "support/scratch.h"
#include "support/small_program.h"

/* A program with one f32 input per shape. */
static void begin(small_program *p, const trd_shape *shapes, const trd_dtype *dtypes, int count)
{
    small_tensor inputs[SMALL_MAX];
    for (int i = 0; i < count; i++) inputs[i] = small_tensor_make("input", dtypes[i], shapes[i]);
    small_program_begin(p, inputs, count);
}

static int count_op(const trd__program *program, const trd_op *op)
{
    int count = 0;
    for (int i = 0; i < program->builder->graph.node_count; i++)
        count += program->builder->graph.nodes[i]->op == op;
    return count;
}

/* -- messages -- */

typedef trd_value (*mistake)(trd_builder *b, const trd_value *in);

static trd_value add_of_two_shapes(trd_builder *b, const trd_value *in)
{
    return trd_add(b, in[0], in[1]);
}
static trd_value add_of_two_dtypes(trd_builder *b, const trd_value *in)
{
    return trd_add(b, in[0], trd_cast(b, in[0], TRD_BF16));
}
static trd_value exp_of_int(trd_builder *b, const trd_value *in)
{
    return trd_exp(b, trd_cast(b, in[0], TRD_I32));
}
static trd_value wrong_inner(trd_builder *b, const trd_value *in)
{
    return trd_linear(b, in[0], in[1]);
}
static trd_value wrong_count(trd_builder *b, const trd_value *in)
{
    return trd_reshape(b, in[0], TRD__SHAPE(5, 5));
}
static trd_value wrong_axis(trd_builder *b, const trd_value *in)
{
    return trd_slice(b, in[0], 2, 0, 1);
}
static trd_value beyond_end(trd_builder *b, const trd_value *in)
{
    return trd_slice(b, in[0], 1, 2, 9);
}
static trd_value twice_an_axis(trd_builder *b, const trd_value *in)
{
    return trd_transpose(b, in[0], (int[]){1, 1});
}
static trd_value narrower(trd_builder *b, const trd_value *in)
{
    return trd_broadcast(b, in[0], TRD__SHAPE(3, 7));
}
static trd_value parts_differ(trd_builder *b, const trd_value *in)
{
    return trd_concat(b, in, 2, 0);
}
static trd_value float_ids(trd_builder *b, const trd_value *in)
{
    return trd_gather_rows(b, in[0], in[1]);
}
static trd_value scale_differs(trd_builder *b, const trd_value *in)
{
    return trd_rms_norm(b, in[0], trd_constant_fill(b, TRD_F32, TRD__SHAPE(4), 1), 1e-6);
}
static trd_value cold(trd_builder *b, const trd_value *in)
{
    trd_value targets = trd_iota(b, TRD_I32, TRD__SHAPE(3), 0);
    return trd_token_logprobs(b, in[0], in[0], targets, (trd_value){NULL, 0}, 0, NULL);
}
static trd_value odd_heads(trd_builder *b, const trd_value *in)
{
    trd_rows rows = {.segments = trd_constant_fill(b, TRD_I32, TRD__SHAPE(1, 3), 1)};
    trd_value q = trd_reshape(b, in[0], TRD__SHAPE(1, 3, 5, 1));
    trd_value k = trd_slice(b, q, 2, 0, 2);
    return trd_attention(b, q, k, k, &rows);
}
static trd_value null_operand(trd_builder *b, const trd_value *in)
{
    (void)in;
    return trd_exp(b, (trd_value){NULL, 0});
}

static void messages_say_what_was_expected(void **state)
{
    (void)state;
    static const struct {
        mistake build;
        const char *parts[3];
    } mistakes[] = {
        {add_of_two_shapes, {"add", "float32 (3, 5)", "(4, 6)"}},
        {add_of_two_dtypes, {"add", "float32 (3, 5)", "bfloat16"}},
        {exp_of_int, {"exp", "float32 or float64", "int32"}},
        {wrong_inner, {"matmul", "(4, 5)", "(4, 6)"}},
        {wrong_count, {"reshape", "(5, 5)", "(3, 5)"}},
        {wrong_axis, {"slice", "axis 2", "(3, 5)"}},
        {beyond_end, {"slice", "[2, 9)", "(3, 5)"}},
        {twice_an_axis, {"transpose", "permutation", "(3, 5)"}},
        {narrower, {"broadcast", "(3, 7)", "(3, 5)"}},
        {parts_differ, {"concat", "part 1", "(4, 6)"}},
        {float_ids, {"gather_rows", "\"ids\" expected int32", "float32"}},
        {scale_differs, {"rms_norm", "\"scale\" expected float32 (5)", "(4)"}},
        {cold, {"token_logprobs", "temperature", "0"}},
        {odd_heads, {"attention", "divides", "(1, 3, 2, 1)"}},
        {null_operand, {"exp", "null", "operand 0"}},
    };
    const trd_shape shapes[] = {TRD__SHAPE(3, 5), TRD__SHAPE(4, 6)};
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        small_program p;
        begin(&p, shapes, (trd_dtype[]){TRD_F32, TRD_F32}, 2);
        trd_builder *b = small_program_builder(&p);
        assert_true(trd_is_null(mistakes[i].build(b, p.values)));
        assert_int_not_equal(trd_builder_status(b), TRD_OK);
        for (int part = 0; part < 3; part++) expect_message(mistakes[i].parts[part]);
        small_program_end(&p);
    }
}

/* -- FLOPs -- */

enum { B = 2, T = 8, H = 4, G = 2, D = 16, C = 32, V = 64 };

static void model_flops_of_a_step(void **state)
{
    (void)state;
    small_program p;
    const trd_shape shapes[] = {TRD__SHAPE(B, T, C),  TRD__SHAPE(H * D, C), TRD__SHAPE(G * D, C),
                                TRD__SHAPE(C, H * D), TRD__SHAPE(V, C),     TRD__SHAPE(B, T)};
    begin(&p, shapes, (trd_dtype[]){TRD_F32, TRD_F32, TRD_F32, TRD_F32, TRD_F32, TRD_I32}, 6);
    trd_builder *b = small_program_builder(&p);
    const trd_value *in = p.values;
    trd_rows rows = {.segments = in[5]};
    trd_value q = trd_reshape(b, trd_linear(b, in[0], in[1]), TRD__SHAPE(B, T, H, D));
    trd_value k = trd_reshape(b, trd_linear(b, in[0], in[2]), TRD__SHAPE(B, T, G, D));
    trd_value out = trd_reshape(b, trd_attention(b, q, k, k, &rows), TRD__SHAPE(B, T, H * D));
    trd_value hidden = trd_linear(b, out, in[3]);
    trd_value logprobs = trd_token_logprobs(b, hidden, in[4], in[5], (trd_value){NULL, 0}, 1, NULL);
    small_tensor accumulators[5];
    for (int i = 0; i < 5; i++)
        accumulators[i] = (small_tensor){.name = "gradient", .dtype = TRD_F32, .shape = shapes[i]};
    small_program_result(&p, "loss", trd_sum_all(b, logprobs));
    small_program_differentiate(&p, trd_sum_all(b, logprobs), (int[]){0, 1, 2, 3, 4}, accumulators, 5);
    small_program_finish(&p);
    expect_ok(trd__dce(p.program), "dce");
    double weights = H * D * C + G * D * C + C * H * D + V * C; /* each used once per token */
    double attention = 3 * 2 * 2.0 * B * H * T * T * D / 2;
    assert_true(trd__program_flops(p.program) == 6.0 * B * T * weights + attention);
    small_program_end(&p);
}

/* -- gradients -- */

/* Sum of the log-probabilities of a tied embedding, squared when the cotangent is to depend on them. */
static void build_tied(small_program *p, bool squared)
{
    const trd_shape shapes[] = {TRD__SHAPE(V, C), TRD__SHAPE(B, T)};
    begin(p, shapes, (trd_dtype[]){TRD_F32, TRD_I32}, 2);
    trd_builder *b = small_program_builder(p);
    trd_value hidden = trd_gather_rows(b, p->values[0], p->values[1]);
    trd_value logprobs =
        trd_token_logprobs(b, hidden, p->values[0], p->values[1], (trd_value){NULL, 0}, 1, NULL);
    small_program_result(p, "logprobs", logprobs);
    if (squared) logprobs = trd_square(b, logprobs);
    small_tensor accumulator = small_tensor_make("gradient", TRD_F32, shapes[0]);
    small_program_differentiate(p, trd_sum_all(b, logprobs), (int[]){0}, &accumulator, 1);
    small_program_finish(p);
    expect_ok(trd__fuse_accumulate(p->program), "fuse accumulators");
}

static void known_cotangents_merge_forward_and_gradient(void **state)
{
    (void)state;
    small_program p;
    build_tied(&p, false);
    assert_int_equal(count_op(p.program, &trd__op_token_logprobs), 0);
    assert_int_equal(count_op(p.program, &trd__op_token_logprobs_grad), 1);
    small_program_end(&p);
    build_tied(&p, true);
    assert_int_equal(count_op(p.program, &trd__op_token_logprobs), 1);
    assert_int_equal(count_op(p.program, &trd__op_token_logprobs_grad), 1);
    small_program_end(&p);
}

/* The head's product and the lookup's scatter both go into the accumulator: no temporary of its size. */
static void tied_embedding_needs_no_temporary(void **state)
{
    (void)state;
    small_program p;
    build_tied(&p, false);
    assert_int_equal(count_op(p.program, &trd__op_accumulate), 0);
    const trd_node *last = p.program->outputs[p.program->output_count - 1].value.node;
    assert_ptr_equal(last->op, &trd__op_scatter_add_rows);
    assert_int_equal(last->input_count, 3);
    assert_ptr_equal(last->inputs[2].node->op, &trd__op_token_logprobs_grad);
    small_program_end(&p);
}

static void weight_gradient_is_one_product_over_all_rows(void **state)
{
    (void)state;
    small_program p;
    const trd_shape shapes[] = {TRD__SHAPE(B, T, C), TRD__SHAPE(V, C)};
    begin(&p, shapes, (trd_dtype[]){TRD_BF16, TRD_BF16}, 2);
    trd_builder *b = small_program_builder(&p);
    trd_value loss = trd_sum_all(b, trd_square(b, trd_linear(b, p.values[0], p.values[1])));
    small_tensor accumulator = small_tensor_make("gradient", TRD_F32, shapes[1]);
    small_program_differentiate(&p, loss, (int[]){1}, &accumulator, 1);
    small_program_finish(&p);
    expect_ok(trd__fuse_accumulate(p.program), "fuse accumulators");
    const trd_node *product = p.program->outputs[0].value.node;
    assert_ptr_equal(product->op, &trd__op_matmul);
    assert_int_equal(product->input_count, 3);
    assert_int_equal(trd_value_shape(product->inputs[0]).rank, 2);
    assert_int_equal(trd_value_shape(product->inputs[0]).dim[0], B * T);
    assert_int_equal(product->results[0].dtype, TRD_F32); /* not rounded to bfloat16 on its way */
    small_program_end(&p);
}

/* Equal tables are one node for cse, whatever the caller's struct holds between its fields. */
static void rope_tables_are_shared(void **state)
{
    (void)state;
    small_program p;
    const trd_shape shapes[] = {TRD__SHAPE(B, T, H, D), TRD__SHAPE(B, T)};
    begin(&p, shapes, (trd_dtype[]){TRD_F32, TRD_I32}, 2);
    trd_builder *b = small_program_builder(&p);
    trd_rows rows = {.positions = p.values[1]};
    for (int i = 0; i < 2; i++) {
        trd_rope_options options;
        memset(&options, i ? 0xab : 0, sizeof options);
        options.theta = 1e4;
        options.scaling = TRD_ROPE_DEFAULT;
        options.factor = options.low_freq_factor = options.high_freq_factor = 1;
        options.original_max_position_embeddings = options.partial_rotary_factor = 0;
        small_program_result(&p, "rotated", trd_rope(b, p.values[0], &rows, &options));
    }
    small_program_finish(&p);
    expect_ok(trd__cse(p.program), "cse");
    assert_int_equal(count_op(p.program, &trd__op_rope_table), 1);
    small_program_end(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_say_what_was_expected),
        cmocka_unit_test(model_flops_of_a_step),
        cmocka_unit_test(known_cotangents_merge_forward_and_gradient),
        cmocka_unit_test(tied_embedding_needs_no_temporary),
        cmocka_unit_test(weight_gradient_is_one_product_over_all_rows),
        cmocka_unit_test(rope_tables_are_shared),
    };
    return cmocka_run_group_tests_name("ops/rules", tests, NULL, NULL);
}
