#!/usr/bin/env bash
# Help, version, man page and completion need no other arguments and list everything; unknown words
# get a suggestion.
. "$(dirname "$0")/common.sh" "$@"

commands="train plan batch eval sample tokenize export inspect bench doctor"
ok "$sifr"
for command in $commands; do has "^  $command "; done
has '^  2   wrong usage'
cp out overview
ok "$sifr" --help
cmp -s out overview || fail "sifr and sifr --help differ"
ok "$sifr" help
cmp -s out overview || fail "sifr and sifr help differ"
ok "$sifr" --version
has '^sifr [0-9]+\.[0-9]+\.[0-9]+$'

for command in $commands; do
    ok "$sifr" "$command" --help
    has "^sifr $command: "
    has '^Usage$'
    has '^Examples$'
    has '^General:$'
    cp out page
    ok "$sifr" help "$command"
    cmp -s out page || fail "help $command and $command --help differ"
    # --help wins over all other arguments, even invalid ones
    ok "$sifr" "$command" --no.such.key=1 --help
    cmp -s out page || fail "$command --help depends on other arguments"
    awk 'length($0) > 120 { exit 1 }' page || fail "help of $command has lines over 120 columns"
done
ok "$sifr" train --help
for key in model.preset model.kv_heads data.path data.mix train.steps train.eval_every optimizer.kind optimizer.momentum optimizer.nesterov optimizer.groups optimizer.rounding \
    engine.recompute precision.mode run.threads out fresh dry-run json; do
    has "--(\[no-\])?$key\b"
done

expect 2 "unknown command 'trian'; did you mean 'train'\?" "$sifr" trian
expect 2 "unknown command 'xyzzy'; .sifr --help. lists the commands" "$sifr" xyzzy
expect 2 "did you mean 'inspect'" "$sifr" help inspekt
expect 2 "'--train.stepz' \(did you mean '--train.steps'\?\)" "$sifr" train --train.stepz=3
expect 2 "unknown flag '--jsom' \(did you mean '--json'" "$sifr" doctor --jsom
expect 2 "missing argument; usage: sifr inspect PATH" "$sifr" inspect
expect 2 "unexpected argument 'b'" "$sifr" inspect a b
expect 2 "missing argument MODEL; usage: sifr sample MODEL" "$sifr" sample
expect 2 "wants a value: --train.steps=N" "$sifr" train --train.steps
expect 2 "completion supports only bash" "$sifr" completion fish
expect 2 "unexpected argument '--zzz'; usage: sifr man" "$sifr" man --zzz
expect 2 "unexpected argument 'more'" "$sifr" completion bash more
for word in help man completion; do
    ok "$sifr" $word --help
    [ $word = help ] || has "^sifr $word"
    ok "$sifr" help $word
    has "^sifr $word"
    has '^Usage$'
    has '^Examples$'
    has "^  (source <\()?sifr $word"
done
# required keys, and the meaning of empty values
COLUMNS=300 ok "$sifr" train --help
tr -s ' \n' ' ' <out >words
for line in "model.layers=N number of transformer blocks; required without model.preset or model.path" \
    "data.tokenizer=FILE .* default: the one of model.path, else bytes" \
    "train.max_time=TIME .* empty or 0 = none" "parallel.eager .*not for gpipe"; do
    grep -qE -- "--$line" words || fail "not in the help: $line"
done
ok "$sifr" train --help

ok "$sifr" train -qh
has "^sifr train: "
# -h as the value of another flag does not print help
expect 2 "no-such-model" "$sifr" sample no-such-model --prompt -h
expect 2 "unknown flag '-hello'; a text that begins with '-' goes after --" "$sifr" sample no-such-model -hello
expect 2 "no-such-model" "$sifr" sample no-such-model -- -hello
expect 2 "SIFR_TRAIN_STPES matches no key .did you mean SIFR_TRAIN_STEPS" env SIFR_TRAIN_STPES=3 "$sifr" train

ok "$sifr" completion bash
cp out completion
bash -n completion || fail "the completion is not valid bash"
(
    . ./completion
    compopt() { :; }
    COMP_WORDS=(sifr tok) COMP_CWORD=1
    _sifr
    [ "${COMPREPLY[*]}" = tokenize ] || { echo "completion of a command: ${COMPREPLY[*]}" >&2; exit 1; }
    COMP_WORDS=(sifr train --train.eval_e) COMP_CWORD=2
    _sifr
    [ "${COMPREPLY[*]}" = "--train.eval_every=" ] || { echo "completion of a key: ${COMPREPLY[*]}" >&2; exit 1; }
) || fail "completion"

ok "$sifr" man
has '^\.TH SIFR 1'
for command in $commands; do has "^\.SH \"SIFR ${command^^}\""; done
cp out page.1
if has_program groff "warnings of groff"; then
    groff -ww -man -Tutf8 page.1 >/dev/null 2>warnings || fail "groff: exit $?"
    ! grep -v "can't break line\|cannot break line\|cannot adjust line" warnings || fail "groff complains"
fi

ok env -u OMP_NUM_THREADS "$sifr" doctor
has 'blas +OpenBLAS'
has 'threads +[0-9]+ \((one per core|CPU quota [0-9.]+)\), OpenMP'
OMP_NUM_THREADS=3 ok "$sifr" doctor
has 'threads +3 \(OMP_NUM_THREADS\), OpenMP'
ok "$sifr" doctor --json
is_json out
has '"flavour": "(openmp|pthread|serial)"'

# NO_COLOR and files: no escape sequences anywhere
! grep -q $'\033' overview page completion || fail "escape sequences in a file"
finish
