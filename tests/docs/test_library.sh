#!/usr/bin/env bash
# tests/docs/test_library.sh BUILD: the program in docs/library.md compiles as printed, runs on four
# ranks and finds the line.
set -eu
build=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sed -n '/^```c$/,/^```$/ { /^```/! p }' "$root/docs/library.md" >"$work/line.c"
flags=$(sed -n 's/^SIFR_SANITIZE:STRING=\(..*\)/-fsanitize=\1/p' "$build/CMakeCache.txt")
compiler=$(sed -n 's/^CMAKE_C_COMPILER:[A-Z]*=//p' "$build/CMakeCache.txt")
"$compiler" -Wall -Wextra -Werror $flags -I"$root/include" "$work/line.c" -L"$build" -lsifr -lm -Wl,-rpath,"$build" -o "$work/line"
"$work/line" >"$work/out"
grep -q '^loss 0\.0000.., w = 3\.00 -2\.00$' "$work/out" || { echo "it printed:"; cat "$work/out"; exit 1; }
echo "the program of docs/library.md runs"
