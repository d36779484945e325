#!/usr/bin/env bash
# lint.sh BUILD - clang-format, clang-tidy and cppcheck over the product's sources; exits 1 on a
# finding.  An exception stands in its line with the reason (NOLINT, cppcheck-suppress).
set -euo pipefail
build=$(realpath "${1:?build folder with compile_commands.json}")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
status=0
mapfile -t sources < <(git ls-files '*.c' '*.h' | grep -v '^tests/fixtures/')
mapfile -t product < <(git ls-files 'proto/*.c' 'scheduler/*.c' 'models/*.c' 'kernels/*.c' 'gpu/*.c' \
    'actors/*.c' 'cli/*.c')

echo "clang-format: ${#sources[@]} files"
clang-format --dry-run -Werror "${sources[@]}" 2>&1 | tail -n 40 || true
clang-format --dry-run -Werror "${sources[@]}" 2>/dev/null || status=1

echo "clang-tidy: ${#product[@]} files"
printf '%s\n' "${product[@]}" | xargs -P "$(nproc)" -n 8 clang-tidy -p "$build" --quiet \
    --warnings-as-errors='*' 2>/dev/null || status=1

echo "cppcheck: ${#product[@]} files"
cppcheck --quiet --std=c11 --enable=warning,portability,performance --inline-suppr --error-exitcode=1 \
    --suppress=missingIncludeSystem --suppress=unknownMacro --suppress=checkersReport -j "$(nproc)" \
    --suppressions-list=tests/tidy/cppcheck.txt \
    $(printf -- '-I %s ' proto scheduler models kernels gpu/* actors/* cli) "${product[@]}" || status=1

[ $status -eq 0 ] && echo "lint: no findings"
exit $status
