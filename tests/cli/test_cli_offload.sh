#!/usr/bin/env bash
# Optimizer states, summed gradients and parameters on disk: a folder or a disk that cannot hold them is refused
# before the run begins, nothing is left in the folder, and a run that was killed resumes with the
# same bits, also with another placement. Faults of one rank in the middle of a step: tests/faults/run.
. "$(dirname "$0")/common.sh" "$@"
make_text >text.txt
faulty=$(dirname "$sifr")/sifr_faults # tests/faults/fault_hooks.c
keys=("${small[@]}" --train.global_batch=8 --data.path=text.txt --quiet)
far=(--offload.optimizer=disk --offload.grads=disk --offload.window=0 --offload.folder=far)
mkdir far
is_empty() { [ -z "$(ls -A far)" ] || fail "$1: files are left: $(ls -A far)"; }

# --- no place for the files ---------------------------------------------------------------------
refused() { # CODE PATTERN FLAG...: one error, and no folder of the run
    expect "$1" "^sifr: error: $2" "$sifr" train "${keys[@]}" --train.steps=3 --offload.optimizer=disk --offload.grads=disk --out=refused "${@:3}"
    [ "$(grep -c 'error: ' err)" = 1 ] || fail "expected one error: $(cat err)"
    [ ! -e refused ] || fail "a run that did not start left a folder: $*"
}
touch file
for ranks in 1 3; do
    refused 2 "(rank [0-9]: )?offload.folder: 'nowhere' is not a folder; create it, or name another$" --offload.folder=nowhere -n $ranks --zero.stage=2
done
refused 2 "offload.folder: 'file' is not a folder; create it, or name another$" --offload.folder=file
(ulimit -f 64 && refused 1 "cannot reserve [0-9.]+ KiB in 'far' for .*: File too large; .* is free there: raise the limit of file sizes \(ulimit -f\)" --offload.folder=far && exit $failures) ||
    failures=$((failures + 1))
mkdir tiny
if mount -t tmpfs -o size=200k none tiny 2>/dev/null; then
    refused 1 "cannot reserve [0-9.]+ KiB in 'tiny' for .*: No space left on device; 200.0 KiB is free there: free some space, name a folder on another disk" \
        --offload.folder=tiny
    # files in memory save none
    mount -o remount,size=16M tiny
    ok "$sifr" train "${keys[@]}" --train.steps=1 --offload.optimizer=disk --offload.folder=tiny --out=in-memory
    [ "$(grep -c "warning: offload.folder: files in 'tiny' are in memory (tmpfs), which saves none; name a folder on a disk" err)" = 1 ] ||
        fail "no warning about a tmpfs: $(cat err)"
    umount tiny
else
    skip_part "a disk that is too small: no file system can be mounted here"
fi
# parameters alone
only_params=(--offload.optimizer=none --offload.grads=none --offload.params=disk)
refused 2 "offload.folder: 'nowhere' is not a folder; create it, or name another$" "${only_params[@]}" --offload.folder=nowhere
(ulimit -f 64 && refused 1 "cannot reserve [0-9.]+ KiB in 'far' for params 'params' .*: File too large; .* is free there: raise the limit of file sizes \(ulimit -f\)" \
    "${only_params[@]}" --offload.folder=far && exit $failures) || failures=$((failures + 1))
TMPDIR=$work/nowhere refused 2 "offload.folder: '$work/nowhere' is not a folder" # the default
is_empty "refused runs"

