/* What the sinks share: metrics by name, and metrics.jsonl read back (what a resumed run keeps of it, what
 * its page shows). */
#ifndef TRD_REPORT_RECORDS_H
#define TRD_REPORT_RECORDS_H

#include <treadle/metrics.h>

#include "formats/json.h"

typedef struct trd__record {
    int64_t step;
    trd_metric_mode mode;
    trd__json object; /* the whole line; its numbers, beside step, are the metrics */
} trd__record;

typedef trd_status (*trd__record_function)(void *user, const char *text, size_t bytes,
                                           const trd__record *record);

/* Calls function for each line that is a whole record of a step up to last_step, in file order; other lines
 * (torn by a crash, later steps) are passed over. An absent file has no records. */
trd_status trd__records_read(const char *path, int64_t last_step, trd__record_function function, void *user);

/* The metric called prefix followed by name; NULL: none. prefix may be NULL. */
const trd_metric *trd__metric_find(const trd_metric *metrics, int count, const char *prefix,
                                   const char *name);

const char *trd__metric_mode_name(trd_metric_mode mode); /* "train", "eval" */

#endif
