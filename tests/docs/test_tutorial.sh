#!/usr/bin/env bash
# Runs every command of docs/tutorial.md in order: each line of a block marked `sh`, as printed, but
# with 12 training steps in place of 60.
# Exit code 75 (stopped early) is expected exactly from commands that ask to be stopped.
set -u
build=$(cd "${1:?usage: test_tutorial.sh BUILD}" && pwd)
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "$root/configs" "$root/docs" "$root/README.md" "$work"
ln -s "$build" "$work/build"
cd "$work" || exit 1
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=0} # MPI leaks memory

count=0
while IFS= read -r command; do
    wanted=0
    [[ $command != *--train.stop_at=* ]] || wanted=75
    bash -c "$command" </dev/null >log 2>&1
    status=$?
    count=$((count + 1))
    [ $status = $wanted ] && continue
    echo "exit code $status instead of $wanted: $command"
    tail -n 20 log
    exit 1
done < <(sed -n '/^```sh$/,/^```$/ { /^```/! p }' "$root/docs/tutorial.md" |
    sed 's/--train.steps=60\>/--train.steps=12/; s/--train.stop_at=30\>/--train.stop_at=6/; s/step-60\>/step-12/g')

echo "$count commands"
[ $count -ge 12 ] # otherwise commands are missing or no longer marked
