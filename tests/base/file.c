/* Files: an atomic write leaves the old content or the new, never half; folders, maps, and messages that name
 * the path. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/file.h"
#include "support/scratch.h"

static void expect_content(const char *path, const char *content)
{
    size_t bytes;
    char *found = (char *)scratch_read(path, &bytes);
    assert_string_equal(found, content);
    free(found);
}

/* Number of entries of folder whose name begins as a temporary file of name would. */
static int leftovers(const char *folder, const char *name)
{
    char command[1200];
    snprintf(command, sizeof command, "ls %s | grep -c '^%s.tmp'", folder, name);
    FILE *pipe = popen(command, "r");
    int count = -1;
    assert_non_null(pipe);
    assert_int_equal(fscanf(pipe, "%d", &count), 1);
    pclose(pipe);
    return count;
}

static void save_replaces(void **state)
{
    const char *path = scratch_path(*state, "save");
    assert_int_equal(trd__file_save(path, "old", 3), TRD_OK);
    expect_content(path, "old");
    assert_int_equal(trd__file_save(path, "new one", 7), TRD_OK);
    expect_content(path, "new one");
    assert_int_equal(trd__file_save(path, "", 0), TRD_OK);
    expect_content(path, "");
    assert_int_equal(leftovers(*state, "save"), 0);
}

static void until_commit_the_old_file_stands(void **state)
{
    const char *path = scratch_path(*state, "slow");
    trd__file_writer *writer;
    assert_int_equal(trd__file_save(path, "old", 3), TRD_OK);
    assert_int_equal(trd__file_writer_open(path, &writer), TRD_OK);
    assert_int_equal(trd__file_write(writer, "half", 4), TRD_OK);
    expect_content(path, "old");
    assert_int_equal(leftovers(*state, "slow"), 1);
    trd__file_writer_abandon(writer);
    expect_content(path, "old");
    assert_int_equal(leftovers(*state, "slow"), 0);
    trd__file_writer_abandon(NULL);
    assert_int_equal(trd__file_writer_open(path, &writer), TRD_OK);
    assert_int_equal(trd__file_write(writer, "ne", 2), TRD_OK);
    assert_int_equal(trd__file_write(writer, "w", 1), TRD_OK);
    assert_int_equal(trd__file_writer_commit(writer), TRD_OK);
    expect_content(path, "new");
}

/* Blocks past the cache, an end that is no block, and pieces that end nowhere near a block's. */
static void an_uncached_file_holds_what_was_written(void **state)
{
    enum { BYTES = (20 << 20) + 77, PIECE = 1234567 };
    const char *path = scratch_path(*state, "uncached");
    unsigned char *data = malloc(BYTES);
    trd__file_writer *writer;
    trd__file_map map;
    for (size_t i = 0; i < BYTES; i++) data[i] = (unsigned char)(i * 2654435761u >> 13);
    assert_int_equal(trd__file_writer_open(path, &writer), TRD_OK);
    assert_int_equal(trd__file_writer_uncached(writer), TRD_OK);
    for (size_t at = 0; at < BYTES; at += PIECE)
        assert_int_equal(trd__file_write(writer, data + at, BYTES - at < PIECE ? BYTES - at : PIECE), TRD_OK);
    assert_int_equal(trd__file_writer_commit(writer), TRD_OK);
    assert_int_equal(trd__file_map_open(path, &map), TRD_OK);
    assert_int_equal(map.bytes, BYTES);
    assert_memory_equal(map.data, data, BYTES);
    trd__file_map_close(&map);
    free(data);
}

