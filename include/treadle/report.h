/* Ready-made metric sinks for an engine's options (metrics.h): a JSONL file, TensorBoard event files,
 * progress on a stream and an HTML page.
 *
 * Each function fills *sink; whoever calls its close (an engine does when it closes) frees it. Paths are
 * copied. Files are opened by the sink's begin, so making a sink touches nothing. Errors: TRD_NO_MEMORY from
 * the makers, and TRD_IO where a folder is in the way of a file or the reverse; TRD_IO and TRD_NOT_FOUND with
 * the path from the sink's functions. */
#ifndef TREADLE_REPORT_H
#define TREADLE_REPORT_H

#include <stdbool.h>
#include <stdio.h>

#include <treadle/metrics.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One object a line: {"step": 3, "mode": "train", "loss": 2.5, ...}. A value that is not finite is null. When
 * a run is resumed, lines of later steps than the checkpoint's and a torn last line are taken out. */
TRD_API trd_status trd_report_jsonl(const char *path, trd_metric_sink *sink);

/* Event files in folder, tags "train/NAME" and "eval/NAME"; every begin starts a fresh file. */
TRD_API trd_status trd_report_tensorboard(const char *folder, trd_metric_sink *sink);

/* Where progress goes and what it looks like. */
typedef struct trd_progress_options {
    FILE *output;       /* stays the caller's */
    bool terminal;      /* a bar that is redrawn in place; else plain lines */
    int columns;        /* width of the terminal; 0: 80 */
    int64_t log_period; /* plain lines: every so many steps, besides the first and the last; 0: every step */
} trd_progress_options;

/* Step, loss, tokens per second and time left; an evaluation gets a line of its own. Never fails a run: what
 * the stream refuses is dropped. */
TRD_API trd_status trd_report_progress(const trd_progress_options *options, trd_metric_sink *sink);

/* One self-contained page: curves of loss, evaluation loss, learning rate, gradient norm and tokens per
 * second, the newest values, and the run's settings. Written on flush and close. Long runs are thinned, so
 * memory is bounded. metrics_path (may be NULL) names the run's metrics.jsonl: a resumed run shows its
 * earlier steps from it. */
TRD_API trd_status trd_report_html(const char *path, const char *metrics_path, trd_metric_sink *sink);

#ifdef __cplusplus
}
#endif
#endif
