/* Optimizer state in host memory, updated by the CPU where it is, or on its way through the device:
 * the same bits as without offload, the same account as a dry device, and updates that wait while
 * state is saved. SIFR_CPU_OFFLOAD=1 makes the CPU device move state as a GPU does. */
#include <errno.h>
#include <math.h>
#include <time.h>

#include "base/input.h"
#include "engine/ranks.h"

#define ADAM .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8

static const struct zero_group mixed[] = {
    {"*attn*", 1, 0.1, {.kind = OPTIMIZER_ADAMW8BIT, ADAM}},
    {"*mlp*weight", 0.5, 0.1, {.kind = OPTIMIZER_SGD, .momentum = 0.9, .nesterov = true}},
    {"*norm*", 1, 0, {.kind = OPTIMIZER_SGD}},
};

enum { KIND_ADAMW, KIND_ADAMW8BIT, KIND_SGD, KIND_MIXED, KINDS };

static struct rig_config narrow_config(int kind, enum dtype type)
{
    static const enum optimizer_kind kinds[] = {OPTIMIZER_ADAMW, OPTIMIZER_ADAMW8BIT, OPTIMIZER_SGD,
                                                OPTIMIZER_ADAMW};
    struct rig_config config = base_config(kind % 2);
    config.optimizer = kinds[kind];
    config.type = type;
    if (kind == KIND_MIXED) {
        config.groups = mixed;
        config.group_count = 3;
    }
    return config;
}

static struct zero_offload on_host(enum far_kind grads, double share, int64_t window)
{
    return (struct zero_offload){
        .optimizer = FAR_HOST, .grads = grads, .share = share, .window = window, .on_host = true};
}

/* --- bits ----------------------------------------------------------------------------------- */

/* Layouts and placements in turn, so that all pairs occur: several packets pass each slot. */
static void test_the_cpu_updates_with_equal_bits(void **state)
{
    (void)state;
    static const struct {
        int stage, ranks, servers, group, pp;
    } layouts[] = {{0, 1, 0, 0, 0}, {0, 2, 0, 0, 0}, {1, 2, 0, 0, 0},
                   {2, 4, 0, 0, 0}, {3, 2, 0, 0, 0}, {3, 4, 0, 0, 0},
                   {2, 3, 1, 0, 0}, {1, 4, 0, 2, 0}, {2, 4, 0, 0, 2}};
    static const enum far_kind grads[] = {FAR_NONE, FAR_HOST, FAR_DISK};
    static const double shares[] = {1, 0.4};
    static const int64_t windows[] = {0, 64 << 10, 1 << 20, 0};
    int turn = 0;
    for (int kind = 0; kind < KINDS; kind++)
        for (int narrow = 0; narrow < 3; narrow++) {
            struct rig_config config = narrow_config(kind, narrow == 1 ? DTYPE_F16 : DTYPE_BF16);
            config.stochastic = narrow == 2;
            config.chunks = 1;
            config.kind = TIMETABLE_1F1B;
            struct trace plain = run(config, 1);
            for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++, turn++) {
                config.stage = layouts[i].stage;
                config.servers = layouts[i].servers;
                config.group = layouts[i].group;
                config.pp = layouts[i].pp;
                config.threads = 1 + turn % 2;
                config.delays = turn % 3 ? 0 : 1e-4;
                config.offload = on_host(grads[turn % 3], shares[turn % 5 / 3], windows[turn % 4]);
                compare(&plain, config, layouts[i].ranks);
            }
            free(plain.params);
        }
}

/* The same state, on its way through the device: also in fp32, and with Muon. */
static void test_the_device_updates_with_equal_bits(void **state)
{
    (void)state;
    static const struct {
        enum optimizer_kind optimizer;
        enum dtype type;
    } cases[] = {{OPTIMIZER_ADAMW, DTYPE_F32},
                 {OPTIMIZER_ADAMW, DTYPE_BF16},
                 {OPTIMIZER_MUON, DTYPE_F32},
                 {OPTIMIZER_MUON, DTYPE_BF16},
                 {OPTIMIZER_SGD, DTYPE_F16}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rig_config config = base_config(1);
        config.optimizer = cases[i].optimizer;
        config.type = cases[i].type;
        struct trace plain = run(config, 1);
        for (int stage = 0; stage < 4; stage++) {
            config.stage = stage;
            config.offload = on_host(stage % 2 ? FAR_HOST : FAR_NONE, stage == 2 ? 0.5 : 1, 0);
            config.offload.on_host = config.optimizer == OPTIMIZER_MUON; /* asked for in vain */
            compare(&plain, config, stage == 3 ? 4 : 2);
            compare(&plain, config, 1);
        }
        free(plain.params);
    }
}

/* --- who updates ---------------------------------------------------------------------------- */

