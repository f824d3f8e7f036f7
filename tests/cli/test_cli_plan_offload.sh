#!/usr/bin/env bash
# Offload in sifr plan: a run has the planned bytes on disk and moves the planned bytes per step;
# --host-memory and --disk offer room for state that does not fit.
. "$(dirname "$0")/common.sh" "$@"
unset SIFR_RUN_THREADS
make_text >text.txt
export TMPDIR=$work

# A run against its plan, by ZeRO stage, ranks and placement.
keys=("${small[@]}" --data.path=text.txt --train.steps=3 --train.eval_every=0 --train.global_batch=20 --offload.window=64k)
if has_program python3 "runs against their plans"; then
    for layout in '1 0 --offload.optimizer=disk' '1 0 --offload.optimizer=disk --offload.grads=disk' '2 0 --offload.optimizer=disk' \
        '2 2 --offload.optimizer=disk --offload.grads=disk' '2 3 --offload.optimizer=disk --offload.share=0.5 --precision.mode=bf16' \
        '1 0 --offload.params=disk' '2 0 --offload.params=disk --precision.mode=bf16' '2 1 --offload.params=disk' \
        '1 0 --offload.params=disk --offload.optimizer=disk --offload.share=0.3 --precision.mode=bf16' \
        '1 0 --offload.params=disk --offload.grads=disk' '2 2 --offload.params=disk --offload.optimizer=disk --offload.grads=disk --precision.mode=bf16' '2 3 --offload.params=disk --zero.prefetch=2'; do
        read -r ranks stage placement <<<"$layout"
        ok "$sifr" plan "${keys[@]}" -n "$ranks" --zero.stage="$stage" $placement --json
        mv out plan.json
        ok "$sifr" train "${keys[@]}" -n "$ranks" --zero.stage="$stage" $placement --dry-run --json
        mv out dry.json
        ok "$sifr" train "${keys[@]}" -n "$ranks" --zero.stage="$stage" $placement --out=run --fresh --json
        tail -n 1 out >end.json
        python3 - "$stage" $placement <<'PY' || fail "$layout: the run does not match the plan"
import json, sys
rank = json.load(open("plan.json"))["stages"][int(sys.argv[1])]["rank"]
steps = [json.loads(line) for line in open("run/metrics.jsonl")]
summary, end = json.load(open("run/summary.json")), json.load(open("end.json"))
assert rank["disk_bytes"] > 0 and rank["disk_bytes"] == rank["state"]["disk"], rank
for held in steps[0], summary, end, json.load(open("dry.json")):
    assert held["disk_bytes"] == rank["disk_bytes"], (held, rank)
for category, planned in rank["mem"].items():
    if category not in ("loader", "other"):
        assert steps[0]["mem"][category] == planned, (category, planned, steps[0]["mem"])
assert steps[1]["offload"] == rank["offload"], (steps[1], rank)
assert rank["offload"]["disk_read"] > 0 and rank["offload"]["link_in"] == 0, rank
if "--offload.params=disk" in sys.argv:
    assert rank["mem"]["params"] == 0, rank
assert summary["offload"] == end["offload"]
PY
    done
fi

ok "$sifr" plan "${keys[@]}" --offload.optimizer=disk
has '^  on disk +[0-9.]+ [KM]iB'
has '^    on disk +[0-9.]+ [KM]iB'
has '^offload per step +\[stage 0\]'
has '^  read from disk +[0-9.]+ [KM]iB'
has '^  written to disk +[0-9.]+ [KM]iB'
ok "$sifr" plan "${keys[@]}" --offload.params=disk
! grep -qE '^  params ' out || fail "parameters are on the device"
has '^  read from disk +[0-9.]+ [KM]iB'
ok "$sifr" plan "${keys[@]}"
! grep -qE 'on disk|offload' out || fail "a plan without offload mentions it"
ok "$sifr" train "${keys[@]}" --offload.optimizer=disk --out=run --fresh
has '^  memory .*; on disk [0-9.]+ [KM]iB$'
has '^  offload +per step [0-9.]+ [KM]iB read from disk, [0-9.]+ [KM]iB written to disk$'
ok "$sifr" inspect run
has 'disk_bytes +[0-9.]+ [KM]iB'

