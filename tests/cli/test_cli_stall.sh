#!/usr/bin/env bash
# A run that was asked to stop and hangs ends after run.stop_timeout without progress, with exit
# code 4 and a message about what it was doing. A run that makes progress, however slowly, is left
# alone. A second Ctrl-C ends a hanging run immediately.
. "$(dirname "$0")/common.sh" "$@"
make_text >text.txt
faulty=$(dirname "$sifr")/sifr_faults
keys=("${small[@]}" --data.path=text.txt --train.global_batch=8 --train.steps=1000000 --data.split=0 --run.threads=1)

hangs() { # FOLDER FLAGS...: start a run that hangs in step 4; sets pid
    local folder=$1
    shift
    FAULT_ONCE=$work/$folder.hangs "$faulty" train "${keys[@]}" --checkpoint.every=2 --checkpoint.async=false --out="$folder" "$@" >out 2>err &
    pid=$!
    wait_for hangs_or_has_ended "$folder"
}
hangs_or_has_ended() { [ -e "$1.hangs" ] || has_ended $pid; }
ends() { # CODE PATTERN WHAT: the run must end within a minute
    local code=0 limit=$((SECONDS + 60))
    until has_ended $pid || [ $SECONDS -ge $limit ]; do sleep 0.1; done
    kill -KILL $pid 2>/dev/null || true
    wait $pid || code=$?
    [ $code = "$1" ] || fail "$3: exit $code, not $1: $(cat err)"
    [ -z "$2" ] || grep -qE -- "$2" err || fail "$3: no '$2' in: $(cat err)"
}

words='error: .*no progress for 1 s after the signal to stop, in step 4, block 1 backward: terminated'
FAULT='-1 hang step 4, block 1 backward' hangs one --run.stop_timeout=1
kill -TERM $pid
sleep 0.3
kill -TERM $pid # a repeated SIGTERM has no effect
ends 4 "$words" "one rank"
grep -q '^sifr: stopping after this step' err || fail "one rank: not acknowledged: $(cat err)"
expect 75 'resuming after step 2 from' "$sifr" train "${keys[@]}" --train.stop_at=5 --out=one # the saved checkpoint is intact

FAULT='1 hang step 4, block 1 backward' hangs two -n2 --run.stop_timeout=1
kill -TERM $pid
ends 4 'error: .*no progress for 1 s after the signal to stop, in step 4' "two ranks"
FAULT='1 hang step 4, block 1 backward' hangs threads -n2 --comm.backend=threads --run.stop_timeout=1
kill -HUP $pid
ends 4 'error: .*no progress for 1 s after the signal to stop, in step 4' "ranks as threads"
[ -z "$(processes_in "$work")" ] || fail "processes are left: $(processes_in "$work")"

# run.stop_timeout=0 means no limit; Ctrl-C twice ends a hanging run immediately
FAULT='-1 hang step 4, block 1 backward' hangs never --run.stop_timeout=0
kill -TERM $pid
sleep 1.5
has_ended $pid && fail "run.stop_timeout=0: the run ended: $(cat err)"
kill -INT $pid
sleep 0.3
kill -INT $pid
ends 1 'error: terminated by a signal' "Ctrl-C twice in a hang"
FAULT='1 hang step 4, block 1 backward' hangs never-two -n2 --run.stop_timeout=0
kill -INT $pid
sleep 0.5
kill -INT $pid
ends 1 'error: terminated by a signal' "Ctrl-C twice in a hang, -n2"
[ -z "$(processes_in "$work")" ] || fail "processes are left: $(processes_in "$work")"

# the same when stderr is a full pipe that nobody reads
mkfifo full
exec 9<>full
FAULT='-1 hang step 4, block 1 backward' FAULT_ONCE=$work/unread.hangs "$faulty" train "${keys[@]}" --run.stop_timeout=0 --quiet --out=unread >out 2>full &
pid=$!
wait_for hangs_or_has_ended unread
timeout 20 dd if=/dev/zero of=full bs=4096 oflag=nonblock 2>err || true
kill -INT $pid
sleep 0.3
kill -INT $pid
ends 1 '' "Ctrl-C twice, and a full pipe"
exec 9>&-

# a first step that takes longer than the limit but makes progress: stopped and saved as usual
start=$SECONDS
FAULT='-1 slow step 1, block 0 forward' "$faulty" train "${keys[@]}" --run.stop_timeout=3 --out=slow >out 2>err &
pid=$!
ends 75 'stopped after step 1: saved in' "a slow step"
[ $((SECONDS - start)) -ge 4 ] || fail "the slow step took $((SECONDS - start)) s: too short for this test"
finish
