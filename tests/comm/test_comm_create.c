/* Which back end a communicator gets; a failed creation leaves nothing behind; on a dry device
 * calls are counted and nothing moves. */
#include "comm/comm.h"
#include "testing.h"

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
    assert_non_null(strstr(log_first_error(env.log), "auto, self, threads, mpi or nccl"));
    log_error_clear(env.log);
    assert_int_equal(create_on(&env, "nccl", "cpu"), STATUS_CONFIG);
    assert_non_null(
        strstr(log_first_error(env.log), "comm.backend=nccl needs GPUs, but the device is 'cpu'"));
    assert_int_equal(mem_total(env.mem), 0);
    env_destroy(&env);
}

/* Creates a communicator and a copy on threads: the hub's allocations can fail, too. */
static enum status join_threads(struct env *env)
{
    enum status st;
    struct comm_config config = {.backend = "threads", .timeout = 1};
    struct device *device;
    struct comm_hub *hub;
    struct comm *comm, *copy;
    TRY(device_create(env, "cpu", 0, &device));
    TRY_OR(undo_device, comm_hub_create(env, 1, &hub));
    TRY_OR(undo_hub, comm_join(hub, 0, &config, device, &comm));
    TRY_OR(undo_comm, comm_dup(comm, "copy", &copy));
    comm_destroy(copy);
undo_comm:
    comm_destroy(comm);
undo_hub:
    comm_hub_destroy(hub);
undo_device:
    device_destroy(device);
    return st;
}

static enum status build(struct env *env, const char *what)
{
    return strcmp(what, "threads") == 0 ? join_threads(env) : create_on(env, "self", what);
}

static void test_failing_allocations(void **state)
{
    struct env env = testing_env(1);
    for (int64_t n = 1;; n++) {
        mem_fail_at(env.mem, n);
        enum status st = build(&env, *state);
        assert_int_equal(mem_total(env.mem), 0);
        if (st == STATUS_OK) {
            assert_true(n > 8);
            break;
        }
        assert_int_equal(st, STATUS_MEMORY);
    }
    env_destroy(&env);
}

/* A dry device counts calls and moves nothing. */
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
        cmocka_unit_test(test_backends),
        {"test_failing_allocations cpu", test_failing_allocations, NULL, NULL, "cpu"},
        {"test_failing_allocations dry", test_failing_allocations, NULL, NULL, "dry"},
        {"test_failing_allocations threads", test_failing_allocations, NULL, NULL, "threads"},
        cmocka_unit_test(test_dry),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
