"""What the drivers of checkpoints share: the parameters of the workload's config are saved, to the durable end, and loaded
again from the system's cache. Of a loop's two times `with: {part: save}` or `load` says which one counts.

A load has ended when the tensors that training would go on with hold the values, in memory of the process itself.
"""
import os, time
import driver


def figures(spec, save_ms, load_ms, size, total):
    """The size in bytes and the sum of all 32-bit words must be equal. Memory is not what is compared."""
    part = {"save": save_ms, "load": load_ms}[spec["with"]["part"]]
    return {"loop_ms": part, "work": size / 1e9, "check": [size, total], "peak_bytes": 0, "save_ms": save_ms,
            "load_ms": load_ms}


def sync(path):
    for name in (path, os.path.dirname(path)):
        file = os.open(name, os.O_RDONLY)
        os.fsync(file)
        os.close(file)


def serve(build):
    """build(spec) gives (save, load, versions): save(tensors, path), and load(path, tensors), which gives the tensors
    that hold the values: new ones, or those it was given."""

    def start(spec):
        import numpy as np, torch

        save, load, versions = build(spec)
        state = {name: torch.from_numpy(array.copy()) for name, array in driver.read_weights(spec["weights"]).items()}
        path = os.path.join(os.path.dirname(spec["weights"]), spec["peer"] + ".checkpoint")

        def loop(_):
            nonlocal state
            begin = time.monotonic()
            save(state, path)
            sync(path)
            saved = time.monotonic()
            for tensor in state.values():
                tensor.zero_()
            cleared = time.monotonic()
            loaded = load(path, state)
            end = time.monotonic()
            state = loaded
            arrays = [tensor.numpy() for tensor in state.values()]
            total = sum(int(array.view(np.uint32).sum(dtype=np.uint64)) for array in arrays)
            return figures(spec, 1e3 * (saved - begin), 1e3 * (end - cleared), sum(a.nbytes for a in arrays), total)

        return loop, loop("") | {"versions": versions}

    driver.serve(start)


def copy_into(tensors, values):
    for name, tensor in tensors.items():
        tensor.copy_(values[name])
    return tensors
