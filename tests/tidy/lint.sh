#!/usr/bin/env bash
# lint.sh BUILD - clang-format, clang-tidy and cppcheck over the product's sources; exits 1 on a
# finding.  An exception stands in its line with the reason (NOLINT, cppcheck-suppress).
# BUILD need only be configured, with gcc or clang; nothing is compiled.
set -euo pipefail
build=$(realpath "${1:?build folder with compile_commands.json}")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
root=$PWD
status=0
mapfile -t sources < <(git ls-files '*.c' '*.h' | grep -v '^tests/fixtures/')
mapfile -t product < <(git ls-files 'proto/*.c' 'config/*.c' 'scheduler/*.c' 'models/*.c' 'kernels/*.c' 'gpu/*.c' \
    'log/*.c' 'actors/*.c' 'kit/*.c' 'cli/*.c')

# clang-tidy guesses the flags of a file that the build does not know, and then finds errors that
# are none (a missing -D, a missing -I).
[ -f "$build/compile_commands.json" ] || { echo "lint: $build is not configured" >&2; exit 1; }
# The CUDA device needs the toolkit's headers: only a build with ONEPATH_CUDA knows its files.
if ! grep -q "gpu/device/cuda/" "$build/compile_commands.json"; then
    echo "lint: gpu/device/cuda is left out, $build has no CUDA"
    mapfile -t product < <(printf '%s\n' "${product[@]}" | grep -v '^gpu/device/cuda/')
fi
for file in "${product[@]}"; do
    if ! grep -qF "\"file\": \"$root/$file\"" "$build/compile_commands.json"; then
        echo "lint: $file is not in $build/compile_commands.json; configure it again" >&2
        exit 1
    fi
done

echo "clang-format: ${#sources[@]} files"
clang-format --dry-run -Werror "${sources[@]}" || status=1

# The mutants and planted violations of the tests compile the same files again; the analysis of one
# command a file, the plain one, is enough (all of them took twice the time).
database=$(mktemp -d)
trap 'rm -rf "$database"' EXIT
python3 - "$build/compile_commands.json" >"$database/compile_commands.json" <<'PY'
import json, sys
plain = {}
for entry in json.load(open(sys.argv[1])):
    known = plain.get(entry["file"])
    if known is None or len(entry["command"]) < len(known["command"]):
        plain[entry["file"]] = entry
json.dump(list(plain.values()), sys.stdout)
PY

# One file each, its output kept together and shown only if there is something to show.  The flags
# are those of the build's compiler, of which clang may not know every warning.
tidy() {
    local output
    output=$(clang-tidy -p "$1" --quiet --warnings-as-errors='*' \
        --extra-arg=-Wno-unknown-warning-option "$2" 2>&1) && return 0
    printf '%s\n' "$output"
    return 1
}
export -f tidy
echo "clang-tidy: ${#product[@]} files"
printf '%s\n' "${product[@]}" |
    xargs -P "$(nproc)" -I '{}' bash -c 'tidy "$0" "$1"' "$database" '{}' || status=1

echo "cppcheck: ${#product[@]} files"
cppcheck --quiet --std=c11 --enable=warning,portability,performance --inline-suppr --error-exitcode=1 \
    --suppress=missingIncludeSystem --suppress=unknownMacro --suppress=checkersReport -j "$(nproc)" \
    --suppressions-list=tests/tidy/cppcheck.txt \
    $(printf -- '-I %s ' proto config scheduler models kernels gpu/* log actors/* kit cli) "${product[@]}" || status=1

[ $status -eq 0 ] && echo "lint: no findings"
exit $status
