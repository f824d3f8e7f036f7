/* One rank of a job without the others: calls are counted as on any back end, and exchanges return
 * this rank's bytes. */
#include "testing.h"
#include "comm/comm.h"

enum { SIZE = 5, RANK = 3, COUNT = 100 };

struct fixture {
    struct env env;
    struct device *device;
    struct stream *stream;
    struct comm *comm;
};

static void open_fixture(struct fixture *f)
{
    f->env = testing_env(1);
    assert_ok(device_create(&f->env, "dry", 0, &f->device));
    assert_ok(stream_create_worker(f->device, "moves", &f->stream));
    assert_ok(comm_create_dry(f->device, RANK, SIZE, false, &f->comm));
}

static void close_fixture(struct fixture *f)
{
    comm_destroy(f->comm);
    stream_destroy(f->stream);
    device_destroy(f->device);
    env_destroy(&f->env);
}

static void test_host_calls(void **state)
{
    (void)state;
    struct fixture f;
    int mine = 42, all[SIZE] = {0};
    open_fixture(&f);
    assert_int_equal(comm_rank(f.comm), RANK);
    assert_int_equal(comm_size(f.comm), SIZE);
    assert_string_equal(comm_backend_name(f.comm), "dry");
    assert_ok(comm_exchange(f.comm, &mine, sizeof mine, all));
    for (int r = 0; r < SIZE; r++)
        assert_int_equal(all[r], 42);
    assert_int_equal(comm_counted(f.comm, COMM_CONTROL).bytes, (SIZE - 1) * sizeof mine);
    assert_ok(comm_barrier(f.comm));
    assert_int_equal(comm_counted(f.comm, COMM_CONTROL).calls, 2);
    close_fixture(&f);
}

static void test_collectives_are_counted(void **state)
{
    (void)state;
    struct fixture f;
    float *data, *more;
    int64_t counts[SIZE] = {1, 2, 3, 4, 5}, offsets[SIZE] = {0};
    open_fixture(&f);
    assert_ok(device_alloc(f.device, MEM_OTHER, "data", SIZE * COUNT * sizeof *data, &data));
    assert_ok(device_alloc(f.device, MEM_OTHER, "more", SIZE * COUNT * sizeof *more, &more));
    comm_all_gather(f.comm, data, more, COUNT, DTYPE_F32, f.stream);
    comm_reduce_scatter(f.comm, data, data, COUNT, DTYPE_F32, more, f.stream);
    comm_all_to_all_v(f.comm, data, more, &(struct comm_parts){counts, offsets, counts, offsets},
                      DTYPE_F32, f.stream);
    assert_ok(stream_sync(f.stream));
    assert_ok(comm_status(f.comm));
    assert_int_equal(comm_counted(f.comm, COMM_ALL_GATHER).bytes, 4 * COUNT * sizeof *data);
    assert_int_equal(comm_counted(f.comm, COMM_REDUCE_SCATTER).bytes, 4 * COUNT * sizeof *data);
    assert_int_equal(comm_counted(f.comm, COMM_ALL_TO_ALL).bytes, (15 - 4) * sizeof *data);
    device_free(f.device, data);
    device_free(f.device, more);
    close_fixture(&f);
}

static void test_groups(void **state)
{
    (void)state;
    struct fixture f;
    struct comm *copy, *none;
    open_fixture(&f);
    assert_ok(comm_dup(f.comm, "copy", &copy));
    assert_int_equal(comm_size(copy), SIZE);
    assert_int_equal(comm_rank(copy), RANK);
    assert_ok(comm_split(f.comm, -1, "none", &none));
    assert_null(none);
    comm_destroy(copy);
    close_fixture(&f);
}

/* On a GPU messages go through bounce buffers, which a plan counts without allocating them. */
static void test_bounce_buffers_are_counted(void **state)
{
    (void)state;
    struct fixture f;
    struct comm *bounced, *copy;
    open_fixture(&f);
    size_t before = mem_bytes(f.env.mem, MEM_COMM);
    assert_ok(comm_create_dry(f.device, RANK, SIZE, true, &bounced));
    size_t bounce = mem_bytes(f.env.mem, MEM_COMM) - 2 * before;
    assert_int_equal(bounce, 16 << 20); /* two halves, for both directions */
    assert_ok(comm_dup(bounced, "copy", &copy));
    assert_int_equal(mem_bytes(f.env.mem, MEM_COMM), 3 * before + 2 * bounce);
    comm_destroy(copy);
    comm_destroy(bounced);
    assert_ok(comm_create_dry(f.device, 0, 1, true, &bounced)); /* no other rank to send to */
    assert_int_equal(mem_bytes(f.env.mem, MEM_COMM), 2 * before);
    comm_destroy(bounced);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host_calls),
        cmocka_unit_test(test_collectives_are_counted),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_bounce_buffers_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
