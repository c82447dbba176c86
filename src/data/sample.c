/* From JSON to tokens; see the header for the three forms. */
#include "data/sample.h"

#include <string.h>

#include "base/alloc.h"
#include "formats/json.h"

static trd_status own_mask(trd__sample *sample, size_t count, uint8_t value)
{
    if (count > sample->own_mask_capacity) {
        uint8_t *grown = trd__realloc(sample->own_mask, count, 1);
        if (!grown) return TRD_NO_MEMORY;
        sample->own_mask = grown;
        sample->own_mask_capacity = count;
    }
    if (count) memset(sample->own_mask, value, count);
    return TRD_OK;
}

static trd_status reserve_messages(trd__sample *sample, size_t count)
{
    if (count <= sample->message_capacity) return TRD_OK;
    trd_message *grown = trd__realloc(sample->messages, count, sizeof *grown);
    if (!grown) return TRD_NO_MEMORY;
    sample->messages = grown;
    sample->message_capacity = count;
    return TRD_OK;
}

static trd_status read_messages(trd__sample *sample, const trd__sample_options *options, trd__json array)
{
    TRD_TRY(trd__json_as_array(array));
    size_t count = trd__json_count(array);
    if (count == 0 || count > INT32_MAX)
        return trd__json_fail(array, TRD_CORRUPT, "expected at least one message, found %zu", count);
    TRD_TRY(reserve_messages(sample, count));
    size_t used = 0;
    for (trd__json m = trd__json_first(array); trd__json_exists(m); m = trd__json_next(m)) {
        trd_message *message = &sample->messages[used++];
        TRD_TRY(trd__json_get_string(m, "role", &message->role));
        TRD_TRY(trd__json_get_string(m, "content", &message->content));
    }
    sample->chat.count = 0;
    trd_status status =
        trd_tokenizer_chat(options->tokenizer, sample->messages, (int)used, false, &sample->chat);
    /* A role or an order of roles that the template does not take is the line's fault. */
    if (status == TRD_INVALID_ARGUMENT) return trd__json_fail(array, TRD_CORRUPT, "%s", trd_error_message());
    TRD_TRY(status);
    sample->ids = sample->chat.ids;
    sample->mask = sample->chat.loss_mask;
    sample->count = sample->chat.count;
    return TRD_OK;
}

static trd_status append_id(trd_ids *ids, int32_t id)
{
    if (ids->count == ids->capacity) {
        size_t capacity = ids->capacity ? 2 * ids->capacity : 64;
        int32_t *grown = trd__realloc(ids->ids, capacity, sizeof *grown);
        if (!grown) return TRD_NO_MEMORY;
        ids->ids = grown;
        ids->capacity = capacity;
    }
    ids->ids[ids->count++] = id;
    return TRD_OK;
}

/* BOS, prompt, completion, EOS; text is a completion without prompt whose BOS counts with it. */
static trd_status read_plain(trd__sample *sample, const trd_tokenizer *tokenizer, const char *prompt,
                             const char *completion)
{
    trd_ids *ids = &sample->plain;
    ids->count = 0;
    int32_t bos = trd_tokenizer_bos(tokenizer), eos = trd_tokenizer_eos(tokenizer);
    if (bos >= 0 && trd_tokenizer_adds_bos(tokenizer)) TRD_TRY(append_id(ids, bos));
    if (prompt) TRD_TRY(trd_tokenizer_encode(tokenizer, prompt, strlen(prompt), ids));
    size_t without_loss = prompt ? ids->count : 0;
    TRD_TRY(trd_tokenizer_encode(tokenizer, completion, strlen(completion), ids));
    if (eos >= 0) TRD_TRY(append_id(ids, eos));
    TRD_TRY(own_mask(sample, ids->count, 1));
    if (without_loss) memset(sample->own_mask, 0, without_loss);
    sample->ids = ids->ids;
    sample->mask = sample->own_mask;
    sample->count = ids->count;
    return TRD_OK;
}

static trd_status read_object(trd__sample *sample, const trd__sample_options *options, trd__json object)
{
    TRD_TRY(trd__json_as_object(object));
    const char *prompt = NULL, *completion = NULL;
    trd__json messages = trd__json_find(object, "messages");
    if (trd__json_exists(messages)) {
        TRD_TRY(read_messages(sample, options, messages));
    } else if (trd__json_exists(trd__json_find(object, "prompt"))) {
        TRD_TRY(trd__json_get_string(object, "prompt", &prompt));
        TRD_TRY(trd__json_get_string(object, "completion", &completion));
        TRD_TRY(read_plain(sample, options->tokenizer, prompt, completion));
    } else if (trd__json_exists(trd__json_find(object, "text"))) {
        TRD_TRY(trd__json_get_string(object, "text", &completion));
        TRD_TRY(read_plain(sample, options->tokenizer, NULL, completion));
    } else {
        trd__json first = trd__json_first(object);
        return trd__json_fail(object, TRD_CORRUPT,
                              "expected a field messages, prompt with completion, or text, found %s%s%s",
                              trd__json_exists(first) ? "\"" : "no field", trd__json_key(first),
                              trd__json_exists(first) ? "\" first" : "");
    }
    if (options->completion_only_loss) return TRD_OK;
    TRD_TRY(own_mask(sample, sample->count, 1));
    sample->mask = sample->own_mask;
    return TRD_OK;
}

trd_status trd__sample_read(trd__sample *sample, const trd__sample_options *options, const char *line,
                            size_t bytes, const char *what)
{
    trd__json_doc *doc;
    TRD_TRY(trd__json_parse(line, bytes, what, &doc));
    trd_status status = read_object(sample, options, trd__json_root(doc));
    trd__json_free(doc);
    return status;
}

void trd__sample_free(trd__sample *sample)
{
    trd__free(sample->messages);
    trd__free(sample->own_mask);
    trd_ids_free(&sample->plain);
    trd_ids_free(&sample->chat);
    *sample = (trd__sample){0};
}

uint32_t trd__sample_loss_tokens(const trd__sample *sample, size_t count)
{
    uint32_t total = 0;
    for (size_t i = 1; i < count; i++) total += sample->mask[i];
    return total;
}
