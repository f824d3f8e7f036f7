/* comm_rig -- one suite for every back end: a case is a function that each rank runs.
 *
 * Without arguments the binary runs every case on `self`, and on `threads` with 1 to 8 ranks. Under
 * mpirun it is one rank of the back end `mpi`: `test_comm mpi [CASE]`. `test_comm list` prints the
 * names of the cases.
 *
 * SIFR_TEST_DEVICE selects a device other than the CPU. Buffers are then in its memory, which cases
 * access through `put` and `get`. Exit code 77 = no such device here. SIFR_TEST_COMM=nccl sends
 * messages from GPU to GPU, with as many ranks as there are GPUs; under mpirun it may be any
 * comm.backend. SIFR_TEST_FAST=1 selects fast mode, in which the library may do the sums.
 *
 * Ranks may be threads, so a case does not assert: it uses EXPECT, which records the first failure
 * of a rank, and the rank reports it.
 */
#ifndef TESTS_COMM_RIG_H
#define TESTS_COMM_RIG_H
#include <pthread.h>
#include <time.h>
#include "base/clock.h"
#include "base/rng.h"
#include "comm/comm.h"
#include "testing.h"

enum { MOST_RANKS = 8 };

/* A rank that runs a case. */
struct member {
    struct env env;
    struct device *device;
    struct stream *direct, *worker, *other; /* an inline stream and two workers */
    struct comm *comm;
    int rank, size;
    char wrong[1024]; /* the first failure; "" = none */
};

typedef void case_fn(struct member *m);

struct comm_case {
    const char *name;
    case_fn *run;
    double timeout; /* the job's timeout in seconds; 0 = a minute */
    bool alone;     /* ends its job, so it needs a job of its own */
};

#define EXPECT(m, condition)                                                                     \
    do {                                                                                         \
        if (!(condition) && (m)->wrong[0] == '\0')                                               \
            snprintf((m)->wrong, sizeof(m)->wrong, "%s:%d: %s", __FILE__, __LINE__, #condition); \
    } while (0)
#define EXPECT_TEXT(m, text, part)                                                             \
    do {                                                                                       \
        if (strstr(text, part) == NULL && (m)->wrong[0] == '\0')                               \
            snprintf((m)->wrong, sizeof(m)->wrong, "%s:%d: '%s' is not in '%.400s'", __FILE__, \
                     __LINE__, part, text);                                                    \
    } while (0)

static inline void nap(double seconds)
{
    struct timespec span = {(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))};
    nanosleep(&span, NULL);
}

static inline struct comm_config rig_config(const struct comm_case *c, const char *backend)
{
    return (struct comm_config){.backend = backend,
                                .timeout = c->timeout > 0 ? c->timeout : 60,
                                .fast = getenv("SIFR_TEST_FAST") != NULL};
}

static inline const char *rig_device(void)
{
    const char *name = getenv("SIFR_TEST_DEVICE");
    return name != NULL && *name != '\0' ? name : "cpu";
}

static inline bool rig_nccl(void)
{
    const char *name = getenv("SIFR_TEST_COMM");
    return name != NULL && strcmp(name, "nccl") == 0;
}

static inline int rig_gpus(void)
{
    struct device_info info;
    device_look(rig_device(), -1, &info);
    return info.count;
}

/* The streams are of the kind that comm_stream_create makes. */
static inline void member_open(struct member *m, int gpu)
{
    enum status (*make)(struct device *, const char *, struct stream **) =
        rig_nccl() ? stream_create : stream_create_worker;
    *m = (struct member){.env = testing_env(1)};
    assert_ok(device_create(&m->env, rig_device(), rig_nccl() ? gpu : 0, &m->device));
    assert_ok(stream_create(m->device, "direct", &m->direct));
    assert_ok(make(m->device, "worker", &m->worker));
    assert_ok(make(m->device, "other", &m->other));
}

static inline void member_close(struct member *m)
{
    stream_destroy(m->other);
    stream_destroy(m->worker);
    stream_destroy(m->direct);
    device_destroy(m->device);
    env_destroy(&m->env);
}

static inline void member_run(struct member *m, const struct comm_case *c)
{
    m->rank = comm_rank(m->comm);
    m->size = comm_size(m->comm);
    c->run(m);
}

/* --- device buffers ------------------------------------------------------------------------- */

static inline void *take(struct member *m, size_t bytes)
{
    void *block = NULL;
    EXPECT(m, device_alloc(m->device, MEM_SCRATCH, "test", bytes, &block) == STATUS_OK);
    return block;
}

static inline void give(struct member *m, void *block)
{
    device_free(m->device, block);
}

/* Synchronous copies from and to host memory. */
static inline void put(struct member *m, void *dst, const void *src, size_t bytes)
{
    device_copy(m->direct, dst, src, bytes);
    EXPECT(m, stream_sync(m->direct) == STATUS_OK);
}

static inline void get(struct member *m, void *dst, const void *src, size_t bytes)
{
    put(m, dst, src, bytes);
}

/* --- self and threads ----------------------------------------------------------------------- */

static inline void run_on_self(void **state)
{
    const struct comm_case *c = *state;
    struct comm_config config = rig_config(c, rig_nccl() ? "nccl" : "self");
    struct member m;
    member_open(&m, 0);
    assert_ok(comm_create(&config, m.device, &m.comm));
    member_run(&m, c);
    comm_destroy(m.comm);
    if (m.wrong[0] != '\0')
        fail_msg("%s", m.wrong);
    member_close(&m);
}

struct rig_thread {
    pthread_t thread;
    struct comm_hub *hub;
    const struct comm_case *c;
    int rank, gpu;
    struct member member;
};

