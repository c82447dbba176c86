/* The loader: batches, order, resuming, policies, files as people have them, the cache and the thread. */
#include "fixture.h"

#include <dirent.h>
#include <unistd.h>

#include "base/rng.h"

static trd_loader *loader_of(const trd_data_options *options)
{
    trd_loader *loader;
    if (trd_loader_open(options, &loader) != TRD_OK) fail_msg("%s", trd_error_message());
    return loader;
}

static trd_batch next_of(trd_loader *loader)
{
    trd_batch batch;
    if (trd_loader_next(loader, &batch) != TRD_OK) fail_msg("%s", trd_error_message());
    return batch;
}

/* A file of count texts of 1 to 25 tokens, made of the letters of its number. */
static char *many_texts(const char *name, int count)
{
    char *content = malloc((size_t)count * 64), *at = content;
    for (int i = 0; i < count; i++) {
        int length = 1 + (int)trd__rng_below(5, 0, (uint64_t)i, 24);
        at += snprintf(at, 64, "{\"text\": \"%0*d\"}\n", length, i);
    }
    char *path = file_of(name, content);
    free(content);
    return path;
}

static void plain_rows(void **state)
{
    (void)state;
    char *path = file_of("plain.jsonl", "{\"text\": \"ab\"}\n{\"prompt\": \"c\", \"completion\": \"d\"}\n"
                                        "{\"text\": \"e\"}\n");
    trd_data_options options = options_of((const char *const *)&path);
    trd_loader *loader = loader_of(&options);
    trd_batch batch = next_of(loader);
    assert_int_equal(batch.rows, 2);
    assert_int_equal(batch.length, 32);
    assert_int_equal(batch.position, 2);
    assert_int_equal(batch.update_step, TRD_UPDATE_BY_COUNT);
    static const int32_t ids[2][4] = {{'a', 'b', EOS, EOS}, {'c', 'd', EOS, EOS}};
    static const int32_t segments[2][4] = {{1, 1, 1, 0}, {1, 1, 1, 0}};
    static const float weights[2][4] = {{0, 1, 1, 0}, {0, 1, 1, 0}};
    for (int row = 0; row < 2; row++) {
        assert_memory_equal(batch.token_ids + 32 * row, ids[row], sizeof ids[row]);
        assert_memory_equal(batch.segment_ids + 32 * row, segments[row], sizeof segments[row]);
        assert_memory_equal(batch.loss_weights + 32 * row, weights[row], sizeof weights[row]);
    }
    batch = next_of(loader); /* the run's last batch is partial */
    assert_int_equal(batch.rows, 1);
    assert_int_equal(batch.position, 3);
    assert_int_equal(batch.token_ids[0], 'e');
    assert_int_equal(trd_loader_next(loader, &batch), TRD_END);
    assert_int_equal(trd_loader_next(loader, &batch), TRD_END);
    trd_data_stats stats = trd_loader_stats(loader);
    assert_int_equal(stats.samples, 3);
    assert_int_equal(stats.tokens, 8);
    assert_int_equal(stats.loss_tokens, 5);
    assert_int_equal(stats.rows_per_epoch, 3);
    trd_loader_close(loader);
    free(path);
}

static void packed_rows(void **state)
{
    (void)state;
    char *path = many_texts("packed.jsonl", 300);
    trd_data_options options = options_of((const char *const *)&path);
    options.packing = options.shuffle = true;
    trd_loader *loader = loader_of(&options);
    trd_batch batch;
    uint64_t tokens = 0, with_loss = 0;
    bool seen[300] = {false};
    while (trd_loader_next(loader, &batch) == TRD_OK)
        for (int row = 0; row < batch.rows; row++) {
            const int32_t *segments = batch.segment_ids + 32 * row, *ids = batch.token_ids + 32 * row;
            assert_int_equal(segments[0], 1);
            for (int i = 0; i < 32; i++) {
                bool first = i == 0 || segments[i] != segments[i - 1];
                if (i > 0)
                    assert_true(segments[i] == segments[i - 1] || segments[i] == segments[i - 1] + 1 ||
                                segments[i] == 0);
                assert_true(batch.loss_weights[32 * row + i] == (segments[i] && !first ? 1.0f : 0.0f));
                tokens += segments[i] != 0;
                with_loss += batch.loss_weights[32 * row + i] != 0;
                if (!segments[i] || !first) continue;
                int number = 0;
                for (int j = i; ids[j] != EOS; j++) number = 10 * number + ids[j] - '0';
                assert_false(seen[number]);
                seen[number] = true;
            }
        }
    for (int i = 0; i < 300; i++) assert_true(seen[i]);
    trd_data_stats stats = trd_loader_stats(loader);
    assert_int_equal(stats.tokens, tokens);
    assert_int_equal(stats.loss_tokens, with_loss);
    trd_loader_close(loader);
    free(path);
}

