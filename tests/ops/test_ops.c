/* Ops are created by name, reject what they do not support, do nothing on a failed stream or a dry
 * device, and keep the contracts of ops.h that no single case covers. */
#include <math.h>
#include "base/plugin.h"
#include "base/rng.h"
#include "ops/op_rig.h"
#include "ops/op_shapes.h"

static void test_create(void **state)
{
    (void)state;
    struct env env = testing_env(2);
    struct device *device;
    struct ops *ops = NULL;
    assert_ok(device_create(&env, "cpu", 0, &device));
    assert_int_equal(ops_create(device, "abacus", DTYPE_F32, &ops), STATUS_CONFIG);
    assert_non_null(strstr(log_first_error(env.log), "ref, cpu"));
    log_error_clear(env.log);
    assert_int_equal(ops_create(device, "cpu", DTYPE_F64, &ops), STATUS_CONFIG);
    assert_non_null(strstr(log_first_error(env.log), "f64"));
    assert_int_equal(ops_create(device, "ref", DTYPE_I32, &ops), STATUS_CONFIG);
    assert_null(ops);
    assert_ok(ops_create(device, "ref", DTYPE_F64, &ops));
    assert_int_equal(ops->type, DTYPE_F64);
    assert_int_equal(ops->threads, 2);
    assert_ptr_equal(ops->device, device);
    ops_destroy(ops);
    ops_destroy(NULL);
    device_destroy(device);
    env_destroy(&env);
}

static void test_failing_allocations(void **state)
{
    (void)state;
    struct rig rig;
    struct ops_case shape = {"norm_backward", .rows = 3, .norm = {NORM_LAYER, 8, 1e-5, 0}};
    struct ops_trial *trial = NULL;
    struct ops *ops = NULL;
    rig_open(&rig, "ref", DTYPE_F32, 1);
    mem_fail_at(rig.env.mem, 1);
    assert_int_equal(ops_create(rig.device, "cpu", DTYPE_F32, &ops), STATUS_MEMORY);
    assert_null(ops);
    size_t before = mem_total(rig.env.mem);
    int64_t n = 1;
    for (;; n++) {
        mem_fail_at(rig.env.mem, n);
        if (ops_trial_create(rig.ops, rig.stream, &shape, 1, &trial) == STATUS_OK)
            break;
        assert_null(trial);
        assert_int_equal(mem_total(rig.env.mem), before);
    }
    mem_fail_at(rig.env.mem, 0);
    assert_true(n > 20);
    ops_trial_destroy(trial);
    rig_close(&rig);
}

/* Nothing is computed on a stream that has failed. */
static void test_failed_stream(void **state)
{
    (void)state;
    struct rig rig;
    float a[3] = {1, 2, 3}, sum[3] = {7, 7, 7};
    rig_open(&rig, "cpu", DTYPE_F32, 1);
    stream_fail(rig.stream, STATUS_DEVICE);
    ops_add(rig.ops, rig.stream, 3, a, a, sum);
    assert_true(sum[0] == 7 && sum[1] == 7 && sum[2] == 7);
    assert_int_equal(stream_sync(rig.stream), STATUS_DEVICE);
    stream_destroy(rig.stream);
    assert_ok(stream_create(rig.device, "again", &rig.stream));
    ops_add(rig.ops, rig.stream, 3, a, a, sum);
    assert_true(sum[0] == 2 && sum[1] == 4 && sum[2] == 6);
    rig_close(&rig);
}

/* On a dry device everything is counted and no memory is touched. */
static void test_dry(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct device *device;
    struct stream *stream;
    struct ops *ops;
    float *x, *w, *y;
    struct linear l = {.in = 1000, .out = 1000};
    assert_ok(device_create(&env, "dry", 0, &device));
    assert_ok(stream_create(device, "test", &stream));
    assert_ok(ops_create(device, "cpu", DTYPE_F32, &ops));
    assert_ok(device_alloc(device, MEM_PARAMS, "w", 4000000, &w));
    assert_ok(device_alloc(device, MEM_ACTIVATIONS, "x", 4000000, &x));
    assert_ok(device_alloc(device, MEM_ACTIVATIONS, "y", 4000000, &y));
    ops_linear(ops, stream, l, 1000, x, w, NULL, y);
    assert_true(ops_attention_scratch(ops, (struct attention)OPS_HEADS(1, 64, 2, 2, 32)) > 0);
    assert_ok(stream_sync(stream));
    device_free(device, x);
    device_free(device, w);
    device_free(device, y);
    ops_destroy(ops);
    stream_destroy(stream);
    device_destroy(device);
    env_destroy(&env);
}

/* Without a GPU: the plugin's table is complete and works on a dry device; other devices reject
 * it. */
