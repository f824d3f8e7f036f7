#!/usr/bin/env bash
# A trace of a run whose optimizer state is in far memory: the lanes in and out have every copy of
# the traced steps and no other, with the bytes of the state, in the order that the updates need.
. "$(dirname "$0")/common.sh" "$@"
command -v python3 >/dev/null || skip_all "python3 is not installed"
make_text >text.txt
run=("${small[@]}" --train.global_batch=8 --train.steps=5 --data.path=text.txt --quiet --trace=2:3)
export SIFR_CPU_OFFLOAD=1 # move state on the CPU, too
mkdir far
ok "$sifr" train "${run[@]}" --out=host --offload.optimizer=host
ok "$sifr" train "${run[@]}" --out=disk --offload.optimizer=disk --offload.folder=far
ok "$sifr" train "${run[@]}" --out=near
for name in host disk near; do
    python3 - $name <<'PY' || fail "the trace of '$name'"
import json, sys
name = sys.argv[1]
events = json.load(open(f"{name}/trace-rank-0.json"))["traceEvents"]
lanes = {e["args"]["name"]: e["tid"] for e in events if e["name"] == "thread_name"}
if name == "near":
    sys.exit("in" in lanes or "out" in lanes)
def spans(lane, what):
    found = [e for e in events if e["ph"] == "X" and e["tid"] % 16 == lanes[lane] and e["name"].startswith(what)]
    return sorted(found, key=lambda e: e["ts"])
def end(e): return e["ts"] + e["dur"]
steps = spans("host", "step")
assert [e["args"]["number"] for e in steps] == [2, 3], steps
updates = spans("compute", "optimizer ")
copies = {lane: spans(lane, "optimizer state") for lane in ("in", "out")}
parameters = json.load(open(f"{name}/summary.json"))["parameters"]
pieces = len(updates) // 2
assert pieces == 5, [e["name"] for e in updates]
for lane, found in copies.items():
    # Two steps, and in each a copy of every piece: two moments, in whole pages.
    assert len(found) == 2 * pieces, (lane, len(found))
    assert all(e["ts"] >= steps[0]["ts"] for e in found), lane
    moved = sum(e["args"]["bytes"] for e in found)
    assert 16 * parameters <= moved < 16 * parameters + 2 * pieces * 2 * 4096, (lane, moved, parameters)
    assert all(end(a) <= b["ts"] + 0.01 for a, b in zip(found, found[1:])), lane
# A piece returns after its update has begun, and is fetched for the next step after it has returned.
slack = 0.01 # the file has nanoseconds
for i, update in enumerate(updates):
    assert copies["out"][i]["ts"] >= update["ts"] - slack, update
    assert copies["in"][i]["ts"] >= end(copies["out"][i]) - slack, update
for fetched, update in zip(copies["in"][:pieces], updates[pieces:]):
    assert end(fetched) <= end(update) + slack, update
PY
done
finish