static void same_batch(const trd_batch *a, const trd_batch *b)
{
    size_t tokens = (size_t)(a->rows * a->length);
    assert_int_equal(a->rows, b->rows);
    assert_int_equal(a->position, b->position);
    assert_true(memcmp(a->token_ids, b->token_ids, tokens * 4) == 0);
    assert_true(memcmp(a->segment_ids, b->segment_ids, tokens * 4) == 0);
    assert_true(memcmp(a->loss_weights, b->loss_weights, tokens * 4) == 0);
}

/* With and without the thread, from the start and from a saved position: the same batches. */
static void seek_and_prefetch(void **state)
{
    (void)state;
    char *path = many_texts("seek.jsonl", 100);
    trd_data_options options = options_of((const char *const *)&path);
    options.packing = options.shuffle = true;
    options.epochs = 0;
    options.rows = 3;
    trd_loader *straight = loader_of(&options);
    options.prefetch = true;
    trd_loader *ahead = loader_of(&options), *seeking = loader_of(&options);
    for (int i = 0; i < 60; i++) {
        trd_batch a = next_of(straight), b = next_of(ahead);
        same_batch(&a, &b);
        if (i % 7 == 0) {
            assert_int_equal(trd_loader_seek(seeking, (uint64_t)i * 3), TRD_OK);
            b = next_of(seeking);
            same_batch(&a, &b);
        }
    }
    trd_loader_close(seeking); /* while its thread is at work */
    trd_loader_close(ahead);
    trd_loader_close(straight);
    free(path);
}

static void end_and_seek_back(void **state)
{
    (void)state;
    char *path = many_texts("end.jsonl", 5);
    trd_data_options options = options_of((const char *const *)&path);
    options.prefetch = true;
    trd_loader *loader = loader_of(&options);
    trd_batch batch;
    for (int i = 0; i < 3; i++) next_of(loader);
    assert_int_equal(trd_loader_next(loader, &batch), TRD_END);
    assert_int_equal(trd_loader_seek(loader, 6), TRD_INVALID_ARGUMENT);
    assert_int_equal(trd_loader_seek(loader, 5), TRD_OK);
    assert_int_equal(trd_loader_next(loader, &batch), TRD_END);
    assert_int_equal(trd_loader_seek(loader, 1), TRD_OK);
    batch = next_of(loader);
    assert_int_equal(batch.position, 3);
    assert_int_equal(batch.token_ids[31], EOS);
    trd_loader_close(loader);
    free(path);
}

static void several_files(void **state)
{
    (void)state;
    char *paths[] = {file_of("one.jsonl", "{\"text\": \"a\"}"), file_of("none.jsonl", ""),
                     file_of("two.jsonl", "{\"text\": \"b\"}\n{\"text\": \"c\"}\n")};
    trd_data_options options = options_of((const char *const *)paths);
    options.file_count = 3;
    options.rows = 4;
    trd_loader *loader = loader_of(&options);
    trd_batch batch = next_of(loader);
    assert_int_equal(batch.rows, 3);
    for (int row = 0; row < 3; row++) assert_int_equal(batch.token_ids[32 * row], 'a' + row);
    trd_loader_close(loader);
    for (int i = 0; i < 3; i++) free(paths[i]);
}

/* Byte order mark, carriage returns, blank lines, no newline at the end. */
static void files_as_people_have_them(void **state)
{
    (void)state;
    char *path = file_of(
        "odd.jsonl", "\xef\xbb\xbf{\"text\": \"a\"}\r\n\r\n   \t\n\n{\"text\": \"b\"}\r\n{\"text\": \"c\"}");
    trd_data_options options = options_of((const char *const *)&path);
    options.rows = 4;
    trd_loader *loader = loader_of(&options);
    assert_int_equal(trd_loader_stats(loader).samples, 3);
    trd_batch batch = next_of(loader);
    for (int row = 0; row < 3; row++) assert_int_equal(batch.token_ids[32 * row], 'a' + row);
    trd_loader_close(loader);
    free(path);
}

static void nothing_to_read(void **state)
{
    (void)state;
    static const char *const contents[] = {"", "\n\r\n \n", "\xef\xbb\xbf", "{\"text\": \"\"}\n"};
    for (size_t i = 0; i < sizeof contents / sizeof *contents; i++) {
        char *path = file_of("nothing.jsonl", contents[i]);
        trd_data_options options = options_of((const char *const *)&path);
        trd_loader *loader;
        assert_int_equal(trd_loader_open(&options, &loader), TRD_INVALID_ARGUMENT);
        assert_null(loader);
        assert_non_null(strstr(trd_error_message(), "nothing.jsonl"));
        free(path);
    }
}

