#!/bin/sh
# usage: scan.sh TREADLE
# scan_layers is another way to compute the same run: begun with it and ended without, or the reverse, also from the
# middle of a step, a run has the files, metrics and text of one that never changed.
. "$(dirname "$0")/common"
small_run << END
steps: 8
gradient_accumulation_steps: 2
dropout_rate: 0.1
checkpoint_period: 4
max_num_checkpoints_to_keep: 8
opt_type: muon
enable_html_report: false
END

train() {
    expect 0 train "$work/config.yml" "$@"
}

train run_name=plain
train run_name=scanned scan_layers=true
for form in true false; do
    train run_name=begun-$form scan_layers=$form learning_rate_schedule_steps=8 steps=5
    [ $form = true ] && other=false || other=true
    train run_name=begun-$form scan_layers=$other learning_rate_schedule_steps=8
done
last=checkpoints/step-8/tensors.safetensors
for run in scanned begun-true begun-false; do
    cmp "$work/runs/plain/$last" "$work/runs/$run/$last" || fail "$run differs from the run without scan_layers"
    grep '"mode": "train"' "$work/runs/$run/metrics.jsonl" |
        sed 's/^{"step": \([0-9]*\),.*"loss": \([-+.e0-9]*\),.*/\1 \2/' > "$work/$run.losses"
done
cmp "$work/scanned.losses" "$work/begun-true.losses" || fail "losses differ"
cmp "$work/scanned.losses" "$work/begun-false.losses" || fail "losses differ"
for run in plain scanned; do
    expect 0 export "$work/config.yml" "$work/$run.hub" run_name=$run scan_layers=true
done
cmp "$work/plain.hub/model.safetensors" "$work/scanned.hub/model.safetensors" || fail "exports differ"
expect 0 plan "$work/config.yml" scan_layers=true
expect 1 train "$work/config.yml" run_name=part scan_layers=true "freeze=['layers.0']"
says "set scan_layers: false"
echo "scan: ok"
