/* Activations in host memory (kept.c): the bits of a run, its memory on the device and on the host,
 * and what it moves. SIFR_CPU_OFFLOAD=1 makes the CPU device move them as a GPU does.
 *
 * The models have seven blocks, which keep something, and three slots: four blocks leave. */
#include "engine/ranks.h"

enum { LAYERS = 7, LEAVE = 4 };

static struct rig_config deep_config(enum model_arch arch)
{
    struct rig_config config = base_config(arch == MODEL_LLAMA);
    if (arch == MODEL_SARS)
        config.model = rig_sars();
    config.model.layers = LAYERS;
    return config;
}

/* --- bits ------------------------------------------------------------------------------------- */

/* Five micro-batches: with two or three ranks one is idle in the last round. After the steps, the
 * same engine evaluates. */
static void test_equal_bits(void **state)
{
    (void)state;
    static const enum model_arch archs[] = {MODEL_GPT2, MODEL_LLAMA, MODEL_SARS};
    for (int a = 0; a < 3; a++)
        for (int recompute = 0; recompute < RECOMPUTE_COUNT; recompute++) {
            struct rig_config one = deep_config(archs[a]);
            one.type = (a + recompute) % 2 ? DTYPE_BF16 : DTYPE_F32;
            struct trace plain = run(one, 1);
            one.activations = FAR_HOST;
            one.recompute = recompute;
            for (int ranks = 1; ranks <= 3; ranks++)
                for (int stage = ranks == 1 ? 3 : 0; stage <= 3; stage++) {
                    struct rig_config config = one;
                    config.stage = stage;
                    config.prefetch = (stage + ranks) % 2;
                    compare(&plain, config, ranks);
                }
            free(plain.params);
        }
}

static void test_servers_and_groups(void **state)
{
    (void)state;
    struct rig_config one = deep_config(MODEL_LLAMA);
    one.model.tied = 1;
    struct trace plain = run(one, 1);
    one.activations = FAR_HOST;
    for (int stage = 1; stage <= 3; stage++) {
        struct rig_config config = one;
        config.stage = stage;
        config.servers = 1;
        compare(&plain, config, 3);
        config.servers = 0, config.group = 2;
        compare(&plain, config, 4);
    }
    free(plain.params);
}

static void test_tensor_parallelism(void **state)
{
    (void)state;
    for (int sequence = 0; sequence < 2; sequence++) {
        struct rig_config pair = shared_config(sequence);
        pair.batch = 2; /* rows that two ranks divide */
        pair.model.layers = LAYERS;
        pair.tp = 2, pair.sequence = sequence;
        struct trace plain = run(pair, 2);
        pair.activations = FAR_HOST;
        for (int recompute = 0; recompute < RECOMPUTE_COUNT; recompute++) {
            pair.recompute = recompute;
            compare(&plain, pair, 2);
        }
        free(plain.params);
    }
}

/* With state, sums and activations in host memory. */
static void test_everything_leaves(void **state)
{
    (void)state;
    struct rig_config one = deep_config(MODEL_GPT2);
    one.type = DTYPE_BF16;
    struct trace plain = run(one, 1);
    one.offload = (struct zero_offload){.optimizer = FAR_HOST, .grads = FAR_HOST, .share = 1};
    one.activations = FAR_HOST;
    one.stage = 2;
    for (int ranks = 1; ranks <= 2; ranks++)
        compare(&plain, one, ranks);
    free(plain.params);
}

/* --- memory and traffic ----------------------------------------------------------------------- */

struct account {
    struct mem_sums device, host;
    struct traffic traffic; /* of one step */
};

/* A step of one rank on a device that counts. */
static struct account count(struct rig_config config, const char *device,
                            enum mem_location location)
{
    struct env env = testing_env(1);
    struct rig rig;
    struct engine_result result;
    config.ops = "cpu", config.device = device;
    assert_ok(rig_create(&env, config, &rig));
    assert_ok(engine_step(rig.engine, 1, 1e-2, &result));
    struct account account = {.device = mem_sums(env.mem, location, false),
                              .host = mem_sums(env.mem, MEM_HOST, false),
                              .traffic = engine_traffic(rig.engine)};
    rig_destroy(&rig);
    assert_int_equal(mem_total(env.mem), 0);
    env_destroy(&env);
    return account;
}

/* What a block keeps: an eighth block more costs just this. */
static size_t block_bytes(struct rig_config config)
{
    struct account less = count(config, "dry-gpu", MEM_GPU);
    config.model.layers++;
    struct account more = count(config, "dry-gpu", MEM_GPU);
    return more.device.bytes[MEM_ACTIVATIONS] - less.device.bytes[MEM_ACTIVATIONS];
}

static void test_memory_and_traffic(void **state)
{
    (void)state;
    for (int recompute = 0; recompute < RECOMPUTE_COUNT; recompute++) {
        struct rig_config config = deep_config(MODEL_LLAMA);
        config.recompute = recompute;
        size_t block = block_bytes(config);
        struct account near = count(config, "dry-gpu", MEM_GPU);
        config.activations = FAR_HOST;
        struct account far = count(config, "dry-gpu", MEM_GPU);
        size_t saved = LEAVE * block, host = (saved + FAR_ALIGN - 1) / FAR_ALIGN * FAR_ALIGN;
        assert_true(block > 0);
        assert_int_equal(near.device.bytes[MEM_ACTIVATIONS] - far.device.bytes[MEM_ACTIVATIONS],
                         saved);
        assert_int_equal(far.host.bytes[MEM_ACTIVATIONS] - near.host.bytes[MEM_ACTIVATIONS], host);
        assert_int_equal(near.traffic.moved[TRAFFIC_LINK_OUT], 0);
        assert_int_equal(far.traffic.moved[TRAFFIC_LINK_OUT], MICRO_BATCHES * saved);
        assert_int_equal(far.traffic.moved[TRAFFIC_LINK_IN], MICRO_BATCHES * saved);
    }
}

