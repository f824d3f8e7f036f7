/* Moments of every form, and of several forms in one piece: no layout changes a bit, and state that
 * is saved on one layout continues on another with the same bits. Ranks are threads of one
 * process. */
#include "engine/images.h"

/* --- layouts -------------------------------------------------------------------------------- */

static void test_layouts_have_equal_bits(void **state)
{
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        struct rig_config config = with_kind(base_config(kind % 2 == 0), kind);
        struct trace plain = run(config, 1);
        config.threads = 2;
        compare(&plain, config, 1);
        config.threads = 0;
        for (int stage = 0; stage < 4; stage++) {
            config.stage = stage;
            compare(&plain, config, 2);
            compare(&plain, config, stage % 2 ? 3 : 5);
        }
        config.servers = 2;
        compare(&plain, config, 5);
        config.servers = 0, config.group = 2;
        compare(&plain, config, 4);
        config.group = 0, config.pp = 2, config.chunks = 1, config.kind = TIMETABLE_1F1B;
        compare(&plain, config, 4);
        free(plain.params);
    }
}

/* In bf16 masters are separate, and stochastic rounding has random bits of its own. */
static void test_bf16_has_equal_bits(void **state)
{
    (void)state;
    for (int kind = 0; kind < KINDS; kind += 3) {
        struct rig_config config = with_kind(base_config(1), kind);
        config.type = DTYPE_BF16;
        config.stochastic = true;
        struct trace plain = run(config, 1);
        config.stage = 3;
        compare(&plain, config, 3);
        free(plain.params);
    }
}

/* --- memory --------------------------------------------------------------------------------- */

static size_t optimizer_bytes_of(struct rig_config config, size_t *snapshot, double *count)
{
    struct env env = testing_env(1);
    struct rig rig;
    assert_ok(rig_create(&env, config, &rig));
    size_t bytes = mem_bytes(env.mem, MEM_OPTIMIZER);
    *snapshot = mem_bytes(env.mem, MEM_SNAPSHOT);
    *count = (double)unit_graph_count(model_graph(rig.model));
    rig_destroy(&rig);
    env_destroy(&env);
    return bytes;
}

static void test_bytes_follow_the_kind(void **state)
{
    (void)state;
    static const double expected[] = {
        [KIND_ADAMW8BIT] = 2 + 2.0 / 64, [KIND_SGD] = 0, [KIND_SGD_MOMENTUM] = 4};
    for (int kind = 0; kind <= KIND_SGD_MOMENTUM; kind++) {
        struct rig_config config = with_kind(base_config(1), kind);
        size_t snapshot;
        double count;
        config.snapshot = true;
        double bytes = (double)optimizer_bytes_of(config, &snapshot, &count);
        /* padding, and blocks that are cut where a tensor ends */
        assert_true(bytes >= expected[kind] * count && bytes <= 1.05 * expected[kind] * count);
        double saved = (4 + expected[kind]) * count;
        assert_true((double)snapshot >= saved && (double)snapshot <= 1.01 * saved);
    }
}

/* --- state that moves to another layout ------------------------------------------------------- */

static void test_state_moves_between_layouts(void **state)
{
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        struct rig_config one = with_kind(shared_config(kind % 2 == 0), kind);
        struct rig_config many = one, pipe = one, servers = one;
        many.stage = 3;
        pipe.pp = 2, pipe.stage = 1;
        servers.stage = 2, servers.servers = 1;
        check_move(one, one, 1, many, 5);
        check_move(one, many, 3, pipe, 4);
        check_move(one, pipe, 2, servers, 3);
        check_move(one, servers, 4, one, 1);
    }
}

/* With the same TP degree; codes are saved as fp32. */
static void test_state_of_tp_ranks_moves(void **state)
{
    (void)state;
    for (int kind = 0; kind < KINDS; kind += 3)
        for (int llama = 0; llama < 2; llama++) {
            struct rig_config one = with_kind(shared_config(llama), kind);
            one.tp = 2;
            struct rig_config many = one, pipe = one;
            many.stage = 3;
            pipe.pp = 2, pipe.stage = 2;
            check_move(one, one, 2, many, 6);
            check_move(one, many, 4, pipe, 8);
            check_move(one, pipe, 4, one, 2);
        }
}

/* --- floats that are encoded ------------------------------------------------------------------ */

/* Codes as floats, encoded again in chunks that end anywhere: the same floats. */
static void test_decoded_codes_are_encoded_again(void **state)
{
    (void)state;
    struct rig_config config = with_kind(base_config(1), KIND_ADAMW8BIT);
    struct image image = {.lock = PTHREAD_MUTEX_INITIALIZER};
    struct move_job job = {.config = config, .end = 2, .to = &image};
    struct env env = testing_env(1);
    struct rig rig;
    int64_t all;
    free(move(&job, 1, &all));
    assert_ok(rig_create(&env, config, &rig));
    const struct unit_graph *graph = model_graph(rig.model);
    for (int t = 0; t < graph->tensor_count; t++)
        for (int s = ZERO_MOMENTUM; s <= ZERO_VARIANCE; s++) {
            enum zero_state codes = (enum zero_state)s, scales = (enum zero_state)(s + 2);
            int64_t count = unit_tensor_whole(&graph->tensors[t]);
            int skip = zero_code_skip(graph, t);
            float *values = malloc((size_t)count * sizeof *values),
                  *again = malloc((size_t)count * sizeof *values);
            uint8_t *read = malloc((size_t)count), *read_scales = malloc((size_t)count);
            assert_true(values && again && read && read_scales);
            zero_decode(codes, (uint8_t *)image.arrays[codes][t],
                        (uint8_t *)image.arrays[scales][t], skip, count, 1, values);
            for (int64_t first = 0, n; first < count; first += n) {
                n = count - first < 37 ? count - first : 37;
                assert_ok(
                    zero_state_write(rig.zero, codes, t, first, n, DTYPE_F32, values + first));
            }
            assert_ok(zero_state_read(rig.zero, codes, t, 0, count, read));
            assert_ok(zero_state_read(rig.zero, scales, t, 0,
                                      zero_state_array(rig.zero, scales, t).count, read_scales));
            zero_decode(codes, read, read_scales, skip, count, 2, again);
            assert_memory_equal(values, again, (size_t)count * sizeof *values);
            free(values), free(again), free(read), free(read_scales);
        }
    rig_destroy(&rig);
    env_destroy(&env);
    image_free(&image);
}

static void test_every_allocation_may_fail(void **state)
{
    (void)state;
    struct rig_config config = with_kind(base_config(1), KIND_MIXED);
    config.model.layers = 1;
    config.snapshot = true;
    assert_true(fail_each(config, 2, 1) > 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layouts_have_equal_bits),
        cmocka_unit_test(test_bf16_has_equal_bits),
        cmocka_unit_test(test_bytes_follow_the_kind),
        cmocka_unit_test(test_state_moves_between_layouts),
        cmocka_unit_test(test_state_of_tp_ranks_moves),
        cmocka_unit_test(test_decoded_codes_are_encoded_again),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    if (test_device_missing())
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
