#!/usr/bin/env bash
# sifr export: a Hugging Face directory in any type, in one or several files, from a run, a
# checkpoint or another such directory. An export is complete or absent, and never made from damaged
# files. sifr inspect --diff shows what differs, sifr inspect what a model has.
. "$(dirname "$0")/common.sh" "$@"
sifr() { "$sifr" "$@"; }
make_text >text.txt
ok sifr tokenize text.txt --vocab=300
ok sifr train "${small[@]}" --data.path=tokens/train.bin --data.tokenizer=tokens/tokenizer.json --train.steps=5 --out=run
ok sifr train "${small[@]}" --model.arch=llama --model.kv_heads=1 --model.tied=no --precision.mode=bf16 --data.path=tokens/train.bin \
    --data.tokenizer=tokens/tokenizer.json --train.steps=5 --out=narrow
step=run/checkpoints/step-5 narrow=narrow/checkpoints/step-5

# without conversion: the same bytes of every tensor, the same tokenizer
ok sifr export run plain
has '^plain: .* parameters in f32, 1 file, .*the hashes of the checkpoint match$'
for name in tokenizer.json tokenizer_config.json generation_config.json config.json; do
    cmp -s "$step/$name" "plain/$name" || fail "$name has changed"
done
[ "$(LC_ALL=C ls plain | tr '\n' ' ')" = 'config.json generation_config.json model.safetensors tokenizer.json tokenizer_config.json ' ] ||
    fail "other files: $(ls plain)"
ok sifr sample plain --tokens=8 --temperature=0 --raw -q The
mv out text-1
ok sifr sample run --tokens=8 --temperature=0 --raw -q The
cmp -s out text-1 || fail "the exported model samples another text"

cp -r plain bare
rm bare/tokenizer.json
expect 2 "no tokenizer.json in the model folder 'bare'; name one with --tokenizer" "$sifr" sample bare The
expect 2 "--tokenizer: no file matches 'no-such'" "$sifr" sample bare The --tokenizer=no-such
ok sifr sample bare --tokens=2 -q The --tokenizer=plain
expect 2 "data.val: no held-out data; give a file or a quoted glob" "$sifr" eval plain

# to several files, and back to one
ok sifr export "$step" parts --shard-size=20k --json
is_json out
has '"files": [3-9],.*"verified": true, "master": false'
[ -f parts/model.safetensors.index.json ] && [ ! -e parts/model.safetensors ] || fail "no index: $(ls parts)"
ok sifr export parts/ again/
cmp -s again/model.safetensors plain/model.safetensors || fail "the round trip changed bytes"

# of a bf16 run, an f32 export has the masters, and a bf16 export has the weights
ok sifr export narrow wide --dtype=f32
has 'in f32, .*from the fp32 masters'
grep -q '"torch_dtype": "float32"' wide/config.json || fail "dtype: $(cat wide/config.json)"
ok sifr export narrow kept
has 'in bf16'
grep -q '"dtype": "bfloat16"' kept/config.json || fail "dtype: $(cat kept/config.json)"
ok sifr export wide rounded --dtype=bf16
cmp -s rounded/model.safetensors kept/model.safetensors || fail "rounded masters are not the weights"
ok sifr export wide half --dtype=f16
ok sifr sample half --tokens=3 -q The

# nothing is overwritten, and a failed export leaves nothing
expect 2 "'plain' exists and is not an empty folder" "$sifr" export run plain
expect 2 "'text.txt' exists and is not an empty folder" "$sifr" export run text.txt
expect 2 "error: there is no 'nowhere'" "$sifr" export nowhere x
expect 2 "is not a model directory" "$sifr" export tokens x
expect 2 "missing argument; usage: sifr export" "$sifr" export run
expect 2 "dtype" "$sifr" export run x --dtype=f64
mkdir empty
ok sifr export run empty
[ -f empty/model.safetensors ] || fail "an empty folder is not filled"
cp -r "$narrow" damaged
printf x | dd of=damaged/optimizer/master.safetensors bs=1 seek=5000 conv=notrunc status=none
expect 1 "damaged/optimizer/master.safetensors': bytes .*: hash mismatch" "$sifr" export damaged x --dtype=f32
ok sifr export damaged unharmed # its weights are right
printf x | dd of=damaged/tokenizer.json bs=1 seek=50 conv=notrunc status=none
expect 1 "damaged/tokenizer.json': bytes .*: hash mismatch" "$sifr" export damaged x
cp -r plain short
truncate -s -1 short/model.safetensors
expect 1 "short/model.safetensors" "$sifr" export short x
[ ! -e x ] && [ ! -e x.sifr-partial ] || fail "a failed export left files"
mkdir -p late.sifr-partial
echo old >late.sifr-partial/old
echo "1 host" >late.sifr-partial/.sifr-lock # the marker of an export that was killed
ok sifr export run late
[ ! -e late/old ] && [ "$(ls -d late*)" = late ] || fail "a file of the killed export is in the new one"

