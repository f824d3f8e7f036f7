#!/usr/bin/env bash
# sifr plan --noise-scale and --run: steps and time to the same loss against the number of ranks,
# the warning about a large batch, the JSON, and mistakes.
. "$(dirname "$0")/common.sh" "$@"
unset SIFR_RUN_THREADS

model=(--model.arch=llama --model.layers=4 --model.width=256 --model.heads=4 --model.ff=768 --model.context=128
    --model.vocab=1024 --model.tied=no --precision.mode=bf16)
keys=("${model[@]}" --train.global_batch=64 --train.steps=1000)
warned() { grep -q "^sifr: warning: the global batch of" err; }

# Steps only: without a machine nothing is timed. S_min = 1000 / (1 + 192 / 64) = 250. From 32 to 64
# ranks the steps fall from 344 to 297, by 14 %; from 16 to 32 ranks by 21 %.
ok "$sifr" plan "${keys[@]}" -n 4 --train.micro_batch=8 --noise-scale=192
has '^noise    scale 192 sequences, as given$'
has '^batch    64 sequences: 0.333 times the noise scale; 1000 steps$'
has '^law      the same loss takes 250 x \(1 \+ 192 / batch\) steps and 48.0k x \(1 \+ batch / 192\) sequences,$'
has '^note     nothing is timed without a machine: '
has '^      1          16         3250              1.0 x    1.08 x$'
has '^      4          64         1000              3.2 x    1.33 x  the run$'
has '^   1024       16384          253             12.8 x   86.33 x$'
[ "$(grep -cE '^ +[0-9]+ +[0-9]+ +[0-9]+ +[0-9.]+ x' out)" = 11 ] || fail "not 11 rows: $(cat out)"
has '^steps to the same loss against ranks$'
has '^beyond 32 ranks, doubling the ranks saves less than 20 % of the steps$'
has '^from 16 ranks on the batch is above the noise scale: more than twice the least tokens$'
! warned || fail "a warning below the noise scale"
# A batch above the noise scale: 64 / 20 = 3.2, 1 + 3.2 = 4.2 times the tokens; (1 + 20 / 64) / 2 of
# the steps.
ok "$sifr" plan "${keys[@]}" --train.micro_batch=8 --noise-scale=20
grep -qE '^sifr: warning: the global batch of 64 is 3.2 times the noise scale 20: it needs 4.2 times the tokens of a small batch, and saves 34 % of the steps of a batch of 20; lower train.global_batch' err ||
    fail "no warning: $(cat err)"
ok "$sifr" plan "${keys[@]}" -n 4 --train.micro_batch=8 --noise-scale=20 --json
is_json out
warned || fail "no warning with --json"
has '"above_noise_scale": true, "timed": false, "ranks": 4, "rows": \[\{"ranks": 1, "fits": true, "best": \{"global_batch": 16, '
# A copy of the model takes tp x pp ranks.
ok "$sifr" plan "${keys[@]}" -n 8 --parallel.tp=2 --parallel.pp=2 --train.micro_batch=1 --noise-scale=20
has '^      4          32 '
! grep -qE '^      2 ' out || fail "fewer ranks than a copy of the model has"

# One row says nothing about more ranks; a scale may have a suffix.
ok "$sifr" plan "${keys[@]}" --gpus=1 --noise-scale=1k
has '^noise    scale 1000 sequences, as given$'
! grep -q doubling out || fail "one row: $(grep doubling out)"

# With a machine: a row for 1, 2, 4, ... and all ranks, each with its best batch and layout.
ok "$sifr" plan "${keys[@]}" --gpus=6 --noise-scale=192
has '^cluster  6 ranks on nodes of 8, h100'
has '^search   [0-9]+ layouts: '
has '^  ranks +step +time +batch +steps +step +time +speed-up +efficiency +tokens  layout$'
for ranks in 1 2 4 6; do
    has "^ +$ranks +[0-9.]+ m?s .* tp [0-9]+ pp [0-9]+ dp [0-9]+ stage [0-3] micro-batch [0-9]+$"
done
has '^(seconds|minutes) to the same loss against ranks: line = best batch, .* = batch 64$'
ok "$sifr" plan "${keys[@]}" --gpus=16 --noise-scale=192 --json
is_json out
if has_program python3 "the figures of --json"; then
    cp out batch.json
    ok "$sifr" plan "${keys[@]}" --gpus=16 --top=1 --json
    python3 - <<'PY' || fail "wrong figures"
