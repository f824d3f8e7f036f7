# Sourced by the scripts of this folder: a place to work in, the command, and ways to say what went wrong.
# Each script is given the build folder; it prints what failed and exits 1 when anything did.
set -eu
sifr=$(cd "$1" && pwd)/sifr
[ -x "$sifr" ] || { echo "there is no $sifr" >&2; exit 1; }
work=$(mktemp -d /tmp/sifr-cli.XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work"
export SIFR_RUN_THREADS=2 NO_COLOR=1
# Where there is a GPU, it is not found: bits and words are those of the CPU.
export SIFR_PLUGIN_FOLDER=$work/no-plugin
# A search for leaks at every exit takes seconds; base/mem checks at exit that every block was given back.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0}
failures=0

fail() {
    echo "FAILED: $*" >&2
    failures=$((failures + 1))
}

# skip_part REASON: a part of the script cannot run here. scripts/test collects these lines.
skip_part() { echo "SKIPPED: $*"; }
# skip_all REASON: nothing of the script can run here; the exit code by which ctest and scripts/test know it.
skip_all() { skip_part "$@"; exit 77; }
has_program() { # PROGRAM PART: or that part is skipped
    command -v "$1" >/dev/null || { skip_part "$2: $1 is not installed"; return 1; }
}

# expect CODE PATTERN COMMAND...: the exit code, and an extended regular expression that stderr must match.
expect() {
    local code=$1 pattern=$2 got=0
    shift 2
    "$@" >out 2>err || got=$?
    [[ $got =~ ^($code)$ ]] || fail "exit $got, not $code: $*: $(head -c 400 err)"
    grep -qE -- "$pattern" err || fail "no '$pattern' in the message of: $*: $(head -c 400 err)"
}

# ok COMMAND...: exit 0; stdout is in `out`, stderr in `err`.
ok() {
    local got=0
    "$@" >out 2>err || got=$?
    [ "$got" = 0 ] || fail "exit $got: $*: $(head -c 400 err)"
}

has() { # PATTERN in `out`
    grep -qE -- "$1" out || fail "no '$1' in: $(head -c 400 out)"
}

is_json() { # every line of a file is JSON; without a reader of JSON only its shape is looked at
    [ "$1" != out ] || [ -s out ] || fail "nothing was printed, and no JSON"
    if command -v python3 >/dev/null && python3 -c '' 2>/dev/null; then
        python3 -c 'import json, sys; [json.loads(line) for line in open(sys.argv[1])]' "$1" ||
            fail "not JSON: $(head -c 300 "$1")"
    else
        ! grep -qvE '^\{".*\}$' "$1" || fail "not an object: $(head -c 300 "$1")"
    fi
}

make_text() { # about 40 kB that a model can learn something from
    local i
    for i in $(seq 1 400); do
        printf 'Line %d of the text: the quick brown fox jumps over the lazy dog, %d times.\n' "$i" $((i * 7 % 13))
    done
}

# wait_for COMMAND...: until it succeeds, for two minutes at most: a loaded machine is slow.
wait_for() {
    local limit=$((SECONDS + 120))
    until "$@"; do
        [ $SECONDS -lt $limit ] || return 0 # what follows fails, and says more
        sleep 0.1
    done
}
# processes_in FOLDER: of the jobs that run there: sifr, and who starts it.
processes_in() {
    local process name
    for process in /proc/[0-9]*; do
        { read -r name <"$process/comm"; } 2>/dev/null || continue
        case $name in sifr* | mpi* | orte* | hydra*) ;; *) continue ;; esac
        case $(readlink "$process/cwd") in "$1" | "$1"/*) echo "${process#/proc/}" ;; esac
    done
}
has_ended() { ! kill -0 "$1" 2>/dev/null; }
is_under_way() { # FOLDER PID: a few steps are done
    [ "$(cat "$1/metrics.jsonl" 2>/dev/null | wc -l)" -ge 3 ] || has_ended "$2"
}
takes_signals() { # PID: it has set up what to do when SIGINT comes; until it is the command, it is a shell that does so too
    local mask
    [ "$(readlink "/proc/$1/exe")" = "$sifr" ] || return 1
    mask=$(sed -n 's/^SigCgt:[[:space:]]*//p' "/proc/$1/status" 2>/dev/null)
    [ $((0x${mask:-0} & 2)) != 0 ]
}
interrupt() { # PID [SIGNAL]: again; true when it has ended
    kill "-${2:-INT}" "$1" 2>/dev/null || true
    sleep 0.3
    has_ended "$1"
}
# stops_by "SIGNAL SIGNAL ..." FOLDER [FLAG...]: a run with steps of a second or so gets them within one: the first is answered at once,
# and it stops in good order.
stops_by() {
    local signals=$1 folder=$2 first=${1%% *} signal pid before code=0
    shift 2
    "$sifr" train --model.layers=2 --model.width=256 --model.heads=4 --model.context=256 --train.micro_batch=4 --train.global_batch=32 \
        --data.path=text.txt --data.split=0 --train.steps=1000 --out="$folder" "$@" >out 2>err &
    pid=$!
    wait_for test -s "$folder/metrics.jsonl"
    before=$(wc -l <"$folder/metrics.jsonl")
    kill "-$first" $pid
    is_answered() { # or the step has ended meanwhile
        grep -q '^sifr: stopping after this step' err || [ "$(wc -l <"$folder/metrics.jsonl")" -gt "$before" ] || has_ended $pid
    }
    wait_for is_answered
    is_answered || fail "$folder: the first of $signals is not answered: $(cat err)"
    sleep 0.15 # sooner the next one may count as the same
    for signal in ${signals#"$first"}; do
        kill "-$signal" $pid 2>/dev/null || true
        sleep 0.15
    done
    wait $pid || code=$?
    [ $code = 75 ] || fail "$folder: $signals: exit $code, not 75: $(cat err)"
    grep -q "stopped after step [0-9]*: saved in .*; rerun the same command to resume" err || fail "$folder: $signals: not said: $(cat err)"
    [ "$(grep '^sifr: stopping' err | sort | uniq -d)" = '' ] || fail "$folder: $signals: answered twice in the same words: $(cat err)"
    grep -q '"end": "stopped"' "$folder/summary.json" || fail "$folder: $signals: no summary.json that says stopped"
}
# ends_by_two FOLDER SECONDS [FLAG...]: while a large step is computed, a second Ctrl-C comes after SECONDS, and does not wait for it.
ends_by_two() {
    local folder=$1 seconds=$2 pid limit code=0
    shift 2
    "$sifr" train --model.layers=2 --model.width=512 --model.heads=8 --model.context=1024 --train.micro_batch=8 \
        --train.global_batch=512 --data.path=text.txt --data.split=0 --train.steps=1000 --out="$folder" "$@" >out 2>err &
    pid=$!
    wait_for test -e "$folder/config.yaml"
    sleep 0.5
    kill -INT $pid
    wait_for grep -q '^sifr: stopping after this step; .*; press Ctrl-C again to terminate immediately$' err # at once, and not when the step has ended
    grep -q 'stopping after this step' err || fail "$folder: the first Ctrl-C is not answered: $(cat err)"
    has_ended $pid && fail "$folder: the step had ended: the test shows nothing"
    sleep "$seconds"
    limit=$((SECONDS + 30))
    kill -INT $pid
    until has_ended $pid || [ $SECONDS -ge $limit ]; do
        sleep 0.1
    done
    kill -KILL $pid 2>/dev/null || true # exit 137: it has not ended by itself
    wait $pid || code=$?
    [ $code = 1 ] || fail "$folder: Ctrl-C twice: exit $code, not 1"
    [ ! -e "$folder/summary.json" ] || fail "$folder: Ctrl-C twice: it did not quit at once"
    [ "$(tail -n 1 err)" = 'sifr: error: terminated by a signal' ] || fail "$folder: Ctrl-C twice: not said: $(cat err)"
    [ "$(grep -c 'stopping' err)" = 1 ] || fail "$folder: Ctrl-C twice: not answered once: $(cat err)"
}

losses() { # FOLDER: loss and norm of the gradient of each step; two folders without any are not equal
    [ -s "$1/metrics.jsonl" ] || { echo "no losses in $1"; return; }
    sed 's/.*"loss":\([^,]*\),"grad_norm":\([^,]*\),.*/\1 \2/' "$1/metrics.jsonl"
}
same_state() { # A B STEP WHAT: the weights and the optimizer of two runs, to the bit
    local file
    for file in model.safetensors optimizer/momentum.safetensors optimizer/variance.safetensors; do
        cmp -s "$1/checkpoints/step-$3/$file" "$2/checkpoints/step-$3/$file" || fail "$4: another $file"
    done
}

# The smallest model worth the name; more keys may follow.
small=(--model.layers=2 --model.width=32 --model.heads=2 --model.context=32 --train.micro_batch=4 --train.lr=3e-3)

finish() {
    [ "$failures" = 0 ] || { echo "$failures failed" >&2; exit 1; }
    echo passed
}
