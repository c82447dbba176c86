"""The training step in JAX, as one would write it by hand: forward, backward, clipping by the global norm and SGD in one
program, float32, the parameters donated. The workload's `form` is unscanned or scanned (layers), a hyphen, and sdpa
(jax.nn.dot_product_attention) or softmax (written out, masked)."""
import driver

FORMS = ("unscanned-sdpa", "unscanned-softmax", "scanned-sdpa", "scanned-softmax")


def load_params(folder, config, scanned):
    """Kernels as (in, out); the layers as a list, or stacked."""
    import jax, numpy as np

    w = driver.read_weights(folder)
    names = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
             "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj", "q_norm": "self_attn.q_norm",
             "k_norm": "self_attn.k_norm", "norm1": "input_layernorm", "norm2": "post_attention_layernorm"}
    layers = [{key: np.ascontiguousarray(w[f"model.layers.{i}.{name}.weight"].T) for key, name in names.items()}
              for i in range(config["num_hidden_layers"])]
    if scanned:
        layers = {key: np.stack([layer[key] for layer in layers]) for key in names}
    params = {"embed": w["model.embed_tokens.weight"], "norm": w["model.norm.weight"], "layers": layers}
    return jax.tree.map(lambda x: jax.device_put(np.array(x)), params)


def make_step(config, rate, limit, scanned, sdpa):
    import jax, jax.numpy as jnp

    heads, groups, dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    eps, theta = config["rms_norm_eps"], config["rope_theta"]

    def rms_norm(x, scale):
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + eps) * scale

    def rotate(x, cos, sin):
        a, b = jnp.split(x, 2, -1)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def attention(q, k, v):
        if sdpa:
            return jax.nn.dot_product_attention(q, k, v, is_causal=True)
        b, t = q.shape[:2]
        q = q.reshape(b, t, groups, heads // groups, dim)
        scores = jnp.einsum("btgrd,bsgd->bgrts", q, k) * dim ** -0.5
        causal = jnp.tril(jnp.ones((t, t), bool))
        p = jax.nn.softmax(jnp.where(causal, scores, -1e30), -1)
        return jnp.einsum("bgrts,bsgd->btgrd", p, v).reshape(b, t, heads, dim)

    def block(x, p, cos, sin):
        b, t = x.shape[:2]
        h = rms_norm(x, p["norm1"])
        q = rotate(rms_norm((h @ p["q"]).reshape(b, t, heads, dim), p["q_norm"]), cos, sin)
        k = rotate(rms_norm((h @ p["k"]).reshape(b, t, groups, dim), p["k_norm"]), cos, sin)
        v = (h @ p["v"]).reshape(b, t, groups, dim)
        x = x + attention(q, k, v).reshape(b, t, heads * dim) @ p["o"]
        h = rms_norm(x, p["norm2"])
        return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]

    def loss_of(params, tokens):
        t = tokens.shape[1]
        angle = jnp.arange(t)[:, None] * theta ** (-jnp.arange(0, dim, 2) / dim)
        cos, sin = jnp.cos(angle)[None, :, None], jnp.sin(angle)[None, :, None]
        x = params["embed"][tokens]
        if scanned:
            x, _ = jax.lax.scan(lambda x, p: (block(x, p, cos, sin), None), x, params["layers"])
        else:
            for p in params["layers"]:
                x = block(x, p, cos, sin)
        logits = rms_norm(x[:, :-1], params["norm"]) @ params["embed"].T
        target = jnp.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, -1) - target)

    def step(params, tokens):
        loss, grads = jax.value_and_grad(loss_of)(params, tokens)
        norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(grads)))
        scale = rate * jnp.minimum(1, limit / norm)
        return jax.tree.map(lambda p, g: p - scale * g, params, grads), loss

    return jax.jit(step, donate_argnums=0)


def build(spec):
    import jax, numpy as np

    c, form = spec["config"], spec["with"].get("form", "unscanned-sdpa")
    if form not in FORMS:
        raise ValueError(f"form: expected {' or '.join(FORMS)}, found {form!r}")
    scanned, sdpa = form.startswith("scanned"), form.endswith("sdpa")
    if spec["cycle"] != 1 or c["opt_type"] != "sgd" or c["dtype"] != "float32":
        raise ValueError("expected one micro-batch a step, sgd and float32")
    params = load_params(spec["weights"], spec["model"], scanned)
    tokens = np.array(driver.micro_batches(spec)[0], np.int32)
    step = make_step(spec["model"], c["learning_rate"], c["gradient_clipping_threshold"], scanned, sdpa)
    step = step.lower(params, tokens).compile()

    def run(steps):
        nonlocal params
        losses = []
        for _ in range(steps):
            params, loss = step(params, tokens)
            losses.append(loss)
        jax.block_until_ready(params)
        return [float(x) for x in losses]

    return {"run": run, "busy": driver.jax_busy, "versions": driver.package_versions("jax", "jaxlib")}


driver.serve_steps(build)
