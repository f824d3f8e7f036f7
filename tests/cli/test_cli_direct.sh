#!/usr/bin/env bash
# Checkpoints written with direct I/O and through the page cache have the same bytes, and any number
# of ranks resumes from them. The tensors are long enough for each rank to have whole blocks of
# them.
. "$(dirname "$0")/common.sh" "$@"
make_text >text.txt
export SIFR_RUN_THREADS=1
run=(--model.layers=2 --model.width=96 --model.heads=4 --model.context=16 --model.vocab=5003 --model.tied=no --train.micro_batch=1
    --train.global_batch=2 --train.steps=4 --train.eval_every=0 --data.path=text.txt --data.tokenizer=bytes --comm.backend=threads)
train() { # CODE FOLDER keys...
    local code=$1 got=0
    timeout 300 "$sifr" train "${run[@]}" --quiet --out="$2" "${@:3}" >out 2>err || got=$?
    [ $got = "$code" ] || fail "$*: exit $got: $(head -c 400 err)"
}
same() { # A B
    local file count=0
    for file in $(cd "$1" && echo *.safetensors optimizer/*.safetensors); do
        cmp "$1/$file" "$2/$file" || fail "$file differs between $1 and $2"
        count=$((count + 1))
    done
    [ $count -ge 3 ] || fail "$1 has only $count files"
}

for mode in fp32 bf16; do
    for direct in true false; do
        for async in true false; do
            train 75 $mode-$direct-$async -n 3 --zero.stage=3 --precision.mode=$mode --checkpoint.direct=$direct --checkpoint.every=2 \
                --checkpoint.async=$async --train.stop_at=3
            ok "$sifr" inspect --verify $mode-$direct-$async
            same $mode-true-true/checkpoints/step-3 $mode-$direct-$async/checkpoints/step-3
        done
    done
    # Read from disk, from the page cache, and without direct I/O; each rank reads a part, or all
    # ranks read everything.
    sync $mode-true-true/checkpoints/step-3/*.safetensors $mode-true-true/checkpoints/step-3/optimizer/*
    for file in $mode-true-true/checkpoints/step-3/*.safetensors $mode-true-true/checkpoints/step-3/optimizer/*; do
        dd if="$file" iflag=nocache count=0 status=none
    done
    train 0 $mode-true-true -n 2 --zero.stage=1 --precision.mode=$mode
    train 0 $mode-true-false -n 2 --zero.stage=0 --precision.mode=$mode
    train 0 $mode-false-true --precision.mode=$mode --checkpoint.direct=false
    same $mode-true-true/checkpoints/step-4 $mode-true-false/checkpoints/step-4
    same $mode-true-true/checkpoints/step-4 $mode-false-true/checkpoints/step-4
done
finish
