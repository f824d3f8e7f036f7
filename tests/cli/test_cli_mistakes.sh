#!/usr/bin/env bash
# Files of an unexpected kind are named with what is wrong; paths in any encoding are preserved; a
# finished run says so.
. "$(dirname "$0")/common.sh" "$@"
make_text >text.txt
run=("$sifr" train "${small[@]}" --model.layers=1 --data.tokenizer=bytes --train.steps=2)

# --- a tab in YAML, an HTML page, a Git LFS pointer -----------------------------------------------
printf 'model:\n\tlayers: 2\n' >tab.yaml
expect 2 'tab.yaml:2: a tab in column 1 indents this line: YAML takes spaces only' "$sifr" plan tab.yaml
printf '\n<!DOCTYPE html>\n<html><body>Not found</body></html>\n' >page.html
expect 1 'page.html: not a tokenizer.json: an HTML page' "${run[@]}" --data.path=text.txt --data.tokenizer=page.html --out=no
expect 1 'page.html: not a tokenizer.json: an HTML page' "$sifr" tokenize text.txt --tokenizer=page.html --out=no
mkdir model
cp page.html model/config.json
expect 1 "'model/config.json' is an HTML page" "$sifr" sample model
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n' >model/config.json
expect 1 "'model/config.json' is a Git LFS pointer" "$sifr" sample model
cp model/config.json pointer.safetensors
expect 1 "'pointer.safetensors' is a Git LFS pointer" "$sifr" inspect pointer.safetensors
printf '{"version": "1.0",\n' >half.json
expect 1 'half.json: not a tokenizer.json: line [12]' "$sifr" tokenize text.txt --tokenizer=half.json --out=no

# --- folders that people have instead of a model --------------------------------------------------
# in_all PATTERN FOLDER: every command that reads a model refuses the folder with the same message
in_all() {
    expect 2 "$1" "${run[@]:0:2}" --model.path="$2" --data.path=text.txt --out=no
    expect 2 "$1" "$sifr" sample "$2" x
    expect 2 "$1" "$sifr" eval "$2" --data.val=text.txt
    expect 2 "$1" "$sifr" export "$2" no
    expect 2 "$1" "$sifr" inspect "$2"
}
mkdir adapter bin bins kinds authors
: >adapter/adapter_config.json
: >bin/pytorch_model.bin
: >bins/pytorch_model.bin.index.json
: >authors/consolidated.safetensors
in_all "'adapter' is a PEFT adapter, not a model: merge it .*and name that folder" adapter
for state in alone with-config; do
    in_all "'bin' has its weights in pytorch_model.bin, .*convert it .*and name that folder" bin
    in_all "'bins' has its weights in pytorch_model-\*.bin, .*convert them" bins
    in_all "'authors' has its weights in consolidated.safetensors, .*Hugging Face" authors
    for folder in bin bins authors; do echo '{"model_type": "gpt2"}' >$folder/config.json; done
done
echo '{"hidden_size": 8}' >kinds/config.json
in_all "'kinds/config.json': model_type is missing, .*add it" kinds
echo '{"model_type": "mixtral", "num_local_experts": 8}' >kinds/config.json
in_all "'kinds/config.json': num_local_experts is not supported: a mixture of experts; use a dense model" kinds
echo '{"model_type": "gemma3", "vision_config": {}}' >kinds/config.json
in_all "'kinds/config.json': vision_config is not supported: a model that sees images; use" kinds
echo '{"model_type": "bert"}' >kinds/config.json
in_all "'kinds/config.json': model_type 'bert' is not supported, only gpt2, " kinds

