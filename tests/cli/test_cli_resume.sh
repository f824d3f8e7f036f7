#!/usr/bin/env bash
# A run that is stopped in one layout and resumed in another has the losses and files of an
# uninterrupted run: over numbers of ranks, ZeRO stages, servers, shard groups, and processes or
# threads. Also: what stops a run, and the messages when it resumes.
. "$(dirname "$0")/common.sh" "$@"
make_text >text.txt
export SIFR_RUN_THREADS=1
run=(--model.layers=2 --model.width=40 --model.heads=5 --model.context=37 --train.micro_batch=3 --train.global_batch=12
    --train.steps=30 --train.eval_every=10 --train.eval_batches=2 --train.lr=3e-3 --data.path=text.txt --data.tokenizer=train:300)

same() { # A B WHAT: the results of two runs of 30 steps must be equal
    cmp -s <(losses "$1") <(losses "$2") || fail "$3: losses differ: $(paste <(losses "$1") <(losses "$2") | head -2)"
    same_state "$1" "$2" 30 "$3"
}
train() { # CODE FOLDER RANKS keys...
    local code=$1 folder=$2 ranks=$3 got=0
    shift 3
    timeout 300 "$sifr" train "${run[@]}" --out="$folder" -n "$ranks" "$@" >out 2>err || got=$?
    [ $got = "$code" ] || fail "$folder, -n $ranks $*: exit $got, not $code: $(head -c 400 err)"
    ! grep -qE '(will|may) differ' err || fail "$folder, $*: $(cat err)"
}

for mode in fp32 bf16 fp16; do
    train 0 "$mode" 1 --precision.mode=$mode
    train 75 "cut-$mode" 3 --precision.mode=$mode --zero.stage=3 --train.stop_at=10
    grep -q "stopped after step 10: saved in 'cut-$mode/checkpoints/step-10'" err || fail "no message about the stop: $(cat err)"
    train 75 "cut-$mode" 2 --precision.mode=$mode --zero.stage=1 --train.stop_at=20 --checkpoint.every=4 --comm.backend=threads
    grep -q "resuming after step 10 from 'cut-$mode/checkpoints/step-10'" err || fail "no message about resuming: $(cat err)"
    train 75 "cut-$mode" 4 --precision.mode=$mode --zero.stage=2 --train.stop_at=23 --comm.backend=threads
    [ $mode != fp32 ] || train 75 "cut-$mode" 3 --precision.mode=$mode --zero.stage=2 --zero.servers=1 --train.stop_at=25 --checkpoint.every=1
    [ $mode != fp32 ] || train 75 "cut-$mode" 4 --precision.mode=$mode --zero.stage=3 --zero.shard_group=2 --train.stop_at=27 --comm.backend=threads
    train 0 "cut-$mode" 1 --precision.mode=$mode --checkpoint.async=false --checkpoint.every=2
    same "$mode" "cut-$mode" "$mode"
done

# --- inspect --verify checks every byte -----------------------------------------------------------
ok "$sifr" inspect --verify cut-fp32
has 'optimizer/momentum.safetensors +good'
ok "$sifr" inspect --verify cut-fp32/checkpoints/step-30 --json
is_json out
cp -r cut-fp32 hurt
printf 'x' | dd of=hurt/checkpoints/step-30/optimizer/variance.safetensors bs=1 seek=5000 conv=notrunc status=none
expect 1 "step-30/optimizer/variance.safetensors': bytes .*: hash mismatch" "$sifr" inspect --verify hurt
has 'optimizer/variance.safetensors +DAMAGED'
has 'optimizer/momentum.safetensors +good'
expect 1 "is neither a checkpoint" "$sifr" inspect --verify .

# the previous checkpoint is used, and the result is the same
train 0 hurt 2 --zero.stage=3
grep -q "skipped the damaged checkpoint 'hurt/checkpoints/step-30': .*variance.safetensors" err || fail "the damaged checkpoint was not skipped: $(cat err)"
same fp32 hurt "after damage"
[ -d hurt/checkpoints/step-30.damaged ] || fail "the damaged checkpoint was not renamed"

# --- a complete run, and changed keys -------------------------------------------------------------
cp fp32/summary.json before
train 0 fp32 2
grep -q "the run in 'fp32' is complete: step 30 of 30" err || fail "no message: $(cat err)"
cmp -s before fp32/summary.json || fail "a complete run was changed"
expect 2 "another model .*model.width: 40 -> 80" "$sifr" train "${run[@]}" --model.width=80 --out=fp32
expect 0 "has done 30 steps and train.steps is 20: there is nothing left to do" "$sifr" train "${run[@]}" --train.steps=20 --out=fp32
! grep -q differ err || fail "a warning about a difference although nothing runs: $(cat err)"
expect 0 "will differ from an uninterrupted one: .*train.steps: 30 -> 31" "$sifr" train "${run[@]}" --train.steps=31 --out=fp32

