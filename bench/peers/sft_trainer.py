"""Supervised fine-tuning with the Trainer of transformers. A step is a pass over the examples, in batches of the
Trainer's default size: padded to the longest of a batch, or flattened to one row without padding (the peer
`trainer-packed`), where position ids that start again keep the examples apart.

The examples are token ids before the clock starts. The Trainer's own loop runs in a thread, which waits for its turn
after every step.
"""
import json, queue, threading, time
import driver

IGNORED = -100  # a label that carries no loss


def read_examples(spec):
    """Loss on the last message, with the end of its turn: the data has one answer a conversation."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(spec["weights"])
    examples = []
    for path in spec["config"]["train_files"]:
        with open(path, encoding="utf-8") as file:
            conversations = [json.loads(line)["messages"] for line in file]
        for messages in conversations:
            texts = [tokenizer.apply_chat_template(messages[:-1], tokenize=False, add_generation_prompt=True),
                     messages[-1]["content"] + tokenizer.eos_token + "\n"]
            prompt, answer = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts)
            labels = [IGNORED] * len(prompt) + answer[:-1] + [IGNORED]  # no loss on the line break after the turn
            examples.append({"input_ids": (prompt + answer)[:spec["length"]], "labels": labels[:spec["length"]]})
    return tokenizer, examples


def make_trainer(spec, turns):
    import torch
    from transformers import (AutoModelForCausalLM, DataCollatorForSeq2Seq, DataCollatorWithFlattening, Trainer,
                              TrainerCallback, TrainingArguments)

    c = spec["config"]
    tokenizer, examples = read_examples(spec)
    packed = spec["peer"] == "trainer-packed"
    collator = DataCollatorWithFlattening() if packed else DataCollatorForSeq2Seq(tokenizer, label_pad_token_id=IGNORED)
    model = AutoModelForCausalLM.from_pretrained(spec["weights"], dtype=getattr(torch, c["weight_dtype"]),
                                                 attn_implementation="sdpa")
    model.config.use_cache = False
    arguments = TrainingArguments(
        output_dir="unused", use_cpu=True, max_steps=1 << 20, save_strategy="no", report_to="none", disable_tqdm=True,
        logging_steps=1, learning_rate=c["learning_rate"], lr_scheduler_type="constant", warmup_steps=0,
        adam_beta1=c["adam_b1"], adam_beta2=c["adam_b2"], adam_epsilon=c["adam_eps"],
        weight_decay=c["adam_weight_decay"], max_grad_norm=c["gradient_clipping_threshold"], seed=0)
    arguments.gradient_accumulation_steps = -(-len(examples) // arguments.per_device_train_batch_size)
    shape = {"cells": 0}

    def collate(features):
        batch = collator(features)
        shape["cells"] += batch["input_ids"].numel()
        return batch

    class Turns(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **_):
            if "loss" in logs:
                turns.done.put({"loss": logs["loss"], "cells": shape["cells"]})
                shape["cells"] = 0
                turns.go.get()

    trainer = Trainer(model=model, args=arguments, train_dataset=examples, data_collator=collate, callbacks=[Turns()])
    return trainer, examples


class Turnstile:
    """Lets a thread go for one step at a time."""

    def __init__(self):
        self.go, self.done = queue.Queue(), queue.Queue()

    def steps(self, count):
        found = []
        for _ in range(count):
            self.go.put(None)
            found.append(self.done.get())
            if isinstance(found[-1], BaseException):
                raise found[-1]
        return found


def start(spec):
    turns = Turnstile()
    trainer, examples = make_trainer(spec, turns)
    work = spec["steps"] * sum(label != IGNORED for e in examples for label in e["labels"])
    tokens = sum(len(e["input_ids"]) for e in examples)

    def train():
        turns.go.get()
        try:
            trainer.train()
        except BaseException as e:
            turns.done.put(e)

    threading.Thread(target=train, daemon=True).start()

    def run(count):
        begin = time.monotonic()
        found = turns.steps(count)
        return {"loop_ms": 1e3 * (time.monotonic() - begin), "losses": [f["loss"] for f in found],
                "filled": count * tokens / sum(f["cells"] for f in found)}

    versions = driver.package_versions("torch", "transformers", "accelerate")
    return lambda _: run(spec["steps"]) | {"work": work, "check": work}, run(spec["warm"]) | {"versions": versions}


driver.serve(start)
