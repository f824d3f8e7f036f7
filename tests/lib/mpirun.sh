# Sourced with $build set: sets $mpirun to the launcher of the MPI library that libsifr.so uses, and
# the environment that its ranks need here.
case $(ldd "$build/libsifr.so" | grep -oE 'libmpi(ch)?\.so' | head -n 1) in
    libmpich.so) mpirun=mpirun.mpich ;;
    *) mpirun=mpirun.openmpi ;;
esac
command -v $mpirun >/dev/null || mpirun=mpirun
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_hwloc_base_binding_policy=none UCX_LOG_LEVEL=fatal
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0} # MPI libraries leak
