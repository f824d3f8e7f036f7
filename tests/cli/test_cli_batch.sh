#!/usr/bin/env bash
# train.branch starts a run from a checkpoint of another one: with the same settings it has the bits
# of that run. `sifr batch` measures the critical batch with such branches: its ladder, reuse and
# resume, and that the run itself is only read.
. "$(dirname "$0")/common.sh" "$@"
make_text >text.txt
export SIFR_RUN_THREADS=1
run=("${small[@]}" --train.global_batch=8 --train.steps=16 --checkpoint.every=8 --checkpoint.keep=5 --data.path=text.txt)
ok "$sifr" train "${run[@]}" --out=run

# --- train.branch ---------------------------------------------------------------------------------
branch() { # FOLDER keys...
    ok "$sifr" train "${run[@]}" --out="$@"
    grep -q "branching after step 8 from '$work/run/checkpoints/step-8'" err || fail "$1: no message about the branch: $(cat err)"
    ! grep -qE 'warning|differ' err || fail "$1: $(cat err)"
    same_state run "$1" 16 "$1"
    cmp -s <(losses run | tail -n 8) <(losses "$1") || fail "$1: losses differ from those of the run"
}
branch same --train.branch=run/checkpoints/step-8
branch ranks --train.branch=run/checkpoints/step-8 -n 2 --zero.stage=3 --comm.backend=threads
ok "$sifr" train "${run[@]}" --train.branch=run --train.steps=20 --out=newest # a run means its newest checkpoint
grep -q "branching after step 16 " err || fail "not from the newest: $(cat err)"
grep -q "branch: .*$work/run/checkpoints/step-16" newest/config.yaml || fail "config.yaml does not name the checkpoint"

# stopped and resumed: the branch's own checkpoint counts, and the other run is not needed
cp -r run gone
expect 75 'stopped after step 11' "$sifr" train "${run[@]}" --train.branch=gone/checkpoints/step-8 --train.stop_at=11 --out=cut
rm -r gone
ok "$sifr" train "${run[@]}" --train.branch=gone/checkpoints/step-8 --out=cut
same_state run cut 16 'a branch that was stopped'

# other settings are reported, not warned about
ok "$sifr" train "${run[@]}" --train.branch=run/checkpoints/step-8 --train.global_batch=16 --out=other
grep -q 'the branch differs from the run that it starts from: train.global_batch: 8 -> 16' err || fail "no message: $(cat err)"
! grep -q warning err || fail "a warning: $(cat err)"

expect 2 "train.branch: there is no '.*nowhere'" "$sifr" train "${run[@]}" --train.branch=nowhere --out=x
expect 2 "train.branch: the run of .* has another model \(model.width: 32 -> 64;" "$sifr" train "${run[@]}" --model.width=64 --train.branch=run --out=x
expect 2 'is of step 16 and train.steps is 16; a branch continues the count' "$sifr" train "${run[@]}" --train.branch=run --out=x
expect 2 'optimizer' "$sifr" train "${run[@]}" --optimizer.kind=sgd --train.branch=run --train.steps=20 --out=x
cp -r run hurt
rm -r hurt/checkpoints/step-8/optimizer
expect 1 'train.branch: .*step-8. cannot be used' "$sifr" train "${run[@]}" --train.branch=hurt/checkpoints/step-8 --out=x
[ ! -e x ] || fail "a failed branch left a folder"

# --- data.cache and checkpoint.last ---------------------------------------------------------------
ok "$sifr" train "${run[@]}" --data.cache=shared --checkpoint.every=0 --checkpoint.last=false --out=light
[ -n "$(ls shared/tokens-*)" ] && [ ! -e light/cache ] || fail "data.cache: $(ls shared light)"
[ ! -e light/checkpoints ] || fail "checkpoint.last=false has saved: $(ls light/checkpoints)"
cmp -s <(losses run) <(losses light) || fail "data.cache or checkpoint.last changes losses"
head -c 20000 text.txt >part.txt
ok "$sifr" train "${run[@]}" --data.path=part.txt --data.cache=shared --out=part
[ "$(ls shared/tokens-* | wc -l)" = 2 ] || fail "data.cache: another run's tokens were removed"

# --- sifr batch -----------------------------------------------------------------------------------
result() { sed -e 's/, "seconds": [^}]*//g' -e 's/"folder": "[^"]*"//' "$1/batch.json"; }
find run -type f -exec sha256sum {} + >before
ladder=(--checkpoint=8 --batches=4,16 --tokens=1000)
ok "$sifr" batch run "${ladder[@]}"
has '^ +4 +128 +[0-9.]+e-0[34] +8 .* -4  '
has "^ +8 .*the run's own batch"
has '^ +16 +512 +[0-9.]+e-03 +2 .* 2  '
has 'critical  (at least |at most )?(4|8|16) sequences'
has 'set +--train.global_batch=(4|8|16) --train.lr='
has 'loss: held out'
is_json run/batch/8/batch.json
sha256sum --quiet -c before || fail "sifr batch changed the run"
# The rung of the run's own batch at the run's rate is a plain branch with a constant rate.
ok "$sifr" train "${run[@]}" --train.branch=run/checkpoints/step-8 --train.steps=12 --train.schedule=constant --train.warmup=0 \
    --train.lr="$(sed 's/.*"lr_at_step": \([^,]*\),.*/\1/' run/batch/8/batch.json)" --out=plain
