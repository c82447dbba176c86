#!/bin/sh
# usage: instructions.sh TREADLE
# What a micro-batch, an update and a start cost the host, as bench/instructions counts it, against the counts of
# instructions.txt. A tenth more fails. So does a fifth less: then the file is out of date, and would let the gain be
# lost again. TRD_COUNT_INSTRUCTIONS unset: the build is none to count (not optimized, or checked).
. "$(dirname "$0")/common"
command -v valgrind > /dev/null || skip "no valgrind"
[ -n "${TRD_COUNT_INSTRUCTIONS-}" ] || skip "no release build"
most=110 least=80 # percent

# hold NAME COUNT
hold() {
    known=$(awk -v name="$1" '$1 == name { print $2 }' "$here/e2e/instructions.txt")
    [ -n "$known" ] || fail "instructions.txt knows no $1"
    [ "${2:-0}" -gt 0 ] || fail "$1: nothing was counted"
    [ $(($2 * 100)) -le $((known * most)) ] ||
        fail "$1: $2 instructions, more than $most% of the $known of instructions.txt"
    [ $(($2 * 100)) -ge $((known * least)) ] ||
        fail "$1: $2 instructions, less than $least% of the $known of instructions.txt; write the new count there"
    echo "$1: $2 instructions, known $known"
}

TREADLE=$treadle "$here/../bench/instructions" 4 > "$work/table" || fail "bench/instructions"
# shellcheck disable=SC2046 # words on purpose
set -- $(awk -F '|' '$2 == 4 { print $3, $4, $5 }' "$work/table")
hold fwd_bwd "${1-}"
hold update "${2-}"
hold start "${3-}"
