#!/usr/bin/env bash
# Bad input: each mistake gives one clear message and the right exit code, and no existing file is
# damaged.
. "$(dirname "$0")/common.sh" "$@"
make_text >text.txt
ok "$sifr" tokenize text.txt --vocab=300 --out=tokens
train() { "$sifr" train "${small[@]}" --train.steps=2 --quiet --out=run "$@"; }

# files
expect 2 "data.path: no file matches .no-such.txt., seen from ./" train --data.path=no-such.txt
expect 2 "no-such.yaml" "$sifr" train no-such.yaml
expect 2 "no-such.yaml" "$sifr" plan no-such.yaml
expect 2 "'text.txt' is not a configuration file .FILE.yaml.; to train on it, use --data.path=text.txt" "$sifr" train text.txt
expect 2 "OUT is empty" "$sifr" export tokens ""
expect 2 "is a folder, not a configuration file" "$sifr" plan tokens
expect 2 "error: there is no 'no-such'" "$sifr" eval no-such
expect 2 "error: there is no 'no-such'" "$sifr" sample no-such
expect 2 "error: model.path: there is no 'no-such'" train --data.path=text.txt --model.path=no-such
expect 2 "data.tokenizer: .*no-such.json" train --data.path=text.txt --data.tokenizer=no-such.json
expect 2 "data.path" train
# a path that does not exist or has the wrong kind is wrong usage (exit code 2) in every command
expect 2 "data.path: '/' is a folder; name a file, or several by a quoted glob: '/\*.txt'" train --data.path=/
expect 2 "data.tokenizer: there is no tokenizer.json in the folder '/'" train --data.path=text.txt --data.tokenizer=/
for command in "sample no-such" "eval no-such" "export no-such to" "inspect no-such" "inspect --verify no-such" \
    "inspect --diff no-such text.txt" "sample run --model.path=no-such"; do
    expect 2 "there is no 'no-such'" "$sifr" $command
done
for command in "tokenize no-such" "tokenize --decode no-such"; do
    expect 2 "no file matches 'no-such', seen from '/" "$sifr" $command
done
expect 2 "--tokenizer: no file matches 'no-such'" "$sifr" tokenize text.txt --tokenizer=no-such --out=no
expect 2 "'tokens' is a folder; name a file" "$sifr" tokenize tokens --out=no
expect 2 "'text.txt' is not a model directory" "$sifr" sample text.txt
mkdir bare
cp text.txt bare/x.safetensors
expect 2 "'bare/config.json' is missing: it describes the model in the same folder; name a model directory" "$sifr" sample bare/x.safetensors
expect 2 "'text.txt' is not a model directory" "$sifr" eval text.txt
expect 2 "--out: 'text.txt' is a file, but a folder will be written there; choose another --out" train --data.path=text.txt --out=text.txt
expect 2 "--out: 'text.txt' is a file" "$sifr" tokenize text.txt --out=text.txt
ln -s no dead
for out in dead dead/ dead/run; do
    expect 2 "--out: 'dead' is a link that leads nowhere; .*choose another --out" train --data.path=text.txt --out=$out
    expect 2 "--out: 'dead' is a link that leads nowhere" "$sifr" tokenize text.txt --out=$out
done
rm dead
[ ! -e no ] && [ ! -e to ] || fail "a folder was created for a wrong path"
head -c 3000 tokens/train.bin >short.bin
expect 1 "short.bin.*(truncated|cut|tokens|bytes)" train --data.path=short.bin
head -c 500 tokens/train.bin >header.bin
expect 1 "header.bin" train --data.path=header.bin
expect 1 "'text.txt' is neither a checkpoint \(no state.json\) nor a run folder with checkpoints" "$sifr" inspect --verify text.txt
# bench step: mistakes are reported before anything is measured
expect 2 "no model: set --model.preset" "$sifr" bench step
[ ! -s out ] || fail "bench step: measured before the error: $(cat out)"
if [ -e "${sifr%/sifr}/libsifr-cuda.so" ] && ! /sbin/ldconfig -p | grep -q 'libcuda\.so\.1'; then # a build with CUDA on a machine without a driver
    SIFR_PLUGIN_FOLDER=${sifr%/sifr} expect 2 "run.device: cuda: no NVIDIA driver is on this machine \(libcuda.so.1 was not found\): install one, or use the device 'cpu'" train --data.path=text.txt --run.device=cuda
