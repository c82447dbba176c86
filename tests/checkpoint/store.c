/* The checkpoint store: what is saved is read back to the byte, of a step the most complete is kept, damage
 * is found and passed over, and neither a kill nor a full disk harms an older checkpoint. */
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
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/shape.h"
#include "checkpoint/store.h"
#include "support/scratch.h"

static const char json[] = "{\"loss\": 1.5}";
static float weights[1000];
static uint8_t flags[3] = {1, 0, 1};
static double sums[2] = {1e300, -0.0};

static trd_array arrays[] = {{"flags", TRD_BOOL, {1, {3}}, flags},
                             {"w", TRD_F32, {2, {10, 100}}, weights},
                             {"empty", TRD_BF16, {1, {0}}, NULL},
                             {"sums", TRD_F64, {1, {2}}, sums}};

static char log_text[4096];

static void keep_line(void *user, trd_log_level level, const char *line)
{
    (void)user;
    size_t used = strlen(log_text);
    snprintf(log_text + used, sizeof log_text - used, "%d %s\n", (int)level, line);
}

static trd__store *fresh(void **state)
{
    trd__store *store;
    const trd_log_sink sink = {keep_line, NULL};
    const char *folder = scratch_path(*state, "store");
    log_text[0] = '\0';
    assert_int_equal(trd__remove_tree(folder), TRD_OK);
    if (trd__store_open(folder, &sink, &store)) fail_msg("%s", trd_error_message());
    return store;
}

static void save(trd__store *store, int64_t step, int64_t micro, bool expect_written)
{
    bool wrote;
    weights[7] = (float)step + 0.25f * (float)micro;
    if (trd__store_save(store, (trd__store_name){step, micro}, arrays, 4, json, sizeof json - 1, &wrote))
        fail_msg("%s", trd_error_message());
    assert_int_equal(wrote, expect_written);
}

static void expect_names(const trd__store *store, const char *expected)
{
    trd__store_name *names;
    size_t count;
    char found[512] = "", text[TRD__STORE_NAME_TEXT];
    assert_int_equal(trd__store_list(store, &names, &count), TRD_OK);
    for (size_t i = 0; i < count; i++) {
        strcat(found, i ? " " : "");
        strcat(found, trd__store_name_text(names[i], text));
    }
    trd__free(names);
    assert_string_equal(found, expected);
}

static void names(void **state)
{
    (void)state;
    static const char *const refused[] = {"step-",
                                          "step-x",
                                          "step--1",
                                          "step-01",
                                          "step-1.m0",
                                          "step-1.m",
                                          "step-1.m2x",
                                          "step-1 ",
                                          "astep-1",
                                          "step-1.m-2",
                                          "step-99999999999999999999"};
    trd__store_name name;
    assert_true(trd__store_parse_name("step-12.m3", &name));
    assert_true(name.step == 12 && name.micro == 3);
    assert_true(trd__store_parse_name("step-0", &name));
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (trd__store_parse_name(refused[i], &name)) fail_msg("accepted %s", refused[i]);
    trd__store_name five = {5, 0}, five_two = {5, 2}, five_ten = {5, 10}, six_one = {6, 1};
    assert_true(trd__store_compare(five_two, five_ten) < 0 && trd__store_compare(five_ten, five) < 0);
    assert_true(trd__store_compare(five, six_one) < 0 && trd__store_compare(five, five) == 0);
}

static void round_trip(void **state)
{
    trd__store *store = fresh(state);
    trd__stored *stored;
    for (int i = 0; i < 1000; i++) weights[i] = (float)i / 3;
    save(store, 4, 0, true);
    assert_int_equal(trd__store_read(store, (trd__store_name){4, 0}, &stored), TRD_OK);
    assert_int_equal(trd__stored_count(stored), 4);
    for (size_t i = 0; i < 4; i++) {
        const trd_array *array = trd__stored_at(stored, i);
        size_t width = trd_dtype_bytes(array->dtype);
        assert_string_equal(array->name, arrays[i].name);
        assert_int_equal(array->dtype, arrays[i].dtype);
        assert_true(trd__shape_equal(&array->shape, &arrays[i].shape));
        assert_int_equal((uintptr_t)array->data % width, 0);
        size_t bytes = (size_t)trd__shape_count(&array->shape) * width;
        if (bytes) assert_memory_equal(array->data, arrays[i].data, bytes);
    }
    size_t bytes;
    assert_string_equal(trd__stored_json(stored, &bytes), json);
    assert_int_equal(bytes, sizeof json - 1);
    assert_ptr_equal(trd__stored_find(stored, "w"), trd__stored_at(stored, 1));
    assert_null(trd__stored_find(stored, "v"));
    trd__stored_close(stored);
    assert_int_equal(trd__store_read(store, (trd__store_name){5, 0}, &stored), TRD_NOT_FOUND);
    assert_true(trd__store_bytes(arrays, 4, sizeof json) > 4000);
    assert_int_equal(trd__store_check_space(store, 1), TRD_OK);
    assert_int_equal(trd__store_check_space(store, UINT64_MAX), TRD_IO);
    expect_message("free");
    trd__store_close(store);
}

