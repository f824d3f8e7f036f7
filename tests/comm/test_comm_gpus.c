/* Which transport ranks on GPUs get. Ranks with a GPU each use NCCL, whether `nccl` or only
 * `threads` was requested. Ranks that share a GPU get an error that names them, or use host memory.
 * Either way nothing is left allocated and messages arrive. A trace has the GPU's times of NCCL
 * calls, which are known when it has finished them. Needs a device `cuda` with NCCL
 * (SIFR_PLUGIN_FOLDER may select one simulated by threads); exit code 77 = there is none. */
#include "base/plugin.h"
#include "comm/comm_rig.h"
#include "spans.h"

struct thread_rank {
    pthread_t thread;
    struct comm_hub *hub;
    const char *backend;
    int rank, gpu;
    enum status status;
    bool wrong; /* the received data differs from what was sent */
    char name[16], copy_name[16], error[512];
    char said[512];        /* the log line about the transport, with its level; "" = none */
    int host_spans, spans; /* traced calls: timed by the host; all of them */
    size_t left;           /* bytes that were not freed */
};

static void listen(void *user, enum log_level level, const char *line)
{
    struct thread_rank *thread_rank = user;
    if (strstr(line, "messages between GPUs go through host memory") == NULL)
        return;
    snprintf(thread_rank->said, sizeof thread_rank->said, "%s: %s",
             level == LOG_DEBUG ? "debug" : "louder", line);
}

/* Every rank sends its number to every rank, on a side stream, and concurrently on a copy of the
 * communicator. */
static void exchange_numbers(struct thread_rank *thread_rank, struct device *device,
                             struct comm *comm)
{
    enum { COUNT = 1000 };
    int size = comm_size(comm);
    int32_t mine[COUNT], all[8 * COUNT];
    struct stream *streams[2], *plain;
    struct comm *comms[2] = {comm, NULL};
    void *full[2], *shard;
    assert_ok(comm_dup(comm, "copy", &comms[1]));
    snprintf(thread_rank->copy_name, sizeof thread_rank->copy_name, "%s",
             comm_backend_name(comms[1]));
    assert_ok(stream_create(device, "plain", &plain));
    assert_ok(device_alloc(device, MEM_SCRATCH, "shard", sizeof mine, &shard));
    for (int i = 0; i < COUNT; i++)
        mine[i] = 7 * thread_rank->rank + i;
    device_copy(plain, shard, mine, sizeof mine);
    assert_ok(stream_sync(plain));
    for (int k = 0; k < 2; k++) {
        assert_ok(device_alloc(device, MEM_SCRATCH, "full", (size_t)size * sizeof mine, &full[k]));
        assert_ok(comm_stream_create(comms[k], "side", &streams[k]));
    }
    device_spans_open(device);
    trace_open(device_env(device)->trace, true);
    for (int k = 0; k < 2; k++)
        comm_all_gather(comms[k], shard, full[k], COUNT, DTYPE_F32, streams[k]);
    for (int k = 0; k < 2; k++) {
        assert_ok(stream_sync(streams[k]));
        device_copy(plain, all, full[k], (size_t)size * sizeof mine);
        assert_ok(stream_sync(plain));
        for (int i = 0; i < size * COUNT; i++)
            thread_rank->wrong = thread_rank->wrong || all[i] != 7 * (i / COUNT) + i % COUNT;
        stream_destroy(streams[k]);
        device_free(device, full[k]);
    }
    device_free(device, shard);
    stream_destroy(plain);
    comm_destroy(comms[1]);
}

static int count_gathers(struct env *env)
{
    json_t *events = spans_written(env->trace);
    int count = spans_find(events, "host", "all_gather").count;
    json_decref(events);
    return count;
}