# --- kill -9 --------------------------------------------------------------------------------------
steps=(--train.steps=12 --checkpoint.every=3)
ok "$sifr" train "${keys[@]}" "${steps[@]}" --out=plain
killed_and_resumed() { # NAME FLAG... : FLAG...: of the run that is killed in step 8, and of the one that resumes it
    local name=$1 first=() code=0
    shift
    while [ "$1" != : ]; do first+=("$1"); shift; done
    FAULT="$rank kill step 8, block 1 forward" "$faulty" train "${keys[@]}" "${steps[@]}" --out="$name" "${first[@]}" >out 2>err || code=$?
    [ $code = 137 ] || fail "$name: exit $code, not 137: $(cat err)"
    is_empty "$name"
    ls "$name"/checkpoints/step-*/COMPLETE >/dev/null || fail "$name: no checkpoint: $(cat err)"
    ok "$sifr" inspect "$name" --verify
    ok "$sifr" train "${keys[@]}" "${steps[@]}" --out="$name" "${@:2}"
    ! grep -q 'will differ' err || fail "$name: a placement is said to change the run: $(cat err)"
    cmp -s <(losses plain) <(losses "$name") || fail "$name: other losses: $(diff <(losses plain) <(losses "$name") | head -4)"
    same_state plain "$name" 12 "$name"
    is_empty "$name"
}
rank=-1 killed_and_resumed one "${far[@]}" : "${far[@]}"
rank=1 killed_and_resumed threads "${far[@]}" -n 2 --comm.backend=threads --zero.stage=2 : -n 3 --comm.backend=threads --zero.stage=3 "${far[@]}" --offload.share=0.4
rank=0 killed_and_resumed to-memory "${far[@]}" -n 2 --comm.backend=threads --zero.stage=3 : --zero.stage=0
rank=-1 killed_and_resumed to-disk --zero.stage=0 : "${far[@]}" --offload.grads=none
params=(--offload.params=disk --offload.folder=far) # in fp32, where they are their own masters
rank=-1 killed_and_resumed params "${params[@]}" : "${params[@]}" --zero.prefetch=2
rank=1 killed_and_resumed params-threads "${params[@]}" -n 2 --comm.backend=threads --zero.stage=1 : "${far[@]}" "${params[@]}" -n 3 --comm.backend=threads --zero.stage=2
rank=0 killed_and_resumed params-to-memory "${far[@]}" "${params[@]}" -n 2 --comm.backend=threads --zero.stage=0 : --zero.stage=0

# --- parameters that cannot be read ---------------------------------------------------------------
for ranks in 1 2; do
    code=0
    FAULT="$((ranks == 1 ? -1 : 0)) disk step 4, block 1 forward" "$faulty" train "${keys[@]}" "${steps[@]}" -n $ranks --comm.backend=threads --out=broken-$ranks "${params[@]}" >out 2>err || code=$?
    [ $code = 1 ] || fail "a disk that fails, $ranks ranks: exit $code, not 1: $(cat err)"
    grep -qE "^sifr: error: (rank [01]: )?cannot read params 'params' on disk: Input/output error, at byte [0-9]+ of its file in 'far'; check that disk .*\(offload.folder\)$" err ||
        fail "a disk that fails: $(cat err)"
    is_empty "a disk that fails"
    ok "$sifr" train "${keys[@]}" "${steps[@]}" --out=broken-$ranks "${params[@]}"
    same_state plain broken-$ranks 12 "resumed after a disk has failed, $ranks ranks"
done

# --- saves in the foreground ------------------------------------------------------------------------
# Workers hold no state, so they read none for a save. Updates are pending then, and servers wait for
# the workers' part of the gathers.
for stage in 1 2 3; do
    ok timeout 100 "$sifr" train "${keys[@]}" "${steps[@]}" --no-checkpoint.async -n 3 --comm.backend=threads --zero.stage=$stage --zero.servers=2 "${far[@]}" \
        --out=servers-$stage
    same_state plain servers-$stage 12 "servers, stage $stage"
    ok timeout 100 "$sifr" train "${keys[@]}" "${steps[@]}" --no-checkpoint.async -n 3 --comm.backend=threads --zero.stage=$stage --zero.servers=1 "${params[@]}" \
        --out=params-$stage
    same_state plain params-$stage 12 "servers, parameters on disk, stage $stage"
done

# --- sums of which some stay ------------------------------------------------------------------------
# One rank and one micro-batch: the sum of a tied matrix stays and is its own gradient; its unit sends nothing to the disk.
one=(--model.layers=1 --model.width=24 --model.heads=1 --model.context=18 --train.micro_batch=2 --train.global_batch=2 --train.steps=3 --data.path=text.txt --quiet)
for model in '--model.arch=llama --model.tied=yes --train.freeze=*norm*' '--model.arch=sars' '--model.arch=sars --precision.mode=bf16'; do
    ok "$sifr" train "${one[@]}" $model --out=near --fresh
    ok "$sifr" train "${one[@]}" $model --offload.grads=disk --offload.folder=far --out=some-far --fresh
    same_state near some-far 3 "sums of which some stay, $model"
done

# --- stopped --------------------------------------------------------------------------------------
stops_by INT stopped "${far[@]}"
is_empty stopped
finish
