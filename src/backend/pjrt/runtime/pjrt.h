/* The backend's own structs: sets of buffers and executables.
 *
 * Invariants: a set owns a buffer for each entry and device, or none of the entry's where it was never
 * written (zeros); a buffer is replaced at dispatch by the result that takes its place, so that a donated one
 * is never bound again. Entry e has its buffer of device d at buffers[e * devices + d]. */
#ifndef TRD_BACKEND_PJRT_RUNTIME_PJRT_H
#define TRD_BACKEND_PJRT_RUNTIME_PJRT_H

#include "backend/backend.h"
#include "backend/pjrt/lower.h"
#include "backend/pjrt/runtime/client.h"
#include "backend/pjrt/runtime/parts.h"
#include "backend/pjrt/runtime/queue.h"

/* What a set and a slot must agree on. */
typedef struct trd__pjrt_key {
    uint64_t entries, splits;
} trd__pjrt_key;

struct trd__executable {
    trd__arena *arena; /* names, slots and the tables below */
    const char *name;
    trd__slot slots[TRD__MAX_SLOTS];    /* name, access and entries only */
    trd__pjrt_key keys[TRD__MAX_SLOTS]; /* of the sets that fit */
    int slot_count;
    trd__pjrt_module module; /* without its text */
    PJRT_LoadedExecutable *loaded;
    bool from_cache;
    /* Of the run being dispatched: by device and number, the same by device, and when each device is done. */
    PJRT_Buffer **arguments, **results, ***argument_lists, ***result_lists;
    PJRT_Event **done;
    trd__memory_report report;
    trd__pjrt_counter counter;
    uint64_t last_ticket; /* of its newest run; dispatching thread only */
};

typedef struct trd__pjrt_set {
    trd__set base;
    trd__arena *arena;
    PJRT_Buffer **buffers;
    const trd__pjrt_split *splits; /* by entry */
    uint64_t bytes;                /* on one device */
    trd__pjrt_key key;
    uint64_t last_use, last_write; /* tickets; dispatching thread only */
} trd__pjrt_set;

typedef struct trd__pjrt_backend {
    trd__backend base;
    trd_log_sink log;
    const trd__placement *placement; /* NULL: one device */
    trd__pjrt_client client;
    trd__pjrt_queue *queue;
    trd__recorder *recorder; /* NULL: none */
    char *cache_directory;   /* NULL: compiled programs are not kept */
    int host_threads;
    uint64_t set_bytes, temporary_bytes; /* on one device: all sets; the most that a program computes in */
    uint64_t first_sound; /* first ticket after the last failure: what earlier runs wrote may be lost */
} trd__pjrt_backend;

/* How entries are split over the mesh, and their key. */
trd_status trd__pjrt_splits_create(trd__arena *arena, const trd__placement *placement,
                                   const trd__entry *entries, int count, const trd__pjrt_split **splits,
                                   trd__pjrt_key *key);
trd_status trd__pjrt_set_create(const trd__pjrt_backend *backend, const char *name, const trd__entry *entries,
                                int count, trd__pjrt_set **set);
void trd__pjrt_set_free(const trd__pjrt_client *client, trd__pjrt_set *set); /* NULL is fine */
/* The buffers of an entry, one a device. */
static inline PJRT_Buffer **trd__pjrt_set_buffers(const trd__pjrt_client *client, const trd__pjrt_set *set,
                                                  int entry)
{
    return set->buffers + (ptrdiff_t)entry * client->device_count;
}

trd_status trd__pjrt_compile(const trd__pjrt_backend *backend, const trd__program *program,
                             const char *dump_folder, trd__executable **executable);
void trd__pjrt_executable_free(const trd__pjrt_client *client,
                               trd__executable *executable); /* NULL is fine */

/* Dispatches one run and puts its results into the sets; executable->done are its events, the caller's. After
 * a failure the contents of the sets that it updates may be lost. */
trd_status trd__pjrt_dispatch(const trd__pjrt_backend *backend, trd__executable *executable,
                              trd__set *const *sets);

/* A serialized CompileOptionsProto for the client's devices, with its flags; the caller frees bytes.
 * dump_folder: where XLA writes what it makes of the program, NULL: nowhere. */
trd_status trd__pjrt_compile_options(const trd__pjrt_client *client, const char *dump_folder,
                                     unsigned char **bytes, size_t *size);

#endif
