#!/usr/bin/env bash
# eval and sample over ranks: the loss and the text of one rank on every layout, with less memory per
# rank; the same with parameters in host memory or on disk; --prompts: one object per line, errors with
# file and line, a clean end by Ctrl-C; --batch: the same texts.
. "$(dirname "$0")/common.sh" "$@"
export SIFR_RUN_THREADS=1
make_text >text.txt
data=(--data.path=text.txt --data.split=0.1 --data.tokenizer=train:300 --train.eval_every=0)
for arch in gpt2 llama; do
    ok "$sifr" train --model.arch=$arch --model.layers=2 --model.width=32 --model.heads=4 --model.context=32 --train.micro_batch=2 \
        --train.lr=3e-3 --train.steps=15 "${data[@]}" --out=$arch --quiet
done

# field NAME: the values of a field of the JSON objects in `out`
field() { grep -oE "\"$1\": (\"([^\"\\\\]|\\\\.)*\"|[^,}]*)" out | sed "s/^\"$1\": //"; }
# read_model MODEL [FLAG...]: its loss and a text, in `read`
read_model() {
    local model=$1
    shift
    ok "$sifr" eval $model --json "$@"
    is_json out
    { field loss; field bits_per_byte; field tokens; } >read
    [ "$(wc -l <read)" = 3 ] || fail "eval $*: no loss: $(cat out)"
    ok "$sifr" sample $model "The quick" --tokens=20 --json "$@"
    is_json out
    field text >>read
    [ "$(wc -l <read)" = 4 ] || fail "sample $*: no text: $(cat out)"
}

# --- the same loss and text -------------------------------------------------------------------
threads=--comm.backend=threads
for arch in gpt2 llama; do
    read_model $arch
    mv read $arch-1
    read_model $arch -n 2 --parallel.tp=2 $threads
    mv read $arch-tp
    layouts=("-n 2 --zero.stage=3" "-n 4 --parallel.pp=2 --zero.stage=3")
    [ $arch = llama ] || layouts+=("-n 4 --zero.stage=3 --zero.prefetch=0" "-n 4 --zero.stage=3 --zero.shard_group=2" "-n 4 --parallel.pp=4")
    for layout in "${layouts[@]}"; do
        sampled || continue
        read_model $arch $layout $threads
        cmp -s read $arch-1 || fail "$arch, $layout: $(cat read), on one rank: $(cat $arch-1)"
    done
    for layout in "-n 4 --parallel.tp=2 --parallel.pp=2" "-n 4 --parallel.tp=2 --zero.stage=3 --comm.delay=0.001"; do
        sampled || continue
        read_model $arch $layout $threads
        cmp -s read $arch-tp || fail "$arch, $layout: $(cat read), with only tp: $(cat $arch-tp)"
    done
    [ "$(sed -n 4p $arch-tp)" = "$(sed -n 4p $arch-1)" ] || fail "$arch: another text with tp: $(cat $arch-tp)"
    [ "$(sed -n 1p $arch-tp | cut -c 1-6)" = "$(sed -n 1p $arch-1 | cut -c 1-6)" ] || fail "$arch: another loss with tp: $(cat $arch-tp)"
done
# Parameters in host memory (which the CPU must be told to take for far memory) or on disk.
export SIFR_CPU_OFFLOAD=1
mkdir far
for arch in gpt2 llama; do
    far=("host" "disk --offload.folder=far --zero.prefetch=0" "disk -n 2 --zero.stage=3 --zero.prefetch=3 --comm.delay=0.001")
    [ $arch = llama ] || far+=("disk" "host -n 4 --parallel.pp=2 --zero.stage=3" "disk -n 4 --zero.stage=3 --zero.shard_group=2")
    for layout in "${far[@]}"; do
        sampled || continue
        read_model $arch $threads --offload.params=$layout
        cmp -s read $arch-1 || fail "$arch, offload.params=$layout: $(cat read), on the device: $(cat $arch-1)"
    done
    for layout in "disk -n 2 --parallel.tp=2" "host -n 4 --parallel.tp=2 --parallel.pp=2"; do
        sampled || continue
        read_model $arch $threads --offload.params=$layout
        cmp -s read $arch-tp || fail "$arch, offload.params=$layout: $(cat read), with only tp: $(cat $arch-tp)"
    done
