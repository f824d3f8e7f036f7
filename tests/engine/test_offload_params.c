/* Params in far memory (zero_offload_params.c), alone and together with optimizer state and sums: no
 * placement changes a bit of losses, norms, params and saved state; params are read, written, saved
 * in the background and resumed from where they are; the device holds only the slots of the passes;
 * and a disk that fails ends every rank before a wrong loss is seen.
 *
 * On the CPU, SIFR_CPU_OFFLOAD=1 makes host memory far, as on a GPU. The window is the smallest, so
 * several packets of a piece pass each slot. */
#include <math.h>

#include "engine/watched.h"

/* Placement `number`, counted up by the tests. Params are always far, on disk or in host memory;
 * state and sums stay, go to the same place, or one of them goes to the other place. */
static struct zero_offload placement(int number)
{
    enum far_kind kind = number % 2 ? FAR_HOST : FAR_DISK;
    enum far_kind other = number % 2 ? FAR_DISK : FAR_HOST;
    static const struct {
        int state, sums; /* 0: on the device, 1: where params are, 2: the other place */
    } what[] = {{0, 0}, {1, 1}, {1, 0}, {0, 1}, {2, 0}, {2, 1}};
    const enum far_kind kinds[] = {FAR_NONE, kind, other};
    int which = number / 2 % 6;
    return (struct zero_offload){.optimizer = kinds[what[which].state],
                                 .grads = kinds[what[which].sums],
                                 .params = kind,
                                 .share = which == 2 ? 0.4 : 1,
                                 .on_host = number % 3 == 0};
}

enum { PLACEMENTS = 12 };

/* --- bits ----------------------------------------------------------------------------------- */

static void test_stages_and_ranks(void **state)
{
    (void)state;
    static const int rank_counts[] = {1, 2, 4};
    for (int model = 0; model < 4; model++) { /* tied and not, in fp32 and bf16 */
        struct rig_config one = base_config(model % 2);
        int number = model;
        one.type = model / 2 ? DTYPE_BF16 : DTYPE_F32;
        one.model.tied = model == 1 || model == 2;
        struct watch plain = watch_run(one, 1);
        for (int stage = 0; stage <= 3; stage++)
            for (int r = 0; r < 3; r++)
                for (int k = 0; k < 2; k++, number += 5) {
                    struct rig_config config = one;
                    config.stage = stage;
                    config.prefetch = (stage + r + k) % 3;
                    config.recompute = number % 3;
                    config.offload = placement(number);
                    expect_same(&plain, one, config, rank_counts[r]);
                }
        watch_free(&plain);
    }
}

static const struct zero_group with_muon[] = {
    {"*attn*", 1, 0.1, {.kind = OPTIMIZER_ADAMW8BIT, ADAM}},
    {"*mlp*", 0.5, 0.1, {.kind = OPTIMIZER_MUON, ADAM, .momentum = 0.95, .nesterov = true}},
};

enum { KIND_MUON = KINDS, KIND_MIXED_MUON, ALL_KINDS };

static struct rig_config with_any_kind(int kind)
{
    struct rig_config config = with_kind(base_config(kind % 2 == 0), kind);
    if (kind == KIND_MUON)
        config.optimizer = OPTIMIZER_MUON, config.no_momentum = false;
    if (kind == KIND_MIXED_MUON) {
        config = base_config(0);
        config.groups = with_muon, config.group_count = 2;
    }
    return config;
}

static void test_optimizers(void **state)
{
    (void)state;
    for (int kind = 0; kind < ALL_KINDS; kind++)
        for (int narrow = 0; narrow < 3; narrow++) {
            struct rig_config one = with_any_kind(kind);
            one.type = narrow ? DTYPE_BF16 : DTYPE_F32;
            one.stochastic = narrow == 2;
            struct watch plain = watch_run(one, 1);
            for (int k = 0; k < 4; k++) {
                int number = 3 * k + kind + narrow;
                struct rig_config config = one;
                config.stage = (k + kind) % 4;
                config.prefetch = k % 2;
                config.offload = placement(number);
                expect_same(&plain, one, config, 1 + number % 3);
            }
            watch_free(&plain);
        }
}