/* The system refuses a write past a limit on the file's size, as it would on a full disk. */
static void a_failing_write_leaves_the_old_file(void **state)
{
    const char *path = scratch_path(*state, "full");
    static char much[1 << 16];
    struct rlimit before, limit;
    trd__file_writer *writer;
    assert_int_equal(trd__file_save(path, "old", 3), TRD_OK);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = (struct rlimit){.rlim_cur = sizeof much / 2, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    trd_status opened = trd__file_writer_open(path, &writer);
    trd_status first = trd__file_write(writer, much, sizeof much), again = trd__file_write(writer, "x", 1);
    trd_status committed = trd__file_writer_commit(writer);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(opened, TRD_OK);
    assert_int_equal(first, TRD_IO);
    assert_int_equal(again, TRD_IO); /* sticky */
    assert_int_equal(committed, TRD_IO);
    expect_message(path);
    expect_content(path, "old");
    assert_int_equal(leftovers(*state, "full"), 0);
}

static void targets_that_cannot_be(void **state)
{
    const char *file = scratch_path(*state, "plain");
    scratch_write(file, "x", 1);
    trd__file_writer *writer;
    assert_int_not_equal(trd__file_save(scratch_path(file, "below"), "x", 1), TRD_OK);
    expect_message("plain/below");
    assert_int_not_equal(trd__file_writer_open(scratch_path(*state, "none/x"), &writer), TRD_OK);
    assert_null(writer);
    const char *folder = scratch_path(*state, "folder");
    assert_int_equal(trd__make_directories(folder), TRD_OK);
    assert_int_not_equal(trd__file_save(folder, "x", 1), TRD_OK); /* a folder is in the way */
    expect_message("folder");
    assert_int_equal(leftovers(*state, "folder"), 0);
}

static void folders(void **state)
{
    const char *deep = scratch_path(*state, "a/b/c/");
    assert_int_equal(trd__make_directories(deep), TRD_OK);
    assert_true(trd__is_directory(deep));
    assert_int_equal(trd__make_directories(deep), TRD_OK);
    const char *file = scratch_path(*state, "a/file");
    scratch_write(file, "x", 1);
    assert_false(trd__is_directory(file));
    assert_true(trd__file_exists(file));
    assert_int_equal(trd__make_directories(file), TRD_IO);
    assert_int_equal(trd__make_directories(scratch_path(file, "d")), TRD_IO);
    expect_message("expected a folder there or nothing, found a file");
    expect_message("a/file");
    assert_int_equal(trd__check_place(scratch_path(file, "d"), false), TRD_IO);
    expect_message("found a file");
    assert_int_equal(trd__check_place(file, true), TRD_IO);
    assert_int_equal(trd__check_place(file, false), TRD_OK);
    assert_int_equal(trd__check_place(deep, false), TRD_IO);
    assert_int_equal(trd__check_place(scratch_path(deep, "new"), true), TRD_OK);
    const char *dangling = scratch_path(*state, "dangling");
    assert_int_equal(symlink("nowhere", dangling), 0);
    assert_int_equal(trd__make_directories(scratch_path(dangling, "d")), TRD_NOT_FOUND);
    expect_message("No such file");
    const char *outside = scratch_path(*state, "outside"); /* a link is removed, not what it points to */
    scratch_write(outside, "x", 1);
    assert_int_equal(symlink(outside, scratch_path(*state, "a/link")), 0);
    assert_int_equal(trd__remove_tree(scratch_path(*state, "a")), TRD_OK);
    assert_false(trd__file_exists(scratch_path(*state, "a")));
    assert_true(trd__file_exists(outside));
    assert_int_equal(trd__remove_tree(scratch_path(*state, "a")), TRD_OK); /* not there: fine */
    uint64_t bytes = 0;
    assert_int_equal(trd__free_bytes(*state, &bytes), TRD_OK);
    assert_true(bytes > 0);
    assert_int_not_equal(trd__free_bytes(scratch_path(*state, "none"), &bytes), TRD_OK);
    assert_int_equal(trd__sync_directory(*state), TRD_OK);
    assert_int_not_equal(trd__sync_directory(outside), TRD_OK);
}

static void maps(void **state)
{
    const char *path = scratch_path(*state, "map");
    trd__file_map map;
    scratch_write(path, "content", 7);
    assert_int_equal(trd__file_map_open(path, &map), TRD_OK);
    assert_int_equal(map.bytes, 7);
    assert_memory_equal(map.data, "content", 7);
    trd__file_map_close(&map);
    trd__file_map_close(&map);
    scratch_write(path, "", 0);
    assert_int_equal(trd__file_map_open(path, &map), TRD_OK);
    assert_null(map.data);
    assert_int_equal(map.bytes, 0);
    trd__file_map_close(&map);
    assert_int_equal(trd__file_map_open(scratch_path(*state, "none"), &map), TRD_NOT_FOUND);
    expect_message("none: No such file");
    assert_int_not_equal(trd__file_map_open(*state, &map), TRD_OK); /* a folder */
    trd__file_map_close(&map);
}

/* Temporary files of dead writers go, and nothing else does. */
static void left_files_are_swept(void **state)
{
    static const char *const kept[] = {"swept/report.html", "swept/a.tmp.", "swept/a.tmp.4194305b",
                                       "swept/a.tmp.4194305.html",
                                       "swept/a.tmp.1"}; /* init lives; no process has a number above 2^22 */
    trd__file_writer *writer;
    const char *folder = scratch_path(*state, "swept"),
               *left = scratch_path(*state, "swept/report.html.tmp.4194305");
    assert_int_equal(trd__make_directories(folder), TRD_OK);
    for (size_t i = 0; i < 5; i++) scratch_write(scratch_path(*state, kept[i]), "x", 1);
    scratch_write(left, "x", 1);
    assert_int_equal(trd__file_writer_open(scratch_path(*state, "swept/own"), &writer), TRD_OK);
    assert_int_equal(trd__file_sweep(folder), TRD_OK);
    assert_false(trd__file_exists(left));
    for (size_t i = 0; i < 5; i++) assert_true(trd__file_exists(scratch_path(*state, kept[i])));
    assert_int_equal(trd__file_writer_commit(writer), TRD_OK);
    assert_int_equal(trd__file_sweep(scratch_path(*state, "none")), TRD_NOT_FOUND);
}

static void joined_paths(void **state)
{
    (void)state;
    const char *const cases[][3] = {
        {"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"/", "b", "/b"}, {"", "b", "/b"}, {"a", "", "a/"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *path = trd__path_join(cases[i][0], cases[i][1]);
        assert_string_equal(path, cases[i][2]);
        trd__free(path);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(save_replaces),
        cmocka_unit_test(until_commit_the_old_file_stands),
        cmocka_unit_test(an_uncached_file_holds_what_was_written),
        cmocka_unit_test(a_failing_write_leaves_the_old_file),
        cmocka_unit_test(targets_that_cannot_be),
        cmocka_unit_test(folders),
        cmocka_unit_test(maps),
        cmocka_unit_test(left_files_are_swept),
        cmocka_unit_test(joined_paths),
    };
    return cmocka_run_group_tests(tests, scratch_create, scratch_remove);
}
