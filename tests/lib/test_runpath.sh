#!/usr/bin/env bash
# tests/lib/test_runpath.sh BUILD: no built file loads a library from the current folder, and sifr
# starts no program from there. (tests/lib/test_install.sh checks the RUNPATH of installed files.)
set -eu
build=$(cd "$1" && pwd)
. "$(dirname "$0")/runpath.sh"
check_runpath "$build"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/planted.c" <<'C'
#include <stdlib.h>
#include <unistd.h>
__attribute__((constructor)) static void run(void)
{
    if (write(1, "planted\n", 8) == 8)
        _exit(99);
}
C
for name in libjansson.so.4 libyaml-0.so.2 libxxhash.so.0 libpcre2-8.so.0; do
    cc -shared -fPIC "$work/planted.c" -o "$work/$name"
done
cd "$work"
unset LD_LIBRARY_PATH
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0}
said=$("$build/sifr" --version) || { echo "a library in the current folder was loaded: $said"; exit 1; }

# A launcher named without a path is searched in the absolute folders of PATH; an empty element is
# ignored.
printf '#!/bin/sh\ntouch planted\necho "mpirun (Open MPI) HYDRA"\n' >launcher-of-somebody
chmod +x launcher-of-somebody
SIFR_MPIRUN=launcher-of-somebody PATH=:.:$PATH "$build/sifr" doctor >doctor 2>&1 || true
[ ! -e planted ] || { echo "a program in the current folder was run"; exit 1; }
grep -q "SIFR_MPIRUN is 'launcher-of-somebody', which cannot be run" doctor || { echo "doctor does not report it: $(cat doctor)"; exit 1; }
SIFR_MPIRUN=./launcher-of-somebody "$build/sifr" doctor >doctor 2>&1 || true # a path is used as given
[ -e planted ] || { echo "a launcher given by its path was not run: $(cat doctor)"; exit 1; }
echo "nothing is taken from the current folder"
