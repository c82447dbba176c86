/* What the data tests share: a folder for their files and a tokenizer whose tokens are bytes (id = byte
 * value; 256 <|endoftext|> = EOS and padding, 257 <|im_start|>, 258 <|im_end|>, 259 <|begin_of_text|>). */
#ifndef TRD_TESTS_DATA_FIXTURE_H
#define TRD_TESTS_DATA_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <treadle/data.h>

#include "base/alloc.h"
#include "base/file.h"

enum { EOS = 256, IM_START, IM_END, BOS };

static char folder[64];
static trd_tokenizer *tokenizer;

static inline int set_up(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/treadle-data-XXXXXX");
    if (!mkdtemp(folder) || trd_tokenizer_open("data/data/bytes", &tokenizer) != TRD_OK) {
        print_error("%s\n", trd_error_message());
        return -1;
    }
    return trd_tokenizer_set_chat_template(tokenizer, "qwen2.5") == TRD_OK ? 0 : -1;
}

static inline int tear_down(void **state)
{
    (void)state;
    trd_tokenizer_close(tokenizer);
    return trd__remove_tree(folder) == TRD_OK ? 0 : -1;
}

/* Writes a file of the folder; the path is the caller's to free. */
static inline char *file_of_bytes(const char *name, const char *content, size_t bytes)
{
    char *path = trd__format("%s/%s", folder, name);
    assert_non_null(path);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(content, 1, bytes, file), bytes);
    fclose(file);
    return path;
}

static inline char *file_of(const char *name, const char *content)
{
    return file_of_bytes(name, content, strlen(content));
}

/* One file, rows of 2 x 32, everything else plain: no packing, no shuffle, one epoch. */
static inline trd_data_options options_of(const char *const *path)
{
    return (trd_data_options){.files = path,
                              .file_count = 1,
                              .tokenizer = tokenizer,
                              .rows = 2,
                              .length = 32,
                              .packing_window = 64,
                              .completion_only_loss = true,
                              .epochs = 1};
}

#endif
