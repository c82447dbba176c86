"""Makes optimizers.json: a few steps of every optimizer on small tensors, in float64.

The formulas are written out here once more, in NumPy; where optax has the same optimizer its float64 run must
agree (needs numpy, ml_dtypes, jax and optax: python3 make_optimizers.py > optimizers.json). Moments that are
kept in bfloat16 are checked by the formulas here alone, since optax rounds them once more on the way.
"""
import json
import sys

import jax

jax.config.update("jax_enable_x64", True)
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax

STEPS = 4
SHAPES = {"wide": (4, 6), "tall": (7, 4), "small": (3, 5), "vector": (5,), "table": (6, 4), "tiny": (5,)}
RATES = [0.05, 0.1, 0.02, 0.07]
ADAM = dict(adam_b1=0.9, adam_b2=0.95, adam_eps=1e-8, adam_eps_root=0.0, adam_weight_decay=0.1)


def f32(x):
    return np.asarray(x, np.float32).astype(np.float64)


def make_inputs():
    rng = np.random.default_rng(17)
    parameters = {k: f32(rng.normal(0, 0.5, s)) for k, s in SHAPES.items()}
    gradients = [{k: f32(rng.normal(0, 0.3, s)) for k, s in SHAPES.items()} for _ in range(STEPS)]
    gradients[1]["vector"][2] = 0.0
    parameters["tiny"] = f32(parameters["tiny"] * 1e-4)
    return parameters, gradients


def stored(x, o):
    return x.astype(ml_dtypes.bfloat16).astype(np.float64) if o.get("mu_dtype") == "bfloat16" else x


def adamw(o, t, rate, decay, p, g, s, look_ahead=False):
    b1, b2 = o["adam_b1"], o["adam_b2"]
    mu, nu = b1 * s["mu"] + (1 - b1) * g, b2 * s["nu"] + (1 - b2) * g * g
    if look_ahead:
        m = b1 * mu / (1 - b1 ** (t + 1)) + (1 - b1) * g / (1 - b1**t)
    else:
        m = mu / (1 - b1**t)
    step = m / (np.sqrt(nu / (1 - b2**t) + o["adam_eps_root"]) + o["adam_eps"])
    return p - rate * (step + decay * p), {"mu": stored(mu, o), "nu": nu}


def adam_pax(o, t, rate, decay, p, g, s):
    d1, d2 = (b * (1 - b ** (t - 1)) / (1 - b**t) for b in (o["adam_b1"], o["adam_b2"]))
    mu, nu = d1 * s["mu"] + (1 - d1) * g, d2 * s["nu"] + (1 - d2) * g * g
    step = mu / (np.sqrt(nu + o["adam_eps_root"]) + o["adam_eps"])
    return p - rate * (step + decay * p), {"mu": stored(mu, o), "nu": nu}


def muon(o, t, rate, decay, p, g, s):
    if "nu" in s:
        return adamw(o, t, rate, decay, p, g, s, look_ahead=True)
    beta = o["muon_beta"]
    mu = beta * s["mu"] + (1 - beta) * g
    x = beta * mu / (1 - beta ** (t + 1)) + (1 - beta) * g / (1 - beta**t)
    x = x / (np.sqrt((x * x).sum()) + o["adam_eps"])
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    rows, columns = p.shape
    scale = np.sqrt(max(1, rows / columns))
    if o["muon_consistent_rms"]:
        scale = np.sqrt(max(rows, columns)) * o["muon_consistent_rms"]
    return p - rate * (scale * x + decay * p), {"mu": stored(mu, o)}


def rms(x):
    return np.sqrt((x * x).mean())


def adafactor(o, t, rate, decay, p, g, s):
    keep = 1 - t ** -o["adafactor_decay_rate"]
    squares = g * g + o["adafactor_eps"]
    if "v" in s:
        v = keep * s["v"] + (1 - keep) * squares
        new = {"v": v}
    else:
        row = keep * s["v_row"] + (1 - keep) * squares.mean(axis=1)
        column = keep * s["v_column"] + (1 - keep) * squares.mean(axis=0)
        v = np.outer(row, column) / row.mean()
        new = {"v_row": row, "v_column": column}
    u = g / np.sqrt(v)
    if o["adafactor_clipping_threshold"]:
        u = u / max(1, rms(u) / o["adafactor_clipping_threshold"])
    if o["adafactor_multiply_by_parameter_scale"]:
        u = u * max(rms(p), 1e-3)
    return p - rate * (u + decay * p), new


UPDATES = dict(adamw=adamw, adam_pax=adam_pax, muon=muon, adafactor=adafactor)


def is_matrix(name):
    return len(SHAPES[name]) == 2 and name != "table"


def initial(o, name):
    shape = SHAPES[name]
    if o["opt_type"] == "adafactor":
        if len(shape) == 2 and min(shape) >= o["adafactor_min_dim_size_to_factor"]:
            return {"v_row": np.zeros(shape[0]), "v_column": np.zeros(shape[1])}
        return {"v": np.zeros(shape)}
    if o["opt_type"] == "muon" and is_matrix(name):
        return {"mu": np.zeros(shape)}
    return {"mu": np.zeros(shape), "nu": np.zeros(shape)}


