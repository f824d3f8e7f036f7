#!/usr/bin/env bash
# test_comm_mpi.sh BUILD: the suites of comm on the back end mpi, with the mpirun of the library
# that BUILD is linked with. Oversubscribed and as root, as in CI. Each case that ends its job gets
# a job of its own. Leak checking is off because MPI libraries leak.
set -u
build=$1
library=$(ldd "$build/test_comm" | grep -oE 'libmpi(ch)?\.so' | head -n 1)
case $library in
    libmpich.so) mpirun=mpirun.mpich other=mpirun.openmpi ;;
    *) mpirun=mpirun.openmpi other=mpirun.mpich ;;
esac
command -v $mpirun >/dev/null || mpirun=mpirun
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_hwloc_base_binding_policy=none
export ASAN_OPTIONS=detect_leaks=0:${ASAN_OPTIONS:-} UCX_LOG_LEVEL=fatal
failed=0
words=$(mktemp -d /tmp/sifr-comm.XXXXXX) # output of jobs in the background
trap 'rm -rf "$words"' EXIT

# try RANKS COMMAND...: succeeds if every rank reports its cases as ok; sets `out` and `status`.
try() {
    local ranks=$1
    shift
    out=$(timeout 120 "$@" 2>&1)
    status=$?
    [ $status -eq 0 ] && [ "$(grep -c 'cases ok on rank' <<<"$out")" -eq "$ranks" ]
}

# run NAME RANKS COMMAND...: faults get a second try, because a fault ends the job, and mpirun may
# then terminate a rank before it reports its result.
run() {
    local name=$1 ranks=$2 out status
    shift 2
    try "$ranks" "$@" && return
    echo "$name on $ranks ranks: exit code $status"; echo "$out" | tail -n 20
    if [[ $name == fault* ]]; then
        echo "trying again"
        try "$ranks" "$@" && { echo "SECOND TRY: $name on $ranks ranks"; return; }
        echo "$out" | tail -n 20
    fi
    echo "FAIL $name on $ranks ranks (exit code $status)"
    failed=$((failed + 1))
}

for ranks in 1 2 3 5; do
    run comm $ranks $mpirun -n $ranks "$build/test_comm" mpi
done
OMPI_MCA_btl_vader_single_copy_mechanism=none run "comm without single copy" 2 $mpirun -n 2 "$build/test_comm" mpi
# Each fault takes seconds to be detected, so four jobs run at a time.
for fault in $("$build/test_comm_faults" list); do
    for ranks in 2 3; do
        [ "$(jobs -rp | wc -l)" -lt 4 ] || wait -n
        run "fault $fault" $ranks $mpirun -n $ranks "$build/test_comm_faults" mpi "$fault" >"$words/$fault-$ranks" &
    done
done
wait
failed=$((failed + $(cat "$words"/* | grep -c '^FAIL')))
cat "$words"/*

# On simulated GPUs, with all ranks on the first one: messages use bounce buffers, and NCCL is
# refused with a reason.
if [ -e "$build/fake/libsifr-cuda.so" ]; then
    export SIFR_PLUGIN_FOLDER=$build/fake SIFR_TEST_DEVICE=cuda
    run "comm through bounce buffers" 3 $mpirun -n 3 "$build/test_comm" mpi
    SIFR_TEST_COMM=auto run "comm with backend auto" 2 $mpirun -n 2 "$build/test_comm" mpi
    out=$(SIFR_TEST_COMM=nccl timeout 60 $mpirun -n 2 "$build/test_comm" mpi host 2>&1)
    if ! grep -qE 'ranks 0 and 1 share the GPU|has no NCCL' <<<"$out"; then
        echo "FAIL two ranks on one GPU were not refused"; echo "$out" | tail -n 20
        failed=$((failed + 1))
    fi
    unset SIFR_PLUGIN_FOLDER SIFR_TEST_DEVICE
else
    echo "SKIPPED: ranks on simulated GPUs: this build has no CUDA back ends"
fi

# With the mpirun of the other MPI library, each process is alone and must report the mismatch.
if command -v $other >/dev/null; then
    out=$(timeout 60 $other -n 2 "$build/test_comm" mpi host 2>&1)
    if ! grep -q 'as one of 2 ranks, but linked with' <<<"$out"; then
        echo "FAIL a mismatch of MPI libraries was not detected"; echo "$out" | tail -n 20
        failed=$((failed + 1))
    fi
else
    echo "SKIPPED: the launcher of another MPI: $other is not installed"
fi
echo "comm over $library with $mpirun: $failed failed"
[ $failed -eq 0 ]
