#!/usr/bin/env bash
# A damaged checkpoint is never loaded silently. Given a run, eval, sample, export and model.path
# use the previous checkpoint and print one line that names the damaged file. Given the damaged
# checkpoint itself, they fail. A folder that cannot be written to does not damage existing
# checkpoints.
. "$(dirname "$0")/common.sh" "$@"
make_text >text.txt
keys=("${small[@]}" --data.path=text.txt --checkpoint.every=2 --train.steps=4 --data.tokenizer=train:300)
ok "$sifr" train "${keys[@]}" --quiet --out=run
for name in eval sample; do # the results of the undamaged checkpoints
    "$sifr" $name run/checkpoints/step-2 >$name-2 2>/dev/null
    "$sifr" $name run/checkpoints/step-4 >$name-4 2>/dev/null
done
ok "$sifr" export run/checkpoints/step-2 hf-2
loss() { grep '^loss' "$1"; }
[ "$(loss eval-2)" != "$(loss eval-4)" ] || fail "the two checkpoints are the same"

hurt() { # FILE: a copy of the run, with one byte of this file of its newest checkpoint changed
    rm -rf hurt
    cp -r run hurt
    printf '\377' | dd of="hurt/checkpoints/step-4/$1" bs=1 seek=40 conv=notrunc status=none
}
for file in model.safetensors config.json tokenizer.json generation_config.json state.json COMPLETE; do
    hurt $file
    over="warning: skipped the damaged checkpoint 'hurt/checkpoints/step-4': .*$file"
    expect 0 "$over" "$sifr" eval hurt
    [ "$(loss out)" = "$(loss eval-2)" ] || fail "$file: eval does not use the previous checkpoint"
    [ "$(grep -c 'skipped the damaged' err)" = 1 ] || fail "$file: not exactly one warning: $(cat err)"
    expect 0 "$over" "$sifr" sample hurt
    cmp -s out sample-2 || fail "$file: sample does not use the previous checkpoint"
    rm -rf hf
    expect 0 "$over" "$sifr" export hurt hf
    cmp -s hf/model.safetensors hf-2/model.safetensors || fail "$file: export does not use the previous checkpoint"
    expect 0 "$over" "$sifr" train "${small[@]:3}" --model.path=hurt --data.path=text.txt --train.steps=1 --quiet --fresh --out=next
    for call in "eval hurt/checkpoints/step-4" "sample hurt/checkpoints/step-4" "export hurt/checkpoints/step-4 never" \
        "train --model.path=hurt/checkpoints/step-4 --data.path=text.txt --out=never" "plan --model.path=hurt/checkpoints/step-4"; do
        case $call in plan*) [ $file != model.safetensors ] || continue ;; esac # a plan reads no weights
        expect 1 "error: .*$file" "$sifr" $call
    done
    [ ! -e never ] || fail "$file: a failed command left a folder"
done

# damage in a file that is not read has no effect; a plain model directory has no hashes to check
hurt optimizer/variance.safetensors
ok "$sifr" eval hurt
[ "$(loss out)" = "$(loss eval-4)" ] || fail "a checkpoint with undamaged weights was skipped"
printf '\377' | dd of=hf-2/model.safetensors bs=1 seek="$(($(stat -c %s hf-2/model.safetensors) - 12))" conv=notrunc status=none
ok "$sifr" eval hf-2 --data.path=text.txt
truncate -s -3 hf-2/model.safetensors
expect 1 "hf-2/model.safetensors" "$sifr" eval hf-2 --data.path=text.txt

# weights that are NaN: an error, not a result
ok "$sifr" export run nan
head -c 4000 /dev/zero | tr '\0' '\377' |
    dd of=nan/model.safetensors bs=1 seek="$(($(stat -c %s nan/model.safetensors) - 4000))" conv=notrunc status=none
