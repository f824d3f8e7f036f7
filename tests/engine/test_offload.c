/* Optimizer state and summed gradients in far memory (zero_offload.c): no placement changes a bit
 * of the losses, the norms, the params and the moments; state that is saved while the run continues
 * is that of its step; and errors of the disk reach every rank.
 *
 * On the CPU only the disk is far memory; on a GPU (SIFR_TEST_DEVICE) host memory is tested, too.
 * The window is the smallest: packets of 2,048 elements and three slots, so several packets of a
 * piece pass each slot. */
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/watched.h"

/* --- placements ----------------------------------------------------------------------------- */

/* Placement `number`, counted up by the tests: state, sums, both; all of the state, or the last
 * pieces; on disk, or, where that differs from the device's, in host memory. */
static struct zero_offload placement(int number)
{
    enum far_kind kind = on_gpu() && number % 2 ? FAR_HOST : FAR_DISK;
    int what = number % 3;
    return (struct zero_offload){.optimizer = what == 1 ? FAR_NONE : kind,
                                 .grads = what == 0 ? FAR_NONE : kind,
                                 .share = number / 3 % 2 ? 0.3 : 1};
}

enum { PLACEMENTS = 6 };

static void test_stages_and_ranks(void **state)
{
    (void)state;
    static const int rank_counts[] = {1, 2, 4};
    for (int model = 0; model < 4; model++) { /* two of each, in fp32 and bf16 */
        struct rig_config one = base_config(model % 2);
        int number = model;
        one.type = model / 2 ? DTYPE_BF16 : DTYPE_F32;
        one.model.tied = model == 1 || model == 2;
        struct watch plain = watch_run(one, 1);
        for (int stage = 0; stage <= 3; stage++)
            for (int r = 0; r < 3; r++)
                for (int k = 0; k < 3; k++, number++) {
                    struct rig_config config = one;
                    config.stage = stage;
                    config.prefetch = k % 2;
                    config.noise = number % 2 == 0;
                    config.offload = placement(number);
                    expect_same(&plain, one, config, rank_counts[r]);
                    number += k == 2; /* so that shares and stages meet in another order */
                }
        watch_free(&plain);
    }
}

/* A single gradient is its own sum, and has its type. */
static void test_one_micro_batch(void **state)
{
    (void)state;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        struct rig_config one = base_config(1);
        one.micro_batches = 1;
        one.noise = false;
        one.type = bf16 ? DTYPE_BF16 : DTYPE_F32;
        struct watch plain = watch_run(one, 1);
        for (int number = 0; number < 4 * PLACEMENTS; number++) {
            struct rig_config config = one;
            config.stage = number / PLACEMENTS;
            config.offload = placement(number);
            expect_same(&plain, one, config, number % 4 == 0 ? 1 : 2);
        }
        watch_free(&plain);
    }
}

static const struct zero_group with_muon[] = {
    {"*attn*", 1, 0.1, {.kind = OPTIMIZER_ADAMW8BIT, ADAM}},
    {"*mlp*", 0.5, 0.1, {.kind = OPTIMIZER_MUON, ADAM, .momentum = 0.95, .nesterov = true}},
    {"*ln_*", 1, 0, {.kind = OPTIMIZER_SGD, .momentum = 0.9}},
};

enum { KIND_MUON = KINDS, KIND_MIXED_MUON, ALL_KINDS };

static struct rig_config with_any_kind(int kind)
{
    struct rig_config config = with_kind(base_config(kind % 2 == 0), kind);
    if (kind == KIND_MUON)
        config.optimizer = OPTIMIZER_MUON, config.no_momentum = false;
    if (kind == KIND_MIXED_MUON) {
        config = base_config(0);
        config.groups = with_muon, config.group_count = 3;
    }
    return config;
}

static void test_optimizers(void **state)
{
    (void)state;
    for (int kind = 0; kind < ALL_KINDS; kind++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            struct rig_config one = with_any_kind(kind);
            one.type = bf16 ? DTYPE_BF16 : DTYPE_F32;
            one.stochastic = bf16 && kind % 2;
            struct watch plain = watch_run(one, 1);
            for (int number = 0; number < PLACEMENTS; number++) {
                struct rig_config config = one;
                config.stage = (number + kind) % 4;
                config.noise = number % 2 == 0;
                config.offload = placement(number);
                expect_same(&plain, one, config, number % 3 == 2 ? 1 : number % 3 + 2);
            }
            watch_free(&plain);
        }
}

/* --- other layouts -------------------------------------------------------------------------- */

