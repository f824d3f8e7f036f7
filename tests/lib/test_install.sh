#!/usr/bin/env bash
# tests/lib/test_install.sh BUILD: the files from `cmake --install` are enough to build programs,
# linked dynamically and statically, and the shared library exports nothing but its public names.
set -eu
build=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if grep -q '^SIFR_SANITIZE:STRING=.' "$build/CMakeCache.txt"; then
    echo "SKIPPED: a sanitized library needs sanitized programs"
    exit 77
fi
cmake --install "$build" --prefix "$work/usr" >/dev/null
. "$(dirname "$0")/runpath.sh"
check_runpath "$work/usr"
export PKG_CONFIG_PATH
PKG_CONFIG_PATH=$(dirname "$(find "$work/usr" -name sifr.pc)")${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
libdir=$(pkg-config --variable=libdir sifr)
cat >"$work/program.c" <<'C'
#include <sifr.h>
int main(void)
{
    struct sifr_context *context;
    int failed = sifr_join(0, &context);
    if (!failed)
        sifr_leave(context);
    return failed;
}
C
cc -Wall -Wextra -Werror "$work/program.c" $(pkg-config --cflags --libs sifr) -o "$work/shared"
LD_LIBRARY_PATH=$libdir${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$work/shared" # for libraries that sifr needs
libs=$(pkg-config --static --libs sifr | sed 's/-lsifr//') # with -L for libraries in other folders
cc "$work/program.c" $(pkg-config --cflags sifr) "$libdir/libsifr.a" $libs -o "$work/static"
"$work/static"
nm -D --defined-only "$libdir/libsifr.so" >"$work/names"
grep -q ' T sifr_join$' "$work/names" || { echo "the library does not export sifr_join"; exit 1; }
others=$(awk '$3 !~ /^(sifr_|_(init|fini|end|edata|_bss_start)$)/ { print $3 }' "$work/names") # some linkers export their own
[ -z "$others" ] || { echo "exported besides sifr_*: $others"; exit 1; }
cc "$(dirname "$0")/../../examples/ngram.c" $(pkg-config --cflags --libs sifr) -lm -Wl,-rpath,"$libdir" -o "$work/ngram"
ldd "$work/ngram" | grep -q "libsifr.so.1 => $libdir/" || { echo "the example does not find its library"; exit 1; }
test -x "$work/usr/bin/sifr"
grep -q '^\.TH SIFR 1' "$work/usr/share/man/man1/sifr.1" || { echo "no manual page"; exit 1; }
bash -n "$work/usr/share/bash-completion/completions/sifr"
grep -q '^complete .* sifr$' "$work/usr/share/bash-completion/completions/sifr" || { echo "no completion"; exit 1; }
echo "installed, linked twice, exports only sifr_*"
