#!/bin/sh
# usage: robust_runs.sh TREADLE
# What goes wrong around a run: readers of the output that leave, signals that come twice, a hang-up, memory and disks
# that are too small, names and files that are not what they should be.
. "$(dirname "$0")/common"

small_run << END
steps: 3
END

# A reader that leaves does not end the work; the exit code tells that nobody read it.
found=0
(
    "$treadle" train "$work/config.yml" run_name=unread steps=200 2> "$work/err" || echo $? > "$work/code"
) | head -n 1 > /dev/null
[ "$(cat "$work/code")" = 1 ] || fail "train | head: exit code $(cat "$work/code"), expected 1"
says "writing standard output failed"
expect 0 inspect "$work/runs/unread/checkpoints"
prints "/step-200: checkpoint"

# begin NAME [key=value ...]: a long run in the background that has done a step; its pid in $pid.
begin() {
    name=$1
    shift
    "$treadle" train "$work/config.yml" run_name="$name" steps=1000000 "$@" > "$work/$name.out" 2> "$work/$name.err" &
    pid=$!
    until grep -s -q "^step 2/" "$work/$name.out"; do
        kill -0 $pid 2> /dev/null || fail "$name: ended: $(cat "$work/$name.err")"
        sleep 0.01
    done
}

# stopped: the run in the background ends well and has saved.
stopped() {
    wait $pid || fail "$name: exit code $?, expected 0"
    grep -q "^Stopped at step" "$work/$name.out" || fail "$name: does not say that it stopped"
    expect 0 inspect "$work/runs/$name/checkpoints"
    prints ": checkpoint"
}
begin twice # as `timeout` sends it: to the child and to its group
kill -TERM $pid $pid 2> /dev/null || true # by one call, so that no other process runs for long in between
stopped
begin hung-up
kill -HUP $pid
stopped

# A step that takes for ever ends when it is asked again.
"$treadle" train "$work/config.yml" run_name=endless gradient_accumulation_steps=1000000 \
    > "$work/endless.out" 2> "$work/endless.err" &
pid=$!
until grep -s -q "compiled first" "$work/runs/endless/log.txt"; do
    kill -0 $pid 2> /dev/null || fail "endless: ended: $(cat "$work/endless.err")"
    sleep 0.01
done
sleep 0.2
for _ in 1 2 3 4 5 6 7 8 9 10; do # a loaded machine may take the first two for one
    kill -TERM $pid 2> /dev/null || break
    sleep 1
done
found=0
wait $pid || found=$?
[ $found = 143 ] || fail "endless: exit code $found, expected 143"

# More memory than there is: one line before any step, and the system kills nobody.
expect 1 train "$work/config.yml" run_name=big base_emb_dim=65536 base_mlp_dim=262144 base_num_decoder_layers=200
says "but this process can have only"
expect 1 train "$work/config.yml" run_name=big per_device_batch_size=4096 max_target_length=16384
says "but this process can have only"

# What it would need can still be asked.
expect 0 plan "$work/config.yml" base_emb_dim=65536 base_mlp_dim=262144

# A limit on the size of files is a failed write that leaves the earlier checkpoint.
(
    ulimit -f 200
    expect 1 train "$work/config.yml" run_name=limited
    says "File too large"
)

# Names.
expect 1 train "$work/config.yml" base_output_directory=
says "base_output_directory is empty"
expect 1 train "$work/config.yml" run_name=
says "run_name is empty"
expect 0 train "$work/config.yml"
expect 1 export "$work/config.yml" ""
says "creating a folder: expected its name"
expect 1 train "$work/config.yml" max_target_length=1
says "expected 2 to"

# A pipe in the place of a file must not be waited for.
mkfifo "$work/pipe"
expect 1 train "$work/config.yml" train_files="$work/pipe"
says "expected a file, found a pipe"
expect 1 inspect "$work/pipe"
says "expected a file, found a pipe"

# Tokenizer and model that do not belong together.
expect 1 train "$work/config.yml" run_name=vocabulary vocab_size=250
says "the tokenizer has"

# A config.json that is not that of the weights. $hub is a fresh export each time.
hub=$work/hub
damaged() {
    rm -rf "$hub"
    expect 0 export "$work/config.yml" "$hub"
    sed "$1" "$hub/config.json" > "$work/config.json"
    cmp -s "$work/config.json" "$hub/config.json" && fail "sed $1 changed nothing"
    mv "$work/config.json" "$hub/config.json"
    expect 1 generate "$hub" --ids 1,2 --max-tokens 2
    says "$2"
}
damaged 's/"num_hidden_layers": 2/"num_hidden_layers": 1/' "found no tensor missing and 11 tensors"
damaged 's/"num_hidden_layers": 2/"num_hidden_layers": 3/' "model.layers.2.input_layernorm.weight"
damaged 's/"num_hidden_layers": 2/"num_hidden_layers": 1000000/' "num_hidden_layers: expected 1 to 1024"
damaged 's/"rope_scaling": null/"rope_scaling": 5/' "rope_scaling: expected an object or null"
echo "robust_runs: ok"
