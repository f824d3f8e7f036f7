#!/usr/bin/env bash
# A signal in the middle of a run: all of it is saved, the exit code is 75, the same command goes on. Twice: it quits at once.
. "$(dirname "$0")/common.sh" "$@"
make_text >text.txt

for signal in INT TERM USR1; do
    # background jobs of a script ignore SIGINT unless they ask for it, as a terminal's foreground job would get it
    "$sifr" train "${small[@]}" --data.path=text.txt --train.steps=1000000 --out="run-$signal" >out 2>err &
    pid=$!
    wait_for is_under_way "run-$signal" $pid
    kill -$signal $pid
    code=0
    wait $pid || code=$?
    [ $code = 75 ] || fail "$signal: exit $code, not 75: $(tail -3 err)"
    grep -q "stopped after step [0-9]*: all of it is in .*; the same command goes on" err || fail "$signal: not said: $(tail -3 err)"
    grep -q '"end": "stopped"' "run-$signal/summary.json" || fail "$signal: no summary.json that says stopped"
    ok "$sifr" sample "run-$signal" "The" --tokens=3
    [ "$(wc -l <"run-$signal/metrics.jsonl")" = "$(sed -n 's/.*"steps": \([0-9]*\).*/\1/p' "run-$signal/summary.json" | head -1)" ] ||
        fail "$signal: metrics.jsonl and summary.json count other steps"
    ! grep -q $'\r' out || fail "$signal: carriage returns"
done

# while a vocabulary is learnt: it ends at once and leaves nothing
head -c 12000000 /dev/urandom | base64 -w 60 >noise.txt
"$sifr" train "${small[@]}" --data.path=noise.txt --data.tokenizer=train:60000 --out=learning >out 2>err &
pid=$!
wait_for takes_signals $pid
sleep 1
start=$SECONDS code=0
kill -INT $pid
wait $pid || code=$?
[ $code = 1 ] || fail "learning: exit $code, not 1: $(tail -3 err)"
[ $((SECONDS - start)) -le 30 ] || fail "learning: took $((SECONDS - start)) s to stop"
[ ! -e learning ] || fail "learning: a folder was left: $(ls learning)"
rm noise.txt

# a large step is being computed: the second Ctrl-C does not wait for it
"$sifr" train --model.layers=2 --model.width=512 --model.heads=8 --model.context=1024 --train.micro_batch=8 \
    --train.global_batch=512 --data.path=text.txt --data.split=0 --train.steps=1000 --out=twice >out 2>err &
pid=$!
wait_for test -e twice/config.yaml
sleep 0.5
kill -INT $pid
sleep 0.3
start=$SECONDS
wait_for interrupt $pid # again and again: on a loaded machine two may come so close that they count as one
code=0
wait $pid || code=$?
[ $code = 1 ] || fail "twice: exit $code, not 1"
[ $((SECONDS - start)) -le 30 ] || fail "twice: took $((SECONDS - start)) s to quit"
[ ! -e twice/summary.json ] || fail "twice: it did not quit at once"
finish
