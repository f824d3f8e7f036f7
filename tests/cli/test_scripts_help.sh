#!/usr/bin/env bash
# Every script of bench/ and scripts/ prints its usage for --help, and does nothing else.
root=$(cd "$(dirname "$0")/../.." && pwd)
. "$(dirname "$0")/common.sh" "$@"
tried=0
for script in "$root"/bench/* "$root"/scripts/*; do
    name=${script#"$root"/}
    [ -f "$script" ] && [ -x "$script" ] || continue
    # a script that ignores --help would start to build, measure or install
    grep -qE -- '--help\)|"--help"|ArgumentParser\(' "$script" || { fail "$name does not handle --help"; continue; }
    case $(head -n 1 "$script") in *python3) has_program python3 "$name" || continue ;; esac
    tried=$((tried + 1))
    ok timeout 60 "$script" --help
    grep -qE "^(usage: .*${name##*/}|$name)" out || fail "$name --help does not begin with its usage: $(head -c 400 out)"
    [ ! -s err ] || fail "$name --help: $(head -c 400 err)"
done
[ $tried -ge 10 ] || fail "only $tried scripts were found"
finish
