/* CPU quotas of control groups of both versions, from folders that the test makes. */
#include "base/cgroup.h"
#include "made_folder.h"

static double quota(void)
{
    return cgroup_cpu_quota(made_folder());
}

static void test_none(void **state)
{
    (void)state;
    assert_float_equal(quota(), 0, 0);
    made_put("0::/\n", "proc/self/cgroup");
    assert_float_equal(quota(), 0, 0);
    made_put("max 100000\n", "sys/fs/cgroup/cpu.max");
    assert_float_equal(quota(), 0, 0);
}

static void test_version_2(void **state)
{
    (void)state;
    made_put("0::/job/step\n", "proc/self/cgroup");
    made_put("max 100000\n", "sys/fs/cgroup/job/step/cpu.max");
    made_put("250000 100000\n", "sys/fs/cgroup/job/cpu.max");
    assert_float_equal(quota(), 2.5, 0); /* of the group around it */
    made_put("50000 50000\n", "sys/fs/cgroup/job/step/cpu.max");
    assert_float_equal(quota(), 1, 0);
    made_put("900000 100000\n", "sys/fs/cgroup/job/step/cpu.max");
    assert_float_equal(quota(), 2.5, 0);
    made_put("100000 100000\n", "sys/fs/cgroup/other/cpu.max"); /* is not ours */
    made_put("100000 100000\n", "sys/fs/cgroup/jo/cpu.max");
    assert_float_equal(quota(), 2.5, 0);
}

/* The container's group is the top folder; the path is that of the host. */
static void test_container(void **state)
{
    (void)state;
    made_put("0::/system.slice/docker-1234.scope\n", "proc/self/cgroup");
    made_put("400000 100000\n", "sys/fs/cgroup/cpu.max");
    assert_float_equal(quota(), 4, 0);
}

static void test_version_1(void **state)
{
    (void)state;
    made_put("9:cpuset:/\n4:cpu,cpuacct:/docker/12\n0::/docker/12\n", "proc/self/cgroup");
    made_put("-1\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us");
    made_put("100000\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us");
    assert_float_equal(quota(), 0, 0);
    made_put("350000\n", "sys/fs/cgroup/cpu/docker/12/cpu.cfs_quota_us");
    made_put("100000\n", "sys/fs/cgroup/cpu/docker/12/cpu.cfs_period_us");
    assert_float_equal(quota(), 3.5, 0);
    made_put("9:cpuset:/\n4:cpuacct:/docker/12\n", "proc/self/cgroup");
    assert_float_equal(quota(), 0, 0); /* not under the controller "cpu" */
    made_put("4:cpuacct,cpu:/docker/12\n", "proc/self/cgroup");
    assert_float_equal(quota(), 3.5, 0);
}

/* Damaged files count as missing. */
static void test_damage(void **state)
{
    static const char *const damaged[] = {"",          "100000",   "x 100000",
                                          "-5 100000", "100000 0", "0 100000"};
    (void)state;
    made_put("nothing\n1:cpu\n0::/\n", "proc/self/cgroup");
    for (size_t i = 0; i < sizeof damaged / sizeof *damaged; i++) {
        made_put(damaged[i], "sys/fs/cgroup/cpu.max");
        assert_float_equal(quota(), 0, 0);
    }
    made_put("100000 100000", "sys/fs/cgroup/cpu.max");
    assert_float_equal(quota(), 1, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_none, made_start, made_stop),
        cmocka_unit_test_setup_teardown(test_version_2, made_start, made_stop),
        cmocka_unit_test_setup_teardown(test_container, made_start, made_stop),
        cmocka_unit_test_setup_teardown(test_version_1, made_start, made_stop),
        cmocka_unit_test_setup_teardown(test_damage, made_start, made_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
