#!/bin/sh
# Runs every fuzz target from its committed seeds and fails on a finding.
#
#   tests/fuzz/run.sh SECONDS [BUILD]
#
# SECONDS is the time for each target; BUILD the folder of a build with preset "fuzz"
# (build/fuzz by default, configured and built if it is not there).  What is found lies in
# BUILD/findings; what the targets learned, in BUILD/corpus (not committed).
set -eu
source_folder=$(cd "$(dirname "$0")/../.." && pwd)
seconds=${1:?usage: tests/fuzz/run.sh SECONDS [BUILD]}
build=${2:-$source_folder/build/fuzz}

if [ ! -f "$build/build.ninja" ]; then
    (cd "$source_folder" && cmake --preset fuzz -B "$build")
fi
targets=$(cd "$source_folder/tests/fuzz" && ls fuzz_*.c | sed 's/\.c$//')
# shellcheck disable=SC2086
ninja -C "$build" $targets

failed=""
for target in $targets; do
    name=${target#fuzz_}
    seeds="$source_folder/tests/fuzz/corpus/$name"
    learned="$build/corpus/$name"
    findings="$build/findings/$name"
    mkdir -p "$learned" "$findings"
    [ -d "$seeds" ] || seeds=""
    program=$(find "$build" -type f -name "$target" -perm -u+x | head -n 1)
    echo "== $target, $seconds s"
    # First the seeds alone: a seed that fails must not depend on luck.
    # shellcheck disable=SC2086
    if ! "$program" -runs=0 -rss_limit_mb=1024 -artifact_prefix="$findings/" $seeds \
        >"$findings/log" 2>&1 ||
        ! "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 -max_len=65536 \
            -print_final_stats=1 -artifact_prefix="$findings/" "$learned" $seeds \
            >>"$findings/log" 2>&1; then
        failed="$failed $target"
        tail -n 40 "$findings/log"
    fi
    grep -E "^stat::number_of_executed_units|^#[0-9]+.*DONE" "$findings/log" || true
done
if [ -n "$failed" ]; then
    echo "findings in:$failed (inputs in $build/findings)" >&2
    exit 1
fi
