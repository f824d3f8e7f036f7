#!/usr/bin/env bash
# Tensor parallelism over MPI: the losses match those of one rank, any other mesh resumes from the
# checkpoints, plans match the memory and traffic of runs, and invalid layouts are refused.
. "$(dirname "$0")/common.sh" "$@"
command -v python3 >/dev/null || skip_all "python3 is not installed"
export SIFR_RUN_THREADS=1
make_text >text.txt
keys=(--model.layers=2 --model.width=32 --model.heads=4 --model.context=32 --train.micro_batch=2 --train.global_batch=8 --train.lr=3e-3
    --data.path=text.txt --data.tokenizer=bytes --train.eval_every=0)

train() { # FOLDER RANKS keys...
    local folder=$1 ranks=$2
    shift 2
    ok "$sifr" train "${keys[@]}" -n "$ranks" --out="$folder" --quiet "$@"
    sed 's/.*"loss":\([^,]*\),"grad_norm":\([^,]*\),.*/\1 \2/' "$folder/metrics.jsonl" >"$folder.loss"
}
near() { # A B BOUND WHAT: the relative difference of the losses must be within BOUND
    python3 - "$1.loss" "$2.loss" "$3" <<'PY' || fail "$4: losses differ"
import sys
a, b = ([float(l.split()[0]) for l in open(f)] for f in sys.argv[1:3])
worst = max(abs(x / y - 1) for x, y in zip(a, b))
assert len(a) == len(b) and worst <= float(sys.argv[3]), worst
PY
}

# The losses of 50 steps.
for arch in gpt2 llama; do
    more=(--model.arch=$arch --train.steps=50)
    [ $arch = gpt2 ] || more+=(--model.kv_heads=2)
    train $arch-1 1 "${more[@]}"
    [ "$(wc -l <$arch-1.loss)" = 50 ] || fail "$arch: no losses"
    for tp in 2 4; do
        train $arch-$tp $tp "${more[@]}" --parallel.tp=$tp
        near $arch-1 $arch-$tp 1e-4 "$arch, tp $tp"
        train $arch-$tp-sp $tp "${more[@]}" --parallel.tp=$tp --parallel.sequence=true
        near $arch-1 $arch-$tp-sp 1e-4 "$arch, tp $tp, sequence parallel"
    done
    for file in model.safetensors optimizer/momentum.safetensors optimizer/variance.safetensors; do
        [ "$(wc -c <$arch-1/checkpoints/step-50/$file)" = "$(wc -c <$arch-4/checkpoints/step-50/$file)" ] ||
            fail "$arch: $file has a different size with tp 4"
    done
done

# A run that is stopped and resumed on another mesh: the same bits with the same tp, otherwise equal
# up to rounding.
mesh=(--parallel.tp=2 --parallel.pp=2 --zero.stage=3)
steps=(--train.steps=8 --train.eval_every=4 --train.eval_batches=2 --train.sample_every=4 --train.sample_tokens=8 --checkpoint.every=2)
train straight 2 "${steps[@]}" --parallel.tp=2
train spread 8 "${steps[@]}" "${mesh[@]}"
cmp -s straight.loss spread.loss || fail "tp 2: losses differ on another mesh"
cmp -s straight/samples.jsonl spread/samples.jsonl || fail "tp 2: samples differ on another mesh"
expect 75 'stopped after step 4' "$sifr" train "${keys[@]}" "${steps[@]}" "${mesh[@]}" -n 8 --out=stopped --train.stop_at=4
resume() { # FOLDER RANKS keys...
    cp -r stopped "$1"
    train "$@" "${steps[@]}"
}
resume same-1 2 --parallel.tp=2 --parallel.pp=1 --zero.stage=0
resume same-2 6 --parallel.tp=2 --parallel.pp=3 --zero.stage=1
for folder in spread same-1 same-2; do
    cmp -s straight.loss $folder.loss || fail "$folder: losses differ"
    for file in model.safetensors optimizer/momentum.safetensors optimizer/variance.safetensors; do
        cmp -s straight/checkpoints/step-8/$file $folder/checkpoints/step-8/$file || fail "$folder: $file differs"
    done
