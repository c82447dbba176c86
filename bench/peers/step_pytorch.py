"""Training steps in PyTorch with the model of transformers, eager or compiled: forward, backward, clipping by the
global norm, SGD or fused AdamW."""
import driver


def build(spec):
    import torch
    from transformers import AutoModelForCausalLM

    c = spec["config"]
    model = AutoModelForCausalLM.from_pretrained(spec["weights"], dtype=getattr(torch, c["weight_dtype"]),
                                                 attn_implementation="sdpa")
    model.train()
    model.config.use_cache = False
    rate = c["learning_rate"]
    optimizers = {
        "sgd": lambda p: torch.optim.SGD(p, lr=rate),
        "adamw": lambda p: torch.optim.AdamW(p, lr=rate, betas=(c["adam_b1"], c["adam_b2"]), eps=c["adam_eps"],
                                             weight_decay=c["adam_weight_decay"], fused=True),
    }
    optimizer = optimizers[c["opt_type"]](model.parameters())
    forward = torch.compile(model) if spec["peer"] == "pytorch-compile" else model
    batches = [torch.tensor(rows) for rows in driver.micro_batches(spec)]

    def step():
        total = 0.0
        for tokens in batches:
            loss = forward(input_ids=tokens, labels=tokens).loss / len(batches)
            loss.backward()
            total += loss.detach()
        if c["gradient_clipping_threshold"]:
            torch.nn.utils.clip_grad_norm_(model.parameters(), c["gradient_clipping_threshold"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(total)

    return {"run": lambda steps: [step() for _ in range(steps)], "versions": driver.package_versions("torch", "transformers")}


driver.serve_steps(build)