static void most_complete_wins(void **state)
{
    trd__store *store = fresh(state);
    save(store, 1, 0, true);
    save(store, 2, 1, true);
    expect_names(store, "step-1 step-2.m1");
    save(store, 2, 3, true);
    expect_names(store, "step-1 step-2.m3");
    save(store, 2, 0, true);
    expect_names(store, "step-1 step-2");
    save(store, 10, 0, true);
    save(store, 9, 0, true);
    expect_names(store, "step-1 step-2 step-9 step-10");
    assert_int_equal(trd__store_prune(store, 2, 0), TRD_OK);
    expect_names(store, "step-9 step-10");
    assert_int_equal(trd__store_prune(store, 0, 0), TRD_OK);
    assert_int_equal(trd__store_remove(store, (trd__store_name){9, 0}), TRD_OK);
    assert_int_equal(trd__store_remove(store, (trd__store_name){9, 0}), TRD_OK);
    expect_names(store, "step-10");
    trd__store_close(store);
}

/* Finished steps that the period divides stay, beside the newest. */
static void every_nth_is_kept(void **state)
{
    trd__store *store = fresh(state);
    for (int64_t step = 1; step <= 9; step++) {
        save(store, step, step == 6 ? 1 : 0, true);
        assert_int_equal(trd__store_prune(store, 2, 3), TRD_OK);
    }
    expect_names(store, "step-3 step-8 step-9"); /* step 6 did not end */
    assert_int_equal(trd__store_prune(store, 1, 0), TRD_OK);
    expect_names(store, "step-9");
    trd__store_close(store);
}

/* A run that went on from an earlier checkpoint gives the later ones up. */
static void an_abandoned_future_goes(void **state)
{
    trd__store *store = fresh(state);
    save(store, 2, 0, true);
    save(store, 4, 0, true);
    save(store, 5, 2, true);
    save(store, 3, 0, true);
    int removed;
    assert_int_equal(trd__store_remove_after(store, (trd__store_name){3, 0}, &removed), TRD_OK);
    assert_int_equal(removed, 2);
    expect_names(store, "step-2 step-3");
    trd__store_close(store);
}

static void same_name_again(void **state)
{
    trd__store *store = fresh(state);
    trd__stored *stored;
    save(store, 3, 0, true);
    save(store, 3, 0, false);
    sums[0] = 5;
    save(store, 3, 0, true);
    assert_int_equal(trd__store_read(store, (trd__store_name){3, 0}, &stored), TRD_OK);
    assert_memory_equal(trd__stored_find(stored, "sums")->data, sums, sizeof sums);
    trd__stored_close(stored);
    expect_names(store, "step-3");
    trd__store_close(store);
}

/* Flips or cuts at a fraction of a file of step-2; the newest intact is then step-1. */
static void damage(void **state, const char *name, double where, bool cut)
{
    trd__store *store = fresh(state);
    trd__stored *stored;
    char file[128];
    size_t bytes;
    save(store, 1, 0, true);
    save(store, 2, 0, true);
    snprintf(file, sizeof file, "store/step-2/%s", name);
    const char *path = scratch_path(*state, file);
    unsigned char *data = scratch_read(path, &bytes);
    size_t at = (size_t)((double)(bytes - 1) * where);
    data[at] ^= 1;
    scratch_write(path, data, cut ? at : bytes);
    free(data);
    if (trd__store_read(store, (trd__store_name){2, 0}, &stored) == TRD_OK)
        fail_msg("%s altered at %zu of %zu was not noticed", name, at, bytes);
    assert_int_equal(trd__store_read_newest(store, &stored), TRD_OK);
    assert_int_equal(trd__stored_name(stored).step, 1);
    assert_non_null(strstr(log_text, "1 opening checkpoint")); /* a warning */
    assert_non_null(strstr(log_text, "the one before it is tried"));
    trd__stored_close(stored);
    save(store, 2, 0, true); /* a damaged one is replaced */
    assert_int_equal(trd__store_read(store, (trd__store_name){2, 0}, &stored), TRD_OK);
    trd__stored_close(stored);
    trd__store_close(store);
}

