#!/usr/bin/env bash
# Files of the user are never removed, overwritten or renamed, whatever their names: symbolic links
# and files in place of outputs, temporary files and checkpoints. Of two writers to one output the
# second is refused. Leftovers of killed writers are cleaned up.
. "$(dirname "$0")/common.sh" "$@"
faulty=$(dirname "$sifr")/sifr_faults
make_text >text.txt
mkdir -p precious/below
echo mine >precious/file
echo mine >precious/below/file
cp -r precious kept
same() { diff -r precious kept >/dev/null || { fail "$1: the target of the link has changed"; rm -rf precious; cp -r kept precious; }; }
is_link() { [ -L "$1" ] || fail "the link $1 is gone"; }
killed() { # ORDER COMMAND...: run it, with a kill -9 at that call (tests/kill/kill_hooks.c)
    local order=$1 got=0
    shift
    rm -f record*
    { KILL=$order KILL_RECORD=$work/record "$faulty" "$@" >out 2>err || got=$?; } 2>/dev/null
    [ $got = 137 ] || fail "exit $got, not killed at $order: $*: $(head -c 400 err)"
}
hold() { # FILE: lock it as a live process 4242 would
    echo "4242 there" >"$1"
    exec 9<>"$1"
    flock 9
}

train=("$sifr" train "${small[@]}" --data.path=text.txt --train.steps=8 --checkpoint.every=2 --checkpoint.keep=1 --checkpoint.async=false --out=run)
expect 75 "" "${train[@]}" --train.stop_at=4

# --- checkpoints ----------------------------------------------------------------------------------
# one checkpoint is a link to an archive, another has a note in it, and links have the names of
# temporary folders
ln -s "$PWD/precious" run/checkpoints/.step-6.tmp
ln -s "$PWD/precious" run/checkpoints/.old-step-4
mkdir -p notes && cp -r run/checkpoints/step-4 notes/step-4
echo mine >run/checkpoints/step-4/notes.txt
cp -r run/checkpoints/step-4 run/checkpoints/step-2
rm run/checkpoints/step-2/notes.txt
mv run/checkpoints/step-2 archive
cp -r archive archived
ln -s "$PWD/archive" run/checkpoints/step-2
ok "${train[@]}"
same "checkpoints"
is_link run/checkpoints/.step-6.tmp
is_link run/checkpoints/.old-step-4
is_link run/checkpoints/step-2
diff -r archive archived || fail "an archived checkpoint has changed"
[ "$(cat run/checkpoints/step-4/notes.txt)" = mine ] || fail "a note in a checkpoint is lost: $(ls -R run/checkpoints)"
[ "$(grep -c "checkpoints: 'run/checkpoints/step-4' is kept: 'notes.txt' in it is not part of the checkpoint" err)" = 1 ] ||
    fail "not exactly one message about the note: $(cat err)"
[ "$(grep -c "'run/checkpoints/.step-6.tmp' is left as it is" err)" = 1 ] || fail "not exactly one message about the link: $(cat err)"
[ -e run/checkpoints/step-8/COMPLETE ] && [ ! -e run/checkpoints/step-6 ] || fail "not pruned: $(ls -A run/checkpoints)"
ok "$sifr" inspect --verify run

# records are not written through a link
cp run/metrics.jsonl precious.jsonl
mv run/metrics.jsonl moved && ln -s "$PWD/precious.jsonl" run/metrics.jsonl
expect 2 "'run/metrics.jsonl' is a symbolic link" "${train[@]}" --train.steps=10
cmp -s precious.jsonl moved || fail "the target of metrics.jsonl was written to"
rm run/metrics.jsonl && mv moved run/metrics.jsonl

# --- export ---------------------------------------------------------------------------------------
ln -s "$PWD/precious" x.sifr-partial
ok "$sifr" export run x
grep -q "'x.sifr-partial' is left as it is" err || fail "no message about the link: $(cat err)"
same "export"
is_link x.sifr-partial
[ -f x/model.safetensors ] && [ "$(ls -A x | grep -c sifr)" = 0 ] || fail "not exported: $(ls -A x)"
[ "$(ls -d x.sifr*)" = x.sifr-partial ] || fail "left over: $(ls -d x.sifr*)"
ln -s "$PWD/precious" linked
expect 2 "'linked' is a symbolic link: nothing is overwritten" "$sifr" export run linked
ln -s "$PWD/nothing" dangling
expect 2 "'dangling' is a symbolic link: nothing is overwritten" "$sifr" export run dangling
echo mine >y.sifr-lock
expect 2 "'y.sifr-lock' is not a lock file of sifr, and nothing is overwritten; choose another OUT" "$sifr" export run y
[ "$(cat y.sifr-lock)" = mine ] && [ ! -e y ] || fail "a file of the user was used as a lock"