# data that was moved is the same data; other data under the same name is not the same
moved=("$sifr" train "${run[@]}" --train.steps=6 --out=moved)
expect 75 "stopped after step 2" "${moved[@]}" --train.stop_at=2
cp text.txt elsewhere.txt
expect 75 "sifr: the data matches the checkpoint \(compared: 1 file, [0-9.]+ KiB hashed whole\) under other names: data.path: .*/text.txt -> .*/elsewhere.txt" "${moved[@]}" --train.stop_at=3 --data.path=elsewhere.txt
! grep -q differ err || fail "a warning about moved data: $(cat err)"
tac text.txt >elsewhere.txt
expect 75 "warning: .*: the run will differ from an uninterrupted one" "${moved[@]}" --train.stop_at=4 --data.path=elsewhere.txt
grep -q "the data does not match the checkpoint" err || fail "no message about other data: $(cat err)"
expect 75 "warning: .* so the run will differ .*: data.path: .*/elsewhere.txt -> .*/text.txt" "${moved[@]}" --train.stop_at=5

# a model directory that is gone: a run that resumes has the model in its checkpoints
ok "$sifr" export fp32 base
tuned=("$sifr" train --model.path=base --data.path=text.txt --train.micro_batch=3 --train.global_batch=6 --train.steps=4)
ok "${tuned[@]}" --out=kept
expect 75 "stopped after step 2" "${tuned[@]}" --out=gone --train.stop_at=2
mv base away
expect 0 "model.path: there is no 'base' any more; the model comes from the checkpoints of 'gone'" "${tuned[@]}" --out=gone
! grep -q differ err || fail "a warning about a difference: $(cat err)"
cmp -s <(losses kept) <(losses gone) || fail "other losses without the model directory: $(paste <(losses kept) <(losses gone))"
same_state kept gone 4 "without the model directory"
expect 2 "model.path: there is no 'base'" "${tuned[@]}" --out=new
expect 2 "model.path: there is no 'base'" "${tuned[@]}" --out=gone --fresh
[ -d gone/checkpoints/step-4 ] || fail "a refused --fresh changed the run"
mv away base
# the last checkpoint is in checkpoint.fallback: the run has only an older one, or none
tuned+=(--checkpoint.fallback=spare)
expect 75 "stopped after step 1" "${tuned[@]}" --out=full --train.stop_at=1
mv full/checkpoints older
ln -s nowhere full/checkpoints # nothing can be saved there
expect 75 "the checkpoint of step 2 is in 'spare/full-.*/step-2'" "${tuned[@]}" --out=full --train.stop_at=2
rm full/checkpoints
mkdir moved-{away,hurt}
cp -r full moved-away
mv older full/checkpoints
cp -r full spare moved-hurt
printf x | dd of="$(ls moved-hurt/spare/full-*/step-2/config.json)" bs=1 conv=notrunc status=none
mv base away
for folder in . moved-away moved-hurt; do
    expect 0 "model.path: there is no '.*base' any more; the model comes from the checkpoints of '$folder/full'" "${tuned[@]}" --out=$folder/full \
        $([ $folder != moved-hurt ] || echo --checkpoint.fallback=moved-hurt/spare)
    grep -q "resuming after step $([ $folder = moved-hurt ] && echo 1 || echo 2) from" err || fail "$folder: not from the last checkpoint that is good: $(cat err)"
    [ $folder = moved-hurt ] || ! grep -qE 'not the last|differ|damaged' err || fail "$folder: another warning: $(cat err)"
    cmp -s <(losses kept) <(losses $folder/full) || fail "$folder: other losses: $(paste <(losses kept) <(losses $folder/full))"
    same_state kept $folder/full 4 "$folder: from checkpoint.fallback, without the model directory"
done
mv away base