/* The same config with every placement. */
static void expect_placements(const struct watch *plain, struct rig_config one,
                              struct rig_config config, int ranks)
{
    for (int what = 0; what < 3; what++) {
        config.offload = placement(what + 3 * ((what + config.stage) % 2));
        expect_same(plain, one, config, ranks);
    }
}

static void test_servers_and_groups(void **state)
{
    (void)state;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        struct rig_config one = base_config(bf16);
        one.type = bf16 ? DTYPE_BF16 : DTYPE_F32;
        struct watch plain = watch_run(one, 1);
        for (int stage = 1; stage <= 3; stage++) {
            struct rig_config config = one;
            config.stage = stage;
            config.delays = 1e-4;
            config.servers = stage == 2 ? 2 : 1;
            expect_placements(&plain, one, config, 2 + config.servers);
            config.servers = 0, config.group = stage == 1 ? 1 : 2;
            expect_placements(&plain, one, config, 4);
        }
        watch_free(&plain);
    }
}

static void test_pipelines(void **state)
{
    (void)state;
    static const int kinds[] = {TIMETABLE_1F1B, TIMETABLE_ZERO_BUBBLE, TIMETABLE_1F1B,
                                TIMETABLE_ZERO_BUBBLE};
    for (int llama = 0; llama < 2; llama++) {
        struct rig_config one = shared_config(llama);
        one.type = llama ? DTYPE_BF16 : DTYPE_F32;
        struct watch plain = watch_run(one, 1);
        for (int stage = 0; stage <= 3; stage++) {
            struct rig_config config = one;
            config.stage = stage;
            config.pp = 2, config.kind = kinds[stage];
            config.offload = placement(stage + 2 * llama);
            expect_same(&plain, one, config, stage % 2 ? 4 : 2);
            config.offload = placement(2);
            expect_same(&plain, one, config, stage % 2 ? 2 : 4);
        }
        watch_free(&plain);
    }
}

static void test_tensor_parallelism(void **state)
{
    (void)state;
    for (int llama = 0; llama < 2; llama++)
        for (int sequence = 0; sequence < 2; sequence++) {
            struct rig_config one = shared_config(llama);
            one.tp = 2;
            one.sequence = sequence;
            one.tokens = 12;
            one.type = llama ? DTYPE_BF16 : DTYPE_F32;
            struct watch plain = watch_run(one, 2);
            for (int stage = 0; stage <= 3; stage++) {
                struct rig_config config = one;
                config.stage = stage;
                config.offload = placement(stage + sequence);
                expect_same(&plain, one, config, stage % 2 ? 4 : 2);
                config.offload = placement(2);
                expect_same(&plain, one, config, stage % 2 ? 2 : 4);
            }
            watch_free(&plain);
        }
}

static void test_sars(void **state)
{
    (void)state;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        struct rig_config one = base_config(0);
        one.model = rig_sars();
        one.meta_clip = 0.5;
        one.type = bf16 ? DTYPE_BF16 : DTYPE_F32;
        struct watch plain = watch_run(one, 1);
        for (int number = 0; number < 8; number++) {
            struct rig_config config = one;
            config.stage = number % 4;
            config.offload = placement(number);
            expect_same(&plain, one, config, 1 + number % 3);
        }
        watch_free(&plain);
    }
}

/* Pieces that are merged, and messages of several sizes. */
static void test_messages(void **state)
{
    (void)state;
    static const struct {
        int64_t bucket;
        int layers;
    } messages[] = {{3000, 1}, {20000, 1}, {1 << 20, 1}, {0, 2}, {5000, 3}};
    struct rig_config one = base_config(1);
    struct watch plain = watch_run(one, 1);
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < 4; k++) {
            struct rig_config config = one;
            config.bucket = messages[i].bucket;
            config.unit_layers = messages[i].layers;
            config.stage = (i + k) % 4;
            config.offload = placement(k + 2);
            expect_same(&plain, one, config, 1 + (i + k) % 4);
        }
    watch_free(&plain);
}

/* Larger windows hold more packets, up to all of them. */
static void test_windows(void **state)
{
    (void)state;
    static const int64_t windows[] = {1, 100000, 1 << 20, 1 << 30};
    struct rig_config one = base_config(0);
    one.type = DTYPE_BF16;
    struct watch plain = watch_run(one, 1);
    for (int i = 0; i < 4; i++) {
        struct rig_config config = one;
        config.stage = 3 - i;
        config.offload = placement(2);
        config.offload.window = windows[i];
        config.offload.folder = "/tmp"; /* more likely a file system with O_DIRECT */
        expect_same(&plain, one, config, 1 + i % 2);
    }
    watch_free(&plain);
}

