/* Runtime, the most that was seen, and the worst of several ranks. */
#include <math.h>
#include <pthread.h>
#include "scratch.h"
#include "train/footprint.h"

enum { RANKS = 3, MIB = 1 << 20 };

static void test_a_process(void **state)
{
    (void)state;
    struct scratch s;
    struct footprint footprint;
    char *block;
    const size_t bytes = (size_t)128 * MIB;
    if (TESTING_SANITIZED)
        skip();
    scratch_open(&s);
    footprint_start(&footprint, s.env.mem);
    size_t runtime = footprint.runtime_bytes;
    assert_true(runtime > 0);
    assert_int_equal(mem_alloc(&s.env, MEM_PARAMS, "p", bytes, &block), STATUS_OK);
    memset(block, 1, bytes);
    footprint_look(&footprint, s.env.mem);
    assert_true(footprint.runtime_bytes == runtime);
    assert_true(footprint.accounted_bytes >= bytes);
    assert_true(fabs(footprint_excess(&footprint)) < 0.1);
    struct footprint most = footprint;
    mem_free(&s.env, block);
    footprint_look(&footprint, s.env.mem); /* less is held now */
    assert_memory_equal(&footprint, &most, sizeof most);
    scratch_close(&s);
}

static void test_nothing_is_known(void **state)
{
    (void)state;
    struct scratch s;
    struct footprint footprint = {0};
    scratch_open(&s);
    footprint_look(&footprint, s.env.mem);
    assert_true(footprint.resident_bytes == 0);
    assert_true(isnan(footprint_excess(&footprint)));
    scratch_close(&s);
}

struct seat {
    struct comm_hub *hub;
    int rank;
    pthread_t thread;
    struct footprint_worst now, most;
};

/* Rank r has r + 1 MiB of params, 3 - r of gradients, and the largest process is rank 1's. */
static void *rank_main(void *argument)
{
    struct seat *seat = argument;
    struct env env;
    struct device *device;
    struct comm *comm;
    char *params, *grads;
    const struct comm_config config = {"threads", 60.0};
    size_t r = (size_t)seat->rank;
    struct footprint own = {.resident_bytes = r == 1 ? 900 : 100 + r, .runtime_bytes = 10 + r};
    assert_int_equal(env_create(&env, scratch_sink, NULL, LOG_ERROR, 1), STATUS_OK);
    assert_int_equal(device_create(&env, "cpu", 0, &device), STATUS_OK);
    assert_int_equal(comm_join(seat->hub, seat->rank, &config, device, &comm), STATUS_OK);
    assert_int_equal(mem_alloc(&env, MEM_PARAMS, "p", (r + 1) * MIB, &params), STATUS_OK);
    assert_int_equal(mem_alloc(&env, MEM_GRADS, "g", (3 - r) * MIB, &grads), STATUS_OK);
    assert_int_equal(footprint_compare(&own, false, &env, comm, &seat->now), STATUS_OK);
    mem_free(&env, params);
    mem_free(&env, grads);
    assert_int_equal(footprint_compare(&own, true, &env, comm, &seat->most), STATUS_OK);
    comm_destroy(comm);
    device_destroy(device);
    env_destroy(&env);
    return NULL;
}

static void test_the_worst_rank(void **state)
{
    (void)state;
    struct scratch s;
    struct comm_hub *hub;
    struct seat seats[RANKS];
    scratch_open(&s);
    assert_int_equal(comm_hub_create(&s.env, RANKS, &hub), STATUS_OK);
    for (int r = 0; r < RANKS; r++) {
        seats[r] = (struct seat){.hub = hub, .rank = r};
        assert_int_equal(pthread_create(&seats[r].thread, NULL, rank_main, &seats[r]), 0);
    }
    for (int r = 0; r < RANKS; r++)
        pthread_join(seats[r].thread, NULL);
    for (int r = 0; r < RANKS; r++) {
        const struct footprint_worst *now = &seats[r].now, *most = &seats[r].most;
        assert_int_equal(now->bytes[MEM_PARAMS], 3 * MIB);
        assert_int_equal(now->bytes[MEM_GRADS], 3 * MIB);
        assert_int_equal(now->state_bytes, 4 * MIB); /* of any one rank */
        assert_int_equal(now->process.resident_bytes, 900);
        assert_int_equal(now->process.runtime_bytes, 11);
        assert_int_equal(most->bytes[MEM_PARAMS], 3 * MIB);
        assert_true(most->total_bytes >= 4 * MIB && most->total_bytes < 5 * MIB);
    }
    comm_hub_destroy(hub);
    scratch_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_process),
        cmocka_unit_test(test_nothing_is_known),
        cmocka_unit_test(test_the_worst_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
