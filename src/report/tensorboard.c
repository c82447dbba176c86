/* TensorBoard event files. Invariant: a begin never touches an older file, as a reader may hold it open. */
#include <treadle/report.h>

#include "base/alloc.h"
#include "base/file.h"
#include "formats/tfevents.h"
#include "report/records.h"

enum { TAG_BYTES = 512 };

typedef struct tensorboard {
    char *folder;
    trd__tfevents *events;
} tensorboard;

static trd_status close_events(tensorboard *self)
{
    trd__tfevents *events = self->events;
    self->events = NULL;
    return trd__tfevents_close(events);
}

static trd_status begin(void *user, const trd_run_info *info)
{
    (void)info;
    tensorboard *self = user;
    TRD_TRY(close_events(self));
    TRD_TRY(trd__make_directories(self->folder));
    return trd__tfevents_open(self->folder, &self->events);
}

static trd_status write_step(void *user, trd_metric_mode mode, int64_t step, const trd_metric *metrics,
                             int count)
{
    tensorboard *self = user;
    if (!self->events)
        return trd__fail(TRD_STATE, "writing events to %s: expected begin to come before", self->folder);
    for (int i = 0; i < count; i++) {
        char tag[TAG_BYTES]; /* no allocation in a step */
        snprintf(tag, sizeof tag, "%s/%s", trd__metric_mode_name(mode), metrics[i].name);
        TRD_TRY(trd__tfevents_scalar(self->events, tag, step, metrics[i].value));
    }
    return TRD_OK;
}

static trd_status flush(void *user)
{
    tensorboard *self = user;
    return self->events ? trd__tfevents_flush(self->events) : TRD_OK;
}

static trd_status finish(void *user)
{
    tensorboard *self = user;
    trd_status status = close_events(self);
    trd__free(self->folder);
    trd__free(self);
    return status;
}

trd_status trd_report_tensorboard(const char *folder, trd_metric_sink *sink)
{
    *sink = (trd_metric_sink){0};
    TRD_TRY(trd__check_place(folder, true));
    tensorboard *self = trd__calloc(1, sizeof *self);
    if (!self) return TRD_NO_MEMORY;
    self->folder = trd__strdup(folder);
    if (!self->folder) {
        trd__free(self);
        return TRD_NO_MEMORY;
    }
    *sink = (trd_metric_sink){begin, write_step, flush, finish, self};
    return TRD_OK;
}
