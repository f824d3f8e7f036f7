/* zero.bucket and zero.unit_layers change messages and the memory for them, and no bit. Ranks are
 * threads of one process; on a GPU (SIFR_TEST_DEVICE) all share it. */
#include <math.h>

#include "engine/ranks.h"

enum { LAYERS = 5, BLOCK_ELEMENTS = 1 << 14 }; /* a block has fewer than BLOCK_ELEMENTS elements */

/* Messages of less than a block of 64 per shard; of a part of a layer; of several layers; of the
 * whole model. The number of layers need not divide those of the model. */
static const struct {
    int64_t bucket;
    int layers;
} settings[] = {
    {1, 1},       {3000, 1}, {0, 2},       {0, 3}, {0, LAYERS}, {4 * 3 * BLOCK_ELEMENTS, 1},
    {1 << 30, 1}, {5000, 2}, {1 << 30, 3},
};
enum { SETTINGS = sizeof settings / sizeof *settings };

static struct rig_config config_of(int llama, int tied)
{
    struct rig_config config = shared_config(llama);
    config.chunks = 0;
    config.model.layers = LAYERS;
    config.model.tied = tied;
    return config;
}

/* Every third setting, others in another stage or with other ranks. */
static void compare_settings(const struct trace *plain, struct rig_config config, int ranks)
{
    for (int i = (config.stage + ranks) % 3; i < SETTINGS; i += 3) {
        config.bucket = settings[i].bucket;
        config.unit_layers = settings[i].layers;
        config.prefetch = (ranks + i / 3) % 4;
        config.recompute = (ranks + i / 3) % 3;
        config.delays = (i + ranks) % 4 == 0 ? 1e-5 : 0;
        compare(plain, config, ranks);
    }
}

static void test_stages_and_ranks(void **state)
{
    (void)state;
    for (int model = 0; model < 3; model++) {
        struct rig_config config = config_of(model > 0, model < 2);
        struct trace plain = run(config, 1);
        for (config.stage = 0; config.stage <= 3; config.stage++)
            for (int ranks = 1; ranks <= 5; ranks++)
                compare_settings(&plain, config, ranks);
        free(plain.params);
    }
}

static void test_servers_and_groups(void **state)
{
    (void)state;
    struct rig_config config = config_of(1, 0);
    struct trace plain = run(config, 1);
    for (config.stage = 1; config.stage <= 3; config.stage++)
        for (config.servers = 0; config.servers <= 2; config.servers++) {
            config.group = config.servers > 0 ? 0 : 2;
            compare_settings(&plain, config, 4);
        }
    free(plain.params);
}

/* 16 bits, computed in fp32 and in 16 bits, with fp32 and bf16 sums; one round and several. */
static void test_precision(void **state)
{
    (void)state;
    for (int wide = 0; wide < 2; wide++)
        for (int ranks = 1; ranks <= 5; ranks += 2)
            for (int stage = 0; stage <= 3; stage++) {
                struct rig_config config = config_of(stage % 2, wide);
                config.type = DTYPE_BF16;
                config.compute = wide ? DTYPE_F32 : DTYPE_BF16;
                config.ops = wide ? NULL : "ref";
                config.sum_type = ranks == 3 ? DTYPE_BF16 : DTYPE_F32;
                config.stage = stage;
                struct trace plain = run(config, ranks);
                compare_settings(&plain, config, ranks);
                free(plain.params);
            }
}

/* Each worker sums its own micro-batches: the bits depend on the ranks, so they are compared with
 * those of as many. */
static void test_local_sums(void **state)
{
    (void)state;
    for (int stage = 0; stage <= 3; stage++)
        for (int narrow = 0; narrow < 2; narrow++) {
            struct rig_config config = config_of(0, 1);
            config.type = narrow ? DTYPE_BF16 : DTYPE_F32;
            config.stage = stage;
            config.local = true;
            struct trace plain = run(config, 3);
            compare_settings(&plain, config, 3);
            free(plain.params);
        }
}

