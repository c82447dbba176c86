/* The reference kernel that all elementwise ops share: blocks of elements are converted to one compute type,
 * put through a scalar function and converted back. Floats are computed in float32, float64 where an operand
 * is float64, integers and bool in 64 bits. It works in place. */
#ifndef TRD_BACKEND_CPU_ELEMENTWISE_H
#define TRD_BACKEND_CPU_ELEMENTWISE_H

#include "backend/cpu/kernel.h"

typedef struct trd__scalar_functions {
    const trd_op *op;
    float (*f32)(float x, float y, float z);
    double (*f64)(double x, double y, double z);
    int64_t (*i64)(int64_t x, int64_t y, int64_t z);
} trd__scalar_functions;

/* Defines the three functions of an op from expressions in x, y and z. */
#define TRD__SCALAR_FUNCTIONS(name, f32_expression, f64_expression, i64_expression)                          \
    static float name##_f32(float x, float y, float z)                                                       \
    {                                                                                                        \
        (void)x, (void)y, (void)z;                                                                           \
        return f32_expression;                                                                               \
    }                                                                                                        \
    static double name##_f64(double x, double y, double z)                                                   \
    {                                                                                                        \
        (void)x, (void)y, (void)z;                                                                           \
        return f64_expression;                                                                               \
    }                                                                                                        \
    static int64_t name##_i64(int64_t x, int64_t y, int64_t z)                                               \
    {                                                                                                        \
        (void)x, (void)y, (void)z;                                                                           \
        return i64_expression;                                                                               \
    }
#define TRD__SCALAR_ROW(name, f32_expression, f64_expression, i64_expression)                                \
    {&trd__op_##name, name##_f32, name##_f64, name##_i64},

/* A family's plan calls this with its table, which ends with a zeroed row. */
trd_status trd__elementwise_plan(const trd_node *n, trd__cpu_plan *plan, const trd__scalar_functions *table);
void trd__elementwise_run(const trd__cpu_call *call, int phase);

/* A family's whole file: the kernels of a list X(op, f32 expression, f64 expression, i64 expression), and the
 * table of its ops. */
#define TRD__SCALAR_OP(name, ...) {.op = &trd__op_##name, .variants = variants},
#define TRD__SCALAR_OPS(table, LIST)                                                                         \
    LIST(TRD__SCALAR_FUNCTIONS)                                                                              \
    static const trd__scalar_functions functions[] = {LIST(TRD__SCALAR_ROW){0}};                             \
    static trd_status plan(const trd_node *n, trd__cpu_plan *p)                                              \
    {                                                                                                        \
        return trd__elementwise_plan(n, p, functions);                                                       \
    }                                                                                                        \
    static const trd__cpu_kernel reference = {                                                               \
        .name = "reference", .plan = plan, .run = trd__elementwise_run};                                     \
    static const trd__cpu_kernel *const variants[] = {&reference, NULL};                                     \
    const trd__cpu_op table[] = {LIST(TRD__SCALAR_OP){0}};

#endif
