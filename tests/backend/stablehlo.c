/* Lowering to StableHLO text, without a plugin: what small programs look like, what arguments and results are
 * bound to, that no op is left out, literals, and running out of memory. That XLA takes the text and computes
 * the same is the matter of the op cases in mode "pjrt". */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "backend/pjrt/emit.h"
#include "backend/pjrt/lower.h"
#include "support/program.h"

#include "support/failing_heap.h"

/* w is updated, x and the row y are read, loss is written. */
static trd__program *make_step(void)
{
    trd__program *p;
    if (trd__program_create("step", &p) != TRD_OK) return NULL;
    trd_builder *b = p->builder;
    const trd__entry params[] = {test_entry("unused", TRD_F32, TRD__SHAPE(7)),
                                 test_entry("w 0", TRD_F32, TRD__SHAPE(2, 3))};
    const trd__entry inputs[] = {test_entry("x", TRD_BF16, TRD__SHAPE(2, 3)),
                                 test_entry("y", TRD_F32, TRD__SHAPE(3))};
    const trd__entry results[] = {test_entry("loss", TRD_F32, trd__shape_scalar())};
    int state = trd__program_slot(p, "params", TRD__UPDATE, params, 2);
    int read = trd__program_slot(p, "inputs", TRD__READ, inputs, 2);
    int written = trd__program_slot(p, "results", TRD__WRITE, results, 1);
    trd_value y = trd__program_input(p, read, 1), x = trd__program_input(p, read, 0);
    trd_value w = trd__program_input(p, state, 1);
    trd_value wide = trd_name(b, trd_cast(b, x, TRD_F32), "wide \"x\"");
    trd_value next = trd_add(b, trd_mul(b, wide, y), w);
    trd__program_output(p, written, 0, trd_reduce_sum(b, trd_tanh(b, x), 3, false, TRD_F32));
    trd__program_output(p, state, 1, trd_name(b, next, "next"));
    return p;
}

static const char step_text[] =
    "module @step {\n"
    "  func.func public @main(\n"
    "      %params.w_0_2: tensor<2x3xf32> {tf.aliasing_output = 1 : i32} loc(\"params.w_0\"),\n"
    "      %inputs.x_1: tensor<2x3xbf16> loc(\"inputs.x\"),\n"
    "      %inputs.y_0: tensor<3xf32> loc(\"inputs.y\")\n"
    "  ) -> (\n"
    "      tensor<f32>, // results.loss\n"
    "      tensor<2x3xf32> // params.w_0\n"
    "  ) {\n"
    "    %wide__x__3 = stablehlo.convert %inputs.x_1 : (tensor<2x3xbf16>) -> tensor<2x3xf32> "
    "loc(\"wide__x_/cast\")\n"
    "    %broadcast_4 = stablehlo.broadcast_in_dim %inputs.y_0, dims = [1] : (tensor<3xf32>) -> "
    "tensor<2x3xf32> loc(\"broadcast\")\n"
    "    %mul_5 = stablehlo.multiply %wide__x__3, %broadcast_4 : tensor<2x3xf32> loc(\"mul\")\n"
    "    %next_6 = stablehlo.add %mul_5, %params.w_0_2 : tensor<2x3xf32> loc(\"next/add\")\n"
    "    %tanh_7 = stablehlo.convert %inputs.x_1 : (tensor<2x3xbf16>) -> tensor<2x3xf32> loc(\"tanh\")\n"
    "    %tanh_7.1 = stablehlo.tanh %tanh_7 : tensor<2x3xf32> loc(\"tanh\")\n"
    "    %tanh_7.2 = stablehlo.convert %tanh_7.1 : (tensor<2x3xf32>) -> tensor<2x3xbf16> loc(\"tanh\")\n"
    "    %reduce_sum_8 = stablehlo.convert %tanh_7.2 : (tensor<2x3xbf16>) -> tensor<2x3xf64> "
    "loc(\"reduce_sum\")\n"
    "    %reduce_sum_8.1 = stablehlo.constant dense<0.0e+00> : tensor<f64> loc(\"reduce_sum\")\n"
    "    %reduce_sum_8.2 = stablehlo.reduce(%reduce_sum_8 init: %reduce_sum_8.1) applies stablehlo.add "
    "across "
    "dimensions = [1] : (tensor<2x3xf64>, tensor<f64>) -> tensor<2xf64> loc(\"reduce_sum\")\n"
    "    %reduce_sum_8.3 = stablehlo.constant dense<0.0e+00> : tensor<f64> loc(\"reduce_sum\")\n"
    "    %reduce_sum_8.4 = stablehlo.reduce(%reduce_sum_8.2 init: %reduce_sum_8.3) applies stablehlo.add "
    "across dimensions = [0] : (tensor<2xf64>, tensor<f64>) -> tensor<f64> loc(\"reduce_sum\")\n"
    "    %reduce_sum_8.5 = stablehlo.convert %reduce_sum_8.4 : (tensor<f64>) -> tensor<f32> "
    "loc(\"reduce_sum\")\n"
    "    return %reduce_sum_8.5, %next_6 : tensor<f32>, tensor<2x3xf32> loc(\"results\")\n"
    "  } loc(\"step\")\n"
    "} loc(\"step\")\n";

