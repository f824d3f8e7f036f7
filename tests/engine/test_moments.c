/* Moments of every form, and of several forms in one piece: no layout changes a bit, and state that
 * is saved on one layout continues on another with the same bits. Ranks are threads of one
 * process. */
#include <pthread.h>

#include "engine/ranks.h"

/* --- optimizers ----------------------------------------------------------------------------- */

#define ADAM .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8

/* The tensors of GPT-2's blocks, and, of Llama's, those that are fused into one param, have
 * different optimizers. */
static const struct zero_group mixed_gpt2[] = {
    {"*attn*", 1, 0.1, {.kind = OPTIMIZER_ADAMW8BIT, ADAM}},
    {"*mlp*weight", 0.5, 0.1, {.kind = OPTIMIZER_SGD, .momentum = 0.9, .nesterov = true}},
    {"*ln_*", 1, 0, {.kind = OPTIMIZER_SGD}},
    {"*mlp.c_proj.bias", 1, 0, {.kind = OPTIMIZER_ADAMW8BIT, ADAM}},
};
static const struct zero_group mixed_llama[] = {
    {"*q_proj*", 1, 0.1, {.kind = OPTIMIZER_SGD, .momentum = 0.9}},
    {"*k_proj*", 1, 0.1, {.kind = OPTIMIZER_ADAMW8BIT, ADAM}},
    {"*gate_proj*", 1, 0.1, {.kind = OPTIMIZER_SGD}},
    {"*up_proj*", 1, 0.1, {.kind = OPTIMIZER_ADAMW8BIT, ADAM}},
    {"*norm*", 1, 0.1, {.kind = OPTIMIZER_ADAMW8BIT, ADAM}},
};

enum { KIND_ADAMW8BIT, KIND_SGD, KIND_SGD_MOMENTUM, KIND_MIXED, KINDS };

static struct rig_config with_kind(struct rig_config config, int kind)
{
    bool llama = config.model.arch == MODEL_LLAMA;
    config.optimizer = kind == KIND_ADAMW8BIT ? OPTIMIZER_ADAMW8BIT
                       : kind == KIND_MIXED   ? OPTIMIZER_ADAMW
                                              : OPTIMIZER_SGD;
    config.no_momentum = kind == KIND_SGD;
    if (kind == KIND_MIXED) {
        config.groups = llama ? mixed_llama : mixed_gpt2;
        config.group_count = llama ? 5 : 4;
    }
    return config;
}

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

enum { MOST_TENSORS = 64 };

struct image { /* the saved state of a whole model */
    pthread_mutex_t lock;
    char *arrays[ZERO_STATES][MOST_TENSORS];
};

struct move_job {
    struct rig_config config;
    int begin, end;          /* steps */
    struct image *from, *to; /* NULL: none */
    int64_t chunk;           /* elements written at once; 0: all */
    float *params;
    int64_t count;
};

static char *image_at(struct image *image, int state, int tensor, size_t bytes)
{
    pthread_mutex_lock(&image->lock);
    char **array = &image->arrays[state][tensor];
    if (!*array)
        *array = calloc(bytes, 1);
    assert_non_null(*array);
    pthread_mutex_unlock(&image->lock);
    return *array;
}

static void image_free(struct image *image)
{
    for (int s = 0; s < ZERO_STATES; s++)
        for (int t = 0; t < MOST_TENSORS; t++)
            free(image->arrays[s][t]);
    pthread_mutex_destroy(&image->lock);
}

static void save_state(struct rig *rig, struct image *image)
{
    const struct unit_graph *graph = model_graph(rig->model);
    assert_true(graph->tensor_count <= MOST_TENSORS);
    assert_ok(zero_snapshot(rig->zero));
    for (int s = 0; s < ZERO_STATES; s++)
        for (int t = 0; t < graph->tensor_count; t++) {
            enum zero_state state = (enum zero_state)s;
            struct zero_array array = zero_state_array(rig->zero, state, t);
            size_t width = dtype_bytes(array.type);
            struct zero_ranges part = zero_state_to_save(rig->zero, state, t, rig->config.rank);
            for (int i = 0; i < part.count; i++)
                memcpy(image_at(image, s, t, (size_t)array.count * width) +
                           (size_t)part.at[i].first * width,
                       zero_snapshot_at(rig->zero, state, t, part.at[i].first),
                       (size_t)part.at[i].count * width);
        }
}

