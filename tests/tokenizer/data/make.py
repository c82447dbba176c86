#!/usr/bin/env python3
"""Makes the reference ids of this folder with the tokenizers, transformers and gguf packages.

usage: make.py SMOLLM2_GGUF   (run from anywhere; needs a virtual environment with the three packages)

Written: ../../data/smollm2-tokenizer.gguf (the metadata of SMOLLM2_GGUF without its weights), llama3-small.json (a
small tokenizer of Llama 3's shape), flags.json (added tokens with every flag), *.jsonl (texts with ids, chats with
text and ids)."""
import json, os, random, sys

from gguf import GGUFReader, GGUFValueType, GGUFWriter
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(HERE, "..", "..", "data")
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")

SAMPLES = [
    "Hello, world! It's a test; they'll see. I'M WE'RE x'ſ o'clock 'tis",
    "你好，世界！今天天气怎么样？这是一个很长的句子，用来测试分词器在没有空格的文字上的表现。",
    "こんにちは世界、これはテストです。カタカナとひらがな。",
    "안녕하세요 세계, 이것은 시험입니다. \u1112\u1161\u11ab",
    "Привет, мир! Как дела? Съешь ещё этих мягких французских булок.",
    "مرحبا بالعالم، كيف حالك؟ ١٢٣٤", "नमस्ते दुनिया क़ ज़िंदगी १२३", "สวัสดีชาวโลก ๔๕๖", "Ελληνικά ά \u03b1\u0301",
    "cafe\u0301 a\u030angstro\u0308m o\u0302\u0323 \u1e9b\u0323 \u212b \u2126 \u0344",
    "👩‍👩‍👧‍👦 👍🏽 🇩🇪 😀😃 ❤️‍🔥 1️⃣", "    four\t\ttabs  two\n\n\n   three \r\n\r\n end   ", " " * 300 + "x" + "\n" * 50,
    "1234567890 3.14159 0x7f 1,000,000 ①②③ ½ Ⅷ 𝟘𝟙 \u0660\u06f1", "def f(x):\n    return x ** 2  # square\n\n\nif __name__ == '__main__':\n\tf(3)\n",
    "#include <stdio.h>\nint main(void) { printf(\"%d\\n\", 42); return 0; }\n", "{\"key\": [1, 2, {\"a\": null}], \"b\": \"\\u00e9\"}",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", "<|endoftext|><|endoftext|> a <|im_end|>b<|im_en|>d",
    "<tool_call>x</tool_call> <think>\n\n</think>\n\nok <file_sep><repo_name>", "\u00a0\u3000\u2028\u200b\u0085\u1680x\u202f \u205f",
    "!!!???...---===///\\\\\\\n\n,,,\r\r", "supercalifragilisticexpialidocious" * 8, "Donaudampfschifffahrtsgesellschaftskapitän",
    "x" * 200, "ab" * 100, "𐍈 𠀀𠀁 \U0001f469\U0001f3fd", "\x01\x02\x04\x7f\x1b[0m", "a", " ", "\n", "'", "''s", "\t'LL",
]


def texts(seed):
    random.seed(seed)
    found = list(SAMPLES)
    for _ in range(60):
        parts = []
        for _ in range(random.randrange(1, 12)):
            kind = random.random()
            if kind < 0.5:
                parts.append(random.choice(SAMPLES)[:random.randrange(1, 30)])
            elif kind < 0.8:
                lo, hi = random.choice([(1, 0x250), (0x300, 0x3000), (0x3000, 0xd800), (0xe000, 0x11000), (0x1d000, 0x1fa00)])
                parts.append("".join(chr(random.randrange(lo, hi)) for _ in range(random.randrange(1, 9))))
            else:
                parts.append("".join(random.choice("abc '\"sdt1 \n\r.,ſ") for _ in range(20)))
        found.append("".join(parts))
    return found


def write(name, rows):
    with open(os.path.join(HERE, name), "w", encoding="utf-8") as out:
        for row in rows:
            out.write(json.dumps(row) + "\n")


def write_texts(name, tokenizer, seed, extra=()):
    rows = []
    for text in texts(seed) + list(extra):
        rows.append({"text": text, "ids": tokenizer.encode(text, add_special_tokens=False).ids})
    write(name, rows)


def smollm2(path):
    reader = GGUFReader(path)
    get = lambda key: reader.fields["tokenizer.ggml." + key].contents()
    tokens, types, merges = get("tokens"), get("token_type"), get("merges")
    writer = GGUFWriter(os.path.join(DATA, "smollm2-tokenizer.gguf"), "llama")
    writer.add_license("apache-2.0")
    writer.add_name("SmolLM2-135M-Instruct, tokenizer only")
    writer.add_tokenizer_model(get("model"))
    writer.add_tokenizer_pre(get("pre"))
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    for key in ("bos", "eos", "unknown", "padding"):
        writer.add_uint32(f"tokenizer.ggml.{key}_token_id", get(key + "_token_id"))
    writer.add_add_bos_token(get("add_bos_token"))
    template = reader.fields["tokenizer.chat_template"].contents()
    writer.add_chat_template(template)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    made = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=[tuple(m.split(" ")) for m in merges]))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, k in zip(tokens, types) if k == 3])
    return made, template


