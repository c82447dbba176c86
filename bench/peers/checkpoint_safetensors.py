"""save_file and load_file of safetensors. What load_file gives is a mapped file: it is copied into the tensors."""
import checkpoint, driver


def build(_):
    from safetensors.torch import load_file, save_file

    return (save_file, lambda path, tensors: checkpoint.copy_into(tensors, load_file(path)),
            driver.package_versions("safetensors", "torch"))


checkpoint.serve(build)
