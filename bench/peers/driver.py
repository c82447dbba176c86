"""What every peer's driver shares: the protocol with bench/compare, the weights and the tokens.

A driver is started with one JSON text as its argument (the workload, as bench/compare's `spec_of` makes it). It prints
one JSON line when it has warmed up, then runs one timed loop for each line of its input and prints one JSON line for
it, and ends with its input. While it waits it is stopped, so it may keep threads.
"""
import json, os, struct, sys, time


# What the profiler calls the run of a compiled program.
JAX_EXECUTES = ("ThunkExecutor::Execute", "ThunkExecutor::Execute (wait for completion)")


def open_output():
    """The protocol's own stream: whatever libraries print goes to standard error instead."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return lambda figures: print(json.dumps(figures), file=output, flush=True)


def serve(start):
    """start(spec) gives (loop, facts): loop(line) runs the loop that was asked for (usually an empty line) and gives
    its figures, facts are the figures of the first answer."""
    tell = open_output()
    loop, facts = start(json.loads(sys.argv[1]))
    tell(facts)
    for line in sys.stdin:
        tell(loop(line.strip()))


def serve_steps(build):
    """A driver of training steps. build(spec) gives a dictionary: `run` runs so many optimizer steps, waits for the
    device and gives their losses; `versions`; and perhaps `busy`, which gives the device's busy share of a call."""

    def start(spec):
        peer = build(spec)

        def loop(steps):
            begin = time.monotonic()
            losses = peer["run"](steps)
            return {"loop_ms": 1e3 * (time.monotonic() - begin), "losses": losses}

        def answer(line):
            if line == "busy":
                return {"busy": peer["busy"](lambda: peer["run"](1))} if "busy" in peer else {}
            return loop(spec["steps"])

        return answer, loop(spec["warm"]) | {"versions": peer["versions"]}

    serve(start)


def jax_busy(call):
    """The share of a call in which XLA's CPU device ran a program, by JAX's own profiler."""
    import glob, tempfile, jax

    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            begin = time.monotonic()
            call()
            wall = time.monotonic() - begin
        path = glob.glob(os.path.join(folder, "**", "*.xplane.pb"), recursive=True)[0]
        data = jax.profiler.ProfileData.from_file(path)
    spans = sorted((event.start_ns, event.start_ns + event.duration_ns) for plane in data.planes
                   for line in plane.lines for event in line.events if event.name in JAX_EXECUTES)
    busy, end = 0, 0
    for first, last in spans:
        busy += max(0, last - max(first, end))
        end = max(end, last)
    return busy * 1e-9 / wall if spans else None


def read_safetensors(path):
    """Name to (type, shape, bytes). Read, not mapped: a mapped file would count as the peer's memory."""
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(size))
        data = file.read()
    header.pop("__metadata__", None)
    view = memoryview(data)
    return {name: (t["dtype"], t["shape"], view[t["data_offsets"][0]:t["data_offsets"][1]])
            for name, t in header.items()}


def read_weights(folder):
    """Name to float32 array, of a folder's model.safetensors in float32 or bfloat16."""
    import numpy as np

    weights = {}
    for name, (kind, shape, data) in read_safetensors(os.path.join(folder, "model.safetensors")).items():
        if kind == "F32":
            weights[name] = np.frombuffer(data, np.float32).reshape(shape)
        elif kind == "BF16":
            high = np.frombuffer(data, np.uint16).astype(np.uint32) << 16
            weights[name] = high.view(np.float32).reshape(shape)
        else:
            raise ValueError(f"{name}: expected F32 or BF16, found {kind}")
    return weights


def random_tokens(count, bound):
    """What `treadle bench` trains on: src/base/rng.c, seed 0 and stream 0."""
    mask = (1 << 64) - 1

    def mix(z):
        z = (z + 0x9E3779B97F4A7C15) & mask
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & mask
        return z ^ z >> 31

    key = mix(mix(0))
    return [mix(key ^ (i * 0xD1342543DE82EF95 & mask)) * bound >> 64 for i in range(count)]


def micro_batches(spec):
    """The micro-batches of every step, each a list of rows."""
    rows, length, cycle = spec["rows"], spec["length"], spec["cycle"]
    tokens = random_tokens(cycle * rows * length, spec["model"]["vocab_size"])
    return [[tokens[(c * rows + r) * length:(c * rows + r + 1) * length] for r in range(rows)] for c in range(cycle)]


def package_versions(*names):
    from importlib import metadata

    return {"python": sys.version.split()[0]} | {name: metadata.version(name) for name in names}
