#!/bin/sh
# usage: leaves.sh TREADLE
# What a run leaves behind: each file is there and reads back, and the exported model is the trained one.
. "$(dirname "$0")/common"

small_run << END
steps: 6
checkpoint_period: 4
max_num_checkpoints_to_keep: 1
eval_files: ['$work/train.jsonl']
eval_interval: 2
END
expect 0 eval "$work/config.yml" run_name="it's a run"
prints "step 0: loss 5."
[ ! -e "$work/runs/it's a run/checkpoints" ] || fail "eval made a folder of checkpoints"
expect 0 train "$work/config.yml" run_name="it's a run"
prints "step 6/6  loss "
prints "eval at step 6  loss "
run="$work/runs/it's a run"

expect 0 train "$work/config.yml" run_name="it's a run" --json # finished: nothing left to do, said as JSON
tail -n 1 "$work/out" | grep -q '^{"run": ".*/it.s a run", "step": 6, "steps": 6, "stopped": false, "loss": ' ||
    fail "train --json: $(cat "$work/out")"

# metrics.jsonl: one flat object a line.
number='-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?'
line="\\{\"step\": [0-9]+, \"mode\": \"(train|eval)\"(, \"[a-z_0-9]+\": ($number|null))+\\}"
grep -E -v -x "$line" "$run/metrics.jsonl" && fail "metrics.jsonl: the lines above are no flat JSON objects"
[ "$(grep -c '"mode": "train"' "$run/metrics.jsonl")" = 6 ] || fail "metrics.jsonl: expected 6 training steps"
[ "$(grep -c '"mode": "eval"' "$run/metrics.jsonl")" = 4 ] || fail "metrics.jsonl: expected 4 evaluations (0, 2, 4, 6)"
for name in loss perplexity learning_rate total_weights gradient_norm step_skipped step_time tokens_per_second tflops \
    utilization; do
    grep -q "\"$name\": " "$run/metrics.jsonl" || fail "metrics.jsonl: no $name"
done

# config.yml: every key, and the same run when it is loaded.
expect 0 config "$run/config.yml"
cmp "$work/out" "$run/config.yml" || fail "config.yml does not give itself"
expect 0 config --keys
keys=$(sed -n 's/^| `\([a-z_0-9]*\)`.*/\1/p' "$work/out")
for key in $keys; do
    grep -q "^$key: " "$run/config.yml" || fail "config.yml: no $key"
done
grep -q "^run_name: 'it''s a run'" "$run/config.yml" || fail "config.yml: run_name is not what was given"

# Event files, page and log.
grep -q -a "train/loss" "$run"/tensorboard/events.out.tfevents.* || fail "no train/loss in TensorBoard's event file"
grep -q -a "eval/loss" "$run"/tensorboard/events.out.tfevents.* || fail "no eval/loss in TensorBoard's event file"
head -n 1 "$run/report.html" | grep -q -i "<!doctype html>" || fail "report.html is no page"
grep -q "<svg" "$run/report.html" || fail "report.html has no curve"
grep -q -E "(src|href)=.?https?:" "$run/report.html" && fail "report.html needs the network"
grep -q "^info: training data: 40 samples" "$run/log.txt" || fail "log.txt lacks the data's counts"
[ "$(ls "$run/checkpoints")" = "$(printf 'lock\nstep-6')" ] || fail "checkpoints: expected the newest only"

# inspect, on everything a person may point it at.
for path in "$run/checkpoints" "$run/checkpoints/step-6" "$run/checkpoints/step-6/tensors.safetensors" \
    golden/qwen2-tiny golden/qwen2-tiny/model.safetensors checkpoint/data/llama.gguf checkpoint/data/qwen3.gguf; do
    expect 0 inspect "$path"
    tail -n 1 "$work/out" | grep -q "tensors, " || fail "inspect $path: no total"
    expect 0 inspect "$path" --json
    tail -n 1 "$work/out" | grep -q '^{"path": .*"tensors": \[.*\]}$' || fail "inspect $path --json: no object"
done
expect 0 inspect golden/qwen2-tiny
prints "model.layers.0.self_attn.q_proj.bias"

# eval of the run = its last evaluation = eval of the exported model; the same for text.
evaluated() {
    expect 0 eval "$@" --json
    tail -n 1 "$work/out" | sed 's/.*"loss": \([0-9.]*\),.*/\1/'
}
trained=$(evaluated "$run/config.yml")
last=$(grep '"mode": "eval"' "$run/metrics.jsonl" | tail -n 1 | sed 's/.*"loss": \([0-9.]*\),.*/\1/')
[ "$(printf %.6f "$trained")" = "$(printf %.6f "$last")" ] || fail "eval gives $trained, training ended with $last"
expect 0 export "$run/config.yml" "$work/hub"
for file in model.safetensors config.json generation_config.json tokenizer.json tokenizer_config.json; do
    [ -s "$work/hub/$file" ] || fail "export: no $file"
done
hub() { # the overrides that make the config start from the exported folder
    evaluated "$run/config.yml" run_name=hub model_name= vocab_size=0 tokenizer_path= load_parameters_path="$work/hub" "$@"
}
[ "$(hub)" = "$trained" ] || fail "the exported model evaluates to another loss than $trained"
expect 0 export "$run/config.yml" "$work/half" --dtype bfloat16 --no-tokenizer --json
[ "$(tail -n 1 "$work/out")" = "{\"folder\": \"$work/half\", \"step\": 6}" ] || fail "export --json: $(cat "$work/out")"
[ ! -e "$work/half/tokenizer.json" ] || fail "export --no-tokenizer: wrote one"
rounded=$(hub load_parameters_path="$work/half" tokenizer_path="$work/hub")
[ "$rounded" != "$trained" ] && [ "$(printf %.1f "$rounded")" = "$(printf %.1f "$trained")" ] ||
    fail "the model exported in bfloat16 evaluates to $rounded, expected about $trained"
for model in "$run/config.yml" "$run/checkpoints/step-6" "$work/hub"; do
    expect 0 generate "$model" --raw --prompt "Count from 3: " --max-tokens 8 --tokenizer data/data/bytes --threads 1 --json
    tail -n 1 "$work/out" | sed 's/.*"ids": \(\[[0-9, ]*\]\).*/\1/' >> "$work/texts"
done
[ "$(sort -u "$work/texts" | wc -l)" = 1 ] || fail "run, checkpoint and export generate different text"

# What is switched off is not written.
expect 0 train "$work/config.yml" run_name=bare enable_checkpointing=false enable_tensorboard=false \
    enable_html_report=false log_period=4
for name in checkpoints tensorboard report.html; do
    [ ! -e "$work/runs/bare/$name" ] || fail "$name was written though it is switched off"
done
grep -c "^step " "$work/out" | grep -qx 3 || fail "log_period 4: expected the lines of steps 1, 4 and 6"
expect 0 export "$work/config.yml" "$work/start" run_name=none
says "no checkpoint of this run yet: exporting its random starting weights"
expect 1 train "$run/config.yml" enable_checkpointing=false
says "holds checkpoints, but enable_checkpointing is off"
expect 0 train "$work/config.yml" run_name=penalty enable_checkpointing=false steps=1 z_loss_multiplier=1e-3
grep -q '"z_loss": 0\.' "$work/runs/penalty/metrics.jsonl" || fail "z_loss_multiplier: no z_loss among the metrics"
expect 0 plan "$run/config.yml" --json
tail -n 1 "$work/out" | grep -q '^{"parameters": 91008, ' || { cat "$work/out"; fail "plan --json"; }
echo "leaves: ok"
