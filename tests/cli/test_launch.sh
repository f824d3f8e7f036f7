#!/usr/bin/env bash
# Several ranks: the same bits as one rank, as processes and as threads; exit codes, signals, killed
# ranks, invalid uses.
. "$(dirname "$0")/common.sh" "$@"
make_text >text.txt
export SIFR_RUN_THREADS=1
library=$(ldd "$sifr" | grep -oE 'libmpi(ch)?\.so' | head -n 1)
case $library in
    libmpich.so) mine=mpirun.mpich other=mpirun.openmpi rank_variable=PMI_RANK ;;
    *) mine=mpirun.openmpi other=mpirun.mpich rank_variable=OMPI_COMM_WORLD_RANK ;;
esac
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 # for direct calls of $mine
endless=("${small[@]}" --train.global_batch=12 --data.path=text.txt --train.steps=100000000 --train.log_every=1000000)

# --- the same bits --------------------------------------------------------------------------------
train() { # FOLDER keys...
    local folder=$1
    shift
    ok timeout 120 "$sifr" train --model.layers=2 --model.width=40 --model.heads=5 --model.context=37 --train.micro_batch=3 \
        --train.global_batch=12 --train.steps=6 --train.eval_every=3 --train.sample_every=3 --train.sample_tokens=9 \
        --train.lr=3e-3 --data.path=text.txt --data.tokenizer=train:300 --out="$folder" "$@"
    losses "$folder" >"$folder.loss"
}
same() { # A B WHAT
    cmp -s "$1.loss" "$2.loss" || fail "$3: losses differ: $(paste "$1.loss" "$2.loss" | head -2)"
    cmp -s "$1/checkpoints/step-6/model.safetensors" "$2/checkpoints/step-6/model.safetensors" || fail "$3: weights differ"
    grep -q '"text": *".' "$1/samples.jsonl" || fail "$3: no samples"
    [ "$(grep -o '"text": *".*"' "$1/samples.jsonl")" = "$(grep -o '"text": *".*"' "$2/samples.jsonl")" ] || fail "$3: samples differ"
}
train one
lines=$(wc -l <out)
for backend in mpi threads; do
    for n in 2 3; do
        stage=$((n == 2 ? 3 : 2))
        train $backend-$n -n $n --comm.backend=$backend --zero.stage=$stage
        same one $backend-$n "$n ranks, $backend, stage $stage"
        [ "$(grep -c 'done after 6 steps' out)" = 1 ] || fail "$backend -n $n: not exactly one line about the end"
        [ "$(grep -cE '^step +6/6' out)" = 1 ] || fail "$backend -n $n: not exactly one line for the last step"
        ! grep -q $'[\r\033]' out || fail "$backend -n $n: escapes in a file"
        [ $backend = threads ] || grep -qE "^sifr: launch: $n ranks x 1 thread with (Open MPI|MPICH) [0-9]" err ||
            fail "no line about the launch: $(cat err)"
        [ "$(wc -l <err)" -le 1 ] || fail "$backend -n $n: more than one line of stderr: $(cat err)"
    done
done
ok timeout 120 $mine -n 2 "$sifr" train "${small[@]}" --data.path=text.txt --train.steps=3 --train.global_batch=8 --out=joined
[ "$(grep -c 'done after 3 steps' out)" = 1 ] || fail "a joined job: not exactly one line about the end: $(tail -3 out)"
! grep -q $'[\r\033]' out || fail "a joined job: escapes in a file"
# A rank without a micro-batch gets a warning.
ok timeout 120 "$sifr" train "${small[@]}" --data.path=text.txt --train.steps=1 --train.global_batch=4 -n 2 --comm.backend=threads --out=idle
grep -q 'warning: 1 of 2 ranks has nothing to compute: a step has 1 micro-batch;' err || fail "no warning about an idle rank: $(cat err)"
ok timeout 120 "$sifr" train "${small[@]}" --data.path=text.txt --train.steps=2 --train.global_batch=8 --json -n 2 --out=json
is_json out
[ ! -s err ] || fail "--json: output on stderr: $(cat err)"

