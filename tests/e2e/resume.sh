#!/bin/sh
# usage: resume.sh TREADLE
# A run that was stopped (SIGTERM, SIGINT) or killed (SIGKILL, also while it saves) and started again ends with the
# bits of a run that never stopped, and its metrics.jsonl has each step once, in order.
. "$(dirname "$0")/common"
steps=24 rows=4 length=128
pauses="0 0.003 0.007 0.013 0.021"
if [ -n "${TRD_NIGHTLY:-}" ]; then
    steps=120
    pauses="$pauses $(awk 'BEGIN { srand(); for (i = 0; i < 24; i++) printf "%.4f ", 0.05 * rand() }')"
fi

small_run << END
steps: $steps
gradient_accumulation_steps: 3
dropout_rate: 0.1
eval_files: ['$work/train.jsonl']
eval_interval: 5
eval_steps: 1
max_num_checkpoints_to_keep: 2
enable_html_report: false
END

# begin NAME [key=value ...]: a run in the background; its pid in $pid.
begin() {
    name=$1
    shift
    "$treadle" train "$work/config.yml" run_name="$name" "$@" > "$work/$name.out" 2> "$work/$name.err" &
    pid=$!
}

# reach STEP: waits until the run in the background has printed that step; false when it ended before.
reach() {
    until grep -s -q "^step $1/" "$work/$name.out"; do
        kill -0 $pid 2> /dev/null || return 1
        sleep 0.01
    done
}

# finished NAME OTHER MODE ...: both runs have the same last checkpoint and export, and NAME's metrics of these modes
# are complete. (A stop does not wait for an evaluation that is due.)
finished() {
    for run in "$1" "$2"; do
        [ -d "$work/$run.hub" ] || expect 0 export "$work/config.yml" "$work/$run.hub" run_name="$run"
    done
    last=checkpoints/step-$steps/tensors.safetensors
    cmp "$work/runs/$1/$last" "$work/runs/$2/$last" || fail "$1 and $2 differ in $last"
    cmp "$work/$1.hub/model.safetensors" "$work/$2.hub/model.safetensors" || fail "$1 and $2 differ when exported"
    one=$1 other=$2
    shift 2
    for mode in "$@"; do
        for run in $one $other; do
            grep "\"mode\": \"$mode\"" "$work/runs/$run/metrics.jsonl" |
                sed 's/^{"step": \([0-9]*\),.*"loss": \([-+.e0-9]*\),.*/\1 \2/' > "$work/$run.$mode"
        done
        cmp "$work/$one.$mode" "$work/$other.$mode" || fail "$one and $other differ in steps or losses of mode $mode"
    done
    [ "$(cut -d ' ' -f 1 "$work/$one.train" | tr '\n' ' ')" = "$(seq -s ' ' 1 $steps) " ] ||
        fail "$one: expected each step once in metrics.jsonl"
}

begin whole checkpoint_period=7
wait $pid || {
    cat "$work/whole.err" >&2
    fail "the whole run failed"
}

for signal in TERM INT; do
    begin stopped-$signal checkpoint_period=1000
    reach 6 || fail "$name: ended before it could be stopped"
    kill -$signal $pid
    wait $pid || fail "SIG$signal: exit code $?, expected 0"
    grep -q "^Stopped at step [0-9]* of $steps" "$work/$name.out" || fail "$name: does not say that it stopped"
    grep -q "^stopping; once more" "$work/$name.err" || fail "$name: does not say that it is stopping"
    begin stopped-$signal checkpoint_period=1000
    wait $pid || fail "$name, resumed: exit code $?"
    grep -q "^Going on from step [0-9]*\." "$work/$name.out" || fail "$name: does not say that it goes on"
    finished "$name" whole train
done

# killed NAME [key=value ...]: killed at several moments, a few milliseconds apart, then finished.
killed() {
    at=0 kills=0
    for pause in $pauses; do
        begin "$@"
        at=$((at + 4))
        reach $at || break # as fast as that: it has ended
        sleep $pause
        kill -KILL $pid 2> /dev/null || true
        wait $pid 2> /dev/null || kills=$((kills + 1))
    done
    [ $kills -ge 1 ] || fail "$name: was never killed"
    begin "$@"
    wait $pid || fail "$name, resumed: exit code $?"
    finished "$name" whole train eval
}
killed killed-beside checkpoint_period=1
killed killed-inline checkpoint_period=1 async_checkpointing=false
killed killed-between checkpoint_period=3
killed killed-unsaved enable_checkpointing=true checkpoint_period=1000 # starts again from the seed each time

# A run is evaluated and exported while it trains, and is none the wiser.
begin busy checkpoint_period=2 steps=100000
reach 8 || fail "busy: ended before it was read"
expect 0 eval "$work/config.yml" run_name=busy steps=100000
expect 0 export "$work/config.yml" "$work/busy.hub" run_name=busy steps=100000
kill -0 $pid 2> /dev/null || fail "busy: ended while it was read"
kill -TERM $pid
wait $pid || fail "busy: exit code $?, expected 0"

# A position means nothing in other data, and a run whose every checkpoint is damaged does not start afresh unasked.
cp "$work/train.jsonl" "$work/kept.jsonl"
echo '{"prompt": "more", "completion": "data"}' >> "$work/train.jsonl"
expect 1 train "$work/config.yml" run_name=whole steps=$((steps + 1))
says "the data files are not those that"
cp "$work/kept.jsonl" "$work/train.jsonl"
expect 0 train "$work/config.yml" run_name=whole steps=$((steps + 1))
cp -r "$work/runs/whole" "$work/runs/torn"
cp -r "$work/runs/whole" "$work/runs/damaged"
last=checkpoints/step-$((steps + 1))/tensors.safetensors
echo more >> "$work/runs/torn/$last"
expect 0 train "$work/config.yml" run_name=torn steps=$((steps + 1))
says "the one before it is tried"
prints "Going on from step $steps."
cmp "$work/runs/torn/$last" "$work/runs/whole/$last" || fail "torn and whole differ"
for file in "$work"/runs/damaged/checkpoints/step-*/tensors.safetensors; do
    echo more >> "$file"
done
expect 1 train "$work/config.yml" run_name=damaged steps=$((steps + 1))
says "is intact"
echo "resume: ok"