done
unset SIFR_CPU_OFFLOAD
ok "$sifr" sample gpt2 x --tokens=1 --offload.params=host
grep -q 'warning: offload: a CPU.s state and activations are in host memory already' err || fail "no warning that host moves nothing: $(cat err)"

ok "$sifr" eval gpt2 --json -n 3 $threads # copies share the batches
[ "$(field loss)" = "$(sed -n 1p gpt2-1)" ] || fail "another loss on three copies: $(cat out)"

# Ranks that are processes, started here and by mpirun.
if has_program mpirun 'ranks as processes'; then
    for layout in "-n 2 --zero.stage=3" "-n 2 --parallel.pp=2"; do
        read_model gpt2 $layout
        cmp -s read gpt2-1 || fail "processes, $layout: $(cat read), on one rank: $(cat gpt2-1)"
    done
    ok "$sifr" eval gpt2 -n 2
    grep -qE '^sifr: launch: 2 ranks' err || fail "no line about the launch: $(cat err)"
    printf 'The quick\nLine\n' | ok "$sifr" sample gpt2 --prompts=- --tokens=20 --json -n 2 --zero.stage=3
    [ "$(field text | head -n 1)" = "$(sed -n 4p gpt2-1)" ] || fail "another text from the standard input: $(cat out)"
    [ "$(wc -l <out)" = 2 ] || fail "not two texts: $(cat out)"
fi

# The run's own layout does not matter, and the model of a run in bf16 can be read.
ok "$sifr" train --model.layers=2 --model.width=32 --model.heads=4 --model.context=32 --train.micro_batch=2 --train.global_batch=4 --train.steps=2 \
    "${data[@]}" --precision.mode=bf16 --parallel.tp=2 --zero.stage=3 -n 4 $threads --out=spread --quiet
read_model spread
mv read spread-1
read_model spread -n 2 --zero.stage=3 $threads
cmp -s read spread-1 || fail "the model of a run with tp: $(cat read), on one rank: $(cat spread-1)"

# --- memory -----------------------------------------------------------------------------------
ok "$sifr" train --model.layers=12 --model.width=256 --model.heads=4 --model.context=32 --train.micro_batch=1 --train.steps=1 "${data[@]}" \
    --out=large --quiet
memory() { # [FLAG...]: "BYTES PARAMS" of the largest rank
    ok "$sifr" eval large --json --batches=1 --batch=1 $threads "$@"
    echo "$(field rank_bytes) $(field params)"
}
read -r whole params <<<"$(memory)"
[ "${params:-0}" -gt 15000000 ] || fail "parameters of one rank: '$params'"
for layout in "-n 4 --zero.stage=3" "-n 4 --parallel.tp=4" "-n 4 --parallel.pp=4" "-n 4 --parallel.tp=2 --parallel.pp=2"; do
    read -r bytes part <<<"$(memory $layout)"
    [ "${bytes:-$whole}" -lt $((whole * 4 / 5)) ] || fail "$layout: a rank has $bytes of $whole bytes"
    [ "${part:-$params}" -lt $((params * 2 / 5)) ] || fail "$layout: a rank has $part of $params bytes of parameters"
done
ok "$sifr" sample large x --tokens=1 -n 4 --zero.stage=3 $threads
grep -qE '^sifr: memory: [0-9.]+ MiB on the largest of 4 ranks, [0-9.]+ MiB of it parameters$' err || fail "no memory: $(cat err)"

