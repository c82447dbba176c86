/* The two large tables of a tokenizer.json, model.vocab and model.merges (11 MB and 450,000 strings in
 * Qwen's), read straight from the text: several times faster than through a tree of values. The rest of the
 * file is small and goes through the JSON library. */
#ifndef TRD_TOKENIZER_MODEL_JSON_H
#define TRD_TOKENIZER_MODEL_JSON_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef struct trd__json_text {
    const char *text; /* unescaped, not NUL-terminated, valid during the call */
    size_t bytes;
} trd__json_text;

/* What takes the tables: token for each entry of the vocabulary, then merge for each merge ("a b" or ["a",
 * "b"]), both in file order. The first failure of a callback ends the reading and is returned. */
typedef struct trd__model_sink {
    trd_status (*token)(void *context, int64_t id, trd__json_text token);
    trd_status (*merge)(void *context, trd__json_text left, trd__json_text right);
    void *context;
} trd__model_sink;

/* Reads text, the whole file. *rest (free with trd__free) is the file with null in place of the tables that
 * were read. TRD_CORRUPT names path and place. A file whose tables are missing or of another kind is no error
 * here. */
trd_status trd__model_json_read(const char *path, const char *text, size_t bytes, const trd__model_sink *sink,
                                char **rest, size_t *rest_bytes);

#endif