/* Local sums are not far, and 16-bit sums may be; steps have different numbers of micro-batches. */
static void test_sums(void **state)
{
    (void)state;
    static const int64_t ramp[] = {1, 2, 5, 3};
    for (int kind = 0; kind < 4; kind++) {
        struct rig_config one = base_config(1);
        int ranks = kind < 2 ? 2 : 1;
        one.type = kind % 2 ? DTYPE_BF16 : DTYPE_F32;
        one.local = kind == 0;
        one.noise = kind < 2;
        one.sum_type = kind == 1 ? DTYPE_BF16 : DTYPE_F32;
        one.ramp = kind > 1 ? ramp : NULL;
        struct watch plain = watch_run(one, ranks);
        for (int stage = 0; stage <= 3; stage++) {
            struct rig_config config = one;
            config.stage = stage;
            expect_placements(&plain, one, config, kind < 2 ? 2 : 1 + stage % 3);
        }
        watch_free(&plain);
    }
}

/* A rank alone adds the sum of the tied piece on the device, and far sums behind it: 16-bit sums
 * pass through fp32 on both ways at the same time. */
static void test_16_bit_sums_on_two_streams(void **state)
{
    (void)state;
    struct rig_config one = base_config(0), config;
    one.type = one.sum_type = DTYPE_BF16;
    one.model.tied = true;
    one.micro_batches = 12;
    struct watch plain = watch_run(one, 1);
    config = one;
    for (int i = 0; i < 16; i++) {
        config.offload = placement(1 + i % 2);
        expect_same(&plain, one, config, 1);
    }
    watch_free(&plain);
}

/* --- state that moves to another placement -------------------------------------------------- */

static void test_state_moves_between_placements(void **state)
{
    (void)state;
    for (int kind = 0; kind < ALL_KINDS; kind++) {
        struct rig_config one = with_any_kind(kind), first = one, second = one;
        one.type = first.type = second.type = kind % 2 ? DTYPE_BF16 : DTYPE_F32;
        first.offload = placement(2);
        first.stage = kind % 4;
        check_move(one, first, 1 + kind % 3, one, 1);
        check_move(one, one, 1, first, 2);
        second.offload = placement(3);
        second.stage = 3;
        check_move(one, first, 2, second, 3);
    }
}

static void test_load_into_a_running_store(void **state)
{
    (void)state;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        struct rig_config config = base_config(1);
        config.type = bf16 ? DTYPE_BF16 : DTYPE_F32;
        config.offload = placement(2);
        check_load_into_running(config);
    }
}

struct late_save {
    struct rig *rig;
    struct image image;
    atomic_bool saved;
};

static void *save_late(void *argument)
{
    struct late_save *save = argument;
    int count = model_graph(save->rig->model)->tensor_count, half = count / 2;
    threads_nap(0.1);
    save_some(save->rig, 0, half, &save->image);
    zero_snapshot_pass(save->rig->zero, half); /* updates of the pieces before it may run now */
    threads_nap(0.05);
    save_some(save->rig, half, count, &save->image);
    atomic_store(&save->saved, true);
    zero_snapshot_end(save->rig->zero);
    return NULL;
}

/* The update that would change what is being saved waits. */
static void test_updates_wait_for_a_save(void **state)
{
    (void)state;
    for (int kind = KIND_SGD_MOMENTUM; kind < ALL_KINDS; kind++) {
        struct image expected = {.lock = PTHREAD_MUTEX_INITIALIZER};
        struct late_save late = {.image.lock = PTHREAD_MUTEX_INITIALIZER};
        struct rig_config config = with_any_kind(kind);
        struct env env = testing_env(1);
        struct rig rig;
        pthread_t thread;
        config.type = kind % 2 ? DTYPE_BF16 : DTYPE_F32;
        config.offload = placement(2);
        config.snapshot = true;
        assert_ok(rig_create(&env, config, &rig));
        rig_step(&rig, 0);
        save_state(&rig, &expected);
        late.rig = &rig;
        assert_ok(zero_snapshot(rig.zero));
        assert_int_equal(pthread_create(&thread, NULL, save_late, &late), 0);
        rig_step(&rig, 1);
        rig_step(&rig, 2); /* whose passes need the update of the step before */
        assert_true(atomic_load(&late.saved));
        assert_int_equal(pthread_join(thread, NULL), 0);
        config.snapshot = false;
        assert_true(same_image(&expected, &late.image, config));
        rig_destroy(&rig);
        env_destroy(&env);
        image_free(&expected);
        image_free(&late.image);
    }
}

/* --- gradients that are not finite ---------------------------------------------------------- */

struct bad_job {
    struct rig_config config;
    struct engine_result results[3];
};

