/* Flags of XLA's compiler as compile_xla_flags gives them. Only names of flags.def pass: a plugin may end the
 * process over others. They go into the options of each compile, never into the environment. */
#ifndef TRD_BACKEND_PJRT_FLAGS_H
#define TRD_BACKEND_PJRT_FLAGS_H

#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"

typedef enum trd__xla_flag_kind {
    TRD__XLA_FLAG_BOOL,
    TRD__XLA_FLAG_INT,
    TRD__XLA_FLAG_TEXT
} trd__xla_flag_kind;

typedef struct trd__xla_flag {
    const char *name;
    trd__xla_flag_kind kind;
    int64_t number; /* a bool's is 0 or 1 */
    const char *text;
} trd__xla_flag;

typedef struct trd__xla_flags {
    trd__xla_flag *flags;
    int count;
} trd__xla_flags;

/* Reads "--name=value --name=value ..."; a bool may leave "=true" out. All of it lives in the arena; text
 * NULL or empty: none. An unknown name is TRD_INVALID_ARGUMENT and tells the nearest known one. */
trd_status trd__xla_flags_parse(trd__arena *arena, const char *text, trd__xla_flags *flags);

#endif