def decay_of(o, name):
    if o["opt_type"] == "adafactor":
        return o["adafactor_weight_decay"]
    return o["muon_weight_decay"] if o["opt_type"] == "muon" and is_matrix(name) else o["adam_weight_decay"]


def run(o, parameters, gradients):
    values = dict(parameters)
    states = {k: initial(o, k) for k in SHAPES}
    history = []
    for t in range(1, STEPS + 1):
        for k in SHAPES:
            values[k], states[k] = UPDATES[o["opt_type"]](
                o, t, RATES[t - 1], decay_of(o, k), values[k], gradients[t - 1][k], states[k]
            )
        history.append(dict(values))
    return history, states


def rate(count):
    return jnp.asarray(RATES)[count]


def from_optax(o):
    kind = o["opt_type"]
    if kind in ("adamw", "adam_pax"):  # the same steps, of moments that differ by a factor
        return optax.adamw(rate, o["adam_b1"], o["adam_b2"], o["adam_eps"], o["adam_eps_root"],
                           weight_decay=o["adam_weight_decay"])
    if kind == "adafactor":  # optax leaves the learning rate out of the decay
        return optax.adafactor(
            rate, o["adafactor_min_dim_size_to_factor"], o["adafactor_decay_rate"],
            multiply_by_parameter_scale=o["adafactor_multiply_by_parameter_scale"],
            clipping_threshold=o["adafactor_clipping_threshold"] or None, eps=o["adafactor_eps"],
            weight_decay_rate=lambda count: rate(count) * o["adafactor_weight_decay"])
    rows_by_columns = optax.contrib.MuonDimensionNumbers(reduction_axis=1, output_axis=0)
    return optax.contrib.muon(
        rate, beta=o["muon_beta"], eps=o["adam_eps"], weight_decay=o["muon_weight_decay"],
        adam_b1=o["adam_b1"], adam_b2=o["adam_b2"], adam_eps_root=o["adam_eps_root"],
        adam_weight_decay=o["adam_weight_decay"], consistent_rms=o["muon_consistent_rms"] or None,
        muon_weight_dimension_numbers={k: rows_by_columns if is_matrix(k) else None for k in SHAPES})


def check_by_optax(o, parameters, gradients, history):
    values = {k: jnp.asarray(v) for k, v in parameters.items()}
    optimizer = from_optax(o)
    state = optimizer.init(values)
    for t in range(STEPS):
        updates, state = optimizer.update(gradients[t], state, values)
        values = optax.apply_updates(values, updates)
        # optax makes adafactor's decay, and every bias correction, in float32.
        bound = 2e-7 if o["opt_type"] == "adafactor" else 1e-8
        for k in SHAPES:
            np.testing.assert_allclose(history[t][k], values[k], rtol=0, atol=bound, err_msg=f"{o} {t} {k}")


def rounded(x):
    return [float(f"{v:.9g}") for v in np.asarray(x).ravel()]


def main():
    muon_keys = dict(ADAM, opt_type="muon", muon_beta=0.95, muon_weight_decay=0.05, muon_consistent_rms=0.0)
    factor_keys = dict(
        opt_type="adafactor", adafactor_decay_rate=0.8, adafactor_clipping_threshold=1.0, adafactor_eps=1e-30,
        adafactor_min_dim_size_to_factor=4, adafactor_multiply_by_parameter_scale=True, adafactor_weight_decay=0.1)
    cases = [
        dict(ADAM, opt_type="adamw"),
        dict(ADAM, opt_type="adamw", adam_b2=0.999, adam_eps=1e-3, adam_eps_root=1e-2),
        dict(ADAM, opt_type="adamw", mu_dtype="bfloat16"),
        dict(ADAM, opt_type="adam_pax"),
        dict(ADAM, opt_type="adam_pax", adam_eps=1e-3, adam_eps_root=1e-2),
        dict(ADAM, opt_type="adam_pax", mu_dtype="bfloat16"),
        muon_keys,
        dict(muon_keys, muon_consistent_rms=0.2),
        dict(muon_keys, mu_dtype="bfloat16"),
        factor_keys,
        dict(factor_keys, adafactor_clipping_threshold=0.0, adafactor_multiply_by_parameter_scale=False),
        dict(factor_keys, adafactor_clipping_threshold=0.5, adafactor_eps=1e-3, adafactor_decay_rate=0.5),
    ]
    parameters, gradients = make_inputs()
    out = {
        "rates": RATES,
        "tensors": [{"name": k, "shape": list(s), "vocab": k == "table", "value": rounded(parameters[k]),
                     "gradients": [rounded(g[k]) for g in gradients]} for k, s in SHAPES.items()],
        "cases": [],
    }
    for o in cases:
        history, states = run(o, parameters, gradients)
        if "mu_dtype" not in o:
            check_by_optax(o, parameters, gradients, history)
        out["cases"].append({"options": o, "parameters": {k: rounded(history[-1][k]) for k in SHAPES},
                             "states": {k: {s: rounded(v) for s, v in states[k].items()} for k in SHAPES}})
    text = json.dumps(out, indent=1)
    # One line for every list of numbers.
    import re
    text = re.sub(r"\[\s+((?:[-\d.e+]+,?\s*)+)\]", lambda m: "[" + " ".join(m.group(1).split()) + "]", text)
    sys.stdout.write(text + "\n")


main()