struct found {
    size_t slots;   /* bytes of the slots of the CPU */
    size_t transit; /* and of those on the device */
};

static void find_slots(void *user, const struct mem_line *line)
{
    struct found *found = user;
    if (!strcmp(line->name, "gradients and params on their way"))
        found->slots += line->bytes;
    if (!strcmp(line->name, "state on its way"))
        found->transit += line->bytes;
}

static void keep_warning(void *user, enum log_level level, const char *line)
{
    char *text = user;
    if (level == LOG_WARN)
        snprintf(text, 256, "%s", line);
}

/* `warning`: what the log says; "": nothing. */
static struct found expect_warning(struct rig_config config, const char *warning)
{
    struct env env;
    struct rig rig;
    struct found found = {0};
    char text[256] = "";
    assert_ok(env_create(&env, keep_warning, text, LOG_INFO, 1));
    assert_ok(rig_create(&env, config, &rig));
    mem_visit(env.mem, find_slots, &found);
    rig_destroy(&rig);
    env_destroy(&env);
    if (!*warning)
        assert_string_equal(text, "");
    else
        assert_non_null(strstr(text, warning));
    return found;
}

static void test_the_log_says_who_updates(void **state)
{
    (void)state;
    struct rig_config config = narrow_config(KIND_ADAMW, DTYPE_BF16);
    config.offload = on_host(FAR_NONE, 1, 0);
    struct found found = expect_warning(config, "");
    assert_true(found.slots > 0 && found.transit == 0);
    config.offload.on_host = false;
    found = expect_warning(config, "");
    assert_true(found.slots == 0 && found.transit > 0);
    config.offload = on_host(FAR_NONE, 1, 0);
    config.type = DTYPE_F32;
    found = expect_warning(config, "the device updates: in fp32");
    assert_true(found.slots == 0 && found.transit > 0);
    config.type = DTYPE_BF16, config.optimizer = OPTIMIZER_MUON;
    found = expect_warning(config, "the device updates: muon");
    assert_true(found.slots == 0 && found.transit > 0);
    config.optimizer = OPTIMIZER_ADAMW, config.offload.optimizer = FAR_DISK;
    found = expect_warning(config, "the device updates: optimizer state is not");
    assert_true(found.slots == 0 && found.transit > 0);
}

/* Sums that are far while state stays: those packets still pass through the device. */
static void test_both_may_update(void **state)
{
    (void)state;
    struct rig_config config = narrow_config(KIND_ADAMW, DTYPE_BF16);
    config.model.tied = 0;
    config.offload = on_host(FAR_HOST, 0.4, 0);
    struct found found = expect_warning(config, "");
    assert_true(found.slots > 0 && found.transit > 0);
}

/* --- memory and time ------------------------------------------------------------------------ */

static void test_dry_device_counts_the_same_bytes(void **state)
{
    (void)state;
    for (int grads = FAR_NONE; grads <= FAR_DISK; grads++) {
        struct env real_env = testing_env(1), dry_env = testing_env(1);
        struct rig real, dry;
        struct rig_config config = narrow_config(KIND_ADAMW8BIT, DTYPE_BF16);
        config.offload = on_host((enum far_kind)grads, 0.7, 64 << 10);
        assert_ok(rig_create(&real_env, config, &real));
        config.device = strcmp(test_device(), "cpu") == 0 ? "dry" : "dry-gpu";
        assert_ok(rig_create(&dry_env, config, &dry));
        for (int c = 0; c < MEM_OTHER; c++)
            assert_int_equal(mem_bytes(real_env.mem, c), mem_bytes(dry_env.mem, c));
        rig_destroy(&real);
        rig_destroy(&dry);
        env_destroy(&real_env);
        env_destroy(&dry_env);
    }
}

/* The end of a step and of its update on a dry GPU whose only cost is the CPU's. */
static double time_update(double bytes_per_second)
{
    struct env env = testing_env(1);
    struct rig rig;
    struct rig_config config = narrow_config(KIND_ADAMW, DTYPE_BF16);
    const struct device_pace pace = {.host_update_bytes_per_second = bytes_per_second};
    config.device = "dry-gpu";
    config.noise = false;
    config.offload = on_host(FAR_NONE, 1, 64 << 10);
    assert_ok(rig_create(&env, config, &rig));
    device_keep_time(rig.device, &pace);
    rig_step(&rig, 0);
    assert_ok(zero_settle(rig.zero));
    double seconds = device_clock(rig.device);
    double bytes = seconds * bytes_per_second / (double)unit_graph_count(model_graph(rig.model));
    rig_destroy(&rig);
    env_destroy(&env);
    if (bytes_per_second > 0) /* gradient 4, master and moments 12 + 12, params 2 */
        assert_true(bytes >= 30 && bytes < 30.5);
    return seconds;
}

