/* Opening a plugin: every way it can be wrong has its own status and says what to do; a good one can be
 * opened again and again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "backend/pjrt/runtime/pjrt.h"
#include "base/alloc.h"
#include "support/program.h"
#include "support/scratch.h"

static void refuses(const char *path, trd_status expected, const char *message)
{
    trd__backend *backend;
    trd__backend_options options = {.name = "pjrt", .plugin_path = path};
    assert_int_equal(trd__backend_create(&options, &backend), expected);
    assert_null(backend);
    if (!strstr(trd_error_message(), message)) fail_msg("%s", trd_error_message());
}

static void refuses_what_is_no_plugin(void **state)
{
    (void)state;
    char *kept = getenv("PJRT_PLUGIN_LIBRARY_PATH");
    kept = kept ? strdup(kept) : NULL;
    unsetenv("PJRT_PLUGIN_LIBRARY_PATH");
    refuses(NULL, TRD_INVALID_ARGUMENT, "set pjrt_plugin_path or the environment's PJRT_PLUGIN_LIBRARY_PATH");
    refuses("no/such.so", TRD_NOT_FOUND, "there is no plugin \"no/such.so\"");
    setenv("PJRT_PLUGIN_LIBRARY_PATH", "from/environment.so", 1);
    refuses(NULL, TRD_NOT_FOUND, "there is no plugin \"from/environment.so\"");
    refuses("CMakeLists.txt", TRD_INVALID_ARGUMENT, "\"CMakeLists.txt\" is no plugin that can be loaded: ");
    refuses(TRD_NO_PLUGIN, TRD_INVALID_ARGUMENT, "is no PJRT plugin: it has no function GetPjrtApi");
    unsetenv("PJRT_PLUGIN_LIBRARY_PATH");
    if (kept) setenv("PJRT_PLUGIN_LIBRARY_PATH", kept, 1);
    free(kept);
}

static void refuses_a_broken_plugin(void **state)
{
    (void)state;
    static const struct {
        const char *kind;
        trd_status status;
        const char *message;
    } cases[] = {
        {"old", TRD_UNSUPPORTED, "speaks version 0.7 of the PJRT interface; expected version 0, 0."},
        {"no_client", TRD_NO_MEMORY, "creating a client: the fake device is on fire"},
        {"no_device", TRD_NOT_FOUND, "the plugin for fake has no device in this process"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setenv("TRD_FAKE_PLUGIN", cases[i].kind, 1);
        refuses(TRD_A_PLUGIN, cases[i].status, cases[i].message);
    }
}

/* The loader would map what is not there. */
static void refuses_a_plugin_that_is_cut_off(void **state)
{
    size_t bytes;
    unsigned char *plugin = scratch_read(TRD_A_PLUGIN, &bytes);
    const char *path = scratch_path(*state, "cut.so");
    const size_t kept[] = {100, 4096, 8192}; /* what is loaded takes more; debug information may follow it */
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        scratch_write(path, plugin, kept[i]);
        refuses(path, TRD_INVALID_ARGUMENT, "cut.so\" is cut off: expected at least ");
    }
    scratch_write(path, plugin, 0);
    refuses(path, TRD_INVALID_ARGUMENT, "cut.so\" is no plugin that can be loaded: ");
    free(plugin);
}

static void takes_a_name_in_the_working_folder(void **state)
{
    char *before = getcwd(NULL, 0);
    size_t bytes;
    unsigned char *plugin = scratch_read(TRD_A_PLUGIN, &bytes);
    scratch_write(scratch_path(*state, "here.so"), plugin, bytes);
    free(plugin);
    setenv("TRD_FAKE_PLUGIN", "old", 1);
    assert_int_equal(chdir(*state), 0);
    refuses("here.so", TRD_UNSUPPORTED, "the plugin \"here.so\" speaks version 0.7");
    assert_int_equal(chdir(before), 0);
    free(before);
}

static void refuses_a_mesh_without_devices(void **state)
{
    (void)state;
    const trd__placement mesh = {.size = {2, 3, 1, 1}, .hosts = {1, 1, 1, 1}};
    trd__backend *backend;
    setenv("TRD_FAKE_PLUGIN", "one_device", 1);
    trd__backend_options options = {.name = "pjrt", .plugin_path = TRD_A_PLUGIN, .placement = &mesh};
    assert_int_equal(trd__backend_create(&options, &backend), TRD_NOT_FOUND);
    assert_non_null(strstr(trd_error_message(), "the mesh needs 6 devices, the plugin for fake has 1; make"));
    options.placement = NULL;
    options.processes = 2;
    assert_int_equal(trd__backend_create(&options, &backend), TRD_UNSUPPORTED);
    assert_non_null(strstr(trd_error_message(), "the plugin for fake knows the devices of one process only"));
    options.placement = &mesh;
    options.name = "cpu";
    assert_int_equal(trd__backend_create(&options, &backend), TRD_UNSUPPORTED);
    assert_non_null(strstr(trd_error_message(), "has 1 device, the mesh has 6; set backend: pjrt"));
}

