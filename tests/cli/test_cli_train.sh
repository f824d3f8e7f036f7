#!/usr/bin/env bash
# From text to a model and back: tokenize, train, eval, sample, inspect, bench on the smallest
# model, in every output format.
. "$(dirname "$0")/common.sh" "$@"
make_text >text.txt

# train: plain lines in a file, no carriage return and no escape sequence
ok "$sifr" train "${small[@]}" --data.path=text.txt --train.steps=30 --train.eval_every=10 --train.sample_every=15 \
    --train.sample_tokens=8 --out=run
has '^step +1/30 +3\.3% \| loss [0-9.]+ \| gnorm [0-9.]+ \| lr [0-9.e-]+ \| [0-9.]+ ms \| [0-9.]+k? tok/s \| mem [0-9.]+ MiB'
has '^step +30/30 100\.0% .* \| eta '
has '^eval +10 \| val loss [0-9.]+ \| perplexity [0-9.]+ \| [0-9.]+ bits/byte'
has '^sample +15 \| '
has '^  memory .*params .*optimizer'
has '^  memory +[0-9.]+ [KM]iB, with files being read or written [0-9.]+ [KM]iB; process [0-9.]+ [KM]iB, counted .* \+ .* of runtime: [0-9.]+ % (more|less)$'
has '^  next +sifr sample run'
has '⠀|⠉|⣀|⡇|⠒|⠤|⠑'
! grep -q 'mfu' out || fail "mfu without a known peak"
! grep -q $'\r\|\033' out err || fail "carriage returns or escapes in a file"
for file in config.yaml metrics.jsonl samples.jsonl summary.json checkpoints/step-30/model.safetensors \
    checkpoints/step-30/config.json checkpoints/step-30/tokenizer.json; do
    [ -s "run/$file" ] || fail "run/$file is missing"
done
[ "$(wc -l <run/metrics.jsonl)" = 30 ] || fail "metrics.jsonl does not have 30 lines"
is_json run/metrics.jsonl
ok "$sifr" train run/config.yaml --dry-run
has '^memory +[0-9.]+ [KM]iB of'

# on a terminal: one live line that is rewritten; evaluations stay
if ! script -qec true /dev/null >/dev/null 2>&1; then
    skip_part "the live line: there is no terminal (script is missing or does not work)"
else
    TERM=xterm script -qec "$sifr train ${small[*]} --data.path=text.txt --train.steps=6 --train.eval_every=3 --out=tty" /dev/null >out 2>&1 </dev/null ||
        fail "on a terminal: $(head -c 300 out)"
    grep -q $'\r\033\[K' out || fail "no live line on a terminal"
    has '^.*step +3/6 +50\.0% \| loss'
    has 'eval +3 \| val loss'
    ! grep -q $'\033\[3[0-9]m' out || fail "NO_COLOR is not respected"
fi

# an existing run folder: resumed, refused if the model differs, or renamed by --fresh
cp -a run before
expect 2 "has another model .*model.width: .* -> .*--fresh" "$sifr" train "${small[@]}" --model.width=64 --data.path=text.txt --train.steps=2 --out=run
diff -r before run >differences || fail "the refused run was changed: $(head -n 3 differences)"
rm -r before
ok "$sifr" train "${small[@]}" --data.path=text.txt --train.steps=2 --out=run --fresh --quiet
[ ! -s out ] || fail "--quiet printed: $(head -3 out)"
[ "$(wc -l <run.1/metrics.jsonl)" = 30 ] && [ "$(wc -l <run/metrics.jsonl)" = 2 ] || fail "--fresh: the old run was not renamed"
rm -rf run && mv run.1 run
for flags in "" "-n 2 --restarts=1 --comm.backend=threads"; do
    (cd run && expect 2 "--fresh cannot move the run in '\.' aside by that name; .*--out=\.\./NAME" \
        "$sifr" train "${small[@]}" --data.path=../text.txt --train.steps=2 --out=. --fresh $flags && rm out err && exit $failures) || fail "--fresh --out=."
done