static void test_cuda(void **state)
{
    (void)state;
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    struct env env = testing_env(1);
    struct device *host, *dry;
    struct ops *ops = NULL;
    char why[256];
    void *entry;
    assert_ok(device_create(&env, "cpu", 0, &host));
    assert_ok(device_create(&env, "dry", 0, &dry));
    assert_int_equal(ops_create(host, "cuda", DTYPE_BF16, &ops), STATUS_CONFIG);
    bool there = plugin_look("cuda", "sifr_ops_cuda_fill", &entry, why, sizeof why);
    if (there)
        assert_non_null(strstr(log_first_error(env.log), "does not run on the device 'cpu'"));
    for (int t = 0; there && t < 3; t++) {
        assert_ok(ops_create(dry, "cuda", types[t], &ops));
        assert_true(ops_chunk_logits(ops) > 0);
        assert_int_equal(ops_row_stride(ops, 50257), types[t] == DTYPE_F32 ? 50260 : 50264);
        assert_int_equal(ops_row_stride(ops, 50304), 50304);
        for (int i = 0; i < OP_SHAPE_COUNT; i++) { /* computes scratch sizes */
            struct ops_call call = {.count = 0};
            ops_find_op(op_shapes[i].op)->describe(ops, &op_shapes[i], &call);
            assert_true(call.count > 0);
        }
        ops_destroy(ops);
    }
    if (there)
        assert_int_equal(ops_create(dry, "cuda", DTYPE_F64, &ops), STATUS_CONFIG);
    device_destroy(dry);
    device_destroy(host);
    env_destroy(&env);
    if (!there)
        print_message("not all of it: %s\n", why);
}

static void test_empty_ranges(void **state)
{
    struct rig rig;
    double sum = 5;
    int64_t first = 5;
    rig_open(&rig, *state, DTYPE_F32, 2);
    ops_sum(rig.ops, rig.stream, 0, NULL, &sum);
    assert_true(sum == 0);
    ops_find_nonfinite(rig.ops, rig.stream, DTYPE_F32, NULL, 0, &first);
    assert_int_equal(first, -1);
    ops_add(rig.ops, rig.stream, 0, NULL, NULL, NULL);
    ops_cast(rig.ops, rig.stream, NULL, DTYPE_BF16, NULL, DTYPE_F32, 0);
    ops_square_sums(rig.ops, rig.stream, DTYPE_F32, &(struct square_range){0}, 1);
    ops_square_sums(rig.ops, rig.stream, DTYPE_BF16, NULL, 0);
    rig_close(&rig);
}

/* A sum is a tree: added in sequence, the ones would be lost. */
static void test_sum_is_a_tree(void **state)
{
    struct rig rig;
    const double values[] = {0x1p53, 1, 1, 1, 1, 1, 1};
    const double sums[] = {0x1p53, 0x1p53, 0x1p53, 0x1p53 + 2, 0x1p53 + 4, 0x1p53 + 4, 0x1p53 + 4};
    rig_open(&rig, *state, DTYPE_F32, 2);
    for (int count = 1; count <= 7; count++) {
        double sum = 0;
        ops_sum(rig.ops, rig.stream, count, values, &sum);
        assert_true(sum == sums[count - 1]);
    }
    rig_close(&rig);
}

/* The 16-bit copy has exactly the bits of the master rounded to nearest. */
static void test_adamw_copy(void **state)
{
    struct rig rig;
    struct ops_case shape = {"adamw", .count = 1000, .to = DTYPE_BF16};
    uint16_t expected[1000];
    rig_open(&rig, *state, DTYPE_F32, 2);
    struct ops_trial *trial = rig_trial(&rig, &shape);
    ops_trial_run(trial);
    const struct ops_call *call = ops_trial_call(trial);
    dtype_convert(expected, DTYPE_BF16, ops_find_tensor(call, "param")->data, DTYPE_F32, 1000);
    assert_memory_equal(ops_find_tensor(call, "copy")->data, expected, sizeof expected);
    ops_trial_destroy(trial);
    rig_close(&rig);
}

/* With stochastic rounding it has the bits of the definition, for any segments of a tensor. */
static void check_random_copy(const char *backend, enum dtype type)
{
    enum { COUNT = 5000, CUT = COUNT / 2 / OPS_BLOCK * OPS_BLOCK };
    struct rig rig;
    struct ops_case shape = {"adamw", .count = COUNT, .to = type, .random = true};
    int64_t moved = 0;
    rig_open(&rig, backend, DTYPE_F32, 2);
    struct ops_trial *trial = rig_trial(&rig, &shape);
    ops_trial_run(trial);
    const struct ops_call *call = ops_trial_call(trial);
    const float *param = ops_find_tensor(call, "param")->data;
    const uint16_t *copy = ops_find_tensor(call, "copy")->data;
    for (int64_t i = 0; i < COUNT; i++) {
        const struct update_location *location = &ops_update_locations[i >= CUT];
        int64_t element = ops_whole_element(location, i < CUT ? i : i - CUT);
        uint32_t random = rng_word((struct rng){location->key}, (uint64_t)element, OPS_UPDATE);
        bool bf16 = type == DTYPE_BF16;
        uint16_t nearest = bf16 ? f32_to_bf16(param[i]) : f32_to_f16(param[i]);
        assert_int_equal(copy[i], bf16 ? f32_to_bf16_random(param[i], random)
                                       : f32_to_f16_random(param[i], random));
        moved += copy[i] != nearest;
    }
    assert_true(moved > COUNT / 5 && moved < COUNT / 3); /* a quarter, where parts are even */
    ops_trial_destroy(trial);
    rig_close(&rig);
}