static inline void *rig_thread_main(void *arg)
{
    struct rig_thread *rig_thread = arg;
    struct comm_config config = rig_config(rig_thread->c, rig_nccl() ? "nccl" : "threads");
    struct member *m = &rig_thread->member;
    member_open(m, rig_thread->gpu);
    if (comm_join(rig_thread->hub, rig_thread->rank, &config, m->device, &m->comm) == STATUS_OK)
        member_run(m, rig_thread->c);
    else
        EXPECT(m, !"joined");
    comm_destroy(m->comm);
    member_close(m);
    return NULL;
}

/* A job whose ranks are threads of this process. */
struct rig_job {
    struct rig_thread threads[MOST_RANKS];
    struct env env;
    struct comm_hub *hub;
    int size;
};

static inline void rig_job_start(struct rig_job *job, const struct comm_case *c, int size,
                                 int first_gpu)
{
    *job = (struct rig_job){.env = testing_env(1), .size = size};
    assert_ok(comm_hub_create(&job->env, size, &job->hub));
    for (int r = 0; r < size; r++) {
        struct rig_thread *rig_thread = &job->threads[r];
        *rig_thread = (struct rig_thread){.hub = job->hub, .c = c, .rank = r, .gpu = first_gpu + r};
        assert_int_equal(pthread_create(&rig_thread->thread, NULL, rig_thread_main, rig_thread), 0);
    }
}

/* Returns the number of ranks that failed. */
static inline int rig_job_end(struct rig_job *job)
{
    int wrong = 0;
    for (int r = 0; r < job->size; r++)
        pthread_join(job->threads[r].thread, NULL);
    for (int r = 0; r < job->size; r++) {
        if (job->threads[r].member.wrong[0] == '\0')
            continue;
        print_error("rank %d of %d: %s\n", r, job->size, job->threads[r].member.wrong);
        wrong++;
    }
    comm_hub_destroy(job->hub);
    env_destroy(&job->env);
    return wrong;
}

/* Cases that end their job wait for seconds, so they run with fewer sizes, and all sizes at once.
 * With NCCL each of these jobs needs its own GPUs: kernels that wait for each other would block
 * those of another job. */
static inline void run_on_threads(void **state)
{
    const struct comm_case *c = *state;
    struct rig_job jobs[MOST_RANKS];
    int most = rig_nccl() && rig_gpus() < MOST_RANKS ? rig_gpus() : MOST_RANKS;
    int count = 0, wrong = 0, gpu = 0;
    for (int size = 1; size <= most; size += c->alone && size > 2 ? size - 1 : 1) {
        bool at_once = c->alone && (!rig_nccl() || gpu + size <= rig_gpus());
        rig_job_start(&jobs[count++], c, size, at_once ? gpu : 0);
        gpu += at_once ? size : 0;
        wrong += at_once ? 0 : rig_job_end(&jobs[--count]);
    }
    while (count > 0)
        wrong += rig_job_end(&jobs[--count]);
    assert_int_equal(wrong, 0);
}

/* --- mpi ------------------------------------------------------------------------------------ */

static inline int run_on_mpi(const struct comm_case *cases, int count, const char *only)
{
    struct member m;
    struct comm *job;
    const struct comm_case *first = cases;
    int wrong = 0, ran = 0;
    for (int i = 0; only != NULL && i < count; i++)
        first = strcmp(cases[i].name, only) == 0 ? &cases[i] : first;
    const char *backend = getenv("SIFR_TEST_COMM");
    struct comm_config config = rig_config(first, backend != NULL ? backend : "mpi");
    member_open(&m, 0);
    if (comm_create(&config, m.device, &job) != STATUS_OK) {
        fprintf(stderr, "%s\n", log_first_error(m.env.log));
        return 1;
    }
    for (int i = 0; i < count; i++) {
        if (only == NULL ? cases[i].alone : strcmp(cases[i].name, only) != 0)
            continue;
        m.wrong[0] = '\0';
        m.comm = job;
        if (!cases[i].alone && comm_dup(job, "job", &m.comm) != STATUS_OK)
            EXPECT(&m, !"copied");
        else
            member_run(&m, &cases[i]);
        if (m.comm != job)
            comm_destroy(m.comm);
        if (m.wrong[0] != '\0')
            fprintf(stderr, "%s: rank %d of %d: %s\n", cases[i].name, m.rank, m.size, m.wrong);
        wrong += m.wrong[0] != '\0';
        ran++;
    }
    comm_destroy(job);
    member_close(&m);
    if (wrong == 0)
        printf("mpi: %d cases ok on rank %d of %d\n", ran, m.rank, m.size);
    return wrong != 0 || ran == 0;
}

static inline int rig_main(int argc, char **argv, const struct comm_case *cases, int count)
{
    struct CMUnitTest tests[64] = {{0}};
    struct device_info info;
    device_look(rig_device(), -1, &info);
    if (info.count == 0)
        return fprintf(stderr, "skipped: %s\n", info.why), 77;
    if (argc > 1 && strcmp(argv[1], "mpi") == 0)
        return run_on_mpi(cases, count, argc > 2 ? argv[2] : NULL);
    if (argc > 1 && strcmp(argv[1], "list") == 0) {
        for (int i = 0; i < count; i++)
            puts(cases[i].name);
        return 0;
    }
    for (int i = 0; i < count; i++) {
        tests[2 * i] =
            (struct CMUnitTest){cases[i].name, run_on_self, NULL, NULL, (void *)&cases[i]};
        tests[2 * i + 1] =
            (struct CMUnitTest){cases[i].name, run_on_threads, NULL, NULL, (void *)&cases[i]};
    }
    return _cmocka_run_group_tests("comm", tests, (size_t)(2 * count), NULL, NULL);
}

#endif
