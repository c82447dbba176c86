/* The run as one HTML page. Invariant: the file on disk is always a whole page (it is replaced atomically),
 * and the memory behind it does not grow with the run. */
#include <treadle/report.h>

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "report/chart.h"
#include "report/records.h"

/* The curves of the page, each with its evaluation twin where there is one. */
static const struct {
    const char *metric, *title;
} charts[] = {
    {"loss", "Loss"},
    {"learning_rate", "Learning rate"},
    {"gradient_norm", "Gradient norm"},
    {"tokens_per_second", "Tokens per second"},
};
enum { CHARTS = sizeof charts / sizeof *charts, MODES = TRD_METRIC_EVAL + 1 };

typedef struct html {
    char *path, *metrics_path;
    char *prefix;
    char *run_name;
    bool begun;              /* a run that ends before its first step leaves an older page alone */
    trd__text settings;      /* table rows */
    trd__text newest[MODES]; /* table rows of the newest step */
    int64_t step[MODES];
    trd__series series[CHARTS][MODES];
} html;

static void add(html *self, trd_metric_mode mode, int64_t step, const trd_metric *metrics, int count)
{
    for (int c = 0; c < CHARTS; c++) {
        const trd_metric *found = trd__metric_find(metrics, count, self->prefix, charts[c].metric);
        if (found) trd__series_add(&self->series[c][mode], (double)step, found->value);
    }
}

/* One record of an earlier part of the run. */
static trd_status add_record(void *user, const char *text, size_t bytes, const trd__record *record)
{
    (void)text;
    (void)bytes;
    html *self = user;
    for (trd__json v = trd__json_first(record->object); trd__json_exists(v); v = trd__json_next(v)) {
        double value;
        if (trd__json_kind_of(v) != TRD__JSON_NUMBER || trd__json_as_f64(v, &value) != TRD_OK) continue;
        trd_metric metric = {trd__json_key(v), value};
        add(self, record->mode, record->step, &metric, 1);
    }
    return TRD_OK;
}

static trd_status replace(char **copy, const char *text)
{
    trd__free(*copy);
    *copy = NULL;
    return !text || (*copy = trd__strdup(text)) ? TRD_OK : TRD_NO_MEMORY;
}

static trd_status begin(void *user, const trd_run_info *info)
{
    html *self = user;
    TRD_TRY(replace(&self->prefix, info->metrics_prefix));
    TRD_TRY(replace(&self->run_name, info->run_name));
    trd__text_free(&self->settings);
    for (int i = 0; i < info->setting_count; i++) {
        trd__text_put(&self->settings, "<tr><td>");
        trd__text_put_escaped(&self->settings, info->settings[i].name);
        trd__text_put(&self->settings, "<td>");
        trd__text_put_escaped(&self->settings, info->settings[i].value);
        trd__text_put(&self->settings, "\n");
    }
    TRD_TRY(self->settings.status);
    self->begun = true;
    memset(self->series, 0, sizeof self->series);
    for (int mode = 0; mode < MODES; mode++) trd__text_free(&self->newest[mode]);
    if (!self->metrics_path || info->resumed_step < 0) return TRD_OK;
    return trd__records_read(self->metrics_path, info->resumed_step, add_record, self);
}

static trd_status write_step(void *user, trd_metric_mode mode, int64_t step, const trd_metric *metrics,
                             int count)
{
    html *self = user;
    add(self, mode, step, metrics, count);
    trd__text *rows = &self->newest[mode];
    rows->bytes = 0; /* keeps its memory: a step allocates nothing once the table has its size */
    self->step[mode] = step;
    for (int i = 0; i < count; i++) {
        trd__text_put(rows, "<tr><td>");
        trd__text_put_escaped(rows, metrics[i].name);
        trd__text_put(rows, "<td>%.6g\n", metrics[i].value);
    }
    return rows->status;
}

