#!/usr/bin/env bash
# train.noise_scale: where its figures appear, that they continue exactly after a resume on other ranks, and what
# is said about a step with one micro-batch.
. "$(dirname "$0")/common.sh" "$@"
make_text >text.txt
export SIFR_RUN_THREADS=1
run=("${small[@]}" --train.micro_batch=2 --train.global_batch=8 --train.steps=8 --train.log_every=1 --data.path=text.txt)
noise() { grep -oE '"noise_(scale|square|trace)":[^,]*' "$1/metrics.jsonl"; }

ok "$sifr" train "${run[@]}" --train.noise_scale=yes --out=whole
[ "$(grep -c '"noise_square":.*"noise_trace":' whole/metrics.jsonl)" = 8 ] || fail "metrics.jsonl: $(tail -n 1 whole/metrics.jsonl)"
grep -q '"noise_scale":' whole/metrics.jsonl || fail 'metrics.jsonl has no noise_scale'
has 'step +8/8 .* \| noise [0-9]'
has '^ +noise +scale [0-9.]+k? sequences; a batch of 8 is'
grep -q '"noise_scale": [0-9]' whole/summary.json || fail "summary.json: $(cat whole/summary.json)"
for tag in noise/scale noise/square noise/trace; do
    grep -aq "$tag" whole/events.out.* || fail "TensorBoard has no $tag"
done

# the same bits on other ranks, stopped and resumed
expect 75 'stopped after step 3' "$sifr" train "${run[@]}" --train.noise_scale=yes --train.stop_at=3 -n 2 --zero.stage=2 --comm.backend=threads --out=cut
ok "$sifr" train "${run[@]}" --train.noise_scale=yes -n 3 --zero.stage=3 --comm.backend=threads --out=cut
cmp -s <(noise whole) <(noise cut) || fail 'the noise scale of a resumed run differs'

# off: no field; one micro-batch: said, and no field
ok "$sifr" train "${run[@]}" --out=off
[ -z "$(noise off)" ] || fail "off: $(noise off)"
ok "$sifr" train "${run[@]}" --train.micro_batch=8 --train.noise_scale=yes --out=one
grep -q 'one micro-batch cannot tell its noise; set train.micro_batch to at most half of train.global_batch (8)' err || fail "no warning: $(cat err)"
[ -z "$(noise one)" ] || fail "one micro-batch: $(noise one)"
finish
