/* Muon: matrices are updated as a plain computation says, and no layout changes a bit. */
#include "engine/ranks.h"

#include <math.h>

static struct rig_config muon_config(int llama)
{
    struct rig_config config = base_config(llama);
    config.optimizer = OPTIMIZER_MUON;
    return config;
}

/* --- against a plain computation ------------------------------------------------------------ */

/* x (rows, columns) is columns first .. first + width - 1 of a tensor with `pitch` columns. */
static void orthogonalize(struct rig *rig, float *x, int64_t rows, int64_t width, int64_t pitch)
{
    size_t scratch_bytes = ops_orthogonalize_scratch(rig->ops, rows, width);
    float *matrix = malloc((size_t)(rows * width) * sizeof *matrix);
    void *scratch = malloc(scratch_bytes);
    for (int64_t r = 0; r < rows; r++)
        memcpy(matrix + r * width, x + r * pitch, (size_t)width * sizeof *x);
    ops_orthogonalize(rig->ops, rig->stream, rows, width, matrix, scratch);
    assert_ok(stream_sync(rig->stream));
    for (int64_t r = 0; r < rows; r++)
        memcpy(x + r * pitch, matrix + r * width, (size_t)width * sizeof *x);
    free(matrix);
    free(scratch);
}

/* One step of one tensor: param and m become what they should be, from gradient g. */
static void expect(struct rig *rig, const struct unit_tensor *tensor, double norm, const float *g,
                   float *m, float *param)
{
    int64_t count = unit_tensor_count(tensor), columns = tensor->shape[1] / tensor->matrices;
    float beta = 0.95f, rest = (float)(1 - 0.95);
    double clip = 1.0 / (norm + 1e-6);
    float factor = (float)(clip < 1.0 ? clip : 1.0);
    float scale =
        (float)(0.2 * sqrt((double)(tensor->shape[0] > columns ? tensor->shape[0] : columns)));
    float *direction = malloc((size_t)count * sizeof *direction);
    for (int64_t i = 0; i < count; i++) {
        m[i] = beta * m[i] + rest * (g[i] * factor);
        direction[i] = beta * m[i] + rest * (g[i] * factor);
    }
    for (int k = 0; k < tensor->matrices; k++)
        orthogonalize(rig, direction + k * columns, tensor->shape[0], columns, tensor->shape[1]);
    for (int64_t i = 0; i < count; i++)
        param[i] -= 1e-2f * (scale * direction[i] + 0.1f * param[i]);
    free(direction);
}

static float *read_tensor(struct rig *rig, int t, bool gradient)
{
    int64_t count = unit_tensor_count(&model_graph(rig->model)->tensors[t]);
    float *values = malloc((size_t)count * sizeof *values);
    assert_ok(gradient ? zero_read_gradient(rig->zero, t, 0, count, values)
                       : zero_read(rig->zero, t, 0, count, values));
    return values;
}

struct follower { /* what a tensor should be */
    float *m, *param;
};

static void follow(struct rig *rig, int t, int step, double norm, struct follower *f)
{
    const struct unit_tensor *tensor = &model_graph(rig->model)->tensors[t];
    float *gradient = read_tensor(rig, t, true), *now = read_tensor(rig, t, false);
    expect(rig, tensor, norm, gradient, f->m, f->param);
    if (memcmp(f->param, now, (size_t)unit_tensor_count(tensor) * sizeof *now) != 0)
        fail_msg("%s differs from the plain computation in step %d", tensor->name, step);
    free(gradient);
    free(now);
}

/* All shapes: tall, wide, square, several matrices in a tensor. */
static void test_plain_computation(void **state)
{
    (void)state;
    if (strcmp(test_device(), "cpu") != 0 && strcmp(test_device(), "ref") != 0)
        testing_skip("the plain computation uses host memory");
    for (int llama = 0; llama < 2; llama++) {
        struct env env = testing_env(1);
        struct rig rig;
        struct follower followers[64] = {0};
        int tensors = 0, most = 0;
        assert_ok(rig_create(&env, muon_config(llama), &rig));
        const struct unit_graph *graph = model_graph(rig.model);
        assert_true(graph->tensor_count <= 64);
        for (int t = 0; t < graph->tensor_count; t++) {
            const struct unit_tensor *tensor = &graph->tensors[t];
            if (tensor->matrices == 0)
                continue;
            followers[t].m = calloc((size_t)unit_tensor_count(tensor), sizeof(float));
            followers[t].param = read_tensor(&rig, t, false);
            most = tensor->matrices > most ? tensor->matrices : most;
            tensors++;
        }
        assert_int_equal(tensors, 3 * (llama ? 7 : 4));
        assert_int_equal(most, llama ? 1 : 3);
        for (int step = 0; step < STEPS; step++) {
            double norm = rig_step(&rig, step).grad_norm;
            for (int t = 0; t < graph->tensor_count; t++)
                if (followers[t].m)
                    follow(&rig, t, step, norm, &followers[t]);
        }
        for (int t = 0; t < 64; t++) {
            free(followers[t].m);
            free(followers[t].param);
        }
        rig_destroy(&rig);
        env_destroy(&env);
    }
}

