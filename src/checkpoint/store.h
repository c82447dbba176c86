/* The checkpoint store: a folder of immutable checkpoints, each named tensors and one opaque JSON text.
 *
 * A checkpoint is a folder step-N (step N finished) or step-N.mK (inside step N, after K micro-batches) that
 * holds tensors.safetensors, state.json and manifest.json with XXH3 checksums. It is written under a
 * temporary name, every file is fsynced, the folder renamed, the parent fsynced: a name that can be seen is
 * complete. Of one step only the most complete checkpoint is kept; a replaced one goes after the new one is
 * durable. */
#ifndef TRD_CHECKPOINT_STORE_H
#define TRD_CHECKPOINT_STORE_H

#include <treadle/log.h>
#include <treadle/tensor.h>

typedef struct trd__store trd__store;

typedef struct trd__store_name {
    int64_t step;
    int64_t micro; /* 0: the step is finished; K > 0: K of its micro-batches are accumulated */
} trd__store_name;

enum { TRD__STORE_NAME_TEXT = 64 };
/* "step-12" or "step-12.m3" in text (TRD__STORE_NAME_TEXT bytes); returns text. */
const char *trd__store_name_text(trd__store_name name, char *text);
bool trd__store_parse_name(const char *text, trd__store_name *name);
/* Age order: by step, then by how complete. <0, 0, >0. */
int trd__store_compare(trd__store_name a, trd__store_name b);

/* Locks the folder, which must exist, for this process until *lock is closed: TRD_BUSY names the holder. */
trd_status trd__store_lock(const char *folder, int *lock);

/* Opens or creates the folder and removes what a crash left behind. log may be NULL; the sink is copied. The
 * caller sees to it that one process writes to a folder. */
trd_status trd__store_open(const char *folder, const trd_log_sink *log, trd__store **store);
/* For reading beside a process that writes: creates and removes nothing; the folder may be missing. */
trd_status trd__store_view(const char *folder, const trd_log_sink *log, trd__store **store);
void trd__store_close(trd__store *store); /* NULL is fine */

/* Names of what is there, oldest first, intact or not; none where the folder is missing. Free *names with
 * trd__free. */
trd_status trd__store_list(const trd__store *store, trd__store_name **names, size_t *count);
trd_status trd__store_remove(const trd__store *store, trd__store_name name); /* TRD_OK when it is not there */
/* Removes all but the newest keep (0: none is removed) and the finished steps that keep_period divides (0: no
 * exceptions). */
trd_status trd__store_prune(const trd__store *store, size_t keep, int64_t keep_period);
trd_status trd__store_newest_name(const trd__store *store, trd__store_name *newest); /* step -1: none */
/* Removes what is newer than name and counts it: the future of a run that went on from name. */
trd_status trd__store_remove_after(const trd__store *store, trd__store_name name, int *removed);

/* Writes a checkpoint; earlier, less complete ones of its step are removed once it is durable. May run on any
 * one thread at a time, beside readers: it uses its arguments only. Where the name exists, intact and with
 * the same content, nothing is written and *wrote (may be NULL) is false; other content is exchanged
 * atomically. A
 * failure (full disk, ...) leaves older checkpoints as they were. */
trd_status trd__store_save(const trd__store *store, trd__store_name name, const trd_array *arrays,
                           size_t count, const char *json, size_t json_bytes, bool *wrote);

/* TRD_IO naming both figures when the file system of the store has less than bytes free. */
trd_status trd__store_check_space(const trd__store *store, uint64_t bytes);
/* Bytes that a checkpoint of these arrays takes on disk, rounded up. */
uint64_t trd__store_bytes(const trd_array *arrays, size_t count, size_t json_bytes);

/* Path of the newest intact checkpoint in a folder that another process may be writing to, NULL in *path when
 * there is none. Nothing is created or swept. Free with trd__free. */
trd_status trd__store_newest_path(const char *folder, char **path);

typedef struct trd__stored trd__stored;
/* Opens one checkpoint and verifies every checksum: TRD_NOT_FOUND, TRD_CORRUPT. */
trd_status trd__store_read(const trd__store *store, trd__store_name name, trd__stored **stored);
/* The newest that is intact; those passed over are logged as warnings. TRD_NOT_FOUND when there is none; the
 * message says whether the folder was empty. */
trd_status trd__store_read_newest(const trd__store *store, trd__stored **stored);
/* The checkpoint in a folder by its own path ("run/checkpoints/step-12"). */
trd_status trd__stored_open(const char *path, trd__stored **stored);
void trd__stored_close(trd__stored *stored); /* NULL is fine */

/* Checks everything and reports each damage: the file, the tensor ("": the file itself) and what is wrong.
 * TRD_OK: intact; TRD_CORRUPT: damaged. */
typedef void (*trd__damage_function)(void *user, const char *file, const char *tensor, const char *message);
trd_status trd__stored_verify(const char *path, trd__damage_function report, void *user);
/* Size on disk and, from the manifest, the time it was saved: seconds since the epoch, 0 where it does not
 * say. */
typedef struct trd__stored_size {
    uint64_t bytes;
    int64_t saved_at;
} trd__stored_size;
trd_status trd__stored_measure(const char *path, trd__stored_size *size);

/* Puts a folder right, whose lock the caller holds: removes what interrupted saves left, and renames each
 * damaged checkpoint so that nobody meets it ("damaged-step-N"). Intact ones stay as they are. report (with
 * what was done, from where, and to where or NULL) sees every action; dry: nothing is changed. */
typedef void (*trd__repair_function)(void *user, const char *action, const char *path, const char *to);
trd_status trd__store_repair(const trd__store *store, bool dry, trd__repair_function report, void *user);

trd__store_name trd__stored_name(const trd__stored *stored);
size_t trd__stored_count(const trd__stored *stored);
/* Arrays in the order saved. Their data is in the memory map, aligned to its element, valid until
 * close. */
const trd_array *trd__stored_at(const trd__stored *stored, size_t i);
const trd_array *trd__stored_find(const trd__stored *stored, const char *name); /* NULL: none */
const char *trd__stored_json(const trd__stored *stored,
                             size_t *bytes); /* NUL-terminated; bytes may be NULL */

#endif
