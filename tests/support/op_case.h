/* One case table per op drives every check of it. A row gives operands and what to build from them; the modes
 * are
 *   fast         fast kernels against the plain ones: float32 and bfloat16, every instruction set at hand
 *   differences  gradients against central differences in float64 on plain kernels
 *   expand       the op in plain ops against its own plain kernel: every float dtype
 *   accumulate   gradients added to what an accumulator holds against gradient + accumulator
 *   repeat       two compilations and runs with the same number of threads give the same bits
 *   pjrt         XLA against the plain kernels, also adding to accumulators; only where --mode asks for it,
 *                with the plugin that PJRT_PLUGIN_LIBRARY_PATH names
 *   mesh         the same on meshes of four devices in both shard modes; by day every third case on one
 *
 * Options of a test program: --list, --coverage (names of the ops its cases reach), --case NAME, --mode MODE,
 * --seed N. */
#ifndef TRD_TESTS_OP_CASE_H
#define TRD_TESTS_OP_CASE_H

#include "base/shape.h"
#include "ops/attrs.h"
#include "support/small_program.h"

enum { OP_OPERANDS = 8, OP_PARAMETERS = 4, OP_RESULTS = 4 };

/* dtype of an operand that takes the dtype the case is run in. */
#define OP_FLOAT TRD_DTYPE_COUNT

typedef enum op_mode {
    OP_FAST,
    OP_DIFFERENCES,
    OP_EXPAND,
    OP_ACCUMULATE,
    OP_REPEAT,
    OP_PJRT,
    OP_MESH,
    OP_MODES
} op_mode;

typedef struct op_case op_case;
typedef struct op_operand op_operand;

/* Writes the operand's elements; stream differs from operand to operand. */
typedef void (*op_fill)(double *values, const op_operand *operand, uint64_t seed, uint64_t stream);

struct op_operand {
    const char *name;
    trd_dtype dtype;
    trd_shape shape;
    op_fill fill;
    double low, high; /* what fill makes of them is said at each */
    bool gradient;    /* differentiate by it */
};

struct op_case {
    const char *name;
    const trd_op *op; /* must occur in what build makes */
    op_operand operands[OP_OPERANDS];
    /* Returns the number of results written to out. */
    int (*build)(trd_builder *b, const op_case *c, const trd_value *in, trd_value *out);
    double parameter[OP_PARAMETERS];
    unsigned skip; /* bit m: leave out mode m, with the reason beside the row */
    bool f32_only; /* bfloat16 makes no sense here */
    double tolerance, bf16_tolerance, differences_tolerance; /* of the largest element; 0: the default */
};

/* Fills. uniform: [low, high). normal: mean low, deviation high. integers: whole numbers in [low, high).
 * booleans: true with probability high. constant: low. distinct: a shuffled low, low + high, low + 2 high...
 */
void op_uniform(double *values, const op_operand *operand, uint64_t seed, uint64_t stream);
void op_normal(double *values, const op_operand *operand, uint64_t seed, uint64_t stream);
void op_integers(double *values, const op_operand *operand, uint64_t seed, uint64_t stream);
void op_booleans(double *values, const op_operand *operand, uint64_t seed, uint64_t stream);
void op_constant(double *values, const op_operand *operand, uint64_t seed, uint64_t stream);
void op_distinct(double *values, const op_operand *operand, uint64_t seed, uint64_t stream);
/* Rows (B, T) of packed segments: `low` kind of rows, see op_rows; positions fit the segments of the same
 * kind, shape and seed. */
typedef enum op_rows {
    OP_ROWS_WHOLE,       /* one segment a row */
    OP_ROWS_PACKED,      /* several segments of random lengths, padding behind */
    OP_ROWS_LEFT_PADDED, /* padding, then one segment */
    OP_ROWS_WITH_EMPTY,  /* packed, but row 0 is all padding */
    OP_ROWS_WITH_GAPS    /* padding between the segments */
} op_rows;
void op_segments(double *values, const op_operand *operand, uint64_t seed, uint64_t stream);
void op_positions(double *values, const op_operand *operand, uint64_t seed, uint64_t stream);

/* Shorthands for operand rows; dims are the shape. */
#define OP_X(label, ...)                                                                                     \
    {                                                                                                        \
        .name = label, .dtype = OP_FLOAT, .shape = OP_SHAPE(__VA_ARGS__), .fill = op_normal, .high = 1,      \
        .gradient = true                                                                                     \
    }
#define OP_SHAPE(...)                                                                                        \
    {                                                                                                        \
        (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)),                                           \
        {                                                                                                    \
            __VA_ARGS__                                                                                      \
        }                                                                                                    \
    }

/* Runs every case in every mode as a cmocka test. */
int op_cases_main(int argc, char **argv, const char *group, const op_case *cases, size_t count);
#define OP_CASES_MAIN(group, cases)                                                                          \
    int main(int argc, char **argv)                                                                          \
    {                                                                                                        \
        return op_cases_main(argc, argv, group, cases, sizeof(cases) / sizeof *(cases));                     \
    }

#endif