static void expect_options(const trd__pjrt_client *client, const unsigned char *expected, size_t bytes)
{
    unsigned char *found;
    size_t size;
    assert_int_equal(trd__pjrt_compile_options(client, NULL, &found, &size), TRD_OK);
    assert_int_equal(size, bytes);
    assert_memory_equal(found, expected, bytes);
    trd__free(found);
}

/* A serialized CompileOptionsProto, field by field: what XLA ends the process over when it is empty. */
static void writes_compile_options(void **state)
{
    (void)state;
    static const unsigned char expected[] = {
        0x1a, 26,                                                 /* 3: build options */
        0x08, 255, 255,  255, 255,  255, 255,  255, 255,  255, 1, /* 1: device -1 */
        0x20, 1,   0x28, 1,                                       /* 4, 5: replicas, partitions */
        0x4a, 9,   0x08, 1,   0x10, 1,   0x1a, 3,   0x08, 172, 2  /* 9: the assignment, device 300 */
    };
    static const unsigned char expected_on_two[] = {
        0x1a, 35,                                                  /* 3: build options */
        0x08, 255,  255,  255, 255,  255,  255, 255,  255, 255, 1, /* 1: device -1 */
        0x20, 1,    0x28, 2,   0x30, 1,                            /* 4, 5, 6: replicas, partitions, SPMD */
        0x4a, 13,   0x08, 1,   0x10, 2,                            /* 9: the assignment, */
        0x1a, 3,    0x08, 172, 2,    0x1a, 2,   0x08, 7,           /* devices 300 and 7 */
        0x98, 0x01, 1                                              /* 19: Shardy */
    };
    trd__pjrt_device devices[] = {{.id = 300}, {.id = 7}};
    expect_options(&(trd__pjrt_client){.mesh = devices, .mesh_count = 1}, expected, sizeof expected);
    expect_options(&(trd__pjrt_client){.mesh = devices, .mesh_count = 2}, expected_on_two,
                   sizeof expected_on_two);
}

/* The map of flags, behind the build options. */
static void writes_flags(void **state)
{
    (void)state;
    static const unsigned char expected[] = {
        0x3a, 8,  0x0a, 2, 'o', 'n', 0x12, 2, 0x10, 1,             /* 2: bool */
        0x3a, 9,  0x0a, 2, 'n', 'r', 0x12, 3, 0x18, 172, 2,        /* 3: int64 */
        0x3a, 10, 0x0a, 2, 't', 'o', 0x12, 4, 0x0a, 2,   '/', 'x', /* 1: string */
    };
    trd__pjrt_device device = {.id = 1};
    trd__xla_flag flags[] = {{.name = "on", .kind = TRD__XLA_FLAG_BOOL, .number = 1},
                             {.name = "nr", .kind = TRD__XLA_FLAG_INT, .number = 300},
                             {.name = "to", .kind = TRD__XLA_FLAG_TEXT, .text = "/x"}};
    trd__pjrt_client client = {.mesh = &device, .mesh_count = 1};
    unsigned char *without, *with;
    size_t less, size;
    assert_int_equal(trd__pjrt_compile_options(&client, NULL, &without, &less), TRD_OK);
    client.flags = (trd__xla_flags){flags, 3};
    assert_int_equal(trd__pjrt_compile_options(&client, NULL, &with, &size), TRD_OK);
    assert_int_equal(size, less + sizeof expected);
    assert_memory_equal(with, without, less);
    assert_memory_equal(with + less, expected, sizeof expected);
    trd__free(with);
    trd__free(without);
}

static void opens_again_and_again(void **state)
{
    (void)state;
    test_need_plugin();
    for (int i = 0; i < 3; i++) {
        trd__backend *backend;
        trd_status status = trd__backend_create(&(trd__backend_options){.name = "pjrt"}, &backend);
        if (status) fail_msg("%s", trd_error_message());
        assert_string_equal(backend->table->name, "pjrt");
        assert_true(backend->table->stats(backend).workers > 0);
        trd__backend_free(backend);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(refuses_what_is_no_plugin),
                                       cmocka_unit_test(refuses_a_broken_plugin),
                                       cmocka_unit_test(refuses_a_plugin_that_is_cut_off),
                                       cmocka_unit_test(takes_a_name_in_the_working_folder),
                                       cmocka_unit_test(refuses_a_mesh_without_devices),
                                       cmocka_unit_test(writes_compile_options),
                                       cmocka_unit_test(writes_flags),
                                       cmocka_unit_test(opens_again_and_again)};
    return cmocka_run_group_tests_name("backend/pjrt_plugin", tests, scratch_create, scratch_remove);
}