/* A single gradient is its own sum; and larger windows hold more packets, up to all of them. */
static void test_one_micro_batch(void **state)
{
    (void)state;
    static const int64_t windows[] = {0, 100000, 1 << 20, 1 << 30};
    for (int bf16 = 0; bf16 < 2; bf16++) {
        struct rig_config one = base_config(1);
        one.micro_batches = 1;
        one.noise = false;
        one.type = bf16 ? DTYPE_BF16 : DTYPE_F32;
        struct watch plain = watch_run(one, 1);
        for (int number = 0; number < PLACEMENTS; number++) {
            struct rig_config config = one;
            config.stage = number % 4;
            config.offload = placement(number);
            config.offload.window = windows[number % 4];
            expect_same(&plain, one, config, 1 + number % 2);
        }
        watch_free(&plain);
    }
}

/* A server reads its shards to send them. Shard groups hold params several times. */
static void test_servers_and_groups(void **state)
{
    (void)state;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        struct rig_config one = base_config(bf16);
        one.type = bf16 ? DTYPE_BF16 : DTYPE_F32;
        struct watch plain = watch_run(one, 1);
        for (int stage = 1; stage <= 3; stage++)
            for (int k = 0; k < 3; k++) {
                struct rig_config config = one;
                config.stage = stage;
                config.delays = 1e-4;
                config.offload = placement(4 * k + stage);
                config.servers = stage == 2 ? 2 : 1;
                expect_same(&plain, one, config, 2 + config.servers);
                config.servers = 0, config.group = stage == 1 ? 1 : 2;
                expect_same(&plain, one, config, 4);
            }
        watch_free(&plain);
    }
}

/* PP stages that share a tied table keep it on the device. */
static void test_pipelines(void **state)
{
    (void)state;
    for (int llama = 0; llama < 2; llama++)
        for (int tied = 0; tied < 2; tied++) {
            struct rig_config one = shared_config(llama);
            one.type = llama ? DTYPE_BF16 : DTYPE_F32;
            one.model.tied = tied;
            struct watch plain = watch_run(one, 1);
            for (int stage = 0; stage <= 3; stage++) {
                struct rig_config config = one;
                config.stage = stage;
                config.pp = 2;
                config.kind = stage % 2 ? TIMETABLE_ZERO_BUBBLE : TIMETABLE_1F1B;
                config.offload = placement(3 * stage + llama + tied);
                expect_same(&plain, one, config, (stage + tied) % 2 ? 4 : 2);
            }
            watch_free(&plain);
        }
}

static void test_tensor_parallelism(void **state)
{
    (void)state;
    for (int llama = 0; llama < 2; llama++) {
        struct rig_config one = shared_config(llama);
        one.tp = 2;
        one.tokens = 12;
        one.sequence = llama;
        one.type = llama ? DTYPE_BF16 : DTYPE_F32;
        struct watch plain = watch_run(one, 2);
        for (int stage = 0; stage <= 3; stage++) {
            struct rig_config config = one;
            config.stage = stage;
            config.offload = placement(3 * stage + llama);
            expect_same(&plain, one, config, stage % 2 ? 4 : 2);
        }
        watch_free(&plain);
    }
}