static void test_dry_device_spends_the_time_of_the_cpu(void **state)
{
    (void)state;
    assert_true(time_update(0) == 0);
    double seconds = time_update(1e9);
    assert_true(seconds > 0 && fabs(time_update(2e9) - seconds / 2) < 1e-6 * seconds);
}

static void test_every_allocation_may_fail(void **state)
{
    (void)state;
    struct rig_config config = narrow_config(KIND_ADAMW, DTYPE_BF16);
    config.stochastic = true;
    config.offload = on_host(FAR_HOST, 0.5, 0);
    enum status st = STATUS_MEMORY;
    for (int64_t n = 1; st != STATUS_OK; n++) {
        struct env env = testing_env(1);
        struct rig rig;
        mem_fail_at(env.mem, n);
        st = rig_create(&env, config, &rig);
        mem_fail_at(env.mem, 0);
        if (st == STATUS_OK)
            rig_destroy(&rig);
        else
            assert_int_equal(st, STATUS_MEMORY);
        assert_int_equal(mem_total(env.mem), 0);
        env_destroy(&env);
    }
}

/* --- saving, and failures ------------------------------------------------------------------- */

static void pause_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

/* A master and a moment of every tensor, as a saver reads them while it holds the state. */
static void read_held(struct rig *rig, float *out)
{
    const struct unit_graph *graph = model_graph(rig->model);
    for (int t = 0; t < graph->tensor_count; t++)
        for (int s = 0; s < 2; s++) {
            const enum zero_state states[] = {ZERO_MASTER, ZERO_MOMENTUM};
            const void *data;
            float room;
            assert_ok(zero_snapshot_read(rig->zero, states[s], t, 0, 1, &room, &data));
            out[2 * t + s] = *(const float *)data;
        }
}

static void test_updates_wait_while_state_is_saved(void **state)
{
    (void)state;
    enum { MOST = 128 };
    for (int grads = FAR_NONE; grads <= FAR_HOST; grads++) {
        struct env env = testing_env(1);
        struct rig rig;
        float before[MOST] = {0}, after[MOST] = {0};
        struct rig_config config = narrow_config(KIND_ADAMW, DTYPE_BF16);
        config.snapshot = true;
        config.offload = on_host((enum far_kind)grads, 1, 1 << 20);
        assert_ok(rig_create(&env, config, &rig));
        assert_true(2 * model_graph(rig.model)->tensor_count <= MOST);
        rig_step(&rig, 0);
        assert_ok(zero_snapshot(rig.zero));
        read_held(&rig, before);
        rig_step(&rig, 1);
        pause_ms(20);
        read_held(&rig, after);
        assert_memory_equal(before, after, sizeof before);
        zero_snapshot_end(rig.zero);
        assert_ok(zero_settle(rig.zero));
        read_held(&rig, after);
        assert_true(memcmp(before, after, sizeof before) != 0);
        rig_destroy(&rig);
        env_destroy(&env);
    }
}

/* The disk with the sums fails while the CPU's gradients are read: the step, or the next one,
 * says so. */
static void test_a_gradient_that_is_lost_fails_the_step(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct rig rig;
    struct engine_result result;
    struct input_faults faults = {.error = EIO, .times = 1 << 20};
    struct rig_config config = narrow_config(KIND_ADAMW, DTYPE_BF16);
    config.micro_batches = 1; /* sums are written, and read by the update only */
    config.noise = false;
    config.offload = on_host(FAR_DISK, 1, 0);
    assert_ok(rig_create(&env, config, &rig));
    atomic_store(&faults.left, 1);
    env.input_faults = &faults;
    rig_fill(&rig, 0, 0);
    enum status st = engine_step(rig.engine, 1, 1e-2, &result);
    if (st == STATUS_OK)
        st = zero_settle(rig.zero);
    assert_int_equal(st, STATUS_IO);
    assert_non_null(strstr(log_first_error(env.log), "summed gradients"));
    rig_fill(&rig, 1, 0);
    assert_int_equal(engine_step(rig.engine, 2, 1e-2, &result), STATUS_IO);
    env.input_faults = NULL;
    rig_destroy(&rig);
    env_destroy(&env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_cpu_updates_with_equal_bits),
        cmocka_unit_test(test_the_device_updates_with_equal_bits),
        cmocka_unit_test(test_the_log_says_who_updates),
        cmocka_unit_test(test_both_may_update),
        cmocka_unit_test(test_dry_device_counts_the_same_bytes),
        cmocka_unit_test(test_dry_device_spends_the_time_of_the_cpu),
        cmocka_unit_test(test_every_allocation_may_fail),
        cmocka_unit_test(test_updates_wait_while_state_is_saved),
        cmocka_unit_test(test_a_gradient_that_is_lost_fails_the_step),
    };
    setenv("SIFR_CPU_OFFLOAD", "1", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
