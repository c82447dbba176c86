#!/bin/sh
# usage: usage.sh TREADLE
# Exit codes (0 done, 1 failed, 2 wrong usage), help, suggestions, and what the program says when a stream, a folder
# or a file is not what it needs.
. "$(dirname "$0")/common"

# Help and unknown words.
for word in --help -h help; do
    expect 0 $word
    prints "usage: treadle COMMAND"
done
commands=$("$treadle" --help | sed -n 's/^  \([a-z]*\)  .*/\1/p')
for command in train eval generate inspect export plan dump profile bench parity tokenize config version; do
    echo "$commands" | grep -qx $command || fail "--help does not list $command"
done
for command in $commands; do
    expect 0 $command --help
    prints "usage: treadle $command"
    expect 2 $command --no-such-option
    says "unknown option --no-such-option"
    says "usage: treadle $command"
done
expect 2
says "usage: treadle COMMAND"
expect 2 trian
says 'unknown command "trian"; did you mean "train"?'
expect 2 qqqqqqq
says 'unknown command "qqqqqqq"'
expect 2 config --kesy
says "did you mean --keys?"
expect 2 inspect
expect 2 inspect a b
expect 2 export "$work/config.yml"
expect 2 bench stepp "$work/config.yml"
says "expected step, host, steady, checkpoint or ablation, and a config file, found stepp"
expect 2 parity golden/llama-tiny --threads 0
says "expected 1 to 1024, found 0"
expect 2 parity golden/llama-tiny --threads=two
expect 2 parity golden/llama-tiny --threads
says "needs a value"
expect 2 version --json=yes
expect 0 --version
prints "treadle 0."
expect 0 version --json
prints '{"version": "'

# Configs: the key, its place and the nearest.
small_run << END
steps: 3
END
expect 0 dump "$work/config.yml" --program accum
prints "program accum: "
expect 0 dump "$work/config.yml" --program accum --stage stablehlo
prints "module @accum {"
prints "tf.aliasing_output"
expect 2 dump "$work/config.yml" --stage hlo2
says 'unknown stage "hlo2"'
expect 2 dump "$work/config.yml" --program acum
says 'the config has no program "acum"'
expect 1 train "$work/config.yml" lerning_rate=1
says 'override lerning_rate=1: unknown key "lerning_rate"; did you mean "learning_rate"?'
expect 1 train "$work/config.yml" learning_rate=fast
says 'learning_rate: expected a number, found "fast"'
expect 1 train "$work/config.yml" lora.enable_lora=true
says "not built yet: LoRA adapters"
expect 1 train "$work/config.yml" model_name=tinny
says 'did you mean "tiny"?'
sed 's/^num_threads/num_treads/' "$work/config.yml" > "$work/wrong.yml"
expect 1 plan "$work/wrong.yml"
says "$work/wrong.yml line 9: unknown key \"num_treads\"; did you mean \"num_threads\"?"
expect 1 eval "$work/config.yml"
says "eval_files is empty"

# Files that are not there, or are not what they should be.
expect 1 train "$work/none.yml"
says "$work/none.yml: No such file"
expect 1 train "$work/config.yml" vocab_size=0 load_parameters_path="$work/none"
says "$work/none"
for key in tokenizer_path train_files eval_files; do
    expect 1 train "$work/config.yml" $key="$work/none"
    says "$work/none"
done
expect 1 inspect "$work/none"
says "$work/none: No such file"
expect 1 inspect "$work/config.yml"
expect 1 parity "$work"
expect 1 generate "$work/none" --prompt hello
expect 1 tokenize "$work/none"
expect 1 train "$work/config.yml" vocab_size=100
says "token"
echo 'no json' > "$work/bad.jsonl"
expect 1 train "$work/config.yml" train_files="$work/bad.jsonl"
says "bad.jsonl"
: > "$work/empty.jsonl"
expect 1 train "$work/config.yml" train_files="$work/empty.jsonl"
says "empty.jsonl"

# Output that cannot be written. The superuser may write read-only folders, but nobody below a file.
expect 1 train "$work/config.yml" base_output_directory="$work/config.yml/out"
says "$work/config.yml"
expect 1 export "$work/config.yml" "$work/config.yml/out"
mkdir "$work/locked"
chmod 555 "$work/locked"
if [ "$(id -u)" != 0 ]; then
    expect 1 train "$work/config.yml" base_output_directory="$work/locked"
    says "$work/locked"
fi

# Standard output closed or full: the work is done, the exit code says that nobody read of it, and no file gets what
# was meant for the stream.
for command in version --help "inspect golden/llama-tiny" "config --keys"; do
    for target in '>/dev/full' '>&-'; do
        found=0
        eval "\"\$treadle\" $command $target 2> \"\$work/err\"" || found=$?
        [ $found = 1 ] || fail "treadle $command $target: exit code $found, expected 1"
        says "writing standard output failed"
    done
done
"$treadle" train "$work/config.yml" run_name=closed >&- 2> "$work/err" && fail "train >&-: exit code 0"
"$treadle" train "$work/config.yml" run_name=silent > /dev/null 2>&- || fail "train 2>&-: exit code $?"
for run in closed silent; do
    expect 0 inspect "$work/runs/$run/checkpoints"
    prints "/step-3: checkpoint"
    grep -q "learning_rate 0" -r "$work/runs/$run" && fail "$run: the progress lines are in a file"
    expect 0 config "$work/runs/$run/config.yml"
done

# A run folder in use: the second process is refused, names the first one and leaves the run as it is.
"$treadle" train "$work/config.yml" run_name=held steps=100000 > "$work/held.out" 2> "$work/held.err" &
pid=$!
until grep -q "^step 2/" "$work/held.out"; do
    kill -0 $pid || fail "the first process ended: $(cat "$work/held.err")"
    sleep 0.01
done
cp "$work/runs/held/config.yml" "$work/held.yml"
expect 1 train "$work/config.yml" run_name=held steps=7
says "in use by another engine (process $pid)"
cmp "$work/held.yml" "$work/runs/held/config.yml" || fail "the second process changed the first one's config.yml"
kill -TERM $pid
wait $pid || fail "the first process: exit code $?"
expect 0 train "$work/config.yml" run_name=held steps=1
prints "Going on from step"
echo "usage: ok"
