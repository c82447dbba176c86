"""Training steps with Tunix's PeftTrainer: `tunix` is the package's, `tunix-v2` the repository's experimental one, which
has fwd_bwd and update. Both are driven by their own train()."""
import sys
import driver


def model_config(spec):
    import jax.numpy as jnp
    from tunix.models.qwen3 import model

    m, c = spec["model"], spec["config"]
    return model.ModelConfig(
        num_layers=m["num_hidden_layers"], vocab_size=m["vocab_size"], embed_dim=m["hidden_size"],
        hidden_dim=m["intermediate_size"], num_heads=m["num_attention_heads"], head_dim=m["head_dim"],
        num_kv_heads=m["num_key_value_heads"], rope_theta=m["rope_theta"], norm_eps=m["rms_norm_eps"],
        use_tied_embedding=m["tie_word_embeddings"], remat_config=model.RematConfig.NONE,
        dtype=getattr(jnp, c["dtype"]), param_dtype=getattr(jnp, c["weight_dtype"]))


def optimizer(c):
    import optax

    rate = c["learning_rate"]
    update = (optax.sgd(rate) if c["opt_type"] == "sgd" else
              optax.adamw(rate, b1=c["adam_b1"], b2=c["adam_b2"], eps=c["adam_eps"],
                          weight_decay=c["adam_weight_decay"]))
    limit = c["gradient_clipping_threshold"]
    return optax.chain(optax.clip_by_global_norm(limit), update) if limit else update


def trainer_class(peer):
    if peer == "tunix":
        from tunix.sft import peft_trainer as module
    else:
        from tunix.experimental.train import peft_trainer_v2 as module

    class Trainer(module.PeftTrainer):
        """Keeps the loss of each micro-batch, on the device."""

        micro_losses = []

        def _buffer_metrics(self, metrics_buffer, loss, *args, **kwargs):
            self.micro_losses.append(loss)
            return super()._buffer_metrics(metrics_buffer, loss, *args, **kwargs)

    return Trainer, module.TrainingConfig


def model_input(x):
    from tunix.sft import utils

    mask = x["input_mask"] != 0
    return x | {"positions": utils.build_positions_from_mask(mask), "attention_mask": utils.make_causal_attn_mask(mask)}


def build(spec):
    if "tunix_repository" in spec:
        sys.path.insert(0, spec["tunix_repository"])
    import jax, numpy as np
    from flax import nnx
    from tunix.models.qwen3 import params

    config, cycle = model_config(spec), spec["cycle"]
    with jax.make_mesh((1, 1), ("fsdp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2):
        model = params.create_model_from_safe_tensors(spec["weights"], config, dtype=config.param_dtype)
    Trainer, Config = trainer_class(spec["peer"])
    trainer = Trainer(model, optimizer(spec["config"]),
                      Config(eval_every_n_steps=10**9, gradient_accumulation_steps=cycle if cycle > 1 else None))
    trainer = trainer.with_gen_model_input_fn(model_input)
    trainer.is_managed_externally = True
    batches = [np.array(rows, np.int32) for rows in driver.micro_batches(spec)]
    payloads = [{"input_tokens": x, "input_mask": np.ones_like(x)} for x in batches]

    def wait():
        jax.block_until_ready(jax.tree.leaves((nnx.state(trainer.model), nnx.state(trainer.optimizer))))

    def run(steps):
        trainer.micro_losses.clear()
        trainer.train(payload for _ in range(steps) for payload in payloads)
        wait()
        losses = [float(x) for x in trainer.micro_losses]
        return [sum(losses[i:i + cycle]) / cycle for i in range(0, len(losses), cycle)]

    return {"run": run, "busy": driver.jax_busy, "versions": driver.package_versions("google-tunix", "jax", "flax")}


driver.serve_steps(build)
