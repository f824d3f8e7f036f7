/* Which launcher started this process: each launcher's variables are recognized, incomplete sets
 * are not. */
#include "comm/launcher.h"
#include <unistd.h>
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

static int clear_variables(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++)
        unsetenv(variables[i]);
    return 0;
}

static void test_no_launcher(void **state)
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

/* A process inside an allocation that srun did not start is not a rank. */
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

/* This program as a rank that a script starts, which a shell has started as one of its ranks: the
 * shell is the launcher. */
static void test_process(void **state)
{
    (void)state;
    char program[512], command[1024];
    int shell = 0, process = 0;
    ssize_t bytes = readlink("/proc/self/exe", program, sizeof program - 1);
    assert_true(bytes > 0);
    program[bytes] = 0;
    snprintf(
        command, sizeof command,
        "echo $$; OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 sh -c '\"%s\" rank; true'; true",
        program);
    FILE *answer = popen(command, "r");
    assert_non_null(answer);
    assert_int_equal(fscanf(answer, "%d %d", &shell, &process), 2);
    assert_int_equal(pclose(answer), 0);
    assert_true(shell > 0);
    assert_int_equal(process, shell);
}

static int be_rank(void)
{
    struct launcher launcher;
    if (!launcher_find(&launcher))
        return 1;
    printf("%d\n", launcher.process);
    return 0;
}

int main(int argc, char **argv)
{
    (void)argv;
    if (argc > 1)
        return be_rank();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_no_launcher, clear_variables),
        cmocka_unit_test_setup(test_mpirun, clear_variables),
        cmocka_unit_test_setup(test_hydra, clear_variables),
        cmocka_unit_test_setup(test_srun, clear_variables),
        cmocka_unit_test_setup(test_process, clear_variables),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