# equal models
ok sifr inspect --diff run plain
has '^  tensors +28$'
has '^  equal +28$'
ok sifr inspect --diff plain parts
ok sifr inspect --diff run "$step"
has '^  tensors +84$' # model, momentum, variance
ok sifr inspect "$narrow" --diff narrow --json
is_json out
has '"part": "master".*"part": "variance"'
has '"differing": 0, "only_first": 0, "only_second": 0, "largest": 0'

# models that differ in an element, a type, a name, a shape
cp -r plain other
at=$(($(stat -c %s other/model.safetensors) - 8)) # the second element from the end of the last tensor
printf '\0\0\200?' | dd of=other/model.safetensors bs=1 seek=$at conv=notrunc status=none
expect 1 "'plain' and 'other' differ in 1 of 28 tensors" "$sifr" inspect --diff plain other
has '^  model +transformer.wte.weight: 1 of 9600 elements, largest [0-9.]+, rms [0-9.e-]+ relative, first at 9598 \([0-9.e-]+, 1\)$'
has '^  differing +1$'
expect 1 "differ in 1 of 28" "$sifr" inspect --diff plain other --json
is_json out
has '"name": "transformer.wte.weight", "equal": false, .*"elements": 9600, "differing": 1, "first": 9598,'
expect 1 "differ in " "$sifr" inspect --diff wide kept
has 'F32, BF16; [0-9]+ of [0-9]+ elements, largest'
ok sifr export kept kept-wide --dtype=f32 # no element differs, but all types do
expect 1 "differ in " "$sifr" inspect --diff kept kept-wide
has 'BF16, F32; 0 of [0-9]+ elements, largest 0, rms 0 relative$'
expect 1 "differ in " "$sifr" inspect --diff plain wide
has '^  model +transformer.wte.weight: only in the first$'
has '^  model +lm_head.weight: only in the second$'
ok sifr train "${small[@]}" --model.context=16 --data.path=tokens/train.bin --data.tokenizer=tokens/tokenizer.json --train.steps=1 --out=smaller
expect 1 "differ in 84 of 84" "$sifr" inspect --diff run smaller
has 'transformer.wpe.weight: \[32, 32\], \[16, 32\]$'
expect 2 "error: there is no 'nowhere'" "$sifr" inspect --diff run nowhere
expect 2 "takes two models" "$sifr" inspect --diff run
expect 2 "unexpected argument" "$sifr" inspect run plain
expect 2 "cannot be combined" "$sifr" inspect run plain --diff --verify

# --- what a model directory has besides its sizes ---------------------------------------------------
ok sifr train "${small[@]}" --model.arch=gemma3 --model.head_width=12 --model.window=8 --model.rope_local=100 --model.logit_cap=20 --data.path=text.txt \
    --train.steps=1 --out=kinds
ok sifr export kinds kinds-hf
ok sifr inspect kinds-hf
for line in 'head_width +12' 'window +8' 'logit_cap +20' 'rope_local +100' 'norm_eps +1e-06'; do has "^  $line\$"; done
! grep -qE '^  (score_cap|mlp_bias|rope_scaling|path|preset) ' out || fail "keys that say nothing are shown: $(cat out)"
ok sifr inspect kinds-hf --json
is_json out
has '"window": 8'
ok sifr train "${small[@]}" --model.arch=phi3 --model.rope_scaling=longrope --model.rope_original=16 --model.rope_short=1,1,1.05,1.2,1.5,2,2,2.5 \
    --model.rope_long=1,2,3,4,5,6,7,8 --data.path=text.txt --train.steps=1 --out=long
ok sifr export long long-hf
ok sifr inspect long-hf
for line in 'rope_scaling +longrope' 'rope_short +1,1,1.05,1.2,1.5,2,2,2.5' 'rope_long +1,2,3,4,5,6,7,8'; do has "^  $line\$"; done

finish
