#!/usr/bin/env bash
# sifr inspect of a run folder: units, and a last checkpoint in checkpoint.fallback.
. "$(dirname "$0")/common.sh" "$@"
make_text >text.txt
keys=("${small[@]}" --data.path=text.txt --quiet --checkpoint.every=2)
ok "$sifr" train "${keys[@]}" --train.steps=4 --out=run

ok "$sifr" inspect run
has '^  peak_mem_total +[0-9.]+ [KM]iB'
has '^  peak_mem_rank +0$'
has '^  checkpoint +run/checkpoints/step-4$'
if grep -q '"process"' run/summary.json; then has '^  process_resident +[0-9.]+ [KM]iB'; fi
mv run moved
ok "$sifr" inspect moved
has '^  checkpoint +moved/checkpoints/step-4$'

# the state after a run whose disk was too full for its last checkpoint
mkdir -p other/run-0123456789abcdef
mv moved/checkpoints/step-4 other/run-0123456789abcdef/
sed -i 's|"checkpoint": ".*"|"checkpoint": "other/run-0123456789abcdef/step-4"|' moved/summary.json
ok "$sifr" inspect moved
has '^  checkpoint +other/run-0123456789abcdef/step-4$'
for command in "sample moved x --tokens=2" "eval moved" "export moved hf"; do
    expect 0 "'moved/checkpoints/step-2' is not the last checkpoint of the run: that is 'other/run-0123456789abcdef/step-4'" "$sifr" $command
done
ok "$sifr" sample other/run-0123456789abcdef/step-4 x --tokens=2
! grep -q 'not the last' err || fail "a warning although this is the last checkpoint: $(cat err)"
# resumed without checkpoint.fallback: a message, and the same bits in the end
cp -r moved again
expect 0 "the last checkpoint of the run, 'other/run-0123456789abcdef/step-4', is not used; set checkpoint.fallback" "$sifr" train "${keys[@]}" --train.steps=4 --out=again
cmp again/checkpoints/step-4/model.safetensors other/run-0123456789abcdef/step-4/model.safetensors || fail "resumed with other bits"
ok "$sifr" sample again x --tokens=2
! grep -q 'not the last' err || fail "a warning about an outdated checkpoint in the fallback folder: $(cat err)"
mv other/run-0123456789abcdef gone
ok "$sifr" sample moved x --tokens=2
! grep -q 'not the last' err || fail "a warning about a checkpoint that does not exist: $(cat err)"

# a fallback that is not a folder is wrong usage
expect 2 "checkpoint.fallback: 'text.txt' is a file" "$sifr" train "${keys[@]}" --train.steps=4 --checkpoint.fallback=text.txt --out=never
finish
