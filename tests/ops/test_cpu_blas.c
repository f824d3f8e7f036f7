/* test_cpu_blas -- BLAS and the threads allocate their memory when ops are created, so that they
 * work when the system later refuses more; and if the system refuses then, the result is an error,
 * not a hang. */
#include <sys/resource.h>
#include <unistd.h>
#include "ops/op_rig.h"

enum { THREADS = 3, LIMIT_SECONDS = 60 };

static size_t address_space(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%lu", &pages), 1);
    fclose(file);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* Limit the process to `more` bytes beyond its present size. */
static void limit(size_t more)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_AS, &limit), 0);
    limit.rlim_cur = more == 0 ? limit.rlim_max : address_space() + more;
    assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
}

static void test_no_memory_at_the_start_is_an_error(void **state)
{
    (void)state;
    if (TESTING_SANITIZED) /* the sanitizer allocates memory of its own */
        skip();
    struct env env = testing_env(THREADS);
    struct device *device;
    struct ops *ops;
    assert_ok(device_create(&env, "cpu", 0, &device));
    for (int buffers = 0; buffers < THREADS; buffers++) {
        limit((size_t)buffers * (OPS_BLAS_BUFFER_BYTES / 8) + ((size_t)20 << 20));
        assert_int_equal(ops_create(device, "cpu", DTYPE_F32, &ops), STATUS_MEMORY);
        limit(0);
        assert_non_null(strstr(log_first_error(env.log), "the BLAS library"));
        assert_non_null(strstr(log_first_error(env.log), "run.threads"));
    }
    device_destroy(device);
    env_destroy(&env);
}

/* Products by all threads when no memory can be allocated. */
static void test_too_many_threads_are_refused(void **state)
{
    (void)state;
    struct env env = testing_env(600);
    struct device *device;
    struct ops *ops;
    assert_int_equal(device_create(&env, "cpu", 0, &device), STATUS_OK);
    assert_int_equal(ops_create(device, "cpu", DTYPE_F32, &ops), STATUS_CONFIG);
    assert_non_null(strstr(log_first_error(env.log), "600 threads at once; use at most 512"));
    device_destroy(device);
    env_destroy(&env);
}

/* A kernel that does not exist is refused by name. */
static void test_unknown_kernels_are_refused(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct device *device;
    struct ops *ops;
    assert_ok(device_create(&env, "cpu", 0, &device));
    assert_int_equal(setenv("SIFR_CPU_KERNEL", "MMX", 1), 0);
    assert_int_equal(ops_create(device, "cpu", DTYPE_F32, &ops), STATUS_CONFIG);
    unsetenv("SIFR_CPU_KERNEL");
    assert_non_null(strstr(log_first_error(env.log), "SIFR_CPU_KERNEL=MMX"));
    assert_non_null(strstr(log_first_error(env.log), "'plain', 'openblas'"));
    device_destroy(device);
    env_destroy(&env);
}

static void test_products_take_nothing(void **state)
{
    (void)state;
    if (TESTING_SANITIZED)
        skip();
    static const struct ops_case cases[] = {
        {"linear", .rows = 256, .linear = {128, 512, .out_in = false}, .bias = true},
        {"linear_dw", .rows = 256, .linear = {128, 512, .out_in = true}},
        {"linear", .rows = 1, .linear = {2048, 2048, .out_in = true}},
    };
    enum { COUNT = sizeof cases / sizeof cases[0] };
    struct rig rig;
    struct ops_trial *trials[COUNT];
    rig_open(&rig, "cpu", DTYPE_F32, THREADS);
    for (int i = 0; i < COUNT; i++)
        trials[i] = rig_trial(&rig, &cases[i]);
    limit(1);
    for (int i = 0; i < COUNT; i++)
        ops_trial_run(trials[i]);
    limit(0);
    for (int i = 0; i < COUNT; i++)
        ops_trial_destroy(trials[i]);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_memory_at_the_start_is_an_error),
        cmocka_unit_test(test_products_take_nothing),
        cmocka_unit_test(test_unknown_kernels_are_refused),
        cmocka_unit_test(test_too_many_threads_are_refused),
    };
    alarm(LIMIT_SECONDS); /* without the fix it hangs */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