/* In chunks, as from a file. */
static void load_state(struct rig *rig, const struct move_job *job)
{
    const struct unit_graph *graph = model_graph(rig->model);
    for (int s = 0; s < ZERO_STATES; s++)
        for (int t = 0; t < graph->tensor_count; t++) {
            enum zero_state state = (enum zero_state)s;
            struct zero_array array = zero_state_array(rig->zero, state, t);
            struct zero_range held = zero_state_held(rig->zero, state, t);
            int64_t end = held.first + held.count, most = job->chunk > 0 ? job->chunk : held.count;
            for (int64_t first = held.first, n; first < end; first += n) {
                n = end - first < most ? end - first : most;
                assert_ok(zero_state_write(rig->zero, state, t, first, n, array.type,
                                           job->from->arrays[s][t] +
                                               (size_t)first * dtype_bytes(array.type)));
            }
        }
    assert_ok(zero_publish(rig->zero, job->begin));
}

static void *move_rank(void *argument)
{
    struct move_job *job = argument;
    struct env env = testing_env(1);
    struct rig rig;
    job->config.snapshot = job->to != NULL;
    assert_ok(rig_create(&env, job->config, &rig));
    assert_ok(zero_settle(rig.zero));
    if (job->from)
        load_state(&rig, job);
    for (int step = job->begin; step < job->end; step++)
        rig_step(&rig, step);
    if (job->to)
        save_state(&rig, job->to);
    job->params = rig_params(&rig, &job->count);
    rig_destroy(&rig);
    env_destroy(&env);
    return NULL;
}

/* Returns the params of the first rank. */
static float *move(const struct move_job *job, int ranks, int64_t *count)
{
    struct move_job jobs[MOST_RANKS];
    for (int r = 0; r < ranks; r++)
        jobs[r] = *job;
    rig_run_ranks(move_rank, jobs, ranks, sizeof *jobs);
    for (int r = 1; r < ranks; r++)
        free(jobs[r].params);
    *count = jobs[0].count;
    return jobs[0].params;
}

static void expect_same_image(const struct image *a, const struct image *b,
                              struct rig_config config)
{
    struct env env = testing_env(1);
    struct rig rig;
    assert_ok(rig_create(&env, config, &rig));
    for (int s = 0; s < ZERO_STATES; s++)
        for (int t = 0; t < model_graph(rig.model)->tensor_count; t++) {
            struct zero_array array = zero_state_array(rig.zero, (enum zero_state)s, t);
            if (array.count > 0)
                assert_memory_equal(a->arrays[s][t], b->arrays[s][t],
                                    (size_t)array.count * dtype_bytes(array.type));
        }
    rig_destroy(&rig);
    env_destroy(&env);
}

/* Steps 0 and 1 on one layout and step 2 on another, compared with all three on one rank. */
static void check_move(struct rig_config one, struct rig_config first, int first_ranks,
                       struct rig_config second, int second_ranks)
{
    struct image there = {.lock = PTHREAD_MUTEX_INITIALIZER}, plain = there, moved = there;
    struct move_job job = {.config = one, .end = 3, .to = &plain};
    int tp = one.tp > 0 ? one.tp : 1;
    int64_t count;
    float *expected = move(&job, tp, &count);
    job = (struct move_job){.config = first, .end = 2, .to = &there};
    free(move(&job, first_ranks, &count));
    job = (struct move_job){
        .config = second, .begin = 2, .end = 3, .from = &there, .to = &moved, .chunk = 1000};
    float *params = move(&job, second_ranks, &count);
    assert_memory_equal(expected, params, (size_t)count * sizeof *params);
    if (tp == 1)
        expect_same_image(&plain, &moved, one);
    free(expected);
    free(params);
    image_free(&there);
    image_free(&plain);
    image_free(&moved);
}

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