/* Frozen tensors are far params without packets: those of SARS, and those that model.freeze names. */
static void test_frozen_tensors(void **state)
{
    (void)state;
    for (int model = 0; model < 4; model++) {
        struct rig_config one = base_config(model % 2);
        if (model < 2)
            one.model = rig_sars(), one.meta_clip = 0.5;
        else
            one.model.freeze = model % 2 ? "*norm*,*.mlp.*" : "*wpe*,*ln_*";
        one.type = model % 2 ? DTYPE_BF16 : DTYPE_F32;
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

/* Pieces of several units, local sums, 16-bit sums, and steps of different sizes. */
static void test_pieces_and_sums(void **state)
{
    (void)state;
    static const int64_t ramp[] = {1, 2, 5, 3};
    for (int kind = 0; kind < 5; kind++) {
        struct rig_config one = base_config(1);
        int ranks = kind == 1 || kind == 2 ? 2 : 1;
        one.type = kind % 2 ? DTYPE_BF16 : DTYPE_F32;
        one.local = kind == 2;
        one.sum_type = kind == 1 ? DTYPE_BF16 : DTYPE_F32;
        one.ramp = kind > 2 ? ramp : NULL;
        one.noise = kind < 3;
        struct watch plain = watch_run(one, ranks);
        for (int stage = 0; stage <= 3; stage++) {
            struct rig_config config = one;
            config.stage = stage;
            config.bucket = stage == 1 ? 20000 : 0;
            config.unit_layers = stage == 2 ? 2 : 1;
            config.offload = placement(3 * stage + kind);
            expect_same(&plain, one, config, ranks == 2 ? 2 : 1 + stage % 3);
        }
        watch_free(&plain);
    }
}

/* Evaluations read params while updates are pending. */
static void test_evaluations(void **state)
{
    (void)state;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        struct rig_config config = base_config(bf16);
        config.type = bf16 ? DTYPE_BF16 : DTYPE_F32;
        struct trace plain = run(config, 1);
        for (int number = 0; number < 8; number++) {
            config.stage = number % 4;
            config.prefetch = number % 3;
            config.offload = placement(number + bf16);
            compare(&plain, config, 1 + number % 2);
        }
        free(plain.params);
    }
}

/* --- outside of a step ---------------------------------------------------------------------- */

static void test_state_moves_between_placements(void **state)
{
    (void)state;
    for (int kind = 0; kind < ALL_KINDS; kind++) {
        struct rig_config one = with_any_kind(kind), first = one, second = one;
        one.type = first.type = second.type = kind % 2 ? DTYPE_BF16 : DTYPE_F32;
        one.stochastic = first.stochastic = second.stochastic = kind == 1;
        first.offload = placement(kind);
        first.stage = kind % 4;
        check_move(one, first, 1 + kind % 3, one, 1);
        check_move(one, one, 1, first, 2);
        second.offload = placement(kind + 3);
        second.stage = 3;
        check_move(one, first, 2, second, 3);
    }
}

/* What was fetched ahead is not what a later load, or zero_write, has written. */
static void test_load_into_a_running_store(void **state)
{
    (void)state;
    for (int number = 0; number < PLACEMENTS; number++) {
        struct rig_config config = base_config(1);
        config.type = number / 2 % 2 ? DTYPE_BF16 : DTYPE_F32;
        config.offload = placement(number);
        check_load_into_running(config);
    }
}

struct write_job {
    struct rig_config config;
    float *params[2]; /* after the write, and after a step with it */
    int64_t count;
};

/* Elements inside and at the ends of a tensor. */
static void *write_and_step(void *argument)
{
    struct write_job *job = argument;
    struct env env = testing_env(1);
    struct rig rig;
    assert_ok(rig_create(&env, job->config, &rig));
    const struct unit_graph *graph = model_graph(rig.model);
    rig_step(&rig, 0);
    assert_ok(zero_settle(rig.zero));
    for (int t = 0; t < graph->tensor_count; t++) {
        int64_t count = unit_tensor_whole(&graph->tensors[t]), half = count / 2;
        float values[40], back[40];
        int n = (int)(count - half < 37 ? count - half : 37);
        assert_ok(zero_read(rig.zero, t, half, n, values));
        for (int i = 0; i < n; i++)
            values[i] += 0.125F * (float)(i % 3);
        assert_ok(zero_write(rig.zero, t, half, n, values));
        assert_ok(zero_read(rig.zero, t, half, n, back));
        if (job->config.type == DTYPE_F32)
            assert_memory_equal(values, back, (size_t)n * sizeof *values);
    }
    assert_ok(zero_publish(rig.zero, 1));
    job->params[0] = rig_params(&rig, &job->count);
    rig_step(&rig, 1);
    job->params[1] = rig_params(&rig, &job->count);
    rig_destroy(&rig);
    env_destroy(&env);
    return NULL;
}

static struct write_job write_run(struct rig_config config, int ranks)
{
    struct write_job jobs[MOST_RANKS];
    for (int r = 0; r < ranks; r++)
        jobs[r] = (struct write_job){.config = config};
    rig_run_ranks(write_and_step, jobs, ranks, sizeof *jobs);
    for (int r = 1; r < ranks; r++)
        free(jobs[r].params[0]), free(jobs[r].params[1]);
    return jobs[0];
}

static void test_params_are_written(void **state)
{
    (void)state;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        struct rig_config one = base_config(bf16);
        one.type = bf16 ? DTYPE_BF16 : DTYPE_F32;
        struct write_job plain = write_run(one, 1);
        size_t bytes = (size_t)plain.count * sizeof(float);
        for (int number = 0; number < PLACEMENTS; number++) {
            struct rig_config config = one;
            config.stage = number % 4;
            config.offload = placement(number);
            struct write_job far = write_run(config, 1 + number % 3);
            assert_memory_equal(plain.params[0], far.params[0], bytes);
            assert_memory_equal(plain.params[1], far.params[1], bytes);
            free(far.params[0]), free(far.params[1]);
        }
        free(plain.params[0]), free(plain.params[1]);
    }
}

