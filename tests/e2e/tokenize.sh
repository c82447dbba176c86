#!/bin/sh
# usage: tokenize.sh TREADLE
# Text to ids and back through the program, standard input untouched.
set -eu
treadle=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

printf ' Hello,  world\n\n<|im_end|>\377' > "$work/text"
"$treadle" tokenize data/qwen3-tokenizer < "$work/text" > "$work/ids"
"$treadle" tokenize data/qwen3-tokenizer --json < "$work/text" > "$work/json"
[ "$(cat "$work/ids")" = "21927 11 220 1879 271 151645 187" ] || { cat "$work/ids"; exit 1; }
[ "$(cat "$work/json")" = '{"ids": [21927, 11, 220, 1879, 271, 151645, 187]}' ] || { cat "$work/json"; exit 1; }
for form in ids json; do
    "$treadle" tokenize data/qwen3-tokenizer --decode < "$work/$form" | cmp - "$work/text"
done
[ "$("$treadle" tokenize data/qwen3-tokenizer --json < /dev/null)" = '{"ids": []}' ]

expect() { # expect CODE ARGUMENT ...: the exit code, and something said on standard error
    code=$1
    shift
    found=0
    "$treadle" tokenize "$@" < "$work/text" > /dev/null 2> "$work/error" || found=$?
    [ "$found" = "$code" ] && [ -s "$work/error" ] || { echo "tokenize $*: exit $found, expected $code"; exit 1; }
}
expect 2
expect 2 data/qwen3-tokenizer extra
expect 2 data/qwen3-tokenizer --jsn
expect 1 "$work/none"
printf '1 99999999' > "$work/text"
expect 1 data/qwen3-tokenizer --decode
for ids in '1 two' '-1' '1.5' '{"text": "a1"}'; do
    printf '%s' "$ids" > "$work/text"
    expect 1 data/qwen3-tokenizer --decode
done
expect 2 data/qwen3-tokenizer --decode --json
echo "tokenize: ok"
