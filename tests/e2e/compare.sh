#!/bin/sh
# usage: compare.sh TREADLE
# bench/compare: every workload's file is read; an invented peer gives the ratio that it must, and no ratio where its
# losses or its result are others. What is wrong is said in one message, and no child outlives the command.
. "$(dirname "$0")/common"
root=$here/..
python3 -c 'import yaml' 2> /dev/null || skip "no python3 with PyYAML"

# A copy of the script with one more peer and its drivers, which play their figures instead of measuring.
mkdir -p "$work/bench"
cp -r "$root/bench/compare" "$root/bench/peers" "$root/bench/workloads" "$work/bench"
echo 'PEERS["played"] = ("played", "played")' >> "$work/bench/peers/environments.py"
cat > "$work/bench/peers/play_treadle.py" << 'END'
import driver

driver.serve(lambda spec: (lambda line: {"loop_ms": 10, "losses": [2.0, 1.0], "check": [1]}, {"losses": [3.0]}))
END
cat > "$work/bench/peers/play_played.py" << 'END'
import driver


def start(spec):
    print("a library's own words")
    figures = {"losses": [2.0, 1.0 + spec["with"]["error"]], "check": spec["with"]["check"], "peak_bytes": 7e9}
    times = iter([40, 20, 60])
    return lambda line: figures | {"loop_ms": next(times)}, {"losses": [3.0], "versions": {"played": "1"}}


driver.serve(start)
END

# compare ERROR CHECK WORD ...: runs a workload whose peer's last loss is off by ERROR, into $work/out and $work/result.json.
compare() {
    cat > "$work/w.yml" << END
title: a played workload
task: play
steps: 5
peers:
  played: {at_least: 2.5, with: {error: $1, check: $2}}
END
    shift 2
    "$work/bench/compare" "$work/w.yml" --treadle "$treadle" --python "played=$(command -v python3)" --json "$work/result.json" "$@" \
        > "$work/out" 2> "$work/err"
}

compare 0 "[1]" || { cat "$work/out" "$work/err"; fail "the played workload"; }
prints "| played | 4.00 | 2.00 to 6.00 (3) | 2.5 | 2 ms | 8 ms |"
prints "reached"
prints "7.00 GB"
prints "played: played 1."
python3 - "$work/result.json" << 'END' || fail "the JSON"
import json, sys

result = json.load(open(sys.argv[1]))["workloads"][0]["results"][0]
assert result["ratios"] == [4, 2, 6] and result["ratio"] == 4 and result["loss_difference"] == 0, result
assert [s["peer"]["value"] for s in result["samples"]] == [8, 4, 12], result
END

sed -i 's/times = .*/times = iter([20, 20, 20])/' "$work/bench/peers/play_played.py"
status=0
compare 0 "[1]" || status=$?
[ $status -eq 3 ] || fail "a ratio that is short ends with 3"
prints "short"
sed -i 's/times = .*/times = iter([40, 20, 60])/' "$work/bench/peers/play_played.py"
compare 0.00005 "[1]" || fail "losses within the tolerance"
for other in "0.001 [1]" ".nan [1]" "0 [2]"; do
    # shellcheck disable=SC2086
    compare $other && fail "other results are refused: $other"
    prints "FAILED: played: "
    grep -q '"ratio"' "$work/result.json" && fail "no ratio of other work: $other"
done
prints "the results differ"
compare 0 "[1]" --peers none && fail "an unknown peer is refused"
prints "no peer none"

# What is wrong with the words, the workload or a process is said in one message, and is no traceback.
refused() {
    what=$1 expected=$2
    shift 2
    "$work/bench/compare" "$@" --treadle "$treadle" > "$work/out" 2>&1 && fail "$what: accepted"
    grep -q Traceback "$work/out" && { cat "$work/out"; fail "$what: a traceback"; }
    grep -qF -e "$expected" "$work/out" || { cat "$work/out"; fail "$what: expected: $expected"; }
}

# bad EXPECTED LINE ...: a workload of these lines is refused.
bad() {
    said=$1
    shift
    printf '%s\n' "$@" > "$work/bad.yml"
    refused "$*" "$said" "$work/bad.yml"
}

