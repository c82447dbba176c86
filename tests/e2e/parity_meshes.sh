#!/bin/sh
# usage: parity_meshes.sh TREADLE [CASE ...]
# Every reference case over XLA: on one device and on four in every arrangement, in both shard modes, with scanned layers
# and without. By night only, and where there is a plugin.
. "$(dirname "$0")/common"
[ -n "${TRD_NIGHTLY:-}" ] || skip "by night only"
[ -n "${PJRT_PLUGIN_LIBRARY_PATH:-}" ] || skip "no plugin: run tools/fetch-pjrt or set PJRT_PLUGIN_LIBRARY_PATH"

shift
[ $# -gt 0 ] || set -- golden/*/
for case; do
    for scan in "" --scan; do
        for mesh in "" "--mesh data=4" "--mesh fsdp=4" "--mesh data=2,fsdp=2" "--mesh data=2,tensor=2"; do
            for mode in "" --explicit; do
                [ -z "$mesh" ] && [ -n "$mode" ] && continue
                # shellcheck disable=SC2086 # words on purpose
                expect 0 parity "$case" --backend pjrt --cache "$work/cache" $scan $mesh $mode --json
                tail -n 1 "$work/out" | grep -q '"passed": true}$' || fail "parity $case $scan $mesh $mode: not passed"
                echo "passed: $case $scan $mesh $mode"
            done
        done
    done
done
echo "parity_meshes: ok"
