/* Who gets which way between cards: ranks with a card each get NCCL; a job whose ranks share one is
 * told so, by name, and leaves nothing behind. Needs a device `cuda` (SIFR_PLUGIN_FOLDER may name one
 * made of threads) with NCCL; 77 = there is none. */
#include "base/plugin.h"
#include "comm/comm_rig.h"

struct seat {
    pthread_t thread;
    struct comm_hub *hub;
    int rank, card;
    enum status status;
    char name[16], error[512];
    size_t left; /* bytes that were not given back */
};

static void *sit(void *arg)
{
    struct seat *seat = arg;
    struct env env = testing_env(1);
    struct comm_config config = {.backend = "nccl", .timeout = 60};
    struct device *device;
    struct comm *comm = NULL;
    assert_ok(device_create(&env, "cuda", seat->card, &device));
    seat->status = comm_join(seat->hub, seat->rank, &config, device, &comm);
    if (comm != NULL)
        snprintf(seat->name, sizeof seat->name, "%s", comm_backend_name(comm));
    snprintf(seat->error, sizeof seat->error, "%s", log_first_error(env.log));
    comm_destroy(comm);
    device_destroy(device);
    seat->left = mem_total(env.mem);
    env_destroy(&env);
    return NULL;
}

static void join_on(const int *cards, struct seat *seats, int size)
{
    struct env env = testing_env(1);
    struct comm_hub *hub;
    assert_ok(comm_hub_create(&env, size, &hub));
    for (int r = 0; r < size; r++) {
        seats[r] = (struct seat){.hub = hub, .rank = r, .card = cards[r]};
        assert_int_equal(pthread_create(&seats[r].thread, NULL, sit, &seats[r]), 0);
    }
    for (int r = 0; r < size; r++)
        pthread_join(seats[r].thread, NULL);
    for (int r = 0; r < size; r++)
        assert_int_equal(seats[r].left, 0);
    comm_hub_destroy(hub);
    env_destroy(&env);
}

static void test_shared_card(void **state)
{
    struct seat seats[3];
    int count = rig_cards();
    (void)state;
    join_on((const int[]){0, count > 1, 0}, seats, 3);
    for (int r = 0; r < 3; r++) {
        assert_int_not_equal(seats[r].status, STATUS_OK);
        assert_non_null(strstr(seats[r].error, count > 1 ? "ranks 0 and 2 share the card"
                                                         : "ranks 0 and 1 share the card"));
        assert_non_null(strstr(seats[r].error, "use comm.backend mpi"));
    }
}

static void test_cards_of_their_own(void **state)
{
    struct seat seats[2];
    (void)state;
    join_on((const int[]){0, 1}, seats, rig_cards() > 1 ? 2 : 1);
    assert_ok(seats[0].status);
    assert_string_equal(seats[0].name, "nccl");
}

/* Every constructor on the way fails in turn. */
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
        cmocka_unit_test(test_shared_card),
        cmocka_unit_test(test_cards_of_their_own),
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
