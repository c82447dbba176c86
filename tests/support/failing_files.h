/* Lets a program's calls that change files fail, fall short, or be its last: defines open, write, fsync,
 * rename and their kin, so exactly one source file of a program (or a library to be preloaded) includes it.
 * Only calls on paths with files.folder in them count, and on descriptors and streams opened by such calls.
 * fsync does nothing: what is tested here need not outlive the machine. */
#ifndef TRD_TESTS_FAILING_FILES_H
#define TRD_TESTS_FAILING_FILES_H

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* X(NAME, error, lasting): what happens at the call; lasting: and at all later ones. */
#define FILES_FAULT_LIST(X)                                                                                  \
    X(NONE, 0, false)                                                                                        \
    X(EIO, EIO, false)          /* a bad sector */                                                           \
    X(ENOSPC, ENOSPC, false)    /* no room, for a moment */                                                  \
    X(FULL, ENOSPC, true)       /* a full disk: removing still works */                                      \
    X(READONLY, EROFS, true)    /* the file system was mounted read-only */                                  \
    X(SHORT, 0, false)          /* a write that takes half of its bytes */                                   \
    X(SHORT_FULL, ENOSPC, true) /* the same, and then the disk is full */                                    \
    X(KILL, 0, false)           /* SIGKILL before the call */                                                \
    X(KILL_WITHIN, 0, false)    /* SIGKILL after half of a write, or after another call */
typedef enum files_fault {
#define FILES_FAULT_ENUM(name, error, lasting) FILES_##name,
    FILES_FAULT_LIST(FILES_FAULT_ENUM)
#undef FILES_FAULT_ENUM
        FILES_FAULTS
} files_fault;

typedef struct files_kind {
    const char *name;
    int error;
    bool lasting;
} files_kind;
static const files_kind files_kinds[FILES_FAULTS] = {
#define FILES_FAULT_ROW(name, error, lasting) {#name, error, lasting},
    FILES_FAULT_LIST(FILES_FAULT_ROW)
#undef FILES_FAULT_ROW
};

enum { FILES_MOST = 4096 };
static struct {
    const char *folder; /* NULL: nothing is counted */
    files_fault fault;
    long at;                     /* the call it happens at, from 1 */
    atomic_long calls;           /* counted so far */
    atomic_bool done;            /* it has happened */
    char what[256];              /* the call that met it: "fsync checkpoints/.tmp-..." */
    char paths[FILES_MOST][192]; /* the end of the path of each descriptor that counts; "" for others */
} files;

/* What a call does to the disk: a full one refuses GROW, a read-only one all but LOOK. */
typedef enum files_effect { FILES_LOOK, FILES_GROW, FILES_CHANGE } files_effect;

/* A path that counts, else NULL. */
static const char *files_counts(const char *path)
{
    return files.folder && path && strstr(path, files.folder) ? path : NULL;
}

/* The path of a descriptor that counts, else NULL. */
static const char *files_path(int fd)
{
    bool counts = files.folder && fd >= 0 && fd < FILES_MOST && files.paths[fd][0];
    return counts ? files.paths[fd] : NULL;
}

static const char *files_stream(FILE *stream)
{
    return stream ? files_path(fileno(stream)) : NULL;
}

static void files_opened(int fd, const char *path)
{
    size_t length = strlen(path), most = sizeof files.paths[0] - 1;
    if (fd >= 0 && fd < FILES_MOST) strcpy(files.paths[fd], path + (length > most ? length - most : 0));
}

static void files_closed(int fd)
{
    if (fd >= 0 && fd < FILES_MOST) files.paths[fd][0] = '\0';
}

/* What happens to this call: 0 (nothing), an errno, or -1 (half of it; then death, where that is the fault).
 */
static int files_verdict(files_effect effect, const char *name, const char *path)
{
    const files_kind *kind = &files_kinds[files.fault];
    long call = atomic_fetch_add(&files.calls, 1) + 1;
    if (!files.fault || call < files.at || (call > files.at && !kind->lasting)) return 0;
    bool shortened = files.fault == FILES_SHORT || files.fault == FILES_SHORT_FULL;
    bool spared = kind->lasting && (effect == FILES_LOOK || (kind->error == ENOSPC && effect != FILES_GROW));
    if (spared) return 0;
    if (!atomic_exchange(&files.done, true)) snprintf(files.what, sizeof files.what, "%s %s", name, path);
    if (files.fault == FILES_KILL) raise(SIGKILL);
    if ((shortened && call == files.at) || files.fault == FILES_KILL_WITHIN) return -1;
    return kind->error;
}

