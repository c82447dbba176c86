/* Clients of several processes: they find one another through the exchange, each knows the whole mesh and
 * which devices are its own, and every way the options can be wrong is said. The plugin is a made-up one that
 * finds its peers as those for accelerators do; no plugin for the host takes part in such a mesh. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "backend/pjrt/runtime/client.h"
#include "support/server.h"

static trd_status open_client(int process, int processes, const char *job, const trd__placement *placement,
                              trd__pjrt_client *client)
{
    char address[256];
    snprintf(address, sizeof address, "unix:%s#%s", server_socket(), job);
    const trd__backend_options options = {.name = "pjrt",
                                          .plugin_path = TRD_A_PLUGIN,
                                          .process = process,
                                          .processes = processes,
                                          .coordinator_address = address};
    return trd__pjrt_client_open(&options, placement, client);
}

/* data=4 of which 2 are between hosts: a host's two devices are neighbours. Exits with 0 if all is right. */
static int part_of_two(int process)
{
    const trd__placement placement = {.size = {4, 1, 1, 1}, .hosts = {2, 1, 1, 1}};
    trd__pjrt_client client;
    if (open_client(process, 2, "two", &placement, &client)) {
        fprintf(stderr, "%s\n", trd_error_message());
        return 1;
    }
    int wrong = client.mesh_count != 4 || client.device_count != 2;
    for (int i = 0; !wrong && i < 4; i++)
        wrong = client.mesh[i].id != i || client.mesh[i].place != i || client.mesh[i].process != i / 2;
    for (int i = 0; !wrong && i < 2; i++) wrong = client.devices[i].place != 2 * process + i;
    trd__pjrt_client_close(&client);
    return wrong ? 2 : 0;
}

static void processes_find_one_another(void **state)
{
    (void)state;
    pid_t child = fork();
    if (child == 0) _exit(part_of_two(1));
    assert_int_equal(part_of_two(0), 0);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void refuses(int process, int processes, const char *job, const trd__placement *placement,
                    trd_status status, const char *message)
{
    trd__pjrt_client client;
    assert_int_equal(open_client(process, processes, job, placement, &client), status);
    if (!strstr(trd_error_message(), message)) fail_msg("%s", trd_error_message());
}

static void a_second_start_needs_a_job_of_its_own(void **state)
{
    (void)state;
    refuses(0, 2, "two", NULL, TRD_STATE, "place 0 of the job \"two\" is taken");
}

/* The first device is the other process's. */
static void a_mesh_that_leaves_a_process_out(void **state)
{
    (void)state;
    pid_t child = fork();
    trd__pjrt_client client;
    if (child == 0) {
        int status = open_client(0, 2, "small", NULL, &client);
        trd__pjrt_client_close(&client);
        _exit(status);
    }
    refuses(1, 2, "small", NULL, TRD_INVALID_ARGUMENT, "none of the mesh's 1 devices is this process's");
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static int stop(void **state)
{
    (void)state;
    server_stop();
    return 0;
}

int main(void)
{
    setenv("TRD_FAKE_PLUGIN", "nodes", 1);
    if (!server_start()) {
        puts("redis-server is not installed");
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(processes_find_one_another),
                                       cmocka_unit_test(a_second_start_needs_a_job_of_its_own),
                                       cmocka_unit_test(a_mesh_that_leaves_a_process_out)};
    return cmocka_run_group_tests(tests, NULL, stop);
}
