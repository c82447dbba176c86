#!/bin/sh
# treadle generate on a run of the tiny preset: starting weights, then the newest checkpoint.
set -eu
treadle=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() { echo "e2e/generate: $1" >&2; exit 1; }

cat >"$folder/tiny.yml" <<YAML
model_name: tiny
vocab_size: 49152
tokenizer_path: $PWD/data/smollm2-tokenizer.gguf
base_output_directory: $folder
run_name: run
steps: 2
max_target_length: 32
learning_rate: 0.01
train_files: [$folder/train.jsonl]
YAML
for i in 1 2 3 4; do echo '{"prompt": "a b c", "completion": "d e f g"}'; done >"$folder/train.jsonl"

generate() { "$treadle" generate "$folder/tiny.yml" "$@" 2>"$folder/err"; }
ids() { tail -n 1 | sed 's/^{"ids": \(\[[^]]*\]\).*/\1/'; }

first=$(generate --ids 5,6,7 --max-tokens 6 --json | ids)
grep -q "no checkpoint of this run yet" "$folder/err" || fail "the starting weights are not mentioned"
[ "$(echo "$first" | tr -cd , | wc -c)" -eq 5 ] || fail "expected 6 ids, found $first"
[ "$first" = "$(generate --ids 5,6,7 --max-tokens 6 --json | ids)" ] || fail "greedy ids differ from run to run"
both=$(generate --ids "8,9;5,6,7" --max-tokens 6 --json | tail -n 1)
echo "$both" | grep -q "^{\"results\": \[{.*}, {\"ids\": $(echo "$first" | sed 's/[][]/\\&/g')" ||
    fail "two lists of ids: expected $first last, found $both"
drawn="--ids 5,6,7 --max-tokens 6 --json --temperature 1 --top-k 50 --top-p 0.9"
a=$(generate $drawn --seed 1 | ids) b=$(generate $drawn --seed 1 | ids) c=$(generate $drawn --seed 2 | ids)
[ "$a" = "$b" ] || fail "the same seed gives other ids"
[ "$a" != "$c" ] || fail "another seed gives the same ids"

"$treadle" train "$folder/tiny.yml" >"$folder/log" 2>&1 || fail "training failed: $(cat "$folder/log")"
trained=$(generate --ids 5,6,7 --max-tokens 6 --json | ids)
grep -q "no checkpoint" "$folder/err" && fail "the checkpoint was not found"
[ "$trained" = "$("$treadle" generate "$folder/run/checkpoints/step-2" --ids 5,6,7 --max-tokens 6 --json |
    ids)" ] || fail "config and checkpoint folder give other ids"

printf 'One.\n\nTwo.\n' >"$folder/prompts"
generate --prompts "$folder/prompts" --max-tokens 3 --json | tail -n 1 | grep -q '^{"results": \[{.*}, {.*}\]' ||
    fail "two prompts give no list of two results"
generate --prompt "One." --max-tokens 3 >"$folder/text" || fail "a text prompt failed: $(cat "$folder/err")"

expect() { # code, part of the message, arguments
    code=$1 part=$2
    shift 2
    status=0
    "$treadle" generate "$@" >/dev/null 2>"$folder/err" || status=$?
    [ $status -eq "$code" ] || fail "generate $*: expected exit code $code, found $status"
    grep -q -- "$part" "$folder/err" || fail "generate $*: expected \"$part\", found: $(cat "$folder/err")"
}
expect 2 "expected one of --prompt" "$folder/tiny.yml"
expect 2 "expected one model" --prompt a
expect 2 "did you mean --prompt" "$folder/tiny.yml" --promt a
expect 1 "token ids from 0" "$folder/tiny.yml" --ids 1,x
expect 1 "token ids from 0" "$folder/tiny.yml" --ids "1;"
expect 1 "found 49152" "$folder/tiny.yml" --ids 49152
expect 1 "nowhere: expected a model" "$folder/nowhere" --ids 1
expect 1 "nowhere: expected a model" "$folder/nowhere" --prompt a
expect 1 "give --tokenizer" "$folder/run/checkpoints/step-2" --prompt a