static void reads_well(void **state)
{
    (void)state;
    trd__program *p = make_step();
    trd__pjrt_module first, second;
    assert_int_equal(trd__pjrt_lower(p, NULL, &first), TRD_OK);
    assert_string_equal(first.text, step_text);
    assert_int_equal(first.bytes, strlen(step_text));
    assert_int_equal(trd__pjrt_lower(p, NULL, &second), TRD_OK);
    assert_string_equal(first.text, second.text);
    trd__pjrt_module_free(&first);
    trd__pjrt_module_free(&second);
    trd__program_free(p);
}

/* x is split over both axes; so is w, over data because it is asked for; y has no names. */
static const char mesh_begin[] =
    "module @layer {\n"
    "  sdy.mesh @mesh = <[\"data\"=2, \"fsdp\"=2]>\n"
    "  func.func public @main(\n"
    "      %inputs.x_0: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{\"data\", \"fsdp\"}, {}]>} "
    "loc(\"inputs.x\"),\n"
    "      %params.w_1: tensor<4x6xf32> {tf.aliasing_output = 0 : i32, sdy.sharding = #sdy.sharding<@mesh, "
    "[{\"fsdp\", \"data\"}, {}]>} loc(\"params.w\")\n"
    "  ) -> (\n"
    "      tensor<4x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{\"fsdp\", \"data\"}, {}]>}, // params.w\n"
    "      tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>} // results.y\n"
    "  ) {\n";
static const char mesh_constraint[] =
    "%y_3 = stablehlo.dot_general %inputs.x_0, %params.w_1, contracting_dims = [1] x [0] : "
    "(tensor<8x4xf32>, tensor<4x6xf32>) -> tensor<8x6xf32> loc(\"y/matmul\")\n"
    "    %y_3.1 = \"sdy.sharding_constraint\"(%y_3) <{sharding = #sdy.sharding<@mesh, [{\"data\", "
    "\"fsdp\"}, {?}]>}> : (tensor<8x6xf32>) -> tensor<8x6xf32> loc(\"y/matmul\")\n";

static trd__program *make_layer(void)
{
    trd__program *p;
    assert_int_equal(trd__program_create("layer", &p), TRD_OK);
    trd__entry x = test_entry("x", TRD_F32, TRD__SHAPE(8, 4)), w = test_entry("w", TRD_F32, TRD__SHAPE(4, 6));
    const trd__entry y = test_entry("y", TRD_F32, TRD__SHAPE(8, 6));
    x.axes[0] = "batch";
    w.axes[0] = "embed";
    w.over_data = true;
    int in = trd__program_slot(p, "inputs", TRD__READ, &x, 1);
    int params = trd__program_slot(p, "params", TRD__UPDATE, &w, 1);
    int out = trd__program_slot(p, "results", TRD__WRITE, &y, 1);
    trd_value a = trd__program_input(p, in, 0), b = trd__program_input(p, params, 0);
    trd__program_output(p, params, 0, trd_add(p->builder, b, b));
    trd__program_output(p, out, 0,
                        trd_name(p->builder, trd_matmul(p->builder, a, b, false, false, TRD_F32), "y"));
    return p;
}