# A model that does not fit: it is refused, and answers from disk, where only the layers in use and the
# bounce buffers of the disk are on the device. The limit is above these.
ok "$sifr" train --model.layers=24 --model.width=256 --model.heads=4 --model.context=32 --train.micro_batch=1 --train.steps=1 "${data[@]}" \
    --out=larger --quiet
fits=(--run.device_memory=56M --offload.params=disk --offload.folder=far)
text=(sample larger "The quick" --tokens=8 --json)
ok "$sifr" "${text[@]}"
field text >larger-text
ok "$sifr" eval larger --json --batches=1 --batch=1
field loss >larger-loss
[ "$(field params)" -gt 70000000 ] || fail "the model is too small for this test: $(cat out)"
expect 4 "a rank needs [0-9.]+ MiB and run.device_memory allows 53.4 MiB; raise it, or read the parameters layer by layer: offload.params=disk" \
    "$sifr" "${text[@]}" --run.device_memory=56M
expect 4 "run.device_memory allows 53.4 MiB; .*offload.params=disk" "$sifr" eval larger --run.device_memory=56M
expect 4 "raise it, or read fewer layers ahead: zero.prefetch=0" "$sifr" "${text[@]}" --offload.params=disk --run.device_memory=1M
expect 4 "raise it, or share the model with more ranks" "$sifr" "${text[@]}" --offload.params=disk --zero.prefetch=0 --run.device_memory=1M
ok "$sifr" "${text[@]}" "${fits[@]}"
field text | cmp -s - larger-text || fail "another text from disk: $(cat out)"
grep -qE '^sifr: memory: [0-9.]+ MiB, 0 B of it parameters; 7[0-9.]+ MiB on disk$' err || fail "no memory: $(cat err)"
ok "$sifr" eval larger --json --batches=1 --batch=1 "${fits[@]}"
field loss | cmp -s - larger-loss || fail "another loss from disk: $(cat out)"
[ "$(field params)" = 0 ] && [ "$(field slots)" -lt 8000000 ] && [ "$(field disk_bytes)" -gt 70000000 ] || fail "the parameters are not on disk: $(cat out)"

# A folder or a disk that cannot hold the parameters.
for ranks in "" "-n 2 --zero.stage=3 $threads"; do
    for command in "sample large x" "eval large"; do
        expect 2 "^sifr: error: offload.folder: 'nowhere' is not a folder; create it, or name another$" \
            "$sifr" $command --offload.params=disk --offload.folder=nowhere $ranks
    done
    expect 1 "error: (rank [0-9]: )?cannot reserve [0-9.]+ MiB in 'far' for .*: File too large; .* is free there: raise the limit of file sizes" \
        bash -c "ulimit -f 64 && exec '$sifr' sample large x --offload.params=disk --offload.folder=far $ranks"
done
[ -z "$(ls -A far)" ] || fail "files are left: $(ls -A far)"

# --- layouts that are refused -----------------------------------------------------------------
expect 2 "100 ranks have 100 complete copies of the model, .*that of tokens is --tokens" "$sifr" sample gpt2 x -n 100
expect 2 "4 ranks have 2 complete copies" "$sifr" sample gpt2 x -n 4 --parallel.tp=2
expect 2 "parallel.tp=3 cannot split model.heads=4" "$sifr" sample gpt2 x -n 3 --parallel.tp=3 $threads
expect 2 "parallel.tp=2 needs 2 ranks" "$sifr" eval gpt2 --parallel.tp=2
expect 2 "parallel.pp=2 does not divide 3 ranks" "$sifr" eval gpt2 -n 3 --parallel.pp=2 $threads
expect 2 "does not fit the context of 32" "$sifr" sample gpt2 "$(head -c 400 text.txt)" -n 2 --zero.stage=3 $threads

