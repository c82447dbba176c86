/* The sub-commands of `treadle bench` and what they share. */
#ifndef TRD_CLI_BENCH_H
#define TRD_CLI_BENCH_H

#include "backend/cpu/product_rate.h"
#include "cli/run.h"

/* X(name, text): what an arm of the ablation tells after each loop; the text is its JSON key. Times of calls
 * are host time as trd_engine_stats counts it; busy times are the device's, of the whole loop,
 * but least_busy_ms: a step made of the shortest run that each program has had so far. */
#define CLI_ARM_LIST(X)                                                                                      \
    X(LOOP_MS, "loop_ms")                                                                                    \
    X(BUSY_MS, "busy_ms")                                                                                    \
    X(UPDATE_BUSY_MS, "update_busy_ms")                                                                      \
    X(LEAST_BUSY_MS, "least_busy_ms")                                                                        \
    X(HOST_MICRO_US, "host_us_per_micro_batch")                                                              \
    X(HOST_UPDATE_US, "host_us_per_update")                                                                  \
    X(WORST_STEP_MS, "worst_step_ms")                                                                        \
    X(PEAK_BYTES, "peak_rss_bytes")
typedef enum cli_arm_figure {
#define CLI_ARM_ENUM(name, text) CLI_ARM_##name,
    CLI_ARM_LIST(CLI_ARM_ENUM)
#undef CLI_ARM_ENUM
        CLI_ARM_COUNT
} cli_arm_figure;
extern const char *const cli_arm_names[CLI_ARM_COUNT];

enum { CLI_BENCH_STEPS = 128 }; /* most steps of an arm's loop: as many as the engine's history holds */

/* argv[0] is the first word after the sub-command; the exit code is returned. */
int cli_bench_arm(int argc, char **argv);
int cli_bench_ablation(int argc, char **argv);
int cli_bench_checkpoint(int argc, char **argv);
int cli_bench_host(int argc, char **argv);
int cli_bench_steady(int argc, char **argv);
extern const struct cli_command cli_command_bench;

/* Config and options for a run that touches no file and says nothing. */
trd_status cli_bench_config(cli_run *run, int words, char **argv);
/* Random ids for micro_batches of the run's shape, one after the other. Free with trd__free. */
trd_status cli_bench_tokens(const cli_run *run, int64_t micro_batches, int32_t **tokens);
/* The model's own products for one micro-batch: every linear layer, and the head for the rows that carry
 * loss. */
trd_status cli_bench_products(const cli_run *run, trd__product_bench **products);
/* Host time inside the engine's calls so far, in microseconds. */
double cli_bench_host_us(const cli_run *run);
/* Sorts values; share 0.5 is the median. NaN for none. */
double cli_quantile(double *values, int64_t count, double share);

#endif
