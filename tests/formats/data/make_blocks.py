"""Makes blocks.gguf and blocks.safetensors with the PyPI packages gguf, numpy and safetensors: tensors of every
supported type filled with fixed pseudo-random blocks, and what gguf's own dequantization gives for them."""
import pathlib

import gguf
import numpy
from safetensors.numpy import save_file

folder = pathlib.Path(__file__).parent
random = numpy.random.default_rng(1)
types = gguf.GGMLQuantizationType
scale_offsets = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q6_K": [208]}

writer = gguf.GGUFWriter(folder / "blocks.gguf", "llama")
writer.add_uint32("test.u32", 4000000000)
writer.add_int32("test.i32", -7)
writer.add_uint64("test.u64", 2**63 + 1)
writer.add_float32("test.f32", 0.5)
writer.add_bool("test.bool", True)
writer.add_string("test.string", "größe")
writer.add_array("test.strings", ["a", "", "\u4e16"])
writer.add_array("test.numbers", [3, -1, 2])
expected = {}
for name in ["F32", "F16", "BF16", *scale_offsets]:
    kind = types[name]
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    rows, blocks = 3, 2 if elements > 1 else 64
    raw = random.integers(0, 256, (rows, blocks, size), dtype=numpy.uint8)
    for offset in scale_offsets.get(name, []):
        scales = (random.standard_normal((rows, blocks, 1)) * 0.1).astype(numpy.float16)
        scales[0, 0, 0] = numpy.float16(3e-7)  # a subnormal scale
        raw[:, :, offset : offset + 2] = scales.view(numpy.uint8)
    if elements == 1:
        values = random.standard_normal((rows, blocks)).astype(numpy.float32)
        values[0, :4] = [0.0, -0.0, 6e-8, numpy.inf]
        raw = gguf.quants.quantize(values, kind).view(numpy.uint8).reshape(rows, -1)
    raw = numpy.ascontiguousarray(raw.reshape(rows, -1))
    expected[name] = gguf.quants.dequantize(raw, kind).reshape(rows, -1).astype(numpy.float32)
    if name == "F32":
        writer.add_tensor(name, raw.view(numpy.float32))
    elif name == "F16":
        writer.add_tensor(name, raw.view(numpy.float16))
    else:
        writer.add_tensor(name, raw, raw_dtype=kind)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
save_file(expected, folder / "blocks.safetensors")
