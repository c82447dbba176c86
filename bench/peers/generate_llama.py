"""Greedy generation in llama.cpp, by its C interface: the workload's weights as a GGUF file, cache in the weights' type
where they are float32, else float16, which is its default."""
import os, tempfile
import driver, generation

# The names of a layer's weights here and there.
LAYER = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
         "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
         "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
         "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
OTHERS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def gguf_name(name):
    stem, kind = name.rsplit(".", 1)
    if stem in OTHERS:
        return f"{OTHERS[stem]}.{kind}"
    layer, rest = stem.removeprefix("model.layers.").split(".", 1)
    return f"blk.{layer}.{LAYER[rest]}.{kind}"


def write_gguf(spec, path):
    import gguf, numpy as np

    m, llama = spec["model"], spec["model"]["model_type"] == "llama"
    heads = {"attn_q.": m["num_attention_heads"], "attn_k.": m["num_key_value_heads"]}
    writer = gguf.GGUFWriter(path, m["model_type"])
    writer.add_vocab_size(m["vocab_size"])
    writer.add_context_length(m["max_position_embeddings"])
    writer.add_embedding_length(m["hidden_size"])
    writer.add_block_count(m["num_hidden_layers"])
    writer.add_feed_forward_length(m["intermediate_size"])
    writer.add_head_count(m["num_attention_heads"])
    writer.add_head_count_kv(m["num_key_value_heads"])
    writer.add_key_length(m["head_dim"])
    writer.add_value_length(m["head_dim"])
    writer.add_rope_dimension_count(m["head_dim"])
    writer.add_rope_freq_base((m.get("rope_parameters") or m)["rope_theta"])
    writer.add_layer_norm_rms_eps(m["rms_norm_eps"])
    writer.add_tokenizer_model("none")
    narrow = gguf.GGMLQuantizationType.BF16 if spec["config"]["weight_dtype"] == "bfloat16" else None
    for name, array in driver.read_weights(spec["weights"]).items():
        name = gguf_name(name)
        for part, count in heads.items():
            if llama and part in name:  # its rotation takes neighbours, not halves
                array = array.reshape(count, 2, -1, array.shape[-1]).swapaxes(1, 2).reshape(array.shape)
        if narrow and array.ndim > 1:
            writer.add_tensor(name, gguf.quants.quantize(array, narrow), raw_dtype=narrow)
        else:
            writer.add_tensor(name, np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def build(spec):
    import llama_cpp as L, numpy as np

    threads, w = len(os.sched_getaffinity(0)), spec["with"]
    L.llama_backend_init()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.gguf")
        write_gguf(spec, path)
        settings = L.llama_model_default_params()
        settings.use_mmap = False  # the file goes away
        model = L.llama_model_load_from_file(path.encode(), settings)
    settings = L.llama_context_default_params()
    settings.n_seq_max, settings.n_ctx = w["rows"], w["rows"] * 256 * ((w["prompt"] + w["tokens"]) // 256 + 1)
    settings.n_batch = w["rows"] * w["prompt"]
    settings.n_threads = settings.n_threads_batch = threads
    if spec["config"]["weight_dtype"] == "float32":
        settings.type_k = settings.type_v = 0  # GGML_TYPE_F32
    context = L.llama_init_from_model(model, settings)
    batch = L.llama_batch_init(settings.n_batch, 0, 1)
    state = {"at": 0}

    def run(rows, logits):
        place = 0
        for r, row in enumerate(rows):
            for t, token in enumerate(row):
                batch.token[place], batch.pos[place], batch.logits[place] = token, state["at"] + t, logits
                batch.n_seq_id[place], batch.seq_id[place][0] = 1, r
                place += 1
        batch.n_tokens = place
        if L.llama_decode(context, batch):
            raise RuntimeError("llama_decode failed")
        state["at"] += len(rows[0])

    def read(texts):
        L.llama_memory_clear(L.llama_get_memory(context), True)
        state["at"] = 0
        run(texts, False)
        L.llama_synchronize(context)

    def step(tokens):
        run([[token] for token in tokens], True)
        vocab = spec["model"]["vocab_size"]
        return [int(np.ctypeslib.as_array(L.llama_get_logits_ith(context, r), (vocab,)).argmax())
                for r in range(len(tokens))]

    return read, step, driver.package_versions("llama_cpp_python", "numpy")


generation.serve(build)
