/* An executable that cannot be read is an I/O error, not a different executable. */
#include <errno.h>
#include "base/input.h"
#include "train/checkpoint/fingerprint.h"
#include "train/scratch.h"

static void test_an_unreadable_executable_is_an_error(void **state)
{
    (void)state;
    struct scratch s;
    struct input_faults faults = {.times = INPUT_TRIES, .error = EIO};
    uint64_t print, again;
    scratch_open(&s);
    assert_int_equal(fingerprint_binary(&s.env, &print), STATUS_OK);
    s.env.input_faults = &faults;
    atomic_store(&faults.left, 1);
    assert_int_equal(fingerprint_binary(&s.env, &again), STATUS_IO);
    scratch_expect(&s, "/proc/self/exe");
    faults.times = 1;
    atomic_store(&faults.left, 1);
    assert_int_equal(fingerprint_binary(&s.env, &again), STATUS_OK);
    s.env.input_faults = NULL;
    assert_true(again == print);
    scratch_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_unreadable_executable_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