# --- prompts ----------------------------------------------------------------------------------
printf 'The quick\r\nLine 3 of' >plain.txt # no newline at the end
ok "$sifr" sample gpt2 --prompts=plain.txt --tokens=6 --seed=5 --json
is_json out
[ "$(field index | tr '\n' ' ')" = '0 1 ' ] || fail "not two texts in order: $(cat out)"
[ "$(field prompt | tr '\n' ' ')" = '"The quick" "Line 3 of" ' ] || fail "other prompts: $(cat out)"
[ "$(field tokens | tr '\n' ' ')" = '6 6 ' ] || fail "other numbers of tokens: $(cat out)"
field seconds | grep -qE '^[0-9.e-]+$' || fail "no seconds: $(cat out)"
grep -qE '^sifr: 2 prompts, 12 tokens, ' err || fail "no summary: $(cat err)"
field text >texts
while read -r prompt; do
    ok "$sifr" sample gpt2 "$prompt" --tokens=6 --seed=5 --json
    field text
done <<<$'The quick\nLine 3 of' >alone
cmp -s texts alone || fail "--prompts: $(cat texts), one by one: $(cat alone)"
ok "$sifr" sample gpt2 --prompts=plain.txt --tokens=6 --seed=5 --json -n 2 --parallel.pp=2 $threads --quiet
field text | cmp -s - texts || fail "other texts on two ranks: $(cat out)"
[ ! -s err ] || fail "--quiet: $(cat err)"
for i in 1 2 3 4 5 6 7; do echo "Line $i of $(head -c $((i * 5)) text.txt | tr -d '\n')"; done >seven.txt
ok "$sifr" sample gpt2 --prompts=seven.txt --json
field text >seven
for layout in "--batch=3" "--batch=16 --offload.params=disk" "-b 4 -n 2 --zero.stage=3" "-b 2 -n 4 --parallel.pp=2 --zero.stage=3"; do
    ok "$sifr" sample gpt2 --prompts=seven.txt --json $layout $threads
    field text | cmp -s - seven || fail "other texts with $layout: $(cat out)"
    [ "$(field index | tr '\n' ' ')" = '0 1 2 3 4 5 6 ' ] || fail "not seven texts in order: $(cat out)"
done
ok "$sifr" sample gpt2 "The quick" --count=5 --tokens=6 -q
mv out five
ok "$sifr" sample gpt2 "The quick" --count=5 --tokens=6 -q --batch=2
cmp -s out five || fail "--count with --batch prints other texts: $(cat out)"
ok "$sifr" sample gpt2 --prompts=plain.txt --tokens=2 -q
has '^The quick'
has '^Line 3 of'

cat >objects.jsonl <<'JSON'
{"prompt": "The quick", "tokens": 3, "seed": 5}
{"prompt": "The quick", "temperature": 0}
{"prompt": ""}
JSON
ok "$sifr" sample gpt2 --prompts=- --tokens=7 --ignore-eot --json <objects.jsonl
[ "$(field tokens | tr '\n' ' ')" = '3 7 7 ' ] || fail "other numbers of tokens: $(cat out)"
[ "$(field seed | tr '\n' ' ')" = '5 1 1 ' ] || fail "other seeds: $(cat out)"
field text | sed -n 2p >greedy
ok "$sifr" sample gpt2 "The quick" --tokens=7 --ignore-eot --temperature=0 --json
field text | cmp -s - greedy || fail "\"temperature\" has no effect: $(cat greedy)"

