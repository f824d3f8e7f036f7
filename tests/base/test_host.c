/* Resident memory grows when memory is touched, not when it is allocated. */
#include <string.h>
#include <sys/mman.h>
#include "base/host.h"
#include "testing.h"

static void test_touched(void **state)
{
    (void)state;
    const size_t bytes = (size_t)64 << 20, slack = (size_t)8 << 20;
    size_t before = resident_bytes();
    assert_true(before > 0);
    void *block = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(block != MAP_FAILED);
    assert_true(resident_bytes() < before + slack);
    memset(block, 1, bytes);
    size_t after = resident_bytes();
    assert_true(after >= before + bytes - slack && after < before + bytes + slack);
    munmap(block, bytes);
    assert_true(resident_bytes() < before + slack);
}

/* Shared memory counts for every process that has touched it. */
static void test_shared(void **state)
{
    (void)state;
    const size_t bytes = (size_t)64 << 20, slack = (size_t)8 << 20;
    size_t before = resident_bytes();
    void *block = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(block != MAP_FAILED);
    memset(block, 1, bytes);
    assert_true(resident_bytes() >= before + bytes - slack);
    munmap(block, bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_touched),
                                       cmocka_unit_test(test_shared)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
