/* Building: the sticky error and its text, names and axes, programs and what they refuse. */
#include "graph/fixture.h"

static void first_failure_sticks(void **state)
{
    (void)state;
    trd__program *p = fixture_program();
    trd_builder *b = p->builder;
    trd_value x = trd_name(b, trd_square(b, fixture_input(p, 0)), "layers.3.q");
    trd_value wrong = trd_scalar(b, TRD_I32, 1);
    int nodes = b->graph.node_count;
    assert_true(trd_is_null(trd_matmul(b, x, wrong, false, false, TRD_F32)));
    assert_int_equal(b->graph.node_count, nodes);

    /* Later builders do nothing and do not replace the message. */
    assert_true(trd_is_null(trd_add(b, x, trd_concat(b, NULL, 0, 0))));
    assert_true(trd_is_null(trd_builder_fail(b, TRD_IO, "later")));
    assert_int_equal(b->graph.node_count, nodes);
    trd__set_error_message("something else");
    assert_int_equal(trd_builder_status(b), TRD_SHAPE);
    const char *message = trd_error_message();
    assert_non_null(strstr(message, "matmul: "));
    assert_non_null(strstr(message, "layers.3.q (4, 4) float32"));
    assert_non_null(strstr(message, "constant () int32"));
    assert_int_equal(trd__verify(p), TRD_SHAPE);
    trd__program_free(p);
}

static void null_operand_is_refused(void **state)
{
    (void)state;
    trd__program *p = fixture_program();
    assert_true(trd_is_null(trd_exp(p->builder, (trd_value){NULL, 0})));
    assert_int_not_equal(trd_builder_status(p->builder), TRD_OK);
    assert_non_null(strstr(trd_error_message(), "exp: operand 0 expected a value, found null"));
    trd__program_free(p);
}

static void caller_can_fail_the_builder(void **state)
{
    (void)state;
    trd_builder *b;
    assert_int_equal(trd_builder_create(&b), TRD_OK);
    assert_true(trd_is_null(trd_builder_fail(b, TRD_UNSUPPORTED, "model %s: no heads", "x")));
    assert_int_equal(trd_builder_status(b), TRD_UNSUPPORTED);
    assert_string_equal(trd_error_message(), "model x: no heads");
    trd_builder_free(b);
    trd_builder_free(NULL);
}

static void names_are_formatted(void **state)
{
    (void)state;
    trd__program *p = fixture_program();
    trd_value x = fixture_input(p, 0);
    assert_string_equal(x.node->name, "x0");
    assert_string_equal(trd_name(p->builder, trd_neg(p->builder, x), "h%d", 2).node->name, "h2");
    trd__program_free(p);
}

static void axes_are_copied(void **state)
{
    (void)state;
    trd__program *p = fixture_program();
    char name[] = "embed";
    trd_value x = trd_axes(p->builder, fixture_input(p, 0), (const char *const[]){NULL, name});
    name[0] = '!';
    assert_null(trd__type_of(x)->axes[0]);
    assert_string_equal(trd__type_of(x)->axes[1], "embed");
    trd__program_free(p);
}

static void an_entry_has_one_leaf(void **state)
{
    (void)state;
    trd__program *p = fixture_program();
    assert_true(trd_same(fixture_input(p, 2), fixture_input(p, 2)));
    assert_false(trd_same(fixture_input(p, 2), fixture_input(p, 3)));
    assert_int_equal(p->builder->graph.node_count, 2);
    trd__program_free(p);
}

static void refuses(trd__program *p, trd_status status, const char *text)
{
    assert_int_equal(trd_builder_status(p->builder), status);
    if (!strstr(trd_error_message(), text)) fail_msg("\"%s\" lacks \"%s\"", trd_error_message(), text);
    trd__program_free(p);
}

static void outputs_must_fit(void **state)
{
    (void)state;
    trd__program *p = fixture_program();
    fixture_output(p, 0, trd_scalar(p->builder, TRD_F32, 1));
    refuses(p, TRD_SHAPE, "output \"y0\" expected (4, 4) float32, found () float32");

    p = fixture_program();
    fixture_output(p, 0, trd_cast(p->builder, fixture_input(p, 0), TRD_BF16));
    refuses(p, TRD_SHAPE, "found (4, 4) bfloat16");

    p = fixture_program();
    fixture_output(p, 1, fixture_input(p, 0));
    fixture_output(p, 1, fixture_input(p, 1));
    refuses(p, TRD_INVALID_ARGUMENT, "output \"y1\" of slot \"results\" is written twice");

    p = fixture_program();
    trd__program_output(p, 0, 0, fixture_input(p, 0));
    refuses(p, TRD_INVALID_ARGUMENT, "\"x0\" of slot \"inputs\" is not open to be written");

    p = fixture_program();
    trd__program_input(p, 1, 0);
    refuses(p, TRD_INVALID_ARGUMENT, "\"y0\" of slot \"results\" is not open to be read");

    p = fixture_program();
    trd__program_input(p, 0, FIXTURE_INPUTS);
    refuses(p, TRD_INVALID_ARGUMENT, "expected an entry below 8, found 8");
}

static void text_shows_names_attributes_and_outputs(void **state)
{
    (void)state;
    trd__program *p = fixture_program();
    trd_builder *b = p->builder;
    trd_value x = fixture_input(p, 0);
    trd_value y = trd_matmul(b, x, fixture_input(p, 1), false, true, TRD_F32);
    fixture_output(p, 3, trd_layer_boundary(b, trd_name(b, y, "product")));
    char *text = program_text(p);
    assert_string_equal(text,
                        "program test: 3 nodes\n"
                        "  %0 = input() {slot=0 entry=0} : float32 (4, 4) \"x0\"\n"
                        "  %1 = input() {slot=0 entry=1} : float32 (4, 4) \"x1\"\n"
                        "  %2 = matmul(%0, %1) {transpose=0,1} : float32 (4, 4) \"product\" [boundary]\n"
                        "  results.y3 <- %2\n");
    free(text);
    trd__program_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_failure_sticks),
        cmocka_unit_test(null_operand_is_refused),
        cmocka_unit_test(caller_can_fail_the_builder),
        cmocka_unit_test(names_are_formatted),
        cmocka_unit_test(axes_are_copied),
        cmocka_unit_test(an_entry_has_one_leaf),
        cmocka_unit_test(outputs_must_fit),
        cmocka_unit_test(text_shows_names_attributes_and_outputs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
