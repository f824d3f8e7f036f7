#!/usr/bin/env bash
# Control characters in names and texts that come from files are escaped in messages, tables and
# JSON. Generated text is complete in JSON and in files, including NUL bytes and long tokens.
. "$(dirname "$0")/common.sh" "$@"

no_control() { # FILE WHAT: only printable bytes and newlines, no C1 controls or direction marks
    ! LC_ALL=C grep -qP '[\x00-\x09\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\x8e\x8f\xaa-\xae]' "$1" || fail "$2: a control character: $(cat -v "$1" | head -c 400)"
}

# safetensors NAME JSON BYTES: create a file with that header and BYTES bytes of data
safetensors() {
    local bytes
    bytes=$(printf %s "$2" | wc -c)
    {
        printf "$(printf '\\x%02x\\x%02x\\0\\0\\0\\0\\0\\0' $((bytes % 256)) $((bytes / 256)))"
        printf %s "$2"
        head -c "$3" /dev/zero
    } >"$1"
}
evil='\u001b[2J\u001b]0;title\u0007\n\u009b31m\u202e\u007f'
safetensors names.safetensors "{\"a$evil\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"__metadata__\":{\"k$evil\":\"v$evil\"}}" 8
safetensors other.safetensors "{\"b$evil\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}" 8
safetensors dtype.safetensors "{\"a\":{\"dtype\":\"F$evil\",\"shape\":[2],\"data_offsets\":[0,8]}}" 8
for file in names dtype; do
    for flag in '' --json --verify; do
        "$sifr" inspect $flag $file.safetensors >out 2>err || true
        no_control out "inspect $flag $file"
        no_control err "inspect $flag $file: stderr"
    done
done
"$sifr" inspect names.safetensors >out 2>err || true
has 'a\\x1b\[2J\\x1b\]0;title\\x07\\n\\u009b31m\\u202e\\x7f'
"$sifr" inspect --diff names.safetensors other.safetensors >out 2>err || true
no_control out "inspect --diff"
no_control err "inspect --diff: stderr"

# file names, flags, values
esc=$(printf '\033[2J\033]0;x\007')
expect 2 "no-such\\\\x1b\[2J" "$sifr" sample "no-such$esc"
no_control err "a file name"
expect 2 'x1b' "$sifr" train "--model.laye${esc}rs=2"
no_control err "a key"
expect 2 'x1b' "$sifr" train "--model.arch=$esc" --data.path=text.txt
no_control err "a value"
printf '{"model": {"type": "Word\\u001b[2JPiece", "vocab": {}}}' >pieces.json
expect 2 "Word\\\\x1b\[2JPiece" "$sifr" inspect pieces.json
printf 'a\nb%s: [1\n' "$esc" >bad.yaml
expect 2 '' "$sifr" train bad.yaml
no_control err "a YAML file"

# on a terminal: sifr's own colours are there, but no control characters from names
if command -v script >/dev/null && script -qec true /dev/null >/dev/null 2>&1; then
    NO_COLOR= TERM=xterm script -qec "$sifr inspect names.safetensors" /dev/null >tty 2>&1 </dev/null || true
    grep -q $'\033\[1m' tty || fail "no colours on a terminal: $(cat -v tty)"
    sed 's/\x1b\[[0-9;]*m//g; s/\r$//' tty >plain
    no_control plain "inspect on a terminal"
    ! grep -q $'\033\[[0-9a-f]\{8\}' tty || fail "control characters on a terminal: $(cat -v tty)"
fi

# A model that has learned a single token, id 98, and tokenizers that map this id to other bytes.
for i in $(seq 1 1500); do printf cbbbbbbbbbbbbbbb; done >b.txt
ok "$sifr" train --model.layers=1 --model.width=32 --model.heads=2 --model.context=32 --train.micro_batch=4 --train.lr=1e-2 --data.path=b.txt \
    --data.tokenizer=bytes --train.steps=15 --out=run
bytes=$(echo run/checkpoints/step-*/tokenizer.json)
sample=("$sifr" sample run --temperature=0 --tokens=3 c)
ok "${sample[@]}" --raw -q
[ "$(cat out)" = bbb ] || fail "the model has not learned the token: $(cat -v out)"

# id 98 is a NUL byte, "b" is id 0
sed 's/"Ā": 0,/"b": 0,/; s/"b": 98,/"Ā": 98,/' "$bytes" >nul.json
ok "${sample[@]}" --tokenizer=nul.json --json
has '"text": "\\u0000\\u0000\\u0000"'
is_json out
ok "${sample[@]}" --tokenizer=nul.json --raw -q
[ "$(od -An -c out | tr -d ' \n')" = '\0\0\0' ] || fail "not three NUL bytes: $(od -An -c out)"

# id 98 is longer than any buffer
long=$(head -c 20000 /dev/zero | tr '\0' x)
sed "s/\"b\": 98,/\"$long\": 98,/" "$bytes" >long.json
ok "${sample[@]}" --tokenizer=long.json --raw -q
[ "$(wc -c <out)" = 60000 ] || fail "$(wc -c <out) bytes of three long tokens, not 60000"
ok "${sample[@]}" --tokenizer=long.json --json
has '"text": "x{1000}'
[ "$(tr -cd x <out | wc -c)" -ge 60000 ] || fail "--json: a long token is cut"

# the longest token of a tokenizer has a NUL in it
sed 's/"b": 98,/"xxĀyyy": 98,/' "$bytes" >inner.json
ok "$sifr" inspect --json inner.json
has '"longest": "xx\\u0000yyy"'
ok "$sifr" inspect inner.json
has 'longest +"xx\\u0000yyy"'

# text from shards: exact in a pipe
printf 'caf\303\251 \033[2J \000 end\n' >odd.txt
ok "$sifr" tokenize odd.txt --tokenizer=bytes --out=odd
ok "$sifr" tokenize --decode odd/*.bin
sed 's/<|endoftext|>//g' out | cmp -s - odd.txt || fail "decoded text differs: $(od -An -c out | head -3)"
finish