struct late_save {
    struct rig *rig;
    struct image image;
    bool after_steps; /* save when the steps are done, or after 20 seconds if they never are */
    atomic_bool stepped, saved;
};

static void *save_late(void *argument)
{
    struct late_save *save = argument;
    threads_nap(0.1);
    for (int i = 0; i < 2000 && save->after_steps && !atomic_load(&save->stepped); i++)
        threads_nap(0.01);
    save_snapshot(save->rig, &save->image);
    atomic_store(&save->saved, true);
    zero_snapshot_end(save->rig->zero);
    return NULL;
}

/* In fp32 far params are their own masters: the update that would change them waits for the save.
 * With 16-bit params and masters on the device, nothing that is saved is far, and no update waits. */
static void test_updates_wait_for_a_save(void **state)
{
    (void)state;
    for (int number = 0; number < 4; number++) {
        struct image expected = {.lock = PTHREAD_MUTEX_INITIALIZER};
        struct late_save late = {.image.lock = PTHREAD_MUTEX_INITIALIZER};
        struct rig_config config = base_config(1);
        struct env env = testing_env(1);
        struct rig rig;
        pthread_t thread;
        config.type = number / 2 ? DTYPE_BF16 : DTYPE_F32;
        config.offload = placement(number % 2);
        config.snapshot = true;
        assert_ok(rig_create(&env, config, &rig));
        rig_step(&rig, 0);
        save_state(&rig, &expected);
        late.rig = &rig;
        late.after_steps = config.type != DTYPE_F32;
        assert_ok(zero_snapshot(rig.zero));
        assert_int_equal(pthread_create(&thread, NULL, save_late, &late), 0);
        rig_step(&rig, 1);
        rig_step(&rig, 2); /* whose passes need the update of the step before */
        assert_int_equal(atomic_load(&late.saved), !late.after_steps);
        atomic_store(&late.stepped, true);
        assert_int_equal(pthread_join(thread, NULL), 0);
        config.snapshot = false;
        assert_true(same_image(&expected, &late.image, config));
        rig_destroy(&rig);
        env_destroy(&env);
        image_free(&expected);
        image_free(&late.image);
    }
}

/* --- errors --------------------------------------------------------------------------------- */

