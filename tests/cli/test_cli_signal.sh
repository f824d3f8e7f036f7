#!/usr/bin/env bash
# A signal in the middle of a run: the run is saved, the exit code is 75, and the same command
# resumes it. A second Ctrl-C ends it immediately.
. "$(dirname "$0")/common.sh" "$@"
make_text >text.txt
more_lines() { [ "$(wc -l <"$1")" -ge "$2" ] || has_ended $pid; }

for signal in INT TERM USR1 HUP '-n2 INT' '-n2 TERM' '-n2 HUP'; do
    # bash starts background jobs with SIGINT ignored; sifr installs its handler all the same
    ranks=-n1
    [ "$signal" = "${signal#-n2 }" ] || ranks=-n2
    signal=${signal#-n2 }
    rm -rf "run-$signal"
    # the caller of the tests may ignore SIGHUP
    env --default-signal=HUP "$sifr" train "${small[@]}" --data.path=text.txt --train.steps=1000000 $ranks --train.global_batch=8 \
        --out="run-$signal" >out 2>err &
    pid=$!
    wait_for is_under_way "run-$signal" $pid
    kill -$signal $pid
    code=0
    wait $pid || code=$?
    [ $code = 75 ] || fail "$signal: exit $code, not 75: $(tail -3 err)"
    grep -q "stopped after step [0-9]*: saved in .*; rerun the same command to resume" err || fail "$signal: no message about the stop: $(tail -3 err)"
    [ "$(grep -c '^sifr: stopping after this step; the run will be saved' err)" = 1 ] || fail "$signal $ranks: not acknowledged exactly once: $(cat err)"
    [ "$(grep -c '^sifr: stop' err)" = 1 ] || fail "$signal $ranks: two different acknowledgements: $(cat err)"
    grep -q '"end": "stopped"' "run-$signal/summary.json" || fail "$signal: summary.json does not say stopped"
    ok "$sifr" sample "run-$signal" "The" --tokens=3
    [ "$(wc -l <"run-$signal/metrics.jsonl")" = "$(sed -n 's/.*"steps": \([0-9]*\).*/\1/p' "run-$signal/summary.json" | head -1)" ] ||
        fail "$signal: metrics.jsonl and summary.json have different steps"
    ! grep -q $'\r' out || fail "$signal: carriage returns"
done

# under nohup, SIGHUP is ignored at the start and stays so in all ranks
for ranks in -n1 -n2; do
    env --ignore-signal=HUP "$sifr" train "${small[@]}" --data.path=text.txt --train.steps=1000000 $ranks --train.global_batch=8 --out=hup$ranks >out 2>err &
    pid=$!
    wait_for is_under_way hup$ranks $pid
    for process in $(processes_in "$work"); do
        case $(cat "/proc/$process/comm" 2>/dev/null) in sifr*) kill -HUP "$process" ;; esac
    done
    done=$(wc -l <hup$ranks/metrics.jsonl)
    wait_for more_lines hup$ranks/metrics.jsonl $((done + 20))
    has_ended $pid && fail "nohup $ranks: SIGHUP ended the run: $(cat err)"
    kill -TERM $pid
    code=0
    wait $pid || code=$?
    [ $code = 75 ] || fail "nohup $ranks: exit $code, not 75: $(tail -3 err)"
    [ "$(grep -c '^sifr: stopping' err)" = 1 ] || fail "nohup $ranks: not acknowledged exactly once: $(cat err)"
done

# --quiet: only the warning that the run has stopped
for ranks in -n1 -n2; do
    "$sifr" train "${small[@]}" --data.path=text.txt --train.steps=1000000 $ranks --train.global_batch=8 --quiet --out=quiet$ranks >out 2>err &
    pid=$!
    wait_for is_under_way quiet$ranks $pid
    kill -INT $pid
    code=0
    wait $pid || code=$?
    [ $code = 75 ] || fail "--quiet $ranks: exit $code, not 75: $(tail -3 err)"
    [ ! -s out ] && [ "$(wc -l <err)" = 1 ] && grep -q '^sifr: warning: stopped after step' err || fail "--quiet $ranks: $(cat out err)"
done