static void *run_rank(void *arg)
{
    struct thread_rank *thread_rank = arg;
    struct env env;
    struct comm_config config = {.backend = thread_rank->backend, .timeout = 60};
    struct device *device;
    struct comm *comm = NULL;
    assert_ok(env_create(&env, listen, thread_rank, LOG_DEBUG, 1));
    assert_ok(device_create(&env, "cuda", thread_rank->gpu, &device));
    assert_ok(trace_create(&env, 16, &env.trace));
    assert_ok(device_spans_create(device, 16));
    thread_rank->status = comm_join(thread_rank->hub, thread_rank->rank, &config, device, &comm);
    if (comm != NULL) {
        snprintf(thread_rank->name, sizeof thread_rank->name, "%s", comm_backend_name(comm));
        exchange_numbers(thread_rank, device, comm);
        thread_rank->host_spans = count_gathers(&env);
        device_spans_close(device);
        thread_rank->spans = count_gathers(&env);
    }
    snprintf(thread_rank->error, sizeof thread_rank->error, "%s", log_first_error(env.log));
    comm_destroy(comm);
    device_destroy(device);
    trace_destroy(env.trace);
    thread_rank->left = mem_total(env.mem);
    env_destroy(&env);
    return NULL;
}

static void join_on(const char *backend, const int *gpus, struct thread_rank *ranks, int size)
{
    struct env env = testing_env(1);
    struct comm_hub *hub;
    assert_ok(comm_hub_create(&env, size, &hub));
    for (int r = 0; r < size; r++) {
        ranks[r] = (struct thread_rank){.hub = hub, .backend = backend, .rank = r, .gpu = gpus[r]};
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]), 0);
    }
    for (int r = 0; r < size; r++)
        pthread_join(ranks[r].thread, NULL);
    for (int r = 0; r < size; r++) {
        assert_int_equal(ranks[r].left, 0);
        assert_false(ranks[r].wrong);
        assert_string_equal(ranks[r].name, ranks[r].copy_name);
        if (*ranks[r].name) {
            assert_int_equal(ranks[r].host_spans, strcmp(ranks[r].name, "nccl") == 0 ? 0 : 2);
            assert_int_equal(ranks[r].spans, 2);
        }
    }
    comm_hub_destroy(hub);
    env_destroy(&env);
}

static void test_shared_gpu(void **state)
{
    struct thread_rank ranks[3];
    int count = rig_gpus();
    (void)state;
    join_on("nccl", (const int[]){0, count > 1, 0}, ranks, 3);
    for (int r = 0; r < 3; r++) {
        assert_int_not_equal(ranks[r].status, STATUS_OK);
        assert_non_null(strstr(ranks[r].error, count > 1 ? "ranks 0 and 2 share the GPU"
                                                         : "ranks 0 and 1 share the GPU"));
        assert_non_null(strstr(ranks[r].error, "use comm.backend=threads"));
    }
}

/* NCCL was not requested: messages go through host memory, and only the debug log says so. */
static void test_shared_gpu_through_host(void **state)
{
    struct thread_rank ranks[3];
    int count = rig_gpus();
    join_on(*state, (const int[]){0, count > 1, 0}, ranks, 3);
    for (int r = 0; r < 3; r++) {
        assert_ok(ranks[r].status);
        assert_string_equal(ranks[r].name, "threads");
        assert_non_null(strstr(ranks[r].said,
                               "debug: messages between GPUs go through host memory: ranks 0 and"));
        assert_non_null(strstr(ranks[r].said, "share the GPU"));
    }
}

static void test_one_gpu_each(void **state)
{
    struct thread_rank ranks[4];
    bool insists = strcmp(*state, "nccl") == 0;
    int size = rig_gpus() > 4 ? 4 : rig_gpus();
    join_on(*state, (const int[]){3 % size, 2 % size, 1 % size, 0}, ranks, size);
    for (int r = 0; r < size; r++) {
        assert_ok(ranks[r].status);
        assert_string_equal(ranks[r].name, size > 1 || insists ? "nccl" : "threads");
        assert_string_equal(ranks[r].said, ""); /* a single rank has no messages */
    }
}

/* Job after job in one process, each with its own ids and threads. */
static void test_many_jobs(void **state)
{
    struct thread_rank ranks[2];
    (void)state;
    for (int i = 0; i < 5 && rig_gpus() > 1; i++) {
        join_on("threads", (const int[]){i % 2, 1 - i % 2}, ranks, 2);
        assert_string_equal(ranks[1].name, "nccl");
        join_on("threads", (const int[]){1, 1}, ranks, 2);
        assert_string_equal(ranks[1].name, "threads");
    }
}

