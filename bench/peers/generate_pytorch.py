"""Greedy generation in PyTorch with the model and the cache of transformers."""
import driver, generation


def build(spec):
    import torch
    from transformers import AutoModelForCausalLM, DynamicCache

    model = AutoModelForCausalLM.from_pretrained(spec["weights"], dtype=getattr(torch, spec["config"]["weight_dtype"]),
                                                 attn_implementation="sdpa").eval()
    state = {}

    @torch.inference_mode()
    def run(rows):
        out = model(input_ids=torch.tensor(rows), past_key_values=state["cache"], use_cache=True, logits_to_keep=1)
        return out.logits[:, -1].argmax(-1).tolist()

    def read(texts):
        state["cache"] = DynamicCache(config=model.config)
        run(texts)

    return read, lambda tokens: run([[token] for token in tokens]), driver.package_versions("torch", "transformers")


generation.serve(build)