python=$(command -v python3)
refused "no workload of the name" "no workload" nope
refused "words only" "expected a workload" a=1
refused "no pairs" "--pairs: expected 1 or more" "$work/w.yml" --pairs 0
refused "no environment's name" "--python: expected ENVIRONMENT=PATH" "$work/w.yml" --python played
refused "an empty interpreter" "--python: expected ENVIRONMENT=PATH, found an empty PATH" "$work/w.yml" --python played=
refused "no interpreter" "found $work/nope, which is none" "$work/w.yml" --python "played=$work/nope"
printf '#!%s\n' "$work/nope" > "$work/broken"
chmod +x "$work/broken"
refused "a broken interpreter" "played: cannot be started" "$work/w.yml" --python "played=$work/broken"
refused "a silent peer" "played ended with 0 and said ''" "$work/w.yml" --python played=true
refused "no peer's name" "--peers: expected NAME,..., found ''" "$work/w.yml" --peers ""
refused "a comma too many" "--peers: expected NAME,..., found 'played,'" "$work/w.yml" --peers played,
refused "an empty path" "--json: expected a path" "$work/w.yml" --json ""
refused "an empty path" "--markdown: expected a path" "$work/w.yml" --markdown ""
refused "no place for the JSON" "No such file or directory" "$work/w.yml" --json "$work/nope/file"
(treadle=$work/nope; refused "no treadle" "name it with --treadle" "$work/w.yml") || exit 1
(treadle=/bin/true; refused "another program" "--version: expected treadle's" "$work/w.yml") || exit 1
bad "expected a map of title" ""
bad "expected a workload in YAML" "title: [1"
bad "peers is missing" "title: x" "task: play"
bad "peers: expected a map" "title: x" "task: play" "peers: [played]"
bad "at_least: expected a number" "title: x" "task: play" "peers: {played: fast}"
bad "steps: expected a whole number from 1" "title: x" "task: play" "steps: 0" "peers: {played: 1}"
bad "peers: expected one or more, found none" "title: x" "task: play" "peers: {}"
bad "the key steps is repeated" "title: x" "task: play" "steps: 1" "peers: {played: 1}" "steps: 2"
bad "the key played is repeated" "title: x" "task: play" "peers: {played: 1, played: 2}"
bad "measure: expected loop or start, found 'banana'" "title: x" "task: play" "measure: banana" "peers: {played: 1}"
bad "value: expected loop_ms or fwd_bwd_ms, found 'banana'" "title: x" "task: play" "peers: {treadle: {value: banana}}"
bad "value: expected it for the peer treadle only" "title: x" "task: play" "peers: {played: {value: fwd_bwd_ms}}"
bad "words: expected it for the peer treadle only" "title: x" "task: play" "peers: {played: {words: [a=1]}}"
bad "found 'banana'" "title: x" "task: banana" "peers: {played: 1}"
bad "task: expected checkpoint or generate" "title: x" "task: banana" "peers: {played: 1}"
bad "words: expected key=value, found '5'" "title: x" "task: play" "words: [5]" "peers: {played: 1}"
bad "words: expected text or a number, found {'a': 1}" "title: x" "task: play" "words: [a: 1]" "peers: {played: 1}"
bad "options: expected text or a number, found [1]" "title: x" "task: play" "options: [[1]]" "peers: {played: 1}"
bad "gradient_accumulation_steps: expected a whole number from 1, found gradient_accumulation_steps=x" \
    "title: x" "task: play" "peers: {treadle: {words: [gradient_accumulation_steps=x]}}"
bad "expected nothing but text, numbers" "title: x" "task: play" "with: {day: 2026-01-01}" "peers: {played: 1}"
bad "expected a workload in YAML" "title: 2026-13-45"
bad "FAILED: treadle config ended with 1" "title: x" "task: play" "config: nope.yml" "peers: {played: 1}"

# A standard output that fails takes nothing away: all peers are measured, and the files are written.
cat > "$work/two.yml" << 'END'
title: two peers
task: play
steps: 5
peers:
  played: {with: {error: 0, check: [1]}}
  treadle: null
END
cat > "$work/no_reader" << 'END'
import os, sys

reader, writer = os.pipe()
os.close(reader)
for stream in sys.argv[1].split(","):
    os.dup2(writer, int(stream))
os.execvp(sys.argv[2], sys.argv[2:])
END
# lost WAY WORD ...: with the command's standard output lost in a way, by words before it or as the caller redirects it.
lost() {
    way=$1
    shift
    rm -f "$work/lost.json" "$work/lost.md"
    status=0
    "$@" "$work/bench/compare" "$work/two.yml" --treadle "$treadle" --python "played=$python" --json "$work/lost.json" \
        --markdown "$work/lost.md" 2> "$work/err" || status=$?
    [ $status -eq 1 ] || { cat "$work/err" >&2; fail "$way: ended with $status"; }
    [ "$(grep -c '"ratios"' "$work/lost.json")" -eq 2 ] || fail "$way: two results in the JSON"
    grep -q "^| treadle | 1.00 |" "$work/lost.md" || fail "$way: the Markdown"
}
says_once() {
    [ "$(wc -l < "$work/err")" -eq 1 ] || { cat "$work/err" >&2; fail "expected one line"; }
    says "bench/compare: writing standard output: $1"
}
lost "no reader" python3 "$work/no_reader" 1
says_once "[Errno 32]"
lost "no reader of both streams" python3 "$work/no_reader" 1,2
lost "a closed stream" env >&-
says_once "it is closed"
if [ -e /dev/full ]; then
    lost "a full disk" env > /dev/full
    says_once "[Errno 28]"
fi

