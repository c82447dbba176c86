/* Progress on a stream: a bar redrawn in place on a terminal, plain lines elsewhere. Invariant: text that
 * stays (evaluations, plain lines) always ends in a newline and never shares a line with the bar. */
#include <treadle/report.h>

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/status.h"
#include "report/records.h"

enum { DEFAULT_COLUMNS = 80, BAR_MAX = 30, BAR_MIN = 8, LINE_BYTES = 512 };
static const uint64_t REDRAW_NS = 100000000; /* ten a second is smooth and costs nothing */
static const double SMOOTHING = 0.1;         /* weight of the newest step in the mean that predicts the end */

typedef struct progress {
    trd_progress_options options;
    char *prefix; /* before every metric's name */
    int64_t total_steps;
    int64_t first_step; /* -1: no step seen yet */
    int64_t last_step;
    double step_seconds; /* smoothed; 0: unknown */
    uint64_t last_ns, drawn_ns;
    bool bar_drawn;
} progress;

/* What a plain line shows, in this order, where the step has it. */
static const struct {
    const char *name, *format;
} fields[] = {
    {"loss", "  loss %.4f"},
    {"learning_rate", "  learning_rate %.3g"},
    {"total_weights", "  total_weights %.0f"},
    {"gradient_norm", "  gradient_norm %.4g"},
    {"step_skipped", "  step_skipped %.0f"},
    {"step_time", "  step_time %.3f s"},
    {"tflops", "  tflops %.3f"},
    {"tokens_per_second", "  tokens_per_second %.0f"},
};

/* The value of a metric of this step, or NULL. */
static const double *find(const progress *self, const trd_metric *metrics, int count, const char *name)
{
    const trd_metric *found = trd__metric_find(metrics, count, self->prefix, name);
    return found ? &found->value : NULL;
}

static trd_status begin(void *user, const trd_run_info *info)
{
    progress *self = user;
    trd__free(self->prefix);
    self->prefix = NULL;
    self->total_steps = info->total_steps;
    self->first_step = -1;
    self->step_seconds = 0;
    self->last_ns = trd__now_ns();
    if (info->metrics_prefix && *info->metrics_prefix && !(self->prefix = trd__strdup(info->metrics_prefix)))
        return TRD_NO_MEMORY;
    return TRD_OK;
}

/* Appends to a line of LINE_BYTES, cutting what does not fit. */
static void append(char *line, size_t *used, const char *format, double value)
{
    int wrote = snprintf(line + *used, LINE_BYTES - *used, format, value);
    if (wrote > 0) *used += (size_t)wrote < LINE_BYTES - *used ? (size_t)wrote : LINE_BYTES - 1 - *used;
}

static void append_time_left(const progress *self, char *line, size_t *used)
{
    if (self->total_steps <= 0 || self->step_seconds <= 0) return;
    double seconds = self->step_seconds * (double)(self->total_steps - self->last_step);
    if (seconds < 0 || seconds > 1e9) return;
    long left = lround(seconds);
    int wrote = left >= 3600
                    ? snprintf(line + *used, LINE_BYTES - *used, "  ETA %ld:%02ld:%02ld", left / 3600,
                               left / 60 % 60, left % 60)
                    : snprintf(line + *used, LINE_BYTES - *used, "  ETA %ld:%02ld", left / 60, left % 60);
    if (wrote > 0 && (size_t)wrote < LINE_BYTES - *used) *used += (size_t)wrote;
}

static void append_step(const progress *self, char *line, size_t *used)
{
    append(line, used, "step %.0f", (double)self->last_step);
    if (self->total_steps > 0) append(line, used, "/%.0f", (double)self->total_steps);
}

static void plain_line(progress *self, const trd_metric *metrics, int count)
{
    char line[LINE_BYTES];
    size_t used = 0;
    append_step(self, line, &used);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const double *value = find(self, metrics, count, fields[i].name);
        if (value) append(line, &used, fields[i].format, *value);
    }
    append_time_left(self, line, &used);
    fprintf(self->options.output, "%s\n", line);
}

