#!/usr/bin/env bash
# Output: the commands printed as next steps work, unknown figures are not printed, singular and
# plural are right, and plots follow the locale.
. "$(dirname "$0")/common.sh" "$@"
make_text >text.txt
sifr() { "$sifr" "$@"; }
run_next() { # ARGS...: run the command printed after "next" in `out`, with more arguments
    local next
    next=$(sed -n 's/^ *next  *//p' out | tail -n 1)
    [ -n "$next" ] || fail "no next command: $(tail -3 out)"
    ok eval "$next $*"
}

# tokenize, train, sample: each by the command that the previous one printed
ok sifr tokenize text.txt --vocab=300
run_next --train.steps=1 --model.width=32 --model.context=32 --out=run
has '^done after 1 step, '
has 'speed +too few steps to tell'
run_next --tokens=1
grep -q '^sifr: 1 token, .*prompt of 1 token, ' err || fail "plural for one token: $(cat err)"

# the same with names that need quoting
ok sifr tokenize text.txt --vocab=300 --out="to kens/it's"
run_next --train.steps=1 --model.width=32 --model.context=32 "--out='sp ace/o ut'"
has "^  next +sifr sample 'sp ace/o ut'$"
run_next --tokens=1

# tokens without a tokenizer: sampling needs one, and the printed command says so
ok sifr train "${small[@]}" --data.path=tokens/train.bin --model.vocab=300 --train.steps=3 --out=wordless
has 'next +sifr sample wordless --tokenizer=FILE'
ok sifr sample wordless --tokenizer=tokens/tokenizer.json --tokens=2 The

# after divergence the error is the last line, without a command to sample
sifr train "${small[@]}" --data.path=text.txt --train.steps=50 --train.lr=900 --train.clip=0 --train.warmup=0 \
    --train.weight_decay=900 --train.max_skips=2 --out=diverged >out 2>&1 && fail "it did not diverge"
tail -n 1 out | grep -q '^sifr: error: .* steps in a row were skipped' || fail "the error is not the last line: $(tail -n 3 out)"

# a full context gets a message
ok sifr sample run --tokens=200 --ignore-eot --seed=3 The
grep -q 'the context is full' err || fail "no message about the full context: $(cat err)"
expect 2 "does not fit the context of 32; shorten it" sifr sample run "$(head -c 900 text.txt)"
[ ! -s out ] || fail "the prompt was printed before the error: $(head -c 100 out)"

# plots
ok env LC_ALL=C "$sifr" inspect run
! LC_ALL=C grep -q '[^ -~]' out || fail "more than ASCII under LC_ALL=C: $(cat out)"
ok env LC_ALL=C "$sifr" inspect wordless
has '^ +[0-9.]+ \|\*'
! LC_ALL=C grep -q '[^ -~]' out || fail "more than ASCII under LC_ALL=C: $(cat out)"
ok env LC_ALL=C.UTF-8 "$sifr" inspect wordless
has '┤'
awk '/^  [a-z_]+ / { if (substr($0, 23, 1) != " " || substr($0, 24, 1) == " ") exit 1 }' out || fail "columns are not aligned: $(cat out)"

# inspect: nothing on stdout when it fails; the error says what the file is
expect 1 "config.json: .*as a model's config.json; a model is named by its folder" sifr inspect run/checkpoints/step-1/config.json
[ ! -s out ] || fail "printed before it failed: $(cat out)"
printf '{"model": {"type": "WordPiece", "vocab": {}}}' >pieces.json
expect 2 "model 'WordPiece' is not supported" sifr inspect pieces.json
printf '\010\0\0\0\0\0\0\0{"a": 1}' >noise.safetensors
expect 1 "noise.safetensors" sifr inspect noise.safetensors
[ ! -s out ] || fail "printed before it failed: $(cat out)"
finish
