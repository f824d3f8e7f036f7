/* What the start of a run says about the CPUs of its ranks. */
#include "train/run/cores.h"
#include "base/topology.h"
#include "testing.h"

static struct cores judge(int size, const struct cores_report *all)
{
    return cores_judge(all, size);
}

static struct cores_report rank_on(const char *list, int threads, uint64_t host)
{
    struct cores_report report = {.host = host, .threads = threads};
    assert_true(topology_parse(list, &report.mask));
    return report;
}

#define JUDGE(...)                                                                           \
    judge((int)(sizeof((struct cores_report[]){__VA_ARGS__}) / sizeof(struct cores_report)), \
          (struct cores_report[]){__VA_ARGS__})

static void test_apart(void **state)
{
    (void)state;
    struct cores cores =
        JUDGE(rank_on("0-3", 4, 1), rank_on("4-7", 4, 1), rank_on("0-3", 4, 2)); /* two machines */
    assert_true(cores.apart);
    assert_int_equal(cores.ranks, 2);
    assert_int_equal(cores.crowded, -1);
}

/* Nobody is bound. */
static void test_common(void **state)
{
    (void)state;
    struct cores cores = JUDGE(rank_on("0-7", 4, 1), rank_on("0-7", 4, 1));
    assert_false(cores.apart);
    assert_int_equal(cores.crowded, -1);
    cores = JUDGE(rank_on("0-7", 4, 1), rank_on("0-7", 5, 1));
    assert_int_equal(cores.crowded, 0);
    assert_int_equal(cores.also, 1);
    assert_int_equal(cores.threads, 9);
    assert_int_equal(cores.cpus, 8);
}

/* Two ranks are bound to the same CPUs, although others are free. */
static void test_same(void **state)
{
    (void)state;
    struct cores cores = JUDGE(rank_on("0-3", 4, 1), rank_on("4-7", 4, 1), rank_on("4-7", 4, 1));
    assert_false(cores.apart);
    assert_int_equal(cores.crowded, 1);
    assert_int_equal(cores.also, 2);
    assert_int_equal(cores.threads, 8);
    assert_int_equal(cores.cpus, 4);
}

/* A launcher bound a rank of eight threads to one core; on another machine than rank 0's. */
static void test_one_core(void **state)
{
    (void)state;
    struct cores cores = JUDGE(rank_on("0-7", 8, 1), rank_on("0", 8, 2));
    assert_true(cores.apart);
    assert_int_equal(cores.ranks, 1);
    assert_int_equal(cores.crowded, 1);
    assert_int_equal(cores.also, -1);
    assert_int_equal(cores.threads, 8);
    assert_int_equal(cores.cpus, 1);
}

/* Rank 0 may run everywhere, the others only on some CPUs. */
static void test_nested(void **state)
{
    (void)state;
    struct cores cores = JUDGE(rank_on("0-3", 2, 1), rank_on("0", 1, 1), rank_on("1", 1, 1));
    assert_false(cores.apart);
    assert_int_equal(cores.crowded, -1);
    cores = JUDGE(rank_on("0-3", 2, 1), rank_on("0", 2, 1));
    assert_int_equal(cores.crowded, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_apart),    cmocka_unit_test(test_common), cmocka_unit_test(test_same),
        cmocka_unit_test(test_one_core), cmocka_unit_test(test_nested),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