static void too_long(void **state)
{
    (void)state;
    char *path = file_of(
        "long.jsonl", "{\"text\": \"ok\"}\n"
                      "{\"text\": \"0123456789012345678901234567890123456789\"}\n"
                      "{\"prompt\": \"0123456789012345678901234567890123456789\", \"completion\": \"c\"}\n");
    trd_data_options options = options_of((const char *const *)&path);
    trd_loader *loader = loader_of(&options);
    trd_data_stats stats = trd_loader_stats(loader);
    assert_int_equal(stats.samples, 2);
    assert_int_equal(stats.truncated, 1);
    assert_int_equal(stats.dropped, 1); /* cut before its completion: nothing left to learn */
    trd_batch batch = next_of(loader);
    assert_int_equal(batch.token_ids[32 + 31], '1');
    assert_int_equal(batch.segment_ids[32 + 31], 1);
    trd_loader_close(loader);

    options.too_long = TRD_TOO_LONG_DROP;
    loader = loader_of(&options);
    stats = trd_loader_stats(loader);
    assert_int_equal(stats.samples, 1);
    assert_int_equal(stats.truncated, 0);
    assert_int_equal(stats.dropped, 2);
    trd_loader_close(loader);

    options.too_long = TRD_TOO_LONG_ERROR;
    assert_int_equal(trd_loader_open(&options, &loader), TRD_INVALID_ARGUMENT);
    assert_non_null(strstr(trd_error_message(), "long.jsonl line 2: expected at most 32 tokens, found 41"));
    free(path);
}

static void count_warnings(void *user, trd_log_level level, const char *line)
{
    (void)line;
    *(int *)user += level == TRD_LOG_WARNING;
}

static void bad_line_policies(void **state)
{
    (void)state;
    char content[8192], *at = content;
    for (int i = 0; i < 100; i++)
        at += sprintf(at, i % 5 == 3 ? "{\"text\": %d}\n" : "{\"text\": \"%d\"}\n", i);
    char *path = file_of("bad.jsonl", content);
    trd_data_options options = options_of((const char *const *)&path);
    trd_loader *loader;
    assert_int_equal(trd_loader_open(&options, &loader), TRD_CORRUPT);
    assert_non_null(strstr(trd_error_message(), "bad.jsonl line 4"));
    assert_non_null(strstr(trd_error_message(), "expected a string, found a number"));

    int warnings = 0;
    options.bad_line = TRD_BAD_LINE_SKIP;
    options.log = (trd_log_sink){count_warnings, &warnings};
    loader = loader_of(&options);
    assert_int_equal(trd_loader_stats(loader).samples, 80);
    assert_int_equal(trd_loader_stats(loader).bad_lines, 20);
    assert_int_equal(warnings, 10); /* the first ten; the total is in the stats */
    trd_loader_close(loader);
    free(path);
}

/* Enough lines for several threads: the first bad line is the one reported. */
static void first_bad_line_of_many(void **state)
{
    (void)state;
    enum { LINES = 5000 };
    char *content = malloc(LINES * 32), *at = content;
    for (int i = 1; i <= LINES; i++)
        at += sprintf(at, i == 2100 || i == 2101 || i == 4900 ? "{\"text\"}\n" : "{\"text\": \"%d\"}\n", i);
    char *path = file_of("many.jsonl", content);
    free(content);
    trd_data_options options = options_of((const char *const *)&path);
    trd_loader *loader;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(trd_loader_open(&options, &loader), TRD_CORRUPT);
        assert_non_null(strstr(trd_error_message(), "line 2100:"));
    }
    free(path);
}

static int cache_files(const char *path)
{
    int count = 0;
    DIR *directory = opendir(path);
    if (!directory) return 0;
    for (struct dirent *entry; (entry = readdir(directory));) count += entry->d_name[0] != '.';
    closedir(directory);
    return count;
}

static void flip_bytes_of_cache(const char *path, long offset)
{
    DIR *directory = opendir(path);
    assert_non_null(directory);
    for (struct dirent *entry; (entry = readdir(directory));) {
        if (entry->d_name[0] == '.') continue;
        char name[512];
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        FILE *file = fopen(name, "r+b");
        fseek(file, offset, SEEK_SET);
        int byte = fgetc(file);
        fseek(file, offset, SEEK_SET);
        fputc(byte ^ 0x55, file);
        fclose(file);
    }
    closedir(directory);
}

