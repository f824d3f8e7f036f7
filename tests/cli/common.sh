# Sourced by the scripts of this folder: a working folder, the command under test, and functions to
# check and report. Each script gets the build folder as $1, prints every failure, and exits 1 if
# there was one.
set -eu
sifr=$(cd "$1" && pwd)/sifr
[ -x "$sifr" ] || { echo "$sifr does not exist" >&2; exit 1; }
work=$(mktemp -d /tmp/sifr-cli.XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work"
export SIFR_RUN_THREADS=2 NO_COLOR=1
# Hide a GPU, if there is one: the tests expect the bits and messages of the CPU.
export SIFR_PLUGIN_FOLDER=$work/no-plugin
# The leak check of ASan takes seconds at every exit; base/mem checks at exit that all memory was
# freed.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0}
failures=0

fail() {
    echo "FAILED: $*" >&2
    failures=$((failures + 1))
}

# skip_part REASON: part of the script cannot run on this machine. scripts/test collects these
# lines.
skip_part() { echo "SKIPPED: $*"; }
# skip_all REASON: the script cannot run on this machine. Exit code 77 means "skipped" to ctest and
# scripts/test.
skip_all() { skip_part "$@"; exit 77; }
has_program() { # PROGRAM PART: if the program is missing, skip that part
    command -v "$1" >/dev/null || { skip_part "$2: $1 is not installed"; return 1; }
}

# expect CODE PATTERN COMMAND...: check the exit code, and that stderr matches; both are extended
# regular expressions.
expect() {
    local code=$1 pattern=$2 got=0
    shift 2
    "$@" >out 2>err || got=$?
    [[ $got =~ ^($code)$ ]] || fail "exit $got, not $code: $*: $(head -c 400 err)"
    grep -qE -- "$pattern" err || fail "no '$pattern' in the message of: $*: $(head -c 400 err)"
}

# ok COMMAND...: the exit code must be 0. stdout goes to `out`, stderr to `err`.
ok() {
    local got=0
    "$@" >out 2>err || got=$?
    [ "$got" = 0 ] || fail "exit $got: $*: $(head -c 400 err)"
}

has() { # PATTERN: `out` must match it
    grep -qE -- "$1" out || fail "no '$1' in: $(head -c 400 out)"
}

is_json() { # FILE: every line must be JSON; without python3 only the outer shape is checked
    [ "$1" != out ] || [ -s out ] || fail "nothing was printed; expected JSON"
    if command -v python3 >/dev/null && python3 -c '' 2>/dev/null; then
        python3 -c 'import json, sys; [json.loads(line) for line in open(sys.argv[1])]' "$1" ||
            fail "not JSON: $(head -c 300 "$1")"
    else
        ! grep -qvE '^\{".*\}$' "$1" || fail "not an object: $(head -c 300 "$1")"
    fi
}

# sampled: scripts that repeat one check over many settings ask this before each. SIFR_TEST_SAMPLE=N
# in the environment: true for the first call and every N-th after it; else always.
asked=0
sampled() {
    asked=$((asked + 1))
    [ $(((asked - 1) % ${SIFR_TEST_SAMPLE:-1})) = 0 ]
}

make_text() { # about 40 kB of text with patterns that a model can learn
    local i
    for i in $(seq 1 400); do
        printf 'Line %d of the text: the quick brown fox jumps over the lazy dog, %d times.\n' "$i" $((i * 7 % 13))
    done
}

# wait_for COMMAND...: wait until it succeeds, at most two minutes: a loaded machine is slow.
wait_for() {
    local limit=$((SECONDS + 120))
    until "$@"; do
        [ $SECONDS -lt $limit ] || return 0 # the checks that follow fail with a better message
        sleep 0.1
    done
}
# processes_in FOLDER: the processes of jobs that run in it: sifr and its launchers.
processes_in() {
    local process name
    for process in /proc/[0-9]*; do
        { read -r name <"$process/comm"; } 2>/dev/null || continue
        case $name in sifr* | mpi* | orte* | hydra*) ;; *) continue ;; esac
        case $(readlink "$process/cwd") in "$1" | "$1"/*) echo "${process#/proc/}" ;; esac
    done
}
has_ended() { ! kill -0 "$1" 2>/dev/null; }
is_under_way() { # FOLDER PID: at least 3 steps are done, or the process has ended
    [ "$(cat "$1/metrics.jsonl" 2>/dev/null | wc -l)" -ge 3 ] || has_ended "$2"
}
takes_signals() { # PID: it has become sifr (until the exec it is bash) and handles SIGINT
    local mask
    [ "$(readlink "/proc/$1/exe")" = "$sifr" ] || return 1
    mask=$(sed -n 's/^SigCgt:[[:space:]]*//p' "/proc/$1/status" 2>/dev/null)
    [ $((0x${mask:-0} & 2)) != 0 ]
}
interrupt() { # PID [SIGNAL]: send the signal; true if the process has ended
    kill "-${2:-INT}" "$1" 2>/dev/null || true
    sleep 0.3
    has_ended "$1"
}
# stops_by "SIGNAL SIGNAL ..." FOLDER [FLAG...]: send these signals within one step of about a
# second, of a quarter of the batch under a sanitizer. The first must be acknowledged before the step
# ends, and the run must stop and save.
stops_by() {
    local signals=$1 folder=$2 first=${1%% *} signal pid before code=0 batch=32
    [ -z "${SIFR_TEST_SAMPLE:-}" ] || batch=8
    shift 2
    "$sifr" train --model.layers=2 --model.width=256 --model.heads=4 --model.context=256 --train.micro_batch=4 --train.global_batch=$batch \
        --data.path=text.txt --data.split=0 --train.steps=1000 --out="$folder" "$@" >out 2>err &
    pid=$!
    wait_for test -s "$folder/metrics.jsonl"
    before=$(wc -l <"$folder/metrics.jsonl")
    kill "-$first" $pid
    is_acknowledged() { # true also if the step has ended meanwhile
        grep -q '^sifr: stopping after this step' err || [ "$(wc -l <"$folder/metrics.jsonl")" -gt "$before" ] || has_ended $pid
    }
    wait_for is_acknowledged
    is_acknowledged || fail "$folder: the first of $signals is not acknowledged: $(cat err)"
    sleep 0.15 # a signal that comes sooner may count as the same Ctrl-C
    for signal in ${signals#"$first"}; do
        kill "-$signal" $pid 2>/dev/null || true
        sleep 0.15
    done
    wait $pid || code=$?
    [ $code = 75 ] || fail "$folder: $signals: exit $code, not 75: $(cat err)"
    grep -q "stopped after step [0-9]*: saved in .*; rerun the same command to resume" err || fail "$folder: $signals: no message about the stop: $(cat err)"
    [ "$(grep '^sifr: stopping' err | sort | uniq -d)" = '' ] || fail "$folder: $signals: the same line twice: $(cat err)"
    grep -q '"end": "stopped"' "$folder/summary.json" || fail "$folder: $signals: summary.json does not say stopped"
}
# ends_by_two FOLDER SECONDS [FLAG...]: Ctrl-C during a long step, and again after SECONDS. The
# second must end the process without waiting for the step.
ends_by_two() {
    local folder=$1 seconds=$2 pid limit code=0
    shift 2
    "$sifr" train --model.layers=2 --model.width=512 --model.heads=8 --model.context=1024 --train.micro_batch=8 \
        --train.global_batch=512 --data.path=text.txt --data.split=0 --train.steps=1000 --threads=1 --out="$folder" "$@" >out 2>err &
    pid=$!
    wait_for test -e "$folder/config.yaml"
    sleep 0.5
    kill -INT $pid
    wait_for grep -q '^sifr: stopping after this step; .*; press Ctrl-C again to terminate immediately$' err # acknowledged immediately, not after the step
    grep -q 'stopping after this step' err || fail "$folder: the first Ctrl-C is not acknowledged: $(cat err)"
    has_ended $pid && fail "$folder: the step ended too early for this test"
    sleep "$seconds"
    limit=$((SECONDS + 30))
    kill -INT $pid
    until has_ended $pid || [ $SECONDS -ge $limit ]; do
        sleep 0.1
    done
    kill -KILL $pid 2>/dev/null || true # then the exit code is 137
    wait $pid || code=$?
    [ $code = 1 ] || fail "$folder: Ctrl-C twice: exit $code, not 1"
    [ ! -e "$folder/summary.json" ] || fail "$folder: Ctrl-C twice: it did not end immediately"
    [ "$(tail -n 1 err)" = 'sifr: error: terminated by a signal' ] || fail "$folder: Ctrl-C twice: no error message: $(cat err)"
    [ "$(grep -c 'stopping' err)" = 1 ] || fail "$folder: Ctrl-C twice: not acknowledged exactly once: $(cat err)"
}

losses() { # FOLDER: loss and gradient norm of each step; two folders without metrics do not compare equal
    [ -s "$1/metrics.jsonl" ] || { echo "no losses in $1"; return; }
    sed 's/.*"loss":\([^,]*\),"grad_norm":\([^,]*\),.*/\1 \2/' "$1/metrics.jsonl"
}
same_state() { # A B STEP WHAT: weights and optimizer state of two runs must be equal to the bit
    local file
    for file in model.safetensors optimizer/momentum.safetensors optimizer/variance.safetensors; do
        cmp -s "$1/checkpoints/step-$3/$file" "$2/checkpoints/step-$3/$file" || fail "$4: $file differs"
    done
}

# A very small model; scripts add more keys.
small=(--model.layers=2 --model.width=32 --model.heads=2 --model.context=32 --train.micro_batch=4 --train.lr=3e-3)

finish() {
    [ "$failures" = 0 ] || { echo "$failures failed" >&2; exit 1; }
    echo passed
}
