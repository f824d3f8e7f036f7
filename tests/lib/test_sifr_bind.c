/* sifr_job.bind -- ranks that are threads keep to CPUs of their own when the job asks for it, and
 * the caller's thread keeps what it had. With the argument BIND this program is one rank of mpirun
 * (test_bind.sh): it joins with that value of `bind` and prints its CPUs. */
#include <sched.h>
#include "base/topology.h"
#include "lib_rig.h"

enum { MOST = 64 };

struct masks {
    cpu_set_t of[MOST];
};

static int look(struct sifr_context *context, void *user)
{
    struct masks *masks = user;
    return sched_getaffinity(0, sizeof *masks->of, &masks->of[sifr_rank(context)]);
}

static int run(int ranks, int threads, int bind, struct masks *masks)
{
    struct sifr_job job = {
        .size = sizeof job, .ranks = ranks, .threads = threads, .bind = bind, .timeout = 60};
    return sifr_run(&job, look, masks);
}

static cpu_set_t mine(void)
{
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    return set;
}

static void test_threads(void **state)
{
    cpu_set_t before = mine(), after, used;
    int ranks = CPU_COUNT(&before) < MOST ? CPU_COUNT(&before) : MOST;
    struct masks masks;
    (void)state;
    if (ranks < 2) {
        testing_skip("ranks cannot have cores of their own on one CPU");
        return;
    }
    /* First: clang's OpenMP library learns that it must not bind only before it is used. */
    CPU_ZERO(&used);
    assert_int_equal(run(ranks, 1, 1, &masks), 0);
    for (int r = 0; r < ranks; r++) {
        cpu_set_t both;
        CPU_AND(&both, &used, &masks.of[r]);
        assert_int_equal(CPU_COUNT(&both), 0);
        CPU_OR(&used, &used, &masks.of[r]);
    }
    assert_true(CPU_EQUAL(&used, &before));
    after = mine();
    assert_true(CPU_EQUAL(&after, &before));

    assert_int_equal(run(ranks, 1, 0, &masks), 0);
    for (int r = 0; r < ranks; r++) /* nobody asked */
        assert_true(CPU_EQUAL(&masks.of[r], &before));

    assert_int_equal(run(2, CPU_COUNT(&before), 1, &masks), 0); /* more threads than CPUs */
    assert_true(CPU_EQUAL(&masks.of[0], &before) && CPU_EQUAL(&masks.of[1], &before));
}

/* One rank has nobody to share with. */
static void test_one_rank(void **state)
{
    cpu_set_t before = mine();
    struct masks masks;
    (void)state;
    assert_int_equal(run(1, 1, 1, &masks), 0);
    assert_true(CPU_EQUAL(&masks.of[0], &before));
}

static void test_wrong_value(void **state)
{
    struct masks masks;
    (void)state;
    assert_int_equal(run(2, 1, 2, &masks), SIFR_CONFIG);
    assert_int_equal(run(2, 1, -1, &masks), SIFR_CONFIG);
}

static int be_rank(int bind)
{
    struct sifr_job job = {.size = sizeof job, .threads = 1, .bind = bind, .timeout = 60};
    struct sifr_context *context;
    char list[256];
    int status = sifr_join(&job, &context);
    if (status != 0)
        return status;
    cpu_set_t set = mine();
    topology_print(&set, list, sizeof list);
    printf("rank %d of %d: %s\n", sifr_rank(context), sifr_ranks(context), list);
    sifr_leave(context);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_one_rank),
        cmocka_unit_test(test_wrong_value),
    };
    if (argc > 1)
        return be_rank(atoi(argv[1]));
    unsetenv("OMP_PROC_BIND");
    unsetenv("OMP_PLACES");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
