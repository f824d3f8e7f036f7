/* Memory of the runtime, peak memory, and the worst of several ranks. With the argument "gpus": on
 * several GPUs, which fake_gpu simulates. */
#include <math.h>
#include "scratch.h"
#include "threads.h"
#include "train/run/footprint.h"

enum { RANKS = 3, MIB = 1 << 20 };

static void test_process_memory_is_accounted(void **state)
{
    (void)state;
    struct scratch s;
    struct footprints own;
    const struct footprint *process = &own.process;
    struct device *device;
    char *block;
    const size_t bytes = (size_t)128 * MIB;
    if (TESTING_SANITIZED)
        testing_skip("resident memory: a sanitizer is in use");
    scratch_open(&s);
    assert_int_equal(device_create(&s.env, "cpu", 0, &device), STATUS_OK);
    footprints_start(&own, s.env.mem, device);
    size_t runtime = process->runtime_bytes;
    assert_true(runtime > 0);
    assert_int_equal(mem_alloc(&s.env, MEM_PARAMS, "p", bytes, &block), STATUS_OK);
    memset(block, 1, bytes);
    footprints_look(&own, s.env.mem, device);
    assert_true(process->runtime_bytes == runtime);
    assert_true(process->accounted_bytes >= bytes);
    assert_true(fabs(footprint_excess(process)) < 0.1);
    assert_true(own.gpu.held_bytes == 0 && isnan(footprint_excess(&own.gpu)));
    struct footprints most = own;
    mem_free(&s.env, block);
    footprints_look(&own, s.env.mem, device); /* less is held now */
    assert_memory_equal(&own, &most, sizeof most);
    device_destroy(device);
    scratch_close(&s);
}

static void test_unknown_memory_is_zero(void **state)
{
    (void)state;
    struct scratch s;
    struct footprints own = {0};
    struct device *device;
    scratch_open(&s);
    assert_int_equal(device_create(&s.env, "cpu", 0, &device), STATUS_OK);
    footprints_look(&own, s.env.mem, device);
    assert_true(own.process.held_bytes == 0 && own.gpu.held_bytes == 0);
    assert_true(isnan(footprint_excess(&own.process)));
    device_destroy(device);
    scratch_close(&s);
}

struct seat {
    struct comm_hub *hub;
    int rank;
    struct footprint_worst now, most;
};

/* Rank r has 2r + 1 MiB of params and 3 - r MiB of gradients; rank 1 has the largest process. */
static void *rank_main(void *argument)
{
    struct seat *seat = argument;
    struct env env;
    struct device *device;
    struct comm *comm;
    char *params, *grads;
    const struct comm_config config = {.backend = "threads", .timeout = 60};
    size_t r = (size_t)seat->rank;
    struct footprints own = {
        .process = {.held_bytes = r == 1 ? 900 : 100 + r, .runtime_bytes = 10 + r}};
    assert_int_equal(env_create(&env, scratch_sink, NULL, LOG_ERROR, 1), STATUS_OK);
    assert_int_equal(device_create(&env, "cpu", 0, &device), STATUS_OK);
    assert_int_equal(comm_join(seat->hub, seat->rank, &config, device, &comm), STATUS_OK);
    assert_int_equal(mem_alloc(&env, MEM_PARAMS, "p", (2 * r + 1) * MIB, &params), STATUS_OK);
    assert_int_equal(mem_alloc(&env, MEM_GRADS, "g", (3 - r) * MIB, &grads), STATUS_OK);
    assert_int_equal(footprint_compare(&own, false, device, comm, &seat->now), STATUS_OK);
    mem_free(&env, params);
    mem_free(&env, grads);
    assert_int_equal(footprint_compare(&own, true, device, comm, &seat->most), STATUS_OK);
    comm_destroy(comm);
    device_destroy(device);
    env_destroy(&env);
    return NULL;
}

static void run_seats(struct scratch *s, struct seat *seats, void *(*body)(void *),
                      struct comm_hub **hub)
{
    assert_int_equal(comm_hub_create(&s->env, RANKS, hub), STATUS_OK);
    for (int r = 0; r < RANKS; r++)
        seats[r] = (struct seat){.hub = *hub, .rank = r};
    threads_run(body, seats, RANKS, sizeof *seats);
}