static void says_where_parts_lie(void **state)
{
    (void)state;
    const trd__axis_rule rules[] = {{"batch", {TRD__MESH_DATA, TRD__MESH_FSDP}, 2},
                                    {"embed", {TRD__MESH_FSDP}, 1}};
    trd__placement mesh = {.size = {2, 2, 1, 1}, .hosts = {1, 1, 1, 1}, .rules = rules, .rule_count = 2};
    const trd__placement alone = {.size = {1, 1, 1, 1}, .hosts = {1, 1, 1, 1}, .explicit_mode = true};
    trd__program *p = make_layer();
    trd__pjrt_module m, n;
    for (int explicit = 0; explicit < 2; explicit ++) {
        mesh.explicit_mode = explicit;
        assert_int_equal(trd__pjrt_lower(p, &mesh, &m), TRD_OK);
        assert_memory_equal(m.text, mesh_begin, strlen(mesh_begin));
        assert_int_equal(strstr(m.text, mesh_constraint) != NULL, explicit);
        trd__pjrt_module_free(&m);
    }
    assert_int_equal(trd__pjrt_lower(p, NULL, &m), TRD_OK);
    assert_int_equal(trd__pjrt_lower(p, &alone, &n), TRD_OK);
    assert_string_equal(m.text, n.text);
    assert_null(strstr(m.text, "sdy."));
    trd__pjrt_module_free(&m);
    trd__pjrt_module_free(&n);
    trd__program_free(p);
}

static void expect_binding(const trd__pjrt_binding *have, int slot, int entry, int alias)
{
    assert_int_equal(have->slot, slot);
    assert_int_equal(have->entry, entry);
    assert_int_equal(have->alias, alias);
}

static void binds_arguments_and_results(void **state)
{
    (void)state;
    trd__program *p = make_step();
    trd__pjrt_module m;
    assert_int_equal(trd__pjrt_lower(p, NULL, &m), TRD_OK);
    assert_int_equal(m.argument_count, 3);
    expect_binding(&m.arguments[0], 0, 1, 1);
    expect_binding(&m.arguments[1], 1, 0, -1);
    expect_binding(&m.arguments[2], 1, 1, -1);
    assert_int_equal(m.result_count, 2);
    expect_binding(&m.results[0], 2, 0, -1);
    expect_binding(&m.results[1], 0, 1, 0);
    trd__pjrt_module_free(&m);
    trd__pjrt_module_free(&m);
    trd__program_free(p);
}

/* An entry of 1 MiB that is only written is an argument that nothing reads; a smaller one is none. */
static void large_results_take_the_old_memory(void **state)
{
    (void)state;
    const trd__entry in = {.name = "x", .dtype = TRD_F32, .shape = TRD__SHAPE(512)};
    const trd__entry out[] = {{.name = "small", .dtype = TRD_F32, .shape = TRD__SHAPE(511, 512)},
                              {.name = "large", .dtype = TRD_F32, .shape = TRD__SHAPE(512, 512)}};
    trd__program *p;
    trd__pjrt_module m;
    assert_int_equal(trd__program_create("outer", &p), TRD_OK);
    int inputs = trd__program_slot(p, "inputs", TRD__READ, &in, 1);
    int results = trd__program_slot(p, "results", TRD__WRITE, out, 2);
    trd_value x = trd__program_input(p, inputs, 0);
    for (int i = 0; i < 2; i++)
        trd__program_output(p, results, i, trd_broadcast(p->builder, x, out[i].shape));
    assert_int_equal(trd__pjrt_lower(p, NULL, &m), TRD_OK);
    assert_int_equal(m.argument_count, 2);
    expect_binding(&m.arguments[1], results, 1, 1);
    expect_binding(&m.results[0], results, 0, -1);
    expect_binding(&m.results[1], results, 1, 1);
    assert_non_null(
        strstr(m.text, "%results.large_memory: tensor<512x512xf32> {tf.aliasing_output = 1 : i32}"));
    trd__pjrt_module_free(&m);
    trd__program_free(p);
}

static void every_op_has_a_form(void **state)
{
    (void)state;
    for (int i = 0; i < trd__op_count(); i++) {
        const trd_op *op = trd__op_at(i);
        if (op == &trd__op_input || trd__pjrt_find(op) || op->expand) continue;
        fail_msg("%s has neither a row in its family's table nor an expansion", op->name);
    }
}

