#!/bin/sh
# usage: profile.sh TREADLE
# profiler: trace leaves traces in the run's folder; `treadle profile` adds them up, compares runs, and says what is
# wrong with what is no trace.
. "$(dirname "$0")/common"
small_run << 'END'
steps: 8
gradient_accumulation_steps: 2
checkpoint_period: 2
enable_tensorboard: false
enable_html_report: false
profiler: trace
skip_first_n_steps_for_profiler: 2
profiler_steps: 4
profile_periodically_period: 6
END
run="$work/runs/run"
expect 0 train "$work/config.yml"
for trace in 00000002 00000008 00000014; do
    [ -s "$run/profile/trace-$trace.json" ] || fail "no profile/trace-$trace.json"
done
[ "$(ls "$run/profile" | wc -l)" = 3 ] || fail "more traces than windows"
for track in host queue device checkpoint data; do
    grep -q "\"args\": {\"name\": \"$track\"}" "$run/profile/trace-00000002.json" || fail "no track \"$track\""
done
grep -q '"name": "prepare a batch"' "$run"/profile/*.json || fail "the data thread recorded nothing"
grep -q '"name": "write a checkpoint"' "$run"/profile/*.json || fail "the checkpoint thread recorded nothing"

expect 0 profile "$run"
prints "10 micro-steps in 3 traces, 1 thread, device busy "
for word in first accum update fingerprint "costliest ops" matmul GFLOP/s GB/s; do prints "$word"; done
lines=$(wc -l <"$work/out")
expect 0 profile "$run" --all
[ "$(wc -l <"$work/out")" -gt "$lines" ] || fail "profile --all shows no more ops than the costliest"
expect 0 profile "$run/profile/trace-00000008.json"
prints "4 micro-steps in 1 trace,"
expect 0 profile "$run" --json
tail -n 1 "$work/out" | grep -q '^{"run": ".*"device_busy_share": 0\.' || fail "profile --json"
prints '"ops": [{"name": "'

# A run without a profile has the same parameters; another program is told from the same one.
expect 0 train "$work/config.yml" run_name=plain profiler=
expect 0 export "$run/config.yml" "$work/model"
expect 0 export "$work/runs/plain/config.yml" "$work/plain"
cmp "$work/model/model.safetensors" "$work/plain/model.safetensors" || fail "a profile changed the parameters"
expect 0 train "$work/config.yml" run_name=other grad_dtype=bfloat16
expect 0 profile "$run" --against "$work/runs/other"
prints "another"
expect 0 profile "$run" --against "$run" --json
prints '"against": {"run": "'
expect 0 profile "$run" --against "$run"
prints "the same"

expect 1 profile "$work/runs/plain"
says "profiler: trace"
expect 1 profile "$work/nothing"
head -c 20000 "$run/profile/trace-00000008.json" > "$work/torn.json"
expect 1 profile "$work/torn.json"
says "torn.json"
echo '{"traceEvents": []}' > "$work/foreign.json"
expect 1 profile "$work/foreign.json"
says "treadle's profiler"
sed 's/"dur": /"dur": -/g' "$run/profile/trace-00000008.json" > "$work/negative.json"
expect 1 profile "$work/negative.json"
says "expected 0 to "
sed 's/"dur": [0-9.]*/"dur": 1e308/g' "$run/profile/trace-00000008.json" > "$work/endless.json"
expect 1 profile "$work/endless.json"
says "expected 0 to "
cp "$work/torn.json" "$run/profile/trace-00000099.json" # a file beside good ones is not passed over
expect 1 profile "$run"
says "trace-00000099.json"
expect 2 profile
expect 1 config "$work/config.yml" profiler=xplane
says "expected trace"
expect 1 config "$work/config.yml" profiler_steps=7
says "profile_periodically_period"
echo "profile: ok"
