#!/usr/bin/env bash
# Read errors in the files of a checkpoint. A temporary error has no effect. A permanent one ends
# the command with the name of the file, and no checkpoint is skipped or renamed. The advice in the
# message works.
. "$(dirname "$0")/common.sh" "$@"
command -v strace >/dev/null && strace -o /dev/null true 2>/dev/null ||
    { echo "skipped: no strace that may trace, to make reads fail"; exit 77; }
make_text >text.txt
keys=("${small[@]}" --data.path=text.txt --checkpoint.every=2 --train.steps=8 --quiet)
expect 75 "stopped after step 4" "$sifr" train "${keys[@]}" --train.stop_at=4 --out=run
[ -e run/checkpoints/step-4 ] && [ -e run/checkpoints/step-2 ] || fail "no two checkpoints: $(ls run/checkpoints)"

unreadable() { # WHEN CALL ERROR FILE command...: make that call fail for FILE, named as the command does
    local times=$1 call=$2 error=$3 file=$4
    shift 4
    strace -f -o /dev/null -e trace="$call" -e inject="$call:error=$error:when=$times" -P "$file" "$@"
}
names() { (cd "$1" && echo *); }

for case in "openat ETIMEDOUT optimizer/momentum.safetensors" "pread64 EIO optimizer/variance.safetensors" \
    "openat ESTALE state.json" "read EIO COMPLETE" "openat EMFILE config.json" "openat EACCES model.safetensors"; do
    read -r call error file <<<"$case"
    rm -rf hurt
    cp -r run hurt
    if [ $error != EACCES ]; then # sifr does not retry this error
        expect 75 "stopped after step 5" unreadable 1..2 $call $error hurt/checkpoints/step-4/$file \
            "$sifr" train "${keys[@]}" --train.stop_at=5 --out=hurt
        ! grep -q "skipped the damaged" err || fail "$case: a temporary error skips a checkpoint: $(cat err)"
        [ "$(names hurt/checkpoints)" = "step-4 step-5" ] || fail "$case: a temporary error renames: $(names hurt/checkpoints)"
        rm -rf hurt
        cp -r run hurt
    fi
    expect 1 "error: .*step-4/$file.*; nothing was changed: .*resume from step 2 by renaming this checkpoint first" \
        unreadable 1+ $call $error hurt/checkpoints/step-4/$file "$sifr" train "${keys[@]}" --out=hurt
    [ "$(names hurt/checkpoints)" = "step-2 step-4" ] || fail "$case: renamed: $(names hurt/checkpoints)"
    diff -r run/checkpoints hurt/checkpoints >/dev/null || fail "$case: changed"
done

# the advice
cp err advice
eval "$(grep -o "mv '.*" advice)"
[ "$(names hurt/checkpoints)" = "step-2 step-4.unreadable" ] || fail "the advice is not a command: $(cat advice)"
ok "$sifr" train "${keys[@]}" --out=hurt
[ -e hurt/checkpoints/step-8 ] && [ -e hurt/checkpoints/step-4.unreadable ] || fail "after the advice: $(names hurt/checkpoints)"

# a file that is known to be missing is damage; one in a folder that cannot be listed is not
rm -rf hurt
cp -r run hurt
rm hurt/checkpoints/step-4/optimizer/momentum.safetensors
expect 1 "momentum.safetensors.*; nothing was changed" \
    unreadable 1+ getdents64 EIO hurt/checkpoints/step-4/optimizer "$sifr" train "${keys[@]}" --out=hurt
[ "$(names hurt/checkpoints)" = "step-2 step-4" ] || fail "renamed although the folder could not be listed: $(names hurt/checkpoints)"
expect 0 "warning: skipped the damaged checkpoint 'hurt/checkpoints/step-4': .*momentum.safetensors" \
    "$sifr" train "${keys[@]}" --out=hurt
[ -e hurt/checkpoints/step-4.damaged ] || fail "a checkpoint with a missing file was not renamed"

# an error while checkpoints are listed ends the command: the newest could be missing from the list
rm -rf hurt
cp -r run hurt
expect 1 "cannot read the folder 'hurt/checkpoints'" unreadable 1+ getdents64 EIO hurt/checkpoints "$sifr" train "${keys[@]}" --out=hurt
[ "$(names hurt/checkpoints)" = "step-2 step-4" ] || fail "an incomplete list renames: $(names hurt/checkpoints)"

# a command that only reads a model fails too, and does not use an older checkpoint
expect 1 "error: .*step-4/config.json.*to use another checkpoint of the run, give its folder" \
    unreadable 1+ openat EIO run/checkpoints/step-4/config.json "$sifr" eval run
finish
