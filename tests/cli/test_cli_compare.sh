#!/usr/bin/env bash
# `sifr compare`: runs with the same bits and with others, of other lengths, resumed, dead, without
# an evaluation; what is not a run.
. "$(dirname "$0")/common.sh" "$@"

make_text >text.txt
train=("$sifr" train "${small[@]}" --train.global_batch=8 --data.path=text.txt --data.tokenizer=bytes --quiet)
ok "${train[@]}" --train.steps=12 --train.eval_every=4 --out=one
ok "${train[@]}" --train.steps=12 --train.eval_every=4 --out=two -n 2 --zero.stage=3
ok "${train[@]}" --train.steps=8 --train.lr=1e-3 --out=slow
expect 75 'stopped after step 5' "${train[@]}" --train.steps=12 --train.eval_every=4 --train.stop_at=5 --out=cut
ok "${train[@]}" --train.steps=12 --train.eval_every=4 --out=cut

# the same bits on other ranks
ok "$sifr" compare one two
has '^a  one: done, 12 steps on 1 rank; loss [0-9.]+, held out [0-9.]+ \(step 12\)'
has '^b  two: done, 12 steps on 2 ranks'
has '^  zero.stage +0 +3  same losses$'
has '^  b  equal in every bit: 12 common steps, 1 to 12$'
has '^ +seconds +tokens/s +MFU +waited +hidden +rest$'
has '^  params +[0-9.]+ KiB +[0-9.]+ KiB$'
has '┤'
! LC_ALL=C grep -q $'\033' out || fail "colours in a file"

# others: the first step is the same, the update of it is not
ok "$sifr" compare one slow
has '^  train.lr +0.003 +0.001  may change losses$'
has '^  b  first differ at step 2: [0-9.]+ and [0-9.]+, [0-9.e-]+ apart \([0-9]+ ulp\)$'
has '^     7 of 8 common steps differ, by [0-9.e-]+ at most \(step [0-9]+\)$'
has '^b  slow: done, 8 steps on 1 rank; loss [0-9.]+, held out'
! grep -q 'no setting above explains' out || fail "a setting explains the difference"

# every slower run is explained
mkdir quick slower slowest
for run in quick:1:0 slower:2:1 slowest:4:2; do
    IFS=: read -r name seconds waited <<<"$run"
    for i in 1 2 3 4 5; do echo "{\"step\":$i,\"loss\":1,\"seconds\":$seconds,\"comm\":{\"ranks\":2,\"in_flight\":2,\"waited\":$waited}}"; done >$name/metrics.jsonl
done
ok "$sifr" compare slower quick slowest
has '^  a is slower than b by 1 s a step \(100%\): \+1 s waiting for parameters, gradients and other messages$'
has '^  c is slower than b by 3 s a step \(300%\): \+1 s compute and everything that is not waiting, \+2 s waiting for parameters'

# larger steps take longer, and are not slower for that
ok "${train[@]}" --train.steps=8 --train.global_batch=64 --out=large
ok "$sifr" compare one large
! grep -qE 'b is slower than a by' out || fail "steps of different sizes are compared by their time: $(grep slower out)"
expect 2 "unexpected argument 'x9': there may be 8" "$sifr" compare x1 x2 x3 x4 x5 x6 x7 x8 x9

# resumed: the same run
ok "$sifr" compare one cut two
has '^  b  equal in every bit: 12 common steps'
has '^  c  equal in every bit: 12 common steps'

# JSON, and the numbers in it
ok "$sifr" compare one slow two --json
is_json out
has '"losses": \[\{"run": 1, "common": 8, "differing": 7, "equal": false, "first_step": 2, "first_a": '
has '"run": 2, "common": 12, "differing": 0, "equal": true'
has '"key": "train.lr", "values": \["0.003", "0.001", "0.003"\], "may_change_losses": true'

# one digit of one loss, without a setting that explains it
cp -r one edited
sed -i '7s/"loss":\([0-9]\.[0-9]\)/"loss":9.\1/; 7s/9\.\([0-9]\)\.\([0-9]\)/\1.9\2/' edited/metrics.jsonl
cmp -s one/metrics.jsonl edited/metrics.jsonl && fail "the edit changed nothing"
ok "$sifr" compare one edited
has '^  b  first differ at step 7: '
has '^     1 of 12 common steps differ, by .* at most \(step 7\)$'
has 'no setting above explains that'

