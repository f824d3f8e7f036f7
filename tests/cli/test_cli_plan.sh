#!/usr/bin/env bash
# sifr plan: the table, its JSON, Table 1, the exit code when a run does not fit, and the time it
# takes.
. "$(dirname "$0")/common.sh" "$@"

keys=("${small[@]}" --model.vocab=256)

# Every ZeRO stage is a column, and the chosen one is marked; no data is needed.
ok "$sifr" plan "${keys[@]}" -n 3 --zero.stage=2 --train.global_batch=12
has '^memory of a rank +stage 0 +stage 1 +\[stage 2\] +stage 3$'
has '^  optimizer +[0-9.]+ KiB'
has '^    by the formula +[0-9.]+ KiB'
has '^traffic per step'
has '^ranks    3; 3 micro-batches per step, 1 per rank$'
has '^engine.recompute +activations +per block +by the formula$'
has '^  selective +[0-9.]+ [KMG]iB +[0-9.]+ [KMG]iB +[0-9.]+ [KMG]iB$'
ok "$sifr" plan "${keys[@]}" -n 3 --zero.stage=3 --zero.servers=1
has '^ranks    3: 2 compute, 1 server;'
has '^memory of a server +stage 0 +stage 1'
has 'none for 1 of them in the last round'
# A plan for a GPU works without one: it uses its compute type, and says whose scratch memory is shown.
ok "$sifr" plan "${keys[@]}" --run.device=cuda --precision.mode=bf16 --memory=80G --lines
has '^machine  cuda, computing in bf16'
has '^memory   74.5 GiB \(80.0G bytes\) per rank;' # also in the unit of the flag
has "^prices   by back end 'ref': scratch memory is approximate, because libsifr-cuda.so is not there"
! grep -q 'params of a unit' out || fail "a GPU computes in bf16, but params are widened"
ok "$sifr" plan "${keys[@]}" --precision.mode=bf16 --lines
has 'params of a unit'
! grep '^prices' out || fail "the CPU's own back end needs no note"

ok "$sifr" plan "${keys[@]}" --lines
! grep -q '^it sends' out || fail "one rank sends something"
has '^  optimizer +[0-9.]+ KiB  block 0 momentum$'
ok "$sifr" plan "${keys[@]}" --lines --json
is_json out
has '"lines": \[\{"category": "params", "name": "block'

ok "$sifr" plan "${keys[@]}" -n 4 --zero.stage=3 --zero.shard_group=2 --precision.mode=bf16
has '^  total +- +[0-9.]+ MiB'

# The same from a configuration file, and as JSON.
printf 'model:\n  preset: tiny\n  vocab: 300\nzero:\n  stage: 3\n  prefetch: 2\n' >run.yaml
ok "$sifr" plan run.yaml -n 4 --json
is_json out
has '"ranks": 4, .*"stage": 3, .*"fits": true'
has '"sent": \{"gather": [0-9]+, "reduce": [0-9]+, "muon": 0, "pipe": 0, "tensor": 0, "control": [0-9]+\}'
if has_program python3 "the sums of a plan"; then
    python3 - <<'PY' || fail "figures do not add up"
import json
plan = json.load(open("out"))
assert [s["stage"] for s in plan["stages"]] == [0, 1, 2, 3]
for s in plan["stages"]:
    rank = s["rank"]
    assert sum(rank["mem"].values()) == rank["mem_bytes"]
    assert rank["state_bytes"] == sum(rank["mem"][k] for k in ("params", "grads", "optimizer"))
    assert rank["sent_bytes"] == rank["sent"]["gather"] + rank["sent"]["reduce"] + rank["sent"]["muon"] + rank["sent"]["pipe"]
states = [s["rank"]["state_bytes"] for s in plan["stages"]]
assert states == sorted(states, reverse=True) and states[3] * 3 < states[0]
PY
fi

# A run that does not fit: exit code 4, the table, and what would fit.
need() { # STAGE: bytes that a rank needs in this ZeRO stage, with 4 ranks
    "$sifr" plan run.yaml -n 4 --json | sed 's/.*"stage": '"$1"', "fits": [a-z]*, "rank": {"mem": {[^}]*}, "mem_bytes": \([0-9]*\).*/\1/'
}
memory=$(need 2)
expect 4 'ZeRO stage 0 needs .* per rank, and only .* is available; try zero.stage=[12]$' \
    "$sifr" plan run.yaml -n 4 --zero.stage=0 --memory="$memory"
has '^  fits +no +(no|yes) +yes'
expect 4 'try .*engine.recompute=' "$sifr" plan run.yaml -n 4 --train.micro_batch=64 --memory=40M
expect 4 'no ZeRO stage, recomputation, micro-batch or number of ranks' "$sifr" plan run.yaml -n 4 --memory=1000

# Mistakes.
expect 2 'model.vocab: not set' "$sifr" plan --model.preset=tiny
expect 2 'zero.servers=2 leaves no worker among 2 ranks' "$sifr" plan run.yaml -n 2 --zero.servers=2
expect 2 'zero.servers needs zero.stage 1, 2 or 3' "$sifr" plan run.yaml -n 2 --zero.servers=1 --zero.stage=0
expect 2 'zero.stage' "$sifr" plan run.yaml --zero.stage=4

