"""torch.save and torch.load. Loaded tensors take the place of the old ones; with `pytorch-mmap` the file is mapped and
copied into them."""
import checkpoint, driver


def build(spec):
    import torch

    def load(path, tensors):
        if spec["peer"] == "pytorch-mmap":
            return checkpoint.copy_into(tensors, torch.load(path, mmap=True))
        return torch.load(path)

    return torch.save, load, driver.package_versions("torch")


checkpoint.serve(build)