static void test_every_rank_sees_the_worst_rank(void **state)
{
    (void)state;
    struct scratch s;
    struct comm_hub *hub;
    struct seat seats[RANKS];
    scratch_open(&s);
    run_seats(&s, seats, rank_main, &hub);
    for (int r = 0; r < RANKS; r++) {
        const struct footprint_worst *now = &seats[r].now, *most = &seats[r].most;
        size_t sum = 0;
        for (int c = 0; c < MEM_CATEGORY_COUNT; c++)
            sum += now->bytes[c];
        assert_int_equal(now->rank, 2);
        assert_int_equal(now->total_bytes, sum); /* of one rank, not the maximum of each category */
        assert_int_equal(now->bytes[MEM_PARAMS], 5 * MIB);
        assert_int_equal(now->bytes[MEM_GRADS], 1 * MIB);
        assert_int_equal(now->state_bytes, 6 * MIB);
        assert_int_equal(now->process.held_bytes, 900);
        assert_int_equal(now->process.runtime_bytes, 11);
        assert_int_equal(most->bytes[MEM_PARAMS], 5 * MIB);
        assert_true(most->total_bytes >= 6 * MIB && most->total_bytes < 7 * MIB);
    }
    comm_hub_destroy(hub);
    scratch_close(&s);
}

/* Two of three ranks share a GPU: it holds the memory of both, and the rank that opened it first
 * sees all of it. */
static void *gpu_main(void *argument)
{
    struct seat *seat = argument;
    struct env env;
    struct device *device;
    struct comm *comm;
    const struct comm_config config = {.backend = "threads", .timeout = 60};
    static const size_t in_use[RANKS] = {1000, 700, 400}, accounted[RANKS] = {300, 500, 350};
    int r = seat->rank;
    struct footprints own = {.gpu = {100, in_use[r], accounted[r]}};
    assert_int_equal(env_create(&env, scratch_sink, NULL, LOG_ERROR, 1), STATUS_OK);
    assert_int_equal(device_create(&env, "cuda", r % 2, &device), STATUS_OK);
    assert_int_equal(comm_join(seat->hub, r, &config, device, &comm), STATUS_OK);
    assert_int_equal(footprint_compare(&own, false, device, comm, &seat->now), STATUS_OK);
    comm_destroy(comm);
    device_destroy(device);
    env_destroy(&env);
    return NULL;
}

static void test_a_shared_gpu_counts_all_its_ranks(void **state)
{
    (void)state;
    struct scratch s;
    struct comm_hub *hub;
    struct seat seats[RANKS];
    scratch_open(&s);
    run_seats(&s, seats, gpu_main, &hub);
    for (int r = 0; r < RANKS; r++) {
        const struct footprint *gpu = &seats[r].now.gpu;
        assert_int_equal(gpu->held_bytes, 1000);
        assert_int_equal(gpu->accounted_bytes, 650);
        assert_int_equal(gpu->runtime_bytes, 200);
        assert_true(seats[r].now.host_bytes > 0 && seats[r].now.process.held_bytes == 0);
    }
    comm_hub_destroy(hub);
    scratch_close(&s);
}

/* The peak includes memory that has been freed since. */
static void test_gpu_memory_keeps_its_peak(void **state)
{
    (void)state;
    struct scratch s;
    struct footprints own;
    struct device *device;
    char *block;
    scratch_open(&s);
    assert_int_equal(device_create(&s.env, "cuda", 2, &device), STATUS_OK);
    footprints_start(&own, s.env.mem, device);
    size_t before = own.gpu.held_bytes;
    assert_true(before > 0 && own.gpu.accounted_bytes == 0);
    assert_int_equal(device_alloc(device, MEM_PARAMS, "p", 100 * MIB, &block), STATUS_OK);
    footprints_look(&own, s.env.mem, NULL);
    assert_true(own.gpu.held_bytes == before);
    footprints_look(&own, s.env.mem, device);
    assert_true(own.gpu.held_bytes == before + 100 * MIB);
    assert_int_equal(own.gpu.accounted_bytes, 100 * MIB);
    device_free(device, block);
    footprints_look(&own, s.env.mem, device);
    assert_true(own.gpu.held_bytes == before + 100 * MIB);
    device_destroy(device);
    scratch_close(&s);
}

int main(int count, char **words)
{
    const struct CMUnitTest gpu_tests[] = {
        cmocka_unit_test(test_gpu_memory_keeps_its_peak),
        cmocka_unit_test(test_a_shared_gpu_counts_all_its_ranks),
    };
    if (count > 1 && strcmp(words[1], "gpus") == 0)
        return cmocka_run_group_tests(gpu_tests, NULL, NULL);

    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_process_memory_is_accounted),
        cmocka_unit_test(test_unknown_memory_is_zero),
        cmocka_unit_test(test_every_rank_sees_the_worst_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
