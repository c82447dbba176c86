#!/bin/sh
# usage: write_errors.sh TREADLE
# Each call by which `treadle train` changes files of its run (checkpoints, config.yml, log.txt, metrics.jsonl, event
# files, report.html, the lock) fails once, falls short once, or is the process's last: the program says why and exits
# 1, or ends well; every checkpoint is intact; and the same command ends with the bits of a run without a fault.
# At night every call; else some of each kind, other ones every time.
. "$(dirname "$0")/common"
library=$(dirname "$treadle")/tests/libtrd_failing_files.so
[ -e "$library" ] || skip "built without $library"
steps=3
number=${TRD_SEED:-$(date +%s)}
echo "the choice of calls: TRD_SEED=$number"
stride=67
[ -z "${TRD_NIGHTLY:-}" ] || stride=1

small_run << END
steps: $steps
checkpoint_period: 1
eval_files: ['$work/train.jsonl']
eval_interval: 2
eval_steps: 1
max_num_checkpoints_to_keep: 2
END

# faulty FAULT CALL [key=value ...]: a training run with that fault; its exit code in $found, and in $reached whether
# the fault happened.
faulty() {
    fault=$1 call=$2
    shift 2
    found=0
    rm -f "$work/report"
    LD_PRELOAD=$library TRD_FAULT_FOLDER=$work/runs/run TRD_FAULT=$fault TRD_FAULT_AT=$call \
        TRD_FAULT_REPORT=$work/report "$treadle" train "$work/config.yml" "$@" > "$work/out" 2> "$work/err" || found=$?
    calls=0 reached=1 what=
    [ ! -e "$work/report" ] || read -r calls reached what < "$work/report"
}

expect 0 train "$work/config.yml" run_name=whole
expect 0 train "$work/config.yml" run_name=begun steps=1
last=checkpoints/step-$steps/tensors.safetensors

begin() {
    rm -rf "$work/runs/run"
    cp -r "$work/runs/begun" "$work/runs/run"
}
begin
faulty NONE 0
[ $found = 0 ] && [ "$calls" -gt 50 ] || fail "a run without a fault: exit code $found, $calls calls"
every=$calls

# after FAULT CALL REASON: what such a run left behind.
after() {
    case $found in
    137) ;;
    0)
        case $reached,$1,$what in
        0,* | *,SHORT,* | *,KILL*,*) ;;
        *"write "*/lock | *"ftruncate "*/lock | *"fflush "*/log.txt | *"fclose "*/log.txt) ;; # for people only
        *) fail "$1 at call $2 was not told: $what" ;;
        esac
        ;;
    1) grep -q "^treadle: .*$3" "$work/err" || fail "$1 at call $2: expected a message with \"$3\": $(cat "$work/err")" ;;
    *) fail "$1 at call $2: exit code $found: $(cat "$work/err")" ;;
    esac
    expect 0 checkpoint verify "$work/runs/run"
    expect 0 train "$work/config.yml"
    cmp "$work/runs/run/$last" "$work/runs/whole/$last" || fail "$1 at call $2: other bits than a run without a fault"
    expect 0 checkpoint verify "$work/runs/run"
    left=$(find "$work/runs/run" -name '*.tmp*')
    [ -z "$left" ] || fail "$1 at call $2: left behind: $left"
}

faults=0 told=0
for kind in "EIO:Input/output error" "ENOSPC:No space left on device" "FULL:No space left on device" \
    "READONLY:Read-only file system" "SHORT:no error at all" "SHORT_FULL:No space left on device" "KILL:" "KILL_WITHIN:"; do
    name=${kind%%:*}
    number=$((number + 13))
    call=$((1 + number % stride))
    while [ $call -le $every ]; do
        begin
        faulty "$name" $call async_checkpointing=$([ $((call % 2)) = 0 ] && echo true || echo false)
        faults=$((faults + reached))
        [ $found = 0 ] || told=$((told + 1))
        after "$name" $call "${kind#*:}"
        call=$((call + stride))
    done
done
[ $faults -gt 8 ] || fail "only $faults faults happened"
echo "write_errors: ok: $faults faults in runs of $every calls, $told ended the run"
