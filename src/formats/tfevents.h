/* Writes scalars to a TensorBoard event file: records of a protobuf Event framed by length and masked
 * CRC-32C. Invariant: after a successful flush the file holds whole records only. One thread at a time per
 * file. */
#ifndef TRD_FORMATS_TFEVENTS_H
#define TRD_FORMATS_TFEVENTS_H

#include <stdint.h>

#include "base/status.h"

typedef struct trd__tfevents trd__tfevents;

/* Creates "events.out.tfevents.<seconds>.<host>.<process>.<n>" in folder, which must exist, and never touches
 * an older one. */
trd_status trd__tfevents_open(const char *folder, trd__tfevents **events);
/* Buffered; the wall time is now. */
trd_status trd__tfevents_scalar(trd__tfevents *events, const char *tag, int64_t step, double value);
trd_status trd__tfevents_flush(trd__tfevents *events);
trd_status trd__tfevents_close(trd__tfevents *events); /* flushes; frees in any case; NULL is fine */

#endif