# A vocabulary that is smaller than the tokenizer's is refused as in a run, if the tokenizer exists;
# otherwise the plan is made.
make_text >text.txt
expect 2 "model.vocab: 100 is smaller than the tokenizer's 257 tokens" "$sifr" plan "${small[@]}" --model.vocab=100 --data.tokenizer=bytes
expect 2 "model.vocab: 100 is smaller than the tokenizer's 257 tokens" "$sifr" plan "${small[@]}" --model.vocab=100 --data.path=text.txt
expect 2 "model.vocab: 100 is smaller than the tokenizer's 257 tokens" "$sifr" train "${small[@]}" --model.vocab=100 --data.path=text.txt --out=none
ok "$sifr" plan "${small[@]}" --model.vocab=100 --data.tokenizer=elsewhere.json --data.path=elsewhere.txt
ok "$sifr" plan "${small[@]}" --model.vocab=257 --data.path=text.txt
expect 0 'model.vocab: 100 is smaller than the 300 tokens that data.tokenizer is to learn' "$sifr" plan "${small[@]}" --model.vocab=100 --data.tokenizer=train:300
expect 2 "data.tokenizer 'train:5': the size must be a number from 257" "$sifr" plan "${small[@]}" --data.tokenizer=train:5
# Without model.vocab, a missing file that determines the vocabulary is refused as in a run.
expect 2 "data.path: no file matches 'elsewhere.txt', seen from" "$sifr" plan "${small[@]}" --data.path=elsewhere.txt
expect 2 "data.tokenizer: no file matches 'elsewhere.json', seen from" "$sifr" plan "${small[@]}" --data.tokenizer=elsewhere.json
ok "$sifr" plan "${small[@]}" --data.path=elsewhere.txt --data.tokenizer=bytes
# A run with a learned vocabulary: its own tokenizer, in the model folder or named.
ok "$sifr" train "${small[@]}" --data.path=text.txt --data.tokenizer=train:300 --train.steps=1 --train.eval_every=0 --quiet --out=learnt
tokenizer=learnt/checkpoints/step-1/tokenizer.json
expect 2 "model.vocab: 299 is smaller than the tokenizer's 300 tokens" "$sifr" plan "${small[@]}" --model.vocab=299 --data.tokenizer=$tokenizer
ok "$sifr" plan --train.micro_batch=1 --model.path=learnt
has 'vocabulary 300$'
ok "$sifr" export learnt cut
sed -i 's/"vocab_size": 300/"vocab_size": 290/' cut/config.json
expect 2 "the tokenizer has 300 tokens, and the vocabulary of the model at 'cut' is 290; name the tokenizer" "$sifr" plan --train.micro_batch=1 --model.path=cut
expect 2 "leave it out to use that model's own" "$sifr" plan --train.micro_batch=1 --model.path=learnt --data.tokenizer=train:400

quick() { # SECONDS COMMAND...: a limit on CPU time, which does not depend on other processes
    local most=$1 took
    shift
    { TIMEFORMAT='%U %S'; time "$@"; } 2>took
    took=$(awk '{ printf "%.2f", $1 + $2 }' took)
    awk -v took="$took" -v most="$most" 'BEGIN { exit !(took < most) }' || fail "$took s of CPU time, more than $most: $*"
}
# A trillion parameters on 1,024 ranks takes a fraction of a second; the limit allows for
# sanitizers.
trillion=(--model.arch=llama --model.layers=128 --model.width=25600 --model.heads=200 --model.ff=69632
    --model.context=2048 --model.vocab=50304 --model.tied=no --train.micro_batch=1 --train.global_batch=1024)
quick 10 ok "$sifr" plan "${trillion[@]}" -n 1024 --zero.stage=3 --memory=1000G
has '^params   1.0T'

# Memory that the table does not count.
ok "$sifr" plan "${small[@]}" --model.vocab=257
has '^memory   .* per rank; not counted: the data, and 16.1 MiB while a checkpoint is written$'
# With one rank all ZeRO stages are identical, and none is advised.
expect 4 'per rank, and only [^;]*; try engine.recompute=selective$' \
    "$sifr" plan --model.layers=1000 --model.width=64 --model.heads=2 --model.vocab=256 --memory=24G

# A very deep model: the time is linear in the layers; quadratic, it took 37 s.
quick 25 ok "$sifr" plan --model.width=64 --model.heads=2 --model.vocab=256 --model.layers=8000 --memory=2000G
# The same before a run, which has slots for the layers; quadratic, it took 20 s.
quick 16 ok "$sifr" train --model.layers=30000 --model.width=16 --model.heads=1 --model.context=8 --train.micro_batch=1 --data.path=text.txt --data.split=0 \
    -n 4 --zero.stage=3 --dry-run --out=deep

# The paper's table, exactly.
ok "$sifr" plan --table1
has '^ +1024 +30.087890625 +15.1025390625 +0.1171875$'
has '^ +1024 +4011.71875 +2013.671875 +15.625$'
ok "$sifr" plan --table1 --json
is_json out
finish
