#!/usr/bin/env bash
# sifr bench comm and bench ops --save: measurements on processes and threads, the profile that both
# commands write, and invalid uses.
. "$(dirname "$0")/common.sh" "$@"
export SIFR_RUN_THREADS=1
brief=(--seconds=0.001 --threads=1 --largest=16k)
kinds='all_gather all_to_all reduce_scatter all_reduce broadcast send_recv exchange'

# --- between ranks --------------------------------------------------------------------------------
ok timeout 120 "$sifr" bench comm -n 2 "${brief[@]}" --save=here.json
has '^2 ranks, 2 per node$'
for kind in $kinds; do
    has "^$kind +inside +[0-9.]+ (KiB|B) +[0-9.]+ +[0-9.]+"
done
! grep -q between out || fail "calls between hosts on a single host: $(cat out)"
has '^  inside +latency [0-9.]+ us, [0-9.]+ us per message, [0-9.]+ GB/s'
has '^  theft +[0-9.]+ s of compute'
has '^saved to here.json$'
tr -d "\n" <here.json >flat.json
is_json flat.json
grep -q '"node": 0, "exchange": [0-9.e-]*, "theft": [0-9.e-]*, "sum_bytes_per_second": [0-9.]*}' here.json || fail "no comm half: $(cat here.json)"
! grep -q '"ops"' here.json || fail "the profile has ops that were not measured: $(cat here.json)"

# Ranks as threads, in nodes of two: inside and between nodes. Message sizes are exact to 8 bytes.
ok timeout 120 "$sifr" bench comm -n 4 --node=2 --comm.backend=threads "${brief[@]}" --json
is_json out
[ ! -s err ] || fail "--json: something on stderr: $(cat err)"
if has_program python3 "the figures of --json"; then
    python3 - $kinds <<'PY' || fail "figures do not add up"
import json, sys
found = json.load(open("out"))
assert found["ranks"] == 4 and found["node"] == 2
for kind in sys.argv[1:]:
    for between in (False, True):
        calls = [c for c in found["calls"] if c["call"] == kind and c["between"] == between]
        if kind == "exchange":
            assert [c["messages"] for c in calls] == ([] if between else [3])
            continue
        sizes = [c["bytes"] for c in calls]
        assert sizes == sorted(sizes) and len(sizes) == 2, sizes
        assert all(abs(a - b) <= 8 for a, b in zip(sizes, (1024, 4096))), (kind, sizes)
        assert all(c["seconds"] > 0 and c["messages"] == 1 and c["copy_bytes_per_second"] > 0 for c in calls)
for wire in ("inside", "between"):
    assert found[wire]["bytes_per_second"] > 0 and found[wire]["error"] >= 1
assert found["exchange"] > 0 and found["theft"] >= 0 and found["sum_bytes_per_second"] > 0
PY
fi

# --- operations -----------------------------------------------------------------------------------
# Measure the calls of a run on two ranks at once, and add them to the file.
printf 'model:\n  layers: 2\n  width: 32\n  heads: 2\n  context: 32\n  vocab: 96\n' >run.yaml
ok timeout 120 "$sifr" bench ops run.yaml --train.micro_batch=3 -n 2 --threads=1 --seconds=0.001 --save=here.json
has '^2 ranks, 1 thread each$'
has '^linear R96 32x96 \[in\]\[out\] bias +[0-9.]+'
has '^attention B3 T32 H2 G2 D16 '
has '^  attention_backward +[0-9.]+ +[0-9.]+ +[0-9.]+'
grep -q '"op": "linear_dw", "type": "f32", "rows": 96, ' here.json || fail "a call of the run is not in the file"
grep -q '"theft"' here.json || fail "the comm half is gone"
[ "$(grep -c '^    "ranks": 2, "threads": 1, ' here.json)" = 2 ] || fail "ranks and threads are not in both halves: $(head -c 300 here.json)"
# A plan for the measured numbers of ranks and threads has no note; others have. The printed command
# sets the threads of the plan.
unset SIFR_RUN_THREADS
plan=("$sifr" plan run.yaml --train.micro_batch=3 --top=1 --machine=here.json)
ok "${plan[@]}" --gpus=2
! grep -E '^note .*(measured|ranks|threads)' out || fail "a note although this was measured"
has '^  sifr train -n 2 run.yaml --train.micro_batch=3 --run.device=cpu --run.threads=1 '
ok "${plan[@]}" --gpus=1
has '^cluster  1 rank on nodes of 1, '
expect 2 "run.device=cuda, but --machine=here.json computes on the CPU" "${plan[@]}" --gpus=2 --run.device=cuda
expect 4 'no layout of 1 rank fits' "${plan[@]}" --gpus=1 --memory=1k
ok "${plan[@]}" --gpus=2 --run.threads=2
has '^note     run.threads=2, but the profile was measured with 1; to measure it: sifr bench ops --threads=2$'
ok "${plan[@]}" --gpus=4
has '^note     assuming that 4 ranks on one machine'
export SIFR_RUN_THREADS=1
# Calls measured with another number of ranks stay in the file, with a warning.
cp here.json mixed.json
ok timeout 120 "$sifr" bench ops run.yaml --train.micro_batch=2 --seconds=0.001 --threads=1 --save=mixed.json
grep -qE "^sifr: warning: [0-9]+ calls in 'mixed.json' not measured again: measured with 2 ranks x 1 thread, not 1 x 1" err || fail "mixed: $(cat err)"
ok timeout 120 "$sifr" bench ops "${brief[@]:0:2}" -n 2 --comm.backend=threads --json --model.preset=tiny --model.vocab=64
is_json out
has '"ranks": 2, "threads": 1, "calls": \[\{"name": "'
# Measure comm again: the calls in the file stay, and the new values replace the old.
cp here.json before.json
ok timeout 120 "$sifr" bench comm -n 2 --comm.backend=threads "${brief[@]}" --save=here.json
[ "$(grep -c '"op": ' here.json)" = "$(grep -c '"op": ' before.json)" ] || fail "calls were lost"
! cmp -s here.json before.json || fail "nothing was written"