# --- invalid uses ---------------------------------------------------------------------------------
for n in 0 -1 abc; do
    expect 2 "-n must be a whole number from 1" "$sifr" train "${endless[@]}" -n $n
done
expect 2 "comm.backend=self has one rank" "$sifr" train "${endless[@]}" -n 2 --comm.backend=self
expect 2 "SIFR_MPIRUN is '/bin/true', which is no launcher of" env SIFR_MPIRUN=/bin/true "$sifr" train "${endless[@]}" -n 2
expect 2 "-n 3 conflicts with .*, which started 2 ranks" timeout 120 $mine -n 2 "$sifr" train "${endless[@]}" -n 3
[ "$(grep -c 'which started 2 ranks' err)" = 1 ] || fail "not exactly one message: $(cat err)"
srun=(env SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=2)
expect 2 "srun started 2 ranks without PMI" "${srun[@]}" "$sifr" train "${endless[@]}" --out=srun
[ $mine = mpirun.openmpi ] || # Open MPI would wait for the server that these variables name
    expect 2 "started by srun as one of 2 ranks, but linked with" "${srun[@]}" PMIX_RANK=0 "$sifr" train "${endless[@]}" --out=srun
expect 2 "-n 3 conflicts with srun, which started 2 ranks" "${srun[@]}" "$sifr" train "${endless[@]}" -n 3
ok timeout 120 env SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 "$sifr" train "${small[@]}" \
    --data.path=text.txt --train.steps=2 --out=srun-alone
[ ! -e srun ] || fail "a refused start left a folder"
if has_program $other "the launcher of another MPI"; then
    expect '[0-9]+' "as one of 2 ranks, but linked with" timeout 120 $other -n 2 "$sifr" train "${endless[@]}" --out=mixed
    expect 2 "is no launcher of" env SIFR_MPIRUN=$other "$sifr" train "${endless[@]}" -n 2
fi
ok "$sifr" train "${endless[@]}" -n 4 --dry-run
! grep -q launch err || fail "--dry-run launched"
ok "$sifr" train -n 4 --help

# --- exit codes pass through, with one message ----------------------------------------------------
once() { # PATTERN: one error, and no output of the launcher
    [ "$(grep -c "$1" err)" = 1 ] && [ "$(wc -l <err)" -le 2 ] || fail "not exactly one message: $(cat err)"
}
for backend in mpi threads; do
    expect 2 "global_batch" timeout 120 "$sifr" train "${small[@]}" --data.path=text.txt --train.global_batch=13 -n 3 --comm.backend=$backend
    once 'is not a multiple'
    expect 2 "no file matches 'nope.txt'" timeout 120 "$sifr" train "${small[@]}" --data.path=nope.txt -n 3 --comm.backend=$backend
    once 'no file matches'
    expect 3 "steps in a row were skipped" timeout 120 "$sifr" train "${small[@]}" --data.path=text.txt --train.global_batch=12 \
        --train.steps=50 --train.lr=900 --train.clip=0 --train.warmup=0 --train.weight_decay=900 --train.max_skips=2 --quiet --out=diverged-$backend -n 3 --comm.backend=$backend
    [ "$(grep -c 'steps in a row' err)" = 1 ] || fail "not exactly one message about divergence: $(cat err)"
    expect 2 "has another model" timeout 120 "$sifr" train "${small[@]}" --data.path=text.txt --out=one -n 2 --comm.backend=$backend
    once 'has another model'
done

