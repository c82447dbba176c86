/* One JSONL line as tokens with a loss mask.
 *
 * "messages": the tokenizer's chat template, loss on every assistant turn. "prompt" + "completion": encoded
 * one after the other, then EOS; loss on completion and EOS. "text": encoded, then EOS; loss everywhere. BOS
 * comes first only where the tokenizer adds it. Other fields are ignored. Invariant: the tokens are a pure
 * function of line, tokenizer and completion_only_loss. */
#ifndef TRD_DATA_SAMPLE_H
#define TRD_DATA_SAMPLE_H

#include <treadle/tokenizer.h>

#include "base/status.h"

/* Zero-initialize, reuse for many lines, free once. One thread at a time. */
typedef struct trd__sample {
    const int32_t *ids;  /* [count], valid until the next read */
    const uint8_t *mask; /* [count], 1: predicting this token counts */
    size_t count;
    trd_ids chat, plain; /* memory behind ids; apart, as only chat keeps a mask of its own */
    uint8_t *own_mask;
    size_t own_mask_capacity;
    trd_message *messages;
    size_t message_capacity;
} trd__sample;

typedef struct trd__sample_options {
    const trd_tokenizer *tokenizer;
    bool completion_only_loss; /* false: every token carries loss */
} trd__sample_options;

/* what names the line in messages. TRD_CORRUPT: the line is bad, the message says why; any other failure is
 * not the line's fault. */
trd_status trd__sample_read(trd__sample *sample, const trd__sample_options *options, const char *line,
                            size_t bytes, const char *what);
void trd__sample_free(trd__sample *sample);

/* Tokens among the first count that carry loss. A row's segment never predicts its first token. */
uint32_t trd__sample_loss_tokens(const trd__sample *sample, size_t count);

#endif