# --- data that is not plain text ------------------------------------------------------------------
{ printf '[\n'; sed 's/.*/{"text": "&"},/' text.txt; printf '{}]\n'; } >list.json
expect 1 "list.json' is JSON and is not read as text" "${run[@]}" --data.path=list.json --out=no
expect 1 "'list.json' is JSON and is not read as text" "$sifr" tokenize list.json --tokenizer=bytes --out=no
[ ! -e no ] || fail "a refused command left a folder"
ok "${run[@]}" --data.path=list.json --data.format=text --out=as-text # explicitly requested
sed 's/.*/{"text": "&"}/' text.txt >lines.json
ok "${run[@]}" --data.path=lines.json --data.format=jsonl --out=as-lines
{ printf 'x%.0s' $(seq 1 1000); printf 'caf\351\n'; cat text.txt; } >latin.txt
ok "${run[@]}" --data.path=latin.txt --out=latin
grep -q "warning: .*latin.txt' is not UTF-8: byte 0xe9 at offset 1003; " err || fail "no warning: $(cat err)"
[ "$(grep -c 'is not UTF-8' err)" = 1 ] || fail "not exactly one warning: $(cat err)"
{ cat text.txt; printf 'caf\303\251 \342\202\254 \360\237\231\202\n'; } >utf8.txt
ok "$sifr" tokenize utf8.txt --tokenizer=bytes --out=utf8
! grep -q 'not UTF-8' err || fail "a warning about valid UTF-8: $(cat err)"

# --- a tokenizer that is not the model's ----------------------------------------------------------
ok "${run[@]}" --data.path=text.txt --out=run
ok "$sifr" tokenize text.txt --vocab=257 --out=other
ok "$sifr" sample run --tokens=2 -q --tokenizer=other/tokenizer.json a
grep -q "warning: the tokenizer 'other/tokenizer.json' (257 tokens) is not that of the model" err || fail "no warning: $(cat err)"
ok "$sifr" eval run --data.tokenizer=other/tokenizer.json
grep -q "warning: the tokenizer .*other/tokenizer.json' (257 tokens) is not that of the model" err || fail "eval: no warning: $(cat err)"
for same in bytes run/checkpoints/step-2/tokenizer.json; do
    ok "$sifr" sample run --tokens=2 -q --tokenizer=$same a
    [ ! -s err ] || fail "a message about the same tokenizer: $(cat err)"
done
ok "$sifr" eval run
[ ! -s err ] || fail "eval with its own tokenizer: $(cat err)"
ok "$sifr" tokenize text.txt --vocab=300 --out=shards
ok "$sifr" train "${small[@]}" --model.layers=1 --data.path=shards/train.bin --model.vocab=1000 --train.steps=1 --out=wordless
ok "$sifr" sample wordless --tokens=1 -q --tokenizer=bytes a
grep -q "warning: the tokenizer 'bytes' has 257 tokens and the model in '.*' 1000: it is hardly the one" err || fail "a smaller tokenizer: no warning: $(cat err)"
expect 1 "warning: 'shards/train.bin' was encoded with another tokenizer" "$sifr" tokenize --decode shards/train.bin --tokenizer=bytes

# --- a path that is not UTF-8 ---------------------------------------------------------------------
odd=$(printf 'caf\351 "x".txt')
if cp text.txt "$odd" 2>/dev/null; then
    ok "${run[@]}" --data.path="$odd" --out=odd
    grep -q '^  path: !!binary "' odd/config.yaml || fail "the path is not in config.yaml: $(grep path odd/config.yaml)"
    ok "$sifr" train odd/config.yaml --train.steps=4 --out=odd # by config.yaml alone: resumes with the same file
    [ "$(wc -l <odd/metrics.jsonl)" = 4 ] || fail "the run did not resume"
    ! grep -qE 'data.path|data does not match' err || fail "a message about changed data: $(cat err)"
    ok "$sifr" eval odd
    ok "${run[@]}" --train.steps=4 --data.path="$odd" --out=odd
    ! grep -qE 'data.path|data does not match' err || fail "a message about changed data: $(cat err)"
fi

# --- a finished run -------------------------------------------------------------------------------
ok "${run[@]}" --data.path=text.txt --out=run -q
[ "$(cat err)" = "sifr: the run in 'run' is complete: step 2 of 2" ] || fail "-q on a finished run: $(cat err)"
[ ! -s out ] || fail "-q on a finished run: $(cat out)"
finish
