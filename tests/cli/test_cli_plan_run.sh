#!/usr/bin/env bash
# What a run of two ranks over MPI writes into metrics.jsonl is what `sifr plan` said: bytes by category, bytes by way.
. "$(dirname "$0")/common.sh" "$@"

command -v python3 >/dev/null || { echo "skipped: no python3 to compare with"; exit 0; }
unset SIFR_RUN_THREADS
make_text >text.txt
keys=("${small[@]}" --data.path=text.txt --train.steps=3 --train.eval_every=0 --train.global_batch=20)
for stage in 0 3; do
    ok "$sifr" plan "${keys[@]}" -n 2 --zero.stage=$stage --json
    mv out plan.json
    ok "$sifr" train "${keys[@]}" -n 2 --zero.stage=$stage --out=run$stage --quiet
    # The data is not planned, nor what MPI keeps for itself.
    python3 - "$stage" run$stage/metrics.jsonl <<'PY' || fail "stage $stage: the run is not what was planned"
import json, sys
rank = json.load(open("plan.json"))["stages"][int(sys.argv[1])]["rank"]
step = json.loads(open(sys.argv[2]).read().split("\n")[1])
for category, planned in rank["mem"].items():
    if category not in ("loader", "other"):
        assert step["mem"][category] == planned, (category, planned, step["mem"])
for way, planned in rank["sent"].items():
    assert step["comm"][way] == planned, (way, planned, step["comm"])
PY
done
finish
