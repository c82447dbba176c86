#!/bin/sh
# usage: arm.sh TREADLE
# bench arm --data: a step is a pass over the samples, each once. Packed or one a row, the loss is the mean over the same
# tokens, before and after updates.
. "$(dirname "$0")/common"

small_run << END
opt_type: sgd
lr_schedule_type: constant
warmup_steps_fraction: 0
END
arm() { echo | expect 0 bench arm "$work/config.yml" --data --warmup 1 --steps 2 "$@"; }
numbers() { grep -o '"losses": \[[^]]*\]' "$work/out" | grep -o '[0-9][0-9.]*' > "$work/$1"; }

arm
numbers packed
tokens=$(sed -n 's/.*"work": \([0-9]*\).*/\1/p' "$work/out")
# A byte is a token here, and the end of a completion one more; a loop has two passes.
bytes=$(sed 's/.*"completion": "\(.*\)"}/\1./' "$work/train.jsonl" | tr -d '\n' | wc -c)
[ "$tokens" = $((2 * bytes)) ] || fail "expected work of $((2 * bytes)) tokens, found $tokens"
prints "\"check\": $tokens"
arm packing=false data_shuffle_seed=7
numbers apart
[ "$(wc -l < "$work/packed")" = 3 ] || fail "a loss for each step"
paste "$work/packed" "$work/apart" | awk '{ d = $1 / $2 - 1; if (d > 1e-5 || d < -1e-5) exit 1 }' || {
    paste "$work/packed" "$work/apart" >&2
    fail "packing changes the loss of a pass"
}
expect 1 bench arm "$work/config.yml" --data steps=3
says "num_epochs"
expect 2 bench arm "$work/config.yml" --data --train-step
echo "arm: ok"
