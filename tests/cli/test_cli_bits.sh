#!/usr/bin/env bash
# Losses and weights are equal to the bit for 1 and 2 threads, every recompute mode, and every run.
. "$(dirname "$0")/common.sh" "$@"
make_text >text.txt

# Odd sizes on purpose; two micro-batches per step, so that gradients are summed.
train() { # FOLDER keys...
    local folder=$1
    shift
    ok "$sifr" train --model.layers=3 --model.width=40 --model.heads=5 --model.context=37 --train.micro_batch=3 \
        --train.global_batch=6 --train.steps=6 --train.eval_every=3 --train.lr=3e-3 --data.path=text.txt \
        --data.tokenizer=train:300 --quiet --out="$folder" "$@"
    sed 's/.*"loss":\([^,]*\),"grad_norm":\([^,]*\),.*/\1 \2/' "$folder/metrics.jsonl" >"$folder.loss"
}
same() { # A B WHAT
    cmp -s "$1.loss" "$2.loss" || fail "$3: losses differ: $(paste "$1.loss" "$2.loss" | head -2)"
    cmp -s "$1/checkpoints/step-6/model.safetensors" "$2/checkpoints/step-6/model.safetensors" || fail "$3: weights differ"
}

for arch in gpt2 llama; do
    keys=(--model.arch=$arch)
    [ $arch = gpt2 ] || keys+=(--model.kv_heads=1 --model.tied=no --model.ff=100)
    train $arch-base "${keys[@]}" --run.threads=2
    [ "$(wc -l <$arch-base.loss)" = 6 ] || fail "$arch: no losses"
    train $arch-again "${keys[@]}" --run.threads=2
    same $arch-base $arch-again "$arch, the same run again"
    train $arch-one "${keys[@]}" --run.threads=1
    same $arch-base $arch-one "$arch, 1 thread and 2"
    for mode in selective full; do
        train $arch-$mode "${keys[@]}" --run.threads=2 --engine.recompute=$mode
        same $arch-base $arch-$mode "$arch, recompute $mode"
    done
    train $arch-other "${keys[@]}" --run.threads=2 --train.seed=2
    ! cmp -s $arch-base.loss $arch-other.loss || fail "$arch: another seed gave the same losses"
done

# Gradients of zero in fp16: one rank takes them with their sign, several ranks add them to zero. Zeros
# in 8-bit momentum have no sign.
signs=(--model.layers=2 --model.width=36 --model.heads=4 --model.ff=78 --model.context=22 --model.vocab=263 --model.tied=no --train.micro_batch=2
    --train.global_batch=2 --train.steps=8 --train.warmup=1 --train.clip=0.5 --train.lr=5e-3 --precision.mode=fp16 --optimizer.kind=adamw8bit --data.path=text.txt --quiet)
ok "$sifr" train "${signs[@]}" --out=signs-1
ok "$sifr" train "${signs[@]}" --out=signs-3 -n 3 --comm.backend=threads --zero.stage=2
same_state signs-1 signs-3 8 "8-bit momentum of 1 and 3 ranks"
# A single gradient in fp16 and sums in bf16: rounded twice, in the same order, whether it is sent or not.
ok "$sifr" train "${signs[@]}" --precision.accumulate=bf16 --zero.accumulate=local --out=sums-1
ok "$sifr" train "${signs[@]}" --precision.accumulate=bf16 --zero.accumulate=local --out=sums-2 -n 2 --comm.backend=threads --zero.stage=1 --zero.servers=1
same_state sums-1 sums-2 8 "one gradient, local sums in bf16, with and without a server"

# In fp32 nothing is rounded, so stochastic rounding has no effect: one warning.
train random --model.arch=gpt2 --run.threads=2 --optimizer.rounding=stochastic
[ "$(grep -c 'warning: optimizer.rounding=stochastic has no effect with precision.mode=fp32' err)" = 1 ] ||
    fail "no warning about rounding in fp32: $(head -c 400 err)"
same gpt2-base random "stochastic rounding in fp32"

# train.decay has no effect with a cosine schedule: one warning. There is none about the run's own
# config.yaml, which has all keys.
ok "$sifr" plan random/config.yaml --train.decay=99
[ "$(grep -c 'warning: train.decay=99 has no effect with train.schedule=cosine; it is for wsd' err)" = 1 ] ||
    fail "no warning about train.decay: $(head -c 400 err)"
for keys in '' '--train.schedule=wsd --train.decay=1'; do
    ok "$sifr" plan random/config.yaml $keys
    ! grep 'train.decay' err || fail "a warning about train.decay: $keys"
done
# a removed key, in a configuration and in a run folder: accepted with one line, the same bits
removed='engine.keep_swiglu was removed and is ignored'
printf 'engine:\n  keep_swiglu: true\n' >old.yaml
train llama-old --model.arch=llama --model.kv_heads=1 --model.tied=no --model.ff=100 --run.threads=2 old.yaml
[ "$(grep -c "old.yaml:2: $removed" err)" = 1 ] && [ "$(wc -l <err)" = 1 ] || fail "a removed key: not one line: $(cat err)"
same llama-base llama-old "a removed key"
! grep -q keep_swiglu llama-old/config.yaml || fail "a removed key is in config.yaml"
sed -i 's/^engine:$/engine:\n  keep_swiglu: false/' llama-old/config.yaml
ok "$sifr" eval llama-old --data.path=text.txt
[ "$(grep -c "$removed" err)" = 1 ] || fail "eval of an old run: not one line: $(cat err)"
finish
