#!/usr/bin/env bash
# --restarts: ranks that die are restarted and reach the same bits; other failures are not
# restarted; when it gives up.
. "$(dirname "$0")/common.sh" "$@"
make_text >text.txt
export SIFR_RUN_THREADS=1
faulty=$(dirname "$sifr")/sifr_faults
run=("${small[@]}" --train.global_batch=12 --data.path=text.txt --train.steps=30 --checkpoint.every=4 --quiet)

same() { # FOLDER WHAT
    cmp -s <(losses calm) <(losses "$1") || fail "$2: losses differ"
    ok "$sifr" inspect --diff calm "$1"
}
ok "$sifr" train "${run[@]}" --out=calm

# --- killed once, while a checkpoint is written: ranks as processes, as threads, one rank ---------
export KILL_RECORD=$work/record
killed() { # WHAT KILL PATTERN keys...
    local what=$1 kill=$2 pattern=$3
    shift 3
    rm -rf record* again
    KILL=$kill expect 0 "$pattern" timeout 300 "$faulty" train "${run[@]}" --out=again "$@"
    [ "$(grep -c 'RESTART' err)" = 1 ] || fail "$what: not one restart: $(cat err)"
    ! grep -q 'error' err || fail "$what: an error was printed: $(cat err)"
    same again "$what"
}
killed "rank 1 of 3" "rank 1 sync 10 before" "RESTART 1 of 2: rank [0-2] \(pid [0-9]+\) was killed.*; the run resumes after step [0-9]+$" \
    -n 3 --zero.stage=3 --restarts=2
killed "rank 1 of 2" "rank 1 write_at 100 half" "RESTART 1 of 1: .*; the run resumes after step [0-9]+$" \
    -n 2 --zero.stage=2 --restarts=1
killed "threads" "rank 0 rename 20 after" "RESTART 1 of 1: the run's process \(pid [0-9]+\) was killed by signal 9.*; the run resumes after step" \
    -n 3 --comm.backend=threads --restarts=1
killed "one rank" "rank 0 rename 20 after" "RESTART 1 of 1: the run's process .* after step" --restarts=1
killed "before any checkpoint" "rank 0 mkdir 2 before" "the run starts from the beginning: there is no checkpoint yet$" --restarts=1

# --fresh renames an earlier run once; restarts resume the new run
rm -rf again.1 record*
KILL="rank 0 rename 20 after" ok timeout 300 "$faulty" train "${run[@]}" --out=again --fresh --restarts=2
same again "--fresh"
[ -e again.1 ] && [ ! -e again.2 ] || fail "--fresh: not renamed exactly once: $(ls -d again*)"
unset KILL_RECORD

# --- killed at the same step each time: it gives up -----------------------------------------------
FAULT="1 kill step 11, block 0 forward" expect 1 "; giving up: 3 restarts in a row made no progress after step 10$" \
    timeout 300 "$faulty" train "${run[@]}" -n 2 --restarts=9 --checkpoint.async=false --out=stuck # so the last save is always the same
[ "$(grep -c RESTART err)" = 3 ] || fail "not three restarts: $(cat err)"
ok "$sifr" inspect --verify stuck
FAULT="1 kill step 11, block 0 forward" expect 1 "; giving up: all 1 restarts \\(--restarts\\) are used$" \
    timeout 300 "$faulty" train "${run[@]}" -n 2 --restarts=1 --fresh --out=stuck

# a rank that hangs is killed, and all ranks are restarted
rm -rf stuck
FAULT="1 stop step 11, block 0 forward" expect 1 "RESTART 1 of 1: rank 1 does not answer.*after step [48]$" \
    timeout 300 "$faulty" train "${run[@]}" -n 2 --restarts=1 --comm.timeout=1 --out=stuck
tail -1 err | grep -q 'giving up: all 1 restarts' || fail "the end of a run that hangs twice: $(cat err)"

# --- failures that are not a death ----------------------------------------------------------------
never() { ! grep -q RESTART err || fail "$1 was followed by a restart: $(cat err)"; }
expect 2 "no file matches" timeout 300 "$sifr" train "${run[@]}" --data.path=nope.txt -n 2 --restarts=3 --out=none
never "a wrong configuration"
expect 75 "stopped after step 6" timeout 300 "$sifr" train "${run[@]}" --train.stop_at=6 -n 2 --restarts=3 --out=stopped
never "train.stop_at"
expect 3 "steps in a row were skipped" timeout 300 "$sifr" train "${run[@]}" --train.lr=900 --train.clip=0 --train.warmup=0 \
    --train.weight_decay=900 --train.max_skips=2 --restarts=3 --out=diverged
never "divergence"
for n in 1 2; do
    "$sifr" train "${run[@]}" --train.steps=100000000 --checkpoint.every=0 -n $n --restarts=3 --out=term-$n >out 2>err &
    pid=$!
    wait_for is_under_way term-$n $pid
    code=0
    kill -TERM $pid
    wait $pid || code=$?
    [ $code = 75 ] || fail "SIGTERM, -n $n: exit $code, not 75: $(cat err)"
    never "SIGTERM"
done

# --- a flag of an earlier version: accepted with one line -----------------------------------------
ok "$sifr" train "${run[@]}" -n 2 --restarts=1 --fewer --out=calm
[ "$(grep -c -- '--fewer was removed and is ignored: .*-n' err)" = 1 ] || fail "--fewer: not one line: $(cat err)"

# --- wrong uses -----------------------------------------------------------------------------------
expect 2 "--restarts needs ranks that sifr starts" \
    env PMI_RANK=0 PMI_SIZE=2 "$sifr" train "${run[@]}" --restarts=2 --out=joined
expect 2 "restarts" "$sifr" train "${run[@]}" --restarts=-1
finish
