#!/usr/bin/env bash
# What is said: the commands that are printed as the next ones work, figures that are not there are not printed, one is
# not several, and pictures keep to the locale.
. "$(dirname "$0")/common.sh" "$@"
make_text >text.txt
sifr() { "$sifr" "$@"; }
run_next() { # the command printed after "next" in `out`, with more arguments
    local next
    next=$(sed -n 's/^ *next  *//p' out | tail -n 1)
    [ -n "$next" ] || fail "no next command: $(tail -3 out)"
    ok eval "$next $*"
}

# tokenize, train, sample, each as the one before says
ok sifr tokenize text.txt --vocab=300
run_next --train.steps=1 --model.width=32 --model.context=32 --out=run
has '^done after 1 step, '
has 'speed +too few steps to tell'
run_next --tokens=1
grep -q '^sifr: 1 token, .*prompt of 1 token, ' err || fail "one is several: $(cat err)"

# the same where a shell would read several words
ok sifr tokenize text.txt --vocab=300 --out="to kens/it's"
run_next --train.steps=1 --model.width=32 --model.context=32 "--out='sp ace/o ut'"
has "^  next +sifr sample 'sp ace/o ut'$"
run_next --tokens=1

# tokens without a tokenizer: a sample needs one, and the line says so
ok sifr train "${small[@]}" --data.path=tokens/train.bin --model.vocab=300 --train.steps=3 --out=wordless
has 'next +sifr sample wordless --tokenizer=FILE'
ok sifr sample wordless --tokenizer=tokens/tokenizer.json --tokens=2 The

# a run that diverged is nothing to sample from: the last that is seen is why
sifr train "${small[@]}" --data.path=text.txt --train.steps=50 --train.lr=900 --train.clip=0 --train.warmup=0 \
    --train.weight_decay=900 --train.max_skips=2 --out=diverged >out 2>&1 && fail "it did not diverge"
tail -n 1 out | grep -q '^sifr: error: .* steps in a row were skipped' || fail "the error is not the last line: $(tail -n 3 out)"

# the end of the context is no silent one
ok sifr sample run --tokens=200 --ignore-eot --seed=3 The
grep -q 'the context is full' err || fail "nothing about the full context: $(cat err)"
expect 2 "does not fit the context of 32; shorten it" sifr sample run "$(head -c 900 text.txt)"
[ ! -s out ] || fail "the prompt was printed before it was refused: $(head -c 100 out)"

# pictures
ok env LC_ALL=C "$sifr" inspect run
! LC_ALL=C grep -q '[^ -~]' out || fail "more than ASCII under LC_ALL=C: $(cat out)"
ok env LC_ALL=C "$sifr" inspect wordless
has '^ +[0-9.]+ \|\*'
! LC_ALL=C grep -q '[^ -~]' out || fail "more than ASCII under LC_ALL=C: $(cat out)"
ok env LC_ALL=C.UTF-8 "$sifr" inspect wordless
has '┤'
awk '/^  [a-z_]+ / { if (substr($0, 23, 1) != " " || substr($0, 24, 1) == " ") exit 1 }' out || fail "crooked columns: $(cat out)"

# inspect: nothing on stdout when it fails, and what the file is
expect 1 "config.json: .*as a model's config.json; a model is named by its folder" sifr inspect run/checkpoints/step-1/config.json
[ ! -s out ] || fail "printed before it failed: $(cat out)"
printf '{"model": {"type": "WordPiece", "vocab": {}}}' >pieces.json
expect 2 "model 'WordPiece' is not supported" sifr inspect pieces.json
printf '\010\0\0\0\0\0\0\0{"a": 1}' >noise.safetensors
expect 1 "noise.safetensors" sifr inspect noise.safetensors
[ ! -s out ] || fail "printed before it failed: $(cat out)"
finish