# Activations in host memory: on the CPU only with a variable for tests; in a plan for a GPU always.
deep=("${keys[@]}" --model.layers=6 --offload.activations=host)
if has_program python3 "activations against their plans"; then
    for layout in '1 0 none' '2 3 selective' '2 2 full'; do
        read -r ranks stage recompute <<<"$layout"
        for command in "plan --json" "train --out=run --fresh"; do
            SIFR_CPU_OFFLOAD=1 ok "$sifr" $command "${deep[@]}" -n "$ranks" --zero.stage="$stage" --engine.recompute="$recompute"
            [ "$command" != "plan --json" ] || mv out plan.json
        done
        python3 - "$stage" <<'PY' || fail "$layout: the run does not match the plan"
import json, sys
rank = json.load(open("plan.json"))["stages"][int(sys.argv[1])]["rank"]
held = json.loads(open("run/metrics.jsonl").readline())["mem"]
for category, planned in rank["mem"].items():
    if category not in ("loader", "other"):
        assert held[category] == planned, (category, planned, held)
PY
    done
fi
ok "$sifr" plan "${deep[@]}" --run.device=cuda
has '^offload per step +\[stage 0\]'
has '^  host to GPU +[0-9.]+ [KM]iB'
has '^  GPU to host +[0-9.]+ [KM]iB'
expect 2 'offload.activations=host does not work in a pipeline \(parallel.pp=2\).*; set parallel.pp=1, or' \
    "$sifr" plan "${deep[@]}" --run.device=cuda -n 2 --parallel.pp=2
ok "$sifr" plan "${deep[@]}" --train.global_batch=32 --gpus=4 --machine=h200
has '^offload  kept activations of [0-9.]+ % of the layers are on the host$'
! grep -qE '^ *[0-9]+ +[0-9]+ +[24] ' out || fail "the search proposes a pipeline"
expect 0 'a CPU.s state and activations are in host memory already' "$sifr" plan "${deep[@]}" --run.device=cpu

# What does not fit goes to the host, then to the disk, and only if there is room for it.
model=(--model.preset=llama-1b --model.vocab=32000 --precision.mode=bf16 --train.global_batch=16)
search=("$sifr" plan "${model[@]}" --gpus=1 --machine=h200)
expect 4 'no layout of 1 rank fits in memory: .*; --host-memory and --disk let state leave the device' "${search[@]}" --memory=10G
ok "${search[@]}" --memory=10G --host-memory=64G --disk=200G
has '^cluster .* per rank, 59.6 GiB on the host, 186.3 GiB on disk$'
has 'hidden  offload$'
has '^ 1 .*  host [01](\.[0-9]+)?( \+ grads)?$'
has '^offload  [0-9.]+ % of the optimizer state is on the host'
has '^         per step and rank [0-9.]+ GiB to the GPU, [0-9.]+ GiB from the GPU$'
has '^         a step takes [0-9.]+ s; with memory for everything on the device this layout would take [0-9.]+ s$'
has '^  sifr train -n 1 .*--offload.optimizer=host'
! grep -qE -- '^  sifr train.*--(host-memory|disk)' out || fail "the command has flags of plan"
command=$(sed -n 's/^  sifr train //p' out)
eval "ok \"\$sifr\" plan $command --memory=10G" # what it prints fits
ok "${search[@]}" --memory=8G --host-memory=6G --disk=200G
has '^ 1 .*  disk [01]'
# Each kind of state has a place of its own.
ok "${search[@]}" --memory=8G --host-memory=6G --disk=200G --html=mixed.html
has '^ 1 .*  disk 0\.[0-9]+ \+ grads host \+ params$'
has '^offload  [0-9.]+ % of the optimizer state is on disk, summed gradients are on the host, parameters are on the host$'
has '^  sifr train -n 1 .*--offload.optimizer=disk --offload.grads=host --offload.params=host --offload.share=0\.[0-9]+$'
grep -q 'disk 0\.[0-9]* + grads host + params' mixed.html || fail "the page does not say where state is"
command=$(sed -n 's/^  sifr train //p' out)
eval "ok \"\$sifr\" plan $command --memory=8G --host-memory=6G --disk=200G" # what it prints fits
ok "${search[@]}" --memory=8G --host-memory=6G --disk=200G --offload.grads=disk # the others are open
has '^fixed    offload.grads$'
has '^ 1 .*  (host|disk) 0\.[0-9]+ \+ grads( disk)?'
expect 4 'the nearest, .*, offload host 0\.[0-9]+ \+ grads disk, needs .* per rank, .* on the host, .* on disk and there is .*; add [0-9.]+ MiB on the host, [0-9.]+ MiB on disk per rank' \
    "${search[@]}" --memory=8G --host-memory=5G --disk=2G
