/* test_ops_cpu_threads -- with one thread only the caller works, whatever way the linked BLAS runs
 * threads of its own; with two, no third is ever made.
 *
 * Who worked is read from the clocks: CPU time of the process less that of the calling thread is
 * what others used. A first test shows that the probe sees a threaded BLAS call. */
#include <dirent.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>
#include <cblas.h>
#include <omp.h>
#include "ops/op_rig.h"

static double clock_of(clockid_t id)
{
    struct timespec t;
    assert_int_equal(clock_gettime(id, &t), 0);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

struct probe {
    double process, own;
};

static struct probe probe_start(void)
{
    return (struct probe){clock_of(CLOCK_PROCESS_CPUTIME_ID), clock_of(CLOCK_THREAD_CPUTIME_ID)};
}

/* CPU time of other threads since the probe started, and as a share of the caller's */
static double others_seconds(struct probe p)
{
    double own = clock_of(CLOCK_THREAD_CPUTIME_ID) - p.own;
    return clock_of(CLOCK_PROCESS_CPUTIME_ID) - p.process - own;
}

static double others_share(struct probe p)
{
    return others_seconds(p) / (clock_of(CLOCK_THREAD_CPUTIME_ID) - p.own);
}

/* The threads of a call wait in a spin for a while before they sleep. */
static void wait_until_others_sleep(void)
{
    double busy = 1;
    for (int i = 0; i < 100 && busy > 1e-4; i++) {
        struct probe p = probe_start();
        usleep(300000);
        busy = others_seconds(p);
    }
}

static int thread_count(void)
{
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(tasks));)
        count += entry->d_name[0] != '.';
    closedir(tasks);
    return count;
}

/* Products large enough for any BLAS to thread: forward, gradients, one row; and attention */
static const struct ops_case cases[] = {
    {"linear", .rows = 512, .linear = {512, 1024, false}, .bias = true},
    {"linear_dx", .rows = 512, .linear = {512, 1024, false}},
    {"linear_dw", .rows = 512, .linear = {512, 1024, true}, .bias = true},
    {"linear", .rows = 1, .linear = {2048, 2048, false}},
    {"linear", .rows = 1, .linear = {2048, 2048, true}},
    {"attention", .attention = {1, 512, 4, 4, 128}},
    {"attention_backward", .attention = {1, 512, 4, 4, 128}},
};
#define CASE_COUNT (int)(sizeof cases / sizeof cases[0])

static void run_all(struct rig *rig, double *worst_share)
{
    *worst_share = 0;
    for (int i = 0; i < CASE_COUNT; i++) {
        struct ops_trial *trial = rig_trial(rig, &cases[i]);
        ops_trial_run(trial);
        struct probe p = probe_start();
        for (int k = 0; k < 5; k++)
            ops_trial_run(trial);
        double share = others_share(p);
        *worst_share = share > *worst_share ? share : *worst_share;
        ops_trial_destroy(trial);
    }
}

static void test_probe_sees_threads(void **state)
{
    (void)state;
    enum { N = 768 };
    cpu_set_t cpus;
    assert_int_equal(sched_getaffinity(0, sizeof cpus, &cpus), 0);
    if (CPU_COUNT(&cpus) < 2 || openblas_get_parallel() == OPENBLAS_SEQUENTIAL)
        skip();
    float *a = calloc(N * N, sizeof *a), *b = calloc(N * N, sizeof *b);
    assert_true(a && b);
    openblas_set_num_threads(2);
    omp_set_num_threads(2);
    struct probe p = probe_start();
    for (int i = 0; i < 5; i++)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, N, N, N, 1, a, N, a, N, 0, b, N);
    assert_true(others_share(p) > 0.3);
    free(a);
    free(b);
}

static void test_one_thread(void **state)
{
    (void)state;
    struct rig rig;
    double share;
    rig_open(&rig, "cpu", DTYPE_F32, 1); /* after a threaded call: opening must undo it */
    wait_until_others_sleep();
    run_all(&rig, &share);
    rig_close(&rig);
    print_message("others worked %.4f of the caller's time\n", share);
    assert_true(share < 0.03);
}

static void test_two_threads(void **state)
{
    (void)state;
    struct rig rig;
    double share;
    int before = thread_count();
    rig_open(&rig, "cpu", DTYPE_F32, 2);
    run_all(&rig, &share);
    int after = thread_count();
    rig_close(&rig);
    assert_true(after <= before + 1);
    /* one other, at times waiting in a spin while the caller is off the CPU */
    assert_true(share < 4);
}

/* The size of the team is the ops' own, not the process's default, which a BLAS may change. */
static void test_team_is_ours(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, "cpu", DTYPE_F32, 2);
    omp_set_num_threads(1);
    openblas_set_num_threads(1);
    struct ops_trial *trial = rig_trial(&rig, &cases[0]);
    ops_trial_run(trial);
    struct probe p = probe_start();
    for (int i = 0; i < 10; i++)
        ops_trial_run(trial);
    assert_true(others_share(p) > 0.2);
    ops_trial_destroy(trial);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_probe_sees_threads),
        cmocka_unit_test(test_one_thread),
        cmocka_unit_test(test_two_threads),
        cmocka_unit_test(test_team_is_ours),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