# dead: no summary, and a last line that was cut
cp -r one dead
rm dead/summary.json
head -n 6 one/metrics.jsonl >dead/metrics.jsonl
printf '{"step":7,"tokens":17' >>dead/metrics.jsonl
ok "$sifr" compare dead two
has '^a  dead: not finished, 6 steps'
has '^  b  equal in every bit: 6 common steps, 1 to 6$'

# steps that begin later, and steps that were written twice: the last counts
mkdir later twice
cp one/config.yaml later
tail -n 5 one/metrics.jsonl >later/metrics.jsonl
{ head -n 9 slow/metrics.jsonl; tail -n +5 one/metrics.jsonl; } >twice/metrics.jsonl
ok "$sifr" compare one later twice
has '^b  later: not finished, steps 8 to 12 on 1 rank'
has '^  b  equal in every bit: 5 common steps, 8 to 12$'
has '^  c  first differ at step 2: '
has '^     3 of 12 common steps differ'
has 'configuration: 1 of 3 runs have no config.yaml'

# nothing in common; no step at all; a loss that is not finite
mkdir early empty nan
head -n 4 one/metrics.jsonl >early/metrics.jsonl
cp one/config.yaml empty
sed '3s/"loss":[0-9.]*/"loss":null/; s/,"val":{[^}]*}//' one/metrics.jsonl >nan/metrics.jsonl
ok "$sifr" compare later early
has '^  b  no step in common$'
has "each run's own steps: fewer than 3 are common"
ok "$sifr" compare empty one
has '^a  empty: not finished, no step is recorded$'
ok "$sifr" compare empty empty
ok "$sifr" compare empty one --json
is_json out
ok "$sifr" compare one nan
has '^  b  first differ at step 3: [0-9.]+ and nan$'
has '^b  nan: not finished, 12 steps on 1 rank; loss [0-9.]+, no evaluation$'

# records that no run writes
mkdir odd
cat >odd/metrics.jsonl <<'END'
{"step":1,"loss":1e400,"mem":{"params":-5,"grads":9223372036854775807,"optimizer":9223372036854775807}}
{"step":"2","loss":3}
{"step":2,"loss":{"a":1},"seconds":"x","comm":[1],"val":7,"mem":[]}
not JSON
[1, 2]
{"step":-4,"loss":2,"seconds":-1,"comm":{"ranks":99999999999,"waited":1e308,"in_flight":-1}}
{"step":9223372036854775807,"loss":1e308,"val":{"loss":-1e308}}
{"loss":5}
END
printf 'model\n  : :\n:\n   x\n\ttab: 1\na:\n  b\n' >odd/config.yaml
echo '{"end": 5, "steps": "x"}' >odd/summary.json
ok "$sifr" compare odd one
has 'loss 1e\+308, held out -1e\+308 '
has '^   5 lines of metrics.jsonl skipped: no record of a step$'
has '┤'
ok "$sifr" compare one odd odd --json
is_json out
has '"skipped_lines": 0, .*"skipped_lines": 5, '

# held-out losses of different amounts of data
ok "${train[@]}" --train.steps=4 --train.eval_every=4 --train.eval_batches=2 --out=half
ok "${train[@]}" --train.steps=4 --train.eval_every=4 --train.eval_batches=2 --train.micro_batch=8 --out=whole
ok "$sifr" compare half whole
has '^  held-out losses are of different amounts of data: a 256, b 512 tokens; '
ok "$sifr" compare half half
! grep -q 'different amounts' out || fail "equal amounts of held-out data differ"

# what cannot be compared
expect 2 "missing argument; usage: sifr compare RUN RUN" "$sifr" compare one
expect 2 "no-such" "$sifr" compare one no-such
expect 2 "'text.txt' is a file; name the folder of a run" "$sifr" compare one text.txt
mkdir plain
expect 2 "'plain' is not a run folder: it has neither metrics.jsonl nor config.yaml" "$sifr" compare one plain
expect 2 "unexpected argument" "$sifr" compare one one one one one one one one one

# on a terminal, in colours
if command -v script >/dev/null && script -qec true /dev/null >/dev/null 2>&1; then
    NO_COLOR= TERM=xterm LC_ALL=C.UTF-8 script -qec "$sifr compare one slow" /dev/null >tty 2>&1 </dev/null || fail "compare on a terminal: $(cat -v tty)"
    LC_ALL=C grep -q $'\033\[33m\xe2[\xa0-\xa3]' tty || fail "no second curve in its colour: $(cat -v tty | head -c 600)"
    LC_ALL=C grep -q $'\033\[36m\xe2[\xa0-\xa3]' tty || fail "no first curve in its colour"
fi
finish