done
resume one 1
grep -q 'the configuration has changed.*parallel.tp: 2 -> 1' err || fail "no message about the changed tp: $(head -c 400 err)"
resume three 3 --parallel.pp=3
cmp -s one.loss three.loss || fail "tp 1: losses differ on another mesh"
resume four 4 --parallel.tp=4
for folder in one four; do
    near straight $folder 1e-5 "$folder"
done
ok "$sifr" eval --model.path=four/checkpoints/step-8 --data.path=text.txt
ok "$sifr" inspect four/checkpoints/step-8

# A model from model.path.
keys_of_path=(--model.path=one/checkpoints/step-8 --data.path=text.txt --train.micro_batch=2 --train.global_batch=8 --train.steps=3
    --train.eval_every=0 --quiet)
for tp in 1 2; do
    ok "$sifr" train "${keys_of_path[@]}" -n $((2 * tp)) --parallel.tp=$tp --parallel.pp=2 --out=path-$tp
    sed 's/.*"loss":\([^,]*\),.*/\1/' path-$tp/metrics.jsonl >path-$tp.loss
done
near path-1 path-2 1e-5 "model.path, tp 2"

# The run matches the plan in memory and traffic, and the plan is close to the formulas.
plan=(--train.steps=3 --parallel.tp=2 --zero.stage=2)
for sequence in false true; do
    ok "$sifr" plan "${keys[@]}" "${plan[@]}" -n 4 --parallel.sequence=$sequence --json
    mv out plan.json
    train planned-$sequence 4 "${plan[@]}" --parallel.sequence=$sequence
    python3 - planned-$sequence/metrics.jsonl <<'PY' || fail "sequence $sequence: the run does not match the plan"
import json, sys
plan = json.load(open("plan.json"))
rank = plan["stages"][2]["rank"]
step = json.loads(open(sys.argv[1]).read().split("\n")[1])
for category, planned in rank["mem"].items():
    if category not in ("loader", "other"): # a run reports the maximum of each, a plan the rank with the largest total
        bound = 0.03 * planned if category in ("scratch", "snapshot", "comm") else 0
        assert abs(step["mem"][category] - planned) <= bound, (category, planned, step["mem"])
assert abs(rank["sent"]["tensor"] / rank["tensor_formula_bytes"] - 1) < 0.01, rank
for mode, block in plan["block"].items():
    assert 0 < block["kept_bytes"] <= block["formula_bytes"], (mode, block)
for way, planned in rank["sent"].items():
    assert step["comm"][way] == planned, (way, planned, step["comm"])
PY
done

# OLMo 2 sums norms over the heads of all ranks in its backward pass, where others gather again.
for way in false true; do
    ok "$sifr" train "${keys[@]}" --model.arch=olmo2 -n 2 --train.steps=3 --out=olmo-$way --parallel.tp=2 --parallel.sequence=true --parallel.regather=$way
done
cmp olmo-false/checkpoints/step-3/model.safetensors olmo-true/checkpoints/step-3/model.safetensors || fail "OLMo 2 with parallel.regather"

# The trace has a lane for the TP group, calls end before their pass does, and the table shows how
# much communication was hidden.
ok "$sifr" train "${keys[@]}" --model.arch=llama -n 2 --train.steps=3 --out=traced --parallel.tp=2 --parallel.sequence=true \
    --parallel.regather=true --trace=2:3
has '^  to the TP group +[0-9.]+ [KM]iB'
has '^  hidden, TP +[0-9.]+%  of [0-9.]+(us|ms|s) in TP groups; compute waited'
python3 - <<'PY' || fail "the trace of tensor-parallel ranks"
import json
events = json.load(open("traced/trace-rank-0.json"))["traceEvents"]
lanes = {e["args"]["name"]: e["tid"] for e in events if e["name"] == "thread_name"}
calls = [e for e in events if e["ph"] == "X" and e["tid"] % 16 == lanes["tensor"]]
for name in ("rows in", "sum out", "gradient in", "gradient out", "rows again", "parts of losses", "partial gradients"):
    assert any(e["name"] == "tensor " + name and e["args"]["bytes"] > 0 for e in calls), name
