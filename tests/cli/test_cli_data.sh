#!/usr/bin/env bash
# Text is encoded once, into a cache in the run folder, and trains with the same bits as without a
# cache. Data that changed between two parts of a run is detected wherever the change is, and the
# message says what was compared.
. "$(dirname "$0")/common.sh" "$@"
export SIFR_RUN_THREADS=1
for _ in 1 2 3 4; do make_text; done >text.txt # about 130 kB
{
    printf '{"prompt": "what is %d", "completion": "it is %d indeed"}\n' $(seq 1 400)
    printf '{"text": "number %d follows number %d"}\n' $(seq 1 400)
} >pairs.jsonl
run=(--model.layers=1 --model.width=16 --model.heads=2 --model.context=16 --train.micro_batch=2 --train.global_batch=4 --train.steps=6
    --train.eval_every=3 --data.tokenizer=train:300)
cached() { find "$1/cache" -name 'tokens-*.bin' | wc -l; }
train() { # CODE FOLDER keys...: train; messages go to `err`
    local code=$1 folder=$2 got=0
    shift 2
    timeout 120 "$sifr" train "${run[@]}" --out="$folder" "$@" >out 2>err || got=$?
    [ $got = "$code" ] || fail "$folder $*: exit $got, not $code: $(head -c 400 err)"
}
same() { # A B WHAT
    cmp -s <(losses "$1") <(losses "$2") || fail "$3: losses differ"
    same_state "$1" "$2" 6 "$3"
}

# --- one cache file per source for all ranks: reused, rebuilt -------------------------------------
both="[{path: $work/text.txt, weight: 2}, {path: $work/pairs.jsonl, weight: 1}]"
train 0 one --data.mix="$both"
[ "$(cached one)" = 2 ] || fail "not one file per source: $(ls one/cache)"
train 0 four -n 4 --comm.backend=threads --zero.stage=3 --data.mix="$both"
same one four "four ranks"
[ "$(cached four)" = 2 ] || fail "not one file per source: $(ls four/cache)"
train 75 cut --data.mix="$both" --train.stop_at=2
stat -c '%i %Y' cut/cache/tokens-* >before
train 75 cut --data.mix="$both" --train.stop_at=4
stat -c '%i %Y' cut/cache/tokens-* | cmp -s - before || fail "the cache was rebuilt"
rm -r cut/cache # it can be rebuilt
train 0 cut --data.mix="$both"
[ "$(cached cut)" = 2 ] || fail "the cache was not rebuilt: $(ls cut)"
same one cut "without its cache"

# damage is detected and repaired; caches of other text are removed; the user's files stay
train 75 hurt --data.path=text.txt --train.stop_at=2
printf 'x' | dd of="$(echo hurt/cache/tokens-*)" bs=1 seek=6000 conv=notrunc status=none
echo mine >hurt/cache/notes
train 75 hurt --data.path=text.txt --train.stop_at=3
grep -q "rebuilding the token cache 'hurt/cache/tokens-.*': its content does not match its hash" err || fail "damage: $(cat err)"
train 75 hurt --data.path=text.txt --train.stop_at=4 --data.split=0.2
[ "$(cached hurt)" = 1 ] || fail "an unused cache is left: $(ls hurt/cache)"
[ "$(cat hurt/cache/notes)" = mine ] || fail "a file of the user is gone"

# --fresh renames the run and keeps the cache
train 0 one --fresh --data.mix="$both"
[ -d one.1 ] && [ "$(cached one)" = 2 ] || fail "--fresh: $(ls one one.1)"
same one four "--fresh"

# a cache that cannot be written: a message, and the same bits
train 75 full --data.mix="$both" --train.stop_at=1
rm -r full/cache
echo 'in the way' >full/cache
train 0 full --data.mix="$both"
grep -q "cannot be kept in 'full/cache': .*; this rank holds its own copy in memory" err || fail "no message: $(cat err)"
same one full "tokens in memory"
[ "$(cat full/cache)" = 'in the way' ] || fail "a file of the user is gone"

# a start that fails leaves nothing
expect 2 "longer than the data" "$sifr" train "${run[@]}" --out=none --data.path=text.txt --data.split=0.9 \
    --model.context=16000 --train.context=16000
[ ! -e none ] || fail "a failed start left $(find none)"

# --- the plan shows mapped bytes: an estimate before the text is encoded, then the exact number ---
figure() { sed -n "s/.*\"$1\": \([a-z0-9]*\).*/\1/p" out | head -1; }
plan=(train "${run[@]}" --out=plan --data.path=text.txt --data.val=pairs.jsonl)
ok "$sifr" "${plan[@]}" --dry-run
has '^data     about [0-9.]+k tokens in [0-9.]+ KiB, mapped: one copy for all ranks of a host$'
ok "$sifr" "${plan[@]}" --dry-run --json
about=$(figure data_bytes)
[ ! -e plan ] || fail "a plan created $(find plan)"
ok "$sifr" "${plan[@]}" --json
exactly=$(figure data_bytes)
[ "$exactly" = "$(cat plan/cache/tokens-* | wc -c)" ] || fail "$exactly bytes are mapped, but the files are: $(ls -l plan/cache)"
[ $((about * 10)) -gt $((exactly * 9)) ] && [ $((about * 10)) -lt $((exactly * 11)) ] || fail "estimated $about bytes, actual $exactly"
ok "$sifr" "${plan[@]}" --dry-run --json
[ "$(figure data_exact) $(figure data_bytes)" = "true $exactly" ] || fail "the plan does not use the cache: $(cat out)"
ok "$sifr" plan "${run[@]}" --data.path=text.txt
has '^data     about '
ok "$sifr" inspect plan
has 'cache .* of encoded text in 2 files; safe to delete'

