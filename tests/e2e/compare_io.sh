#!/bin/sh
# usage: compare_io.sh TREADLE
# Treadle's side of bench/compare's checkpoints and tokenizing: played peers that need no package do the same work by
# other means, and bench/compare must find their results equal; and another's where the weights or the text are others.
. "$(dirname "$0")/common"
root=$here/..
python3 -c 'import yaml' 2> /dev/null || skip "no python3 with PyYAML"

cp -r "$root/bench" "$work/bench"
echo 'PEERS["played"] = ("played", "played")' >> "$work/bench/peers/environments.py"
cat > "$work/bench/peers/checkpoint_played.py" << 'END'
import array, os
import checkpoint, driver


def start(spec):
    tensors = driver.read_safetensors(os.path.join(spec["weights"], "model.safetensors"))
    data = [bytes(data) for _, _, data in tensors.values()]
    total = sum(sum(array.array("I", d)) for d in data) + spec["with"]["error"]
    return lambda line: checkpoint.figures(spec, 1, 2, sum(map(len, data)), total), {}


driver.serve(start)
END
cat > "$work/bench/peers/tokenize_played.py" << 'END'
import array, json, os, subprocess
import tokenizing


def build(spec, texts):
    path, ids, ends = os.path.join(spec["root"], spec["with"]["tokenizer"]), array.array("i"), []
    texts[0] = texts[0][spec["with"]["error"]:]
    for text in texts:
        told = subprocess.run([spec["treadle"], "tokenize", path, "--json"], input=text, stdout=subprocess.PIPE, check=True)
        ids.extend(json.loads(told.stdout)["ids"])
        ends.append(len(ids))
    return lambda: None, lambda: (ids, ends), {}


tokenizing.serve(build)
END

# compare TASK ERROR WITH: one pair of a workload, of whose results the peer's is another one where ERROR is not 0.
compare() {
    cat > "$work/w.yml" << END
title: a played workload
task: $1
config: ${4:-}
with: {error: $2, $3}
pairs: 1
peers: {played: null}
END
    "$work/bench/compare" "$work/w.yml" --treadle "$treadle" --python "played=$(command -v python3)" > "$work/out" 2> "$work/err"
}

# holds TASK WITH CONFIG: equal results give a ratio, others none.
holds() {
    compare "$1" 0 "$2" "${3:-}" || { cat "$work/out" "$work/err"; fail "$1"; }
    prints "results equal"
    compare "$1" 1 "$2" "${3:-}" && fail "$1: another result is refused"
    prints "the results differ"
}

echo "weight_dtype: float32" | small_run
holds checkpoint "part: save" "$work/config.yml"
holds checkpoint "part: load" "$work/config.yml"

mkdir "$work/texts"
cp "$root/docs/tokenizer.md" "$work/texts"
printf 'na\303\257ve \344\275\240\345\245\275\n\n  last line without an end' > "$work/texts/short"
if python3 -c 'import ctypes, sys; ctypes.CDLL(sys.argv[1])' "$(dirname "$treadle")/libtreadle.so" 2> /dev/null; then
    holds tokenize "tokenizer: '$here/data/qwen3-tokenizer', files: ['texts/*'], document_bytes: 1000"
else
    echo "tokenizing left out: Python cannot load the library (of a build with sanitizers)"
fi
echo "compare_io: ok"