static const char page_head[] =
    "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\">\n"
    "<style>:root{color-scheme:light dark;--ink:#1b1f24;--faint:#8884;--train:#2563eb;--eval:#d97706}\n"
    "@media(prefers-color-scheme:dark){:root{--ink:#e6e6e6;--train:#7aa7ff;--eval:#f5b041}}\n"
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 "
    "1rem;color:var(--ink)}\n"
    "svg{width:100%;height:auto;margin:.5rem 0}svg text{font-size:12px;fill:var(--ink)}svg "
    ".head{font-weight:600;"
    "font-size:14px}\n.end{text-anchor:end}.mid{text-anchor:middle}.grid{stroke:var(--faint)}polyline{fill:"
    "none;"
    "stroke-width:1.6}\npolyline.train{stroke:var(--train)}polyline.eval{stroke:var(--eval)}svg "
    "text.train,circle."
    "train{fill:var(--train)}svg text.eval,circle.eval{fill:var(--eval)}\ntable{border-collapse:collapse;"
    "margin:.5rem 0 1.5rem}td{padding:.15rem 1.2rem .15rem 0;border-bottom:1px solid var(--faint);"
    "overflow-wrap:anywhere}</style>\n";

static void put_page(const html *self, trd__text *page)
{
    static const char *const headings[MODES] = {"Newest step", "Newest evaluation"};
    trd__text_put(page, "%s<title>", page_head);
    trd__text_put_escaped(page, self->run_name ? self->run_name : "Training run");
    trd__text_put(page, "</title><h1>");
    trd__text_put_escaped(page, self->run_name ? self->run_name : "Training run");
    trd__text_put(page, "</h1>\n");
    for (int c = 0; c < CHARTS; c++) {
        trd__curve curves[MODES] = {{"train", "train", &self->series[c][TRD_METRIC_TRAIN]},
                                    {"eval", "eval", &self->series[c][TRD_METRIC_EVAL]}};
        int used = self->series[c][TRD_METRIC_EVAL].count > 0 ? MODES : 1;
        trd__chart_put(page, charts[c].title, curves, used);
    }
    for (int mode = 0; mode < MODES; mode++)
        if (self->newest[mode].bytes > 0)
            trd__text_put(page, "<h2>%s: %" PRId64 "</h2><table>%s</table>\n", headings[mode],
                          self->step[mode], self->newest[mode].data);
    if (self->settings.bytes > 0)
        trd__text_put(page, "<h2>Settings</h2><table>%s</table>\n", self->settings.data);
    trd__text_put(page, "</html>\n");
}

static trd_status flush(void *user)
{
    const html *self = user;
    if (!self->begun) return TRD_OK;
    trd__text page = {0};
    put_page(self, &page);
    trd_status status = page.status ? page.status : trd__file_save(self->path, page.data, page.bytes);
    trd__text_free(&page);
    return status;
}

static void release(html *self)
{
    for (int mode = 0; mode < MODES; mode++) trd__text_free(&self->newest[mode]);
    trd__text_free(&self->settings);
    trd__free(self->run_name);
    trd__free(self->prefix);
    trd__free(self->metrics_path);
    trd__free(self->path);
    trd__free(self);
}

static trd_status finish(void *user)
{
    trd_status status = flush(user);
    release(user);
    return status;
}

trd_status trd_report_html(const char *path, const char *metrics_path, trd_metric_sink *sink)
{
    *sink = (trd_metric_sink){0};
    TRD_TRY(trd__check_place(path, false));
    html *self = trd__calloc(1, sizeof *self);
    if (!self) return TRD_NO_MEMORY;
    self->path = trd__strdup(path);
    if (metrics_path) self->metrics_path = trd__strdup(metrics_path);
    if (!self->path || (metrics_path && !self->metrics_path)) {
        release(self);
        return TRD_NO_MEMORY;
    }
    *sink = (trd_metric_sink){begin, write_step, flush, finish, self};
    return TRD_OK;
}
