#!/usr/bin/env bash
# The environment of the process: closed standard files, limits on files and memory, pipes in place
# of files, signals.
. "$(dirname "$0")/common.sh" "$@"
make_text >text.txt
keys=("${small[@]}" --data.path=text.txt --train.steps=4)

# closed standard files: output must not end up in files of the run
"$sifr" train "${keys[@]}" --train.sample_every=2 --out=closed <&- >&- 2>&- || fail "closed standard files: exit $?"
is_json closed/metrics.jsonl
is_json closed/samples.jsonl
[ "$(wc -l <closed/metrics.jsonl)" = 4 ] || fail "closed standard files: not 4 steps in metrics.jsonl"

# a file over the limit: the write fails with a message; SIGXFSZ does not kill the process
limited() { (ulimit -f 100 && "$sifr" train "${keys[@]}" --model.width=128 --quiet --out=limited); }
expect 1 "(File too large|cannot write)" limited

# too little memory: exit code 4, and advice how to need less
export ASAN_OPTIONS=$ASAN_OPTIONS:allocator_may_return_null=1
expect 4 "(cannot take|needs) [0-9.]+ [TGP]iB" "$sifr" train "${keys[@]}" --train.micro_batch=1M --model.width=1024 \
    --model.layers=64 --quiet --out=large
grep -qE "(micro_batch|recompute|ranks|stage)" err || fail "no advice: $(cat err)"

# a pipe without a writer is refused, not waited for
mkfifo pipe
expect 2 "pipe.*not a plain file" timeout 20 "$sifr" train "${small[@]}" --data.path=pipe --quiet --out=piped
[ ! -e piped ] || fail "a refused pipe left a folder"

# A second Ctrl-C ends the process immediately. Two at the same moment count as one: timeout sends a
# signal to the process and to its group. Repeated SIGTERM has no further effect.
"$sifr" train --model.layers=2 --model.width=512 --model.heads=8 --model.context=1024 --train.micro_batch=8 \
    --train.global_batch=512 --data.path=text.txt --data.split=0 --train.steps=1000 --out=twice >out 2>err &
pid=$!
wait_for test -e twice/config.yaml
sleep 0.5
kill -TERM $pid
sleep 0.2
kill -TERM $pid
kill -INT $pid $pid
sleep 0.5
kill -0 $pid 2>/dev/null || fail "TERM twice, or INT twice at the same moment, ended it"
start=$SECONDS
wait_for interrupt $pid INT
code=0
wait $pid || code=$?
[ $code = 1 ] || fail "INT again: exit $code, not 1"
[ $((SECONDS - start)) -le 30 ] || fail "INT again: took $((SECONDS - start)) s to quit"
finish