static void *run_bad(void *argument)
{
    struct bad_job *job = argument;
    struct env env = testing_env(1);
    struct rig rig;
    float nan = NAN, before;
    assert_ok(rig_create(&env, job->config, &rig));
    int victim = model_graph(rig.model)->tensor_count - 1;
    job->results[0] = rig_step(&rig, 0);
    assert_ok(zero_read(rig.zero, victim, 1, 1, &before));
    assert_ok(zero_settle(rig.zero));
    assert_ok(zero_write(rig.zero, victim, 1, 1, &nan));
    assert_ok(zero_publish(rig.zero, 1));
    job->results[1] = rig_step(&rig, 1);
    assert_ok(zero_settle(rig.zero));
    assert_ok(zero_write(rig.zero, victim, 1, 1, &before));
    assert_ok(zero_publish(rig.zero, 1));
    job->results[2] = rig_step(&rig, 1);
    rig_destroy(&rig);
    env_destroy(&env);
    return NULL;
}

static struct bad_job bad_run(struct rig_config config, int ranks)
{
    struct bad_job jobs[MOST_RANKS];
    for (int r = 0; r < ranks; r++)
        jobs[r] = (struct bad_job){.config = config};
    rig_run_ranks(run_bad, jobs, ranks, sizeof *jobs);
    return jobs[0];
}

/* The first one is found in far sums, too; the step changes nothing, and the run continues. */
static void test_bad_gradients(void **state)
{
    (void)state;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        struct rig_config one = base_config(1);
        one.type = bf16 ? DTYPE_BF16 : DTYPE_F32;
        struct bad_job plain = bad_run(one, 1);
        assert_true(plain.results[1].skipped && plain.results[1].bad_tensor >= 0);
        assert_false(plain.results[2].skipped);
        for (int stage = 0; stage <= 3; stage++)
            for (int what = 1; what < 3; what++) {
                struct rig_config config = one;
                config.stage = stage;
                config.offload = placement(what);
                struct bad_job other = bad_run(config, 1 + stage % 3);
                assert_true(other.results[1].skipped);
                assert_int_equal(other.results[1].bad_tensor, plain.results[1].bad_tensor);
                assert_int_equal(other.results[1].bad_index, plain.results[1].bad_index);
                assert_memory_equal(&other.results[2].loss, &plain.results[2].loss, sizeof(double));
                assert_memory_equal(&other.results[2].grad_norm, &plain.results[2].grad_norm,
                                    sizeof(double));
            }
    }
}

/* --- errors --------------------------------------------------------------------------------- */

static void test_every_allocation_may_fail(void **state)
{
    (void)state;
    struct rig_config config = with_kind(base_config(1), KIND_MIXED);
    config.model.layers = 1;
    config.snapshot = true;
    config.offload = placement(2);
    assert_true(fail_each(config, 1, 0) > 40);
    config.stage = 2;
    assert_true(fail_each(config, 2, 1) > 40);
}

/* The disk of one rank fails at some call of some step: every rank stops with an error, that rank
 * says what happened and where, and nothing is left. */
static void test_a_disk_that_fails(void **state)
{
    (void)state;
    char folder[] = "/tmp/sifr-offload-XXXXXX";
    assert_non_null(mkdtemp(folder));
    for (int number = 0; number < 36; number++) {
        static const long long points[] = {1, 2, 5, 12};
        struct fault_job jobs[3];
        int ranks = 1 + number / 3 % 3, who = number % ranks, what = number % 3;
        struct rig_config config = base_config(1);
        config.stage = ranks == 1 ? number % 4 : 1 + number / 9 % 3;
        config.type = number % 2 ? DTYPE_BF16 : DTYPE_F32;
        config.offload = (struct zero_offload){.optimizer = what == 1 ? FAR_NONE : FAR_DISK,
                                               .grads = what == 0 ? FAR_NONE : FAR_DISK,
                                               .share = 1,
                                               .folder = folder};
        for (int r = 0; r < ranks; r++)
            jobs[r] = (struct fault_job){.config = config,
                                         .writes = number / 2 % 2,
                                         .at = r == who ? points[number % 4] : 0};
        rig_run_ranks(run_with_fault, jobs, ranks, sizeof *jobs);
        for (int r = 0; r < ranks; r++)
            assert_int_not_equal(jobs[r].st, STATUS_OK);
        assert_int_equal(jobs[who].st, STATUS_IO);
        assert_non_null(strstr(jobs[who].message, folder));
        assert_non_null(strstr(jobs[who].message, "at byte "));
        assert_non_null(strstr(jobs[who].message, "(offload.folder)"));
        assert_non_null(strstr(jobs[who].message, jobs[who].writes ? "free some space" : "dmesg"));
        assert_int_equal(entries_in(folder), 0);
    }
    assert_int_equal(rmdir(folder), 0);
}