expect 3 "error: the loss of 'nan' is not finite; check its weights" "$sifr" eval nan --data.path=text.txt
has '^loss +-?nan$'
expect 3 "error: the loss of 'nan' is not finite" "$sifr" eval nan --data.path=text.txt --json
is_json out
has '"loss": null'
for flag in --temperature=0 --temperature=1 --json; do
    expect 3 "error: the logits of token 4 of the text are not finite; check the weights of the model" "$sifr" sample nan abc $flag
    [ ! -s out ] || fail "sample $flag: printed text: $(cat out)"
done
expect 3 "2 steps in a row were skipped .*, the last is step 2; check the weights of model.path" \
    "$sifr" train --model.path=nan --data.path=text.txt --train.micro_batch=2 --train.steps=9 --train.max_skips=2 --quiet --out=from-nan
# a run with text samples warns once that there are none, and continues; no incomplete records
expect 3 "warning: no text sample after step 1: the logits of token 4 are not finite; .*check the weights of model.path: some are NaN" \
    "$sifr" train --model.path=nan --data.path=text.txt --train.micro_batch=2 --train.steps=9 --train.max_skips=4 --train.sample_every=1 --train.sample_prompt=abc --out=no-text
[ "$(grep -c 'no text sample' err)" = 1 ] || fail "not exactly one warning: $(cat err)"
! grep -q '^sample' out || fail "a sample was printed: $(cat out)"
[ ! -s no-text/samples.jsonl ] || fail "records in samples.jsonl: $(cat no-text/samples.jsonl)"
[ "$(wc -l <no-text/metrics.jsonl)" = 4 ] || fail "the run did not continue: $(cat err)"

# several processes: all resume from the previous checkpoint, with one warning
for file in tokenizer.json model.safetensors; do
    hurt $file
    expect 0 "skipped the damaged checkpoint 'hurt/checkpoints/step-4': .*$file" timeout 300 "$sifr" train "${keys[@]}" --out=hurt -n 2 --zero.stage=3
    [ "$(grep -c 'skipped the damaged' err)" = 1 ] || fail "$file: not exactly one warning: $(cat err)"
    cmp -s hurt/checkpoints/step-4/model.safetensors run/checkpoints/step-4/model.safetensors || fail "$file: other weights"
done

# --- a read-only folder, as a user other than root ------------------------------------------------
as=()
if [ "$(id -u)" = 0 ]; then
    command -v setpriv >/dev/null || { skip_part "a read-only folder: setpriv is not installed"; finish; exit; }
    as=(setpriv --reuid=65534 --regid=65534 --clear-groups)
    chmod 755 .
    cp "$sifr" ./copy && chmod 755 copy && sifr=$work/copy # only root may have access to the build folder
fi
cp -r run read-only
rm -r read-only/checkpoints/step-4
[ ${#as[@]} = 0 ] || chown -R 65534 read-only
chmod 555 read-only/checkpoints
if "${as[@]}" "$sifr" --version >/dev/null 2>&1; then
    expect 1 "the checkpoint of step 4 was not saved: .*cannot (create|remove|write).*read-only/checkpoints.*Permission denied" \
        env SIFR_RUN_THREADS=1 "${as[@]}" "$sifr" train "${keys[@]}" --checkpoint.every=3 --out=read-only
    grep -q "THE CHECKPOINT OF STEP 3 WAS NOT SAVED: .*Permission denied; the run continues, and the previous checkpoint is intact" err ||
        fail "no warning about the save of step 3: $(cat err)"
    ok "$sifr" inspect --verify read-only
    [ "$(ls -A read-only/checkpoints)" = step-2 ] || fail "the checkpoints have changed: $(ls -A read-only/checkpoints)"
    # a run folder that cannot be written to is refused before the first step
    chmod 755 read-only/checkpoints && chmod 555 read-only
    expect 1 "read-only" env SIFR_RUN_THREADS=1 "${as[@]}" "$sifr" train "${keys[@]}" --out=read-only
    chmod 755 read-only
else
    skip_part "a read-only folder: another user cannot run the command"
fi
finish
