#!/usr/bin/env bash
# docs/reference.md equals the output of `sifr man --markdown`. To update it:
# build/sifr man --markdown > docs/reference.md
set -u
build=$(cd "${1:?usage: test_reference.sh BUILD}" && pwd)
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0}

"$build/sifr" man --markdown >"$work/reference.md" || exit 1
if ! diff -u "$root/docs/reference.md" "$work/reference.md"; then
    echo "docs/reference.md is out of date; update it with: $build/sifr man --markdown > $root/docs/reference.md"
    exit 1
fi
keys=$(grep -c '^| `[a-z]*\.[a-z0-9_]*` |' "$work/reference.md")
echo "$keys rows of configuration keys"
[ "$keys" -ge 80 ] # otherwise the tables are missing
