#!/usr/bin/env bash
# metrics.jsonl of a run with two ranks over MPI matches `sifr plan`: memory by category and traffic
# by purpose. The process holds no more than planned.
. "$(dirname "$0")/common.sh" "$@"

command -v python3 >/dev/null || skip_all "python3 is not installed"
unset SIFR_RUN_THREADS
make_text >text.txt
keys=("${small[@]}" --data.path=text.txt --train.steps=3 --train.eval_every=0 --train.global_batch=20)
for layout in '0' '3' '0 --zero.bucket=20k' '3 --zero.unit_layers=2' '3 --zero.bucket=1M' '2 --zero.bucket=5k --zero.unit_layers=2'; do
    read -r stage messages <<<"$layout"
    [ -n "$messages" ] && run=run || run=run$stage
    ok "$sifr" plan "${keys[@]}" -n 2 --zero.stage=$stage $messages --json
    mv out plan.json
    ok "$sifr" train "${keys[@]}" -n 2 --zero.stage=$stage $messages --out=$run --fresh --quiet
    # The plan counts neither the data nor the memory of MPI.
    python3 - "$stage" $run/metrics.jsonl $run/summary.json <<'PY' || fail "$layout: the run does not match the plan"
import json, sys
rank = json.load(open("plan.json"))["stages"][int(sys.argv[1])]["rank"]
step = json.loads(open(sys.argv[2]).read().split("\n")[1])
for category, planned in rank["mem"].items():
    if category not in ("loader", "other"):
        assert step["mem"][category] == planned, (category, planned, step["mem"])
for way, planned in rank["sent"].items():
    assert step["comm"][way] == planned, (way, planned, step["comm"])
end = json.load(open(sys.argv[3]))
for way, planned in rank["calls"].items():
    assert way == "control" or end["calls"][way] == end["steps"] * planned, (way, planned, end["calls"])
PY
done

# The same in a pipeline: rank 0 has PP stage 0; memory is that of one rank, which is named. The
# summary of the run also has the formula, which is exact for traffic between PP stages.
for layout in '2 3 1f1b' '2 0 gpipe' '3 2 1f1b' '2 1 interleaved'; do
    read -r pp stage schedule <<<"$layout"
    pipe=(--model.layers=4 -n $((2 * pp)) --parallel.pp="$pp" --parallel.schedule="$schedule" --zero.stage="$stage")
    ok "$sifr" plan "${keys[@]}" "${pipe[@]}" --json
    mv out plan.json
    ok "$sifr" train "${keys[@]}" "${pipe[@]}" --out=pipe --fresh --json
    mv out steps.json
    python3 - pipe/metrics.jsonl "$pp" <<'PY' || fail "$layout: the pipeline does not match the plan"
import json, sys
pipe = json.load(open("plan.json"))["pipeline"]
step = json.loads(open(sys.argv[1]).read().split("\n")[1])
ranks = [stage["rank"] for stage in pipe["stage"]]
for category, planned in ranks[step["mem_rank"] % int(sys.argv[2])]["mem"].items():
    if category not in ("loader", "other"):
        assert step["mem"][category] == planned, (category, planned, step["mem"])
for way, planned in ranks[0]["sent"].items():
    assert step["comm"][way] == planned, (way, planned, step["comm"])
assert step["comm"]["pipe"] > 0
end = json.loads(open("steps.json").read().strip().split("\n")[-1])["ranks"]
assert end["sent_pipe"] == end["formula_pipe"], end
PY
done

# A run that starts from a model holds the same memory wherever the model is read from: buffers for
# reading are freed.
ok "$sifr" export run0 plain
for from in run0 run0/checkpoints/step-3 plain; do
    from_model=(--model.path="$from" --data.path=text.txt --train.micro_batch=4 --train.steps=1 --train.eval_every=0)
    ok "$sifr" plan "${from_model[@]}" --json
    mv out plan.json
    ok "$sifr" train "${from_model[@]}" --out=from --fresh --quiet
    python3 - from/metrics.jsonl <<'PY' || fail "$from: the run does not match the plan"
import json, sys
rank = json.load(open("plan.json"))["stages"][0]["rank"]
held = json.loads(open(sys.argv[1]).read().split("\n")[0])["mem"]
off = sum(held.values()) - held["loader"] - sum(rank["mem"].values()) + rank["mem"]["loader"]
assert abs(off) < 1 << 20, (rank["mem"], held)
PY
done

# The process holds what was planned plus `runtime`, within 3 % and 16 MiB for threads and library
# buffers (bench/plan-vs-run uses a model so large that these do not matter). Sanitizers hold much
# more.
grep -qE '__(asan|tsan)_init' "$sifr" && finish && exit
keys=(--model.layers=4 --model.width=256 --model.heads=4 --model.context=32 --model.vocab=4096 --data.path=text.txt --data.tokenizer=bytes
    --train.micro_batch=2 --train.global_batch=4 --train.steps=2 --train.eval_every=0)
for ranks in 1 2; do
    stage=$((ranks == 1 ? 0 : 3))
    ok "$sifr" plan "${keys[@]}" -n $ranks --zero.stage=$stage --json
    mv out plan.json
    ok "$sifr" train "${keys[@]}" -n $ranks --zero.stage=$stage --out=process$ranks
    has '  memory +[0-9.]+ MiB( on rank [01], the most of 2)?: .*; runtime [0-9.]+ (KiB|MiB)$'
    has 'process [0-9.]+ MiB, counted'
    # the end repeats the figure of the start and adds the peak, which is while a checkpoint is
    # written and as planned
    read -r start first most <<<"$(sed -n -e 's/^  memory *\([0-9.]*\) MiB\( on rank [^:]*\)\{0,1\}: .*/\1/p' \
        -e 's/^  memory *\([0-9.]*\) MiB, with files being read or written \([0-9.]*\) MiB; .*/\1 \2/p' out | xargs)"
    [ -n "$most" ] && [ "$start" = "$first" ] || fail "$ranks ranks: the memory at the start and at the end: $(grep '^  memory' out)"
    python3 -c 'import sys; first, most = map(float, sys.argv[1:]); sys.exit(not 15.9 < most - first < 17)' "$first" "$most" ||
        fail "$ranks ranks: the memory of a checkpoint does not match the plan: $first $most"
    [ $ranks = 1 ] || has '^  process +[0-9.]+ MiB +[0-9.]+ MiB +[0-9.]+ '
    python3 - $stage process$ranks/summary.json <<'PY' || fail "$ranks ranks: the process does not match the plan"
import json, sys
planned = json.load(open("plan.json"))["stages"][int(sys.argv[1])]["rank"]["mem_bytes"]
process, mib = json.load(open(sys.argv[2]))["process"], 1 << 20
off = process["resident"] - planned - process["runtime"]
assert process["runtime"] <= 200 * mib, process
assert -0.03 * planned - mib <= off <= 0.03 * planned + 16 * mib, (planned, process)
PY
done
finish
