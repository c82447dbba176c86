"""Training steps with MaxText's training engine: fwd_bwd for each micro-batch, then update, all compiled ahead."""
import os, sys, tempfile
import driver

# MaxText's name under a layer: the Hugging Face name.
LAYER = {
    "mlp/wi_0/kernel": "mlp.gate_proj", "mlp/wi_1/kernel": "mlp.up_proj", "mlp/wo/kernel": "mlp.down_proj",
    "self_attention/query/kernel": "self_attn.q_proj", "self_attention/key/kernel": "self_attn.k_proj",
    "self_attention/value/kernel": "self_attn.v_proj", "self_attention/out/kernel": "self_attn.o_proj",
    "self_attention/query_norm/scale": "self_attn.q_norm", "self_attention/key_norm/scale": "self_attn.k_norm",
    "pre_self_attention_layer_norm/scale": "input_layernorm",
    "post_self_attention_layer_norm/scale": "post_attention_layernorm",
}
OUTSIDE = {"token_embedder/embedding": "model.embed_tokens", "decoder/decoder_norm/scale": "model.norm"}


def config_of(spec):
    import maxtext
    from maxtext.configs import pyconfig

    m, c = spec["model"], spec["config"]
    keys = {
        "run_name": "compare", "model_name": c["model_name"], "override_model_config": True,
        "base_emb_dim": m["hidden_size"], "base_mlp_dim": m["intermediate_size"], "vocab_size": m["vocab_size"],
        "base_num_query_heads": m["num_attention_heads"], "base_num_kv_heads": m["num_key_value_heads"],
        "head_dim": m["head_dim"], "base_num_decoder_layers": m["num_hidden_layers"],
        "per_device_batch_size": spec["rows"], "max_target_length": spec["length"],
        "dtype": c["dtype"], "weight_dtype": c["weight_dtype"], "scan_layers": False, "attention": "dot_product",
        "opt_type": c["opt_type"], "learning_rate": c["learning_rate"], "lr_schedule_type": "wsd",
        "wsd_decay_steps_fraction": 0, "warmup_steps_fraction": 0,
        "gradient_clipping_threshold": c["gradient_clipping_threshold"],
        **{key: c[key] for key in ("adam_b1", "adam_b2", "adam_eps", "adam_eps_root", "adam_weight_decay")},
        "dataset_type": "synthetic", "enable_checkpointing": False, "enable_tensorboard": False, "log_config": False,
        "skip_jax_distributed_system": True, "enable_goodput_recording": False, "profiler_steps": 0,
        "base_output_directory": tempfile.gettempdir(), **spec["with"],
    }
    base = os.path.join(os.path.dirname(maxtext.__file__), "configs", "base.yml")
    return pyconfig.initialize(["compare", base] + [f"{key}={value}" for key, value in keys.items()])


def load(engine, folder):
    """The weights in place of the model's random ones."""
    import jax, numpy as np
    from flax import nnx

    weights = driver.read_weights(folder)

    def value(path, old):
        name = "/".join(map(str, path))
        if name.startswith("decoder/layers_"):
            layer, rest = name[len("decoder/layers_"):].split("/", 1)
            found = weights[f"model.layers.{layer}.{LAYER[rest]}.weight"]
            found = found.T if rest.endswith("kernel") else found
        else:
            found = weights[OUTSIDE[name] + ".weight"]
        return jax.device_put(np.array(found.reshape(old.shape)).astype(old.dtype), old.sharding)

    for path, variable in nnx.state(engine.model, nnx.Param).flat_state():
        variable.set_value(value(path, variable.get_value()))
        yield path, variable


def build(spec):
    sys.path.insert(0, spec["tunix_repository"])
    import jax, numpy as np
    from flax import nnx
    from maxtext.training_engine import maxtext_engine
    from maxtext.utils import maxtext_utils

    config = config_of(spec)
    mesh = jax.sharding.Mesh(maxtext_utils.create_device_mesh(config), config.mesh_axes)
    engine = maxtext_engine.MaxTextTrainingEngine(config, mesh)
    nnx.update(engine.model, nnx.State.from_flat_path(dict(load(engine, spec["weights"]))))
    rows, length = spec["rows"], spec["length"]
    position = np.tile(np.arange(length, dtype=np.int32), (rows, 1))
    segment = np.ones((rows, length), np.int32)
    counted = segment.copy()
    counted[:, -1] = 0  # the last token has no target
    payloads = [dict(inputs=x, targets=np.roll(x, -1, 1), inputs_position=position, targets_position=position,
                     inputs_segmentation=segment, targets_segmentation=counted)
                for x in (np.array(batch, np.int32) for batch in driver.micro_batches(spec))]
    engine.compile(payloads[0])

    def step():
        for payload in payloads:
            engine.fwd_bwd(payload)
        losses = list(engine._cached_losses)
        engine.update()
        return losses

    def run(steps):
        losses = [step() for _ in range(steps)]
        engine._throttler.wait_for_all()
        jax.block_until_ready(jax.tree.leaves(engine._read_state_pure()))
        return [sum(float(x.unreduced_sum) / float(x.denominator) for x in step) / len(step) for step in losses]

    return {"run": run, "busy": driver.jax_busy,
            "versions": driver.package_versions("maxtext", "google-tunix", "jax", "flax")}


driver.serve_steps(build)
