/* Files by POSIX calls. Invariant: a path that existed before a failed write still has its old content. */
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/alloc.h"

#define TEMPORARY ".tmp." /* and the process's number */

struct trd__file_writer {
    char *path;
    char *temporary;
    int fd;
    int error; /* first errno, sticky */
    unsigned char
        *buffer; /* of BUFFER_BYTES, what is not written yet; NULL: writes go straight to the file */
    size_t buffered;
};

enum { BUFFER_BYTES = 8 << 20 };

static trd_status io_error(const char *doing, const char *path, int error)
{
    trd_status status = error == ENOENT ? TRD_NOT_FOUND : TRD_IO;
    return trd__fail(status, "%s %s: %s", doing, path, strerror(error));
}

/* Opens a regular file for reading, and tells its size. */
static trd_status open_file(const char *path, int *file, size_t *bytes)
{
    /* Without O_NONBLOCK a pipe that nobody writes would be waited for. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return io_error("opening", path, errno);
    struct stat info;
    trd_status status = TRD_OK;
    if (fstat(fd, &info) != 0)
        status = io_error("reading", path, errno);
    else if (S_ISDIR(info.st_mode))
        status = io_error("reading", path, EISDIR);
    else if (!S_ISREG(info.st_mode))
        status = trd__fail(
            TRD_IO, "reading %s: expected a file, found a pipe or a device; write its content to a file",
            path);
    if (status) {
        close(fd);
        return status;
    }
    *file = fd;
    *bytes = (size_t)info.st_size;
    return TRD_OK;
}

trd_status trd__file_open(const char *path, int *fd)
{
    size_t bytes;
    return open_file(path, fd, &bytes);
}

trd_status trd__file_map_open(const char *path, trd__file_map *map)
{
    int fd = -1;
    size_t bytes = 0;
    *map = (trd__file_map){0};
    TRD_TRY(open_file(path, &fd, &bytes));
    if (bytes > 0) {
        void *data = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED) {
            int error = errno;
            close(fd);
            return io_error("mapping", path, error);
        }
        *map = (trd__file_map){data, bytes};
    }
    close(fd);
    return TRD_OK;
}

void trd__file_map_close(trd__file_map *map)
{
    if (map->data) munmap((void *)(uintptr_t)map->data, map->bytes);
    *map = (trd__file_map){0};
}

bool trd__file_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

bool trd__name_exists(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0;
}

bool trd__is_directory(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

trd_status trd__check_place(const char *path, bool folder)
{
    struct stat info;
    bool found = stat(path, &info) == 0;
    if (!found && errno == ENOTDIR)
        return trd__fail(
            TRD_IO, "writing to %s: expected folders on the way there, found a file; choose another path",
            path);
    if (!found || S_ISDIR(info.st_mode) == folder) return TRD_OK;
    return trd__fail(TRD_IO,
                     "writing to %s: expected a %s there or nothing, found a %s; move it away or choose "
                     "another path",
                     path, folder ? "folder" : "file", folder ? "file" : "folder");
}

trd_status trd__make_directories(const char *path)
{
    if (!*path) return trd__fail(TRD_INVALID_ARGUMENT, "creating a folder: expected its name, found nothing");
    char *copy = trd__strdup(path);
    if (!copy) return TRD_NO_MEMORY;
    trd_status status = TRD_OK;
    for (char *slash = copy + 1; !status; slash++) {
        if (*slash != '/' && *slash != '\0') continue;
        char end = *slash;
        *slash = '\0';
        if (mkdir(copy, 0777) != 0 && errno != EEXIST)
            status = io_error("creating folder", copy, errno);
        else if (!trd__file_exists(copy))
            status = io_error("creating folder", copy, errno); /* a link to nothing */
        else
            status = trd__check_place(copy, true);
        if (end == '\0') break;
        *slash = end;
    }
    trd__free(copy);
    return status;
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)info;
    (void)kind;
    (void)walk;
    return remove(path);
}

trd_status trd__remove_tree(const char *path)
{
    if (nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS) != 0 && errno != ENOENT)
        return io_error("removing", path, errno);
    return TRD_OK;
}

trd_status trd__free_bytes(const char *path, uint64_t *bytes)
{
    struct statvfs info;
    if (statvfs(path, &info) != 0) return io_error("asking for free space of", path, errno);
    *bytes = (uint64_t)info.f_bavail * info.f_frsize;
    return TRD_OK;
}

char *trd__path_join(const char *folder, const char *name)
{
    size_t length = strlen(folder);
    return trd__format(length && folder[length - 1] == '/' ? "%s%s" : "%s/%s", folder, name);
}

