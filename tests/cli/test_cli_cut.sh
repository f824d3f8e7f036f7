#!/usr/bin/env bash
# A data file is truncated while it is mapped: the error names it, the state of the last step is
# saved, and the run never trains on the zeros behind the end.
. "$(dirname "$0")/common.sh" "$@"
make_text >text.txt
ok "$sifr" tokenize text.txt --out=tokens
whole=$(find tokens -name '*.bin' -size +8k | head -1)
[ -n "$whole" ] || fail "no shard of more than two pages: $(ls -l tokens)"
bytes=$(stat -c %s "$whole")
train=("$sifr" train "${small[@]}" --train.steps=1000000 --train.global_batch=8 --data.split=0 --checkpoint.every=0)

# cut_in_use NAME BYTES FLAGS...: truncate the file to BYTES in the middle of a run
cut_in_use() {
    local name=$1 left=$2 pid code=0
    shift 2
    cp "$whole" "$name.bin"
    "${train[@]}" --data.path="$name.bin" "$@" --out="run-$name" >out 2>err &
    pid=$!
    wait_for is_under_way "run-$name" $pid
    truncate -s "$left" "$name.bin"
    wait $pid || code=$?
    [ $code = 1 ] || fail "$name: exit $code, not 1: $(tail -3 err)"
    grep -q "error: .*cannot read '.*$name.bin': it was truncated from $bytes to $left bytes" err || fail "$name: the file is not named: $(cat err)"
    grep -q "stopped after step [0-9]*: saved in" err || fail "$name: not saved: $(cat err)"
}

cut_in_use none 0 -n1
# with the file restored, the run resumes, with the bits of an uninterrupted run
cp "$whole" none.bin
last=$(sed -n 's/.*"steps": \([0-9]*\).*/\1/p' run-none/summary.json | head -1)
stop=$((last + 2))
expect 75 "resuming after step $last from" "${train[@]}" --data.path=none.bin --train.stop_at=$stop --out=run-none
expect 75 'stopped' "${train[@]}" --data.path=none.bin --train.stop_at=$stop --out=run-sound
cmp run-none/checkpoints/step-$stop/model.safetensors run-sound/checkpoints/step-$stop/model.safetensors ||
    fail "the run whose data was truncated and restored has other weights"

cut_in_use half $((bytes / 2)) -n1
cut_in_use inside-a-page $((bytes - 2)) -n1 # the rest of the page reads as zeros, without a signal
cut_in_use two $((bytes / 2)) -n2
cut_in_use threads 0 -n2 --comm.backend=threads

# The tokens of text are in a cache file of the run folder: the error names that file, not the text.
for left in 4096 inside; do
    run=run-cache-$left
    "${train[@]}" -n1 --data.path=text.txt --out=$run >out 2>err &
    pid=$! code=0
    wait_for is_under_way $run $pid
    cache=$(echo $run/cache/tokens-*.bin)
    bytes=$(stat -c %s "$cache")
    [ $left != inside ] || left=$((bytes - 2))
    truncate -s "$left" "$cache"
    wait $pid || code=$?
    [ $code = 1 ] || fail "$run: exit $code, not 1: $(tail -3 err)"
    grep -q "error: .*cannot read '$cache': it was truncated from $bytes to $left bytes" err || fail "$run: the cache is not named: $(cat err)"
    grep -q "stopped after step [0-9]*: saved in" err || fail "$run: not saved: $(cat err)"
done

finish
