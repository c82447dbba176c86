/* Qwen3 dense: rms-norm on each query and key head, biases only where attention_bias says. */
#include "nn/models/decoder.h"

static trd_status parse(trd_model *model, trd__json config)
{
    trd__decoder *o = model->options;
    o->qk_norm = true;
    TRD_TRY(trd__json_opt_bool(config, "attention_bias", &o->qkv_bias));
    o->o_bias = o->qkv_bias;
    return trd__decoder_parse(model, config);
}

static trd_status write(const trd_model *model, trd__json_writer *writer)
{
    const trd__decoder *o = model->options;
    trd__json_put_bool(writer, "attention_bias", o->qkv_bias);
    return trd__decoder_write(model, writer);
}

const trd__model_type trd__model_qwen3 = {.name = "qwen3",
                                          .class_name = "Qwen3ForCausalLM",
                                          .options_size = sizeof(trd__decoder),
                                          .dropout = true,
                                          .parse = parse,
                                          .declare = trd__decoder_declare,
                                          .hidden = trd__decoder_hidden,
                                          .head = trd__decoder_head,
                                          .write = write};