static void test_adamw_random_copy(void **state)
{
    check_random_copy(*state, DTYPE_BF16);
    check_random_copy(*state, DTYPE_F16);
}

/* A constant parameter between two bf16 numbers: the mean of its copies is the parameter, while
 * rounding to nearest would always be off. */
static void test_adamw_random_mean(void **state)
{
    enum { COUNT = 1000, UPDATES = 100 };
    static float param[COUNT], grad[COUNT], m[COUNT], v[COUNT];
    uint16_t copy[COUNT];
    struct rig rig;
    struct update_location location = {rng_stream(1, "mean").key, 0, INT64_MAX, 0, 0, 0};
    struct update hyper = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .locations = &location};
    struct update_segment segment = {.count = COUNT,
                                     .param = param,
                                     .copy = copy,
                                     .copy_type = DTYPE_BF16,
                                     .grad = grad,
                                     .m = m,
                                     .v = v,
                                     .lr_mul = 1};
    struct step_scalars scalars = {.correction1 = 1, .correction2 = 1, .grad_scale = 1};
    double sum = 0;
    rig_open(&rig, *state, DTYPE_F32, 1);
    for (int i = 0; i < COUNT; i++)
        param[i] = 1 + 0.3f * 0x1p-7f;
    for (hyper.number = 1; hyper.number <= UPDATES; hyper.number++) {
        ops_update(rig.ops, rig.stream, &hyper, &scalars, &segment, 1);
        for (int i = 0; i < COUNT; i++)
            sum += bf16_to_f32(copy[i]);
    }
    double mean = (sum / (COUNT * UPDATES) - 1) * 0x1p7, deviation = sqrt(0.3 * 0.7);
    assert_true(fabs(mean - 0.3) < 4 * deviation / sqrt(COUNT * UPDATES));
    rig_close(&rig);
}

/* Sums of squares of 16-bit values have the same bits as those of the same values in f32. */
static void test_squares_of_16_bits(void **state)
{
    enum { COUNT = 1000, BLOCKS = (COUNT + OPS_BLOCK - 1) / OPS_BLOCK };
    struct rig rig;
    struct ops_case shape = {"square_sums", .count = COUNT, .from = DTYPE_BF16};
    float wide[COUNT];
    double expected[BLOCKS];
    rig_open(&rig, *state, DTYPE_F32, 2);
    struct ops_trial *trial = rig_trial(&rig, &shape);
    const struct ops_call *call = ops_trial_call(trial);
    ops_trial_run(trial);
    dtype_convert(wide, DTYPE_F32, ops_find_tensor(call, "x")->data, DTYPE_BF16, COUNT);
    struct square_range range = {wide, COUNT, expected};
    ops_square_sums(rig.ops, rig.stream, DTYPE_F32, &range, 1);
    assert_memory_equal(ops_find_tensor(call, "sums")->data, expected, sizeof expected);
    ops_trial_destroy(trial);
    rig_close(&rig);
}

/* AdamW by hand: from m = v = 0 the first step is lr (sign g + decay p) for any gradient. */
static void test_adamw_first_step(void **state)
{
    struct rig rig;
    float param[3] = {1, -2, 0.5f}, grad[3] = {0.25f, -3, 40}, m[3] = {0}, v[3] = {0};
    struct step_scalars scalars = {
        .lr = 0.01f, .correction1 = 0.1f, .correction2 = 0.05f, .grad_scale = 2};
    struct update hyper = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 0};
    struct update_segment segment = {
        .count = 3, .param = param, .grad = grad, .m = m, .v = v, .lr_mul = 0.5f, .decay = 0.1f};
    rig_open(&rig, *state, DTYPE_F32, 1);
    ops_update(rig.ops, rig.stream, &hyper, &scalars, &segment, 1);
    assert_true(fabs(param[0] - (1 - 0.005 * (1 + 0.1))) < 1e-6);
    assert_true(fabs(param[1] - (-2 - 0.005 * (-1 - 0.2))) < 1e-6);
    assert_true(fabs(param[2] - (0.5 - 0.005 * (1 + 0.05))) < 1e-6);
    assert_true(fabs(m[0] - 0.05) < 1e-7 && fabs(v[1] - 1.8) < 1e-6);
    rig_close(&rig);
}

