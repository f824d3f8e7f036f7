#!/usr/bin/env bash
# Ranks as threads of one process: when they are chosen because there is no mpirun, what is refused
# then, restarts, a rank that hangs; NCCL on fake GPUs.
. "$(dirname "$0")/common.sh" "$@"
make_text >text.txt
export SIFR_RUN_THREADS=1
keys=("${small[@]}" --train.global_batch=12 --data.path=text.txt)
train=("$sifr" train "${keys[@]}" --train.steps=3)
line='^sifr: launch: 2 ranks as threads of one process: SIFR_MPIRUN is .none., so no mpirun is looked for$'

# --- when ranks are threads -----------------------------------------------------------------------
export SIFR_MPIRUN=none
ok timeout 60 "${train[@]}" --out=one
ok timeout 60 "${train[@]}" -n 2 --zero.stage=3 --out=auto
[ "$(grep -cE "$line" err)" = 1 ] && [ "$(wc -l <err)" = 1 ] || fail "not exactly one line: $(cat err)"
ok timeout 60 "${train[@]}" -n 2 --out=asked --comm.backend=threads
[ ! -s err ] || fail "output on stderr although threads were requested: $(cat err)"
has '^  cores +[0-9,-]+ of [0-9]+; 2 ranks x 1 thread here'
free=$(env -u OMP_NUM_THREADS nproc) # CPUs that this shell may use
if [ "$free" -ge 2 ]; then
    has '2 ranks x 1 thread here, each on cores of its own$'
    ok timeout 60 "${train[@]}" -n 2 --out=loose --comm.backend=threads --run.bind=none
    has '2 ranks x 1 thread here$'
    ok timeout 60 env OMP_PROC_BIND=true "${train[@]}" -n 2 --out=openmp --comm.backend=threads
    has '; ranks 0 and 1 share 1 CPU for 2 threads: unset OMP_PROC_BIND$|here, each on cores of its own$' # gcc's OpenMP, clang's
    OMP_PROC_BIND=true ok "$sifr" doctor
    has '^! OMP_PROC_BIND is set: .* run.bind does nothing; unset it$'
    for folder in loose openmp; do
        [ "$(losses one)" = "$(losses $folder)" ] || fail "$folder: losses differ"
    done
else
    skip_part "ranks cannot have cores of their own on one CPU"
fi
first=$(taskset -cp $$ | sed 's/.*: //; s/[-,].*//')
if [ "$free" -lt "$(nproc --all)" ] || [ "$free" -ge 2 ]; then # a mask smaller than the machine
    ok timeout 60 taskset -c "$first" "${train[@]}" -n 2 --out=narrow --comm.backend=threads --run.threads=3
    has "cores +$first of [0-9]+.*; ranks 0 and 1 share 1 CPU for 6 threads: lower run.threads, or let the launcher or taskset give more CPUs$"
    [ "$(losses one)" = "$(losses narrow)" ] || fail "narrow: losses differ"
fi
ok timeout 60 "${train[@]}" -n 2 --out=crowded --comm.backend=threads --run.threads="$(nproc --all)"
has 'here, more than there are cores: lower run.threads'
for folder in auto asked; do
    [ "$(losses one)" = "$(losses $folder)" ] || fail "$folder: losses differ"
done
for how in --quiet --json; do
    ok timeout 60 "${train[@]}" -n 2 --out=auto$how $how
    [ ! -s err ] || fail "$how: output on stderr: $(cat err)"
done
ok timeout 60 "$sifr" bench comm -n 2 --seconds=0.001 --largest=4k
grep -qE "$line" err || fail "bench: no message: $(cat err)"
ok timeout 60 "${train[@]}" -n 2 --dry-run
[ ! -s err ] || fail "--dry-run: output on stderr: $(cat err)"
for backend in threads auto; do # the default, and why
    ok timeout 60 env -u SIFR_RUN_THREADS -u SIFR_MPIRUN OMP_NUM_THREADS=1 "${train[@]}" -n 2 --out=why-$backend --comm.backend=$backend
    has '2 ranks x 1 thread \(OMP_NUM_THREADS\) here'
