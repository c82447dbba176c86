#!/bin/sh
# usage: ablation.sh TREADLE
# The ablation's table: a row for every switch with 1 and with 8 micro-batches a step, the default's losses and
# programs where a switch only adds host work.
. "$(dirname "$0")/common"

small_run << END
steps: 3
END
expect 0 bench ablation "$work/config.yml" max_target_length=8 --steps 2 --rounds 2
prints "1 micro-batch a step, 2 steps a loop, median of 2 loops"
prints "8 micro-batches a step"
prints "Peak memory with max_inflight_computations 1 and 8"
for row in default 'publish: eager' 'state: split' 'metrics_write: immediate' 'throttle_on: state' \
    'max_inflight_computations: 1' 'max_inflight_computations: 8'; do
    [ "$(grep -c "^| $row *|.*| same *| same *|\$" "$work/out")" = 2 ] || fail "two rows like the default's: $row"
done
grep -q '^| accumulate: separate *|.*| define, add *|$' "$work/out" || fail "programs of accumulate: separate"
[ "$(grep -c '^| clip_norm: recompute *|.*| update *|$' "$work/out")" = 2 ] || fail "clip_norm has its own update"
[ "$(grep -c '^| all slow *|' "$work/out")" = 2 ] || fail "all slow"
expect 0 bench ablation "$work/config.yml" max_target_length=8 --steps 1 --rounds 1 --json
[ "$(grep -o '"switch":' "$work/out" | wc -l)" = 20 ] || fail "20 rows"
expect 2 bench ablation
says "needs a config file"
expect 1 bench ablation "$work/config.yml" model_name=tinny
says 'did you mean "tiny"?'
