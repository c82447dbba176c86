#!/bin/sh
# usage: configs.sh TREADLE
# docs/config.md is what the program says of its keys, and every example in configs/ is a valid config.
. "$(dirname "$0")/common"
root=$(dirname "$here")

expect 0 config --keys
diff "$root/docs/config.md" "$work/out" || fail "docs/config.md is not current: treadle config --keys > docs/config.md"
for config in "$root"/configs/*.yml; do
    expect 0 config "$config"
    prints "model_name: "
    awk '/^[a-z_]+:/ { sub(/:.*/, ""); if (seen[$0]++) exit 1 }' "$work/out" || fail "$config: a key is printed twice"
done
expect 0 plan "$root/configs/qwen3-0.6b.yml" --json
prints '"parameters": 596049920'
expect 0 plan "$root/configs/tiny.yml" --programs --json
for name in first accum update eval train_step; do prints "{\"name\": \"$name\", \"flops\": "; done
cp "$work/out" "$work/first"
expect 0 plan "$root/configs/tiny.yml" --programs --json
cmp "$work/first" "$work/out" || fail "plan --programs: two processes disagree"
expect 0 plan "$root/configs/tiny.yml" --programs
prints "fingerprint"
echo "configs: ok"
