#!/usr/bin/env bash
# Long tasks show how far they are: a bar on a terminal, a line every ten seconds elsewhere, nothing
# with --quiet and nothing when they are quick. A task becomes long because its process is stopped
# for a while: that needs no large files and does not depend on the machine's load.
. "$(dirname "$0")/common.sh" "$@"

make_text >line.txt
for i in $(seq 1 1000); do cat line.txt; done >text.txt # about 30 MB, encoded a megabyte at a time

# hold PID FOLDER SECONDS: stop the process when it has begun to write to FOLDER
has_begun() { [ -n "$(find "$1" -name '*.bin*' -print -quit 2>/dev/null)" ] || has_ended "$2"; }
hold() {
    until has_begun "$2" "$1"; do :; done
    kill -STOP "$1" 2>/dev/null || true
    sleep "$3"
    kill -CONT "$1" 2>/dev/null || true
}

"$sifr" tokenize text.txt --out=plain >plain.out 2>plain.err &
plain=$!
hold $plain plain 10.2 &
"$sifr" tokenize text.txt --out=quiet --quiet >quiet.out 2>quiet.err &
quiet=$!
hold $quiet quiet 10.2 &
if command -v script >/dev/null && script -qec true /dev/null >/dev/null 2>&1; then
    LC_ALL=C.UTF-8 TERM=xterm script -qec "$sifr tokenize text.txt --out=tty; exit \$?" /dev/null >tty.out 2>&1 </dev/null &
    script=$!
    # The shell in between: script(1) stops itself if its own child is stopped.
    child() { pgrep -P "$(pgrep -P $script | head -n 1)" -x sifr; }
    wait_for child >/dev/null
    hold "$(child)" tty 1.5 &
    LC_ALL=C.UTF-8 TERM=xterm script -qec "$sifr tokenize line.txt --out=quick" /dev/null >quick.out 2>&1 </dev/null
    wait $script || fail "on a terminal: exit $?"
    grep -q 'encoding .*█.*% | eta .* | .* of .* | .*/s' tty.out || fail "no bar on a terminal: $(cat -v tty.out | head -c 600)"
    grep -q $'\r\033\[K' tty.out || fail "the bar is not removed: $(cat -v tty.out | head -c 600)"
    ! grep -q 'encoding' quick.out || fail "a quick task draws a bar: $(cat -v quick.out)"
else
    skip_part "bars on a terminal: script(1) does not work here"
fi
wait $plain || fail "tokenize: exit $?"
wait $quiet || fail "tokenize --quiet: exit $?"
grep -qE '^sifr: encoding: +[0-9]+% \| eta .* \| .* of .* \| .*/s$' plain.err || fail "no line of progress: $(cat plain.err)"
[ "$(grep -c '^sifr: encoding' plain.err)" = 1 ] || fail "not one line in ten seconds: $(cat plain.err)"
! grep -q $'[\r\033]' plain.err || fail "escape sequences in a file: $(cat -v plain.err)"
[ ! -s quiet.err ] || fail "--quiet: $(cat quiet.err)"
grep -q '^tokenizer ' quiet.out || fail "--quiet prints no result: $(cat quiet.out)"
for file in train.bin val.bin; do
    cmp -s plain/$file quiet/$file || fail "$file differs"
done

# every command takes --quiet, and quick ones print nothing on stderr
ok "$sifr" train "${small[@]}" --data.path=line.txt --data.tokenizer=bytes --train.steps=4 --checkpoint.every=2 --out=run
ok "$sifr" eval run --quiet
[ ! -s err ] || fail "eval --quiet: $(cat err)"
ok "$sifr" export run hf -q
[ ! -s err ] || fail "export -q: $(cat err)"
ok "$sifr" plan "${small[@]}" --data.path=line.txt --gpus 4 --machine h100 -q
[ ! -s err ] || fail "plan -q: $(cat err)"
finish
