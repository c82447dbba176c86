#!/bin/sh
# usage: compare.sh TREADLE
# bench/compare: every workload's file is read; an invented peer gives the ratio that it must, and no ratio where its
# losses or its result are others.
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

compare 0.00005 "[1]" || fail "losses within the tolerance"
for other in "0.001 [1]" "0 [2]"; do
    # shellcheck disable=SC2086
    compare $other && fail "other results are refused: $other"
    prints "FAILED: played: "
    grep -q '"ratio"' "$work/result.json" && fail "no ratio of other work: $other"
done
prints "the results differ"
compare 0 "[1]" --peers none && fail "an unknown peer is refused"
prints "no peer none"

# Each workload's file, as the script itself reads it.
python3 - "$work/bench" << 'END' || fail "bench/workloads"
import glob, importlib.machinery, importlib.util, os, sys

loader = importlib.machinery.SourceFileLoader("compare", os.path.join(sys.argv[1], "compare"))
compare = importlib.util.module_from_spec(importlib.util.spec_from_loader("compare", loader))
loader.exec_module(compare)
files = glob.glob(os.path.join(sys.argv[1], "workloads", "*.yml"))
assert files
for path in files:
    w = compare.load_workload(path, None)
    for peer in w["peers"]:
        assert peer in ("machine", "treadle") or peer in compare.environments.PEERS, (path, peer)
END
echo "compare: ok"