cmp -s <(losses plain) <(losses run/batch/8/B8) || fail "the rung of the run's batch is not a branch of the run"
grep -q "\"val_loss\": $(sed -n 's/.*"val": {"loss":\([^,]*\),.*/\1/p' plain/summary.json)," run/batch/8/batch.json ||
    fail "the held-out loss of a rung is not that of its run"

# again: finished rungs are reused, with the same result
cp run/batch/8/batch.json first
cp run/batch/8/B4/metrics.jsonl metrics
ok "$sifr" batch run "${ladder[@]}" --json
is_json out
cmp -s first run/batch/8/batch.json && cmp -s out first || fail "a second call differs"
cmp -s metrics run/batch/8/B4/metrics.jsonl || fail "a finished rung was trained again"
ok "$sifr" batch run "${ladder[@]}" -n 2 --zero.stage=2 --comm.backend=threads --out=two -q
cmp -s <(result two) <(result run/batch/8) || fail "two ranks differ: $(result two)"

# the threads of the run, unless the number of ranks differs: then train divides the processors
grep -q '^  threads: 1$' run/batch/8/base.yaml || fail "run.threads: $(grep threads run/batch/8/base.yaml)"
ok env -u SIFR_RUN_THREADS "$sifr" batch run "${ladder[@]}" --out=three -q
grep -q '^  threads: 1$' three/base.yaml || fail "the run's threads are lost: $(grep threads: three/base.yaml)"
ok env -u SIFR_RUN_THREADS "$sifr" batch run "${ladder[@]}" -n 2 --comm.backend=threads --out=three -q
grep -q '^  threads: 0$' three/base.yaml || fail "the threads of one rank for two: $(grep threads: three/base.yaml)"

# stopped: exit code 75; the same command resumes the rung and has the result of an uninterrupted call
longer=(--checkpoint=8 --batches=4 --tokens=60000)
code=0
"$sifr" batch run "${longer[@]}" --out=stopped >out 2>err &
pid=$!
wait_for is_under_way stopped/B4 $pid
kill -INT $pid
wait $pid || code=$?
[ $code = 75 ] || fail "Ctrl-C: exit $code, not 75: $(cat err)"
grep -q 'rerun the same command' err || fail "Ctrl-C: no message: $(cat err)"
[ ! -e stopped/batch.json ] || fail "Ctrl-C: there is a result"
ok "$sifr" batch run "${longer[@]}" --out=stopped -q
ok "$sifr" batch run "${longer[@]}" --out=whole -q
cmp -s <(result stopped) <(result whole) || fail "resumed: $(result stopped)"

# the same data for all rungs: data.val may not change under its name, between calls and between rungs
head -c 8000 text.txt >val.txt
cp val.txt val.kept
held=(--checkpoint=8 --tokens=1000 --data.val=val.txt --out=held)
ok "$sifr" batch run "${held[@]}" --batches=4 -q
has 'loss: held out'
tr a e <val.kept >val.txt # of the same size
expect 2 "the held-out data \(data.val\) has changed since the first rung in 'held' began.*then: 1 file, 8000 bytes, .*restore the files, or choose" \
    "$sifr" batch run "${held[@]}" --batches=4,16
[ ! -e held/B16 ] || fail "a rung was trained with other held-out data"
cp val.kept val.txt
ok "$sifr" batch run "${held[@]}" --batches=4,16 -q
rm val.txt # finished rungs need no data
ok "$sifr" batch run "${held[@]}" --batches=4,16 -q
expect 2 'data.val: .*val.txt' "$sifr" batch run "${held[@]}" --batches=4,32
cp val.kept val.txt
code=0
"$sifr" batch run --checkpoint=8 --batches=4 --tokens=60000 --data.val=val.txt --out=swapped >out 2>err &
pid=$!
wait_for is_under_way swapped/B4 $pid
tr a e <val.kept >val.txt
wait $pid || code=$?
[ $code = 2 ] && grep -q 'the held-out data (data.val) has changed' err || fail "changed meanwhile: exit $code: $(cat err)"
[ ! -e swapped/batch.json ] || fail "changed meanwhile: there is a result"
cp text.txt text.kept
tr a e <text.kept >text.txt
expect 2 'the training data \(data.path or data.mix\) has changed' "$sifr" batch run "${ladder[@]}"
cp text.kept text.txt

