/* Qwen2 and Qwen2.5: biases on the query, key and value projections. */
#include "nn/models/decoder.h"

static trd_status parse(trd_model *model, trd__json config)
{
    trd__decoder *o = model->options;
    o->qkv_bias = true;
    return trd__decoder_parse(model, config);
}

const trd__model_type trd__model_qwen2 = {.name = "qwen2",
                                          .class_name = "Qwen2ForCausalLM",
                                          .options_size = sizeof(trd__decoder),
                                          .dropout = true,
                                          .parse = parse,
                                          .declare = trd__decoder_declare,
                                          .hidden = trd__decoder_hidden,
                                          .head = trd__decoder_head,
                                          .write = trd__decoder_write};
