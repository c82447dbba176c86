/* The exchange over Redis, with hiredis; see the header. One connection under one lock: what is exchanged is
 * small and happens once. A key waits by asking again, so that no thread holds the lock while it waits. */
#include "backend/pjrt/runtime/exchange.h"

#include <errno.h>
#include <hiredis/hiredis.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"

enum {
    CONNECT_SECONDS = 10,
    ASK_AGAIN_MS = 10,
    PORT = 6379,
    KEPT_SECONDS = 24 * 3600 /* then Redis forgets the job's keys */
};

struct trd__exchange {
    pthread_mutex_t mutex;
    redisContext *redis; /* under mutex */
    char *job;
};

/* The parts of an address, in a copy of it. */
typedef struct place {
    char *text; /* owns the rest */
    const char *host, *path, *job;
    int port;
} place;

static trd_status refuse(const char *address)
{
    return trd__fail(TRD_INVALID_ARGUMENT,
                     "coordinator_address: expected redis://HOST[:PORT]/JOB or unix:PATH#JOB, where JOB is a "
                     "name that this start of the run alone has, found \"%s\"",
                     address);
}

static trd_status split_host(const char *address, place *p)
{
    char *host = p->text + strlen("redis://"), *slash = strchr(host, '/'), *end = NULL;
    if (!slash || !slash[1] || slash == host) return refuse(address);
    *slash = '\0';
    p->job = slash + 1;
    p->host = host;
    p->port = PORT;
    char *colon = strrchr(host, ':');
    if (*host == '[') { /* an address of IPv6, which has colons of its own */
        char *close = strchr(host, ']');
        if (!close || (close[1] && close[1] != ':')) return refuse(address);
        p->host = host + 1;
        colon = close[1] ? close + 1 : NULL;
        *close = '\0';
    }
    if (colon) *colon = '\0';
    if (!*p->host) return refuse(address);
    if (!colon) return TRD_OK;
    long port = strtol(colon + 1, &end, 10);
    if (end == colon + 1 || *end || port < 1 || port > 65535) return refuse(address);
    p->port = (int)port;
    return TRD_OK;
}

static trd_status split_path(const char *address, place *p)
{
    char *path = p->text + strlen("unix:"), *hash = strrchr(path, '#');
    if (!hash || !hash[1] || hash == path) return refuse(address);
    *hash = '\0';
    p->path = path;
    p->job = hash + 1;
    return TRD_OK;
}

static trd_status split(const char *address, place *p)
{
    p->text = trd__strdup(address);
    if (!p->text) return TRD_NO_MEMORY;
    if (strncmp(address, "redis://", strlen("redis://")) == 0) return split_host(address, p);
    if (strncmp(address, "unix:", strlen("unix:")) == 0) return split_path(address, p);
    return refuse(address);
}

static trd_status connect_to(const char *address, const place *p, redisContext **redis)
{
    struct timeval limit = {.tv_sec = CONNECT_SECONDS};
    *redis = p->path ? redisConnectUnixWithTimeout(p->path, limit)
                     : redisConnectWithTimeout(p->host, p->port, limit);
    if (!*redis) return trd__fail(TRD_NO_MEMORY, "coordinator_address %s: no memory to connect", address);
    if ((*redis)->err)
        return trd__fail(TRD_IO, "coordinator_address %s: expected a Redis server there, found: %s", address,
                         (*redis)->errstr);
    return redisSetTimeout(*redis, limit) == REDIS_OK
               ? TRD_OK
               : trd__fail(TRD_IO, "coordinator_address %s: %s", address, (*redis)->errstr);
}

/* The command, without the signal that a server's end would send to this process. */
static redisReply *send_command(redisContext *redis, int count, const char **words, const size_t *bytes)
{
    sigset_t pipe, before, pending;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &pipe, &before);
    redisReply *reply = redisCommandArgv(redis, count, words, bytes);
    const int error = errno; /* the caller asks why */
    if (!sigismember(&pending, SIGPIPE)) sigtimedwait(&pipe, NULL, &(struct timespec){0});
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = error;
    return reply;
}

/* One command; *reply is the caller's. Under the mutex. */
static trd_status ask(trd__exchange *x, int count, const char **words, const size_t *bytes,
                      redisReply **reply)
{
    *reply = send_command(x->redis, count, words, bytes);
    if (!*reply && x->redis->err == REDIS_ERR_IO && errno == EAGAIN)
        return trd__fail(TRD_IO, "exchange: %s of a key failed: the server did not answer within %d s",
                         words[0], CONNECT_SECONDS);
    if (!*reply) return trd__fail(TRD_IO, "exchange: %s of a key failed: %s", words[0], x->redis->errstr);
    if ((*reply)->type != REDIS_REPLY_ERROR) return TRD_OK;
    trd_status status = trd__fail(TRD_IO, "exchange: the server refused %s: %s", words[0], (*reply)->str);
    freeReplyObject(*reply);
    *reply = NULL;
    return status;
}

/* The job's name, a colon and the key. */
static char *full_key(const trd__exchange *x, const char *key, size_t bytes, size_t *full_bytes)
{
    size_t job = strlen(x->job);
    char *full = trd__alloc(job + bytes + 2, 1);
    if (!full) return NULL;
    memcpy(full, x->job, job);
    full[job] = ':';
    memcpy(full + job + 1, key, bytes);
    full[job + 1 + bytes] = '\0';
    *full_bytes = job + 1 + bytes;
    return full;
}

