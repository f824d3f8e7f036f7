#!/usr/bin/env bash
# model.arch sars from end to end: its keys, what it refuses and why, its figures, its model
# directory, and what may change when a run resumes.
. "$(dirname "$0")/common.sh" "$@"
sifr() { "$sifr" "$@"; }
make_text >text.txt
sizes=(--model.arch=sars --model.layers=2 --model.width=16 --model.heads=2 --model.context=16)
sars=("${sizes[@]}" --train.micro_batch=2 --train.global_batch=4 --train.lr=1e-3 --train.eval_batches=2 --data.path=text.txt)

# the run: a line, a record and a curve of its routing
ok sifr train "${sars[@]}" --train.steps=4 --out=run
has '^step     1/4 .* \| lr [^|]* \| active [0-9]+%, gated [0-9]+% \| meta [0-9.]+ \(norm [0-9.e+]+\) \|'
is_json run/metrics.jsonl
[ "$(grep -c '"sars":{"meta_loss":[0-9.]*,"meta_norm":.*,"layers":{"active":\[[^],]*,[^],]*\],"dead":' run/metrics.jsonl)" = 4 ] ||
    fail "not every record has its routing: $(head -n 1 run/metrics.jsonl)"
grep -qa 'sars/active/layer_1' run/events.out.tfevents.* || fail "no curve of the second layer"
grep -q '^  clip: 0$' run/config.yaml || fail "the norm is clipped: $(grep clip run/config.yaml)"
ok sifr train "${sars[@]}" --train.steps=2 --sars.gate=local --json --out=local
is_json out
grep '"event": "step"' out >steps
grep -q '"sars": {"meta_loss": [0-9.]*, .*"gated": null}' steps || fail "no routing: $(head -n 1 steps)"

# the second loss's gradient is clipped on its own, and its norm is that before
ok sifr train "${sars[@]}" --train.steps=4 --sars.meta_clip=1e-3 --out=clipped
cmp -s run/checkpoints/step-4/model.safetensors clipped/checkpoints/step-4/model.safetensors && fail "sars.meta_clip has no effect"
norms() { sed -n '1s/.*"meta_norm":\([^,]*\).*/\1/p' "$1/metrics.jsonl"; }
[ -n "$(norms run)" ] && [ "$(norms run)" = "$(norms clipped)" ] || fail "norms of step 1: '$(norms run)' and '$(norms clipped)'"

# any ZeRO stage and number of ranks has the same bits
ok sifr train -n 2 "${sars[@]}" --train.steps=4 --zero.stage=3 --out=ranks
cmp -s run/checkpoints/step-4/model.safetensors ranks/checkpoints/step-4/model.safetensors || fail "two ranks have other bits"

# the model directory
ok sifr inspect run/checkpoints/step-4
has '^ *arch +sars$'
has '^ *rope +no$'
ok sifr export run out-hf
grep -q '"architectures": \["SarsForCausalLM"\]' out-hf/config.json || fail "config.json: $(cat out-hf/config.json)"
ok sifr sample out-hf --tokens=4 -q The
ok sifr eval out-hf --data.val=text.txt --batches=2
ok sifr train --model.path=out-hf --data.path=text.txt --train.steps=1 --train.micro_batch=2 --sars.meta_weight=2 --out=more
grep -q '^  arch: sars$' more/config.yaml || fail "the model of model.path is not sars"
grep -q '^  meta_weight: 2$' more/config.yaml || fail "sars.meta_weight is lost"
expect 2 "sars.rope: true \(--sars.rope\), but the model at '[^']*' has false; leave the key out" \
    "$sifr" train --model.path=out-hf --data.path=text.txt --sars.rope --out=other
expect 2 "model.arch: gpt2 \(--model.arch\), but the model at '[^']*' has sars; leave the key out" \
    "$sifr" train --model.path=out-hf --data.path=text.txt --model.arch=gpt2 --out=other
sed 's/"rope": false/"rope": 0/' out-hf/config.json >config.json
cp config.json out-hf/config.json
expect 1 "rope is not true or false" "$sifr" inspect out-hf

# in bf16 frozen tensors are in the model file only; an export in f32 has them and the masters
ok sifr train "${sars[@]}" --train.steps=2 --precision.mode=bf16 --out=narrow
grep -qa proto_transform narrow/checkpoints/step-2/model.safetensors || fail "no frozen tensors in the model file"
grep -qa mu_weight narrow/checkpoints/step-2/optimizer/master.safetensors || fail "no masters"
grep -qa 'proto_transform\|proto_norm' narrow/checkpoints/step-2/optimizer/master.safetensors && fail "masters of frozen tensors"
ok sifr inspect --verify narrow
ok sifr export narrow wide --dtype=f32
has 'in f32, .*from the fp32 masters'
ok sifr export wide rounded --dtype=bf16
cmp -s rounded/model.safetensors narrow/checkpoints/step-2/model.safetensors || fail "the export changed values"
ok sifr export rounded widened --dtype=f32
expect 1 'differ in 3[0-8] of 62 tensors' "$sifr" inspect --diff wide widened # masters are not rounded, the 24 frozen tensors are equal
expect 0 'precision.mode: bf16 -> fp32' "$sifr" train "${sars[@]}" --train.steps=4 --out=narrow

# resuming: positions are a part of the model, how it is trained may change
expect 2 'sars.rope: false -> true' "$sifr" train "${sars[@]}" --train.steps=6 --sars.rope --out=run
expect 0 'sars.gate: global -> "?off' "$sifr" train "${sars[@]}" --train.steps=6 --sars.gate=off --out=run

# refused, with the reason
refuse() { # PATTERN OPTION: by every command that starts a run
    expect 2 "$1" "$sifr" train "${sars[@]}" "$2" --out=refused
    expect 2 "$1" "$sifr" plan "${sars[@]}" "$2"
    expect 2 "$1" "$sifr" bench step "${sizes[@]}" "$2"
}
refuse "precision.mode: model.arch sars cannot use fp16: .*1e-11.*; use bf16" --precision.mode=fp16
refuse "parallel.tp=2: model.arch sars cannot be split: .*all its neurons" --parallel.tp=2
refuse "parallel.pp=2: model.arch sars cannot be a pipeline: .*prototypes" --parallel.pp=2
expect 2 "optimizer.groups: '\*proto_norm\*' matches only parameters that are never updated" \
    "$sifr" train "${sars[@]}" --optimizer.groups='[{match: "*proto_norm*", lr_mul: 2}]' --out=refused
sars+=(--sars.gate=off) sizes+=(--sars.gate=off)
refuse "sars.gate: only model.arch sars has it, and the model is gpt2" --model.arch=gpt2
[ ! -e refused ] || fail "a refused run left a folder"
finish