trd_status trd__file_writer_open(const char *path, trd__file_writer **out)
{
    *out = NULL;
    trd__file_writer *writer = trd__calloc(1, sizeof *writer);
    if (!writer) return TRD_NO_MEMORY;
    writer->path = trd__strdup(path);
    writer->temporary = trd__format("%s" TEMPORARY "%ld", path, (long)getpid());
    writer->fd = -1;
    if (!writer->path || !writer->temporary) {
        trd__file_writer_abandon(writer);
        return TRD_NO_MEMORY;
    }
    writer->fd = open(writer->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (writer->fd < 0) {
        trd_status status = io_error("creating", writer->temporary, errno);
        trd__file_writer_abandon(writer);
        return status;
    }
    *out = writer;
    return TRD_OK;
}

/* Whether the cache is used from here on; only whole, aligned blocks can do without. */
static bool use_cache(trd__file_writer *writer, bool use)
{
    int flags = fcntl(writer->fd, F_GETFL);
    if (flags < 0 || !(flags & O_DIRECT) == use) return false;
    return fcntl(writer->fd, F_SETFL, use ? flags & ~O_DIRECT : flags | O_DIRECT) == 0;
}

trd_status trd__file_writer_uncached(trd__file_writer *writer)
{
    if (writer->buffer || !use_cache(writer, false)) return TRD_OK;
    writer->buffer = trd__map(BUFFER_BYTES);
    return writer->buffer ? TRD_OK : TRD_NO_MEMORY;
}

static void put(trd__file_writer *writer, const unsigned char *next, size_t bytes)
{
    while (!writer->error && bytes > 0) {
        ssize_t written = write(writer->fd, next, bytes < (1u << 30) ? bytes : (1u << 30));
        if (written < 0 && errno == EINTR) continue;
        if (written < 0 && errno == EINVAL && use_cache(writer, true))
            continue; /* the file system needs it */
        if (written < 0) {
            writer->error = errno;
        } else {
            next += written;
            bytes -= (size_t)written;
        }
    }
}

static void put_buffered(trd__file_writer *writer, const unsigned char *next, size_t bytes)
{
    while (!writer->error && bytes > 0) {
        size_t room = BUFFER_BYTES - writer->buffered, part = bytes < room ? bytes : room;
        memcpy(writer->buffer + writer->buffered, next, part);
        writer->buffered += part;
        next += part;
        bytes -= part;
        if (writer->buffered < BUFFER_BYTES) break;
        put(writer, writer->buffer, BUFFER_BYTES);
        writer->buffered = 0;
    }
}

trd_status trd__file_write(trd__file_writer *writer, const void *data, size_t bytes)
{
    (writer->buffer ? put_buffered : put)(writer, data, bytes);
    return writer->error ? io_error("writing", writer->path, writer->error) : TRD_OK;
}

trd_status trd__sync_directory(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return io_error("opening folder", path, errno);
    int error = fsync(fd) == 0 ? 0 : errno;
    close(fd);
    return error ? io_error("syncing folder", path, error) : TRD_OK;
}

static trd_status sync_parent(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash) return trd__sync_directory(".");
    char *folder = slash == path ? trd__strdup("/") : trd__format("%.*s", (int)(slash - path), path);
    if (!folder) return TRD_NO_MEMORY;
    trd_status status = trd__sync_directory(folder);
    trd__free(folder);
    return status;
}

trd_status trd__file_writer_commit(trd__file_writer *writer)
{
    if (writer->buffered > 0) {
        use_cache(writer, true);
        put(writer, writer->buffer, writer->buffered);
    }
    if (!writer->error && fsync(writer->fd) != 0) writer->error = errno;
    if (close(writer->fd) != 0 && !writer->error) writer->error = errno;
    writer->fd = -1;
    if (!writer->error && rename(writer->temporary, writer->path) != 0) writer->error = errno;
    trd_status status =
        writer->error ? io_error("writing", writer->path, writer->error) : sync_parent(writer->path);
    if (!writer->error) {
        trd__free(writer->temporary);
        writer->temporary = NULL;
    }
    trd__file_writer_abandon(writer);
    return status;
}

void trd__file_writer_abandon(trd__file_writer *writer)
{
    if (!writer) return;
    if (writer->fd >= 0) close(writer->fd);
    if (writer->temporary) unlink(writer->temporary);
    if (writer->buffer) trd__unmap(writer->buffer, BUFFER_BYTES);
    trd__free(writer->temporary);
    trd__free(writer->path);
    trd__free(writer);
}

/* Whether a file's name is that of a temporary file whose process is gone. */
static bool is_left(const char *name)
{
    const char *mark = NULL;
    for (const char *at = name; (at = strstr(at, TEMPORARY)); at++) mark = at;
    if (!mark) return false;
    const char *number = mark + strlen(TEMPORARY);
    bool whole = *number && strspn(number, "0123456789") == strlen(number);
    return whole && kill((pid_t)atol(number), 0) != 0 && errno == ESRCH;
}

trd_status trd__file_sweep(const char *folder)
{
    trd_status status = TRD_OK;
    DIR *directory = opendir(folder);
    if (!directory) return io_error("opening folder", folder, errno);
    for (struct dirent *entry; !status && (entry = readdir(directory));) {
        if (!is_left(entry->d_name)) continue;
        char *path = trd__path_join(folder, entry->d_name);
        if (!path)
            status = TRD_NO_MEMORY;
        else if (unlink(path) != 0 && errno != ENOENT)
            status = io_error("removing", path, errno);
        trd__free(path);
    }
    closedir(directory);
    return status;
}

trd_status trd__file_save(const char *path, const void *data, size_t bytes)
{
    trd__file_writer *writer;
    TRD_TRY(trd__file_writer_open(path, &writer));
    trd__file_write(writer, data, bytes); /* sticky: commit reports it */
    return trd__file_writer_commit(writer);
}