/* The first call of a job: the messages that ranks exchanged when they joined do not count as
 * arrival. */
static void *run_late_rank(void *arg)
{
    struct thread_rank *thread_rank = arg;
    struct env env = testing_env(1);
    struct comm_config config = {.backend = "threads", .timeout = 1};
    struct device *device;
    struct stream *stream;
    struct comm *comm;
    float *x;
    assert_ok(device_create(&env, "cuda", thread_rank->gpu, &device));
    assert_ok(comm_join(thread_rank->hub, thread_rank->rank, &config, device, &comm));
    assert_ok(comm_stream_create(comm, "side", &stream));
    assert_ok(device_alloc(device, MEM_SCRATCH, "x", 2 * sizeof *x, &x));
    double start = clock_seconds();
    for (int i = 0; thread_rank->rank == 1 && comm_status(comm) == STATUS_OK && i < 1000; i++)
        nap(0.01);
    comm_all_gather(comm, x + thread_rank->rank, x, 1, DTYPE_F32, stream);
    thread_rank->status = stream_sync(stream);
    thread_rank->wrong =
        clock_seconds() - start > 8; /* ten timeouts would pass if rank 1 seemed to be on its way */
    snprintf(thread_rank->error, sizeof thread_rank->error, "%s", log_first_error(env.log));
    stream_destroy(stream);
    comm_destroy(comm);
    device_free(device, x);
    device_destroy(device);
    env_destroy(&env);
    return NULL;
}

static void test_late_in_first_call(void **state)
{
    struct env env = testing_env(1);
    struct comm_hub *hub;
    struct thread_rank ranks[2];
    (void)state;
    if (rig_gpus() < 2)
        skip();
    assert_ok(comm_hub_create(&env, 2, &hub));
    for (int r = 0; r < 2; r++) {
        ranks[r] = (struct thread_rank){.hub = hub, .rank = r, .gpu = r};
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, run_late_rank, &ranks[r]), 0);
    }
    for (int r = 0; r < 2; r++)
        pthread_join(ranks[r].thread, NULL);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(ranks[r].status, STATUS_COMM);
        assert_false(ranks[r].wrong);
        assert_non_null(strstr(ranks[r].error, "rank 1 has not arrived at all_gather 1 (\"job\")"));
    }
    comm_hub_destroy(hub);
    env_destroy(&env);
}

/* Every allocation of the constructors fails in turn. */
static void test_failing_allocations(void **state)
{
    struct env env = testing_env(1);
    struct comm_config config = {.backend = "nccl", .timeout = 60};
    (void)state;
    for (int64_t n = 1;; n++) {
        struct device *device;
        struct comm *comm = NULL, *copy = NULL;
        assert_ok(device_create(&env, "cuda", 0, &device));
        mem_fail_at(env.mem, n);
        enum status st = comm_create(&config, device, &comm);
        if (st == STATUS_OK)
            st = comm_dup(comm, "copy", &copy);
        mem_fail_at(env.mem, 0);
        comm_destroy(copy);
        comm_destroy(comm);
        device_destroy(device);
        assert_int_equal(mem_total(env.mem), 0);
        if (st == STATUS_OK) {
            assert_true(n > 12);
            break;
        }
    }
    env_destroy(&env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shared_gpu),
        {"test_shared_gpu_through_host threads", test_shared_gpu_through_host, NULL, NULL,
         "threads"},
        {"test_shared_gpu_through_host auto", test_shared_gpu_through_host, NULL, NULL, "auto"},
        {"test_one_gpu_each nccl", test_one_gpu_each, NULL, NULL, "nccl"},
        {"test_one_gpu_each threads", test_one_gpu_each, NULL, NULL, "threads"},
        {"test_one_gpu_each auto", test_one_gpu_each, NULL, NULL, "auto"},
        cmocka_unit_test(test_many_jobs),
        cmocka_unit_test(test_late_in_first_call),
        cmocka_unit_test(test_failing_allocations),
    };
    struct device_info info;
    const void *entry;
    device_look("cuda", -1, &info);
    if (info.count == 0 ||
        !plugin_look("cuda", "sifr_comm_nccl", &entry, info.why, sizeof info.why))
        return fprintf(stderr, "skipped: %s\n", info.why), 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
