#!/usr/bin/env bash
# sifr plan --gpus: the table, its JSON, the command for the first layout, fixed keys, exit codes
# and messages.
root=$(cd "$(dirname "$0")/../.." && pwd)
. "$(dirname "$0")/common.sh" "$@"
unset SIFR_RUN_THREADS # it would appear in every printed command

model=(--model.arch=llama --model.layers=8 --model.width=512 --model.heads=8 --model.ff=1536 --model.context=512
    --model.vocab=4096 --model.tied=no --precision.mode=bf16)
keys=("${model[@]}" --train.global_batch=32)

ok "$sifr" plan "${keys[@]}" --gpus=8 --machine=h100
has '^cluster  8 ranks on nodes of 8, h100: 8 H100'
# Without the plugin another back end prices the calls; the plan says so.
has "^prices   by back end 'ref': scratch memory and times are approximate, because libsifr-cuda.so is not there"
has '^search   [0-9]+ layouts: [0-9]+ do not fit, [0-9]+ cannot be faster, [0-9]+ simulated'
has '^    tp   pp    dp  stage'
has '^ 1 +[1248] +[1248] +[1248] '
has '^fit      one copy of the model'
has '^next     tp [0-9]+ pp [0-9]+ dp [0-9]+ takes '
has '^  sifr train -n 8 .*--train.global_batch=32 --run.device=cuda --train.micro_batch='
! grep -qE -- '^  sifr train.*--(gpus|machine)' out || fail "the command has flags of plan"
has '^note     no data is set: add --data.path=FILE$'
# plan accepts the printed command unchanged, and finds that it fits.
command=$(sed -n 's/^  sifr train //p' out)
eval "ok \"\$sifr\" plan $command --memory=80G"
has '^ranks    8;'

# In fp32, mfu is relative to the TF32 peak and cannot exceed it.
for machine in h100 a100-40g; do
    ok "$sifr" plan "${keys[@]}" --precision.mode=fp32 --gpus=8 --top=1 --zero.stage=1 --machine=$machine --json
    mfu=$(sed -nE 's/.*"mfu": ([0-9.e-]+).*/\1/p' out)
    awk -v m="$mfu" 'BEGIN { exit !(m > 0.02 && m < 0.75) }' || fail "mfu in fp32 on $machine: $mfu"
done

# Keys that the user set are the same in every layout.
ok "$sifr" plan "${keys[@]}" --gpus=8 --zero.stage=3 --parallel.pp=2 --engine.recompute=full --json
is_json out
has '"command": "sifr train -n 8 '
has '"prices": "ref"'
if has_program python3 "the figures of --json"; then
    python3 - <<'PY' || fail "wrong figures, or a key that was set has changed"
import json
r = json.load(open("out"))
assert r["fits"] and 1 <= len(r["layouts"]) <= 5
for l in r["layouts"]:
    assert (l["stage"], l["pp"], l["recompute"]) == (3, 2, "full")
    assert l["tp"] * l["pp"] * l["dp"] == 8
    assert 0 < l["bound_s"] <= l["step_s"] * 1.000001 and l["needed_bytes"] <= r["memory_bytes"]
    assert abs(l["tokens_per_s"] * l["step_s"] - 32 * 512) < 1
    assert l["rounds"] * l["dp"] * l["micro_batch"] >= 32 and 0 < l["mfu"] < 1
steps = [l["step_s"] for l in r["layouts"]]
assert steps == sorted(steps)
s = r["search"]
assert s["walked"] >= 1 and s["walked"] + s["bounded"] + s["too_large"] + s["refused"] == s["possible"]
PY
fi
ok "$sifr" plan "${keys[@]}" --gpus=2 --top=1 --zero.stage=1 --parallel.tp=1
has '^fixed    parallel.tp, zero.stage$'
ok "$sifr" plan "${keys[@]}" --gpus=2 --top=1
[ "$(grep -cE '^ [0-9] +[0-9]+ +[0-9]+ +[0-9]+ ' out)" = 1 ] || fail "--top=1 shows more than one layout"
# A key that has no effect in any layout gets a warning; one that has an effect in some layouts does
# not.
ok "$sifr" plan "${keys[@]}" --gpus=8 --top=1 --parallel.pp=1 --parallel.schedule=gpipe --parallel.tp=1 --parallel.sequence=true
grep -q '^sifr: warning: parallel.schedule has no effect: it needs parallel.pp above 1$' err || fail "no warning: $(cat err)"
grep -q '^sifr: warning: parallel.sequence has no effect: it needs parallel.tp above 1$' err || fail "no warning: $(cat err)"
ok "$sifr" plan "${keys[@]}" --gpus=8 --top=1 --parallel.schedule=gpipe --parallel.sequence=true --parallel.regather=true
! grep 'has no effect' err || fail "a warning about keys that may have an effect"
ok "$sifr" plan "${keys[@]}" --gpus=1 --parallel.schedule=gpipe
grep -q 'parallel.schedule has no effect' err || fail "one rank: no warning: $(cat err)"
# The printed command has the keys that its layout uses, and no others.
ok env SIFR_PARALLEL_EAGER=true "$sifr" plan "${keys[@]}" --gpus=8 --top=1 --parallel.tp=1 --parallel.pp=1 --parallel.sequence \
    --parallel.schedule gpipe --parallel.chunks=0 --zero.stage 1
