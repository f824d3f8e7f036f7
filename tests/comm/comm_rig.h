/* comm_rig -- one suite for every back end: a case is a function that each rank runs.
 *
 * Without arguments the binary runs every case on `self`, and on `threads` with 1 to 8 ranks. Under
 * mpirun it is one rank of the back end `mpi`: `test_comm mpi [CASE]`. `test_comm list` names the
 * cases. SIFR_TEST_DEVICE names another device than the cpu: buffers are then its memory, which
 * cases reach by `put` and `get`; 77 = there is none here. SIFR_TEST_COMM=nccl makes these go from
 * GPU to GPU, as far as there is one for each rank; under mpirun it is any comm.backend.
 * SIFR_TEST_FAST=1 is fast mode, where sums may be the library's. Ranks may be threads, so a case
 * does not assert: it EXPECTs, and the first thing that is wrong is kept and reported by the rank
 * that saw it.
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

/* One rank, while it runs a case. */
struct member {
    struct env env;
    struct device *device;
    struct stream *direct, *worker, *other; /* an inline stream and two workers */
    struct comm *comm;
    int rank, size;
    char wrong[1024]; /* the first thing that is; "" = nothing */
};

typedef void case_fn(struct member *m);

struct comm_case {
    const char *name;
    case_fn *run;
    double timeout; /* of its job; 0 = a minute */
    bool alone;     /* ends its job: has one to itself */
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

/* Streams as comm_stream_create makes them. */
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

/* --- buffers of the device ------------------------------------------------------------------ */

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

/* From and to memory of the host, at once. */
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

struct recruit {
    pthread_t thread;
    struct comm_hub *hub;
    const struct comm_case *c;
    int rank, gpu;
    struct member member;
};

static inline void *recruit_main(void *arg)
{
    struct recruit *recruit = arg;
    struct comm_config config = rig_config(recruit->c, rig_nccl() ? "nccl" : "threads");
    struct member *m = &recruit->member;
    member_open(m, recruit->gpu);
    if (comm_join(recruit->hub, recruit->rank, &config, m->device, &m->comm) == STATUS_OK)
        member_run(m, recruit->c);
    else
        EXPECT(m, !"joined");
    comm_destroy(m->comm);
    member_close(m);
    return NULL;
}

/* The ranks of one job, as threads of this process. */
struct team {
    struct recruit recruits[MOST_RANKS];
    struct env env;
    struct comm_hub *hub;
    int size;
};

static inline void team_start(struct team *team, const struct comm_case *c, int size, int first_gpu)
{
    *team = (struct team){.env = testing_env(1), .size = size};
    assert_ok(comm_hub_create(&team->env, size, &team->hub));
    for (int r = 0; r < size; r++) {
        struct recruit *recruit = &team->recruits[r];
        *recruit = (struct recruit){.hub = team->hub, .c = c, .rank = r, .gpu = first_gpu + r};
        assert_int_equal(pthread_create(&recruit->thread, NULL, recruit_main, recruit), 0);
    }
}

/* How many of its ranks saw something wrong. */
static inline int team_end(struct team *team)
{
    int wrong = 0;
    for (int r = 0; r < team->size; r++)
        pthread_join(team->recruits[r].thread, NULL);
    for (int r = 0; r < team->size; r++) {
        if (team->recruits[r].member.wrong[0] == '\0')
            continue;
        print_error("rank %d of %d: %s\n", r, team->size, team->recruits[r].member.wrong);
        wrong++;
    }
    comm_hub_destroy(team->hub);
    env_destroy(&team->env);
    return wrong;
}

/* What ends a job waits for seconds: with fewer sizes, and all of them at once; then on other GPUs,
 * since kernels that wait for each other would hold up those of another job. */
static inline void run_on_threads(void **state)
{
    const struct comm_case *c = *state;
    struct team teams[MOST_RANKS];
    int most = rig_nccl() && rig_gpus() < MOST_RANKS ? rig_gpus() : MOST_RANKS;
    int count = 0, wrong = 0, gpu = 0;
    for (int size = 1; size <= most; size += c->alone && size > 2 ? size - 1 : 1) {
        bool at_once = c->alone && (!rig_nccl() || gpu + size <= rig_gpus());
        team_start(&teams[count++], c, size, at_once ? gpu : 0);
        gpu += at_once ? size : 0;
        wrong += at_once ? 0 : team_end(&teams[--count]);
    }
    while (count > 0)
        wrong += team_end(&teams[--count]);
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