/* Of seven blocks every second one moves, or all but two: three slots, none or two leave. Nine: four
 * move, and one leaves. */
static void test_a_share_moves(void **state)
{
    (void)state;
    static const double shares[] = {0.5, 0.75};
    static const int layers[] = {LAYERS, LAYERS + 2}, leaving[2][2] = {{0, 1}, {2, 3}};
    for (int s = 0; s < 2; s++)
        for (int l = 0; l < 2; l++) {
            struct rig_config config = deep_config(MODEL_GPT2);
            config.model.layers = layers[l];
            size_t block = block_bytes(config);
            struct account near = count(config, "dry-gpu", MEM_GPU);
            struct trace plain = run(config, 1);
            config.activations = FAR_HOST;
            config.activations_share = shares[s];
            struct account far = count(config, "dry-gpu", MEM_GPU);
            size_t saved = (size_t)leaving[s][l] * block;
            assert_int_equal(near.device.bytes[MEM_ACTIVATIONS] - far.device.bytes[MEM_ACTIVATIONS],
                             saved);
            assert_int_equal(far.traffic.moved[TRAFFIC_LINK_OUT], MICRO_BATCHES * saved);
            compare(&plain, config, 1);
            compare(&plain, config, 2);
            free(plain.params);
        }
}

/* A run allocates what the dry device counts, in every category. */
static void test_plan_is_the_run(void **state)
{
    (void)state;
    for (int recompute = 0; recompute < RECOMPUTE_COUNT; recompute++) {
        struct env env = testing_env(1);
        struct rig rig;
        struct rig_config config = deep_config(MODEL_GPT2);
        config.ops = "cpu";
        config.recompute = recompute;
        config.activations = FAR_HOST;
        struct account planned = count(config, "dry", MEM_HOST);
        assert_ok(rig_create(&env, config, &rig));
        rig_step(&rig, 0);
        struct mem_sums held = mem_sums(env.mem, MEM_HOST, false);
        for (int c = 0; c < MEM_CATEGORY_COUNT; c++)
            if (c != MEM_OTHER) /* threads and tables of a real device */
                assert_int_equal(held.bytes[c], planned.device.bytes[c]);
        rig_destroy(&rig);
        env_destroy(&env);
    }
}

/* Three blocks stay in the three slots, and an evaluation keeps nothing: no host memory. So does a
 * CPU, whose memory is the host's. */
static void test_nothing_to_move(void **state)
{
    (void)state;
    struct rig_config config = base_config(0);
    struct account near = count(config, "dry-gpu", MEM_GPU);
    config.activations = FAR_HOST;
    struct account far = count(config, "dry-gpu", MEM_GPU);
    assert_memory_equal(&near.device, &far.device, sizeof far.device);
    assert_int_equal(far.traffic.moved[TRAFFIC_LINK_OUT], 0);
    config = deep_config(MODEL_GPT2);
    near = count(config, "dry", MEM_HOST);
    config.activations = FAR_HOST;
    unsetenv("SIFR_CPU_OFFLOAD");
    far = count(config, "dry", MEM_HOST);
    setenv("SIFR_CPU_OFFLOAD", "1", 1);
    assert_memory_equal(&near.device, &far.device, sizeof far.device);
}

/* --- refused, and out of memory --------------------------------------------------------------- */

static void *create_pipeline(void *argument)
{
    const struct rig_config *config = argument;
    struct env env = testing_env(1);
    struct rig rig;
    assert_int_equal(rig_create(&env, *config, &rig), STATUS_CONFIG);
    assert_non_null(strstr(log_first_error(env.log), "does not work in a pipeline"));
    assert_int_equal(mem_total(env.mem), 0);
    env_destroy(&env);
    return NULL;
}

static void test_pipeline_is_refused(void **state)
{
    (void)state;
    struct rig_config ranks[2];
    for (int r = 0; r < 2; r++) {
        ranks[r] = shared_config(0);
        ranks[r].model.layers = LAYERS;
        ranks[r].pp = 2;
        ranks[r].activations = FAR_HOST;
    }
    rig_run_ranks(create_pipeline, ranks, 2, sizeof *ranks);
}

static void test_every_allocation_may_fail(void **state)
{
    (void)state;
    int64_t n = 1;
    for (;; n++) {
        struct env env = testing_env(1);
        struct rig rig;
        struct rig_config config = deep_config(MODEL_GPT2);
        config.activations = FAR_HOST;
        mem_fail_at(env.mem, n);
        enum status st = rig_create(&env, config, &rig);
        mem_fail_at(env.mem, 0);
        if (st == STATUS_OK)
            rig_destroy(&rig);
        assert_int_equal(mem_total(env.mem), 0);
        env_destroy(&env);
        if (st == STATUS_OK)
            break;
        assert_int_equal(st, STATUS_MEMORY);
    }
    assert_true(n > 30);
}

int main(void)
{
    setenv("SIFR_CPU_OFFLOAD", "1", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal_bits),
        cmocka_unit_test(test_servers_and_groups),
        cmocka_unit_test(test_tensor_parallelism),
        cmocka_unit_test(test_everything_leaves),
        cmocka_unit_test(test_memory_and_traffic),
        cmocka_unit_test(test_a_share_moves),
        cmocka_unit_test(test_plan_is_the_run),
        cmocka_unit_test(test_nothing_to_move),
        cmocka_unit_test(test_pipeline_is_refused),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    if (test_device_missing())
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