static trd_status infer_strange(const trd_node *n, trd__type *results)
{
    (void)n;
    results[0] = (trd__type){.dtype = TRD_F32};
    return TRD_OK;
}

static void names_an_op_without_a_form(void **state)
{
    (void)state;
    static const trd_op strange = {.name = "strange", .results = 1, .infer = infer_strange};
    const trd__entry entry = test_entry("y", TRD_F32, trd__shape_scalar());
    trd__program *p;
    trd__pjrt_module m;
    assert_int_equal(trd__program_create("p", &p), TRD_OK);
    int slot = trd__program_slot(p, "results", TRD__WRITE, &entry, 1);
    trd__program_output(p, slot, 0,
                        trd_name(p->builder, trd__add_node(p->builder, &strange, NULL, NULL, 0), "here"));
    assert_int_equal(trd__pjrt_lower(p, NULL, &m), TRD_UNSUPPORTED);
    assert_non_null(strstr(trd_error_message(), "strange \"here\""));
    assert_null(m.text);
    trd__program_free(p);
}

static void literals_keep_every_bit(void **state)
{
    (void)state;
    const struct {
        trd_dtype dtype;
        double value;
        const char *text;
    } rows[] = {{TRD_F32, 1, "1.0e+00"},
                {TRD_F32, -1e30, "-1.0e+30"},
                {TRD_F32, 1.0 / 3, "3.3333334e-01"},
                {TRD_F64, 1.0 / 3, "3.333333333333333e-01"},
                {TRD_BF16, 1.0 / 3, "3.3398438e-01"},
                {TRD_F16, 1e-7, "1.1920929e-07"},
                {TRD_F32, INFINITY, "0x7F800000"},
                {TRD_F64, -INFINITY, "0xFFF0000000000000"},
                {TRD_BF16, -INFINITY, "0xFF80"},
                {TRD_F16, INFINITY, "0x7C00"},
                {TRD_I32, -2147483648.0, "-2147483648"},
                {TRD_U8, 255, "255"},
                {TRD_BOOL, 1, "true"},
                {TRD_BOOL, 0, "false"}};
    trd__emitter e = {.arena = trd__arena_create()};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_string_equal(trd__hlo_literal(&e, rows[i].dtype, rows[i].value), rows[i].text);
    assert_int_equal(e.status, TRD_OK);
    trd__arena_free(e.arena);
}

/* Two nodes of one name, and a name that looks like another's number, are still two values. */
static void names_are_unique(void **state)
{
    (void)state;
    const trd__entry entries[] = {test_entry("x", TRD_BF16, TRD__SHAPE(2)),
                                  test_entry("y", TRD_BF16, TRD__SHAPE(2))};
    trd__program *p;
    trd__pjrt_module m;
    assert_int_equal(trd__program_create("names", &p), TRD_OK);
    trd_builder *b = p->builder;
    int slot = trd__program_slot(p, "s", TRD__UPDATE, entries, 2);
    trd_value x = trd__program_input(p, slot, 0);
    x = trd_name(b, trd_exp(b, x), "1st");
    x = trd_name(b, trd_exp(b, x), "1st");
    trd__program_output(p, slot, 1, trd_name(b, trd_tanh(b, x), "1st_2.1"));
    assert_int_equal(trd__pjrt_lower(p, NULL, &m), TRD_OK);
    const char *names[] = {"%_1st_1 =", "%_1st_1.1 =", "%_1st_2 =", "%_1st_2.1 =", "%_1st_2.1_3 ="};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *first = strstr(m.text, names[i]);
        assert_non_null(first);
        assert_null(strstr(first + 1, names[i]));
    }
    trd__pjrt_module_free(&m);
    trd__program_free(p);
}

