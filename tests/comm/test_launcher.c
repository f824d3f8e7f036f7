/* Who started this process: each launcher's variables are understood, half of them are not. */
#include "comm/launcher.h"
#include "comm/comm.h"
#include "testing.h"

static const char *const variables[] = {"OMPI_COMM_WORLD_SIZE",
                                        "OMPI_COMM_WORLD_RANK",
                                        "OMPI_COMM_WORLD_LOCAL_RANK",
                                        "PMI_SIZE",
                                        "PMI_RANK",
                                        "MPI_LOCALRANKID",
                                        "SLURM_STEP_ID",
                                        "SLURM_PROCID",
                                        "SLURM_STEP_NUM_TASKS",
                                        "SLURM_LOCALID"};

static int by_hand(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++)
        unsetenv(variables[i]);
    return 0;
}

static void test_nobody(void **state)
{
    (void)state;
    struct launcher launcher;
    assert_false(launcher_find(&launcher));
}

static void test_mpirun(void **state)
{
    (void)state;
    struct launcher launcher;
    setenv("OMPI_COMM_WORLD_SIZE", "12", 1);
    assert_false(launcher_find(&launcher));
    setenv("OMPI_COMM_WORLD_RANK", "3", 1);
    assert_true(launcher_find(&launcher));
    assert_int_equal(launcher.rank, 3);
    assert_int_equal(launcher.size, 12);
    assert_int_equal(launcher.local_rank, -1);
    setenv("OMPI_COMM_WORLD_LOCAL_RANK", "1", 1);
    assert_true(launcher_find(&launcher));
    assert_int_equal(launcher.local_rank, 1);
    setenv("OMPI_COMM_WORLD_RANK", "3x", 1);
    assert_false(launcher_find(&launcher));
    setenv("OMPI_COMM_WORLD_RANK", "12", 1);
    assert_false(launcher_find(&launcher));
}

static void test_hydra(void **state)
{
    (void)state;
    struct launcher launcher;
    setenv("PMI_SIZE", "2", 1);
    setenv("PMI_RANK", "1", 1);
    setenv("MPI_LOCALRANKID", "1", 1);
    assert_true(launcher_find(&launcher));
    assert_non_null(strstr(launcher.name, "MPICH"));
    assert_int_equal(launcher.rank + launcher.local_rank, 2);
}

/* Inside an allocation, but not started by srun. */
static void test_srun(void **state)
{
    (void)state;
    struct launcher launcher;
    setenv("SLURM_PROCID", "0", 1);
    setenv("SLURM_STEP_NUM_TASKS", "4", 1);
    assert_false(launcher_find(&launcher));
    setenv("SLURM_STEP_ID", "0", 1);
    assert_true(launcher_find(&launcher));
    assert_int_equal(launcher.size, 4);
    assert_string_equal(launcher.name, "srun");
}

/* --- the choice of a back end ------------------------------------------------------------------ */

static enum status create_on(struct env *env, const char *backend, const char *device_name)
{
    struct comm_config config = {.backend = backend, .timeout = 1};
    struct device *device;
    struct comm *comm = NULL;
    TRY(device_create(env, device_name, 0, &device));
    enum status st = comm_create(&config, device, &comm);
    if (st == STATUS_OK)
        assert_string_equal(comm_backend_name(comm), "self");
    comm_destroy(comm);
    device_destroy(device);
    return st;
}

static void test_backends(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    assert_ok(create_on(&env, "auto", "cpu"));
    assert_ok(create_on(&env, "self", "cpu"));
    assert_ok(create_on(&env, "self", "dry"));
    setenv("OMPI_COMM_WORLD_SIZE", "1", 1);
    setenv("OMPI_COMM_WORLD_RANK", "0", 1);
    assert_ok(create_on(&env, "auto", "cpu")); /* one rank needs no MPI */
    assert_int_equal(create_on(&env, "threads", "cpu"), STATUS_CONFIG);
    log_error_clear(env.log);
    assert_int_equal(create_on(&env, "gloo", "cpu"), STATUS_CONFIG);
    assert_non_null(strstr(log_first_error(env.log), "auto, self, threads, mpi"));
    env_destroy(&env);
}

static void test_failing_allocations(void **state)
{
    struct env env = testing_env(1);
    for (int64_t n = 1;; n++) {
        mem_fail_at(env.mem, n);
        enum status st = create_on(&env, "self", *state);
        assert_int_equal(mem_total(env.mem), 0);
        if (st == STATUS_OK) {
            assert_true(n > 8);
            break;
        }
        assert_int_equal(st, STATUS_MEMORY);
    }
    env_destroy(&env);
}

/* A dry device moves nothing and counts calls. */
static void test_dry(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct comm_config config = {.backend = "self", .timeout = 1};
    struct device *device;
    struct stream *stream;
    struct comm *comm;
    void *data;
    assert_ok(device_create(&env, "dry", 0, &device));
    assert_ok(stream_create_worker(device, "dry", &stream));
    assert_ok(device_alloc(device, MEM_PARAMS, "data", 4000, &data));
    assert_ok(comm_create(&config, device, &comm));
    comm_all_gather(comm, data, data, 1000, DTYPE_F32, stream);
    comm_all_reduce(comm, data, 1000, DTYPE_F32, data, stream);
    assert_ok(stream_sync(stream));
    assert_int_equal(comm_counted(comm, COMM_ALL_GATHER).calls, 1);
    assert_int_equal(comm_counted(comm, COMM_ALL_REDUCE).bytes, 0);
    comm_destroy(comm);
    device_free(device, data);
    stream_destroy(stream);
    device_destroy(device);
    env_destroy(&env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_nobody, by_hand),
        cmocka_unit_test_setup(test_mpirun, by_hand),
        cmocka_unit_test_setup(test_hydra, by_hand),
        cmocka_unit_test_setup(test_srun, by_hand),
        cmocka_unit_test_setup(test_backends, by_hand),
        {"test_failing_allocations cpu", test_failing_allocations, by_hand, NULL, "cpu"},
        {"test_failing_allocations dry", test_failing_allocations, by_hand, NULL, "dry"},
        cmocka_unit_test_setup(test_dry, by_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