ok "${search[@]}" --memory=8G --host-memory=6G --disk=3G # what was missing has been added
has '^ 1 .*  host 0\.[0-9]+ \+ grads disk$'
ok "${search[@]}" --host-memory=64G --disk=200G # all of an H200: nothing leaves it
has '^ 1 .*  -$'
! grep -qE '^offload' out || fail "offload was proposed although everything fits"
ok "${search[@]}" --memory=20G --host-memory=64G --offload.optimizer=host # the key stays
has '^fixed    offload.optimizer$'
has '^ 1 .*  host 1$'
ok "${search[@]}" --memory=20G --host-memory=64G --disk=200G --offload.params=host --offload.optimizer=host --offload.grads=disk
has '^ 1 .*  host 1 \+ grads disk \+ params host$'
has '^offload  100 % of the optimizer state is on the host, summed gradients are on disk, parameters are on the host$'
has '^  sifr train -n 1 .*--offload.params=host'
ok "${search[@]}" --memory=30G --offload.params=disk # nothing else leaves
has '^fixed    offload.params$'
has '^ 1 .*  params disk$'
ok "${search[@]}" --memory=30G --offload.params=host --json
is_json out
if has_program python3 "the figures of --json"; then
    python3 - <<'PY' || fail "wrong figures of far parameters"
import json
l = json.load(open("out"))["layouts"][0]
assert l["offload_params"] == "host" and l["offload_optimizer"] == "none"
assert l["host_bytes"] > l["moved"]["link_out"] > 1.5e9 and l["moved"]["link_in"] > 1.5 * l["rounds"] * l["moved"]["link_out"]
PY
fi
ok "${search[@]}" --memory=10G --host-memory=64G --json
is_json out
if has_program python3 "the figures of --json"; then
    python3 - <<'PY' || fail "wrong figures of an offloaded layout"
import json
r = json.load(open("out"))
l = r["layouts"][0]
assert r["host_memory_bytes"] == 64e9 and l["offload_optimizer"] == "host" and 0 < l["offload_share"] <= 1
assert l["needed_bytes"] <= 10e9 and 0 < l["host_bytes"] <= 64e9 and l["disk_bytes"] == 0
assert l["device_step_s"] < l["step_s"] and l["moved"]["link_in"] > 0 and l["moved"]["disk_read"] == 0
s = r["search"]
assert s["walked"] + s["bounded"] + s["too_large"] + s["refused"] == s["possible"]
PY
fi

# The same without a machine: advice.
expect 4 'try .*offload.optimizer=host' "$sifr" plan "${model[@]}" --run.device=cuda --memory=10G --host-memory=64G
expect 4 'try .*offload.optimizer=disk' "$sifr" plan "${model[@]}" --run.device=cuda --memory=10G --disk=200G
expect 4 'try .*offload.optimizer=disk offload.grads=host offload.params=host offload.share=0\.[0-9]+$' \
    "$sifr" plan "${model[@]}" --run.device=cuda --memory=3G --host-memory=10G --disk=12G
expect 4 'with --host-memory or --disk, offload is considered, too' "$sifr" plan "${model[@]}" --run.device=cuda --memory=1G

# A window that is too large for the memory is named, and what could leave as well; not what does.
expect 4 'offload or number of ranks fits; use a smaller offload.window' "$sifr" plan "${model[@]}" --run.device=cuda --memory=1G --disk=200G
expect 4 'number of ranks fits; set offload.grads=disk offload.params=disk, or use a smaller offload.window.*global_batch$' \
    "$sifr" plan "${model[@]}" --run.device=cuda --memory=1G --offload.optimizer=disk
expect 4 'number of ranks fits; use a smaller offload.window.*global_batch$' \
    "$sifr" plan "${model[@]}" --run.device=cuda --memory=1G --offload.optimizer=disk --offload.grads=disk --offload.params=disk
expect 4 'number of ranks fits; use a larger disk or host memory, a smaller model' \
    "$sifr" plan "${model[@]}" --run.device=cuda --train.global_batch=1 --train.micro_batch=1 --memory=60G --disk=1G --offload.optimizer=disk
expect 4 'train.context, or set a smaller offload.window' "${search[@]}" --memory=1G --disk=200G
finish