import json
b, p = json.load(open("batch.json")), json.load(open("out"))
assert b["timed"] and not b["above_noise_scale"] and b["machine"] == "h100"
assert abs(b["least_steps"] - 250) < 1e-9 and abs(b["least_sequences"] - 48000) < 1e-6
assert [r["ranks"] for r in b["rows"]] == [1, 2, 4, 8, 16]
last = None
for r in b["rows"]:
    g, t = r["given"], r["best"]
    assert g["global_batch"] == 64 and abs(g["steps"] - 1000) < 1e-9
    for x in (g, t):
        n = x["global_batch"]
        assert abs(x["steps"] - 250 * (1 + 192 / n)) < 1e-6 and abs(x["samples"] - (1 + n / 192)) < 1e-9
        assert abs(x["seconds"] - x["steps"] * x["step_s"]) < 1e-9 * x["seconds"]
        assert x["tp"] * x["pp"] * x["dp"] == r["ranks"]
    assert t["seconds"] <= g["seconds"]
    assert abs(r["speedup"] - b["rows"][0]["best"]["seconds"] / t["seconds"]) < 1e-9
    assert abs(r["efficiency"] - r["speedup"] / r["ranks"]) < 1e-9
    last = g
# the row of all ranks with the given batch is what the search finds without a noise scale
assert last["step_s"] == p["layouts"][0]["step_s"], (last, p["layouts"][0])
PY
fi
# Ranks on which nothing is possible are named; if nothing fits at all, the search says why.
ok "$sifr" plan "${keys[@]}" --gpus=4 --parallel.tp=4 --noise-scale=192
has '^      1  no layout fits$'
has '^      4 .* 1.0 x .*tp 4 pp 1 dp 1 '
expect 4 'no layout of 2 ranks fits in memory' "$sifr" plan "${keys[@]}" --gpus=2 --memory=10M --noise-scale=192
expect 2 'parallel.tp=3 needs 3 ranks, but there are 2' "$sifr" plan "${keys[@]}" --gpus=2 --parallel.tp=3 --noise-scale=192

# The noise scale of a run: the last one in metrics.jsonl, or else in summary.json.
mkdir run ended none empty
printf '{"step":1,"noise_scale":10.5}\n{"step":2,"noise_scale":192}\n{"step":3}\n{"step":4,"noise_sca' >run/metrics.jsonl
printf '{"step":1}\n' >ended/metrics.jsonl
printf '{"end": "done",\n "steps": 7,\n "noise_scale": 48.25}\n' >ended/summary.json
printf '{"step":1,"loss":3}\n' >none/metrics.jsonl
ok "$sifr" plan "${keys[@]}" --train.micro_batch=8 --run=run
has '^noise    scale 192 sequences, measured by run after step 2$'
ok "$sifr" plan "${keys[@]}" --train.micro_batch=8 --run ended --json
has '"noise_scale": 48.25, "run": "ended", "run_step": 7, '
expect 2 "the run in 'none' has no noise scale; train with --train.noise_scale=yes and at least two micro-batches per step" \
    "$sifr" plan "${keys[@]}" --run=none
expect 2 "'empty' is not the folder of a run: it has no metrics.jsonl and no summary.json" "$sifr" plan "${keys[@]}" --run=empty
expect 2 "'missing' is not the folder of a run" "$sifr" plan "${keys[@]}" --run=missing

# Mistakes.
expect 2 '\-\-noise-scale=0 is too small' "$sifr" plan "${keys[@]}" --noise-scale=0
expect 2 'noise-scale' "$sifr" plan "${keys[@]}" --noise-scale=-3
expect 2 '\-\-noise-scale and --run cannot be combined' "$sifr" plan "${keys[@]}" --noise-scale=3 --run=run
expect 2 'lines needs a single layout: omit the noise scale' "$sifr" plan "${keys[@]}" --noise-scale=3 --lines
expect 2 '\-\-top has no effect with a noise scale' "$sifr" plan "${keys[@]}" --gpus=2 --noise-scale=3 --top=2
expect 2 '\-\-machine works only with --gpus' "$sifr" plan "${keys[@]}" --noise-scale=3 --machine=h100
finish