# a rung that diverges is a result; without held-out data the training loss is compared; the noise
# scale of the run is shown where it was measured
ok "$sifr" train "${run[@]}" --train.noise_scale=true --out=noisy
ok "$sifr" batch noisy "${ladder[@]}" --data.split=0 --out=noise
has 'loss: of training, mean over the last 512 tokens'
scale=$(sed -n 's/^{"step":8,.*"noise_scale":\([0-9.e+]*\).*/\1/p' noisy/metrics.jsonl)
[ -n "$scale" ] || fail "no noise scale in the record of step 8"
has "noise +scale \(B_simple\) $(printf %.3g "$scale") sequences at step 8"
grep -q '"compared": "train_loss"' noise/batch.json || fail "compared: $(cat noise/batch.json)"
ok "$sifr" train "${small[@]}" --train.micro_batch=2 --train.global_batch=2 --train.steps=2 --train.lr=10 --train.clip=0 --optimizer.kind=sgd \
    --train.schedule=constant --data.path=text.txt --data.tokenizer=train:300 --out=wild
ok "$sifr" batch wild --batches=2,64 --tokens=4096 --train.max_skips=1
has '^ +2 .* inf +inf .*diverged'
has '^ +64 .* critical$'
grep -q 'batch 2 fails although 64 passes' err || fail "no warning: $(cat err)"
has 'rule linear'
ok "$sifr" batch wild --batches=2,64 --tokens=4096 --train.max_skips=1 # not trained again
! grep -q skipped err || fail "a rung that diverged was trained again: $(cat err)"

# --- a run with a ramp: its batch is that of the checkpoint ------------------------------------------
ok "$sifr" train "${small[@]}" --train.micro_batch=2 --train.global_batch=8 --train.batch_ramp=2@1,4@1M --train.steps=3 --data.path=text.txt \
    --data.tokenizer=train:300 --out=ramp
ok "$sifr" batch ramp --batches=8 --tokens=1000
has '^ +4 .* the run.s own batch$'
has 'set +--train.global_batch=[48] --train.lr=[0-9.e-]+ --train.batch_ramp= \('
has '^  B8 +[0-9]+ steps, '
grep -q '"train.batch_ramp": ""}' ramp/batch/3/batch.json || fail "set: $(cat ramp/batch/3/batch.json)"
ok "$sifr" batch ramp --batches=8 --tokens=200 --out=short
has '^  B8 +1 step, '
expect 2 'train.batch_ramp .*: sifr batch sets this key itself; use --batches' "$sifr" batch ramp --train.batch_ramp=2@1M

# --- mistakes -------------------------------------------------------------------------------------
expect 2 'missing argument; usage: sifr batch RUN' "$sifr" batch
expect 2 "there is no 'nowhere'" "$sifr" batch nowhere
expect 2 'is not a run folder with a checkpoint' "$sifr" batch text.txt
expect 2 'is not a run folder with a checkpoint' "$sifr" batch shared
expect 2 'there is no .*step-7.; the newest is step 16' "$sifr" batch run --checkpoint=7
expect 2 'batches: 6 is not a multiple of train.micro_batch 4; try 8' "$sifr" batch run --batches=6
expect 2 'only the batch of the run, 8' "$sifr" batch run --batches=8
expect 2 'train.lr \(--train.lr\): sifr batch sets this key itself; use --lr-rule' "$sifr" batch run --train.lr=1
expect 2 'SIFR_TRAIN_STEPS.*: sifr batch sets this key itself; use --tokens' env SIFR_TRAIN_STEPS=5 "$sifr" batch run
expect 2 'was trained for 1024 tokens .* asks for 2048' "$sifr" batch run --checkpoint=8 --batches=4,16 --tokens=2000
expect 2 'another configuration \(train.beta1: 0.9 -> 0.8\)' "$sifr" batch run "${ladder[@]}" --train.beta1=0.8
expect 2 'another configuration \(train.eval_batches: [0-9]+ -> 3\)' "$sifr" batch run "${ladder[@]}" --train.eval_batches=3
expect 2 'another configuration \(data.split: .* -> 0.2\)' "$sifr" batch run "${ladder[@]}" --data.split=0.2
# the same configuration with other data is another checkpoint; a copy of the run is the same one
cp -r run copy
ok "$sifr" batch copy "${ladder[@]}" --out=run/batch/8 -q
sed 's/fox/cat/' text.txt >swap && cat swap >text.txt
ok "$sifr" train "${run[@]}" --out=changed
expect 2 "the rungs in 'run/batch/8' branch from another checkpoint than 'changed/.*step-8'" "$sifr" batch changed "${ladder[@]}" --out=run/batch/8
mkdir own
ok "$sifr" train "${run[@]}" --train.steps=2 --out=own/B8
expect 2 "'own/B8' is a run of its own, not a rung from step 8" "$sifr" batch run "${ladder[@]}" --out=own
mkdir mine
echo '{}' >mine/batch.json
expect 2 'nothing is overwritten; choose another --out' "$sifr" batch run "${ladder[@]}" --out=mine
echo 'train: {}' >mine/base.yaml
expect 2 'was not written by sifr batch' "$sifr" batch run "${ladder[@]}" --out=mine
rm -r hurt/checkpoints/step-16/optimizer
expect 1 'train.branch: .*step-16. cannot be used' "$sifr" batch hurt --batches=4 --tokens=1000
finish