# --- signals and dead ranks -----------------------------------------------------------------------
start() { # FOLDER keys...: start a run in the background and wait for a few steps; sets pid
    local folder=$1
    shift
    "$sifr" train "${endless[@]}" --out="$folder" "$@" >out 2>err &
    pid=$!
    wait_for is_under_way "$folder" $pid
}
ranks_of() { # FOLDER: "PID RANK" of each rank of this script; another script may be running
    local process
    for process in $(pgrep -f -- "--out=$1 "); do
        [ "$(readlink "/proc/$process/cwd")" = "$work" ] || continue
        echo "$process $({ tr '\0' '\n' <"/proc/$process/environ"; } 2>/dev/null | sed -n "s/^$rank_variable=//p")"
    done | awk 'NF == 2'
}
has_no_ranks() { [ -z "$(ranks_of "$1")" ]; }
none_left() { # FOLDER
    wait_for has_no_ranks "$1"
    has_no_ranks "$1" || fail "$1: ranks are left"
    ranks_of "$1" | awk '{ print $1 }' | xargs -r kill -9
}
ends() { # CODE WHAT: the background job must end long before comm.timeout
    local code=0 begin=$SECONDS
    wait $pid || code=$?
    [[ $code =~ ^($1)$ ]] || fail "$2: exit $code, not $1: $(cat err)"
    [ $((SECONDS - begin)) -le 60 ] || fail "$2: took $((SECONDS - begin)) s"
}

for backend in mpi threads; do
    for signal in INT TERM USR1; do
        start stop-$backend-$signal -n 3 --zero.stage=3 --comm.backend=$backend
        kill -$signal $pid
        ends 75 "$signal, $backend"
        grep -q '"end": "stopped"' stop-$backend-$signal/summary.json || fail "$backend, $signal: summary.json does not say stopped: $(cat err)"
        [ "$(grep -c 'stopped after step' err)" = 1 ] || fail "$backend, $signal: not exactly one message: $(cat err)"
        none_left stop-$backend-$signal
    done
done

# a signal to a single rank, as Slurm and containers may send it
for rank in 0 2; do
    start single-$rank -n 3 --zero.stage=2
    kill -TERM "$(ranks_of single-$rank | awk -v rank=$rank '$2 == rank { print $1 }')"
    ends 75 "SIGTERM to rank $rank alone"
    [ "$(grep -c 'stopped after step' err)" = 1 ] || fail "SIGTERM to rank $rank alone: not exactly one message: $(cat err)"
    none_left single-$rank
done

start killed -n 3 --zero.stage=3
victim=$(ranks_of killed | awk '$2 == 1 { print $1 }')
kill -9 "$victim"
ends 1 "kill -9 of rank 1"
by="by signal 9.*"
[ $mine = mpirun.openmpi ] || by=".*" # Hydra may name the signal of another rank
grep -qE "^sifr: error: rank 1 \(pid $victim\) was killed,? ?$by; the other ranks were ended" err || fail "the killed rank is not named: $(cat err)"
[ $mine != mpirun.openmpi ] || [ "$(wc -l <err)" = 2 ] || fail "more than one message: $(cat err)"
! grep -q TERMINATION out || fail "the launcher's banner is shown: $(tail -5 out)"
none_left killed

start hung -n 2 --comm.timeout=5
kill -STOP "$(ranks_of hung | awk '$2 == 1 { print $1 }')"
ends 1 "a stopped rank"
grep -q 'rank 1 does not answer' err || fail "the hung rank is not named: $(cat err)"
none_left hung

start orphans -n 3
kill -9 $pid
wait $pid 2>/dev/null || true
none_left orphans

start twice -n 2 --model.layers=4 --model.width=256 --model.context=32 --train.global_batch=12
kill -INT $pid
sleep 0.05
kill -INT $pid
ends '1|75' "Ctrl-C twice" # 75: the run stopped before the second Ctrl-C
none_left twice

# before any rank has started
"$sifr" train "${endless[@]}" --out=early -n 2 >out 2>err &
pid=$!
wait_for takes_signals $pid
kill -TERM $pid
ends 75 "an early SIGTERM"
none_left early
finish
