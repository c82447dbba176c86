"""The peers, and the Python environments they run in: packages by exact version, outside the repository.

A peer runs the driver TASK_DRIVER.py beside this file, TASK being the workload's.
"""
import os, shutil, subprocess, sys
from output import say

TUNIX = ["google-tunix==0.1.7", "jax==0.12.0.1", "jaxlib==0.12.0.1", "flax==0.12.12", "optax==0.2.8", "qwix==0.1.8",
         "orbax-checkpoint==0.12.8", "transformers==5.12.1", "numpy==2.5.5"]

# environment: (Python's version, packages, packages that are installed without what they depend on)
ENVIRONMENTS = {
    "pytorch": ("3", ["torch==2.15.0", "transformers==5.24.0", "accelerate==1.15.0", "safetensors==0.8.0",
                      "tokenizers==0.23.3", "numpy==2.4.6"], []),
    "jax": ("3", ["jax==0.10.2", "jaxlib==0.10.2", "numpy==2.4.6"], []),
    "tunix": ("3.12", TUNIX, []),
    "maxtext": ("3.12", [*TUNIX, "maxtext==0.2.5", "pathwaysutils==0.1.13", "aqtp==0.9.0", "tokamax==0.0.17", "tiktoken==0.14.0"],
                ["drjax==0.2.1", "cloud-accelerator-diagnostics==0.1.1", "google-cloud-mldiagnostics==1.0.10"]),
    "llama.cpp": ("3", ["llama-cpp-python==0.3.36", "gguf==0.19.0", "numpy==2.4.6"], []),  # built here, for this CPU
}

# peer: (environment, driver)
PEERS = {
    "pytorch": ("pytorch", "pytorch"),
    "pytorch-compile": ("pytorch", "pytorch"),
    "trainer": ("pytorch", "trainer"),
    "trainer-packed": ("pytorch", "trainer"),
    "pytorch-mmap": ("pytorch", "pytorch"),
    "safetensors": ("pytorch", "safetensors"),
    "tokenizers": ("pytorch", "tokenizers"),
    "jax": ("jax", "jax"),
    "tunix": ("tunix", "tunix"),
    "tunix-v2": ("tunix", "tunix"),
    "maxtext": ("maxtext", "maxtext"),
    "llama.cpp": ("llama.cpp", "llama"),
}


VARIABLES = {"JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

# The folder of Tunix's repository that its package leaves out, and MaxText's engine needs.
NEED_TUNIX_REPOSITORY = ["tunix-v2", "maxtext"]
TUNIX_COMMIT = "c7d8950f12a9c55a976bf2e1a0d8b447d71c20b3"


def checkout(peer, args):
    """What the peer's driver is told beside the workload."""
    if peer not in NEED_TUNIX_REPOSITORY:
        return {}
    folder = os.path.join(args.envs, "tunix-repository")
    git = ["git", "-C", folder]
    if not os.path.exists(os.path.join(folder, "tunix")):
        os.makedirs(args.envs, exist_ok=True)
        subprocess.run(["git", "clone", "-q", "--no-checkout", args.tunix_repository, folder], check=True)
        subprocess.run([*git, "checkout", "-q", TUNIX_COMMIT, "--", "tunix"], check=True)
    return {"tunix_repository": folder}


def find_python(version):
    if version == "3":
        return sys.executable
    python = shutil.which("python" + version)
    if not python or subprocess.run([python, "-c", ""], capture_output=True).returncode:
        raise LookupError(f"needs python{version} on PATH, or --python ENVIRONMENT=PATH of one that has the packages")
    return python


def make_environment(name, folder):
    """The environment's interpreter. Made, or brought up to date, when its packages are not those above."""
    version, packages, bare = ENVIRONMENTS[name]
    folder = os.path.join(folder, name)
    python, stamp = os.path.join(folder, "bin", "python"), os.path.join(folder, "packages.txt")
    wanted = "\n".join([version, *packages, *bare]) + "\n"
    if os.path.exists(stamp):
        with open(stamp) as file:
            if file.read() == wanted:
                return python
    say(f"making the environment {name} in {folder}")
    subprocess.run([find_python(version), "-m", "venv", folder], check=True)
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, *packages], check=True)
    if bare:
        subprocess.run([*pip, "--no-deps", *bare], check=True)
    with open(stamp, "w") as file:
        file.write(wanted)
    return python