static void clear_bar(progress *self)
{
    if (self->bar_drawn) fputs("\r\x1b[K", self->options.output);
    self->bar_drawn = false;
}

static void draw_bar(progress *self, const trd_metric *metrics, int count)
{
    char line[LINE_BYTES];
    size_t used = 0;
    const double *loss = find(self, metrics, count, "loss");
    const double *rate = find(self, metrics, count, "tokens_per_second");
    append_step(self, line, &used);
    if (loss) append(line, &used, "  loss %.4f", *loss);
    if (rate) append(line, &used, "  %.0f tokens/s", *rate);
    append_time_left(self, line, &used);
    int room = self->options.columns - 1 - (int)used - 3; /* brackets and a space */
    int width = room < BAR_MAX ? room : BAR_MAX;
    clear_bar(self);
    if (self->total_steps > 0 && width >= BAR_MIN) {
        int64_t done = self->last_step * width / self->total_steps;
        fputc('[', self->options.output);
        for (int i = 0; i < width; i++) fputc(i < done ? '=' : i == done ? '>' : ' ', self->options.output);
        fputs("] ", self->options.output);
    }
    fprintf(self->options.output, "%.*s", self->options.columns - 1, line);
    self->bar_drawn = true;
}

static void eval_line(progress *self, int64_t step, const trd_metric *metrics, int count)
{
    char line[LINE_BYTES];
    size_t used = 0;
    append(line, &used, "eval at step %.0f", (double)step);
    const double *loss = find(self, metrics, count, "loss");
    const double *perplexity = find(self, metrics, count, "perplexity");
    if (loss) append(line, &used, "  loss %.4f", *loss);
    if (perplexity) append(line, &used, "  perplexity %.4g", *perplexity);
    clear_bar(self);
    fprintf(self->options.output, "%s\n", line);
}

/* The first step after a begin holds compilation, so it predicts nothing. */
static void note_step(progress *self, int64_t step)
{
    uint64_t now = trd__now_ns();
    if (self->first_step >= 0 && step > self->last_step) {
        double each = (double)(now - self->last_ns) * 1e-9 / (double)(step - self->last_step);
        self->step_seconds =
            self->step_seconds > 0 ? self->step_seconds + SMOOTHING * (each - self->step_seconds) : each;
    }
    if (self->first_step < 0) self->first_step = step;
    self->last_step = step;
    self->last_ns = now;
}

static bool shows(const progress *self, int64_t step)
{
    int64_t period = self->options.log_period;
    return period <= 1 || step % period == 0 || step == self->first_step || step == self->total_steps;
}

static trd_status write_step(void *user, trd_metric_mode mode, int64_t step, const trd_metric *metrics,
                             int count)
{
    progress *self = user;
    if (mode == TRD_METRIC_EVAL) {
        eval_line(self, step, metrics, count);
        self->last_ns = trd__now_ns(); /* an evaluation is not part of a step's time */
    } else {
        note_step(self, step);
        if (!self->options.terminal) {
            if (shows(self, step)) plain_line(self, metrics, count);
        } else if (self->last_ns - self->drawn_ns >= REDRAW_NS || step == self->total_steps) {
            draw_bar(self, metrics, count);
            self->drawn_ns = self->last_ns;
        }
    }
    fflush(self->options.output);
    return TRD_OK;
}

static trd_status finish(void *user)
{
    progress *self = user;
    if (self->bar_drawn) fputc('\n', self->options.output);
    fflush(self->options.output);
    trd__free(self->prefix);
    trd__free(self);
    return TRD_OK;
}

trd_status trd_report_progress(const trd_progress_options *options, trd_metric_sink *sink)
{
    *sink = (trd_metric_sink){0};
    if (!options->output)
        return trd__fail(TRD_INVALID_ARGUMENT, "reporting progress: expected a stream, found none");
    progress *self = trd__calloc(1, sizeof *self);
    if (!self) return TRD_NO_MEMORY;
    self->options = *options;
    if (self->options.columns <= 0) self->options.columns = DEFAULT_COLUMNS;
    self->first_step = -1;
    *sink = (trd_metric_sink){begin, write_step, NULL, finish, self};
    return TRD_OK;
}