/* Muon's bits are not those of AdamW, which still updates vectors and embeddings. */
static void test_kinds_differ(void **state)
{
    (void)state;
    struct trace muon = run(muon_config(0), 1), adamw = run(base_config(0), 1);
    assert_memory_not_equal(muon.params, adamw.params, (size_t)muon.count * sizeof(float));
    assert_int_equal(muon.traffic.sent[TRAFFIC_MUON], 0);
    free(muon.params);
    free(adamw.params);
}

/* --- equal bits ----------------------------------------------------------------------------- */

static void test_stages_and_ranks(void **state)
{
    (void)state;
    static const int ranks[] = {2, 3, 5};
    for (int llama = 0; llama < 2; llama++)
        for (int narrow = 0; narrow < 2; narrow++) {
            struct rig_config config = muon_config(llama);
            config.type = narrow ? DTYPE_BF16 : DTYPE_F32;
            config.stochastic = narrow && llama;
            struct trace plain = run(config, 1);
            for (config.stage = 0; config.stage <= 3; config.stage++)
                for (int i = 0; i < 3; i++) {
                    config.prefetch = (config.stage + i) % 3;
                    compare(&plain, config, ranks[i]);
                }
            free(plain.params);
        }
}

static void test_servers_and_groups(void **state)
{
    (void)state;
    static const int sizes[][2] = {{2, 1}, {4, 2}, {6, 2}, {6, 3}};
    struct trace plain = run(muon_config(0), 1);
    for (int stage = 1; stage <= 3; stage++) {
        for (int servers = 1; servers <= 3; servers++) {
            struct rig_config config = muon_config(0);
            config.stage = stage;
            config.servers = servers;
            compare(&plain, config, 2 + servers);
        }
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            struct rig_config config = muon_config(0);
            config.stage = stage;
            config.group = sizes[i][1];
            config.delays = i % 2 ? 1e-4 : 0;
            compare(&plain, config, sizes[i][0]);
        }
    }
    free(plain.params);
}

static void test_pipeline(void **state)
{
    (void)state;
    for (int llama = 0; llama < 2; llama++) {
        struct trace plain = run(muon_config(llama), 1);
        struct rig_config config = muon_config(llama);
        config.chunks = 1;
        config.kind = TIMETABLE_1F1B;
        config.pp = 2;
        for (config.stage = 0; config.stage <= 3; config.stage++)
            compare(&plain, config, 4);
        free(plain.params);
    }
}

/* Tensors of different settings take part in the same exchanges. */
static void test_several_settings(void **state)
{
    (void)state;
    struct zero_group groups[] = {
        {.match = "*up_proj*", .lr_mul = 0.5, .decay = 0.1},
        {.match = "*q_proj*", .lr_mul = 1, .decay = 0.2},
        {.match = "*layers.1.*o_proj*", .lr_mul = 1, .decay = 0.1},
    };
    for (int g = 0; g < 3; g++)
        groups[g].optimizer = (struct optimizer){.kind = g == 1 ? OPTIMIZER_ADAMW : OPTIMIZER_MUON,
                                                 .beta1 = 0.9,
                                                 .beta2 = 0.95,
                                                 .eps = 1e-8,
                                                 .momentum = 0.9,
                                                 .nesterov = g == 0};
    struct rig_config config = muon_config(1);
    struct trace same = run(config, 1);
    config.groups = groups;
    config.group_count = 3;
    struct trace plain = run(config, 1);
    assert_memory_not_equal(same.params, plain.params, (size_t)same.count * sizeof(float));
    for (config.stage = 0; config.stage <= 3; config.stage++)
        compare(&plain, config, 3);
    free(same.params);
    free(plain.params);
}

/* --- what cannot be ------------------------------------------------------------------------- */

static void *refuse(void *argument)
{
    const struct rig_config *config = argument;
    struct env env = testing_env(1);
    struct rig rig;
    assert_int_equal(rig_create(&env, *config, &rig), STATUS_CONFIG);
    assert_non_null(strstr(log_first_error(env.log), "muon needs whole matrices"));
    env_destroy(&env);
    return NULL;
}

static void test_tensor_parallel_is_refused(void **state)
{
    (void)state;
    struct rig_config configs[2];
    for (int r = 0; r < 2; r++) {
        configs[r] = shared_config(0);
        configs[r].optimizer = OPTIMIZER_MUON;
        configs[r].tp = 2;
    }
    rig_run_ranks(refuse, configs, 2, sizeof *configs);
}

static void test_failing_allocations(void **state)
{
    (void)state;
    struct rig_config config = muon_config(0);
    config.stage = 2;
    config.model.layers = 1;
    assert_true(fail_each(config, 2, 1) > 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_computation),
        cmocka_unit_test(test_kinds_differ),
        cmocka_unit_test(test_stages_and_ranks),
        cmocka_unit_test(test_servers_and_groups),
        cmocka_unit_test(test_pipeline),
        cmocka_unit_test(test_several_settings),
        cmocka_unit_test(test_tensor_parallel_is_refused),
        cmocka_unit_test(test_failing_allocations),
    };
    if (test_device_missing())
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