/* A call with a verdict: fails with it, or is made and is then the last one. */
#define FILES_CALL(type, name, parameters, arguments, counts, effect, failed)                                \
    type name parameters                                                                                     \
    {                                                                                                        \
        type(*real) parameters;                                                                              \
        *(void **)&real = dlsym(RTLD_NEXT, #name);                                                           \
        const char *counted = counts;                                                                        \
        int verdict = counted ? files_verdict(effect, #name, counted) : 0;                                   \
        if (verdict > 0) {                                                                                   \
            errno = verdict;                                                                                 \
            return failed;                                                                                   \
        }                                                                                                    \
        type result = real arguments;                                                                        \
        if (verdict < 0 && files.fault == FILES_KILL_WITHIN) raise(SIGKILL);                                 \
        return result;                                                                                       \
    }
FILES_CALL(int, mkdir, (const char *path, mode_t mode), (path, mode), files_counts(path), FILES_GROW, -1)
FILES_CALL(int, rename, (const char *from, const char *to), (from, to), files_counts(to), FILES_CHANGE, -1)
FILES_CALL(int, renameat2, (int a, const char *from, int b, const char *to, unsigned flags),
           (a, from, b, to, flags), files_counts(to), FILES_CHANGE, -1)
FILES_CALL(int, unlink, (const char *path), (path), files_counts(path), FILES_CHANGE, -1)
FILES_CALL(int, remove, (const char *path), (path), files_counts(path), FILES_CHANGE, -1)
FILES_CALL(int, ftruncate, (int fd, off_t bytes), (fd, bytes), files_path(fd), FILES_CHANGE, -1)
FILES_CALL(int, fflush, (FILE * stream), (stream), files_stream(stream), FILES_GROW, EOF)
FILES_CALL(int, fputc, (int c, FILE *stream), (c, stream), files_stream(stream), FILES_GROW, EOF)
FILES_CALL(size_t, fwrite, (const void *data, size_t size, size_t count, FILE *stream),
           (data, size, count, stream), files_stream(stream), FILES_GROW, 0)

ssize_t write(int fd, const void *data, size_t bytes)
{
    ssize_t (*real)(int, const void *, size_t);
    *(void **)&real = dlsym(RTLD_NEXT, "write");
    const char *path = files_path(fd);
    int verdict = path ? files_verdict(FILES_GROW, "write", path) : 0;
    if (verdict > 0) {
        errno = verdict;
        return -1;
    }
    ssize_t result = real(fd, data, verdict < 0 && bytes > 1 ? bytes / 2 : bytes);
    if (verdict < 0 && files.fault == FILES_KILL_WITHIN) raise(SIGKILL);
    return result;
}

int fsync(int fd)
{
    const char *path = files_path(fd);
    int verdict = path ? files_verdict(FILES_CHANGE, "fsync", path) : 0;
    if (verdict < 0 && files.fault == FILES_KILL_WITHIN) raise(SIGKILL);
    if (verdict <= 0) return 0;
    errno = verdict;
    return -1;
}

/* Opening for reading is counted only for a folder, which is opened to be synced. */
int open(const char *path, int flags, ...)
{
    int (*real)(const char *, int, ...);
    mode_t mode = 0;
    *(void **)&real = dlsym(RTLD_NEXT, "open");
    if (flags & O_CREAT) {
        va_list arguments;
        va_start(arguments, flags);
        mode = va_arg(arguments, mode_t);
        va_end(arguments);
    }
    bool writes = (flags & O_ACCMODE) != O_RDONLY;
    bool counted = (writes || flags & O_DIRECTORY) && files_counts(path);
    files_effect effect = flags & O_CREAT ? FILES_GROW : writes ? FILES_CHANGE : FILES_LOOK;
    int verdict = counted ? files_verdict(effect, "open", path) : 0;
    if (verdict > 0) {
        errno = verdict;
        return -1;
    }
    int fd = real(path, flags, mode);
    if (counted) files_opened(fd, path);
    if (verdict < 0 && files.fault == FILES_KILL_WITHIN) raise(SIGKILL);
    return fd;
}

FILE *fopen(const char *path, const char *mode)
{
    FILE *(*real)(const char *, const char *);
    *(void **)&real = dlsym(RTLD_NEXT, "fopen");
    bool counted = mode[0] != 'r' && files_counts(path);
    int verdict = counted ? files_verdict(FILES_GROW, "fopen", path) : 0;
    if (verdict > 0) {
        errno = verdict;
        return NULL;
    }
    FILE *stream = real(path, mode);
    if (counted && stream) files_opened(fileno(stream), path);
    if (verdict < 0 && files.fault == FILES_KILL_WITHIN) raise(SIGKILL);
    return stream;
}

/* A stream that is closed writes what it holds, and may fail at that; it is gone all the same. */
int fclose(FILE *stream)
{
    int (*real)(FILE *);
    *(void **)&real = dlsym(RTLD_NEXT, "fclose");
    int fd = fileno(stream);
    const char *path = files_path(fd);
    int verdict = path ? files_verdict(FILES_GROW, "fclose", path) : 0;
    files_closed(fd);
    int result = real(stream);
    if (verdict < 0 && files.fault == FILES_KILL_WITHIN) raise(SIGKILL);
    if (verdict <= 0) return result;
    errno = verdict;
    return EOF;
}

int close(int fd)
{
    int (*real)(int);
    *(void **)&real = dlsym(RTLD_NEXT, "close");
    files_closed(fd);
    return real(fd);
}

/* From now on call number at under folder has the fault. */
static inline void files_arm(const char *folder, files_fault fault, long at)
{
    files.fault = fault;
    files.at = at;
    files.calls = 0;
    files.done = false;
    files.what[0] = '\0';
    files.folder = folder;
}

#endif
