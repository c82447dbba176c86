/* The exchange between processes: what one puts another gets, a job's places are taken once, and every way an
 * address or a server can be wrong is said. Runs a Redis server of its own on a socket file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "backend/pjrt/runtime/exchange.h"
#include "base/alloc.h"
#include "support/server.h"

static const char *job(const char *name)
{
    static char address[256];
    snprintf(address, sizeof address, "unix:%s#%s", server_socket(), name);
    return address;
}

static trd__exchange *join(const char *name, int process)
{
    trd__exchange *exchange;
    if (trd__exchange_open(job(name), process, &exchange)) fail_msg("%s", trd_error_message());
    return exchange;
}

static void put(trd__exchange *exchange, const char *key, const char *value)
{
    assert_int_equal(trd__exchange_put(exchange, key, strlen(key), value, strlen(value)), TRD_OK);
}

static void gives(trd__exchange *exchange, const char *key, int wait_ms, const char *expected)
{
    char *value;
    size_t bytes;
    if (trd__exchange_get(exchange, key, strlen(key), wait_ms, &value, &bytes))
        fail_msg("%s", trd_error_message());
    assert_int_equal(bytes, strlen(expected));
    assert_memory_equal(value, expected, bytes);
    trd__free(value);
}

static void lacks(trd__exchange *exchange, const char *key, int wait_ms)
{
    char *value;
    size_t bytes;
    assert_int_equal(trd__exchange_get(exchange, key, strlen(key), wait_ms, &value, &bytes), TRD_NOT_FOUND);
    assert_null(value);
}

static void what_one_puts_another_gets(void **state)
{
    (void)state;
    trd__exchange *first = join("two", 0), *second = join("two", 1), *other = join("other", 0);
    put(first, "topology", "ring");
    gives(second, "topology", 0, "ring");
    put(second, "topology", "star");
    gives(first, "topology", 1000, "star");
    put(first, "empty", "");
    gives(second, "empty", 0, "");
    lacks(other, "topology", 0);
    static const char binary[] = "a\0b\r\nc";
    assert_int_equal(trd__exchange_put(first, "b\0k", 3, binary, sizeof binary), TRD_OK);
    char *value;
    size_t bytes;
    assert_int_equal(trd__exchange_get(second, "b\0k", 3, 0, &value, &bytes), TRD_OK);
    assert_int_equal(bytes, sizeof binary);
    assert_memory_equal(value, binary, bytes);
    trd__free(value);
    trd__exchange_close(first);
    trd__exchange_close(second);
    trd__exchange_close(other);
}

/* The other process puts its key only once this one waits for it. */
static void a_key_is_waited_for(void **state)
{
    (void)state;
    trd__exchange *first = join("waits", 0);
    pid_t child = fork();
    if (child == 0) {
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
        trd__exchange *second = join("waits", 1);
        put(second, "late", "but here");
        trd__exchange_close(second);
        _exit(0);
    }
    gives(first, "late", 30000, "but here");
    lacks(first, "never", 30);
    assert_non_null(strstr(trd_error_message(), "no process of the job \"waits\" put the key \"never\""));
    assert_int_equal(waitpid(child, NULL, 0), child);
    trd__exchange_close(first);
}

static void refuses(const char *address, trd_status status, const char *message)
{
    trd__exchange *exchange;
    assert_int_equal(trd__exchange_open(address, 0, &exchange), status);
    assert_null(exchange);
    if (!strstr(trd_error_message(), message)) fail_msg("%s: %s", address, trd_error_message());
}

static void a_place_is_taken_once(void **state)
{
    (void)state;
    trd__exchange *first = join("places", 0);
    refuses(job("places"), TRD_STATE, "place 0 of the job \"places\" is taken");
    trd__exchange_close(first);
    refuses(job("places"), TRD_STATE, "give each start of a run a job of its own");
}

static void addresses_are_checked(void **state)
{
    (void)state;
    static const char *const wrong[] = {"",
                                        "redis://",
                                        "redis://host",
                                        "redis://host/",
                                        "redis:///job",
                                        "redis://host:0/job",
                                        "redis://host:65536/job",
                                        "redis://host:1x/job",
                                        "redis://:6379/job",
                                        "redis://[::1/job",
                                        "redis://[::1]6379/job",
                                        "redis://[::1]:x/job",
                                        "redis://[]/job",
                                        "redis://[]:1/job",
                                        "unix:",
                                        "unix:/socket",
                                        "unix:#job",
                                        "unix:/socket#",
                                        "http://host/job"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        refuses(wrong[i], TRD_INVALID_ARGUMENT, "expected redis://HOST[:PORT]/JOB");
    refuses("unix:no/such/socket#job", TRD_IO, "expected a Redis server there, found");
    refuses("redis://127.0.0.1:1/job", TRD_IO, "expected a Redis server there, found");
    refuses("redis://[::1]:1/job", TRD_IO, "expected a Redis server there, found");
    assert_null(strstr(trd_error_message(), "not known")); /* the brackets are no part of the name */
}

/* Something that answers every command with the number 5. */
static void a_server_of_another_kind_is_an_error(void **state)
{
    (void)state;
    struct sockaddr_un place = {.sun_family = AF_UNIX};
    snprintf(place.sun_path, sizeof place.sun_path, "%s-other", server_socket());
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&place, sizeof place), 0);
    assert_int_equal(listen(listener, 1), 0);
    pid_t child = fork();
    if (child == 0) {
        char command[256];
        int peer = accept(listener, NULL, NULL);
        if (read(peer, command, sizeof command) > 0) (void)!write(peer, ":5\r\n", 4);
        _exit(0);
    }
    char address[256];
    snprintf(address, sizeof address, "unix:%s#job", place.sun_path);
    refuses(address, TRD_IO, "the server answered SET in another way than Redis does");
    close(listener);
    unlink(place.sun_path);
    assert_int_equal(waitpid(child, NULL, 0), child);
}

static void a_server_that_is_gone_is_an_error(void **state)
{
    (void)state;
    trd__exchange *exchange = join("gone", 0);
    server_stop();
    assert_int_equal(trd__exchange_put(exchange, "k", 1, "v", 1), TRD_IO);
    char *value;
    size_t bytes;
    assert_int_equal(trd__exchange_get(exchange, "k", 1, 1000, &value, &bytes), TRD_IO);
    trd__exchange_close(exchange);
}

static int stop(void **state)
{
    (void)state;
    server_stop();
    return 0;
}

int main(void)
{
    if (!server_start()) {
        puts("redis-server is not installed");
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_one_puts_another_gets),
                                       cmocka_unit_test(a_key_is_waited_for),
                                       cmocka_unit_test(a_place_is_taken_once),
                                       cmocka_unit_test(addresses_are_checked),
                                       cmocka_unit_test(a_server_of_another_kind_is_an_error),
                                       cmocka_unit_test(a_server_that_is_gone_is_an_error)};
    return cmocka_run_group_tests(tests, NULL, stop);
}