# files that no run wrote are never changed, not even the configuration that is read; a run
# overwrites only its own config.yaml
mkdir own
printf 'train: {steps: 2} # mine\nmodel: {layers: 1, width: 16, heads: 1, context: 16}\ndata: {path: text.txt}\n' | tee own/config.yaml >mine
for flag in --no-fresh --fresh; do
    expect 2 "there is a 'config.yaml' in 'own' that is not of a run, .*choose another folder with --out" "$sifr" train own/config.yaml --out=own $flag
done
expect 2 "'config.yaml' in 'own' that is not of a run" "$sifr" train own/config.yaml --out=own -n 2 --comm.backend=threads
cmp -s own/config.yaml mine && [ "$(ls own)" = config.yaml ] && [ ! -e own.1 ] || fail "a folder of the user was changed: $(ls own)"
echo '{"step":1,"loss":2.5}' >own/metrics.jsonl # as other programs write them, too
for flag in --no-fresh --fresh; do
    expect 2 "there is a 'config.yaml' in 'own' that is not of a run" "$sifr" train own/config.yaml --out=own $flag
done
cmp -s own/config.yaml mine && [ "$(cat own/metrics.jsonl)" = '{"step":1,"loss":2.5}' ] && [ ! -e own.1 ] || fail "a folder of the user was changed: $(ls own)"
ok "$sifr" train own/config.yaml --out=own/run --quiet
ok "$sifr" train own/run/config.yaml --out=own/run --train.steps=4 --quiet
grep -q '^  steps: 4$' own/run/config.yaml && [ "$(wc -l <own/run/metrics.jsonl)" = 4 ] || fail "a run does not resume by its own config.yaml"
expect 2 "there is a 'config.json' in 'run/checkpoints/step-30'" "$sifr" train "${small[@]}" --data.path=text.txt --out=run/checkpoints/step-30

# --json: one object per line
ok "$sifr" train "${small[@]}" --data.path=text.txt --train.steps=3 --out=json --json
is_json out
[ "$(grep -c '"event": "step"' out)" = 3 ] || fail "not three step records"
head -1 out | grep -q '"schema": 1, "event": "start", .*"parameters"' || fail "no start record"
tail -1 out | grep -q '"event": "end", "end": "done", .*"val_loss": [0-9.]*' || fail "no end record"
ok "$sifr" train "${small[@]}" --data.path=text.txt --dry-run --json
is_json out
has '"fits": true'
[ ! -e runs ] || fail "--dry-run created a folder"

# the default folder is named after the file; flags win over the environment, which wins over the
# file
printf 'train: {steps: 9, lr: 1.0e-3}\nmodel: {layers: 1, width: 16, heads: 1, context: 16}\ndata: {path: text.txt}\n' >small.yaml
ok env SIFR_TRAIN_STEPS=5 SIFR_TRAIN_SEED=7 "$sifr" train small.yaml --train.steps=2 --quiet
grep -q '^  steps: 2$' runs/small/config.yaml && grep -q '^  seed: 7$' runs/small/config.yaml &&
    grep -q '^  lr: 0.001$' runs/small/config.yaml || fail "wrong precedence of flags, environment and file"

# eval: all of the run's own held-out data
ok "$sifr" eval run
has '^bits per byte +[0-9.]+$'
ok "$sifr" eval run --json
is_json out
loss=$(sed 's/.*"loss": \([0-9.]*\).*/\1/' out)
ok "$sifr" eval run/checkpoints/step-30 --json
grep -q "\"loss\": $loss" out || fail "the loss of the checkpoint differs from that of the run"
ok "$sifr" eval run/checkpoints/step-30 --data.val=text.txt --batch=3 --batches=2
has '^tokens +192,'
# from another folder, in which a file of the same name has other content
"$sifr" eval run | grep -E 'data|loss' >here
mkdir elsewhere
printf 'Something else entirely, which the model has never seen: %d\n' $(seq 200) >elsewhere/text.txt
(cd elsewhere && "$sifr" eval ../run | grep -E 'data|loss') >there || fail "eval from another folder"
cmp -s here there || fail "eval from another folder differs: $(cat there)"
mv text.txt away.txt
ok "$sifr" eval run --data.val=elsewhere/text.txt
has '^data +elsewhere/text.txt$'
mv away.txt text.txt