/* A norm that does not store the sum gives the same y as one that does. */
static void test_norm_without_sum(void **state)
{
    struct rig rig;
    struct norm n = {NORM_LAYER, 7, 1e-5, 0};
    float x[14], weight[7], y[14], again[14], sum[14], mean[2], rstd[2];
    rig_open(&rig, *state, DTYPE_F32, 1);
    for (int i = 0; i < 14; i++)
        x[i] = (float)(i * i % 11), weight[i / 2] = 0.5f * (float)i;
    ops_add_norm(
        rig.ops, rig.stream, n, 2,
        &(struct add_norm){
            .residual = x, .weight = weight, .sum = sum, .y = y, .mean = mean, .rstd = rstd});
    ops_add_norm(rig.ops, rig.stream, n, 2,
                 &(struct add_norm){
                     .residual = x, .weight = weight, .y = again, .mean = mean, .rstd = rstd});
    assert_memory_equal(y, again, sizeof y);
    assert_memory_equal(x, sum, sizeof x);
    rig_close(&rig);
}

/* The activation that the backward pass recomputes has the bits of the forward pass. */
static void test_swiglu_again(void **state)
{
    enum { ROWS = 5, FF = 37 };
    struct rig rig;
    struct ops_case shape = {"swiglu_backward", .rows = ROWS, .width = FF, .act = true};
    float y[ROWS * FF];
    rig_open(&rig, *state, DTYPE_F32, 2);
    struct ops_trial *trial = rig_trial(&rig, &shape);
    const struct ops_call *call = ops_trial_call(trial);
    ops_trial_run(trial);
    ops_swiglu(rig.ops, rig.stream, ROWS, FF, ops_find_tensor(call, "gate_up")->data, y);
    assert_memory_equal(ops_find_tensor(call, "act")->data, y, sizeof y);
    ops_trial_destroy(trial);
    rig_close(&rig);
}

/* Decoding a sequence in chunks gives the result of attention over the whole sequence. */
static void test_decoding(void **state)
{
    enum { T = 23, H = 4, G = 2, D = 10, WIDTH = (H + 2 * G) * D };
    static const int64_t chunks[] = {9, 1, 1, 5, 7};
    struct rig rig;
    struct attention whole = OPS_HEADS(1, T, H, G, D);
    struct ops_case shape = {"attention", .attention = whole};
    float cache_k[T * G * D], cache_v[T * G * D], out[T * H * D];
    rig_open(&rig, *state, DTYPE_F32, 2);
    struct ops_trial *trial = rig_trial(&rig, &shape);
    const struct ops_call *call = ops_trial_call(trial);
    ops_trial_run(trial);
    const float *qkv = ops_find_tensor(call, "qkv")->data;
    const float *expected = ops_find_tensor(call, "out")->data;
    int64_t past = 0;
    for (int i = 0; i < 5; i++) {
        struct attention chunk = OPS_HEADS(1, chunks[i], H, G, D);
        ops_attention_cached(
            rig.ops, rig.stream, chunk,
            &(struct attention_cached){.past = (struct past){past, NULL},
                                       .room = T,
                                       .qkv = qkv + past * WIDTH,
                                       .cache_k = cache_k,
                                       .cache_v = cache_v,
                                       .out = out + past * H * D,
                                       .scratch = ops_find_tensor(call, "scratch")->data});
        past += chunks[i];
    }
    for (int i = 0; i < T * H * D; i++)
        assert_true(fabsf(out[i] - expected[i]) < 2e-6f);
    ops_trial_destroy(trial);
    rig_close(&rig);
}

int main(void)
{
#define FOR_BACKENDS(test)                    \
    {#test " ref", test, NULL, NULL, "ref"},  \
    {                                         \
#test " cpu", test, NULL, NULL, "cpu" \
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_create),         cmocka_unit_test(test_failing_allocations),
        cmocka_unit_test(test_failed_stream),  cmocka_unit_test(test_dry),
        cmocka_unit_test(test_cuda),           FOR_BACKENDS(test_empty_ranges),
        FOR_BACKENDS(test_sum_is_a_tree),      FOR_BACKENDS(test_adamw_copy),
        FOR_BACKENDS(test_adamw_random_copy),  FOR_BACKENDS(test_adamw_random_mean),
        FOR_BACKENDS(test_adamw_first_step),   FOR_BACKENDS(test_norm_without_sum),
        FOR_BACKENDS(test_decoding),           FOR_BACKENDS(test_swiglu_again),
        FOR_BACKENDS(test_squares_of_16_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
