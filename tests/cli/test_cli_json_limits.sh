#!/usr/bin/env bash
# JSON that would need many times its size in memory is refused, with its count and the limit, in
# every kind of file. Files as large as the largest real ones are read.
. "$(dirname "$0")/common.sh" "$@"
make_text >text.txt
keys=("${small[@]}" --data.path=text.txt --checkpoint.every=2 --train.steps=4 --data.tokenizer=train:300)
ok "$sifr" train "${keys[@]}" --quiet --out=run
ok "$sifr" export run hf --shard-size=20K
hollow() { # COUNT: {"a":[{},{}, ...]}
    printf '{"a":['
    yes '{},' | head -n "$1" | tr -d '\n'
    printf '0]}\n'
}
words() { # COUNT KEY: a list of short words
    printf '{"%s":[' "$2"
    yes '"ab",' | head -n "$1" | tr -d '\n'
    printf '0]}\n'
}
header() { # FILE: print it as the header of a safetensors file
    local bytes byte
    bytes=$(stat -c %s "$1")
    for byte in 0 8 16 24 32 40 48 56; do printf "\\x$(printf %02x $((bytes >> byte & 255)))"; done
    cat "$1"
}
hollow 3000000 >hollow.json
too_many='it has 3000002 lists and objects where at most [0-9]+ are allowed'

header hollow.json >hollow.safetensors
expect 1 "hollow.safetensors': the header is too large: $too_many" "$sifr" inspect hollow.safetensors
words 3000000 a >words.json
header words.json >words.safetensors
expect 1 "the header is too large: it has 300000[0-9] values where at most [0-9]+ are allowed" "$sifr" inspect words.safetensors
expect 1 "hollow.json: .*$too_many" "$sifr" inspect hollow.json
expect '1|2' "hollow.json' line 1: $too_many" "$sifr" plan "${small[@]}" --gpus=2 --machine=./hollow.json
cp hollow.json hollow.jsonl
expect 1 "hollow.jsonl' line 1: too large: $too_many" "$sifr" train "${small[@]}" --data.path=hollow.jsonl --quiet --out=never
for file in config.json model.safetensors.index.json; do
    mv hf/$file kept
    cp hollow.json hf/$file
    expect 1 "$file' line 1.*$too_many" "$sifr" eval hf --data.path=text.txt
    mv kept hf/$file
done
hollow 300000 >run/summary.json
expect 1 "summary.json.*it has 300002 lists and objects" "$sifr" inspect run
[ ! -e never ] || fail "a failed command left a folder"

# a line of metrics.jsonl that is not a record is kept
cat hollow.json >>run/metrics.jsonl
ok "$sifr" train "${keys[@]}" --train.steps=6 --quiet --out=run
cmp -s <(cat hollow.json) <(sed -n 5p run/metrics.jsonl) || fail "the line is lost"

# as large as a real file: 100,000 tensors
{
    printf '{'
    for i in $(seq 0 99999); do
        printf '"model.layers.%d.mlp.experts.weight":{"dtype":"F32","shape":[1,1],"data_offsets":[%d,%d]},' "$i" $((4 * i)) $((4 * i + 4))
    done
    printf '"end":{"dtype":"F32","shape":[0],"data_offsets":[400000,400000]}}'
} >many.json
{
    header many.json
    head -c 400000 /dev/zero
} >many.safetensors
ok "$sifr" inspect many.safetensors
has '100001'

# a header length whose first byte is '{'
printf '%-123s' '{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' >brace.json
header brace.json >brace.safetensors
[ "$(head -c 1 brace.safetensors)" = '{' ] || fail "the header length does not begin with a brace"
ok "$sifr" inspect brace.safetensors
has 'F32|f32'
finish
