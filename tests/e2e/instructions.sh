#!/bin/sh
# usage: instructions.sh TREADLE
# Counts by valgrind what a micro-batch and an update cost the host, and what starting costs, and holds the counts
# against those of instructions.txt. A tenth more fails. So does a fifth less: then the file is out of date, and would
# let the gain be lost again. TRD_COUNT_INSTRUCTIONS unset: the build is none to count (not optimized, or checked).
. "$(dirname "$0")/common"
root=$here/..
command -v valgrind > /dev/null || skip "no valgrind"
[ -n "${TRD_COUNT_INSTRUCTIONS-}" ] || skip "no release build"
most=110 least=80 # percent

# count VALGRIND-OPTION TREADLE-WORD...: instructions collected
count() {
    option=$1
    shift
    valgrind --tool=callgrind --callgrind-out-file="$work/calls" "$option" "$treadle" "$@" > "$work/log" 2>&1 ||
        fail "valgrind $option treadle $*: $(tail -n 3 "$work/log")"
    awk '/Collected/ { print $NF }' "$work/log"
}

# hold NAME COUNT
hold() {
    known=$(awk -v name="$1" '$1 == name { print $2 }' "$here/e2e/instructions.txt")
    [ -n "$known" ] || fail "instructions.txt knows no $1"
    [ $(($2 * 100)) -le $((known * most)) ] ||
        fail "$1: $2 instructions, more than $most% of the $known of instructions.txt"
    [ $(($2 * 100)) -ge $((known * least)) ] ||
        fail "$1: $2 instructions, less than $least% of the $known of instructions.txt; write the new count there"
    echo "$1: $2 instructions, known $known"
}

steps=4 cycle=2 # as many warm-up steps come before the counted ones
words="configs/tiny.yml base_num_decoder_layers=4 per_device_batch_size=1 max_target_length=8 num_threads=1"
cd "$root" || fail "no $root"
for call in fwd_bwd update; do
    calls=$((2 * steps))
    [ $call = fwd_bwd ] && calls=$((calls * cycle))
    # shellcheck disable=SC2086 # words on purpose
    total=$(count --toggle-collect=trd_engine_$call bench host $words gradient_accumulation_steps=$cycle --steps $steps --idle)
    hold $call $((total / calls))
done
# shellcheck disable=SC2086
hold start "$(count --collect-atstart=yes plan $words --programs)"