# --- changed data ---------------------------------------------------------------------------------
train 75 changed --data.path=text.txt --train.stop_at=2
grep -qE 'compared' err && fail "compared, although there was no checkpoint: $(cat err)"
touch -d '2001-01-01' text.txt
train 75 changed --data.path=text.txt --train.stop_at=3
grep -qE 'sifr: the data matches the checkpoint \(compared: 1 file, 1[0-9.]+ KiB hashed whole\)$' err || fail "no message: $(cat err)"
! grep -q differ err || fail "a new modification time counts as a difference: $(cat err)"
cp text.txt good.txt
printf '%0100d' 0 | dd of=text.txt bs=1 seek=70000 conv=notrunc status=none # 100 bytes in the middle
train 75 changed --data.path=text.txt --train.stop_at=4 --data.tokenizer="$work/changed/checkpoints/step-3/tokenizer.json"
grep -qE 'warning: the data does not match the checkpoint \(compared: 1 file, 1[0-9.]+ KiB hashed whole\)' err ||
    fail "100 changed bytes in the middle are not detected: $(cat err)"
cp good.txt text.txt

# the same for token shards, at offsets that sampling could miss
"$sifr" tokenize text.txt --out=shards --tokenizer=bytes >out 2>err || fail "tokenize: $(cat err)"
shards=(--data.path=shards/train.bin --data.val=shards/val.bin --data.tokenizer=shards/tokenizer.json)
train 75 tokens "${shards[@]}" --train.stop_at=2
train 75 tokens "${shards[@]}" --train.stop_at=3
grep -q 'the data matches the checkpoint (compared: 2 files, ' err || fail "no message: $(cat err)"
for at in 50000 90000 130001; do # even bytes: the other half of a token is 0
    printf 'Z' | dd of=shards/train.bin bs=1 seek=$((at / 2 * 2)) conv=notrunc status=none
done
train 75 tokens "${shards[@]}" --train.stop_at=4
grep -q 'warning: the data does not match the checkpoint (compared: 2 files, .* hashed whole)' err || fail "the change is not detected: $(cat err)"

# --- held-out batches without labels: a warning, and the model is saved ---------------------------
{
    printf '{"prompt": "%0400d", "completion": "the end"}\n' 1
    printf '{"prompt": "what is %d", "completion": "it is %d indeed"}\n' $(seq 1 400)
} >masked.jsonl
train 0 masked --data.path=pairs.jsonl --data.val=masked.jsonl --train.eval_batches=1
[ "$(grep -c 'no evaluation after step 3: all labels of the held-out batches are masked' err)" = 1 ] || fail "no labels: $(cat err)"
[ "$(grep -c 'no evaluation' err)" = 1 ] || fail "the warning is not logged once: $(cat err)"
[ -f masked/checkpoints/step-6/model.safetensors ] || fail "the model is lost: $(ls masked)"
grep -q '"val"' masked/metrics.jsonl && fail "an evaluation without labels: $(cat masked/metrics.jsonl)"
train 0 masked2 -n 3 --comm.backend=threads --zero.stage=3 --data.path=pairs.jsonl --data.val=masked.jsonl --train.eval_batches=1
same masked masked2 "three ranks without evaluation"
expect 1 "the held-out data has no labels: all are masked" "$sifr" eval masked --data.val=masked.jsonl --batches=1

# --- steps without labels: skipped with one warning, on any ranks; a run that has only such steps ends ---
one=(--train.micro_batch=1 --train.global_batch=1 --data.split=0 --data.tokenizer=bytes)
{
    printf '{"prompt": "%0200d", "completion": "the end"}\n' $(seq 1 20)
    printf '{"prompt": "what is %d", "completion": "it is %d indeed"}\n' $(seq 1 60)
} >some.jsonl
for ranks in 1 3; do
    train 0 some$ranks "${one[@]}" --data.path=some.jsonl --train.steps=12 -n $ranks --comm.backend=threads --zero.stage=2
    [ "$(grep -c 'step [0-9]* skipped: all its labels are masked; the run continues (logged once)' err)" = 1 ] || fail "steps without labels: $(cat err)"
done
skips=$(grep -c '"loss":null.*"skipped":true' some1/metrics.jsonl)
[ "$skips" -ge 2 ] && [ "$skips" -lt 12 ] || fail "$skips of 12 steps are skipped: no good data for this test"
grep -q "\"skipped\": $skips," some1/summary.json || fail "summary.json has other skipped steps: $(grep skipped some1/summary.json)"
cmp -s <(losses some1) <(losses some3) || fail "steps without labels: other losses with 3 ranks"
same_state some1 some3 12 "steps without labels, 1 and 3 ranks"
train 75 some-cut "${one[@]}" --data.path=some.jsonl --train.steps=12 --train.stop_at=6
train 0 some-cut "${one[@]}" --data.path=some.jsonl --train.steps=12
same_state some1 some-cut 12 "steps without labels, resumed"
printf '{"prompt": "%020000d", "completion": "the end"}\n' 1 >none.jsonl
train 1 none "${one[@]}" --data.path=none.jsonl
grep -qE 'error: all labels of the first 5 steps are masked \(train.max_skips\); check the data' err || fail "no labels at all: $(cat err)"
finish
