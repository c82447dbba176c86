/* Labels of a program's runs and kernel calls in profiles. They live with the recorder, so that a profile may
 * be written when the program is gone. */
#include "backend/cpu/cpu.h"

trd_status trd__cpu_label(trd__recorder *recorder, trd__executable *executable)
{
    const trd__memory_report *report = &executable->report;
    const trd__label program = {.category = "program",
                                .name = executable->name,
                                .flops = report->flops,
                                .bytes_read = report->bytes_read,
                                .bytes_written = report->bytes_written,
                                .fingerprint = report->fingerprint};
    TRD_TRY(trd__recorder_label(recorder, &program, &executable->label));
    for (int s = 0; s < executable->step_count; s++) {
        trd__cpu_step *step = &executable->steps[s];
        const trd__label call = {.category = "op",
                                 .name = step->name,
                                 .kernel = step->kernel->name,
                                 .where = step->node->name,
                                 .flops = step->flops,
                                 .bytes_read = step->bytes_read,
                                 .bytes_written = step->bytes_written};
        TRD_TRY(trd__recorder_label(recorder, &call, &step->label));
    }
    return TRD_OK;
}
