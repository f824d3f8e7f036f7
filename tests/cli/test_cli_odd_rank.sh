#!/usr/bin/env bash
# One rank whose data file is missing or invalid: all ranks end soon, with the message of that rank.
. "$(dirname "$0")/common.sh" "$@"
make_text >text.txt
printf 'too short' >short.txt
export SIFR_RUN_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
case $(ldd "$sifr" | grep -oE 'libmpi(ch)?\.so' | head -n 1) in
    libmpich.so) mine=mpirun.mpich rank_variable=PMI_RANK ;;
    *) mine=mpirun.openmpi rank_variable=OMPI_COMM_WORLD_RANK ;;
esac
command -v $mine >/dev/null || skip_all "$mine is not installed"

# A launcher that runs the program through `rank`, which gives $ODD_DATA to rank 1.
cat >rank <<'R'
#!/bin/sh
eval "number=\$RANK_VARIABLE"
[ "$number" != 1 ] || export SIFR_DATA_PATH="$ODD_DATA"
exec "$@"
R
sed -i "s/RANK_VARIABLE/$rank_variable/" rank
cat >launcher <<L
#!/usr/bin/env bash
words=()
for word; do
    [ "\$word" != "$(realpath "$sifr")" ] || words+=("$work/rank")
    words+=("\$word")
done
exec $mine "\${words[@]}"
L
chmod +x rank launcher

odd() { # DATA PATTERN
    expect 2 "$2" env SIFR_MPIRUN="$work/launcher" SIFR_DATA_PATH=text.txt ODD_DATA="$1" timeout 120 "$sifr" train "${small[@]}" \
        --train.global_batch=12 --train.steps=2 --out=run -n 3
    [ "$(grep -c error err)" = 1 ] || fail "$1: not exactly one message: $(cat err)"
    # a rank that is killed while it writes the token cache cannot remove it
    [ "$(ls -A run 2>/dev/null)" = "" ] || [ "$(ls -A run)" = cache ] || fail "$1: a run was started: $(ls -A run)"
    rm -rf run
}
for i in 1 2 3; do # the order in which ranks end varies
    odd nope.txt "error: rank 1: data.path: no file matches 'nope.txt'" # before the ranks join
    odd short.txt "error: rank 1: .*short.txt' has 11 tokens" # after they have joined
done
finish
