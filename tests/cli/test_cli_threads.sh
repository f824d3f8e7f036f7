#!/usr/bin/env bash
# Ranks as threads of one process: where there is no mpirun and nobody has asked for one, what is refused there, restarts, a
# rank that hangs; on GPUs made of threads, by NCCL.
. "$(dirname "$0")/common.sh" "$@"
make_text >text.txt
export SIFR_RUN_THREADS=1
keys=("${small[@]}" --train.global_batch=12 --data.path=text.txt)
train=("$sifr" train "${keys[@]}" --train.steps=3)
line='^sifr: launch: 2 ranks as threads of one process: SIFR_MPIRUN is .none., so no mpirun is looked for$'

# --- who gets threads ------------------------------------------------------------------------------------------------
export SIFR_MPIRUN=none
ok timeout 60 "${train[@]}" --out=one
ok timeout 60 "${train[@]}" -n 2 --zero.stage=3 --out=auto
[ "$(grep -cE "$line" err)" = 1 ] && [ "$(wc -l <err)" = 1 ] || fail "not said in one line: $(cat err)"
ok timeout 60 "${train[@]}" -n 2 --out=asked --comm.backend=threads
[ ! -s err ] || fail "threads were asked for, and are explained: $(cat err)"
for folder in auto asked; do
    [ "$(losses one)" = "$(losses $folder)" ] || fail "$folder: other losses"
done
for how in --quiet --json; do
    ok timeout 60 "${train[@]}" -n 2 --out=auto$how $how
    [ ! -s err ] || fail "$how: something on stderr: $(cat err)"
done
ok timeout 60 "$sifr" bench comm -n 2 --seconds=0.001 --largest=4k
grep -qE "$line" err || fail "bench: not said: $(cat err)"
ok timeout 60 "${train[@]}" -n 2 --dry-run
[ ! -s err ] || fail "--dry-run says who would be a thread: $(cat err)"
# What needs processes is refused: asked for by name, or on several machines.
expect 2 "no mpirun is looked for; install one, .*comm.backend=threads needs none" "${train[@]}" -n 2 --comm.backend=mpi --out=no
expect 2 "no mpirun is looked for; install one" env SLURM_JOB_ID=7 SLURM_NNODES=2 "${train[@]}" -n 2 --out=no
for n in 1 2; do
    expect 2 "comm.backend=nccl needs GPUs, but the device is 'cpu'; set comm.backend=auto or run.device=cuda" \
        "${train[@]}" -n $n --comm.backend=nccl --out=nccl
done
ok "$sifr" doctor
has '^  ranks +threads of one process; not processes: SIFR_MPIRUN is .none.'
ok "$sifr" doctor --json
has '"launcher": ?""'
# With one that is there, processes as ever; the wrong one is refused, also where threads would do.
(
    unset SIFR_MPIRUN
    ok timeout 60 "${train[@]}" -n 2 --out=processes
    grep -qE '^sifr: launch: 2 ranks x 1 thread with (Open MPI|MPICH)' err || fail "no processes: $(cat err)"
    ok "$sifr" doctor
    has '^  ranks +processes, started with (Open MPI|MPICH) [0-9.]+ \(.*mpi.*\), or threads of one process'
    [ $failures = 0 ]
) || failures=$((failures + 1))
SIFR_MPIRUN=/bin/true expect 2 "SIFR_MPIRUN is '/bin/true', which is no launcher of" "${train[@]}" -n 2 --out=no
[ ! -e no ] || fail "a mistaken start made a folder"
SIFR_MPIRUN=/nowhere/mpirun ok "$sifr" doctor
has "^! SIFR_MPIRUN is '/nowhere/mpirun', which cannot be run, .*: .sifr train -n. cannot start ranks"

# --- signals: as ranks that are processes take them ------------------------------------------------------------------
stops_by "TERM INT TERM" stopped -n2
ends_by_two twice 0.2 -n2
"$sifr" bench comm -n 2 --seconds=60 >out 2>err &
pid=$!
wait_for takes_signals $pid
kill -INT $pid
code=0
wait $pid || code=$?
[ $code = 1 ] && [ "$(tail -n 1 err)" = 'sifr: error: terminated by a signal' ] || fail "bench comm, Ctrl-C: exit $code: $(cat err)"

# --- a rank that hangs takes the process with it ---------------------------------------------------------------------
faulty=${sifr}_faults
if [ -x "$faulty" ]; then
    endless=("$faulty" train "${keys[@]}" --train.steps=100000 -n 3 --comm.timeout=1)
    for rank in 0 2; do
        FAULT="$rank hang step 3, block 0 forward" timeout 60 "${endless[@]}" --out=hung-$rank >out-$rank 2>err-$rank &
        eval "hung_$rank=$!"
    done
    FAULT="1 hang step 3, block 0 forward" FAULT_ONCE=once timeout 60 "$faulty" train "${keys[@]}" --train.steps=5 -n 3 --comm.timeout=1 \
        --restarts=2 --out=again >out-again 2>err-again &
    again=$!
    for rank in 0 2; do
        code=0
        eval "wait \$hung_$rank" || code=$?
        [ $code = 1 ] || fail "rank $rank hangs: exit $code: $(cat err-$rank)"
        tail -n 1 err-$rank | grep -qE "^sifr: error: rank $rank has not arrived at .*it is in \"step 3, block 0 forward\"" ||
            fail "rank $rank hangs: it is not named last: $(cat err-$rank)"
        [ "$(grep -c 'error: ' err-$rank)" = 1 ] || fail "rank $rank hangs: not said once: $(cat err-$rank)"
    done
    code=0
    wait $again || code=$?
    [ $code = 0 ] || fail "a rank hung once: exit $code: $(cat err-again)"
    [ "$(grep -c 'RESTART 1 of 2: .*rank 1 has not arrived' err-again)" = 1 ] || fail "no restart: $(cat err-again)"
    ok timeout 60 "$sifr" train "${keys[@]}" --train.steps=5 --out=five
    [ "$(losses five)" = "$(losses again)" ] || fail "restarted: other losses"
fi

# --- on GPUs --------------------------------------------------------------------------------------------------------
fake=${sifr%/sifr}/fake
if [ -e "$fake/libsifr-cuda.so" ] && grep -q sifr_comm_nccl "$fake/libsifr-cuda.so"; then
    export SIFR_PLUGIN_FOLDER=$fake LD_LIBRARY_PATH=$fake/nvml${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    # There are sixteen: what shares one is named.
    expect 2 "ranks 0 and 16 share the GPU .*, but NCCL needs one GPU per rank; use comm.backend=threads, which goes through host memory" \
        timeout 60 "${train[@]}" -n 17 --train.global_batch=68 --comm.backend=nccl --run.device=cuda --out=shared
fi

finish