done
ok timeout 60 env -u SIFR_RUN_THREADS -u OMP_NUM_THREADS "${train[@]}" --out=why
has '^  cores +[0-9,-]+ of [0-9]+.*; [0-9]+ threads? \((one per core|CPU quota [0-9.]+)\)$'
# Jobs that need processes are refused: comm.backend=mpi, or several machines.
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
# With an mpirun, ranks are processes. A wrong SIFR_MPIRUN is an error even though threads would
# work.
(
    unset SIFR_MPIRUN
    ok timeout 60 "${train[@]}" -n 2 --out=processes
    grep -qE '^sifr: launch: 2 ranks x 1 thread with (Open MPI|MPICH)' err || fail "ranks are not processes: $(cat err)"
    [ "$free" -lt 2 ] || has '2 ranks x 1 thread here, each on cores of its own$'
    ok timeout 60 "${train[@]}" -n 2 --out=loose-processes --run.bind=none
    has '2 ranks x 1 thread here(, more than there are cores: they take turns)?$'
    ok "$sifr" doctor
    has '^  ranks +processes, started with (Open MPI|MPICH) [0-9.]+ \(.*mpi.*\), or threads of one process'
    [ $failures = 0 ]
) || failures=$((failures + 1))
SIFR_MPIRUN=/bin/true expect 2 "SIFR_MPIRUN is '/bin/true', which is no launcher of" "${train[@]}" -n 2 --out=no
[ ! -e no ] || fail "a refused start left a folder"
SIFR_MPIRUN=/nowhere/mpirun ok "$sifr" doctor
has "^! SIFR_MPIRUN is '/nowhere/mpirun', which cannot be run, .*: .sifr train -n. cannot start ranks"

# --- signals: the same behaviour as for processes -------------------------------------------------
stops_by "TERM INT TERM" stopped -n2
ends_by_two twice 0.2 -n2
"$sifr" bench comm -n 2 --seconds=60 >out 2>err &
pid=$!
wait_for takes_signals $pid
kill -INT $pid
code=0
wait $pid || code=$?
[ $code = 1 ] && [ "$(tail -n 1 err)" = 'sifr: error: terminated by a signal' ] || fail "bench comm, Ctrl-C: exit $code: $(cat err)"

# --- a rank that hangs ends the process -----------------------------------------------------------
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
            fail "rank $rank hangs: the last line does not name it: $(cat err-$rank)"
        [ "$(grep -c 'error: ' err-$rank)" = 1 ] || fail "rank $rank hangs: not exactly one error: $(cat err-$rank)"
    done
    code=0
    wait $again || code=$?
    [ $code = 0 ] || fail "a rank hung once: exit $code: $(cat err-again)"
    [ "$(grep -c 'RESTART 1 of 2: .*rank 1 has not arrived' err-again)" = 1 ] || fail "no restart: $(cat err-again)"
    ok timeout 60 "$sifr" train "${keys[@]}" --train.steps=5 --out=five
    [ "$(losses five)" = "$(losses again)" ] || fail "restarted: losses differ"
fi

# --- on GPUs --------------------------------------------------------------------------------------
fake=${sifr%/sifr}/fake
if [ -e "$fake/libsifr-cuda.so" ] && grep -q sifr_comm_nccl "$fake/libsifr-cuda.so"; then
    export SIFR_PLUGIN_FOLDER=$fake LD_LIBRARY_PATH=$fake/nvml${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    # There are 16 fake GPUs: the message names two ranks that share one.
    expect 2 "ranks 0 and 16 share the GPU .*, but NCCL needs one GPU per rank; use comm.backend=threads, which goes through host memory" \
        timeout 60 "${train[@]}" -n 17 --train.global_batch=68 --comm.backend=nccl --run.device=cuda --out=shared
fi

finish
