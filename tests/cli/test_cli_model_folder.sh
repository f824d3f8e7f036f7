#!/usr/bin/env bash
# A model folder that is not all there: inspect, sample, eval, export and train say the same about it, print nothing before the error, and
# say what to do. Names that are no folder here: a model on the hub, a folder in place of a configuration.
. "$(dirname "$0")/common.sh" "$@"
make_text >text.txt
ok "$sifr" tokenize text.txt --vocab=300
ok "$sifr" train "${small[@]}" --data.path=tokens/train.bin --data.tokenizer=tokens/tokenizer.json --train.steps=1 --quiet --out=run
ok "$sifr" export run whole
ok "$sifr" export run parts --shard-size=20k

# all CODE PATTERN MODEL: every command that reads a model
all() {
    local command
    for command in "inspect $3" "inspect --diff whole $3" "sample $3 The" "eval $3 --data.val=text.txt --context=8" "export $3 exported" \
        "train --model.path=$3 --data.path=text.txt --train.context=8 --train.steps=1 --out=trained"; do
        expect "$1" "$2" "$sifr" $command
        [ ! -s out ] || fail "printed before the error of $command: $(head -c 200 out)"
        [ ! -e exported ] && [ ! -e trained ] || fail "files are left: $command"
    done
}

cp -r whole bare && rm bare/model.safetensors
all 2 "'bare' has no model.safetensors and no model.safetensors.index.json; copy the whole model directory" bare
expect 2 "has no model.safetensors" "$sifr" inspect bare --json
[ ! -s out ] || fail "JSON before the error: $(cat out)"
cp -r parts part && rm part/model-00002-of-*
expect 2 "'part/model.safetensors.index.json' lists model-00002-of-[0-9]*.safetensors, which is not in the folder; copy" "$sifr" sample part The
expect 2 "lists model-00002-of" "$sifr" export part exported
cp -r parts short && truncate -s -8 short/model-00002-of-*
all 1 "short/model-00002-of.*the tensors need [0-9]* bytes but [0-9]* follow the header .truncated\?.; copy it again" short

# files of an older tokenizer
cp -r whole older && rm older/tokenizer.json && touch older/merges.txt
expect 2 "no tokenizer.json in the model folder 'older'; write one from the files that are there .in Python: .*, or name one with" \
    "$sifr" sample older The
expect 2 "no tokenizer.json next to the model at 'older'; write one .*, or name one, or 'bytes'" "$sifr" eval older --data.val=text.txt

# other names
expect 2 "there is no 'some/model'; if that is the name of a model on Hugging Face, download it first .hf download some/model " "$sifr" sample some/model The
expect 2 "model.path: there is no 'some/model'; if that is" "$sifr" train --model.path=some/model --data.path=text.txt
expect 2 "there is no 'some/model'; if that is" "$sifr" inspect some/model
expect 2 "there is no 'whole/model'$" "$sifr" sample whole/model The # a folder of ours
expect 2 "'whole' is a folder, not a configuration file .FILE.yaml.; to start from the model in it, use --model.path=whole" "$sifr" train whole

# --- a folder that may not be searched, as a user other than root ---------------------------------
as=()
if [ "$(id -u)" = 0 ]; then
    command -v setpriv >/dev/null || { skip_part "a closed folder: setpriv is not installed"; finish; exit; }
    as=(setpriv --reuid=65534 --regid=65534 --clear-groups)
    chmod 755 .
    cp "$sifr" ./copy && chmod 755 copy && sifr=$work/copy # only root may have access to the build folder
fi
cp -r whole closed && mkdir outer && cp -r whole outer/inner && chmod 000 closed outer
if "${as[@]}" "$sifr" --version >/dev/null 2>&1; then
    for command in "inspect closed" "sample closed The" "eval closed --data.val=text.txt" "export closed exported" "train --model.path=closed --data.path=text.txt"; do
        expect 1 "cannot look into the folder 'closed': Permission denied" "${as[@]}" "$sifr" $command
    done
    expect 1 "cannot look at 'outer/inner': Permission denied" "${as[@]}" "$sifr" sample outer/inner The
else
    skip_part "a closed folder: another user cannot run the command"
fi
chmod 755 closed outer
finish
