#!/usr/bin/env bash
# What two ranks with 8 micro-batches each send per step, and the gradients that they hold, for every
# ZeRO stage, zero.accumulate and precision.accumulate: as `sifr plan` says, and as the formulas say.
# Prints the table of docs/zero.md: tests/cli/test_cli_volumes.sh BUILD
. "$(dirname "$0")/common.sh" "$@"

command -v python3 >/dev/null || skip_all "python3 is not installed"
make_text >text.txt
# Every piece is a multiple of 64 x 2 elements, so nothing is padded.
keys=(--model.arch=llama --model.layers=4 --model.width=128 --model.heads=4 --model.kv_heads=4 --model.ff=256 --model.vocab=320 --model.context=16
    --model.tied=no --precision.mode=bf16 --data.path=text.txt --data.tokenizer=bytes --train.micro_batch=1 --train.global_batch=16 --train.steps=3
    --train.eval_every=0 --checkpoint.every=0 -n 2 --comm.backend=threads)
for accumulate in each local; do
    for sums in fp32 bf16; do
        way=(--zero.accumulate=$accumulate --precision.accumulate=$sums)
        ok "$sifr" plan "${keys[@]}" "${way[@]}" --json
        mv out $accumulate-$sums.json
        for stage in 0 1 2 3; do
            ok "$sifr" train "${keys[@]}" "${way[@]}" --zero.stage=$stage --out=$accumulate-$sums-$stage --quiet
        done
    done
done
python3 - <<'PY' || fail "the volumes of a run differ from its plan or from the formulas"
import json
WIDTH, RANKS, ROUNDS = 2, 2, 8
ways = [(accumulate, sums) for accumulate in ("each", "local") for sums in ("fp32", "bf16")]
cells = {}
for accumulate, sums in ways:
    plan = json.load(open(f"{accumulate}-{sums}.json"))
    psi = plan["parameters"]
    assert plan["rounds"] == ROUNDS
    for stage in range(4):
        way = accumulate, sums, stage
        rank = plan["stages"][stage]["rank"]
        step = json.loads(open(f"{accumulate}-{sums}-{stage}/metrics.jsonl").read().split("\n")[1])
        held, sent = step["mem"]["grads"], step["comm"]
        for purpose in ("gather", "reduce"):
            assert sent[purpose] == rank["sent"][purpose], (way, purpose, sent, rank)
        for category in ("params", "grads", "optimizer", "slots", "comm"):
            assert step["mem"].get(category, 0) == rank["mem"].get(category, 0), (way, category, step["mem"], rank)
        # in stage 3, parameters stay gathered between forward and backward
        volume = sent["gather"] + sent["reduce"]
        assert volume < rank["sent_formula_bytes"] if stage == 3 else volume == rank["sent_formula_bytes"], (way, sent, rank)
        assert sent["reduce"] == psi * WIDTH * (RANKS - 1) // RANKS * (ROUNDS if accumulate == "each" else 1), (way, sent)
        if sums == "bf16" and accumulate == "local":
            assert rank["state_bytes"] == rank["state_formula_bytes"], (way, rank)
        bytes_each = [volume / psi for volume in (sent["reduce"], sent["gather"], held)]
        cells[way] = "{:.4g} + {:.4g}; {:.4g}".format(*bytes_each)
print("| gradients + parameters sent; gradients held | " +
      " | ".join(f"`{accumulate}`, {sums} sums" for accumulate, sums in ways) + " |")
print("|---" * (1 + len(ways)) + "|")
for stage in range(4):
    print(f"| stage {stage} | " + " | ".join(cells[way + (stage,)] for way in ways) + " |")
PY
finish
