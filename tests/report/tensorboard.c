/* The TensorBoard sink: one event file per begin, in a folder it makes. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <treadle/report.h>

#include "base/file.h"
#include "support/scratch.h"

static int event_files(const char *path)
{
    int count = 0;
    DIR *directory = opendir(path);
    assert_non_null(directory);
    for (struct dirent *entry; (entry = readdir(directory));)
        count += strncmp(entry->d_name, "events.out.tfevents.", 20) == 0;
    closedir(directory);
    return count;
}

static void tensorboard_files(void **state)
{
    char path[128];
    snprintf(path, sizeof path, "%s", scratch_path(*state, "board/deep"));
    trd_metric_sink sink;
    assert_int_equal(trd_report_tensorboard(path, &sink), TRD_OK);
    trd_run_info info = {.resumed_step = -1};
    trd_metric metric = {"loss", 1};
    assert_int_equal(sink.write(sink.user, TRD_METRIC_TRAIN, 1, &metric, 1), TRD_STATE);
    assert_int_equal(sink.begin(sink.user, &info), TRD_OK);
    assert_int_equal(sink.write(sink.user, TRD_METRIC_TRAIN, 1, &metric, 1), TRD_OK);
    assert_int_equal(sink.flush(sink.user), TRD_OK);
    assert_int_equal(event_files(path), 1);
    assert_int_equal(sink.begin(sink.user, &info), TRD_OK);
    assert_int_equal(sink.write(sink.user, TRD_METRIC_EVAL, 1, &metric, 1), TRD_OK);
    assert_int_equal(sink.close(sink.user), TRD_OK);
    assert_int_equal(event_files(path), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(tensorboard_files)};
    return cmocka_run_group_tests_name("report/tensorboard", tests, scratch_create, scratch_remove);
}
