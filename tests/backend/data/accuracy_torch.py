"""The rows of `test_backend_accuracy --table` for PyTorch: float32 against float64 on the CPU, the same shapes
and kinds of operands, the same measure. Usage: python accuracy_torch.py"""

import torch
import torch.nn.functional as F

torch.manual_seed(1)


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float32)


def worst(want, have, whole):
    want, have = want.detach(), have.detach().double()
    want, have = (x.reshape(1, -1) if whole else x.reshape(-1, x.shape[-1]) for x in (want, have))
    largest = want.abs().amax(-1).clamp(min=1e-30)
    return ((have - want).abs().amax(-1) / largest).max().item()


def measure(name, results, function, operands, gradients=(), whole=False):
    """gradients: which operands to differentiate by; the cotangent is normal. results: what to print of
    (output or outputs, then gradients); None is not printed."""
    outcomes = []
    cotangent = None
    for dtype in (torch.float64, torch.float32):
        values = [x.to(dtype) if x.is_floating_point() else x for x in operands]
        for i in gradients:
            values[i].requires_grad_()
        y = function(*values)
        y = list(y) if isinstance(y, tuple) else [y]
        if gradients:
            cotangent = normal(*y[0].shape) if cotangent is None else cotangent
            y += torch.autograd.grad(y[0], [values[i] for i in gradients], cotangent.to(dtype))
        outcomes.append(y)
    for what, want, have in zip(results, *outcomes):
        if what:
            print(f"| {name} | {what} | {worst(want, have, whole):.1e} |", flush=True)


def norm(x, scale):
    return F.rms_norm(x, (x.shape[-1],), scale, 1e-6)


def attention(q, k, v):
    size, length = q.shape[-1], q.shape[1]
    scores = q @ k.transpose(-1, -2) / size**0.5
    scores = scores.masked_fill(~torch.ones(length, length, dtype=torch.bool).tril(), float("-inf"))
    return torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1)


def head(hidden, weight, targets):
    logits = hidden @ weight.T
    return (torch.log_softmax(logits, -1).gather(-1, targets[:, None])[:, 0],)


def rope(x, cosines, sines):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cosines - b * sines, b * cosines + a * sines], -1)


def swiglu(gate, up):
    return F.silu(gate) * up


spread = 10.0 ** (torch.arange(2048) % 13 - 6)[:, None]
x, scale = normal(2048, 4096), normal(4096)
measure("rms_norm", ["y"], norm, [x, scale])
measure("rms_norm, rows of 1e-6 to 1e6", ["y"], norm, [x * spread, scale])
measure("rms_norm, mean 1000", ["y"], norm, [x + 1000, scale])
measure("rms_norm_grad", [None, "dx", "dscale"], norm, [x, scale], (0, 1))
measure("rms_norm_grad, rows of 1e-6 to 1e6", [None, "dx", "dscale"], norm, [x * spread, scale], (0, 1))
angles = torch.arange(2048 * 64, dtype=torch.float64).reshape(1, 2048, 1, 64)
measure("rope", ["y"], rope, [normal(1, 2048, 8, 128), angles.cos().float(), angles.sin().float()])
measure("swiglu", ["y"], swiglu, [2 * normal(50000, 64), normal(50000, 64)])
measure("swiglu, gates of 30", ["y"], swiglu, [30 * normal(50000, 64), normal(50000, 64)])
measure("swiglu_grad", [None, "dgate", "dup"], swiglu, [2 * normal(50000, 64), normal(50000, 64)], (0, 1))
for label, size in (("", 1), (", scores of 36", 6)):
    q, k, v = size * normal(2, 1024, 128), size * normal(1, 1024, 128), normal(1, 1024, 128)
    measure("attention" + label, ["y", "log-sum-exp"], attention, [q, k, v])
    measure("attention_grad" + label, [None, None, "dq", "dk", "dv"], attention, [q, k, v], (0, 1, 2), True)
for label, size, rows, channels, vocabulary in (
    ("", 3, 4, 1024, 151936),
    (", logits of 20", 20, 24, 1024, 50000),
    (", many rows", 3, 512, 256, 1000),
):
    hidden, weight = normal(rows, channels), normal(vocabulary, channels) * (size / channels**0.5)
    targets = torch.randint(vocabulary, (rows,))
    measure("token_logprobs" + label, ["log p"], head, [hidden, weight, targets])
    results = [None, "dhidden", "dweight"]
    measure("token_logprobs_grad" + label, results, head, [hidden, weight, targets], (0, 1), True)
measure("reduce_sum of rows", ["sum"], lambda x: x.sum(-1), [normal(4, 3000000)])
measure("reduce_sum of columns", ["sum"], lambda x: x.sum(0), [normal(20000, 1024)])
for label, length in (("matmul", 1024), ("matmul, longer", 4096)):
    measure(label, ["y"], lambda x, w: x @ w.T, [normal(256, length), normal(256, length)])
