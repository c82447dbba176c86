#!/bin/sh
# usage: meshes.sh TREADLE
# Runs over meshes of four devices: deferred reduction leaves one reduction of the gradients in a step, and a run goes
# on on another mesh, with warnings, to the same losses.
. "$(dirname "$0")/common"
[ -n "${PJRT_PLUGIN_LIBRARY_PATH:-}" ] || skip "no plugin: run tools/fetch-pjrt or set PJRT_PLUGIN_LIBRARY_PATH"
rows=1 length=32

small_run << END
backend: pjrt
jax_cache_dir: '$work/cache'
ici_data_parallelism: 4
gradient_accumulation_steps: 2
steps: 4
log_period: 1
enable_html_report: false
enable_tensorboard: false
END

# reductions PROGRAM [key=value ...]: its all-reduces as XLA runs it, one a line.
reductions() {
    program=$1
    shift
    expect 0 dump "$work/config.yml" --stage hlo --program "$program" "$@"
    grep -E ' all-reduce(-start)?\(' "$work/out" > "$work/reductions" || :
    wc -l < "$work/reductions"
}

for program in first accum; do
    [ "$(reductions $program defer_grad_reduction=true)" -eq 1 ] || fail "$program: expected one reduction"
    grep -q '(f64\[\], f64\[\])' "$work/reductions" || fail "$program reduces more than loss and denominator"
    [ "$(reductions $program)" -gt 1 ] || fail "$program: expected reductions of the gradients"
done
[ "$(reductions update defer_grad_reduction=true)" -ge 1 ] || fail "update: expected the reduction of the gradients"
[ "$(reductions update)" -eq 0 ] || fail "update: expected no reduction"

# losses NAME: the losses that the run has written.
losses() {
    grep -o '"loss": [0-9.]*' "$work/runs/$1/metrics.jsonl" | cut -c9-
}

expect 0 train "$work/config.yml" run_name=whole
expect 0 train "$work/config.yml" run_name=moved defer_grad_reduction=true steps=2 learning_rate_schedule_steps=4
expect 0 train "$work/config.yml" run_name=moved ici_data_parallelism=1 ici_fsdp_parallelism=4
says "ici_data_parallelism was 4 and is 1 now; results may differ in their last bits"
says "ici_fsdp_parallelism was 1 and is 4 now"
says "defer_grad_reduction was true and is false now"
losses whole > "$work/whole.losses"
losses moved > "$work/moved.losses"
[ "$(wc -l < "$work/whole.losses")" -eq 4 ] || fail "expected 4 losses, found $(cat "$work/whole.losses")"
paste "$work/whole.losses" "$work/moved.losses" |
    awk '{ off = $1 - $2; if (off < 0) off = -off; if (off > 1e-5 * $1) bad = 1 } END { exit bad || NR != 4 }' ||
    fail "losses differ: $(paste "$work/whole.losses" "$work/moved.losses")"

# What the devices cannot share.
expect 1 train "$work/config.yml" run_name=odd micro_batch_size_to_train_on=6
says "micro_batch_size_to_train_on expected a multiple of data x fsdp = 4, found 6 rows"

# Processes that the plugin does not know would each train alone.
expect 1 train "$work/config.yml" run_name=odd num_processes=2
says "the plugin for cpu knows the devices of one process only"
expect 1 train "$work/config.yml" run_name=odd process_id=1
says "process_id: expected 0 to 0"
expect 1 train "$work/config.yml" run_name=odd ici_data_parallelism=4096
says "the mesh needs 4096 devices, the plugin for cpu makes at most 2048"

# Plans are of each device, also without the devices.
expect 0 plan "$work/config.yml"
prints "each of 4 devices"
prints "activations"
expect 0 plan "$work/config.yml" backend=cpu --json
prints '"devices": 4'
prints '"compiled": false'
expect 0 plan "$work/config.yml" backend=cpu ici_data_parallelism=1 ici_fsdp_parallelism=3 num_processes=2 --programs
prints "sum of these"
says "ici_fsdp_parallelism: no parameter has a dimension that 3 places divide"
echo "meshes: ok"