bad() { # LINE MESSAGE: refused in line 2, before a text is printed
    printf '{"prompt": "a"}\n%s\n' "$1" >bad.jsonl
    expect 1 "error: bad\.jsonl:2: $2" "$sifr" sample gpt2 --prompts=bad.jsonl --json
    [ ! -s out ] || fail "a text before the error in '$1': $(cat out)"
}
bad '{"prompt": 1}' '"prompt" is not a string'
bad '{"promt": "a"}' 'unknown key "promt"; known are prompt, tokens, temperature and seed'
bad '{"tokens": 1}' 'the object has no "prompt"'
bad '{"prompt": "a", "tokens": -1}' '"tokens" is not a whole number from 0'
bad '{"prompt": "a", "tokens": 1.5}' '"tokens" is not a whole number'
bad '{"prompt": "a", "temperature": "hot"}' '"temperature" is not a number from 0 to 100'
bad '{"prompt": "a", "prompt": "b"}' 'not valid JSON: duplicate'
bad '{"prompt": "a"' 'not valid JSON: '
bad '["a"]' 'not an object'
bad '' 'not valid JSON: '
printf 'a\n\nb\n' >bad.txt
expect 1 'error: bad\.txt:2: the line is empty; remove it' "$sifr" sample gpt2 --prompts=bad.txt
expect 1 'error: standard input:2: the line is empty' "$sifr" sample gpt2 --prompts=- -n 2 --zero.stage=3 <bad.txt
printf 'a\n\0b\n' >bad.txt
expect 1 'error: bad\.txt:2: the line has a NUL byte' "$sifr" sample gpt2 --prompts=bad.txt
expect 1 'bad\.txt has no prompts' "$sifr" sample gpt2 --prompts=bad.txt < <(: >bad.txt)
expect 2 "error: --prompts: there is no 'no-such'" "$sifr" sample gpt2 --prompts=no-such
expect 2 "the prompt 'x' and --prompts exclude each other" "$sifr" sample gpt2 x --prompts=plain.txt
expect 2 "the prompt 'x' and --prompts exclude each other" "$sifr" sample gpt2 --prompt=x --prompts=plain.txt
expect 2 '--count has no meaning with --prompts' "$sifr" sample gpt2 --prompts=plain.txt --count=2
expect 2 '--prompts is empty' "$sifr" sample gpt2 --prompts=
printf 'a\n%s\n' "$(head -c 400 text.txt | tr '\n' ' ')" >long.txt # what is done stays printed
for flags in "" "-n 2 --zero.stage=3 $threads" "--batch=4 -n 2 --zero.stage=3 $threads"; do
    expect 2 'does not fit the context of 32' "$sifr" sample gpt2 --prompts=long.txt --tokens=2 --json $flags
    grep -q 'that was line 2 of long.txt' err || fail "the line is not named: $(cat err)"
    [ "$(wc -l <out)" = 1 ] || fail "the text of the first line is not printed: $(cat out)"
done

# --- Ctrl-C -----------------------------------------------------------------------------------
for i in $(seq 2000); do echo "Line $i"; done >many.txt
stops() { # SIGNAL [FLAG...]
    local signal=$1 pid code=0
    shift
    rm -f out err
    "$sifr" sample gpt2 --prompts=many.txt --json --tokens=25 --ignore-eot "$@" >out 2>err &
    pid=$!
    wait_for test -s out
    kill "-$signal" $pid
    wait $pid || code=$?
    [ $code = 1 ] || fail "$signal $*: exit $code, not 1: $(cat err)"
    grep -q '^sifr: stopping after this token; texts that are done are printed' err || fail "$signal $*: not acknowledged: $(cat err)"
    grep -qE "^sifr: warning: stopped after $(wc -l <out) of 2000 texts$" err || fail "$signal $*: $(wc -l <out) texts, but: $(cat err)"
    is_json out
}
stops INT -n 2 --zero.stage=3 $threads --comm.delay=0.0005
stops TERM -n 2 --parallel.pp=2 $threads --comm.delay=0.0005
stops INT -n 2 --zero.stage=3 $threads --batch=3 --offload.params=disk
! has_program mpirun 'Ctrl-C of processes' || stops INT -n 2 --zero.stage=3 --comm.delay=0.0005
ok timeout 60 bash -c "'$sifr' sample gpt2 x --tokens=20 --ignore-eot --count=1000000 -q | head -c 100" # ends with its reader
finish
