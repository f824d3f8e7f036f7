/* ranks_find -- where ranks run, from -n, comm.backend, a launcher's variables, and whether there
 * is an mpirun. */
#include "cli/launch/ranks.h"
#include "testing.h"

static struct ranks_plan find(int64_t n, const char *backend)
{
    struct env env = testing_env(1);
    struct ranks_plan plan;
    assert_ok(ranks_find(&env, n, backend, &plan));
    env_destroy(&env);
    return plan;
}

static void test_one(void **state)
{
    static const char *const backends[] = {"auto", "self", "threads", "mpi", "nccl"};
    (void)state;
    for (int i = 0; i < 5; i++) {
        assert_int_equal(find(0, backends[i]).way, RANKS_ONE);
        assert_int_equal(find(1, backends[i]).way, RANKS_ONE);
    }
}

static void test_with_mpirun(void **state)
{
    (void)state;
    unsetenv("SIFR_MPIRUN"); /* use the mpirun found when sifr was configured */
    assert_int_equal(find(3, "auto").way, RANKS_LAUNCH);
    assert_int_equal(find(3, "nccl").way, RANKS_LAUNCH);
    assert_int_equal(find(3, "mpi").way, RANKS_LAUNCH);
    assert_int_equal(find(3, "threads").way, RANKS_THREADS);
    assert_string_equal(find(3, "threads").why_threads, "");
    assert_string_equal(find(3, "auto").why_threads, "");
    setenv("SIFR_MPIRUN", "/bin/true", 1); /* named but wrong: the launch reports it */
    assert_int_equal(find(3, "auto").way, RANKS_LAUNCH);
}

static void test_without_mpirun(void **state)
{
    (void)state;
    setenv("SIFR_MPIRUN", "none", 1);
    for (int i = 0; i < 2; i++) {
        struct ranks_plan plan = find(3, i ? "auto" : "nccl");
        assert_int_equal(plan.way, RANKS_THREADS);
        assert_int_equal(plan.size, 3);
        assert_int_equal(plan.local, 3);
        assert_non_null(strstr(plan.why_threads, "no mpirun is looked for"));
    }
    assert_int_equal(find(3, "mpi").way, RANKS_LAUNCH); /* requested: the launch fails */
    assert_string_equal(find(3, "threads").why_threads, "");
}

/* Threads of one process cannot span several machines. */
static void test_several_machines(void **state)
{
    (void)state;
    setenv("SIFR_MPIRUN", "none", 1);
    setenv("SLURM_JOB_ID", "7", 1);
    setenv("SLURM_NNODES", "2", 1);
    assert_int_equal(find(4, "auto").way, RANKS_LAUNCH);
    assert_int_equal(find(4, "auto").local, 2);
    assert_int_equal(find(4, "threads").way, RANKS_THREADS);
    assert_int_equal(find(4, "threads").local, 4);
    setenv("SLURM_NNODES", "1", 1);
    assert_int_equal(find(4, "auto").way, RANKS_THREADS);
}

/* OMP_NUM_THREADS is per rank, wherever ranks run. */
static void test_threads(void **state)
{
    (void)state;
    setenv("SIFR_MPIRUN", "none", 1);
    setenv("OMP_NUM_THREADS", "5", 1);
    assert_int_equal(find(0, "auto").share.count, 5);
    assert_int_equal(find(3, "threads").share.count, 5);
    assert_int_equal(find(3, "mpi").share.count, 5);
    unsetenv("OMP_NUM_THREADS");
    assert_int_equal(find(1000, "threads").share.count, 1);
}

static void test_joined(void **state)
{
    (void)state;
    setenv("SIFR_MPIRUN", "none", 1);
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    setenv("OMPI_COMM_WORLD_RANK", "1", 1);
    assert_int_equal(find(0, "auto").way, RANKS_JOIN);
    assert_int_equal(find(2, "nccl").way, RANKS_JOIN);
}

static int forget(void **state)
{
    static const char *const names[] = {"SIFR_MPIRUN",          "SLURM_JOB_ID", "SLURM_NNODES",
                                        "OMPI_COMM_WORLD_SIZE", "PMI_SIZE",     "SLURM_STEP_ID"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unsetenv(names[i]);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_one, forget),
        cmocka_unit_test_setup(test_with_mpirun, forget),
        cmocka_unit_test_setup(test_without_mpirun, forget),
        cmocka_unit_test_setup(test_several_machines, forget),
        cmocka_unit_test_setup(test_threads, forget),
        cmocka_unit_test_setup(test_joined, forget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