static void test_every_allocation_may_fail(void **state)
{
    (void)state;
    struct rig_config config = base_config(1);
    config.model.layers = 1;
    config.snapshot = true;
    config.offload = (struct zero_offload){.params = FAR_DISK};
    assert_true(fail_each(config, 1, 0) > 40);
    config.type = DTYPE_BF16;
    config.stage = 2;
    config.offload = (struct zero_offload){.params = FAR_HOST, .grads = FAR_DISK};
    assert_true(fail_each(config, 2, 1) > 40);
}

/* Only params are on the disk of one rank that fails. */
static void test_a_disk_that_fails(void **state)
{
    (void)state;
    char folder[] = "/tmp/sifr-params-XXXXXX";
    assert_non_null(mkdtemp(folder));
    for (int number = 0; number < 24; number++) {
        static const long long points[] = {1, 3, 8, 20};
        struct fault_job jobs[3];
        int ranks = 1 + number / 4 % 3, who = number % ranks;
        struct rig_config config = base_config(1);
        config.stage = number % 4;
        config.prefetch = number % 3;
        config.type = number % 2 ? DTYPE_BF16 : DTYPE_F32;
        config.offload = (struct zero_offload){.params = FAR_DISK, .folder = folder};
        for (int r = 0; r < ranks; r++)
            jobs[r] = (struct fault_job){.config = config,
                                         .writes = number / 2 % 2,
                                         .at = r == who ? points[number % 4] : 0};
        rig_run_ranks(run_with_fault, jobs, ranks, sizeof *jobs);
        for (int r = 0; r < ranks; r++)
            assert_int_not_equal(jobs[r].st, STATUS_OK);
        assert_int_equal(jobs[who].st, STATUS_IO);
        assert_non_null(strstr(jobs[who].message, folder));
        assert_non_null(strstr(jobs[who].message, "params"));
        assert_non_null(strstr(jobs[who].message, "(offload.folder)"));
        assert_non_null(strstr(jobs[who].message, jobs[who].writes ? "free some space" : "dmesg"));
        assert_int_equal(entries_in(folder), 0);
    }
    assert_int_equal(rmdir(folder), 0);
}

/* A read that fails ends the step, or the evaluation, that it belongs to: nobody sees a loss of
 * params that were not read. */
static void test_a_failed_read_gives_no_loss(void **state)
{
    (void)state;
    for (int evaluates = 0; evaluates < 2; evaluates++) {
        struct env env = testing_env(1);
        struct rig rig;
        struct engine_result result;
        struct input_faults faults = {.error = EIO, .times = 1 << 20};
        struct rig_config config = base_config(1);
        double sum = 0, labels = 0;
        config.type = DTYPE_BF16; /* the update reads no params */
        config.offload = (struct zero_offload){.params = FAR_DISK};
        assert_ok(rig_create(&env, config, &rig));
        rig_step(&rig, 0);
        assert_ok(zero_settle(rig.zero));
        atomic_store(&faults.left, 1);
        env.input_faults = &faults;
        rig_fill(&rig, 1, 0);
        enum status st = evaluates ? engine_eval(rig.engine, 1, &sum, &labels)
                                   : engine_step(rig.engine, 2, 1e-2, &result);
        assert_int_equal(st, STATUS_IO);
        assert_non_null(strstr(log_first_error(env.log), "params"));
        env.input_faults = NULL;
        rig_destroy(&rig);
        env_destroy(&env);
    }
}

/* --- memory --------------------------------------------------------------------------------- */

static double bytes_in(const struct env *env, enum mem_location location,
                       enum mem_category category)
{
    return (double)mem_sums(env->mem, location, false).bytes[category];
}

