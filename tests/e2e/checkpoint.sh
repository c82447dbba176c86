#!/bin/sh
# usage: checkpoint.sh TREADLE
# What a run keeps (max_num_checkpoints_to_keep, keep_period), and treadle checkpoint list, verify and repair: damage is
# named, moved aside and never met again; intact checkpoints and a folder in use are left alone.
. "$(dirname "$0")/common"

small_run << END
steps: 12
checkpoint_period: 2
max_num_checkpoints_to_keep: 2
keep_period: 4
enable_html_report: false
END
folder=$work/runs/run/checkpoints

kept() {
    (cd "$folder" && ls -d .tmp-* damaged-* step-* 2> /dev/null | sort | tr '\n' ' ') > "$work/kept"
    [ "$(cat "$work/kept")" = "$1" ] || fail "expected $1in $folder, found $(cat "$work/kept")"
}

expect 0 train "$work/config.yml"
kept "step-10 step-12 step-4 step-8 "
expect 0 checkpoint list "$work/runs/run"
prints "checkpoint"
[ "$(grep -c "end of step .* intact" "$work/out")" = 4 ] || fail "list: expected 4 intact checkpoints: $(cat "$work/out")"
expect 0 checkpoint verify "$folder"
prints "step-12: intact"
expect 0 checkpoint verify "$folder/step-8"
[ "$(cat "$work/out")" = "step-8: intact" ] || fail "verify of one checkpoint: $(cat "$work/out")"

# The manifest is for people too: a line for each tensor.
grep -q '{"name": "model.norm.weight", "dtype": "float32", "shape": \[[0-9]*\], "bytes": [0-9]*, "xxh3": "[0-9a-f]*"}' \
    "$folder/step-12/manifest.json" || fail "manifest.json does not have a line for model.norm.weight"
grep -q '"saved_at": "20[0-9-]*T[0-9:]*Z"' "$folder/step-12/manifest.json" || fail "manifest.json does not say when"
expect 0 inspect "$folder/step-12"
prints "  step: 12"
prints "  data_position: "
prints "optimizer/model.norm.weight"

# Damage to a tensor, to the state, and a leftover; one intact checkpoint among them.
cp -r "$folder" "$work/intact"
damage() { # FILE OFFSET: flips the bits of one byte
    printf '\377' | dd of="$1" bs=1 seek="$2" conv=notrunc 2> /dev/null
}
size=$(wc -c < "$folder/step-12/tensors.safetensors")
damage "$folder/step-12/tensors.safetensors" $((size - 8))
damage "$folder/step-8/state.json" 30
mkdir "$folder/.tmp-save-step-13.1"
expect 1 checkpoint verify "$work/runs/run"
grep -q "^step-12: tensors.safetensors: [a-z_./0-9]* was altered or torn" "$work/out" || fail "verify: $(cat "$work/out")"
prints "step-8: state.json was altered or torn"
prints "step-10: intact"
expect 0 checkpoint list "$work/runs/run"
grep -q "^step-12 .* damaged\$" "$work/out" || fail "list does not say that step-12 is damaged: $(cat "$work/out")"
prints "verify\` says what is damaged"
expect 0 checkpoint list "$folder/step-10"
[ "$(wc -l < "$work/out")" = 2 ] || fail "list of one checkpoint: expected a head and a row: $(cat "$work/out")"
expect 0 checkpoint list "$work/runs/run" --json
prints '"name": "step-12", "step": 12, "micro_batches": 0'
prints '"damaged": 2'
expect 0 checkpoint repair "$folder" --dry-run
prints "would have moved $folder/step-12 to $folder/damaged-step-12"
kept ".tmp-save-step-13.1 step-10 step-12 step-4 step-8 "
expect 0 checkpoint repair "$work/runs/run"
prints "removed $folder/.tmp-save-step-13.1"
prints "moved $folder/step-8 to $folder/damaged-step-8"
grep -q "no intact checkpoint" "$work/out" && fail "repair: $(cat "$work/out")"
kept "damaged-step-12 damaged-step-8 step-10 step-4 "
expect 0 checkpoint repair "$work/runs/run"
prints "nothing to repair"
expect 0 checkpoint verify "$work/runs/run"
for step in 4 10; do
    diff -r "$folder/step-$step" "$work/intact/step-$step" || fail "repair changed step-$step"
done

# The run goes on from what is intact, and ends with the bits it had.
expect 0 train "$work/config.yml"
prints "Going on from step 10."
cmp "$folder/step-12/tensors.safetensors" "$work/intact/step-12/tensors.safetensors" || fail "step-12 differs"
kept "damaged-step-12 damaged-step-8 step-10 step-12 step-4 "

# When nothing is intact, repair says what that means.
cp -r "$work/intact" "$work/none"
rm -rf "$work/none/.tmp-"* "$work/none/step-4" "$work/none/step-8" "$work/none/step-10"
damage "$work/none/step-12/state.json" 30
for flag in --dry-run ""; do
    expect 0 checkpoint repair "$work/none" $flag
    prints "no intact checkpoint is left: training will begin afresh here"
done
expect 0 checkpoint repair "$work/none"
prints "nothing to repair"

# Beside a run: looking is fine, repairing is not.
"$treadle" train "$work/config.yml" steps=1000000 keep_period=0 > "$work/long.out" 2> "$work/long.err" &
pid=$!
until grep -s -q "^step 14/" "$work/long.out"; do
    kill -0 $pid 2> /dev/null || fail "the long run ended: $(cat "$work/long.err")"
    sleep 0.01
done
expect 0 checkpoint verify "$work/runs/run"
expect 1 checkpoint repair "$work/runs/run"
says "in use by another engine"
expect 1 checkpoint repair "$work/runs/run" --dry-run
kill -TERM $pid
wait $pid || fail "the long run: exit code $?"
pid=

# A checkpoint of another version may be intact: it is neither passed over nor replaced, and repair goes on past it.
newest=$(cd "$folder" && ls -d step-* | sort -t - -k 2 -n | tail -n 1)
sed 's/"format": 2/"format": 3/' "$folder/$newest/manifest.json" > "$work/manifest"
cp -r "$folder/$newest" "$folder/step-99999999"
cp "$work/manifest" "$folder/step-99999999/manifest.json"
: > "$folder/step-100000000" # no folder at all
ln -s nowhere "$folder/step-100000001"
mkdir "$folder/.tmp-notes"
expect 1 checkpoint verify "$folder"
prints "step-100000001: "
expect 1 train "$work/config.yml" steps=1000001
says "step-99999999: "
says "another version"
expect 1 checkpoint repair "$folder"
prints "damaged-step-100000000"
prints "damaged-step-100000001"
says "step-99999999: "
[ -d "$folder/step-99999999" ] && [ -d "$folder/.tmp-notes" ] || fail "repair took what it cannot judge"
rm -r "$folder/step-99999999"

# Words that mean nothing.
expect 2 checkpoint
expect 2 checkpoint mend "$work/runs/run"
expect 2 checkpoint list
expect 2 checkpoint list "$work/runs/run" --dry-run
expect 1 checkpoint verify "$work"
says "holds none"
expect 0 checkpoint list "$work"
prints "holds no checkpoints"
expect 1 checkpoint list "$work/nothing"
says "found nothing"
expect 1 checkpoint list "$work/config.yml"
says "found a file"
expect 1 checkpoint repair "$folder/step-4"
echo "checkpoint: ok"
