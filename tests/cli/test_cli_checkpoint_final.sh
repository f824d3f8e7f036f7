#!/usr/bin/env bash
# checkpoint.final=false: nothing is saved at the end of a run, finished or stopped, and the messages
# say so. checkpoint.every still saves. A run that saves nothing needs no room on the disk.
. "$(dirname "$0")/common.sh" "$@"
make_text >text.txt
keys=("${small[@]}" --train.global_batch=8 --data.path=text.txt --checkpoint.final=false)
saved() { # FOLDER: the names of its checkpoints
    [ ! -e "$1/checkpoints" ] || (cd "$1/checkpoints" && echo *)
}
has_saved() { # FOLDER NAMES
    [ "$(saved "$1")" = "$2" ] || fail "$1: checkpoints are '$(saved "$1")', not '$2'"
}

# --- nothing ----------------------------------------------------------------------------------------
ok "$sifr" train "${keys[@]}" --train.steps=4 --checkpoint.every=0 --out=done
has_saved done ""
grep -q '"end": "done"' done/summary.json || fail "done: summary.json does not say so: $(cat done/summary.json)"
! grep -q '"checkpoint":' done/summary.json || fail "done: summary.json names a checkpoint: $(cat done/summary.json)"
ok "$sifr" train "${keys[@]}" --train.steps=4 --checkpoint.every=0 --checkpoint.final=true --out=kept
has_saved kept step-4
cmp -s <(losses done) <(losses kept) || fail "checkpoint.final changes losses"

for way in '-n1 INT' '-n1 TERM' '-n2 INT' '-n2 TERM'; do
    read -r ranks signal <<<"$way"
    out=stopped$ranks-$signal
    "$sifr" train "${keys[@]}" --train.steps=1000000 --checkpoint.every=0 $ranks --out="$out" >out 2>err &
    pid=$!
    wait_for is_under_way "$out" $pid
    kill "-$signal" $pid
    code=0
    wait $pid || code=$?
    [ $code = 75 ] || fail "$way: exit $code, not 75: $(tail -n 3 err)"
    [ "$(grep -c '^sifr: stopping after this step, which will not be saved' err)" = 1 ] || fail "$way: not acknowledged exactly once: $(cat err)"
    grep -q 'warning: stopped after step [0-9]*: nothing is saved (checkpoint.final: false); rerun the same command to start again$' err ||
        fail "$way: no message about the stop: $(cat err)"
    ! grep -q 'will be saved' err || fail "$way: promises to save: $(cat err)"
    has_saved "$out" ""
    grep -q '"end": "stopped"' "$out/summary.json" || fail "$way: summary.json does not say stopped"
done
# a second Ctrl-C when the run has stopped, but is not gone: summary.json takes a while to be renamed
if command -v strace >/dev/null && strace -o /dev/null true 2>/dev/null; then
    for final in true false; do
        strace -f -D -o renames -e trace=renameat -P slow-$final/summary.json -e inject=renameat:delay_enter=5s \
            "$sifr" train "${keys[@]}" --checkpoint.final=$final --train.steps=1000000 --checkpoint.every=0 --out=slow-$final >out 2>err &
        pid=$!
        wait_for is_under_way slow-$final $pid
        kill -INT $pid
        wait_for grep -q 'stopped after step' err
        sleep 0.2
        kill -INT $pid 2>/dev/null || { skip_part "a second Ctrl-C, final $final: this machine is too slow for it"; wait $pid || true; continue; }
        code=0
        wait $pid || code=$?
        words='after everything was saved; rerun the same command to resume'
        [ $final = true ] || words='after the last step, which is not saved (checkpoint.final: false)'
        [ $code = 75 ] || fail "a second Ctrl-C, final $final: exit $code, not 75: $(cat err)"
        grep -qF "sifr: terminated by a signal $words" err || fail "a second Ctrl-C, final $final: $(cat err)"
    done
else
    skip_part "a second Ctrl-C after the last step: no strace that may trace"
fi
# the same command starts again, as the message says
ok "$sifr" train "${keys[@]}" --train.steps=4 --checkpoint.every=0 --out=again
expect 75 "stopped after step 2: nothing is saved" "$sifr" train "${keys[@]}" --train.steps=4 --train.stop_at=2 --checkpoint.every=0 --out=twice
ok "$sifr" train "${keys[@]}" --train.steps=4 --checkpoint.every=0 --out=twice
cmp -s <(losses again | tail -n 4) <(losses twice | tail -n 4) || fail "a run that started again has other losses: $(losses twice)"

# --- checkpoint.every ----------------------------------------------------------------------------------
ok "$sifr" train "${keys[@]}" --train.steps=7 --checkpoint.every=3 --out=every
has_saved every "step-3 step-6"
expect 75 "stopped after step 5, which is not saved \(checkpoint.final: false\): an earlier one is saved in 'part/checkpoints/step-3'; rerun with a larger train.stop_at" \
    "$sifr" train "${keys[@]}" --train.steps=7 --checkpoint.every=3 --train.stop_at=5 --out=part
has_saved part step-3
expect 75 "stopped after step 6: saved in 'part/checkpoints/step-6'; rerun with a larger train.stop_at" \
    "$sifr" train "${keys[@]}" --train.steps=7 --checkpoint.every=3 --train.stop_at=6 --out=part
grep -q 'resuming after step 3 from' err || fail "part: not resumed from step 3: $(cat err)"
ok "$sifr" train "${keys[@]}" --train.steps=7 --checkpoint.every=3 --out=part
grep -q 'resuming after step 6 from' err || fail "part: not resumed from step 6: $(cat err)"
has_saved part "step-3 step-6"
cmp -s <(losses every) <(losses part) || fail "a resumed run has other losses: $(diff <(losses every) <(losses part))"

# --- a full disk ----------------------------------------------------------------------------------------
mkdir tiny
if mount -t tmpfs -o size=200k none tiny 2>/dev/null; then
    expect 1 "a checkpoint needs .* and the disk has room for .*, or save nothing \(checkpoint.final=false checkpoint.every=0\)" \
        "$sifr" train "${keys[@]}" --train.steps=4 --checkpoint.every=0 --checkpoint.final=true --data.cache=shared --out=tiny/refused
    expect 1 "a checkpoint needs .* and the disk has room for " \
        "$sifr" train "${keys[@]}" --train.steps=4 --checkpoint.every=2 --data.cache=shared --out=tiny/refused
    ok "$sifr" train "${keys[@]}" --train.steps=4 --checkpoint.every=0 --data.cache=shared --out=tiny/run
    has_saved tiny/run ""
    cmp -s <(losses done) <(losses tiny/run) || fail "a full disk changes losses"
    umount tiny
else
    skip_part "a full disk: no file system can be mounted here"
fi
finish