! grep -qE '^  sifr train.*(parallel\.(sequence|schedule|chunks|eager)|gpipe)' out || fail "useless keys: $(grep '^  sifr' out)"
has '^  sifr train -n 8 .*--parallel.tp=1 --parallel.pp=1 --zero.stage 1 --run.device=cuda'
ok env SIFR_PARALLEL_EAGER=true "$sifr" plan "${keys[@]}" --gpus=8 --top=1 --parallel.tp=2 --parallel.pp=2 --parallel.sequence \
    --parallel.schedule 1f1b
has '^  sifr train -n 8 .*--parallel.sequence --parallel.schedule 1f1b --parallel.eager=true'
# A TP group stays inside a node, whose size --node sets.
ok "$sifr" plan "${keys[@]}" --gpus=8 --node=2 --top=20 --json
! grep -qE '"tp": [48]' out || fail "a TP group spans nodes"
# A file with spaces is quoted in the command.
printf 'train:\n  global_batch: 32\n' >'a b.yaml'
ok "$sifr" plan 'a b.yaml' "${model[@]}" --gpus 2 --top 1
has "^  sifr train -n 2 'a b.yaml' --model.arch=llama"

# Keys from the environment are in the printed command, so that it works without the environment;
# words after "--" stay after it.
ok env SIFR_ZERO_STAGE=2 SIFR_TRAIN_CONTEXT=256 SIFR_DATA_PATH='my text.txt' "$sifr" plan "${keys[@]}" --gpus=8 --top=1
! grep -q 'no data is set' out || fail "data was given"
has "^  sifr train -n 8 .* '--data.path=my text.txt' --train.context=256 --zero.stage=2 --run.device=cuda"
ok env SIFR_ZERO_STAGE=2 "$sifr" plan "${keys[@]}" --gpus=8 --zero.stage=1 --top=1 # a flag wins
! grep -q -- '--zero.stage=2' out || fail "an overridden variable is in the command"
ok "$sifr" plan "${model[@]}" --gpus=2 --top=1 --lines=false -- 'a b.yaml'
has "^  sifr train -n 2 --model.arch=llama .*--train.micro_batch=[0-9]+.* -- 'a b.yaml'$"

# Nothing fits: exit code 4, with the nearest layout and what it lacks.
expect 4 'no layout of 8 ranks fits in memory: the nearest, tp [0-9]+, pp [0-9]+, .*, needs .* per rank and there is .*; add .* per rank' \
    "$sifr" plan "${keys[@]}" --gpus=8 --memory=600M
has '^search   .* do not fit, 0 cannot be faster, 0 simulated'
expect 4 'no layout' "$sifr" plan "${keys[@]}" --gpus=8 --memory=600M --json
is_json out
has '"fits": false, "layouts": \[\], "nearest": \{"tp": '

# Mistakes.
expect 2 '-n and --gpus cannot be combined' "$sifr" plan "${keys[@]}" --gpus=8 -n 8
expect 2 '\-\-machine works only with --gpus' "$sifr" plan "${keys[@]}" -n 8 --machine=h100
expect 2 'lines needs a single layout' "$sifr" plan "${keys[@]}" --gpus=8 --lines
expect 2 'parallel.tp=3 does not divide 8' "$sifr" plan "${keys[@]}" --gpus=8 --parallel.tp=3
expect 2 "unknown machine 'h1000'" "$sifr" plan "${keys[@]}" --gpus=8 --machine=h1000
# If zero.stage is not set, groups and servers are not refused because of stage 0.
expect 2 'zero.shard_group=3 does not divide 8 ranks; try one of 1 2 4 8' "$sifr" plan "${keys[@]}" --gpus=8 --zero.shard_group=3
expect 2 'zero.shard_group=8 does not divide 4 ranks' "$sifr" plan "${keys[@]}" --gpus=8 --zero.shard_group=8 --parallel.tp=2
expect 2 'zero.servers=8 leaves no worker among 8 ranks' "$sifr" plan "${keys[@]}" --gpus=8 --zero.servers=8
expect 2 'zero.shard_group needs zero.stage 1, 2 or 3' "$sifr" plan "${keys[@]}" --gpus=8 --zero.shard_group=2 --zero.stage=0
# A file that is not a profile or cannot be read is a configuration error (exit code 2).
echo '{}' >none.json
expect 2 "'none.json' is not a machine profile" "$sifr" plan "${keys[@]}" --gpus=8 --machine=none.json
expect 2 "'a b.yaml' line 1" "$sifr" plan "${keys[@]}" --gpus=8 --machine='a b.yaml'
expect 2 "cannot read '.'" "$sifr" plan "${keys[@]}" --gpus=8 --machine=.
expect 2 "cannot open './none'" "$sifr" plan "${keys[@]}" --gpus=8 --machine=./none
# Half a profile: the advised command completes it.
rate='{"call": 1e-6, "flops_per_second": 1e11, "bytes_per_second": 1e10}'
cat >half.json <<JSON
{"format": "sifr machine", "version": 1, "name": "mine", "gpu": false, "memory_bytes": 8000000000,
 "ops": {"rates": {"product": $rate, "attention": $rate, "attention_backward": $rate, "memory": $rate},
  "copy_bytes_per_second": 1e10, "measured": []}}
