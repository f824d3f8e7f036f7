/* test_ops_cpu_threads -- with one thread only the caller works, however the linked BLAS is
 * threaded; with two, no third thread is ever created.
 *
 * The CPU clock of each thread shows which threads worked: it stops while a thread does not run,
 * however busy the machine is. A first test shows that the probe detects a threaded BLAS call. */
#include <dirent.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>
#include <cblas.h>
#include <omp.h>
#include "ops/op_rig.h"
#include "threads.h"

enum { MOST_THREADS = 256 };

/* The other threads of this process, and the CPU time of each in nanoseconds. */
struct others {
    int count, ids[MOST_THREADS];
    int64_t ran[MOST_THREADS];
};

/* CPU time of a thread of this process; 0 if it has ended. The clock id is what
 * pthread_getcpuclockid would compute, but works for threads whose pthread_t we do not have. */
static int64_t time_of_thread(int id)
{
    enum { PER_THREAD = 4, SCHEDULED = 2 };
    struct timespec t = {0};
    clock_gettime((clockid_t)(~(unsigned)id << 3 | PER_THREAD | SCHEDULED), &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static struct others look_at_others(void)
{
    struct others others = {0};
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    for (struct dirent *entry; (entry = readdir(tasks));) {
        int id = atoi(entry->d_name);
        if (id == 0 || id == threads_own_id())
            continue;
        assert_true(others.count < MOST_THREADS);
        others.ids[others.count] = id;
        others.ran[others.count++] = time_of_thread(id);
    }
    closedir(tasks);
    return others;
}

/* Nanoseconds that other threads, new ones included, have run since then. */
static int64_t others_ran_since(const struct others *then)
{
    struct others now = look_at_others();
    int64_t ran = 0;
    for (int i = 0; i < now.count; i++) {
        int64_t before = 0;
        for (int k = 0; k < then->count; k++)
            before = then->ids[k] == now.ids[i] ? then->ran[k] : before;
        ran += now.ran[i] - before;
    }
    return ran;
}

/* After a call, its threads spin for a while before they sleep. */
static struct others wait_until_others_sleep(void)
{
    struct others before, now = look_at_others();
    do {
        before = now;
        for (int i = 0; i < before.count; i++)
            threads_wait_until_asleep(before.ids[i]);
        now = look_at_others();
    } while (others_ran_since(&before) > 0);
    return now;
}

/* Products large enough for any BLAS to thread: forward, gradients, one row; and attention */
static const struct ops_case cases[] = {
    {"linear", .rows = 512, .linear = {512, 1024, .out_in = false}, .bias = true},
    {"linear_dx", .rows = 512, .linear = {512, 1024, .out_in = false}},
    {"linear_dw", .rows = 512, .linear = {512, 1024, .out_in = true}, .bias = true},
    {"linear", .rows = 1, .linear = {2048, 2048, .out_in = false}},
    {"linear", .rows = 1, .linear = {2048, 2048, .out_in = true}},
    {"attention", .attention = OPS_HEADS(1, 512, 4, 4, 128)},
    {"attention_backward", .attention = OPS_HEADS(1, 512, 4, 4, 128)},
};
#define CASE_COUNT (int)(sizeof cases / sizeof cases[0])

/* Run each call once as warm-up, then again; returns the nanoseconds that other threads ran. */
static int64_t run_all(struct rig *rig)
{
    int64_t ran = 0;
    for (int i = 0; i < CASE_COUNT; i++) {
        struct ops_trial *trial = rig_trial(rig, &cases[i]);
        ops_trial_run(trial);
        struct others others = wait_until_others_sleep();
        ops_trial_run(trial);
        ran += others_ran_since(&others);
        ops_trial_destroy(trial);
    }
    return ran;
}

static void test_probe_sees_threads(void **state)
{
    (void)state;
    enum { N = 768 };
    cpu_set_t cpus;
    assert_int_equal(sched_getaffinity(0, sizeof cpus, &cpus), 0);
    if (CPU_COUNT(&cpus) < 2 || openblas_get_parallel() == OPENBLAS_SEQUENTIAL)
        testing_skip("a BLAS with threads: there is one CPU, or the BLAS has none");
    float *a = calloc(N * N, sizeof *a), *b = calloc(N * N, sizeof *b);
    assert_true(a && b);
    openblas_set_num_threads(2);
    omp_set_num_threads(2);
    struct others others = wait_until_others_sleep();
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, N, N, N, 1, a, N, a, N, 0, b, N);
    assert_true(others_ran_since(&others) > 0);
    free(a);
    free(b);
}

static void test_one_thread(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, "cpu", DTYPE_F32, 1); /* after a threaded call: opening must undo it */
    assert_int_equal(run_all(&rig), 0);
    rig_close(&rig);
}

static void test_two_threads(void **state)
{
    (void)state;
    struct rig rig;
    int before = look_at_others().count;
    rig_open(&rig, "cpu", DTYPE_F32, 2);
    assert_true(run_all(&rig) > 0);
    assert_in_range(look_at_others().count, 1, before + 1);
    rig_close(&rig);
}

/* The number of threads is set by the ops, not by the process's default, which a BLAS may
 * change. */
static void test_team_is_ours(void **state)
{
    (void)state;
    struct rig rig;
    rig_open(&rig, "cpu", DTYPE_F32, 2);
    omp_set_num_threads(1);
    openblas_set_num_threads(1);
    struct ops_trial *trial = rig_trial(&rig, &cases[0]);
    ops_trial_run(trial);
    struct others others = wait_until_others_sleep();
    ops_trial_run(trial);
    assert_true(others_ran_since(&others) > 0);
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