# --- invalid uses ---------------------------------------------------------------------------------
expect 2 "bench comm needs at least 2 ranks; add -n 2" "$sifr" bench comm
expect 2 "-n must be a whole number from 1" "$sifr" bench comm -n 0
expect 2 "-n works only with bench ops and bench comm" "$sifr" bench step -n 3 --model.preset=tiny
expect 2 "--save works only with bench ops and bench comm" "$sifr" bench step --save=x.json --model.preset=tiny
expect 2 "--save is empty: name a file" "$sifr" bench ops --save=
expect 2 "unknown benchmark 'com'; choose ops, step, all or comm" "$sifr" bench com
expect 2 "only bench ops takes a configuration file" "$sifr" bench comm run.yaml -n 2
expect 2 "no.yaml" "$sifr" bench ops no.yaml -n 2
expect 2 "--backend=ref cannot measure a machine" "$sifr" bench ops --backend=ref --save=x.json
expect 2 "model.heads: 3" timeout 60 "$sifr" bench ops run.yaml --model.heads=3 -n 2
echo 'my notes' >notes.txt
expect 2 "'notes.txt' line 1" "$sifr" bench comm -n 2 --save=notes.txt
[ "$(cat notes.txt)" = 'my notes' ] || fail "a file that is not a profile was overwritten"
# A path that cannot be written, and a profile of another kind of machine, are refused before the
# measurement, which would take minutes.
long=(--seconds=60)
expect 1 "cannot write 'no/such/folder/here.json'" timeout 20 "$sifr" bench comm -n 2 "${long[@]}" --save=no/such/folder/here.json
expect 1 "cannot write 'notes.txt/here.json'" timeout 20 "$sifr" bench ops "${long[@]}" --save=notes.txt/here.json
expect 2 "it is a folder" timeout 20 "$sifr" bench ops "${long[@]}" --save=.
sed 's/"gpu": false/"gpu": true/' here.json >gpu.json
expect 2 "'gpu.json' is the profile of a machine that computes on GPUs, unlike this one" timeout 20 "$sifr" bench ops run.yaml "${long[@]}" --save=gpu.json
expect 2 "'gpu.json' is the profile of a machine that computes on GPUs, unlike this one" timeout 20 "$sifr" bench comm -n 2 "${long[@]}" --save=gpu.json
# A signal ends a measurement, which has nothing to save, with a single error line.
rm -f err # the err of the previous command also has a launch line
"$sifr" bench comm -n 2 "${long[@]}" --save=here.json >out 2>err &
pid=$!
wait_for grep -qs '^sifr: launch: ' err
wait_for interrupt $pid # repeat until it ends
code=0
wait $pid || code=$?
[ $code = 1 ] || fail "bench, Ctrl-C: exit $code, not 1: $(cat err)"
[ "$(tail -n 1 err)" = 'sifr: error: terminated by a signal' ] || fail "bench, Ctrl-C: no error message: $(cat err)"
! grep saved err || fail "bench, Ctrl-C: a message about saving"
[ -z "$(ls -A | grep '\.tmp$')" ] || fail "a trial file is left: $(ls -A)"

finish