/* SET key value; fresh: only where there is none, and *taken says that there was. */
static trd_status set(trd__exchange *x, const char *key, size_t key_bytes, const char *value,
                      size_t value_bytes, bool fresh, bool *taken)
{
    size_t full_bytes;
    char *full = full_key(x, key, key_bytes, &full_bytes), seconds[16];
    if (!full) return TRD_NO_MEMORY;
    int digits = snprintf(seconds, sizeof seconds, "%d", KEPT_SECONDS);
    const char *words[] = {"SET", full, value, "EX", seconds, "NX"};
    const size_t bytes[] = {3, full_bytes, value_bytes, 2, (size_t)digits, 2};
    redisReply *reply;
    pthread_mutex_lock(&x->mutex);
    trd_status status = ask(x, fresh ? 6 : 5, words, bytes, &reply);
    pthread_mutex_unlock(&x->mutex);
    trd__free(full);
    if (status) return status;
    *taken = reply->type == REDIS_REPLY_NIL;
    bool understood = *taken || reply->type == REDIS_REPLY_STATUS;
    freeReplyObject(reply);
    if (understood) return TRD_OK;
    return trd__fail(TRD_IO, "exchange: the server answered SET in another way than Redis does; is it one?");
}

static trd_status take_place(trd__exchange *x, int process)
{
    char key[32];
    bool taken;
    int bytes = snprintf(key, sizeof key, "process/%d", process);
    TRD_TRY(set(x, key, (size_t)bytes, "here", 4, true, &taken));
    if (!taken) return TRD_OK;
    return trd__fail(
        TRD_STATE,
        "coordinator_address: place %d of the job \"%s\" is taken; give each start of a run a job "
        "of its own, and each process a process_id of its own",
        process, x->job);
}

static trd_status open_exchange(trd__exchange *x, const char *address, const place *p, int process)
{
    x->job = trd__strdup(p->job);
    if (!x->job) return TRD_NO_MEMORY;
    TRD_TRY(connect_to(address, p, &x->redis));
    return take_place(x, process);
}

trd_status trd__exchange_open(const char *address, int process, trd__exchange **exchange)
{
    *exchange = NULL;
    place p = {0};
    trd__exchange *x = NULL;
    trd_status status = split(address, &p);
    if (!status) {
        x = trd__calloc(1, sizeof *x);
        status = x ? TRD_OK : TRD_NO_MEMORY;
    }
    if (!status) {
        pthread_mutex_init(&x->mutex, NULL);
        status = open_exchange(x, address, &p, process);
    }
    trd__free(p.text);
    if (status) {
        trd__exchange_close(x);
        return status;
    }
    *exchange = x;
    return TRD_OK;
}

void trd__exchange_close(trd__exchange *x)
{
    if (!x) return;
    if (x->redis) redisFree(x->redis);
    pthread_mutex_destroy(&x->mutex);
    trd__free(x->job);
    trd__free(x);
}

trd_status trd__exchange_put(trd__exchange *x, const char *key, size_t key_bytes, const char *value,
                             size_t value_bytes)
{
    bool taken;
    return set(x, key, key_bytes, value, value_bytes, false, &taken);
}

/* Looks once; *value stays NULL where there is none. */
static trd_status look(trd__exchange *x, const char *full, size_t full_bytes, char **value,
                       size_t *value_bytes)
{
    redisReply *reply;
    pthread_mutex_lock(&x->mutex);
    trd_status status = ask(x, 2, (const char *[]){"GET", full}, (const size_t[]){3, full_bytes}, &reply);
    pthread_mutex_unlock(&x->mutex);
    if (status) return status;
    if (reply->type == REDIS_REPLY_STRING) {
        *value = trd__alloc(reply->len + 1, 1);
        if (*value) memcpy(*value, reply->str, reply->len + 1);
        *value_bytes = reply->len;
        status = *value ? TRD_OK : TRD_NO_MEMORY;
    }
    freeReplyObject(reply);
    return status;
}

trd_status trd__exchange_get(trd__exchange *x, const char *key, size_t key_bytes, int wait_ms, char **value,
                             size_t *value_bytes)
{
    const uint64_t begin_ns = trd__now_ns();
    size_t full_bytes;
    *value = NULL;
    char *full = full_key(x, key, key_bytes, &full_bytes);
    if (!full) return TRD_NO_MEMORY;
    trd_status status = look(x, full, full_bytes, value, value_bytes);
    while (!status && !*value && trd__now_ns() - begin_ns < (uint64_t)wait_ms * 1000000) {
        nanosleep(&(struct timespec){.tv_nsec = ASK_AGAIN_MS * 1000000}, NULL);
        status = look(x, full, full_bytes, value, value_bytes);
    }
    trd__free(full);
    if (status || *value) return status;
    return trd__fail(TRD_NOT_FOUND,
                     "exchange: no process of the job \"%s\" put the key \"%.*s\" within %d ms", x->job,
                     (int)key_bytes, key, wait_ms);
}