static void cache(void **state)
{
    (void)state;
    char cache_directory[128];
    snprintf(cache_directory, sizeof cache_directory, "%s/cache", folder);
    char *path = many_texts("cached.jsonl", 50);
    trd_data_options options = options_of((const char *const *)&path);
    options.cache_directory = cache_directory;
    trd_loader *loader = loader_of(&options);
    trd_data_stats built = trd_loader_stats(loader);
    trd_loader_close(loader);
    assert_int_equal(cache_files(cache_directory), 1);

    loader = loader_of(&options);
    trd_data_stats cached = trd_loader_stats(loader);
    assert_memory_equal(&built, &cached, sizeof built);
    trd_batch batch = next_of(loader);
    assert_int_equal(batch.rows, 2);
    trd_loader_close(loader);
    assert_int_equal(cache_files(cache_directory), 1);

    static const long offsets[] = {0, 9, 25, 33, 41, 60, 200, 1500};
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) { /* an altered cache is built anew */
        flip_bytes_of_cache(cache_directory, offsets[i]);
        loader = loader_of(&options);
        cached = trd_loader_stats(loader);
        assert_memory_equal(&built, &cached, sizeof built);
        trd_loader_close(loader);
    }

    options.length = 16; /* other options: another index */
    loader = loader_of(&options);
    assert_int_not_equal(trd_loader_stats(loader).tokens, built.tokens);
    assert_int_equal(trd_loader_stats(loader).content_hash, built.content_hash);
    trd_loader_close(loader);
    assert_int_equal(cache_files(cache_directory), 2);

    free(path);
    path = many_texts("cached.jsonl", 51); /* other content */
    loader = loader_of(&options);
    assert_int_equal(trd_loader_stats(loader).samples, 51);
    assert_int_not_equal(trd_loader_stats(loader).content_hash, built.content_hash);
    trd_loader_close(loader);
    free(path);
}

static void cache_that_cannot_be_written(void **state)
{
    (void)state;
    char *path = file_of("nocache.jsonl", "{\"text\": \"a\"}\n");
    char *blocked = file_of("blocked", "a file where the folder should be");
    int warnings = 0;
    trd_data_options options = options_of((const char *const *)&path);
    options.cache_directory = blocked;
    options.log = (trd_log_sink){count_warnings, &warnings};
    trd_loader_close(loader_of(&options));
    assert_int_equal(warnings, 1);
    free(blocked);
    free(path);
}

/* A file that changes under a running loader ends in an error from next, not in other tokens or a signal. */
static void file_changes_meanwhile(void **state)
{
    (void)state;
    for (int prefetch = 0; prefetch < 2; prefetch++) {
        char *path = file_of("changing.jsonl", "{\"text\": \"aaaa\"}\n{\"text\": \"bbbb\"}\n");
        trd_data_options options = options_of((const char *const *)&path);
        options.prefetch = prefetch;
        options.epochs = 0;
        trd_loader *loader = loader_of(&options);
        assert_int_equal(truncate(path, 20), 0);
        trd_batch batch;
        for (int i = 0; i < 2; i++) {
            assert_int_equal(trd_loader_next(loader, &batch), TRD_STATE);
            assert_non_null(strstr(trd_error_message(), "changing.jsonl line 2"));
            assert_non_null(strstr(trd_error_message(), "has changed"));
        }
        trd_loader_close(loader);
        free(path);
    }
}

static void bad_options(void **state)
{
    (void)state;
    char *path = file_of("fine.jsonl", "{\"text\": \"a\"}\n");
    const trd_data_options fine = options_of((const char *const *)&path);
    trd_data_options options = fine;
    trd_loader *loader;
    options.file_count = 0;
    assert_int_equal(trd_loader_open(&options, &loader), TRD_INVALID_ARGUMENT);
    options = fine;
    options.rows = 0;
    assert_int_equal(trd_loader_open(&options, &loader), TRD_INVALID_ARGUMENT);
    options = fine;
    options.length = 1;
    assert_int_equal(trd_loader_open(&options, &loader), TRD_INVALID_ARGUMENT);
    options = fine;
    options.tokenizer = NULL;
    assert_int_equal(trd_loader_open(&options, &loader), TRD_INVALID_ARGUMENT);
    const char *absent = "/nowhere/train.jsonl";
    options = options_of(&absent);
    assert_int_equal(trd_loader_open(&options, &loader), TRD_NOT_FOUND);
    assert_non_null(strstr(trd_error_message(), absent));
    assert_null(loader);
    trd_loader_close(NULL);
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_rows),
        cmocka_unit_test(packed_rows),
        cmocka_unit_test(seek_and_prefetch),
        cmocka_unit_test(end_and_seek_back),
        cmocka_unit_test(several_files),
        cmocka_unit_test(files_as_people_have_them),
        cmocka_unit_test(nothing_to_read),
        cmocka_unit_test(too_long),
        cmocka_unit_test(bad_line_policies),
        cmocka_unit_test(first_bad_line_of_many),
        cmocka_unit_test(cache),
        cmocka_unit_test(cache_that_cannot_be_written),
        cmocka_unit_test(file_changes_meanwhile),
        cmocka_unit_test(bad_options),
    };
    return cmocka_run_group_tests_name("data/loader", tests, set_up, tear_down);
}
