/* What the tests of graph and autodiff share: a program with one slot of inputs and one of results, and
 * questions about its graph. */
#ifndef TESTS_GRAPH_FIXTURE_H
#define TESTS_GRAPH_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <treadle/ops.h>

#include "base/shape.h"
#include "graph/passes.h"

enum { FIXTURE_INPUTS = 8, FIXTURE_RESULTS = 8 };

/* Slot 0: matrices (side, side) f32 "x0", "x1", ...; slot 1: results of the same type "y0", ... */
static inline trd__program *fixture_program_of(int64_t side)
{
    static const char *const x[] = {"x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7"};
    static const char *const y[] = {"y0", "y1", "y2", "y3", "y4", "y5", "y6", "y7"};
    trd__entry inputs[FIXTURE_INPUTS], results[FIXTURE_RESULTS];
    for (int i = 0; i < FIXTURE_INPUTS; i++)
        inputs[i] = (trd__entry){.name = x[i], .dtype = TRD_F32, .shape = TRD__SHAPE(side, side)};
    for (int i = 0; i < FIXTURE_RESULTS; i++)
        results[i] = (trd__entry){.name = y[i], .dtype = TRD_F32, .shape = TRD__SHAPE(side, side)};
    trd__program *p;
    assert_int_equal(trd__program_create("test", &p), TRD_OK);
    assert_int_equal(trd__program_slot(p, "inputs", TRD__READ, inputs, FIXTURE_INPUTS), 0);
    assert_int_equal(trd__program_slot(p, "results", TRD__WRITE, results, FIXTURE_RESULTS), 1);
    return p;
}

static inline trd__program *fixture_program(void)
{
    return fixture_program_of(4);
}

static inline trd_value fixture_input(trd__program *p, int i)
{
    return trd__program_input(p, 0, i);
}

static inline void fixture_output(trd__program *p, int i, trd_value v)
{
    trd__program_output(p, 1, i, v);
}

static inline void assert_valid(const trd__program *p)
{
    if (trd__verify(p) != TRD_OK) fail_msg("%s", trd_error_message());
}

static inline int count_op(const trd__program *p, const char *name)
{
    int count = 0;
    for (int i = 0; i < p->builder->graph.node_count; i++)
        count += strcmp(p->builder->graph.nodes[i]->op->name, name) == 0;
    return count;
}

static inline int count_recomputed(const trd__program *p, const char *name)
{
    int count = 0;
    for (int i = 0; i < p->builder->graph.node_count; i++) {
        const trd_node *n = p->builder->graph.nodes[i];
        count += n->recomputed && strcmp(n->op->name, name) == 0;
    }
    return count;
}

/* The program's text; free with free. */
static inline char *program_text(const trd__program *p)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    assert_non_null(stream);
    trd__program_print(p, stream);
    fclose(stream);
    return text;
}

#endif