/* Before the first step: a folder that does not exist, and a disk without room. */
static enum status create_with(struct rig_config config, struct output_faults *faults,
                               char message[512])
{
    struct env env = testing_env(1);
    struct rig rig;
    env.faults = faults;
    enum status st = rig_create(&env, config, &rig);
    if (st == STATUS_OK)
        rig_destroy(&rig);
    const char *text = log_first_error(env.log);
    snprintf(message, 512, "%s", text ? text : "");
    assert_int_equal(mem_total(env.mem), 0);
    env_destroy(&env);
    return st;
}

static bool little_room(void *user, const char *path, uint64_t *bytes)
{
    (void)user, (void)path;
    *bytes = 5000;
    return true;
}

static void test_no_place_on_disk(void **state)
{
    (void)state;
    char message[512];
    struct rig_config config = base_config(1);
    struct output_faults full = {.free_bytes = little_room};
    config.offload = (struct zero_offload){
        .optimizer = FAR_DISK, .grads = FAR_DISK, .share = 1, .folder = "/tmp/no-such-folder"};
    assert_int_equal(create_with(config, NULL, message), STATUS_IO);
    assert_non_null(strstr(message, "'/tmp/no-such-folder'"));
    assert_non_null(strstr(message, "(offload.folder): No such file or directory"));
    config.offload.folder = "/tmp";
    assert_int_equal(create_with(config, &full, message), STATUS_IO);
    assert_non_null(strstr(message, "cannot reserve "));
    assert_non_null(strstr(message, "optimizer state"));
}

/* --- memory --------------------------------------------------------------------------------- */

/* Bytes of one location, of params, gradients, optimizer and what leads to far memory. */
static double state_in(const struct env *env, enum mem_location location)
{
    static const enum mem_category counted[] = {MEM_PARAMS, MEM_GRADS, MEM_OPTIMIZER, MEM_SLOTS};
    struct mem_sums sums = mem_sums(env->mem, location, false);
    double bytes = 0;
    for (int c = 0; c < 4; c++)
        bytes += (double)sums.bytes[counted[c]];
    return bytes;
}

/* What is far is not on the device; the window is small. In bf16: 2 bytes for params, 2 for the
 * gradients of a unit at most, 4 for sums, 12 for the state. */
static void test_memory(void **state)
{
    (void)state;
    double plain = 0;
    static const double far_bytes[] = {0, 12, 4, 16};
    for (int what = 0; what < 4; what++) {
        struct env env = testing_env(1);
        struct rig rig;
        struct rig_config config = base_config(1);
        config.type = DTYPE_BF16;
        config.noise = false;
        config.model.width = 320, config.model.ff = 800;
        config.model.heads = 4, config.model.kv_heads = 2, config.model.head_width = 80;
        config.offload = (struct zero_offload){.optimizer = what % 2 ? FAR_DISK : FAR_NONE,
                                               .grads = what / 2 ? FAR_DISK : FAR_NONE,
                                               .share = 1};
        assert_ok(rig_create(&env, config, &rig));
        double count = (double)unit_graph_count(model_graph(rig.model));
        double held = state_in(&env, device_memory(rig.device)), disk = state_in(&env, MEM_DISK);
        plain = what == 0 ? held : plain;
        assert_true(disk >= far_bytes[what] * count && disk <= (far_bytes[what] + 0.5) * count);
        assert_true(held <= plain - (far_bytes[what] - 1.5) * count);
        rig_destroy(&rig);
        env_destroy(&env);
    }
}

/* An argument chooses tests by a pattern of their names. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stages_and_ranks),
        cmocka_unit_test(test_one_micro_batch),
        cmocka_unit_test(test_optimizers),
        cmocka_unit_test(test_servers_and_groups),
        cmocka_unit_test(test_pipelines),
        cmocka_unit_test(test_tensor_parallelism),
        cmocka_unit_test(test_sars),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_16_bit_sums_on_two_streams),
        cmocka_unit_test(test_state_moves_between_placements),
        cmocka_unit_test(test_load_into_a_running_store),
        cmocka_unit_test(test_updates_wait_for_a_save),
        cmocka_unit_test(test_bad_gradients),
        cmocka_unit_test(test_every_allocation_may_fail),
        cmocka_unit_test(test_a_disk_that_fails),
        cmocka_unit_test(test_no_place_on_disk),
        cmocka_unit_test(test_memory),
    };
    if (test_device_missing())
        return 77;
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
