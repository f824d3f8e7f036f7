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
loads() { # KB: the libraries can be loaded
    local code=0
    limited "$1" "$sifr" --version >/dev/null 2>&1 || code=$?
    [ $code != 127 ]
}
train=("$sifr" train "${small[@]}" --data.path=text.txt --train.steps=2 --quiet)

if ! limited 1000000 "$sifr" --version >/dev/null 2>&1; then
    echo "skipped: this build does not run with 1 GB of address space (a sanitizer?)"
    exit 0
fi

# The size of the libraries depends on the machine, so the limits start from the lowest with which
# they can be loaded. OpenBLAS then lacks a buffer: the command must see 129 MiB (132096 kB) first.
low=20000
until loads $low; do
    low=$((low + 2000))
done
for more in 2000 20000 40000 60000 90000 120000; do
    expect 4 'out of memory.*BLAS.*ulimit -v' limited $((low + more)) "${train[@]}" --out=run-$more
    [ ! -e run-$more/checkpoints ] || fail "$low + $more: a checkpoint was saved"
done

# with more memory: the command runs, or exits with 4 and a message
for more in 135000 160000 200000 250000 300000; do
    code=0
    limited $((low + more)) "${train[@]}" --out=run-$more >out 2>err || code=$?
    [[ $code =~ ^[04]$ ]] || fail "$low + $more: exit $code: $(cat err)"
    [ $code = 0 ] || grep -q 'out of memory' err || fail "$low + $more: no message: $(cat err)"
done
ok limited 1000000 "${train[@]}" --out=run
expect 4 'out of memory' limited $((low + 60000)) "$sifr" eval run
expect 4 'out of memory' limited $((low + 60000)) "$sifr" sample run The
finish