static void test_optimizers(void **state)
{
    (void)state;
    static const enum optimizer_kind kinds[] = {OPTIMIZER_MUON, OPTIMIZER_ADAMW8BIT};
    for (int k = 0; k < 2; k++) {
        struct rig_config config = config_of(1, 0);
        config.optimizer = kinds[k];
        struct trace plain = run(config, 1);
        for (config.stage = 0; config.stage <= 3; config.stage += 3)
            compare_settings(&plain, config, 3);
        free(plain.params);
    }
}

/* Merged pieces end at the chunks of a pipeline. Zero-bubble: backward passes in two parts. */
static void test_pipelines(void **state)
{
    (void)state;
    for (int tied = 0; tied < 2; tied++) {
        struct rig_config config = config_of(tied, tied);
        struct trace plain = run(config, 1);
        for (config.kind = 0; config.kind <= TIMETABLE_ZERO_BUBBLE; config.kind++)
            for (config.stage = 0; config.stage <= 3; config.stage++) {
                config.pp = 2;
                config.chunks = config.kind == TIMETABLE_INTERLEAVED ? 2 : 1;
                config.lumps = config.stage == 2;
                compare_settings(&plain, config, 4);
                config.lumps = false, config.pp = 0;
            }
        free(plain.params);
    }
}

static void test_tp(void **state)
{
    (void)state;
    for (int sequence = 0; sequence < 2; sequence++) {
        struct rig_config config = config_of(1, 0);
        config.tp = 2;
        config.tokens = 12;
        config.sequence = sequence;
        struct trace plain = run(config, 2);
        for (config.stage = 0; config.stage <= 3; config.stage++)
            compare_settings(&plain, config, 4);
        free(plain.params);
    }
}

/* Its blocks have three pieces each, which different passes read: none is merged. */
static void test_sars(void **state)
{
    (void)state;
    struct rig_config config = base_config(0);
    config.model = rig_sars();
    struct trace plain = run(config, 1);
    for (config.stage = 0; config.stage <= 3; config.stage++)
        compare_settings(&plain, config, 3);
    free(plain.params);
}

static struct trace trace_of(int64_t bucket, int layers, int stage)
{
    struct rig_config config = config_of(1, 0);
    config.stage = stage;
    config.bucket = bucket;
    config.unit_layers = layers;
    config.micro_batches = 4; /* two rounds of two workers */
    struct trace trace = run(config, 2);
    free(trace.params);
    return trace;
}

static struct traffic traffic_of(int64_t bucket, int layers, int stage)
{
    return trace_of(bucket, layers, stage).traffic;
}

/* Embedding, blocks and head are LAYERS + 2 pieces, which are sent once in each round. Stage 3
 * gathers blocks before forward and backward passes, except for those that are still there. */
static void test_messages(void **state)
{
    (void)state;
    enum { SENDS = STEPS * 2 };
    for (int stage = 0; stage <= 3; stage += 3) {
        assert_int_equal(traffic_of(0, 1, stage).calls[TRAFFIC_REDUCE], SENDS * (LAYERS + 2));
        assert_int_equal(traffic_of(0, 2, stage).calls[TRAFFIC_REDUCE], SENDS * (3 + 2));
        assert_int_equal(traffic_of(0, 3, stage).calls[TRAFFIC_REDUCE], SENDS * (2 + 2));
        assert_int_equal(traffic_of(0, 99, stage).calls[TRAFFIC_REDUCE], SENDS * (1 + 2));
        assert_int_equal(traffic_of(1 << 30, 1, stage).calls[TRAFFIC_REDUCE], SENDS * (1 + 2));
    }
    struct traffic plain = traffic_of(0, 1, 3), two = traffic_of(0, 2, 3);
    assert_int_equal(plain.calls[TRAFFIC_GATHER], SENDS * (2 * LAYERS - 1 + 2));
    assert_int_equal(two.calls[TRAFFIC_GATHER], SENDS * (2 * 3 - 1 + 2));
    /* Padding aside, the same bytes: at most 64 elements for each rank and piece. */
    double more = (double)(two.sent[TRAFFIC_REDUCE] - plain.sent[TRAFFIC_REDUCE]);
    assert_true(fabs(more) <= SENDS * (LAYERS + 2) * 2 * 64 * 4.0);
    /* Smaller messages: more of them, and the same bytes. */
    struct traffic split = traffic_of(3000, 1, 3);
    assert_int_equal(split.sent[TRAFFIC_REDUCE], plain.sent[TRAFFIC_REDUCE]);
    assert_int_equal(split.sent[TRAFFIC_GATHER], plain.sent[TRAFFIC_GATHER]);
    assert_true(split.calls[TRAFFIC_REDUCE] >= split.sent[TRAFFIC_REDUCE] / (3000 / 2));
    assert_true(split.calls[TRAFFIC_GATHER] > plain.calls[TRAFFIC_GATHER]);
}