again = [e for e in calls if e["name"] == "tensor rows again"]
assert len(again) == 2 * 4 * 2 * 2, "steps, micro-batches, layers, halves"
passes = [e for e in events if e["ph"] == "X" and e["name"].startswith("block") and e["name"].endswith("backward")]
for e in again:
    assert any(p["ts"] <= e["ts"] and e["ts"] + e["dur"] <= p["ts"] + p["dur"] for p in passes), "a call ends after its pass"
step = json.loads(open("traced/metrics.jsonl").read().split("\n")[1])["comm"]
assert 0 < step["tensor_waited"] and 0 < step["tensor_in_flight"] == step["in_flight"], step
PY

# A key without effect gets a warning, from plan and from train.
warns() { # LINE keys...: each command must print exactly this warning
    local line=$1
    shift
    for command in "plan" "train --dry-run" "train --quiet --out=told-$((++told_count)) --train.steps=1"; do
        ok "$sifr" $command "${keys[@]}" -n 2 "$@"
        [ "$(grep -c "^sifr: warning: $line\$" err)" = 1 ] || fail "$command $*: no warning '$line': $(head -c 300 err)"
    done
}
told_count=0
for key in schedule=interleaved schedule=zero-bubble chunks=2 eager=true; do
    warns "parallel.${key%=*} has no effect: it needs parallel.pp above 1" --parallel.$key
done
warns 'parallel.sequence has no effect: it needs parallel.tp above 1' --parallel.sequence=true
warns 'parallel.regather has no effect: it needs parallel.sequence and parallel.tp above 1' --parallel.tp=2 --parallel.regather=true
ok "$sifr" plan "${keys[@]}" -n 4 --parallel.tp=2 --parallel.sequence=true --parallel.regather=true --parallel.pp=2 --parallel.schedule=interleaved
! grep -q 'has no effect' err || fail "a warning although all keys have an effect: $(cat err)"

# plan and train refuse invalid layouts before anything is built, with a value that works.
refused() { # PATTERN RANKS keys...
    local pattern=$1 ranks=$2
    shift 2
    expect 2 "$pattern" "$sifr" plan "${keys[@]}" -n "$ranks" "$@"
    expect 2 "$pattern" "$sifr" train "${keys[@]}" -n "$ranks" --out=no "$@"
}
refused 'parallel.tp=3 cannot split model.heads=4; with 3 ranks try 1$' 3 --parallel.tp=3
refused 'parallel.tp=8 cannot split model.heads=4; with 8 ranks try 4$' 8 --parallel.tp=8
refused 'parallel.tp=2 cannot split model.ff=63; with 2 ranks try 1$' 2 --parallel.tp=2 --model.ff=63
refused 'parallel.tp=3 cannot split model.kv_heads=2; with 3 ranks try 1$' 3 --parallel.tp=3 --model.arch=llama --model.heads=6 \
    --model.width=48 --model.kv_heads=2
# no tokenizer has a vocabulary this small, so without data
expect 2 'parallel.tp=2 cannot split model.vocab=1; with 2 ranks try 1$' "$sifr" plan "${keys[@]:0:7}" -n 2 --parallel.tp=2 --model.vocab=1
refused 'parallel.tp=2 does not divide 3 ranks; try 1$' 3 --parallel.tp=2
refused 'parallel.tp=4 needs 4 ranks, but there are 2; start more \(-n\) or try 2$' 2 --parallel.tp=4
expect 2 'parallel.tp=4 does not divide 14 ranks; try 2$' "$sifr" plan "${keys[@]}" -n 14 --parallel.tp=4 # 7 divides 14, but not the heads
refused 'parallel.pp=2 does not divide 3 groups of parallel.tp=2; try 1 or 3$' 6 --parallel.tp=2 --parallel.pp=2
refused 'parallel.pp=5 exceeds the 4 units of the model; try 1$' 10 --parallel.tp=2 --parallel.pp=5
expect 2 'parallel.pp=4 does not divide 14 ranks; try 2$' "$sifr" plan "${keys[@]}" -n 14 --parallel.pp=4 # 7 divides 14, but there are only 4 units
refused 'parallel.sequence: 4 ranks do not divide the 62 rows of a micro-batch of 2 sequences of 31 tokens; use 4 sequences, a multiple of 4 tokens' \
    4 --parallel.tp=4 --parallel.sequence=true --train.context=31
[ ! -e no ] || fail "a refused run left a folder"
finish
