/* Every op of ops.def occurs in the cases of its family's test program, which lies beside this one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "ops/attrs.h"

typedef struct listed {
    const char *name, *family;
} listed;

#define TRD_OP(op_name, op_family) {#op_name, #op_family},
static const listed ops[] = {
#include "ops/ops.def"
};
#undef TRD_OP

static const char *program;

/* Whether the family's test program says that its cases reach the op. */
static bool covered(const listed *op)
{
    char command[1024], line[128];
    int folder = (int)(strrchr(program, '/') ? strrchr(program, '/') - program : -1);
    snprintf(command, sizeof command, "\"%.*s%stest_ops_%s\" --coverage", folder < 0 ? 0 : folder, program,
             folder < 0 ? "./" : "/", op->family);
    FILE *names = popen(command, "r");
    assert_non_null(names);
    bool found = false;
    while (fgets(line, sizeof line, names)) {
        line[strcspn(line, "\n")] = '\0';
        found |= strcmp(line, op->name) == 0;
    }
    if (pclose(names) != 0) fail_msg("%s failed", command);
    return found;
}

static void every_op_has_a_case(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (!covered(&ops[i])) fail_msg("op %s has no case in tests/ops/%s.c", ops[i].name, ops[i].family);
}

static void registry_holds_every_op(void **state)
{
    (void)state;
    assert_int_equal(trd__op_count(), sizeof ops / sizeof *ops);
    for (int i = 0; i < trd__op_count(); i++) {
        const trd_op *op = trd__op_at(i);
        assert_string_equal(op->name, ops[i].name);
        assert_non_null(op->infer);
    }
}

/* An op either has a gradient, says that it has none, or is itself a gradient. */
static void every_op_says_whether_it_is_differentiable(void **state)
{
    (void)state;
    for (int i = 0; i < trd__op_count(); i++) {
        const trd_op *op = trd__op_at(i);
        bool is_gradient = strstr(op->name, "_grad") != NULL && strcmp(op->name, "stop_gradient") != 0;
        bool none = op->flags & (TRD__OP_NOT_DIFFERENTIABLE | TRD__OP_LEAF);
        bool given = op->gradient || op->split_gradient;
        if (given == (none || is_gradient)) fail_msg("%s", op->name);
    }
}

int main(int argc, char **argv)
{
    (void)argc;
    program = argv[0];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(registry_holds_every_op),
        cmocka_unit_test(every_op_says_whether_it_is_differentiable),
        cmocka_unit_test(every_op_has_a_case),
    };
    return cmocka_run_group_tests_name("ops/coverage", tests, NULL, NULL);
}
