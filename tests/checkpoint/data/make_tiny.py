"""Makes llama.gguf and qwen3.gguf, as llama.cpp's converter would from tiny hub checkpoints, and the hub tensors
they stand for (after quantization) in llama.safetensors and qwen3.safetensors. PyPI packages: gguf, numpy,
safetensors."""
import pathlib

import gguf
import numpy
from safetensors.numpy import save_file

folder = pathlib.Path(__file__).parent
types = gguf.GGMLQuantizationType
hidden, heads, kv_heads, head_dim, ffn, vocab, theta, factor = 32, 2, 1, 16, 64, 8, 500000.0, 8.0


def permute(rows, count):
    """The row order of convert_hf_to_gguf.py: rotary halves become neighbouring pairs."""
    return rows.reshape(count, 2, rows.shape[0] // count // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def rope_factors():
    """Llama 3's frequency scaling, as convert_hf_to_gguf.py stores it in rope_freqs.weight."""
    freqs = 1.0 / theta ** (numpy.arange(0, head_dim, 2, dtype=numpy.float32) / head_dim)
    low, high, context, out = 1.0, 4.0, 8192, []
    for wavelength in 2 * numpy.pi / freqs:
        if wavelength < context / high:
            out.append(1.0)
        elif wavelength > context / low:
            out.append(factor)
        else:
            smooth = (context / wavelength - low) / (high - low)
            out.append(1 / ((1 - smooth) / factor + smooth))
    return numpy.array(out, dtype=numpy.float32)


def make(name, permuted, norms, tied):
    random = numpy.random.default_rng(2)
    writer = gguf.GGUFWriter(folder / f"{name}.gguf", name)
    writer.add_block_count(1)
    writer.add_context_length(131072)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_freq_base(theta)
    writer.add_layer_norm_rms_eps(1e-5)
    if norms:
        writer.add_key_length(head_dim)
    else:
        writer.add_rope_dimension_count(head_dim)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    layer = "model.layers.0."
    table = [
        ("token_embd", "model.embed_tokens", (vocab, hidden), "F32"),
        ("output_norm", "model.norm", (hidden,), "F32"),
        ("blk.0.attn_norm", layer + "input_layernorm", (hidden,), "F32"),
        ("blk.0.ffn_norm", layer + "post_attention_layernorm", (hidden,), "F32"),
        ("blk.0.attn_q", layer + "self_attn.q_proj", (heads * head_dim, hidden), "Q8_0"),
        ("blk.0.attn_k", layer + "self_attn.k_proj", (kv_heads * head_dim, hidden), "F32"),
        ("blk.0.attn_v", layer + "self_attn.v_proj", (kv_heads * head_dim, hidden), "F16"),
        ("blk.0.attn_output", layer + "self_attn.o_proj", (hidden, heads * head_dim), "BF16"),
        ("blk.0.ffn_gate", layer + "mlp.gate_proj", (ffn, hidden), "Q4_0"),
        ("blk.0.ffn_up", layer + "mlp.up_proj", (ffn, hidden), "Q4_1"),
        ("blk.0.ffn_down", layer + "mlp.down_proj", (hidden, ffn), "Q5_0"),
    ]
    if norms:
        table += [
            ("blk.0.attn_q_norm", layer + "self_attn.q_norm", (head_dim,), "F32"),
            ("blk.0.attn_k_norm", layer + "self_attn.k_norm", (head_dim,), "F32"),
        ]
    if not tied:
        table += [("output", "lm_head", (vocab, hidden), "F32")]
    expected = {}
    for ours, hub, shape, kind in table:
        values = random.standard_normal(shape).astype(numpy.float32)
        raw = gguf.quants.quantize(values, types[kind]) if kind != "F32" else values
        dequantized = gguf.quants.dequantize(raw, types[kind]) if kind != "F32" else values
        expected[hub + ".weight"] = numpy.ascontiguousarray(dequantized.reshape(shape), dtype=numpy.float32)
        if permuted and ours.endswith(("attn_q", "attn_k")):
            raw = permute(raw, heads if ours.endswith("q") else kv_heads)
        if kind == "F16":
            writer.add_tensor(ours + ".weight", numpy.ascontiguousarray(raw).view(numpy.float16))
        else:
            writer.add_tensor(ours + ".weight", numpy.ascontiguousarray(raw), raw_dtype=types[kind])
    if permuted:
        writer.add_tensor("rope_freqs.weight", rope_factors())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_file(expected, folder / f"{name}.safetensors")


make("llama", permuted=True, norms=False, tied=True)
make("qwen3", permuted=False, norms=True, tied=False)
