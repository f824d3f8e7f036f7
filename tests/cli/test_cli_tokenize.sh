#!/usr/bin/env bash
# Text to shards and back, the same tokens as a run produces from text, JSONL, several files, and
# invalid input.
. "$(dirname "$0")/common.sh" "$@"
make_text >text.txt
printf 'naïve café – 漢字 🙂\t\n\n  x\n' >>text.txt

ok "$sifr" tokenize text.txt --vocab=300 --split=0.1 --out=tokens
has '^tokenizer +tokens/tokenizer.json: 300 tokens'
has '^next +sifr train --model.preset=tiny --data.path=tokens/train.bin --data.val=tokens/val.bin'
! grep -q $'\r' out err || fail "carriage returns in a file"
"$sifr" tokenize --decode tokens/train.bin tokens/val.bin | sed 's/<|endoftext|>//g' >back.txt
cmp -s back.txt text.txt || fail "the decoded text differs"
ok "$sifr" tokenize --decode 'tokens/*.bin'
sed 's/<|endoftext|>//g' out | cmp -s - text.txt || fail "the decoded text of a glob differs"
ok "$sifr" inspect tokens/train.bin
has 'vocab +300'
for folder in tokens tokens/; do
    ok "$sifr" inspect $folder
    has 'kind +folder of token shards'
    has '^  train.bin +[0-9.]+k tokens of 16 bits'
    has '^  val.bin +[0-9.]+k? tokens of 16 bits'
done
ok "$sifr" inspect tokens --json
is_json out
has '"shards": \[\{"path": "tokens/train.bin", "tokens": [0-9]+, "token_bits": 16, "vocab": 300\}, \{"path": "tokens/val.bin"'
mkdir nothing-here
expect 2 "cannot recognize the folder 'nothing-here'" "$sifr" inspect nothing-here

ok "$sifr" tokenize text.txt --tokenizer=bytes --out=bytes --json --split=0
is_json out
has '"vocab": 257, "train": \{"path": "bytes/train.bin", "tokens": [0-9]+'
[ ! -e bytes/val.bin ] || fail "val.bin without held-out text"

# a run on text and a run on its shards see the same tokens and have the same weights
run=("${small[@]}" --train.steps=4 --train.eval_every=2 --quiet)
ok "$sifr" train "${run[@]}" --data.path=text.txt --data.split=0.1 --data.tokenizer=tokens/tokenizer.json --out=a
ok "$sifr" train "${run[@]}" --data.path=tokens/train.bin --data.val=tokens/val.bin --data.tokenizer=tokens --out=b
cmp -s a/checkpoints/step-4/model.safetensors b/checkpoints/step-4/model.safetensors || fail "text and shards give different weights"

# inspect of a copied run shows the checkpoints of the copy
cp -r a copied
for folder in copied copied/; do
    ok "$sifr" inspect $folder
    has '^  checkpoint +copied/checkpoints/step-4$'
    ! grep -qE '(^| |/)a/checkpoints' out || fail "the path of the original: $(cat out)"
done

# JSONL, several words, a glob
printf '{"text": "one"}\n{"text": "two\\nlines"}\n' >a.jsonl
printf '{"text": "three"}\n' >b.jsonl
ok "$sifr" tokenize '*.jsonl' --split=0 --out=lines
ok "$sifr" tokenize --decode lines/train.bin
[ "$(cat out)" = "$(printf '<|endoftext|>one<|endoftext|>two\nlines<|endoftext|>three<|endoftext|>')" ] || fail "JSONL: $(cat out)"
ok "$sifr" tokenize a.jsonl b.jsonl --split=0 --out=words
cmp -s lines/train.bin words/train.bin || fail "a glob and two words differ"
printf '{"prompt": "a", "completion": "b"}\n' >c.jsonl
expect 1 "c.jsonl:1 has a prompt and a completion" "$sifr" tokenize c.jsonl --out=no
printf '{"text": "one"}\n{"text": \n' >d.jsonl
expect 1 "'d.jsonl' line 2: not valid JSON" "$sifr" tokenize d.jsonl --out=no
[ ! -e no ] || fail "a failed command left a folder"
mkdir mine
expect 1 "'d.jsonl' line 2: not valid JSON" "$sifr" tokenize d.jsonl --out=mine
[ -d mine ] && [ "$(ls -A mine)" = "" ] || fail "a folder of the user has changed: $(ls -A mine)"