# one writer at a time; leftovers of a killed export are removed by the next
hold z.sifr-lock
expect 2 "another export is writing to 'z' \(process 4242 on there\); choose another OUT" "$sifr" export run z
[ ! -e z ] && [ "$(cat z.sifr-lock)" = "4242 there" ] || fail "a refused export changed something: $(ls -d z*)"
exec 9>&-
ok "$sifr" export run z
for call in "mkdir 1 after" "write_at 2 before" "rename 2 after" "close 3 after"; do
    rm -rf z
    killed "rank 0 $call" export run z
    [ -e z.sifr-lock ] && [ -d z.sifr-partial ] || fail "$call: the kill left nothing: $(ls -d z*)"
    ok "$sifr" export run z
    [ "$(ls -d z*)" = z ] || fail "$call: left over: $(ls -d z*)"
    diff -r x z || fail "$call: the export differs"
done
! grep -q 'left as it is' err || fail "a leftover of sifr is taken for a file of the user: $(cat err)"
rm -rf z
"$sifr" export run z >out.1 2>err.1 & first=$!
"$sifr" export run z --dtype=bf16 >out.2 2>err.2 & second=$!
a=0 b=0
wait $first || a=$?
wait $second || b=$?
case $a$b in
    02) diff -r x z || fail "two exports at once: mixed" ;;
    20) cmp -s x/model.safetensors z/model.safetensors && fail "two exports at once: mixed" ;;
    *) fail "two exports at once: exit $a and $b: $(cat err.1 err.2)" ;;
esac
[ "$(ls -d z*)" = z ] || fail "two exports at once: left over: $(ls -d z*)"

# --- tokenize -------------------------------------------------------------------------------------
mkdir tokens
ln -s "$PWD/precious/file" tokens/train.bin.partial
ok "$sifr" tokenize text.txt --split=0.1 --out=tokens
same "tokenize"
is_link tokens/train.bin.partial
rm tokens/train.bin.partial
[ "$(ls -A tokens | tr '\n' ' ')" = "tokenizer.json train.bin val.bin " ] || fail "other files: $(ls -A tokens)"
mkdir links
ln -s "$PWD/nothing" links/val.bin
expect 2 "'links/val.bin' already exists" "$sifr" tokenize text.txt --out=links
is_link links/val.bin
mkdir held
hold held/.sifr-lock
expect 2 "another tokenize is writing to 'held' \(process 4242 on there\); choose another --out" "$sifr" tokenize text.txt --out=held
[ "$(ls -A held)" = .sifr-lock ] || fail "a refused tokenize changed something: $(ls -A held)"
exec 9>&-
ok "$sifr" tokenize text.txt --split=0.1 --out=held
diff -r tokens held || fail "the tokens differ"
for call in "open 2 after" "write_at 1 after" "sync 2 before" "rename 1 before" "rename 2 before" "rename 3 before"; do
    rm -rf held
    killed "rank 0 $call" tokenize text.txt --split=0.1 --out=held
    ls -A held | grep -q '^.sifr-partial$' || fail "$call: the kill left nothing: $(ls -A held)"
    ok "$sifr" tokenize text.txt --split=0.1 --out=held
    diff -r tokens held || fail "$call: other files: $(ls -A held)"
done
printf 'another text' >other.txt
rm -rf held
"$sifr" tokenize text.txt --split=0.1 --out=held >out.1 2>err.1 & first=$!
"$sifr" tokenize other.txt --split=0.1 --out=held >out.2 2>err.2 & second=$!
a=0 b=0
wait $first || a=$?
wait $second || b=$?
case $a$b in
    02) diff -r tokens held || fail "two at once: mixed" ;;
    20) [ "$("$sifr" tokenize --decode held/train.bin held/val.bin | sed 's/<|endoftext|>//g')" = "another text" ] || fail "two at once: mixed" ;;
    *) fail "two at once: exit $a and $b: $(cat err.1 err.2)" ;;
esac
expect 2 "no-such-tokenizer" "$sifr" tokenize text.txt --tokenizer=no-such-tokenizer --out=new/below
[ ! -e new ] || fail "a failed command left a folder"
printf '{"text": \n' >bad.jsonl
expect 1 "'bad.jsonl' line 1" "$sifr" tokenize bad.jsonl --out=new/below
[ ! -e new ] || fail "a failed command left a folder"
finish
