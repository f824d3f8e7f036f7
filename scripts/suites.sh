# Sourced by scripts/test: run suites, print their table, and list what was skipped or passed only
# on the second try. `jobs` is the number of CPUs.
passed=0 failed=0 skipped=0
rows=() skips=() second_tries=()

# suite NAME COMMAND...: run it, keep the log, record seconds and outcome. Exit code 77: the whole
# suite was skipped. Two kinds of lines in the log are collected:
#     SKIPPED: reason     a part that cannot run on this machine
#     SECOND TRY: test    a test that failed at first
suite() {
    local status=0 start=$SECONDS log
    log=$(log_of "$1")
    "${@:2}" >"$log" 2>&1 || status=$?
    record "$1" $status $((SECONDS - start))
}

log_of() { # SUITE
    mkdir -p build/test-logs
    echo "build/test-logs/$1.log"
}

# suite_beside NAME COMMAND...: start a suite in the background, at the lowest priority: it uses the
# CPU time that the next suites leave, some of which mostly wait. finish_beside NAME waits for its end.
declare -A beside=()
suite_beside() {
    local log
    log=$(log_of "$1")
    (
        start=$SECONDS status=0
        renice -n 19 -p $BASHPID >/dev/null
        "${@:2}" >"$log" 2>&1 || status=$?
        echo "$status $((SECONDS - start))" >"$log.end"
    ) &
    beside[$1]=$!
}
finish_beside() { # NAME
    local status=1 seconds=0
    wait "${beside[$1]}"
    read -r status seconds <"$(log_of "$1").end"
    rm -f "$(log_of "$1").end"
    record "$1" "$status" "$seconds"
}

record() { # NAME STATUS SECONDS
    local name=$1 status=$2 log outcome=ok reason= parts tries
    log=$(log_of "$name")
    mapfile -t parts < <(sed -n 's/^SKIPPED: //p' "$log" | sort -u)
    mapfile -t tries < <(sed -n 's/^SECOND TRY: //p' "$log" | sort -u)
    case $status in
        0)
            passed=$((passed + 1))
            [ ${#tries[@]} = 0 ] || outcome="ok on the second try"
            ;;
        77) skipped=$((skipped + 1)) outcome=skipped reason="${parts[*]:-no reason given}" parts=() ;;
        *)
            failed=$((failed + 1)) outcome=FAIL
            echo "--- $name failed; the end of its log:"; tail -n 60 "$log"
            ;;
    esac
    [ ${#parts[@]} = 0 ] || skips+=("${parts[@]/#/$name: }")
    [ ${#tries[@]} = 0 ] || second_tries+=("${tries[@]/#/$name: }")
    rows+=("$(printf '  %-28s %-20s %4d s%s' "$name" "$outcome" "$3" "${reason:+  ($reason)}")")
    echo "${rows[-1]}"
}

run_ctest() { # FOLDER ctest arguments: two more jobs than CPUs, because some tests mostly wait (CMakeLists.txt)
    local folder=$1 failures=$1/Testing/Temporary/LastTestsFailed.log status=0 first
    shift
    rm -f "$failures"
    ctest --test-dir "$folder" --no-tests=error --output-on-failure -j $((jobs + 2)) "$@" || status=$?
    list_notes "$folder"
    [ $status != 0 ] || return 0
    [ -s "$failures" ] || return 1 # no test failed: none was found
    mapfile -t first < <(sed 's/^[0-9]*://' "$failures")
    echo "--- what failed next to other tests is tried once more, alone: ${first[*]}"
    ctest --test-dir "$folder" --no-tests=error --rerun-failed --output-on-failure "$@" || return 1
    list_notes "$folder"
    printf 'SECOND TRY: %s\n' "${first[@]}"
}

list_notes() { # FOLDER: tests of the last ctest, and parts of them, that were skipped or run twice
    awk '/^[0-9]+\/[0-9]+ Test: / { name = $3; said = 0 }
        /^(SKIPPED|SECOND TRY): / { note = $0; sub(/: .*/, "", note); sub(/^[A-Z ]*: /, ""); print note ": " name ": " $0; said = 1 }
        /^\[  SKIPPED \] / && !/test\(s\)/ && !said { print "SKIPPED: " name ": " $NF }' "$1/Testing/Temporary/LastTest.log" | sort -u
}

list() { # HEAD ITEM...: prints nothing without items
    [ $# -gt 1 ] || return 0
    echo "$(($# - 1)) $1:"
    printf '  %s\n' "${@:2}"
}

report() { # LOG of ctest: print the table and the last lines; true if nothing failed
    echo
    printf '%s\n' "${rows[@]}"
    grep -hE '^[0-9]+% tests passed' "$1" 2>/dev/null
    list "skipped in suites that ran" ${skips[@]+"${skips[@]}"}
    list "passed on the second try only" ${second_tries[@]+"${second_tries[@]}"}
    echo "$passed passed, $failed failed$([ $skipped = 0 ] || echo ", $skipped skipped")"
    [ "$failed" -eq 0 ]
}