/* Params leave the device; what stays are the slots of a few units, in every stage. */
static void check_memory(struct rig_config config, enum far_kind kind)
{
    struct env near_env = testing_env(1), far_env = testing_env(1);
    struct rig near, far;
    assert_ok(rig_create(&near_env, config, &near));
    config.offload.params = kind;
    assert_ok(rig_create(&far_env, config, &far));
    enum mem_location device = device_memory(far.device),
                      place = kind == FAR_DISK ? MEM_DISK : MEM_HOST;
    double all =
        (double)dtype_bytes(config.type) * (double)unit_graph_count(model_graph(far.model));
    double there = bytes_in(&far_env, place, MEM_PARAMS);
    double slots = bytes_in(&far_env, device, MEM_SLOTS) - bytes_in(&near_env, device, MEM_SLOTS);
    assert_true(bytes_in(&near_env, device, MEM_PARAMS) >= all);
    assert_true(device == place || bytes_in(&far_env, device, MEM_PARAMS) == 0);
    assert_true(there >= all && there < all * 1.02);
    assert_true(slots > 0 && slots < 4 * all / (double)config.model.layers);
    static const enum mem_category same[] = {MEM_GRADS, MEM_OPTIMIZER};
    for (int c = 0; c < 2; c++)
        assert_true(bytes_in(&far_env, device, same[c]) == bytes_in(&near_env, device, same[c]));
    rig_destroy(&near), rig_destroy(&far);
    env_destroy(&near_env), env_destroy(&far_env);
}

static void test_memory(void **state)
{
    (void)state;
    for (int number = 0; number < 16; number++) {
        if (number > 0 && !testing_sampled())
            continue;
        struct rig_config config = base_config(1);
        config.type = number / 8 ? DTYPE_BF16 : DTYPE_F32;
        config.stage = number % 4;
        config.model.layers = 12;
        config.model.width = 160, config.model.ff = 400;
        config.model.heads = 4, config.model.kv_heads = 2, config.model.head_width = 40;
        check_memory(config, number / 4 % 2 ? FAR_HOST : FAR_DISK);
    }
}

static void test_dry_device_counts_the_same_bytes(void **state)
{
    (void)state;
    for (int number = 0; number < PLACEMENTS; number++) {
        struct env real_env = testing_env(1), dry_env = testing_env(1);
        struct rig real, dry;
        struct rig_config config = base_config(number % 2);
        config.type = number % 4 < 2 ? DTYPE_BF16 : DTYPE_F32;
        config.offload = placement(number);
        config.snapshot = number % 3 == 0;
        assert_ok(rig_create(&real_env, config, &real));
        config.device = on_gpu() ? "dry-gpu" : "dry";
        assert_ok(rig_create(&dry_env, config, &dry));
        for (int c = 0; c < MEM_OTHER; c++)
            assert_int_equal(mem_bytes(real_env.mem, c), mem_bytes(dry_env.mem, c));
        rig_destroy(&real), rig_destroy(&dry);
        env_destroy(&real_env), env_destroy(&dry_env);
    }
}

/* An argument chooses tests by a pattern of their names. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stages_and_ranks),
        cmocka_unit_test(test_optimizers),
        cmocka_unit_test(test_one_micro_batch),
        cmocka_unit_test(test_servers_and_groups),
        cmocka_unit_test(test_pipelines),
        cmocka_unit_test(test_tensor_parallelism),
        cmocka_unit_test(test_frozen_tensors),
        cmocka_unit_test(test_pieces_and_sums),
        cmocka_unit_test(test_evaluations),
        cmocka_unit_test(test_state_moves_between_placements),
        cmocka_unit_test(test_load_into_a_running_store),
        cmocka_unit_test(test_params_are_written),
        cmocka_unit_test(test_updates_wait_for_a_save),
        cmocka_unit_test(test_every_allocation_may_fail),
        cmocka_unit_test(test_a_disk_that_fails),
        cmocka_unit_test(test_a_failed_read_gives_no_loss),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_dry_device_counts_the_same_bytes),
    };
    if (test_device_missing())
        return 77;
    setenv("SIFR_CPU_OFFLOAD", "1", 1);
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
