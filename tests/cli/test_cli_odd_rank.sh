#!/usr/bin/env bash
# One rank whose files are not there, or not good: all ranks end at once, and the message is that rank's.
. "$(dirname "$0")/common.sh" "$@"
make_text >text.txt
printf 'too short' >short.txt
export SIFR_RUN_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
case $(ldd "$sifr" | grep -oE 'libmpi(ch)?\.so' | head -n 1) in
    libmpich.so) mine=mpirun.mpich rank_variable=PMI_RANK ;;
    *) mine=mpirun.openmpi rank_variable=OMPI_COMM_WORLD_RANK ;;
esac
command -v $mine >/dev/null || skip_all "$mine is not installed"

# A launcher whose rank 1 has $ODD_DATA for its data: it puts `rank` in front of the program.
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
    [ "$(grep -c error err)" = 1 ] || fail "$1: not one message: $(cat err)"
    # a rank that is killed while it writes the token cache cannot remove it
    [ "$(ls -A run 2>/dev/null)" = "" ] || [ "$(ls -A run)" = cache ] || fail "$1: a run was begun: $(ls -A run)"
    rm -rf run
}
for i in 1 2 3; do                                             # who ends first is chance
    odd nope.txt "error: rank 1: data.path: no file matches 'nope.txt'" # before the ranks have met
    odd short.txt "error: rank 1: .*short.txt' has 11 tokens" # after that
done
finish
