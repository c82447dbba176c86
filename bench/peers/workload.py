"""A workload's file: its keys, and what they may hold. What is wrong with it ends the program before any measuring."""
import glob, json, os, sys

PEERS = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(PEERS))

# Every key of a workload's file, and what it is when left out; None: it must be given.
KEYS = {
    "title": None,        # the work in words: shapes, dtype, what is done
    "task": None,         # the drivers TASK_*.py of bench/peers
    "peers": None,        # name: the least ratio wanted, null, or a map of PEER_KEYS
    "config": "",         # of Treadle
    "words": [],          # key=value, of Treadle
    "options": [],        # of `treadle bench arm`
    "measure": "loop",    # or start: process start to the end of the first step
    "steps": 1,           # of a loop
    "warm": 2,            # steps before the first loop
    "pairs": 3,
    "together": True,     # both processes stay up; false: each sample starts one, for want of memory
    "tolerance": 1e-4,    # relative, of each loss
    "unit": "step",       # of work
    "rate": False,        # print units per second, not ms a unit
    "memory_gb": 0,       # most that Treadle may take; 0: not said
    "with": {},           # anything else that the task's drivers need
}
PEER_KEYS = {
    "at_least": None,     # ratio
    "tolerance": None,    # the workload's
    "losses": True,       # compared; false only where both do other work
    "words": [],          # peer treadle: its config, on top of the workload's
    "steps": None,        # peer treadle: of its loop
    "value": "loop_ms",   # or peer treadle: fwd_bwd_ms, the device's time of a micro-batch's forward and backward
    "with": {},           # for the driver
}
ONLY_TREADLE = ("words", "steps", "value")

# What a key without a default holds; the others are of their default's kind.
KINDS = {"title": str, "task": str, "peers": dict}
NAMES = {str: "text", list: "a list", dict: "a map", bool: "true or false", float: "a number from 0",
         int: "a whole number from 1"}

# The values of keys that hold one of a few; a task is one that has a driver.
VALUES = {
    "task": sorted({os.path.basename(path).split("_")[0] for path in glob.glob(os.path.join(PEERS, "*_*.py"))}),
    "measure": ["loop", "start"],
    "value": ["loop_ms", "fwd_bwd_ms"],
}


def refuse(what, problem):
    sys.exit(f"bench/compare: {what}: {problem}")


def read_yaml(path):
    try:
        import yaml
    except ImportError:
        sys.exit("bench/compare: needs PyYAML: apt-get install python3-yaml")

    class Loader(yaml.SafeLoader):
        """YAML's own takes the last of keys that are repeated."""

        def construct_mapping(self, node, deep=False):
            seen = set()
            for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
                if key.value in seen:
                    problem = f"the key {key.value} is repeated"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                seen.add(key.value)
            return super().construct_mapping(node, deep)

    try:
        with open(path, encoding="utf-8") as file:
            found = yaml.load(file, Loader)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as e:
        refuse(path, f"expected a workload in YAML: {e}")
    try:
        json.dumps(found)  # for the drivers, and for --json
    except (TypeError, ValueError, RecursionError) as e:
        refuse(path, f"expected nothing but text, numbers, true, false, null, lists and maps: {e}")
    return found


def kind_of(key, default):
    if key in ("steps", "warm", "pairs"):
        return int
    if isinstance(default, (int, float)) and not isinstance(default, bool):
        return float
    return KINDS.get(key, float) if default is None else type(default)


def fits(value, kind):
    if kind in (int, float):
        kinds, least = (int if kind is int else (int, float)), int(kind is int)
        return isinstance(value, kinds) and not isinstance(value, bool) and least <= value < float("inf")
    return isinstance(value, kind)


def text_of(what, word):
    """What a command gets for one entry of a list; YAML has read 3 as a number and true as true."""
    if not isinstance(word, (str, bool, int, float)) or "\0" in str(word):
        refuse(what, f"expected text or a number, found {word!r}")
    return str(word).lower() if isinstance(word, bool) else str(word)


def words_of(what, words):
    """Words of Treadle's config."""
    words = [text_of(what, word) for word in words]
    for word in words:
        if "=" not in word:
            refuse(what, f"expected key=value, found {word!r}")
    return words


def complete(what, found, keys):
    """The map that was read, with what it left out; null is left out too."""
    if not isinstance(found, dict):
        refuse(what, f"expected a map of {', '.join(keys)}, found {found!r}")
    unknown = [key for key in found if key not in keys]
    if unknown:
        refuse(what, f"unknown key {unknown[0]}; the keys are {', '.join(keys)}")
    given = {key: value for key, value in found.items() if value is not None}
    for key, value in given.items():
        kind = kind_of(key, keys[key])
        if not fits(value, kind):
            refuse(what, f"{key}: expected {NAMES[kind]}, found {value!r}")
        if key in VALUES and value not in VALUES[key]:
            refuse(what, f"{key}: expected {' or '.join(VALUES[key])}, found {value!r}")
    return keys | given


def cycle_of(words, default):
    """Micro-batches a step, where Treadle's config has these words too."""
    values = [word.split("=", 1)[1] for word in words if word.startswith("gradient_accumulation_steps=")]
    return int(values[-1]) if values else default


def load_peer(what, peer, found):
    p = complete(what, found if isinstance(found, dict) else {"at_least": found}, PEER_KEYS)
    p["words"] = words_of(f"{what}: words", p["words"])
    for key in ONLY_TREADLE:
        if peer != "treadle" and p[key] != PEER_KEYS[key]:
            refuse(what, f"{key}: expected it for the peer treadle only, found {p[key]!r}")
    try:
        if cycle_of(p["words"], 1) >= 1:
            return p
    except ValueError:
        pass
    refuse(what, f"gradient_accumulation_steps: expected a whole number from 1, found {', '.join(p['words'])}")


def load(name, pairs):
    path = name if name.endswith(".yml") else os.path.join(ROOT, "bench", "workloads", name + ".yml")
    if not os.path.exists(path):
        folder = os.path.join(ROOT, "bench", "workloads")
        known = ", ".join(sorted(file[:-4] for file in os.listdir(folder) if file.endswith(".yml")))
        sys.exit(f"bench/compare: no workload {path}; there are {known}, and any FILE.yml")
    w = complete(path, read_yaml(path), KEYS)
    missing = [key for key in ("title", "task", "peers") if w[key] is None]
    if missing:
        refuse(path, f"{missing[0]} is missing")
    if not w["peers"]:
        refuse(path, "peers: expected one or more, found none")
    w["name"] = os.path.basename(path)[:-4]
    w["pairs"] = pairs or w["pairs"]
    w["words"] = words_of(f"{path}: words", w["words"])
    w["options"] = [text_of(f"{path}: options", word) for word in w["options"]]
    w["peers"] = {peer: load_peer(f"{path}: {peer}", peer, p) for peer, p in w["peers"].items()}
    return w
