#!/usr/bin/env bash
# A memory limit that is too low for the libraries: exit code 4 and a message, no hang, whatever
# OpenBLAS does when an allocation fails.
. "$(dirname "$0")/common.sh" "$@"
make_text >text.txt

limited() { # KB COMMAND...: a hang ends with code 137
    local kb=$1
    shift
    (ulimit -v "$kb" && exec timeout -s KILL 60 "$@")
}
train=("$sifr" train "${small[@]}" --data.path=text.txt --train.steps=2 --quiet)

if ! limited 1000000 "$sifr" --version >/dev/null 2>&1; then
    echo "skipped: this build does not run with 1 GB of address space (a sanitizer?)"
    exit 0
fi
for kb in 40000 60000 80000 100000 130000; do
    expect 4 'out of memory.*BLAS.*ulimit -v' limited $kb "${train[@]}" --out=run-$kb
    [ ! -e run-$kb/checkpoints ] || fail "$kb: a checkpoint was saved"
done

# with more memory: the command runs, or exits with 4 and a message
for kb in 150000 200000 250000 300000 1000000; do
    code=0
    limited $kb "${train[@]}" --out=run-$kb >out 2>err || code=$?
    [[ $code =~ ^[04]$ ]] || fail "$kb: exit $code: $(cat err)"
done
[ -e run-1000000/summary.json ] || fail "1 GB is not enough: $(cat err)"
expect 4 'out of memory' limited 100000 "$sifr" eval run-1000000
expect 4 'out of memory' limited 100000 "$sifr" sample run-1000000 The
finish
