#!/usr/bin/env bash
# tests/lib/test_bind.sh BUILD: a program of the library under mpirun keeps to CPUs of its own with
# sifr_job.bind, and only with it.
set -eu
build=$(cd "$1" && pwd)
. "$(dirname "$0")/mpirun.sh"
unset OMP_PROC_BIND OMP_PLACES OMP_NUM_THREADS
[ "$(nproc)" -ge 2 ] || { echo "SKIPPED: ranks cannot have cores of their own on one CPU"; exit 77; }

numbers() { # the CPUs of lists as in "0-3,8"
    tr ',' '\n' | sed 's/-/ /' | while read -r first last; do seq "$first" "${last:-$first}"; done | sort -n | tr '\n' ' '
}
cpus() { # BIND RANK: the CPUs of a rank of two
    timeout 60 $mpirun -n 2 "$build/test_sifr_bind" "$1" | sed -n "s/^rank $2 of 2: //p"
}
expect() { # WHAT FOUND WANTED
    [ "$(numbers <<<"$2")" = "$(numbers <<<"$3")" ] || { echo "FAILED: $1: CPUs $2, not $3"; exit 1; }
}
all=$(taskset -cp $$ | sed 's/.*: //')
expect "nobody asked" "$(cpus 0 0)" "$all"
expect "nobody asked" "$(cpus 0 1)" "$all"
first=$(cpus 1 0) second=$(cpus 1 1)
[ -n "$first" ] && [ -n "$second" ] || { echo "FAILED: a rank has no CPUs"; exit 1; }
expect "both ranks" "$first,$second" "$all"
echo "rank 0 has CPUs $first, rank 1 $second"