static void damage_is_found(void **state)
{
    static const char *const files[] = {"tensors.safetensors", "state.json", "manifest.json"};
    for (int i = 0; i < 3; i++)
        for (int part = 0; part <= 4; part++)
            for (int cut = 0; cut < 2; cut++) damage(state, files[i], part / 4.0, cut);
}

static void note_damage(void *user, const char *file, const char *tensor, const char *message)
{
    char *text = user;
    size_t used = strlen(text);
    (void)message;
    snprintf(text + used, 256 - used, "%s:%s ", file, tensor);
}

/* Flips a bit so far after a text, or before the end where there is no text. */
static void flip(const char *path, const char *mark, size_t distance)
{
    size_t bytes;
    unsigned char *data = scratch_read(path, &bytes);
    unsigned char *at = mark ? memmem(data, bytes, mark, strlen(mark)) : data + bytes - 2 * distance;
    assert_non_null(at);
    at[distance] ^= 1;
    scratch_write(path, data, bytes);
    free(data);
}

static void note_action(void *user, const char *action, const char *path, const char *to)
{
    size_t used = strlen(log_text);
    (void)user;
    snprintf(log_text + used, sizeof log_text - used, "%s %s %s; ", action, strrchr(path, '/') + 1,
             to ? strrchr(to, '/') + 1 : "");
}

/* Verifying names every damage; repairing moves what is damaged aside and leaves the rest. */
static void verify_and_repair(void **state)
{
    trd__store *store = fresh(state);
    char damages[256] = "";
    const char *two = scratch_path(*state, "store/step-2");
    for (int64_t step = 1; step <= 3; step++) save(store, step, 0, true);
    assert_int_equal(trd__stored_verify(two, note_damage, damages), TRD_OK);
    trd__stored_size size;
    assert_int_equal(trd__stored_measure(two, &size), TRD_OK);
    assert_true(size.bytes > 4000 && size.saved_at > 1700000000);
    flip(scratch_path(two, "tensors.safetensors"), NULL, 20); /* in w */
    flip(scratch_path(two, "state.json"), "1.5", 2);
    flip(scratch_path(two, "manifest.json"), "saved_at", 20);
    assert_int_equal(trd__stored_verify(two, note_damage, damages), TRD_CORRUPT);
    assert_string_equal(damages, "manifest.json: state.json: tensors.safetensors:w ");
    assert_int_equal(trd__make_directories(scratch_path(*state, "store/.tmp-save-step-4.77")), TRD_OK);
    static const char *const expected[] = {"removed .tmp-save-step-4.77 ; moved step-2 damaged-step-2; ",
                                           "removed .tmp-save-step-4.77 ; moved step-2 damaged-step-2; ",
                                           "moved step-2 damaged-step-2.2; "};
    for (int round = 0; round < 3; round++) {
        bool dry = round == 0;
        log_text[0] = '\0';
        assert_int_equal(trd__store_repair(store, dry, note_action, NULL), TRD_OK);
        assert_string_equal(log_text, expected[round]);
        expect_names(store, dry ? "step-1 step-2 step-3" : "step-1 step-3");
        assert_true(dry == trd__file_exists(scratch_path(*state, "store/.tmp-save-step-4.77")));
        if (round != 1) continue;
        save(store, 2, 0, true); /* written again and damaged again: the name is taken */
        flip(scratch_path(two, "state.json"), "1.5", 2);
    }
    assert_int_equal(trd__store_repair(store, false, note_action, NULL), TRD_OK);
    flip(scratch_path(*state, "store/step-1/manifest.json"), "\"format\": 2", 10); /* of another version */
    assert_int_equal(trd__store_repair(store, false, note_action, NULL), TRD_UNSUPPORTED);
    expect_names(store, "step-1 step-3");
    trd__store_close(store);
}

/* A checkpoint of another version may be intact: it ends a search for the newest, and a repair goes on with
 * the others before it says so. */
