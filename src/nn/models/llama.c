/* Llama family: SmolLM2, Llama 3.x. attention_bias and mlp_bias of config.json put biases on every projection
 * of their block. */
#include "nn/models/decoder.h"

static trd_status parse(trd_model *model, trd__json config)
{
    trd__decoder *o = model->options;
    TRD_TRY(trd__json_opt_bool(config, "attention_bias", &o->qkv_bias));
    TRD_TRY(trd__json_opt_bool(config, "mlp_bias", &o->mlp_bias));
    o->o_bias = o->qkv_bias;
    return trd__decoder_parse(model, config);
}

static trd_status write(const trd_model *model, trd__json_writer *writer)
{
    const trd__decoder *o = model->options;
    trd__json_put_bool(writer, "attention_bias", o->qkv_bias);
    trd__json_put_bool(writer, "mlp_bias", o->mlp_bias);
    return trd__decoder_write(model, writer);
}

const trd__model_type trd__model_llama = {.name = "llama",
                                          .class_name = "LlamaForCausalLM",
                                          .options_size = sizeof(trd__decoder),
                                          .dropout = true,
                                          .parse = parse,
                                          .declare = trd__decoder_declare,
                                          .hidden = trd__decoder_hidden,
                                          .head = trd__decoder_head,
                                          .write = write};
