#!/usr/bin/env bash
# The report of scripts/test: skipped tests and parts, tests that pass on the second try, suites
# in the background, the last lines.
root=$(cd "$(dirname "$0")/../.." && pwd)
. "$(dirname "$0")/common.sh" "$@"

cat >CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.22)
project(suites NONE)
enable_testing()
add_test(NAME a/good COMMAND true)
add_test(NAME a/skipped COMMAND sh -c "echo 'SKIPPED: no such program'; exit 77")
add_test(NAME a/part COMMAND sh -c "echo 'SKIPPED: one part: no such program'")
add_test(NAME a/cmocka COMMAND sh -c "echo '[  SKIPPED ] test_y'; echo '[  SKIPPED ] 1 test(s), listed below:'")
add_test(NAME a/second COMMAND sh -c "test -e ${CMAKE_BINARY_DIR}/flag || { touch ${CMAKE_BINARY_DIR}/flag; exit 1; }")
add_test(NAME a/bad COMMAND false)
set_tests_properties(a/skipped PROPERTIES SKIP_RETURN_CODE 77)
END
cmake -S . -B tree >cmake.out || fail "cmake: $(cat cmake.out)"

jobs=1
. "$root/scripts/suites.sh"
skip_suite() { echo "SKIPPED: no root"; return 77; }
wait_for_good() { wait_for test -e good; [ -e good ]; }
own_failures=$failures
{
    suite_beside late wait_for_good
    suite_beside late-bad false
    suite tests run_ctest tree -E bad
    suite alone skip_suite
    suite bad run_ctest tree -R bad
    suite none run_ctest tree -R nothing
    suite good touch good
    finish_beside late
    finish_beside late-bad
    report build/test-logs/tests.log && echo "the report says that all is well"
} >out 2>err
failures=$own_failures
has '^  tests +ok on the second try +[0-9]+ s$'
has '^  alone +skipped +[0-9]+ s  \(no root\)$'
has '^  bad +FAIL +[0-9]+ s$'
has '^  none +FAIL +[0-9]+ s$'
has '^  good +ok +[0-9]+ s$'
has '^  late +ok +[0-9]+ s$' # it waits for the suite good
has '^  late-bad +FAIL +[0-9]+ s$'
has '^3 skipped in suites that ran:$'
has '^  tests: a/skipped: no such program$'
has '^  tests: a/part: one part: no such program$'
has '^  tests: a/cmocka: test_y$'
has '^1 passed on the second try only:$'
has '^  tests: a/second$'
[ "$(tail -n 1 out)" = "3 passed, 3 failed, 1 skipped" ] || fail "the last line: $(tail -n 1 out)"
passed=1 failed=0 skipped=0
[ "$(report build/test-logs/tests.log | tail -n 1)" = "1 passed, 0 failed" ] || fail "the last line when nothing was skipped"
finish
