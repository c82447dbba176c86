/* One window of a profile as a file in Chrome's trace event format, which Perfetto reads. */
#ifndef TRD_ENGINE_TRACE_FILE_H
#define TRD_ENGINE_TRACE_FILE_H

#include "base/recorder.h"

typedef struct trd__trace_window {
    int64_t first, count; /* micro-batches before it, and in it */
    uint64_t begin_ns, end_ns;
    int workers;
} trd__trace_window;

/* Empties the recorder's tracks into <directory>/trace-<first>.json, made with its folder where there is
 * none. Spans that began before the window are left out. *dropped: spans that had found no room. */
trd_status trd__trace_file_write(trd__recorder *recorder, const trd__trace_window *window,
                                 const char *directory, uint64_t *dropped);

#endif
