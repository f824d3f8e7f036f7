#!/usr/bin/env bash
# tests/lib/test_header_cxx.sh BUILD: the public header is C++, too: a program in C++11 fills a
# model, calls the library and runs.
set -eu
build=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cxx=
for name in "${CXX:-}" g++ clang++ c++; do
    if [ -n "$name" ] && echo 'int main() {}' | $name -x c++ - -o "$work/any" 2>/dev/null; then
        cxx=$name
        break
    fi
done
[ -n "$cxx" ] || { echo "SKIPPED: no C++ compiler"; exit 77; }
cat >"$work/program.cc" <<'CC'
#include "sifr.h"
#include <cstdio>
#include <cstring>

static void forward(void *, const struct sifr_call *call)
{
    std::memset(call->output, 0, (std::size_t)call->rows * sizeof(float));
}

static void backward(void *, const struct sifr_call *) {}

static void loss(void *, const struct sifr_call *call)
{
    *call->loss = 0.0;
}

static int train(struct sifr_context *context, void *user)
{
    struct sifr_trainer *trainer;
    struct sifr_options options;
    sifr_options_init(&options);
    int status = sifr_trainer_create(context, static_cast<const sifr_model *>(user), &options,
                                     &trainer);
    if (status == SIFR_OK)
        sifr_trainer_destroy(trainer);
    return status;
}

int main()
{
    struct sifr_param params[1] = {};
    params[0].name = "w";
    params[0].dims = 1;
    params[0].shape[0] = 3;
    params[0].init = SIFR_ONE;

    struct sifr_unit units[2] = {};
    units[0].name = "first";
    units[0].width = 1;
    units[0].params = params;
    units[0].param_count = 1;
    units[0].param_size = sizeof *params;
    units[0].forward = forward;
    units[0].backward = backward;
    units[1].name = "last";
    units[1].loss = loss;

    struct sifr_model model = {};
    model.size = sizeof model;
    model.units = units;
    model.unit_count = 2;
    model.unit_size = sizeof *units;
    model.vocab = 2;
    std::printf("sifr %s\n", sifr_version());
    return sifr_run(nullptr, train, &model);
}
CC
flags="-std=c++11 -Wall -Wextra -pedantic -Werror"
$cxx $flags -I"$root/include" -c "$work/program.cc" -o "$work/program.o"
if grep -q '^SIFR_SANITIZE:STRING=.' "$build/CMakeCache.txt"; then
    echo "the header compiles as C++; a sanitized library needs a sanitized program, so it is not run"
    exit 0
fi
$cxx "$work/program.o" -L"$build" -lsifr -Wl,-rpath,"$build" -o "$work/program"
"$work/program" >"$work/out"
grep -q '^sifr [0-9]' "$work/out" || { echo "no version: $(cat "$work/out")"; exit 1; }
echo "the header compiles as C++ with $cxx, and the program runs"
