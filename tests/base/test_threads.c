/* The default number of threads on machines that the test makes: cores, not hyper-threads. */
#include "base/threads.h"
#include "made_folder.h"

/* Eight cores of two hyper-threads: CPU n shares the core of n + 8. */
static void put_machine(void)
{
    made_put("0-15\n", "sys/devices/system/cpu/online");
    for (int c = 0; c < 16; c++) {
        char pair[16];
        snprintf(pair, sizeof pair, "%d,%d\n", c % 8, c % 8 + 8);
        made_put(pair, "sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", c);
    }
    made_put("0::/\n", "proc/self/cgroup");
}

static void expect(const char *allowed, const char *openmp, int ranks, bool bound, int count,
                   const char *why)
{
    cpu_set_t set;
    assert_true(topology_parse(allowed, &set));
    struct threads_share share = threads_of(made_folder(), &set, openmp, ranks, bound);
    assert_int_equal(share.count, count);
    assert_string_equal(share.why, why);
}

static void test_cores(void **state)
{
    (void)state;
    put_machine();
    expect("0-15", NULL, 1, false, 8, "one per core");
    expect("0-15", NULL, 4, false, 2, "one per core");
    expect("0-15", NULL, 3, false, 2, "one per core");
    expect("0-15", NULL, 8, false, 1, "one per core");
    expect("0-15", NULL, 9, false, 1, ""); /* fewer cores than ranks */
    expect("0-3", NULL, 1, false, 4, "one per core");
    expect("0,8", NULL, 1, false, 1, "one per core"); /* both hyper-threads of a core */
    expect("7-8", NULL, 1, false, 2, "one per core");
}

/* The mask is that of one rank alone. */
static void test_bound(void **state)
{
    (void)state;
    put_machine();
    expect("0-1,8-9", NULL, 4, true, 2, "one per core");
    expect("0-1,8-9", NULL, 4, false, 1, "");
}

static void test_quota(void **state)
{
    (void)state;
    put_machine();
    made_put("350000 100000\n", "sys/fs/cgroup/cpu.max");
    expect("0-15", NULL, 1, false, 3, "CPU quota 3.5");
    expect("0-15", NULL, 2, false, 1, "CPU quota 3.5");
    expect("0-15", NULL, 4, false, 1, "CPU quota 3.5");
    expect("0-1", NULL, 1, false, 2, "one per core"); /* the mask is smaller */
    expect("0-3,8-11", NULL, 2, true, 1, "CPU quota 3.5");
    made_put("1200000 100000\n", "sys/fs/cgroup/cpu.max"); /* hyper-threads count in a quota */
    expect("0-15", NULL, 1, false, 8, "one per core");
}

static void test_openmp(void **state)
{
    (void)state;
    put_machine();
    made_put("350000 100000\n", "sys/fs/cgroup/cpu.max");
    expect("0-15", "12", 1, false, 12, "OMP_NUM_THREADS");
    expect("0-15", "2", 4, false, 2, "OMP_NUM_THREADS"); /* of each rank */
    expect("0-15", "5,2", 1, false, 5, "OMP_NUM_THREADS");
    expect("0-15", " 5 ", 1, false, 5, "OMP_NUM_THREADS");
    static const char *const bad[] = {"", "0", "-3", "x", "4x", "99999"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        expect("0-15", bad[i], 1, false, 3, "CPU quota 3.5");
}

/* Nothing is known but the mask. */
static void test_no_files(void **state)
{
    (void)state;
    expect("0-5", NULL, 2, false, 3, "one per core");
}

/* On this machine: at least one, at most the CPUs, and the variable decides. */
static void test_here(void **state)
{
    cpu_set_t mask;
    (void)state;
    assert_int_equal(sched_getaffinity(0, sizeof mask, &mask), 0);
    unsetenv("OMP_NUM_THREADS");
    int count = threads_default(1, true).count;
    assert_in_range(count, 1, CPU_COUNT(&mask));
    assert_int_equal(threads_default(2 * count, false).count, 1);
    setenv("OMP_NUM_THREADS", "7", 1);
    assert_int_equal(threads_default(2, false).count, 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_cores, made_start, made_stop),
        cmocka_unit_test_setup_teardown(test_bound, made_start, made_stop),
        cmocka_unit_test_setup_teardown(test_quota, made_start, made_stop),
        cmocka_unit_test_setup_teardown(test_openmp, made_start, made_stop),
        cmocka_unit_test_setup_teardown(test_no_files, made_start, made_stop),
        cmocka_unit_test(test_here),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
