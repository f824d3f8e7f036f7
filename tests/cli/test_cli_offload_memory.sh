#!/usr/bin/env bash
# A model whose parameters, summed gradients and optimizer states need four times the memory of the
# machine, which is a limit here: of the account (run.device_memory) and, on top of what a tiny model
# needs, of the process (ulimit -d). It trains from disk, with the losses of a run without limits.
# Without offload it is refused. With parameters on disk as well it needs half of that memory. The
# model is that of docs/offload.md.
. "$(dirname "$0")/common.sh" "$@"
make_text >text.txt
limit=500000000 # bytes
disk=$(df --output=avail -k /var/tmp | tail -n 1) memory=$(sed -n 's/^MemAvailable: *\([0-9]*\) kB/\1/p' /proc/meminfo)
[ "$disk" -ge 4000000 ] || skip_all "2 GB of state: /var/tmp has only $disk KiB"
export TMPDIR=/var/tmp
run=(--data.path=text.txt --model.layers=36 --model.width=512 --model.heads=8 --model.context=64 --precision.mode=bf16
    --train.micro_batch=1 --train.global_batch=2 --train.steps=2 --engine.recompute=full --data.split=0 --no-checkpoint.last --quiet)
far=(--offload.optimizer=disk --offload.grads=disk --offload.window=16M)

# ulimit -d counts address space, touched or not. OpenBLAS takes a buffer for each thread (32 MiB on
# arm64, 128 MiB on x86-64) and touches little of it. So the process may have `limit` bytes on top of
# `base`, the least with which a tiny model trains on this machine. What the run touches must stay
# within `limit`, with what is touched of that.
base=0
limited() { # COMMAND...: in `base` + `limit` bytes; the stacks of threads count, too
    (ulimit -s 1024 && ulimit -d $(((base + limit) / 1024)) && exec timeout -s KILL 300 "$@")
}
trains_tiny() { # BYTES: enough for a tiny model
    limit=$1 limited "$sifr" train "${small[@]}" --data.path=text.txt --train.steps=1 --out=tiny --quiet >/dev/null 2>&1
}
is_resident() { # RUN: its memory that was touched, without pages of files, was within the limit
    local bytes
    bytes=$(sed -n 's/.*"process": {"resident": \([0-9]*\),.*/\1/p' "$1/summary.json")
    [[ $bytes -gt 0 && $bytes -le $limit ]] || fail "$1: $bytes bytes were resident, of $limit"
}
has_losses() { # RUN: those of the run without limits
    cmp -s <(losses plain) <(losses "$1") || fail "$1: other losses: $(diff <(losses plain) <(losses "$1"))"
}
need=32000000
until trains_tiny $need || [ $need -ge $limit ]; do
    need=$((need + 16000000))
done
[ $need -lt $limit ] || skip_all "this build needs more than $limit bytes for a tiny model (a sanitizer?)"
base=$need

expect 4 "a rank needs 2.0 GiB and run.device_memory allows 476.8 MiB; " "$sifr" train "${run[@]}" --run.device_memory=$limit --out=refused
expect 4 "out of memory: cannot take .*" limited "$sifr" train "${run[@]}" --out=refused
grep -q 'to need less memory, use .* offload.optimizer=disk offload.grads=disk offload.params=disk' err || fail "no hint: $(cat err)"
[ ! -e refused ] || fail "a run that did not start left a folder"

ok limited "$sifr" train "${run[@]}" "${far[@]}" --run.device_memory=$limit --out=far
is_resident far
params=$(sed -n 's/^ *"parameters": \([0-9]*\),/\1/p' far/summary.json)
[ $((18 * params)) -ge $((4 * limit)) ] || fail "the state of $params parameters is less than 4 x $limit bytes"
limit=250000000
expect 4 "a rank needs 326.[0-9] MiB and run.device_memory allows 238.4 MiB; " "$sifr" train "${run[@]}" "${far[@]}" --run.device_memory=$limit --out=refused
# half of it does not hold the parameters: with more, the stack of a thread may be what is refused
limit=$((limit / 2)) expect 4 "out of memory: cannot take .* params" limited "$sifr" train "${run[@]}" "${far[@]}" --out=refused
grep -q 'to need less memory, use more ranks with zero.stage=3, or offload.params=disk' err || fail "the hint names what is set: $(cat err)"
ok limited "$sifr" train "${run[@]}" "${far[@]}" --offload.params=disk --run.device_memory=$limit --out=params
is_resident params
[ $((18 * params)) -ge $((8 * limit)) ] || fail "the state of $params parameters is less than 8 x $limit bytes"

if [ "$memory" -ge 3000000 ]; then
    ok "$sifr" train "${run[@]}" --out=plain
    has_losses far
    has_losses params
else
    skip_part "the same run without limits: only $memory KiB of memory are free"
fi
finish