def llama3():
    made = Tokenizer(models.BPE(ignore_merges=True))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(LLAMA3), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    made.train_from_iterator(SAMPLES * 3, trainer)
    specials = ["begin_of_text", "end_of_text", "start_header_id", "end_header_id", "eot_id"]
    made.add_special_tokens([AddedToken(f"<|{s}|>", special=True, normalized=False) for s in specials])
    made.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", made.token_to_id("<|begin_of_text|>"))])])
    made.save(os.path.join(HERE, "llama3-small.json"), pretty=False)
    return made


def flags():
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    made.decoder = decoders.ByteLevel()
    from tokenizers import normalizers
    made.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    made.train_from_iterator(["ab ab abc <l> <r>"] * 3, trainer)
    made.add_tokens([
        AddedToken("<l>", lstrip=True, normalized=False), AddedToken("<r>", rstrip=True, normalized=False),
        AddedToken("<lr>", lstrip=True, rstrip=True, normalized=False), AddedToken("word", single_word=True, normalized=False),
        AddedToken("<a>", normalized=False), AddedToken("<a><b>", normalized=False), AddedToken("caf\u00e9", normalized=True),
        AddedToken("re\u0301", normalized=True)])
    made.save(os.path.join(HERE, "flags.json"), pretty=False)
    rows = []
    for text in ["a <l> b", "a  \n<l><l> <l>", "a<r>  b <r>\t\n<r> c", " <lr> <lr>  x <lr>", "word words sword word. a_word \u00e9word word",
                 "<a><b> <a><c> <a><a><b>", "cafe\u0301 caf\u00e9 r\u00e9 re\u0301 re", "\u3000<l>\u00a0<r>\u2003z", "<l", "<r> ", " <l>",
                 "wordword word-word", "word\u0301 word1 1word"]:
        rows.append({"text": text, "ids": made.encode(text, add_special_tokens=False).ids})
    write("flags.jsonl", rows)


M = lambda *pairs: [{"role": r, "content": c} for r, c in pairs]
CHATS = [
    M(("user", "Hi")), M(("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello!")),
    M(("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"), ("user", "e")),
    M(("user", "a"), ("assistant", "<think>\nhm\n\nso\n</think>\n\nb"), ("user", "c"), ("assistant", "<think>\nyes\n</think>\n\n\nd")),
    M(("user", "a"), ("assistant", "</think>"), ("assistant", "x<think>y</think>z</think>w"), ("assistant", "no thought")),
    M(("assistant", "first"), ("user", "  spaces \n"), ("assistant", "\n\nnewlines\n")), M(("user", ""), ("assistant", "")),
    M(("system", " s\u3000"), ("system", "again"), ("user", "\u00e9\u0301 e\u0301\x1f"), ("assistant", "日本語 👍🏽"), ("user", "x")),
    M(("user", "q"), ("assistant", "call"), ("tool", "1\t\"2\""), ("tool", "r/2"), ("assistant", "done"), ("tool", "3"), ("user", "z")),
    M(("user", "<tool_response>x</tool_response>"), ("assistant", "a"), ("user", "<tool_response>y</tool_response>"), ("assistant", "b")),
    M(("user", "say <|im_end|> or <|eot_id|>"), ("assistant", "<|im_end|>\n<|im_start|>user\nno")),
]


def chats(name, tokenizer, templates, bos=None):
    """One file for templates that must all give the same."""
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=bos)
    rows = []
    for messages in CHATS:
        for prompt in (False, True):
            rendered = [fast.apply_chat_template(messages, chat_template=template, tokenize=False,
                                                 add_generation_prompt=prompt, date_string="26 Jul 2024")
                        for template in templates]
            text = rendered[0]
            assert all(other == text for other in rendered), (name, messages)
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            rows.append({"messages": messages, "generation": prompt, "text": text, "ids": ids})
    write(f"chat-{name}.jsonl", rows)


def known_templates():
    """Texts as the library has them, by variable name."""
    import re
    source = open(os.path.join(HERE, "..", "..", "..", "src", "tokenizer", "chat_texts.c"), encoding="utf-8").read()
    found = {}
    for name, body in re.findall(r"trd__chat_text_(\w+)\[\] =\n(.*?);\n", source, re.S):
        found[name] = "".join(json.loads(f'"{part}"') for part in re.findall(r'^    "(.*)"$', body, re.M))
    return found


if __name__ == "__main__":
    qwen3 = Tokenizer.from_file(os.path.join(DATA, "qwen3-tokenizer", "tokenizer.json"))
    smol, smol_template = smollm2(sys.argv[1])
    llama = llama3()
    write_texts("qwen3.jsonl", qwen3, 1)
    write_texts("smollm2.jsonl", smol, 2)
    write_texts("llama3-small.jsonl", llama, 3)
    flags()
    config = json.load(open(os.path.join(DATA, "qwen3-tokenizer", "tokenizer_config.json"), encoding="utf-8"))
    known = known_templates()
    chats("qwen3", qwen3, [config["chat_template"], known["qwen3_revised"]])
    chats("qwen25", qwen3, [known["qwen25"]])
    chats("smollm2", smol, [smol_template])
    chats("llama32", llama, [known["llama32"], known["llama31"]], "<|begin_of_text|>")
    chats("llama30", llama, [known["llama30"]], "<|begin_of_text|>")
