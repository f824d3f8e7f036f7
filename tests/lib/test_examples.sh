#!/usr/bin/env bash
# tests/lib/test_examples.sh BUILD: each example trains the same parameters, to the bit, on any
# number of ranks, at every stage, in pipelines, with servers, with recomputation and under mpirun;
# and checking mode finds nothing. A few steps of small models.
set -eu
build=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$(dirname "$0")/mpirun.sh"
failed=0 runs=0

# same REFERENCE COMMAND...: the command saves the same parameters as the first one with this
# reference, and prints the same lines but for the one that names the ranks.
same() {
    local reference=$work/$1
    shift
    runs=$((runs + 1))
    rm -f "$work/saved"
    if ! timeout 120 "$@" --save "$work/saved" >"$work/out" 2>&1; then
        echo "FAILED: $*"
        tail -n 5 "$work/out"
        failed=$((failed + 1))
        return
    fi
    grep -E '^(step|accuracy)' "$work/out" >"$work/lines" || true
    if [ ! -e "$reference" ]; then
        mv "$work/saved" "$reference"
        mv "$work/lines" "$reference.lines"
    elif ! cmp "$reference" "$work/saved" || ! cmp "$reference.lines" "$work/lines"; then
        echo "DIFFERS: $*"
        failed=$((failed + 1))
    fi
}

# layouts NAME COMMAND...: one example in all layouts
layouts() {
    local name=$1
    shift
    same "$name" "$@"
    for stage in 0 1 2 3; do
        same "$name" "$@" --ranks 2 --stage $stage
        same "$name" "$@" --ranks 4 --stage $stage
    done
    same "$name" "$@" --ranks 3 --stage 3 --prefetch 2 --recompute
    same "$name" "$@" --ranks 3 --stage 2 --servers 1
    for schedule in 0 1 2 3; do
        same "$name" "$@" --ranks 2 --pipeline 2 --schedule $schedule
    done
    same "$name" "$@" --ranks 4 --stage 1 --pipeline 2 --schedule 3 --recompute
    same "$name" $mpirun -n 3 "$@" --stage 3
    SIFR_CHECKED=1 same "$name" "$@" --ranks 2 --stage 3
    SIFR_CHECKED=1 same "$name" "$@" --ranks 2 --pipeline 2 --schedule 3 --recompute
    same "$name.bf16" "$@" --bf16
    same "$name.bf16" "$@" --bf16 --ranks 3 --stage 3
    same "$name.bf16" "$@" --bf16 --ranks 4 --stage 2 --pipeline 2 --schedule 3
}

text=$(cd "$(dirname "$0")/../../examples" && pwd)/ngram.c
layouts ngram "$build/example_ngram" "$text" --steps 2
layouts classifier "$build/example_classifier" --steps 4
layouts gpt2 "$build/example_gpt2" "$text" --steps 3 --width 32 --context 16 --batch 2
[ $failed = 0 ] || { echo "$failed of $runs runs failed"; exit 1; }
echo "$runs runs, the same bits"