# A program in treadle's place: a rate of the products that is none, losses that are no numbers, and its options.
cat > "$work/play" << 'END'
#!/bin/sh
case "$1 ${2:-}" in
"--version ") echo "treadle played" ;;
"bench step") echo "{\"mfu\": $SHARE, \"peak_rss_bytes\": 1, \"gflops\": 67, \"peak_gflops\": 1}" ;;
"bench arm") echo "$*" > "$OPTIONS"; echo '{"losses": [null]}' ;;
esac
END
chmod +x "$work/play"
export SHARE=67 OPTIONS="$work/options"
built=$treadle
treadle=$work/play
bad "FAILED: not measured: a step at 67 of the rate" "title: x" "task: step" "peers: {machine: 0.8}"
grep -q reached "$work/out" && fail "a share of 67 is reached"
SHARE=null
bad "FAILED: cannot be measured" "title: x" "task: step" "peers: {machine: 0.8}"
SHARE=1.2
"$work/bench/compare" "$work/bad.yml" --treadle "$treadle" > "$work/out" || fail "a share of 1.2"
prints "| machine | 1.200 |"
bad "FAILED: treadle ended with 0 and said" "title: x" "task: step" "options: [--steps, 3, true]" "peers: {treadle: 1}"
grep -q -e "--steps 3 true$" "$work/options" || { cat "$work/options"; fail "options are taken as their text"; }
treadle=$built

# A peer that ends in a loop, and those that answer what is no map of figures, or lacks one.
printf '%s\n' "title: x" "task: die" "peers: {played: 1}" > "$work/die.yml"
cp "$work/bench/peers/play_treadle.py" "$work/bench/peers/die_treadle.py"
for loop in 'os._exit(3)' '5' '{"loop_ms": "1", "losses": [2, 1], "check": [1]}' '{"losses": [2, 1], "check": [1]}'; do
    cat > "$work/bench/peers/die_played.py" << END
import driver, os

driver.serve(lambda spec: (lambda line: $loop, {"losses": [3.0]}))
END
    refused "a peer whose loop is $loop" "die, played: FAILED: " "$work/die.yml" --python "played=$python"
done

# A signal that ends bench/compare ends its children, even those that stand still. A killed one cannot remove what it wrote.
export TMPDIR="$work"
cat > "$work/bench/peers/die_played.py" << END
import driver, os, time


def loop(line):
    with open("$work/new", "w") as file:
        file.write(str(os.getpid()))
    os.rename("$work/new", "$work/pid")
    time.sleep(600)


driver.serve(lambda spec: (loop, {"losses": [3.0]}))
END
for signal in TERM KILL; do
    rm -f "$work/pid"
    "$work/bench/compare" "$work/die.yml" --treadle "$treadle" --python "played=$python" > "$work/out" 2>&1 &
    compare=$!
    waited=0
    until [ -e "$work/pid" ]; do
        waited=$((waited + 1))
        [ $waited -lt 300 ] || fail "the peer has not started"
        sleep 0.1
    done
    peer=$(cat "$work/pid")
    kill -s $signal "$compare"
    wait "$compare" && fail "SIG$signal: success"
    waited=0
    while grep -q '^State:[^Z]*$' "/proc/$peer/status" 2> /dev/null; do
        waited=$((waited + 1))
        [ $waited -lt 300 ] || fail "SIG$signal: the peer is still there"
        sleep 0.1
    done
    grep -q Traceback "$work/out" && fail "SIG$signal: a traceback"
done

# So does a peer that says nothing for too long.
sed -i 's/^PATIENCE_S = .*/PATIENCE_S = 15/' "$work/bench/peers/process.py"
refused "a peer that hangs" "FAILED: played was killed after 15 s of silence" "$work/die.yml" --python "played=$python"

# bench/plot names the line that it cannot read.
for line in garbage '[]' '{}' '{"commit": 1, "workload": "a", "share": 0.5}' \
    '{"commit": "a", "workload": [], "share": 0.5}' '{"commit": "a", "workload": "b", "share": NaN}' \
    '{"commit": "a", "workload": "b", "share": 1e300}'; do
    printf '{"commit": "a", "workload": "b", "share": 0.5}\n%s\n' "$line" > "$work/history.jsonl"
    "$root/bench/plot" "$work/history.jsonl" "$work/history.svg" > "$work/out" 2>&1 && fail "bench/plot: $line"
    grep -q "line 2: expected an object" "$work/out" || { cat "$work/out"; fail "bench/plot: $line: no line named"; }
done

# Each workload's file, as the script itself reads it.
python3 - "$work/bench" << 'END' || fail "bench/workloads"
import glob, importlib.machinery, importlib.util, os, sys

loader = importlib.machinery.SourceFileLoader("compare", os.path.join(sys.argv[1], "compare"))
compare = importlib.util.module_from_spec(importlib.util.spec_from_loader("compare", loader))
loader.exec_module(compare)
files = glob.glob(os.path.join(sys.argv[1], "workloads", "*.yml"))
assert files
for path in files:
    w = compare.workload.load(path, None)
    for peer in w["peers"]:
        assert peer in ("machine", "treadle") or peer in compare.environments.PEERS, (path, peer)
END
echo "compare: ok"