# sample: the same seed gives the same text; greedy text is the same with and without the KV cache
ok "$sifr" sample run "The quick" --tokens=12 --seed=5
cp out first
grep -q 'tok/s' err || fail "no tokens per second"
ok "$sifr" sample run --prompt="The quick" --tokens=12 --seed=5 --quiet
cmp -s out first || fail "the same seed gave another text"
[ ! -s err ] || fail "--quiet printed: $(head -1 err)"
ok "$sifr" sample --model.path=run/checkpoints/step-30 "The quick" --tokens=12 --seed=5
cmp -s out first || fail "--model.path gave another text"
ok "$sifr" sample run x --count=2 --json --tokens=3
is_json out
[ "$(wc -l <out)" = 2 ] || fail "--count=2 gave $(wc -l <out) texts"
ok "$sifr" sample run "The " --tokens=10 --temperature=0 --raw --ignore-eot
cp out cached
prompt="The "
for i in 1 2 3 4 5 6 7 8 9 10; do
    ok "$sifr" sample run "$prompt" --tokens=1 --temperature=0 --raw --ignore-eot
    prompt="$prompt$(cat out; echo x)"
    prompt=${prompt%x}
done
[ "$prompt" = "The $(cat cached)" ] || fail "with cache 'The $(cat cached)', without '$prompt'"
expect 2 "does not fit the context of 32" "$sifr" sample run "$(head -c 100 text.txt)"

# inspect recognizes files by content
ok "$sifr" inspect run
has 'kind +run folder'
has 'end +done'
ok "$sifr" inspect run --json
is_json out
ok "$sifr" inspect run/checkpoints/step-30
has 'arch +gpt2'
has 'transformer.wte.weight +F32 +\[257, 32\]'
cp run/checkpoints/step-30/model.safetensors weights.dat
ok "$sifr" inspect weights.dat --json
is_json out
has '"kind": "safetensors"'
cp run/checkpoints/step-30/tokenizer.json t.dat
ok "$sifr" inspect t.dat
has 'vocab +257'
expect 1 "cannot recognize 'text.txt'" "$sifr" inspect text.txt

# --threads is short for --run.threads in every command that computes
for flag in --threads=3 --run.threads=3 '--threads 3' '--run.threads=1 --threads=3' '--threads=1 --run.threads=3'; do
    ok "$sifr" train "${small[@]}" --data.path=text.txt --train.steps=1 --out=threads --fresh $flag
    has '^  machine +cpu, .*, 3 threads'
    ok "$sifr" eval run --batches=1 $flag
    ok "$sifr" sample run x --tokens=1 $flag
    ok "$sifr" plan "${small[@]}" --model.vocab=300 $flag
done
for command in train eval sample bench plan; do
    ok "$sifr" $command --help
    has ' --threads, --run.threads=N  '
    expect 2 "--threads must be a whole number from 0 to 4096, not 'x'" "$sifr" $command --threads=x
done

# bench, which takes seconds to measure sgemm: few calls
ok "$sifr" bench step --model.layers=1 --model.width=32 --model.heads=2 --model.context=32 --model.vocab=64 --batch=2 --steps=2 --json --run.threads=1 --threads=3
is_json out
has '"threads": 3'
has '"sgemm_gflops": [0-9.]+.*"tokens_per_second": [0-9.]+.*"sgemm_share"'
has '"device": "cpu"'
has '"mfu": null'
has '"peak": {"params": [0-9]+'
SIFR_RUN_THREADS=3 ok "$sifr" bench step --model.layers=1 --model.width=32 --model.heads=2 --model.context=32 --model.vocab=64 --steps=2 --peak-tflops=1
has '^sgemm .* on 3 threads$'
has 'mfu +[0-9.]+% of 1 TFLOP/s'
expect 2 "run.device: cuda: libsifr-cuda.so is not there" "$sifr" bench step --device=cuda --model.preset=tiny
expect 2 "unknown benchmark 'opz'" "$sifr" bench opz
expect 2 "no model: set --model.preset" "$sifr" bench step
finish
