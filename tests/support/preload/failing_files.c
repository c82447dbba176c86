/* The faults of support/failing_files.h for a whole program, by LD_PRELOAD: TRD_FAULT_FOLDER names the
 * folder, TRD_FAULT the kind and TRD_FAULT_AT the call. TRD_FAULT_REPORT (a file outside of the folder) is
 * written when the program ends by itself: the number of calls, and 1 with the
 * call it happened at when it did. */
#include <stdlib.h>

#include "support/failing_files.h"

__attribute__((constructor)) static void arm(void)
{
    const char *folder = getenv("TRD_FAULT_FOLDER"), *name = getenv("TRD_FAULT"),
               *at = getenv("TRD_FAULT_AT");
    int fault = 0;
    if (!folder || !name || !at) return;
    while (fault < FILES_FAULTS && strcmp(name, files_kinds[fault].name) != 0) fault++;
    if (fault == FILES_FAULTS) abort(); /* a fault that is not known would look like a run without one */
    files_arm(folder, (files_fault)fault, strtol(at, NULL, 10));
}

__attribute__((destructor)) static void report(void)
{
    const char *path = getenv("TRD_FAULT_REPORT");
    long calls = files.calls;
    files.folder = NULL;
    FILE *file = path ? fopen(path, "w") : NULL;
    if (!file) return;
    fprintf(file, "%ld %d %s\n", calls, files.done, files.what);
    fclose(file);
}