/* A copy made for the backward part keeps apart from what it was copied from. */
static void what_is_computed_again_stands_behind_a_barrier(void **state)
{
    (void)state;
    const trd__entry entry = test_entry("x", TRD_F32, TRD__SHAPE(2));
    trd__program *p;
    trd__pjrt_module m;
    assert_int_equal(trd__program_create("again", &p), TRD_OK);
    trd_builder *b = p->builder;
    int slot = trd__program_slot(p, "s", TRD__UPDATE, &entry, 1);
    trd_value x = trd_neg(b, trd__program_input(p, slot, 0)), once = trd_exp(b, x);
    trd_node *again = trd__node_copy(b, once.node);
    assert_non_null(again);
    again->recomputed = true;
    trd__program_output(p, slot, 0, trd_add(b, once, trd__result(again, 0)));
    assert_int_equal(trd__pjrt_lower(p, NULL, &m), TRD_OK);
    assert_non_null(strstr(m.text, "%exp_3 = stablehlo.optimization_barrier %neg_1 : tensor<2xf32>"));
    assert_non_null(strstr(m.text, "%exp_3.1 = stablehlo.exponential %exp_3 : tensor<2xf32>"));
    trd__pjrt_module_free(&m);
    trd__program_free(p);
}

/* Whether the text of (a cast to float32) x (b cast to float32) has a product of the line. */
static void expect_product(trd_dtype a, trd_dtype b_dtype, const char *line)
{
    const trd__entry entries[] = {test_entry("a", a, TRD__SHAPE(2, 3)),
                                  test_entry("b", b_dtype, TRD__SHAPE(3, 2)),
                                  test_entry("c", TRD_F32, TRD__SHAPE(2, 2))};
    trd__program *p;
    trd__pjrt_module m;
    assert_int_equal(trd__program_create("product", &p), TRD_OK);
    trd_builder *b = p->builder;
    int slot = trd__program_slot(p, "s", TRD__UPDATE, entries, 3);
    trd_value x = trd_cast(b, trd__program_input(p, slot, 0), TRD_F32);
    trd_value y = trd_cast(b, trd__program_input(p, slot, 1), TRD_F32);
    trd__program_output(p, slot, 2, trd_matmul(b, x, y, false, false, TRD_F32));
    assert_int_equal(trd__pjrt_lower(p, NULL, &m), TRD_OK);
    if (!strstr(m.text, line)) fail_msg("no \"%s\" in\n%s", line, m.text);
    trd__pjrt_module_free(&m);
    trd__program_free(p);
}

static void widened_operands_are_taken_narrow(void **state)
{
    (void)state;
    expect_product(TRD_BF16, TRD_BF16, "(tensor<2x3xbf16>, tensor<3x2xbf16>) -> tensor<2x2xf32>");
    expect_product(TRD_F16, TRD_F16, "(tensor<2x3xf16>, tensor<3x2xf16>) -> tensor<2x2xf32>");
    expect_product(TRD_F16, TRD_BF16, "(tensor<2x3xf32>, tensor<3x2xf32>) -> tensor<2x2xf32>");
    expect_product(TRD_F64, TRD_F64, "(tensor<2x3xf32>, tensor<3x2xf32>) -> tensor<2x2xf32>");
    expect_product(TRD_F32, TRD_BF16, "(tensor<2x3xf32>, tensor<3x2xf32>) -> tensor<2x2xf32>");
}

static trd_status lower_once(void *context)
{
    trd__pjrt_module m;
    trd_status status = trd__pjrt_lower(context, NULL, &m);
    trd__pjrt_module_free(&m);
    return status;
}

static void runs_out_of_memory_cleanly(void **state)
{
    (void)state;
    trd__program *p = make_step();
    assert_true(heap_fail_each("lowering", lower_once, p, false, 1, NULL) > 10);
    trd__program_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_well),
        cmocka_unit_test(says_where_parts_lie),
        cmocka_unit_test(binds_arguments_and_results),
        cmocka_unit_test(large_results_take_the_old_memory),
        cmocka_unit_test(every_op_has_a_form),
        cmocka_unit_test(names_an_op_without_a_form),
        cmocka_unit_test(literals_keep_every_bit),
        cmocka_unit_test(names_are_unique),
        cmocka_unit_test(what_is_computed_again_stands_behind_a_barrier),
        cmocka_unit_test(widened_operands_are_taken_narrow),
        cmocka_unit_test(runs_out_of_memory_cleanly),
    };
    return cmocka_run_group_tests_name("backend/stablehlo", tests, NULL, NULL);
}