static void another_version_is_no_damage(void **state)
{
    trd__store *store = fresh(state);
    trd__stored *stored;
    for (int64_t step = 1; step <= 3; step++) save(store, step, 0, true);
    flip(scratch_path(*state, "store/step-2/manifest.json"), "\"format\": 2", 10);
    flip(scratch_path(*state, "store/step-3/state.json"), "1.5", 2);
    assert_int_equal(trd__store_read_newest(store, &stored), TRD_UNSUPPORTED);
    expect_message("step-2");
    log_text[0] = '\0';
    assert_int_equal(trd__store_repair(store, false, note_action, NULL), TRD_UNSUPPORTED);
    expect_message("step-2");
    assert_string_equal(log_text, "moved step-3 damaged-step-3; ");
    expect_names(store, "step-1 step-2");
    trd__store_close(store);
}

/* Names of checkpoints with something else behind them: all are damage, none is waited for, and what stands
 * there is moved aside like any other. */
static void names_without_a_folder(void **state)
{
    trd__store *store = fresh(state);
    trd__stored *stored;
    save(store, 1, 0, true);
    scratch_write(scratch_path(*state, "store/step-2"), "text", 4);
    assert_int_equal(mkfifo(scratch_path(*state, "store/step-3"), 0600), 0);
    assert_int_equal(trd__make_directories(scratch_path(*state, "store/step-4")), TRD_OK);
    assert_int_equal(mkfifo(scratch_path(*state, "store/step-4/manifest.json"), 0600), 0);
    assert_int_equal(symlink("step-6", scratch_path(*state, "store/step-6")), 0);
    assert_int_equal(symlink("nowhere", scratch_path(*state, "store/step-7")), 0);
    assert_int_equal(trd__store_read_newest(store, &stored), TRD_OK);
    assert_true(trd__stored_name(stored).step == 1);
    trd__stored_close(stored);
    assert_int_equal(trd__store_remove(store, (trd__store_name){1, 0}), TRD_OK);
    assert_int_equal(trd__store_read_newest(store, &stored), TRD_CORRUPT);
    expect_message("none of the 5");
    log_text[0] = '\0';
    assert_int_equal(trd__store_repair(store, false, note_action, NULL), TRD_OK);
    expect_names(store, "");
    assert_true(trd__name_exists(scratch_path(*state, "store/damaged-step-7")));
    trd__store_close(store);
}

/* What the first version wrote: a manifest without its own checksum. */
static void first_format_is_read(void **state)
{
    trd__store *store = fresh(state);
    trd__stored *stored;
    size_t bytes;
    save(store, 1, 0, true);
    const char *path = scratch_path(*state, "store/step-1/manifest.json");
    char *text = (char *)scratch_read(path, &bytes);
    text[(size_t)(strstr(text, "\"format\": 2") - text) + 10] = '1';
    strcpy(strstr(text, ",\n \"manifest_xxh3\""), "\n}");
    scratch_write(path, text, strlen(text));
    free(text);
    assert_int_equal(trd__store_read(store, (trd__store_name){1, 0}, &stored), TRD_OK);
    trd__stored_close(stored);
    trd__store_close(store);
}

static void missing_files(void **state)
{
    trd__store *store = fresh(state);
    trd__stored *stored;
    assert_int_equal(trd__store_read_newest(store, &stored), TRD_NOT_FOUND);
    expect_message("holds none");
    save(store, 1, 0, true);
    assert_int_equal(unlink(scratch_path(*state, "store/step-1/state.json")), 0);
    assert_int_equal(trd__store_read_newest(store, &stored), TRD_CORRUPT);
    expect_message("none of the 1");
    assert_int_equal(trd__stored_open(*state, &stored), TRD_INVALID_ARGUMENT);
    save(store, 2, 0, true);
    assert_int_equal(rename(scratch_path(*state, "store/step-2"), scratch_path(*state, "store/step-7")), 0);
    assert_int_equal(trd__store_read(store, (trd__store_name){7, 0}, &stored), TRD_CORRUPT);
    expect_message("it was saved as step-2 and renamed");
    trd__store_close(store);
}

