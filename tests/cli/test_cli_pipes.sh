#!/usr/bin/env bash
# A pipe without a writer in place of any file that is read: the error names it, and no command
# waits for it. A pipe that is given as an open descriptor is read.
. "$(dirname "$0")/common.sh" "$@"
make_text >text.txt
head -n 40 text.txt | sed 's/.*/{"text": "&"}/' >lines.jsonl
keys=("${small[@]}" --data.path=text.txt --checkpoint.every=2 --train.steps=4 --data.tokenizer=train:300)
ok "$sifr" train "${keys[@]}" --quiet --out=run
ok "$sifr" export run hf --shard-size=20K
ok "$sifr" tokenize text.txt --out=shards
mkfifo pipe
pipe='it is a pipe, not a plain file'

refused_as() { # KIND CODES FILE PATTERN -- command...: replace FILE by a pipe (fifo) or a link to one (link)
    local kind=$1 codes=$2 file=$3 pattern=$4
    shift 5
    mv "$file" kept
    if [ "$kind" = fifo ]; then mkfifo "$file"; else ln -s "$work/pipe" "$file"; fi
    expect "$codes" "$pattern" timeout 20 "$@"
    if [ "$kind" = fifo ]; then [ -p "$file" ]; else [ -L "$file" ]; fi || fail "$file is no longer the $kind it was: $*"
    rm "$file"
    mv kept "$file"
}
refused() { # CODES FILE [PATTERN] -- command...: both kinds are refused with the same message
    local codes=$1 file=$2 pattern="$(basename "$2").*not a plain file" kind
    shift 2
    [ "$1" = -- ] || { pattern=$1; shift; }
    for kind in fifo link; do
        refused_as $kind "$codes" "$file" "$pattern" "$@"
    done
}

# a model directory, a checkpoint, a run
for file in config.json tokenizer.json model.safetensors.index.json model-00001-of-*.safetensors; do
    refused 1 hf/${file/\*/$(basename -a hf/model-00001-of-*.safetensors | sed 's/.*-of-\(.*\)\.safetensors/\1/')} -- "$sifr" eval hf --data.path=text.txt
done
refused 1 hf/config.json -- "$sifr" inspect hf
refused 1 hf/tokenizer.json -- "$sifr" inspect hf/tokenizer.json
for file in state.json COMPLETE config.json tokenizer.json model.safetensors; do
    refused 1 run/checkpoints/step-4/$file -- "$sifr" eval run/checkpoints/step-4
done
refused 0 run/checkpoints/step-4/state.json "skipped the damaged checkpoint .*state.json.*$pipe" -- "$sifr" eval run
refused 1 run/checkpoints/step-4/optimizer/momentum.safetensors -- "$sifr" inspect --verify run/checkpoints/step-4
# metrics.jsonl is also written to, so a link is refused whatever its target is
refused_as fifo 1 run/metrics.jsonl "metrics.jsonl.*$pipe" -- "$sifr" train "${keys[@]}" --train.steps=6 --out=run
refused_as link 2 run/metrics.jsonl "'run/metrics.jsonl' is a symbolic link" -- "$sifr" train "${keys[@]}" --train.steps=6 --out=run
refused 1 run/summary.json -- "$sifr" inspect run
refused '1|2' run/config.yaml -- "$sifr" eval run

# files named on the command line
refused '1|2' text.txt -- "$sifr" train "${keys[@]}" --quiet --out=never
refused '1|2' lines.jsonl -- "$sifr" train "${small[@]}" --data.path=lines.jsonl --quiet --out=never
refused '1|2' shards/train.bin -- "$sifr" train "${small[@]}" --data.path=shards/train.bin --data.tokenizer=bytes --quiet --out=never
refused '1|2' shards/train.bin -- "$sifr" inspect shards/train.bin
refused '1|2' lines.jsonl -- "$sifr" tokenize lines.jsonl --out=never
expect '1|2' "$pipe" timeout 20 "$sifr" train pipe --quiet --out=never
expect '1|2' "pipe.*not a plain file" timeout 20 "$sifr" plan "${small[@]}" --gpus=2 --machine=./pipe
expect '1|2' "pipe.*not a plain file" timeout 20 "$sifr" train "${keys[@]}" --data.tokenizer=pipe --quiet --out=never
expect '1|2' "not a plain file" timeout 20 "$sifr" train "${keys[@]}" --data.tokenizer=/dev/zero --quiet --out=never
expect '1|2' "not a plain file" timeout 20 "$sifr" train /dev/tty --quiet --out=never </dev/null
[ ! -e never ] || fail "a refused command left a folder"

# open descriptors
printf 'train:\n  steps: 2\n' >two.yaml
ok "$sifr" train <(cat two.yaml) "${small[@]}" --data.path=text.txt --quiet --out=substituted
[ "$(wc -l <substituted/metrics.jsonl)" = 2 ] || fail "<(...) was not read"
ok "$sifr" train <(cat two.yaml) "${small[@]}" --data.path=text.txt --quiet
[ "$(ls runs)" = train ] || fail "the run folder has the name of a descriptor: $(ls runs)"
"$sifr" train /dev/stdin "${small[@]}" --data.path=text.txt --quiet --out=standard <two.yaml 2>err || fail "stdin, a file: $(cat err)"
cat two.yaml | "$sifr" train /dev/stdin "${small[@]}" --data.path=text.txt --quiet --out=piped 2>err || fail "stdin, a pipe: $(cat err)"
[ "$(wc -l <piped/metrics.jsonl)" = 2 ] || fail "stdin was not read"
finish
