/* The lock of a folder of checkpoints: an flock, which the system gives back when its holder dies. The number
 * in the file is for people only. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "checkpoint/store.h"

trd_status trd__store_lock(const char *folder, int *lock)
{
    char holder[64] = "";
    char *path = trd__path_join(folder, "lock");
    if (!path) return TRD_NO_MEMORY;
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0) {
        trd_status status =
            trd__fail(TRD_IO, "locking the run folder: opening %s: %s", path, strerror(errno));
        trd__free(path);
        return status;
    }
    trd__free(path);
    if (flock(file, LOCK_EX | LOCK_NB) != 0) {
        int error = errno;
        ssize_t got = read(file, holder, sizeof holder - 1);
        holder[got > 0 ? got : 0] = '\0';
        close(file);
        if (error != EWOULDBLOCK)
            return trd__fail(TRD_IO, "locking the run folder %s: %s", folder, strerror(error));
        return trd__fail(
            TRD_BUSY,
            "locking the run folder %s: it is in use by another engine (process %s); wait for it "
            "to end, or choose another base_output_directory or run_name",
            folder, holder[0] ? holder : "unknown");
    }
    int length = snprintf(holder, sizeof holder, "%ld", (long)getpid());
    bool written = ftruncate(file, 0) == 0 && write(file, holder, (size_t)length) == length;
    if (!written)
        lseek(file, 0, SEEK_SET); /* the holder's id is for people only: the lock stands without it */
    *lock = file;
    return TRD_OK;
}
