/* The backend's own structs: sets of buffers and executables.
 *
 * Invariants: a set owns one buffer an entry, or none where it was never written (zeros); a buffer is
 * replaced at dispatch by the result that takes its place, so that a donated one is never bound again. */
#ifndef TRD_BACKEND_PJRT_RUNTIME_PJRT_H
#define TRD_BACKEND_PJRT_RUNTIME_PJRT_H

#include "backend/backend.h"
#include "backend/pjrt/lower.h"
#include "backend/pjrt/runtime/client.h"
#include "backend/pjrt/runtime/queue.h"

struct trd__executable {
    trd__arena *arena; /* names, slots and the tables below */
    const char *name;
    trd__slot slots[TRD__MAX_SLOTS]; /* name, access and entries only */
    uint64_t keys[TRD__MAX_SLOTS];   /* of the sets that fit */
    int slot_count;
    trd__pjrt_module module; /* without its text */
    PJRT_LoadedExecutable *loaded;
    bool from_cache;
    PJRT_Buffer **arguments, **results; /* of the run being dispatched */
    trd__memory_report report;
    trd__pjrt_counter counter;
    uint64_t last_ticket; /* of its newest run; dispatching thread only */
};

typedef struct trd__pjrt_set {
    trd__set base;
    trd__arena *arena;
    PJRT_Buffer **buffers;
    uint64_t bytes;
    uint64_t key;
    uint64_t last_use, last_write; /* tickets; dispatching thread only */
} trd__pjrt_set;

typedef struct trd__pjrt_backend {
    trd__backend base;
    trd_log_sink log;
    trd__pjrt_client client;
    trd__pjrt_queue *queue;
    trd__recorder *recorder; /* NULL: none */
    char *cache_directory;   /* NULL: compiled programs are not kept */
    int host_threads;
    uint64_t set_bytes, temporary_bytes; /* of all sets; the most that a program computes in */
} trd__pjrt_backend;

trd_status trd__pjrt_set_create(const char *name, const trd__entry *entries, int count, trd__pjrt_set **set);
void trd__pjrt_set_free(const trd__pjrt_client *client, trd__pjrt_set *set); /* NULL is fine */

trd_status trd__pjrt_compile(const trd__pjrt_backend *backend, const trd__program *program,
                             trd__executable **executable);
void trd__pjrt_executable_free(const trd__pjrt_client *client,
                               trd__executable *executable); /* NULL is fine */

/* Dispatches one run and puts its results into the sets. *done: its event, the caller's. After a failure the
 * contents of the sets that it updates may be lost. */
trd_status trd__pjrt_dispatch(const trd__pjrt_backend *backend, trd__executable *executable,
                              trd__set *const *sets, PJRT_Event **done);

/* A serialized CompileOptionsProto for one device, by its id. Returns its size, at most
 * TRD__PJRT_OPTIONS_BYTES. */
enum { TRD__PJRT_OPTIONS_BYTES = 128 };
size_t trd__pjrt_compile_options(int device, unsigned char *bytes);

#endif