/* Stage 0: each of two ranks sums half of a piece, and sends these sums once per step. A bucket of
 * 3000 bytes has 1500 of each half. */
static void test_messages_of_sums(void **state)
{
    (void)state;
    struct traffic plain = trace_of(0, 1, 0).settled, split = trace_of(3000, 1, 0).settled;
    assert_int_equal(plain.calls[TRAFFIC_GATHER], STEPS * (LAYERS + 2));
    assert_int_equal(split.sent[TRAFFIC_GATHER], plain.sent[TRAFFIC_GATHER]);
    assert_true(split.calls[TRAFFIC_GATHER] >= split.sent[TRAFFIC_GATHER] / 1500);
    assert_int_equal(trace_of(1 << 30, 1, 0).settled.calls[TRAFFIC_GATHER], STEPS * (1 + 2));
}

/* --- memory ----------------------------------------------------------------------------------- */

struct sizes {
    struct rig_config config;
    size_t comm, slots;
};

static void *measure(void *argument)
{
    struct sizes *sizes = argument;
    struct env env = testing_env(1);
    struct rig rig;
    assert_ok(rig_create(&env, sizes->config, &rig));
    sizes->comm = mem_bytes(env.mem, MEM_COMM);
    sizes->slots = mem_bytes(env.mem, MEM_SLOTS);
    rig_destroy(&rig);
    env_destroy(&env);
    return NULL;
}

static struct sizes sizes_of(int64_t bucket, int layers, enum dtype type)
{
    struct sizes all[3];
    for (int r = 0; r < 3; r++) {
        all[r].config = config_of(1, 0);
        all[r].config.stage = 3;
        all[r].config.bucket = bucket;
        all[r].config.unit_layers = layers;
        all[r].config.type = type;
    }
    rig_run_ranks(measure, all, 3, sizeof *all);
    return all[0];
}

/* Small messages need less room at the owners, and merged pieces larger slots; but what is widened
 * to fp32 is still one layer. */
static void test_memory(void **state)
{
    (void)state;
    struct sizes plain = sizes_of(0, 1, DTYPE_F32), split = sizes_of(6000, 1, DTYPE_F32);
    struct sizes merged = sizes_of(0, 2, DTYPE_F32);
    assert_true(split.comm < plain.comm);
    assert_int_equal(split.slots, plain.slots);
    assert_true(merged.slots > plain.slots);
    struct sizes narrow = sizes_of(0, 1, DTYPE_BF16), narrow_merged = sizes_of(0, 2, DTYPE_BF16);
    size_t more = narrow_merged.slots - narrow.slots;
    assert_true(more <= (merged.slots - plain.slots) / 2 + 64 * 4 * 3);
}

static void test_out_of_memory(void **state)
{
    (void)state;
    struct rig_config config = base_config(0);
    config.stage = 3;
    config.unit_layers = 2;
    config.bucket = 4000;
    assert_true(fail_each(config, 2, 1) > 60);
    config.pp = 2, config.chunks = 1;
    assert_true(fail_each(config, 4, 1) > 60);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stages_and_ranks),
        cmocka_unit_test(test_servers_and_groups),
        cmocka_unit_test(test_precision),
        cmocka_unit_test(test_local_sums),
        cmocka_unit_test(test_optimizers),
        cmocka_unit_test(test_pipelines),
        cmocka_unit_test(test_tp),
        cmocka_unit_test(test_sars),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_messages_of_sums),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_out_of_memory),
    };
    if (test_device_missing())
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