fi
expect 2 "run.deterministic=false has no effect on the CPU" "$sifr" bench step --model.preset=tiny --run.deterministic=false
expect 2 "100000 is larger than model.context" "$sifr" bench step --model.preset=tiny --context=100000
[ ! -s out ] || fail "bench step: measured before the error: $(cat out)"
expect 2 "not '16GB' \(did you mean '16G'\?\)" "$sifr" plan --model.preset=tiny --model.vocab=300 --memory=16GB
expect 2 "not '16GiB' \(did you mean '16G'\?\)" "$sifr" plan --model.preset=tiny --model.vocab=300 --memory=16GiB
expect 1 "noise.safetensors" "$sifr" inspect "$(printf '\010\0\0\0\0\0\0\0{"a": 1}' >noise.safetensors && echo noise.safetensors)"
# wrong content of a data file gives exit code 1 in every command; a wrong path or setting gives 2
: >empty.txt
: >empty.jsonl
printf '\n\n' >blank.jsonl
for i in {1..100}; do printf '{"text": ""}\n'; done >hollow.jsonl
printf '{"text": "a"}\n{"text": \n' >bad.jsonl
printf 'odd' >odd.bin
printf '\037\213\010\0rest' | tee packed.jsonl >text.txt.gz
tar cf text.tar text.txt
printf '\377\376a\0\n\0' >utf-16.txt
mkdir folder.csv
mkfifo pipe.tsv
ok "$sifr" train "${small[@]}" --train.steps=1 --data.path=text.txt --quiet --out=good
expect_data() { # CODE PATTERN FILE [FORMAT]
    expect "$1" "$2" train --data.path="$3" --data.format="${4:-auto}" --model.vocab=300
    expect "$1" "$2" train --data.path=text.txt --data.val="$3" --data.format="${4:-auto}" --model.vocab=300
    expect "$1" "$2" "$sifr" eval good --data.val="$3" --data.format="${4:-auto}"
    [ $# = 4 ] || [ "$3" = short.bin ] || expect "$1" "$2" "$sifr" tokenize "$3" --out=no
    [ ! -e no ] && [ ! -e run ] || fail "$3: a failed command left a folder"
}
expect_data 1 "empty.txt' is empty" empty.txt
expect_data 1 "empty.jsonl' is empty" empty.jsonl
expect_data 1 "no text in .*blank.jsonl'" blank.jsonl
expect_data 1 "no text in .*hollow.jsonl'" hollow.jsonl
expect_data 1 "bad.jsonl' line 2" bad.jsonl
expect_data 1 "text.txt.gz' is compressed by gzip, and is not read as text; unpack it first \(gunzip -k\)" text.txt.gz
expect_data 1 "text.tar' is a tar archive, and is not read as text; unpack it first \(tar xf\)" text.tar
expect_data 1 "utf-16.txt' is UTF-16, and is not read as text; convert it first \(iconv -f UTF-16 -t UTF-8\)" utf-16.txt
expect_data 1 "packed.jsonl' is compressed by gzip" packed.jsonl
expect_data 1 "short.bin' is truncated" short.bin
expect_data 1 "odd.bin' has no token shard header; set data.format=u16 or u32 for raw token ids, or data.format=text or jsonl" odd.bin
expect_data 2 "'folder.csv' is a folder; name plain files" '*.csv'
expect_data 2 "'pipe.tsv' is not a plain file; name plain files" pipe.tsv
expect_data 2 "no file matches 'no-such.txt'" no-such.txt
for share in 1.5 1 -0.1 10; do
    expect 2 "data.val: $share is neither a file nor a share; a share is at least 0 and below 1" train --data.path=text.txt --data.val=$share
done
cp text.txt 2024
ok train --data.path=text.txt --data.val=2024 --out=file-2024
ln -s no-such.txt dead.log
expect_data 2 "'dead.log' is a link that leads nowhere" dead.log
expect_data 2 "'dead.log' is a link that leads nowhere" 'd*.log'
# files of several kinds, in any order; a file that is of no supported kind is named as what it is
mkdir mixed
printf '{"text": "a line"}\n' | tee mixed/b.jsonl >mixed/z.jsonl
cp text.txt mixed/a.txt
cp tokens/train.bin mixed/c.txt
cp text.txt.gz mixed/z.jsonl.gz
expect_data 2 "mixed/\[ab\]\*' matches files of several kinds: '.*mixed/a.txt' is text, '.*mixed/b.jsonl' is JSONL; name every kind apart \(to train on: data.mix\), or say by data.format" 'mixed/[ab]*'
expect_data 2 "'.*mixed/b.jsonl' is JSONL, '.*mixed/c.txt' is a token shard" 'mixed/[bc]*'
expect_data 2 "'.*mixed/a.txt' is text, '.*mixed/c.txt' is a token shard" 'mixed/*.txt'
expect_data 1 "z.jsonl.gz' is compressed by gzip" 'mixed/z*'
ok train --data.path='mixed/[ab]*' --data.format=text --out=as-text
ok "$sifr" tokenize mixed/a.txt mixed/b.jsonl --out=mixed-tokens
ok "$sifr" tokenize 'mixed/[ab]*' --format=text --out=text-tokens
expect 1 "odd.bin' is truncated" "$sifr" eval good --data.val=odd.bin --data.format=u16
expect 2 "train.bin' has an llm.c header; read it with data.format tokens" "$sifr" eval good --data.val=tokens/train.bin --data.format=u16
expect 2 "no file matches 'no-such.txt'" "$sifr" plan "${small[@]}" --data.path=no-such.txt

# a file that may not be text: one warning from every command that reads it
printf 'a\0b\0c' | cat - text.txt >nul.txt
once() { # COMMAND...
    ok "$@"
    [ "$(grep -c "warning: .*nul.txt' has NUL bytes in its first 64 KiB: it may not be" err)" = 1 ] || fail "not one warning: $*: $(head -c 400 err)"
}
once train --data.path=nul.txt --out=nul
once train --data.path=nul.txt --data.tokenizer=train:300 --out=nul-learnt
once "$sifr" tokenize nul.txt --vocab=300 --out=nul-tokens
once "$sifr" eval nul --data.val=nul.txt

# tokens beyond the vocabulary; data shorter than the context
expect 2 "is beyond the vocabulary of 100; for a new model set data.tokenizer to the tokenizer.json of these tokens or raise model.vocab" \
    train --data.path=tokens/train.bin --model.vocab=100
expect 2 "is beyond the vocabulary of 257; .* an existing model needs tokens of its own tokenizer" "$sifr" eval good --data.val=tokens/train.bin
expect 2 "the context of 32 is longer than the data: .*; lower train.context, or give more data" train --data.path="$(printf 'too short\n' >tiny.txt && echo tiny.txt)"
expect 2 "vocab" train --data.path=text.txt --data.tokenizer=tokens --model.vocab=100
expect 2 "trace.*range of steps" train --data.path=text.txt --trace=8:5
expect 2 "trace.*beyond train.steps" train --data.path=text.txt --train.steps=3 --trace=4:5

# keys and values
printf 'train:\n  steps: 2\n  stepz: 3\n' >typo.yaml
expect 2 "typo.yaml:3.*train.stepz.*did you mean .*train.steps" "$sifr" train typo.yaml
printf 'train: [\n' >broken.yaml
expect "1|2" "broken.yaml:[0-9]+" "$sifr" train broken.yaml
expect 2 "--model.width.*-64" train --data.path=text.txt --model.width=-64
expect 2 "--train.steps.*-5" train --data.path=text.txt --train.steps=-5
expect 2 "--train.steps.*many" train --data.path=text.txt --train.steps=many
expect 2 "model.heads: 5 does not divide model.width 32; try 4 or 8" train --data.path=text.txt --model.heads=5
expect 2 "model.kv_heads" train --data.path=text.txt --model.arch=llama --model.heads=4 --model.kv_heads=3
expect 2 "train.global_batch: 6 is not a multiple of train.micro_batch 4; try 8" train --data.path=text.txt --train.global_batch=6
expect 2 "train.batch_ramp: 6 is not a multiple of train.micro_batch 4; try 8" train --data.path=text.txt --train.global_batch=16 --train.batch_ramp=6@1k
expect 2 "train.batch_ramp: '8' has no '@'; write SIZE@TOKENS" train --data.path=text.txt --train.global_batch=16 --train.batch_ramp=4@1k,8
expect 2 "train.context: 64 is more than model.context 32" train --data.path=text.txt --train.context=64
expect 2 "schedule" train --data.path=text.txt --train.schedule=cosin
expect 2 "SIFR_TRAIN_STEPS" env SIFR_TRAIN_STEPS=x "$sifr" train "${small[@]}" --data.path=text.txt

# tokenizers
printf '{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}' >cut.json
expect 1 "cut.json" train --data.path=text.txt --data.tokenizer=cut.json
printf '{"version": "1.0", "model": {"type": "Unigram", "vocab": []}}' >other.json
expect 2 "other.json: .*not supported" train --data.path=text.txt --data.tokenizer=other.json

# folders that cannot be written to
: >file
expect 2 "file" "$sifr" train "${small[@]}" --data.path=text.txt --train.steps=2 --quiet --out=file/run
expect 1 "/proc/sifr" "$sifr" train "${small[@]}" --data.path=text.txt --train.steps=2 --quiet --out=/proc/sifr
expect 2 "file" "$sifr" tokenize text.txt --out=file/tokens

# models
expect 2 "no-such-model" "$sifr" sample no-such-model
expect 2 "no-such-model" "$sifr" eval no-such-model --data.val=text.txt
mkdir broken
printf '{"model_type": "bert"}' >broken/config.json
expect 2 "model_type 'bert' is not supported" "$sifr" sample broken
[ ! -e run ] || fail "a refused run left a folder: $(ls -R run | head -5)"

expect 2 "--out is empty; name a folder, or omit --out" "$sifr" train "${small[@]}" --data.path=text.txt --out=
[ ! -e runs ] || fail "an empty --out created a folder"

# training that diverges ends with exit code 3
expect 3 "skipped" "$sifr" train "${small[@]}" --data.path=text.txt --train.steps=50 --train.lr=900 --train.clip=0 \
    --train.warmup=0 --train.weight_decay=900 --train.max_skips=2 --quiet --out=diverged
grep -q '"end": "diverged"' diverged/summary.json || fail "summary.json does not say diverged"
expect 4 "the run needs" "$sifr" train --model.preset=llama-8b --model.vocab=300 --data.path=tokens/train.bin --dry-run --train.micro_batch=64
expect 4 "the run needs" "$sifr" train --model.preset=llama-8b --model.vocab=300 --data.path=tokens/train.bin --train.micro_batch=512 --out=large
expect 4 "the run needs" train --data.path=text.txt --train.micro_batch=1000000 --train.global_batch=1000000
[ ! -e large ] || fail "a run that does not fit left a folder"
finish