# the last line is the command that resumes the run, quoted for a shell, and without --fresh
"$sifr" train "${small[@]}" --data.path=text.txt --train.steps=1000000 --fresh --out="it's here" >out 2>err &
pid=$!
wait_for is_under_way "it's here" $pid
kill -TERM $pid
wait $pid || true
grep -q "stopped after step [0-9]*: saved in .*; rerun the same command without --fresh to resume" err || fail "--fresh: $(tail -1 err)"
again=$(tail -1 out | sed -n 's/^  next      sifr //p')
[ -n "$again" ] && [[ $again != *--fresh* ]] || fail "the command to resume is not the last line: $(tail -1 out)"
last=$(wc -l <"it's here/metrics.jsonl")
eval "\"$sifr\" $again --train.stop_at=$((last + 2))" >out 2>err || true
grep -q "resuming after step $last from" err || fail "'$again' does not resume: $(cat err)"
grep -q "^  next      rerun the same command with a larger train.stop_at" out || fail "train.stop_at: no advice how to resume: $(tail -1 out)"
expect 75 "rerun without --fresh and with a larger train.stop_at, or none, to resume" "$sifr" train "${small[@]}" --data.path=text.txt --train.stop_at=1 --fresh --out=fresh
grep -q "^  next      rerun the same command without --fresh and with a larger train.stop_at, or none, to resume" out || fail "--fresh, train.stop_at: $(tail -1 out)"

# before the first step, or soon after it: one line about the outcome, never two that contradict
for wait in 0 0.05 0.2 0.5; do
    rm -rf early
    "$sifr" train --model.layers=6 --model.width=384 --model.heads=6 --model.context=64 --train.micro_batch=1 --data.path=text.txt \
        --train.steps=1000000 --out=early >out 2>err &
    pid=$!
    wait_for takes_signals $pid
    sleep $wait
    code=0
    kill -TERM $pid
    wait $pid || code=$?
    [ $code = 75 ] || fail "early: exit $code, not 75: $(cat err)"
    if grep -q 'stopped before the first step: there is nothing to save yet' err; then
        [ "$(grep -vcE 'sifr: stopping (before the first|after this) step' err)" = 1 ] || fail "early: more than one line: $(cat err)"
    else
        grep -q 'stopped after step' err || fail "early: no message: $(cat err)"
    fi
done

# while sifr checks whether a deep model fits: no message about a step, no folder, and it stops soon
deep=(--model.layers=20000 --model.width=16 --model.heads=1 --model.context=8 --train.micro_batch=1 --data.path=text.txt --data.split=0)
for flags in -n1 --restarts=1; do
    "$sifr" train "${deep[@]}" $flags --out=deep >out 2>err &
    pid=$!
    wait_for takes_signals $pid
    kill -TERM $pid
    start=$SECONDS code=0
    wait $pid || code=$?
    [ $code = 75 ] || fail "deep $flags: exit $code, not 75: $(cat err)"
    [ "$(grep -c '^sifr: stopping before the first step$' err)" = 1 ] || fail "deep $flags: not acknowledged: $(cat err)"
    [ "$(grep -c 'step' err)" = 2 ] && grep -q 'stopped before the first step: there is nothing to save yet' err || fail "deep $flags: wrong messages: $(cat err)"
    [ $((SECONDS - start)) -le 30 ] || fail "deep $flags: took $((SECONDS - start)) s to stop"
    [ ! -e deep ] || fail "deep $flags: a folder was left: $(ls deep)"
done

# while a vocabulary is learned: the command ends soon and leaves nothing
head -c 12000000 /dev/urandom | base64 -w 60 >noise.txt
"$sifr" train "${small[@]}" --data.path=noise.txt --data.tokenizer=train:60000 --out=learning >out 2>err &
pid=$!
wait_for takes_signals $pid
sleep 1
start=$SECONDS code=0
kill -INT $pid
wait $pid || code=$?
[ $code = 75 ] || fail "learning: exit $code, not 75: $(tail -3 err)"
[ "$(grep -vc '^sifr: stopping before the first step; press Ctrl-C again to terminate immediately$' err)" = 1 ] && grep -q 'stopped while training a vocabulary: nothing was saved' err || fail "learning: not one clear line: $(cat err)"
[ $((SECONDS - start)) -le 30 ] || fail "learning: took $((SECONDS - start)) s to stop"
[ ! -e learning ] || fail "learning: a folder was left: $(ls learning)"
rm noise.txt

# Several signals in one step: Slurm and systemd repeat SIGTERM, which does not end the run
# immediately; nor does one Ctrl-C in addition.
stops_by "TERM TERM INT" one-term -n1
stops_by "INT TERM TERM" one-int -n1
[ "$(grep -c '^sifr: stopping' err)" = 1 ] || fail "INT TERM TERM: not acknowledged exactly once: $(cat err)"
stops_by "TERM INT TERM" two -n2

# Ctrl-C twice, however late the second is
ends_by_two late 5.2 -n1
ends_by_two late-two 5.2 -n2

# a measurement has nothing to save
for signal in INT TERM HUP; do
    env --default-signal=HUP "$sifr" bench ops --seconds=60 >out 2>err &
    pid=$!
    wait_for takes_signals $pid
    code=0
    kill -$signal $pid
    wait $pid || code=$?
    [ $code = 1 ] && [ "$(cat err)" = 'sifr: error: terminated by a signal' ] || fail "bench ops, $signal: exit $code: $(cat err)"
done
finish
