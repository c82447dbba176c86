/* metrics.jsonl: appended to while the run goes on. Invariant: after begin the file holds whole lines only,
 * none of a step later than the checkpoint's. */
#include <treadle/report.h>

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "formats/json.h"
#include "report/records.h"

typedef struct jsonl {
    char *path;
    FILE *file;
    trd__json_writer line;
} jsonl;

static trd_status write_error(const jsonl *self)
{
    return trd__fail(errno == ENOMEM ? TRD_NO_MEMORY : TRD_IO, "writing %s: %s", self->path, strerror(errno));
}

static trd_status keep_line(void *user, const char *text, size_t bytes, const trd__record *record)
{
    (void)record;
    trd__file_writer *kept = user;
    TRD_TRY(trd__file_write(kept, text, bytes));
    return trd__file_write(kept, "\n", 1);
}

/* Rewrites the file with the records up to the step, atomically. */
static trd_status drop_after(const char *path, int64_t step)
{
    if (!trd__file_exists(path)) return TRD_OK;
    trd__file_writer *kept;
    TRD_TRY(trd__file_writer_open(path, &kept));
    trd_status status = trd__records_read(path, step, keep_line, kept);
    if (!status) return trd__file_writer_commit(kept);
    trd__file_writer_abandon(kept);
    return status;
}

static trd_status begin(void *user, const trd_run_info *info)
{
    jsonl *self = user;
    if (self->file) fclose(self->file);
    self->file = NULL;
    TRD_TRY(drop_after(self->path, info->resumed_step));
    self->file = fopen(self->path, "ae");
    return self->file ? TRD_OK : write_error(self);
}

static trd_status write_step(void *user, trd_metric_mode mode, int64_t step, const trd_metric *metrics,
                             int count)
{
    jsonl *self = user;
    if (!self->file) return trd__fail(TRD_STATE, "writing %s: expected begin to come before", self->path);
    trd__json_clear(&self->line);
    trd__json_open_object(&self->line);
    trd__json_put_i64(&self->line, "step", step);
    trd__json_put_string(&self->line, "mode", trd__metric_mode_name(mode));
    for (int i = 0; i < count; i++) trd__json_put_f64(&self->line, metrics[i].name, metrics[i].value);
    trd__json_close(&self->line);
    TRD_TRY(trd__json_finish(&self->line));
    if (fwrite(self->line.text, 1, self->line.bytes, self->file) != self->line.bytes ||
        fputc('\n', self->file) < 0)
        return write_error(self);
    return TRD_OK;
}

static trd_status flush(void *user)
{
    jsonl *self = user;
    return self->file && fflush(self->file) != 0 ? write_error(self) : TRD_OK;
}

static trd_status finish(void *user)
{
    jsonl *self = user;
    trd_status status = self->file && fclose(self->file) != 0 ? write_error(self) : TRD_OK;
    trd__json_writer_free(&self->line);
    trd__free(self->path);
    trd__free(self);
    return status;
}

trd_status trd_report_jsonl(const char *path, trd_metric_sink *sink)
{
    *sink = (trd_metric_sink){0};
    TRD_TRY(trd__check_place(path, false));
    jsonl *self = trd__calloc(1, sizeof *self);
    if (!self) return TRD_NO_MEMORY;
    self->path = trd__strdup(path);
    if (!self->path) {
        trd__free(self);
        return TRD_NO_MEMORY;
    }
    *sink = (trd_metric_sink){begin, write_step, flush, finish, self};
    return TRD_OK;
}