# two texts are never mixed in a folder, and existing files are kept
printf 'short' >short.txt
cp -r tokens kept
for there in train.bin val.bin tokenizer.json; do
    mkdir -p mixed && cp tokens/$there mixed
    expect 2 "'mixed/$there' already exists and is not overwritten; choose another --out" "$sifr" tokenize short.txt --out=mixed
    [ "$(ls mixed)" = $there ] && cmp -s mixed/$there kept/$there || fail "$there: the folder has changed: $(ls mixed)"
    rm -r mixed
done
expect 2 "tokens/train.bin' already exists" "$sifr" tokenize short.txt --out=tokens
diff -r tokens kept || fail "a refused call changed the folder"

# messages name the flags of this command
expect 2 "^sifr: error: --vocab=5 is too small" "$sifr" tokenize text.txt --vocab=5 --out=no
expect 1 "'text.txt' has no token shard header; if it holds bare token ids, add --format=u16" "$sifr" tokenize --decode text.txt
expect 2 "has a header that tells its format; omit --format" "$sifr" tokenize --decode tokens/train.bin --format=u16
expect 2 "has a header that tells its format; omit --format" "$sifr" inspect tokens/train.bin --format=u16

expect 2 "--vocab and --tokenizer cannot be combined" "$sifr" tokenize text.txt --vocab=300 --tokenizer=bytes
expect 2 "--vocab.*-3" "$sifr" tokenize text.txt --vocab=-3
expect 2 "no-such.txt" "$sifr" tokenize no-such.txt --out=nothing
[ ! -e nothing ] || fail "a folder was created for a missing file"
expect 2 "--out is empty: name a folder" "$sifr" tokenize text.txt --out=
expect 2 "holds tokens already" "$sifr" tokenize tokens/train.bin --out=again
# the header decides whether a file holds tokens, not its name
cp tokens/train.bin shard.txt
expect 2 "'shard.txt' holds tokens already" "$sifr" tokenize shard.txt --out=again
cp tokens/train.bin mixed-2.txt
cp text.txt mixed-1.txt
expect 2 "'mixed-1.txt' is text, 'mixed-2.txt' is a token shard; name every kind apart" "$sifr" tokenize 'mixed-?.txt' --out=again
expect 1 "'mixed-2.txt' is a token shard and is not read as text; name it separately" "$sifr" tokenize 'mixed-?.txt' --format=text --out=again
expect 1 "'shard.txt' is a token shard" "$sifr" tokenize shard.txt --format=text --out=again
cp text.txt text.bin
expect 1 "'text.bin' has no token shard header; set .* or data.format=text or jsonl \(sifr tokenize: --format\)" "$sifr" tokenize text.bin --out=again
expect 1 "'text.bin' has no token shard header" "$sifr" tokenize text.bin --vocab=300 --out=again
[ ! -e again ] || fail "a refused command left a folder"
ok "$sifr" tokenize text.bin --format=text --vocab=300 --split=0.1 --out=again
cmp again/train.bin tokens/train.bin || fail "the file name changes the tokens"
expect 2 "no tokenizer.json in the folder of" "$sifr" tokenize --decode "$(cp tokens/val.bin v.bin && echo v.bin)"
# No room for the last of the three files: none is left, so that the same command works later.
printf 'a short text' >short.txt
(ulimit -f 4; expect 1 "cannot write 'no-room/.*tokenizer.json'" "$sifr" tokenize short.txt --split=0.5 --out=no-room; exit $failures) ||
    fail "no message about the tokenizer that could not be written"
[ ! -e no-room ] || fail "left behind: $(ls -A no-room)"
ok "$sifr" tokenize short.txt --split=0.5 --out=no-room

finish
