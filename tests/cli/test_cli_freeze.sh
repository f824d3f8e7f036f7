#!/usr/bin/env bash
# train.freeze: frozen tensors keep their bits while the others change; memory and traffic follow the
# plan; a run cannot resume with other frozen tensors; wrong globs are refused.
. "$(dirname "$0")/common.sh" "$@"

make_text >text.txt
keys=(--model.arch=llama --model.layers=2 --model.width=64 --model.heads=4 --model.kv_heads=4 --model.ff=128 --model.vocab=320 --model.context=16
    --model.tied=no --data.path=text.txt --data.tokenizer=bytes --train.micro_batch=1 --train.global_batch=4 --train.eval_every=0)
ok "$sifr" train "${keys[@]}" --train.steps=2 --out=start --quiet
ok "$sifr" export start model
fine=(--model.path=model --data.path=text.txt --train.micro_batch=1 --train.global_batch=4 --train.eval_every=0 --train.steps=4)

# 1. Only what is not frozen changes, also with weight decay and on several ranks.
for ranks in 1 2; do
    ok "$sifr" train "${fine[@]}" --train.freeze='*norm*,*embed*,*.mlp.*' -n $ranks --zero.stage=$((ranks + 1)) --out=run$ranks --quiet
    "$sifr" inspect --diff model run$ranks >out 2>err || true
    has 'tensors +21'
    has 'equal +12'    # 5 norms, the embedding, 2 x 3 matrices
    has 'differing +9' # 2 x 4 matrices of attention, the head
done
cmp -s run1/checkpoints/step-4/model.safetensors run2/checkpoints/step-4/model.safetensors || fail "other bits on two ranks"
cat run1/checkpoints/step-4/optimizer/*.safetensors | tr -c '[:print:]' '\n' >names
grep -q 'q_proj' names || fail "q_proj has no optimizer state"
! grep -qE 'embed_tokens|norm|mlp' names || fail "frozen tensors have optimizer state"

# 2. Resuming needs the same frozen tensors; the same command finds the run done.
expect 2 'train.freeze' "$sifr" train "${fine[@]}" --train.steps=6 --train.freeze='*norm*' --out=run1 --quiet
ok "$sifr" train "${fine[@]}" --train.steps=6 --train.freeze='*norm*,*embed*,*.mlp.*' --out=run1 --quiet

# 3. Bad globs.
expect 2 "train.freeze: '\*nrom\*' matches no parameter; names look like" "$sifr" train "${fine[@]}" --train.freeze='*nrom*' --out=bad
expect 2 'train.freeze: every parameter' "$sifr" train "${fine[@]}" --train.freeze='*' --out=bad
expect 2 'q_proj.weight. would be frozen' "$sifr" plan "${keys[@]}" --train.freeze='*q_proj*'

# 4. Memory and traffic: as planned, and less by what is frozen.
has_program python3 "memory and traffic" || { finish; exit; }
for freeze in '' '*norm*,*embed*,*.mlp.*'; do
    name=${freeze:+frozen}
    ok "$sifr" plan "${keys[@]}" --train.freeze="$freeze" -n 2 --json
    mv out "plan$name.json"
    for stage in 0 1 2 3; do
        ok "$sifr" train "${keys[@]}" --train.freeze="$freeze" -n 2 --comm.backend=threads --zero.stage=$stage --train.steps=3 \
            --checkpoint.every=0 --out="stage$stage$name" --quiet
    done
done
python3 - <<'PY' || fail "memory or traffic of a run with frozen parameters differ from the plan"
import json
FROZEN = 5 * 64 + 320 * 64 + 2 * 3 * 64 * 128
for name in ("", "frozen"):
    plan = json.load(open(f"plan{name}.json"))
    for stage in range(4):
        rank = plan["stages"][stage]["rank"]
        step = json.loads(open(f"stage{stage}{name}/metrics.jsonl").read().split("\n")[1])
        for purpose in ("gather", "reduce"):
            assert step["comm"].get(purpose, 0) == rank["sent"].get(purpose, 0), (name, stage, purpose, step["comm"], rank["sent"])
        for category in ("params", "grads", "optimizer", "slots", "comm"):
            assert step["mem"].get(category, 0) == rank["mem"].get(category, 0), (name, stage, category)
        if name:
            whole = json.loads(open(f"stage{stage}/metrics.jsonl").read().split("\n")[1])
            share = 1 if stage == 0 else 2
            saved = whole["mem"]["optimizer"] - step["mem"]["optimizer"]
            assert abs(saved - 8 * FROZEN / share) <= 64 * 64, (stage, saved)
            less = whole["comm"]["reduce"] - step["comm"]["reduce"]
            assert abs(less - 2 * 4 * FROZEN / 2) <= 64 * 64, (stage, less)  # two micro-batches each
PY

# 5. Blocks below the first one that learns have no backward pass: they keep no activations, stage 3
# gathers them once, and TP ranks meet half as often there. The plan agrees with the run.
keys+=(--model.layers=4)
low=('--train.freeze=*embed*,*.layers.[0-2].*')
run=(--train.steps=2 --checkpoint.every=0 -n 2 --comm.backend=threads --quiet)
ok "$sifr" train "${keys[@]}" "${run[@]}" --zero.stage=3 --out=whole
ok "$sifr" train "${keys[@]}" "${run[@]}" "${low[@]}" --zero.stage=3 --out=low
ok "$sifr" train "${keys[@]}" "${run[@]}" "${low[@]}" --parallel.tp=2 --out=tp
ok "$sifr" plan "${keys[@]}" "${low[@]}" -n 2 --json
mv out planlow.json
ok "$sifr" plan "${keys[@]}" "${low[@]}" -n 2 --parallel.tp=2 --json
mv out plantp.json
python3 - <<'PY' || fail "memory or traffic of a run with frozen low layers differ from the plan"
import json
def step(run):
    return json.loads(open(f"{run}/metrics.jsonl").read().split("\n")[1])
plan, low, whole = json.load(open("planlow.json"))["stages"][3]["rank"], step("low"), step("whole")
assert low["comm"]["gather"] == plan["sent"]["gather"], (low["comm"], plan)
assert low["mem"]["activations"] == plan["mem"]["activations"] < 0.6 * whole["mem"]["activations"], (low["mem"], whole["mem"])
blocks = 3 * (2 * 64 + 4 * 64 * 64 + 3 * 64 * 128)
assert whole["comm"]["gather"] - low["comm"]["gather"] == 2 * 4 * blocks // 2, (whole["comm"], low["comm"])
plan, tp = json.load(open("plantp.json"))["stages"][0]["rank"], step("tp")
assert tp["comm"]["tensor"] == plan["sent"]["tensor"], (tp["comm"], plan)
assert abs(plan["sent"]["tensor"] - plan["tensor_formula_bytes"]) <= 8, plan  # the sum of norms
PY
finish