static void leftovers_are_swept(void **state)
{
    trd__store *store = fresh(state);
    save(store, 1, 0, true);
    trd__store_close(store);
    assert_int_equal(trd__make_directories(scratch_path(*state, "store/.tmp-save-step-2.77")), TRD_OK);
    scratch_write(scratch_path(*state, "store/.tmp-save-step-2.77/state.json"), "{", 1);
    scratch_write(scratch_path(*state, "store/.tmp-notes"), "", 0); /* not the store's */
    assert_int_equal(trd__store_open(scratch_path(*state, "store"), NULL, &store), TRD_OK);
    assert_false(trd__file_exists(scratch_path(*state, "store/.tmp-save-step-2.77")));
    assert_true(trd__file_exists(scratch_path(*state, "store/.tmp-notes")));
    expect_names(store, "step-1");
    trd__store_close(store);
}

/* A limit on file sizes stands for a full disk: the write fails in the middle. */
static void full_disk(void **state)
{
    trd__store *store = fresh(state);
    trd__stored *stored;
    struct rlimit old, small;
    save(store, 1, 0, true);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = (struct rlimit){3000, old.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    trd_status status =
        trd__store_save(store, (trd__store_name){2, 0}, arrays, 4, json, sizeof json - 1, NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(status, TRD_IO);
    expect_message("saving checkpoint");
    expect_names(store, "step-1");
    assert_int_equal(trd__store_read_newest(store, &stored), TRD_OK);
    trd__stored_close(stored);
    trd__store_close(store);
    assert_int_equal(trd__store_open(scratch_path(*state, "store"), &(trd_log_sink){keep_line, NULL}, &store),
                     TRD_OK);
    assert_string_equal(log_text, ""); /* nothing was left to sweep */
    trd__store_close(store);
}

/* A writer killed at any time leaves a newest checkpoint that is intact. */
static void killed_writer(void **state)
{
    for (int round = 0; round < 8; round++) {
        trd__store *store = fresh(state);
        trd__stored *stored;
        save(store, 1, 0, true);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            for (int64_t step = 2;; step++) {
                weights[7] = (float)step;
                trd__store_save(store, (trd__store_name){step, step % 3}, arrays, 4, json, sizeof json - 1,
                                NULL);
                trd__store_prune(store, 2, 0);
            }
        }
        usleep((useconds_t)(3000 + 7000 * round));
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, NULL, 0), child);
        trd__store_close(store);
        assert_int_equal(trd__store_open(scratch_path(*state, "store"), NULL, &store), TRD_OK);
        log_text[0] = '\0';
        assert_int_equal(trd__store_read_newest(store, &stored), TRD_OK);
        assert_string_equal(log_text, ""); /* what has a name is whole: none had to be passed over */
        float value;
        memcpy(&value, (const float *)trd__stored_find(stored, "w")->data + 7, sizeof value);
        assert_true(value == (float)trd__stored_name(stored).step);
        trd__stored_close(stored);
        trd__store_close(store);
    }
}

/* Reads beside a process that writes and keeps a single checkpoint: there always is one. */
static void reader_beside_writer(void **state)
{
    trd__store *store = fresh(state), *view;
    trd__stored *stored;
    save(store, 1, 0, true);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        for (int64_t step = 2;; step++) {
            trd__store_save(store, (trd__store_name){step, 0}, arrays, 4, json, sizeof json - 1, NULL);
            trd__store_prune(store, 1, 0);
        }
    }
    trd_status status = trd__store_view(scratch_path(*state, "store"), NULL, &view);
    for (int i = 0; !status && i < 100; i++) {
        status = trd__store_read_newest(view, &stored);
        if (!status) trd__stored_close(stored);
    }
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    if (status) fail_msg("%s", trd_error_message());
    trd__store_close(view);
    trd__store_close(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),
        cmocka_unit_test(round_trip),
        cmocka_unit_test(most_complete_wins),
        cmocka_unit_test(every_nth_is_kept),
        cmocka_unit_test(an_abandoned_future_goes),
        cmocka_unit_test(same_name_again),
        cmocka_unit_test(damage_is_found),
        cmocka_unit_test(verify_and_repair),
        cmocka_unit_test(another_version_is_no_damage),
        cmocka_unit_test(names_without_a_folder),
        cmocka_unit_test(first_format_is_read),
        cmocka_unit_test(missing_files),
        cmocka_unit_test(full_disk),
        cmocka_unit_test(leftovers_are_swept),
        cmocka_unit_test(killed_writer),
        cmocka_unit_test(reader_beside_writer),
    };
    return cmocka_run_group_tests_name("checkpoint/store", tests, scratch_create, scratch_remove);
}