JSON
expect 2 "machine=half.json has no speed of communication; measure it with: sifr bench comm -n 2 --save=half.json" \
    "$sifr" plan "${keys[@]}" --gpus=2 --machine=half.json
advised=$(grep -oE 'bench comm [^,]*' err)
ok "$sifr" $advised --largest=64K --seconds=0.001
ok "$sifr" plan "${keys[@]}" --gpus=2 --top=1 --machine=half.json
! grep -q 'memory_bytes' out || fail "a note although the memory is known"
! grep '^prices' out || fail "a note about prices although the machine computes on the CPU"
# Without memory in the profile every layout fits, with a note. A name with control characters is
# refused.
sed 's/"memory_bytes": [0-9]*/"memory_bytes": 0/' half.json >boundless.json
ok "$sifr" plan "${keys[@]}" --gpus=2 --top=1 --machine=boundless.json
has '^note     the profile .* has memory_bytes 0: every layout fits; set --memory to the memory of a rank$'
ok "$sifr" plan "${keys[@]}" --gpus=2 --top=1 --machine=boundless.json --memory=80G
! grep -q 'memory_bytes' out || fail "a note although --memory is set"
sed 's/"name": "[^"]*"/"name": "\\u001b[31mred"/' half.json >red.json
expect 2 "'red.json': \"name\" has control characters" "$sifr" plan "${keys[@]}" --gpus=2 --machine=red.json
expect 2 'parallel.chunks=2, but parallel.schedule=gpipe has one chunk' "$sifr" plan "${keys[@]}" --gpus=8 --parallel.chunks=2 --parallel.schedule=gpipe
expect 2 '\-\-gpus=0 is too few' "$sifr" plan "${keys[@]}" --gpus=0
expect 2 'run.device=cpu, but --machine=h100 computes on GPUs' "$sifr" plan "${keys[@]}" --gpus=8 --run.device=cpu

# Chunks alone imply interleaved pipelines; copies without work get a note.
ok "$sifr" plan "${keys[@]}" --gpus=8 --parallel.chunks=2 --parallel.pp=2
has '^  sifr train .*--parallel.chunks=2 --parallel.pp=2 .*--parallel.schedule=interleaved'
ok "$sifr" plan "${keys[@]}" --gpus=64 --parallel.tp=1 --parallel.pp=1
has '^dp 64 +copies: 32 micro-batches of 1, at most 1 each'
has '^note     32 of 64 copies have nothing to compute: a step has 32 micro-batches; raise train.global_batch or use fewer ranks$'
! grep -q 'is not set' out || fail "a note although train.global_batch is set"
# train.global_batch is not set.
ok "$sifr" plan "${model[@]}" --gpus=16 --top=1 --parallel.tp=1 --parallel.pp=1
has '^note     train.global_batch is not set: planned for 8 sequences per step$'
has '^note     8 of 16 copies have nothing to compute: a step has 8 micro-batches;'
ok "$sifr" plan "${model[@]}" --gpus=2 --top=1 --parallel.tp=1 --parallel.pp=1 --train.global_batch=1
has '^note     1 of 2 copies has nothing to compute: a step has 1 micro-batch;'
ok "$sifr" plan --help
has '[-][-]gpus=64'
# The example of the README has no fixed keys and needs no others.
example=$(sed -nE "s/^build\/sifr (plan .*--gpus .*)/\1/p" "$root/README.md" | head -n 1)
[ -n "$example" ] || fail "README has no example"
ok "$sifr" ${example/--gpus 64/--gpus 4} --top=1 # fewer ranks, to save time
! grep -E '^fixed|is not set' out || fail "the example of the README"
finish
