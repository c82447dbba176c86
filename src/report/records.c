/* Records are small, so each line is parsed on its own and dropped again. */
#include "report/records.h"

#include <string.h>

#include "formats/jsonl.h"

static const char *const mode_names[] = {
#define MODE_NAME(name, text) text,
    TRD_METRIC_MODE_LIST(MODE_NAME)
#undef MODE_NAME
};
enum { MODES = sizeof mode_names / sizeof *mode_names };

const char *trd__metric_mode_name(trd_metric_mode mode)
{
    return mode_names[mode];
}

const trd_metric *trd__metric_find(const trd_metric *metrics, int count, const char *prefix, const char *name)
{
    size_t skip = prefix ? strlen(prefix) : 0;
    for (int i = 0; i < count; i++)
        if (strncmp(metrics[i].name, prefix ? prefix : "", skip) == 0 &&
            strcmp(metrics[i].name + skip, name) == 0)
            return &metrics[i];
    return NULL;
}

/* TRD_NO_MEMORY, or TRD_OK; a line that is no record leaves *record without an object. */
static trd_status parse(const trd__jsonl_line *line, const char *path, trd__json_doc **doc,
                        trd__record *record)
{
    const char *mode;
    *record = (trd__record){0};
    trd_status status = trd__json_parse(line->text, line->bytes, path, doc);
    if (status == TRD_NO_MEMORY) return status;
    trd__json object = status == TRD_OK ? trd__json_root(*doc) : (trd__json){0};
    if (!trd__json_exists(object) || trd__json_get_i64(object, "step", &record->step) != TRD_OK)
        return TRD_OK;
    if (trd__json_get_string(object, "mode", &mode) != TRD_OK) return TRD_OK;
    for (int i = 0; i < MODES; i++)
        if (strcmp(mode, mode_names[i]) == 0) {
            record->mode = (trd_metric_mode)i;
            record->object = object;
        }
    return TRD_OK;
}

trd_status trd__records_read(const char *path, int64_t last_step, trd__record_function function, void *user)
{
    if (!trd__file_exists(path)) return TRD_OK;
    trd__jsonl file;
    trd__jsonl_line line;
    TRD_TRY(trd__jsonl_open(path, &file));
    trd_status status = TRD_OK;
    while (!status && trd__jsonl_next(&file, &line)) {
        trd__json_doc *doc = NULL;
        trd__record record;
        status = parse(&line, path, &doc, &record);
        if (!status && trd__json_exists(record.object) && record.step <= last_step)
            status = function(user, line.text, line.bytes, &record);
        trd__json_free(doc);
    }
    trd__jsonl_close(&file);
    return status;
}
