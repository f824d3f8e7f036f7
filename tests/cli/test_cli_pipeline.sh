#!/usr/bin/env bash
# Pipelines from the command line: a run that is stopped in one layout and resumed in others, with
# samples and evaluations, has the bits of one rank. The plan shows PP stages and times, a trace has
# the lanes of a PP stage, and invalid layouts are refused.
. "$(dirname "$0")/common.sh" "$@"
make_text >text.txt
export SIFR_RUN_THREADS=1
run=(--model.layers=3 --model.width=40 --model.heads=5 --model.context=37 --train.micro_batch=2 --train.global_batch=12
    --train.steps=12 --train.eval_every=4 --train.eval_batches=5 --train.lr=3e-3 --train.sample_every=6 --train.sample_tokens=5
    --data.path=text.txt --data.tokenizer=train:300)

# --- any layout resumes from any other ------------------------------------------------------------
figures() { losses "$1"; grep -o '"val":{"loss":[^,]*' "$1/metrics.jsonl"; }
same() { # FOLDER: its results must equal those of `whole`
    cmp -s <(figures whole) <(figures "$1") || fail "$1: losses differ: $(paste <(figures whole) <(figures "$1") | head -2)"
    cmp -s whole/samples.jsonl "$1/samples.jsonl" || fail "$1: samples differ"
    same_state whole "$1" 12 "$1"
}
train() { # CODE FOLDER RANKS keys...
    local code=$1 folder=$2 ranks=$3 got=0
    shift 3
    timeout 300 "$sifr" train "${run[@]}" --quiet --out="$folder" -n "$ranks" "$@" >out 2>err || got=$?
    [ $got = "$code" ] || fail "$folder, -n $ranks $*: exit $got, not $code: $(head -c 400 err)"
    ! grep -qE '(will|may) differ' err || fail "$folder, $*: $(cat err)"
}
train 0 whole 1
train 75 cut 4 --parallel.pp=2 --zero.stage=3 --train.stop_at=4
cp -r cut other
train 75 cut 3 --parallel.pp=3 --train.stop_at=8 --parallel.schedule=gpipe
train 0 cut 1
same cut
train 75 other 1 --train.stop_at=7
train 75 other 4 --parallel.pp=2 --parallel.schedule=interleaved --zero.stage=1 --train.stop_at=9 --comm.backend=threads
train 0 other 2 --parallel.pp=2 --checkpoint.async=false --checkpoint.every=1 --engine.recompute=full
same other

# An optimizer group may match tensors of a single PP stage only.
printf 'optimizer:\n  groups:\n    - match: "transformer.wpe*"\n      lr_mul: 0.5\n' >groups.yaml
"$sifr" train --help | grep -q 'parallel.pp' || fail "--help does not have parallel.pp"
ok "$sifr" train groups.yaml "${run[@]}" --train.steps=2 --train.sample_every=0 --quiet --out=groups -n 2 --parallel.pp=2

# --- the trace and the plan -----------------------------------------------------------------------
ok "$sifr" train "${run[@]}" --train.steps=3 --train.sample_every=0 --quiet --out=traced -n 2 --parallel.pp=2 --trace=2:3
for name in '"stage"' '"acts out"' '"grads in"' '"F0"' '"B5"' '"acts out a5>1"' '"grads in g5<1"'; do
    grep -q "$name" traced/trace-rank-0.json || fail "the trace of rank 0 has no $name"
done
grep -q '"name":"acts in a0<0"' traced/trace-rank-1.json || fail "the trace of rank 1 has no receive"
grep -q '"cat":"wait"' traced/trace-rank-1.json || fail "the trace of rank 1 has no wait"
ok "$sifr" plan "${run[@]}" -n 4 --parallel.pp=2 --zero.stage=1
has '^  PP stage +[01] +[01] +[01] +[01]$'
has '^  pipe +[0-9.]+ KiB'
has '^  0 +0-[12] +[0-9.]+k +[0-9.]+ MiB +[0-9.]+ KiB +2$'
has '^schedule 1f1b: ranks are idle [0-9.]+ % of the time of the passes.* \(p-1\)/m is 33.3 %$'
has '^4 ranks = dp 2 x pp 2 x tp 1$'
has '^copy 1 +2 +3$'
has '^rank 1 +\.+0+a+1+b+'
ok "$sifr" train "${run[@]}" -n 2 --parallel.pp=2 --dry-run

# --- invalid layouts ------------------------------------------------------------------------------
refused() { # PATTERN RANKS keys...: plan refuses it, and train before it writes anything
    local pattern=$1 ranks=$2
    shift 2
    expect 2 "$pattern" "$sifr" plan "${run[@]}" -n "$ranks" "$@"
    expect 2 "$pattern" "$sifr" train "${run[@]}" --out=refused -n "$ranks" "$@"
    [ ! -e refused ] || fail "a refused run left a folder: $*"
}
refused "parallel.pp=2 does not divide 3 ranks; try 1 or 3" 3 --parallel.pp=2
refused "parallel.pp=4 needs 4 ranks or more, and there are 2 ranks; start more" 2 --parallel.pp=4
refused "parallel.pp=6 exceeds the 5 units of the model; try 3$" 6 --parallel.pp=6
refused "parallel.pp=2 with 3 chunks per stage exceeds the 5 units of the model; try parallel.pp=1 or fewer parallel.chunks" \
    2 --parallel.pp=2 --parallel.schedule=interleaved --parallel.chunks=3
refused "parallel.chunks=2 conflicts with parallel.schedule=1f1b, which has one chunk per stage" 2 --parallel.pp=2 --parallel.chunks=2
refused "parallel.eager conflicts with parallel.schedule=gpipe" 2 --parallel.pp=2 --parallel.schedule=gpipe --parallel.eager=true
refused "zero.servers=1 leaves no worker among 1 rank of one PP stage" 2 --parallel.pp=2 --zero.servers=1 --zero.stage=1
refused "zero.shard_group=4 does not divide 2 ranks of one PP stage" 4 --parallel.pp=2 --zero.shard_group=4 --zero.stage=1
expect 2 "parallel.schedule must be one of gpipe, 1f1b" "$sifr" plan "${run[@]}" -n 2 --parallel.pp=2 --parallel.schedule=2f2b
expect 2 "parallel.pp must be a whole number from 1" "$sifr" plan "${run[@]}" -n 2 --parallel.pp=0
finish