# --- --quiet: warnings and errors -----------------------------------------------------------------
quiet=("$sifr" train "${run[@]}" --train.steps=4 --quiet --out=quiet)
expect 75 "stopped after step 2" "${quiet[@]}" --train.stop_at=2
truncate -s -20 quiet/metrics.jsonl
expect 0 "metrics.jsonl has no record of step 2: 'quiet/metrics.jsonl' was truncated" "${quiet[@]}"
[ "$(wc -l <err)" = 1 ] || fail "--quiet: not exactly one warning: $(cat err)"
[ "$(sed 's/,.*//' quiet/metrics.jsonl | tr -d '\n')" = '{"step":1{"step":3{"step":4' ] || fail "wrong records: $(cut -c1-40 quiet/metrics.jsonl)"
# a line in the middle that was damaged by a crash of the machine is kept as it is
torn=("$sifr" train "${run[@]}" --train.steps=6 --quiet --out=torn)
expect 75 "stopped after step 4" "${torn[@]}" --train.stop_at=4
sed -i '2s/"loss".*/"lo/' torn/metrics.jsonl
sed -n 2p torn/metrics.jsonl >damaged
ok "${torn[@]}"
cmp -s damaged <(sed -n 2p torn/metrics.jsonl) || fail "a damaged line is not kept: $(cut -c1-40 torn/metrics.jsonl)"
[ "$(sed 's/,.*//' torn/metrics.jsonl | tr -d '\n')" = '{"step":1{"step":2{"step":3{"step":4{"step":5{"step":6' ] || fail "wrong records: $(cut -c1-40 torn/metrics.jsonl)"
ok "$sifr" inspect torn
# missing text samples: a warning if some were due
lost=("$sifr" train "${run[@]}" --train.steps=8 --train.sample_every=3 --train.sample_tokens=2 --quiet --out=lost)
expect 75 "stopped after step 2" "${lost[@]}" --train.stop_at=2
rm lost/samples.jsonl
expect 75 "stopped after step 4" "${lost[@]}" --train.stop_at=4
[ "$(wc -l <err)" = 1 ] || fail "a warning about samples that were not yet due: $(cat err)"
rm lost/samples.jsonl
expect 75 "there is no 'lost/samples.jsonl': if the run made text samples up to step 3, they are lost" "${lost[@]}" --train.stop_at=5
ok "${lost[@]}"
[ ! -s err ] || fail "a second warning about lost samples: $(cat err)"
# samples without newlines, and a note without one, are not an incomplete record: they are kept
tr -d '\n' <lost/samples.jsonl >joined
[ "$(grep -o '{"step":' joined | wc -l)" = 2 ] || fail "not two samples: $(cat joined)"
printf 'my own note' | cat lost/samples.jsonl - >noted
cp -r lost lost-note
cp joined lost/samples.jsonl
cp noted lost-note/samples.jsonl
ok "${lost[@]}" --train.steps=9
cmp -s <(head -1 lost/samples.jsonl) <(cat joined && echo) || fail "samples without newlines are lost: $(cat lost/samples.jsonl)"
ok "${lost[@]}" --train.steps=9 --out=lost-note
grep -qx "my own note" lost-note/samples.jsonl || fail "a note is lost: $(cat lost-note/samples.jsonl)"
# a complete run says so in one line even with --quiet: nothing else would show that no step was
# done
complete="sifr: the run in 'quiet' is complete: step 4 of 4"
ok "${quiet[@]}"
[ "$(cat err)" = "$complete" ] || fail "--quiet, a complete run: not exactly its line on stderr: $(cat err)"
[ ! -s out ] || fail "--quiet, a complete run: output on stdout: $(cat out)"
ok "${quiet[@]}" --fresh
[ ! -s err ] || fail "--quiet --fresh: output on stderr: $(cat err)"
ok "${quiet[@]}" --verbose
grep -q "the run in 'quiet' is complete" err || fail "--quiet --verbose: no message: $(cat err)"

# --- what stops a run -----------------------------------------------------------------------------
expect 75 "stopped after step" timeout 300 "$sifr" train "${run[@]}" --train.steps=100000000 --train.max_time=2s --quiet --out=timed -n 2
expect 75 "stopped after step" env SLURM_JOB_END_TIME=$(($(date +%s) + 62)) timeout 300 "$sifr" train "${run[@]}" --train.steps=100000000 --quiet --out=slurm
expect 2 "train.max_time: '5 parsecs' is not a time" "$sifr" train "${run[@]}" --train.max_time='5 parsecs' --out=none
"$sifr" train "${run[@]}" --train.steps=100000000 --train.log_every=1000000 --checkpoint.every=20 --out=signal -n 2 >out 2>err &
pid=$!
wait_for is_under_way signal $pid
# a second run in the same folder is refused while the first is running
wait_for test -e signal/lock
expect 2 "another run is writing to 'signal' \(process [0-9]+ on $(hostname)\)" "$sifr" train "${run[@]}" --train.steps=100000000 --out=signal
kill -TERM $pid
code=0
wait $pid || code=$?
[ $code = 75 ] || fail "SIGTERM: exit $code, not 75"
ok "$sifr" inspect --verify signal
stop=$(ls signal/checkpoints | sed 's/step-//' | sort -n | tail -1)
[ "$(wc -l <signal/metrics.jsonl)" = "$stop" ] || fail "metrics.jsonl does not end with the last step"
expect 75 "resuming after step $stop" "$sifr" train "${run[@]}" --train.steps=100000000 --train.stop_at=$((stop + 3)) --out=signal
[ "$(wc -l <signal/metrics.jsonl)" = $((stop + 3)) ] || fail "metrics.jsonl does not continue"

# --- resuming takes time that is linear in the layers, not quadratic ------------------------------
resume_time() { # LAYERS: set `seconds` to the CPU time of resuming such a run, the best of three
    local i deep=(--model.layers="$1" --model.width=16 --model.heads=1 --model.context=8 --train.micro_batch=1 --data.path=text.txt
        --data.tokenizer=bytes --train.steps=100 --quiet --run.threads=1 --out="deep-$1")
    expect 75 'stopped after step 1' "$sifr" train "${deep[@]}" --train.stop_at=1
    for i in 2 3 4; do
        { TIMEFORMAT=%U; time expect 75 "stopped after step $i" "$sifr" train "${deep[@]}" --train.stop_at=$i; } 2>"time-$i"
    done
    seconds=$(cat time-[234] | sort -n | head -n 1)
}
resume_time 500
few=$seconds
resume_time 2000
many=$seconds
awk -v few="$few" -v many="$many" 'BEGIN { exit !(many < 8 * few) }' || fail "resuming takes $few s with 500 layers, $many s with 2000"
finish
