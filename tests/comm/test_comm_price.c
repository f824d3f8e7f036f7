/* The predicted time of calls between ranks: inside and between nodes, number of messages, sums.
 * Dry calls spend that time. */
#include <math.h>
#include "testing.h"
#include "comm/comm_price.h"

#define assert_near(a, b) assert_true(fabs((a) - (b)) < 1e-6)

static const struct comm_prices prices = {.inside = {0.1, 0.01, 1000},
                                          .between = {0.5, 0.02, 100},
                                          .node = 4,
                                          .exchange = 0.25,
                                          .sum_bytes_per_second = 300};
enum { SIZE = 8 };
static const int all[SIZE] = {0, 1, 2, 3, 4, 5, 6, 7};

static double price(enum comm_kind kind, int size, int rank, int peer, double bytes)
{
    return comm_price(&prices, kind, size, rank, peer, all, bytes);
}

static void test_inside_and_between_nodes(void **state)
{
    (void)state;
    assert_near(price(COMM_ALL_GATHER, 4, 1, 0, 300), 0.1 + 3 * 0.01 + 0.3);
    /* 100 bytes to each of 3 ranks of this node and 4 of another: the latter take longer. */
    assert_near(price(COMM_ALL_TO_ALL, 8, 1, 0, 700), 0.5 + 4 * 0.02 + 4.0);
    assert_near(price(COMM_ALL_TO_ALL, 1, 0, 0, 0), 0.0);
    const int spread[3] = {0, 4, 8};
    assert_near(comm_price(&prices, COMM_ALL_GATHER, 3, 2, 0, spread, 200), 0.5 + 0.04 + 2.0);
}

static void test_kinds(void **state)
{
    (void)state;
    assert_near(price(COMM_REDUCE_SCATTER, 4, 0, 0, 300), 0.1 + 0.03 + 0.3 + 400 / 300.0);
    assert_near(price(COMM_ALL_REDUCE, 4, 0, 0, 600), 2 * (0.1 + 0.03 + 0.3) + 400 / 300.0);
    assert_near(price(COMM_SEND, 8, 3, 2, 100), 0.1 + 0.01 + 0.1);
    assert_near(price(COMM_RECV, 8, 3, 4, 100), 0.5 + 0.02 + 1.0);
    assert_near(price(COMM_BROADCAST, 4, 3, 0, 100), 2 * (0.1 + 0.01 + 0.1));
    assert_near(price(COMM_CONTROL, 8, 3, 0, 100), 0.75);
    assert_near(price(COMM_CONTROL, 5, 3, 0, 100), 0.75);
}

static void test_dry_calls_spend_time(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct device *device;
    struct stream *stream;
    struct comm *comm;
    char *data, *more;
    int mine = 1, others[4];
    assert_ok(device_create(&env, "dry", 0, &device));
    device_keep_time(device, &(struct device_pace){0});
    assert_ok(stream_create_worker(device, "moves", &stream));
    assert_ok(comm_create_dry(device, 1, 4, false, &comm));
    assert_ok(device_alloc(device, MEM_OTHER, "data", 400, &data));
    assert_ok(device_alloc(device, MEM_OTHER, "more", 400, &more));
    comm_all_gather(comm, data, more, 100, DTYPE_U8, stream);
    assert_near(stream_clock(stream), 0.0);
    assert_near(comm_counted(comm, COMM_ALL_GATHER).seconds, 0.0);
    comm_set_prices(comm, &prices);
    comm_all_gather(comm, data, more, 100, DTYPE_U8, stream);
    assert_near(stream_clock(stream), 0.43);
    assert_near(comm_counted(comm, COMM_ALL_GATHER).seconds, 0.43);
    assert_near(device_clock(device), 0.0);
    /* A rank that only receives takes as long as its bytes. */
    int64_t none[4] = {0}, some[4] = {100, 100, 100, 100};
    comm_all_to_all_v(comm, data, more, &(struct comm_parts){none, none, some, none}, DTYPE_U8,
                      stream);
    assert_near(stream_clock(stream), 0.86);
    /* The host's exchange starts when the calls of the communicator are done. */
    assert_ok(comm_exchange(comm, &mine, sizeof mine, others));
    assert_near(device_clock(device), 0.86 + 0.5);
    assert_near(comm_counted(comm, COMM_CONTROL).seconds, 0.5);
    device_free(device, data);
    device_free(device, more);
    comm_destroy(comm);
    stream_destroy(stream);
    device_destroy(device);
    env_destroy(&env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_inside_and_between_nodes),
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_dry_calls_spend_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
