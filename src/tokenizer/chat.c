/* Chats to ids with their loss mask. The rendered text is encoded in pieces that begin and end at special
 * tokens, which no word spans, so the ids are those of the whole text. */
#include "tokenizer/chat.h"

#include <string.h>

#include "base/alloc.h"
#include "tokenizer/tokenizer.h"

/* Encodes an assistant's turn; tokens that reach beyond the header carry loss, one that straddles its end
 * too: it is the only token through which the content can begin. */
static trd_status encode_turn(const trd_tokenizer *tokenizer, const char *text, const trd__chat_turn *turn,
                              trd_ids *ids)
{
    size_t header = turn->content - turn->start, at = 0, i = ids->count;
    TRD_TRY(trd_tokenizer_encode(tokenizer, text + turn->start, turn->end - turn->start, ids));
    for (; i < ids->count; i++) {
        at += tokenizer->vocab.tokens[ids->ids[i]].length;
        ids->loss_mask[i] = at > header;
    }
    return TRD_OK;
}

static trd_status encode_chat(const trd_tokenizer *tokenizer, const trd__chat_text *chat, trd_ids *ids)
{
    size_t done = 0;
    for (size_t i = 0; i < chat->turn_count; i++) {
        const trd__chat_turn *turn = &chat->turns[i];
        TRD_TRY(trd_tokenizer_encode(tokenizer, chat->text + done, turn->start - done, ids));
        TRD_TRY(encode_turn(tokenizer, chat->text, turn, ids));
        done = turn->end;
    }
    return trd_tokenizer_encode(tokenizer, chat->text + done, chat->bytes - done, ids);
}

static trd_status no_template(const trd_tokenizer *tokenizer)
{
    char known[128];
    trd__chat_names(known, sizeof known);
    return trd__fail(TRD_UNSUPPORTED, "chat: %s; set the config key chat_template to one of %s",
                     tokenizer->chat_text ? "the tokenizer's chat template is none of those known"
                                          : "the tokenizer has no chat template",
                     known);
}

trd_status trd_tokenizer_chat(const trd_tokenizer *tokenizer, const trd_message *messages, int count,
                              bool add_generation_prompt, trd_ids *ids)
{
    char first[256] = "";
    trd__chat_text chat = {0};
    if (!tokenizer->chat) return no_template(tokenizer);
    TRD_TRY(trd__ids_with_mask(ids));
    if (tokenizer->bos >= 0) {
        size_t length = tokenizer->vocab.tokens[tokenizer->bos].length;
        if (length < sizeof first) memcpy(first, trd__vocab_bytes(&tokenizer->vocab, tokenizer->bos), length);
    }
    trd_status status =
        trd__chat_render(tokenizer->chat, first, messages, count, add_generation_prompt, &chat);
    if (!status) status = encode_chat(tokenizer, &chat, ids);
    trd__chat_text_free(&chat);
    return status;
}
