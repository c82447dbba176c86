#!/bin/sh
# usage: kill.sh TREADLE [KILLS]
# Runs that SIGKILL ends at random moments, also while they save: each is started again, killed now and then once more,
# and ends with the bits of a run that nobody touched, with intact checkpoints, each step once in metrics.jsonl and
# nothing half-written in its folder. KILLS: how many runs are killed; 200 at night, else 8. TRD_SEED repeats the draws of an
# earlier run.
. "$(dirname "$0")/common"
kills=${2:-8}
[ -z "${TRD_NIGHTLY:-}" ] || kills=${2:-200}
steps=16 rows=2 length=64

small_run << END
steps: $steps
gradient_accumulation_steps: 2
eval_files: ['$work/train.jsonl']
eval_interval: 5
eval_steps: 1
max_num_checkpoints_to_keep: 2
keep_period: 6
END

# Pseudo-random numbers whose seed is printed: random LIMIT sets $drawn below LIMIT.
seed=${TRD_SEED:-$(date +%s)}
state=$seed
random() {
    state=$(((state * 1103515245 + 12345) % 2147483648))
    drawn=$((state / 65536 % $1))
}

now_ms() {
    echo $(($(date +%s%N) / 1000000))
}

begun=$(now_ms)
expect 0 train "$work/config.yml" run_name=whole checkpoint_period=1
whole_ms=$(($(now_ms) - begun))
last=checkpoints/step-$steps/tensors.safetensors

# killed NAME [key=value ...]: one run killed at a random moment of its life, perhaps again after that, then finished.
killed() {
    name=$1
    shift
    before=$died
    for attempt in 1 2 3; do
        "$treadle" train "$work/config.yml" run_name="$name" "$@" > "$work/out" 2> "$work/err" &
        pid=$!
        random $((whole_ms + whole_ms / 4))
        sleep "$(printf '%d.%03d' $((drawn / 1000)) $((drawn % 1000)))"
        kill -KILL $pid 2> /dev/null || true
        found=0
        wait $pid 2> /dev/null || found=$?
        pid=
        [ $found = 0 ] || [ $found = 137 ] || fail "$name: exit code $found: $(cat "$work/err")"
        [ $found = 0 ] || died=$((died + 1))
        [ $found = 0 ] || count_leftovers
        random 2
        [ $found = 137 ] && [ $drawn = 1 ] || break
    done
    [ -d "$work/runs/$name/checkpoints" ] && "$treadle" checkpoint list "$work/runs/$name" > "$work/out" &&
        grep -q damaged "$work/out" && fail "$name: a checkpoint is damaged: $(cat "$work/out")"
    expect 0 train "$work/config.yml" run_name="$name" "$@"
    finished
    [ $died = $before ] || hit=$((hit + 1))
}

# A temporary folder tells that death came while a checkpoint was written.
count_leftovers() {
    for left in "$work/runs/$name"/checkpoints/.tmp-*; do
        [ ! -e "$left" ] || saving=$((saving + 1))
        break
    done
}

finished() {
    cmp "$work/runs/$name/$last" "$work/runs/whole/$last" || fail "$name and whole differ (seed $seed)"
    expect 0 checkpoint verify "$work/runs/$name"
    # The last run may have had nothing to do, when death came after the last save.
    [ "$(sed -n 's/^{"step": \([0-9]*\), "mode": "train".*/\1/p' "$work/runs/$name/metrics.jsonl" | tr '\n' ' ')" = \
        "$(seq -s ' ' 1 $steps) " ] || fail "$name: expected each step once in metrics.jsonl (seed $seed)"
    left=$(find "$work/runs/$name" -name '*.tmp*')
    [ -z "$left" ] || fail "$name: left behind: $left"
    rm -rf "$work/runs/$name"
}

died=0 saving=0 run=0 hit=0
while [ $hit -lt "$kills" ]; do
    [ $run -lt $((20 + 4 * kills)) ] || fail "only $hit of $run runs were killed before they ended (seed $seed)"
    run=$((run + 1))
    case $((run % 4)) in
    0) killed run-$run checkpoint_period=1 ;;
    1) killed run-$run checkpoint_period=1 async_checkpointing=false ;;
    2) killed run-$run checkpoint_period=3 ;;
    3) killed run-$run checkpoint_period=1 enable_html_report=false keep_period=0 ;;
    esac
done
echo "kill: ok: $hit killed runs, $died deaths, $saving of them while a checkpoint was written (seed $seed)"
