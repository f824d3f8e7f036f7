/* Prices of calls: measured, scaled from the nearest measured calls, by rates; and the meter. */
#include <math.h>
#include "testing.h"
#include "base/plugin.h"
#include "ops/ops_impl.h"
#include "ops/ops_price.h"

struct fixture {
    struct env env;
    struct device *device;
    struct stream *stream;
    struct ops *ops;
};

static void open_fixture(struct fixture *f)
{
    f->env = testing_env(1);
    assert_ok(device_create(&f->env, "dry", 0, &f->device));
    assert_ok(stream_create(f->device, "compute", &f->stream));
    assert_ok(ops_create(f->device, "cpu", DTYPE_F32, &f->ops));
    device_keep_time(f->device, &(struct device_pace){0});
}

static void close_fixture(struct fixture *f)
{
    ops_destroy(f->ops);
    stream_destroy(f->stream);
    device_destroy(f->device);
    env_destroy(&f->env);
}

#define assert_near(a, b)  assert_true(fabs((a) / (b)-1.0) < 1e-9)
#define assert_about(a, b) assert_true(fabs((a) / (b)-1.0) < 1e-3)

static const struct ops_case product = {
    .op = "linear", .rows = 10, .linear = {.in = 20, .out = 30, .out_in = true}};

static void test_rates(void **state)
{
    (void)state;
    struct fixture f;
    struct ops_prices prices = {
        .rates = {[OPS_KIND_PRODUCT] = {1.0, 100.0, 1e9}, [OPS_KIND_MEMORY] = {2.0, 0.0, 10.0}}};
    open_fixture(&f);
    assert_near(ops_price(&prices, f.ops, &product), 1.0 + 12000 / 100.0);
    const struct ops_case add = {.op = "add", .count = 5};
    assert_near(ops_price(&prices, f.ops, &add), 2.0 + 60 / 10.0);
    /* Only the rows that are looked up are read. */
    const struct ops_case rows = {
        .op = "embedding", .embedding = {.batch = 1, .tokens = 4, .width = 2, .vocab = 1000}};
    assert_near(ops_price(&prices, f.ops, &rows), 2.0 + 64 / 10.0);
    assert_int_equal(ops_kind_of("linear_dx_dgelu"), OPS_KIND_PRODUCT);
    assert_int_equal(ops_kind_of("linear_dx_dswiglu"), OPS_KIND_PRODUCT);
    assert_int_equal(ops_kind_of("swiglu_linear"), OPS_KIND_PRODUCT);
    assert_int_equal(ops_kind_of("orthogonalize"), OPS_KIND_PRODUCT);
    assert_int_equal(ops_kind_of("attention_backward"), OPS_KIND_ATTENTION_BACKWARD);
    assert_int_equal(ops_kind_of("attention_backward_rope"), OPS_KIND_ATTENTION_BACKWARD);
    assert_int_equal(ops_kind_of("attention"), OPS_KIND_ATTENTION);
    assert_int_equal(ops_kind_of("attention_cached"), OPS_KIND_ATTENTION);
    assert_int_equal(ops_kind_of("rope"), OPS_KIND_MEMORY);
    close_fixture(&f);
}

static struct attention tiles_of_64(const struct ops *ops, struct attention a)
{
    (void)ops;
    a.tokens = (a.tokens + 63) / 64 * 64;
    return a;
}

/* A length that is no multiple of a tile costs as much as the next multiple; not in decoding. */
static void test_tiles_of_attention(void **state)
{
    (void)state;
    struct fixture f;
    struct ops_prices prices = {.rates = {[OPS_KIND_ATTENTION] = {0.0, 100.0, 1e9}}};
    const struct ops_case odd = {.op = "attention", .attention = OPS_HEADS(1, 65, 2, 2, 8)};
    const struct ops_case whole = {.op = "attention", .attention = OPS_HEADS(1, 128, 2, 2, 8)};
    const struct ops_case cached = {
        .op = "attention_cached", .attention = OPS_HEADS(1, 65, 2, 2, 8), .room = 65};
    open_fixture(&f);
    double alone = ops_price(&prices, f.ops, &odd), decoded = ops_price(&prices, f.ops, &cached);
    const struct ops_backend *own = f.ops->backend;
    struct ops_backend tiled = *own;
    tiled.attention_tiles = tiles_of_64;
    f.ops->backend = &tiled;
    assert_true(ops_price(&prices, f.ops, &odd) > 3.0 * alone);
    assert_near(ops_price(&prices, f.ops, &odd), ops_price(&prices, f.ops, &whole));
    assert_near(ops_price(&prices, f.ops, &cached), decoded);
    f.ops->backend = own;
    close_fixture(&f);
}

static double three_times_backward(const struct ops *ops, struct attention a, bool backward)
{
    (void)ops;
    return a.window > 0 && backward ? 3 : 1;
}

/* A window costs the scores that are seen; a kernel that is slower than the machine's rate says by
 * how much. */
static void test_windows(void **state)
{
    (void)state;
    struct fixture f;
    struct ops_prices prices = {.rates = {[OPS_KIND_ATTENTION] = {0.0, 100.0, 1e9},
                                          [OPS_KIND_ATTENTION_BACKWARD] = {0.0, 100.0, 1e9}}};
    struct ops_case whole = {.op = "attention", .attention = OPS_HEADS(1, 8, 2, 2, 8)};
    struct ops_case window = whole, backward = whole;
    struct ops_case cached = {
        .op = "attention_cached", .attention = OPS_HEADS(1, 2, 2, 2, 8), .past = 10, .room = 20};
    open_fixture(&f);
    window.attention.window = backward.attention.window = 3;
    backward.op = "attention_backward";
    assert_near(ops_price(&prices, f.ops, &window), ops_price(&prices, f.ops, &whole) * 21 / 36);
    double all = ops_price(&prices, f.ops, &cached);
    cached.attention.window = 4;
    assert_near(ops_price(&prices, f.ops, &cached), all * 8 / 23);

    double forth = ops_price(&prices, f.ops, &window), back = ops_price(&prices, f.ops, &backward);
    const struct ops_backend *own = f.ops->backend;
    struct ops_backend slow = *own;
    slow.attention_times = three_times_backward;
    f.ops->backend = &slow;
    assert_near(ops_price(&prices, f.ops, &window), forth);
    assert_near(ops_price(&prices, f.ops, &backward), 3 * back);
    f.ops->backend = own;
    close_fixture(&f);
}

/* Needs the CUDA back end, but no GPU. */
static void skip_without_cuda(struct env *env)
{
    char why[256];
    void *entry;
    if (plugin_look("cuda", "sifr_ops_cuda_fill", &entry, why, sizeof why))
        return;
    env_destroy(env);
    testing_skip(why);
}

/* Factors of CUDA's attention, without a GPU: those of Hopper. */
static void test_attention_of_cuda(void **state)
{
    static const struct {
        struct attention shape;
        double forward, backward;
    } rows[] = {
        {OPS_HEADS(8, 1024, 16, 16, 64), 1, 1},
        {OPS_HEADS(8, 1024, 16, 16, 32), 0.85, 0.85},
        {OPS_HEADS(8, 1024, 16, 16, 100), 1 + 500 / 1024.0, 1 + 350 / 1024.0}, /* copied */
        {OPS_HEADS(8, 1024, 16, 16, 132), 2.5, 2.5},                           /* not copied */
        {OPS_HEADS(8, 1024, 16, 16, 160), 1, 1},                               /* cuDNN */
        {OPS_HEADS(8, 1000, 16, 16, 160), 1, 1},
        {OPS_HEADS(1, 16384, 16, 16, 160), 1, 1},   /* scores of 8 GiB */
        {OPS_HEADS(1, 16385, 16, 16, 160), 1, 2.5}, /* more */
        {OPS_HEADS(8, 1024, 16, 16, 264), 30, 30},
    };
    struct env env = testing_env(1);
    struct device *device;
    struct ops *ops;
    (void)state;
    skip_without_cuda(&env);
    assert_ok(device_create(&env, "dry-gpu", 0, &device));
    assert_ok(ops_create(device, "cuda", DTYPE_BF16, &ops));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_near(ops->backend->attention_times(ops, rows[i].shape, false), rows[i].forward);
        assert_near(ops->backend->attention_times(ops, rows[i].shape, true), rows[i].backward);
    }
    ops_destroy(ops);
    device_destroy(device);
    env_destroy(&env);
}

/* Scratch of attention on a dry GPU: on Hopper there is no room for cuDNN's scores. */
static void test_scratch_of_cuda(void **state)
{
    const size_t scores = (size_t)32 * 8192 * 8192 * 2;
    const struct attention rows[] = {OPS_HEADS(1, 8192, 32, 32, 128),  /* by our Hopper kernels */
                                     OPS_HEADS(1, 8192, 32, 32, 160)}; /* by cuDNN */
    struct env env = testing_env(1);
    (void)state;
    skip_without_cuda(&env);
    for (int i = 0; i < 4; i++) {
        struct device *device;
        struct ops *ops;
        bool hopper = i / 2, wide = i % 2;
        assert_ok(device_create(&env, "dry-gpu", 0, &device));
        device_assume(device, hopper ? 90 : 0);
        assert_ok(ops_create(device, "cuda", DTYPE_BF16, &ops));
        size_t scratch = ops_attention_scratch(ops, rows[i % 2]);
        if (hopper && !wide)
            assert_true(scratch < scores / 8);
        else
            assert_true(scratch >= scores);
        ops_destroy(ops);
        device_destroy(device);
    }
    env_destroy(&env);
}

static double rows_over_columns(int64_t m, int64_t n, int64_t k)
{
    return (double)m / (double)n + (double)k;
}

/* The factor of a product belongs to the matrix that it writes; other kinds have none. */
static void test_products_that_take_longer(void **state)
{
    (void)state;
    struct fixture f;
    const struct ops_prices prices = {
        .rates = {[OPS_KIND_PRODUCT] = {0.0, 100.0, 1e9}, [OPS_KIND_MEMORY] = {0.0, 100.0, 1e9}}};
    struct ops_case forward = {.op = "linear", .rows = 30, .linear = {.in = 5, .out = 10}};
    struct ops_case dx = forward, dw = forward;
    const struct ops_case add = {.op = "add", .count = 64};
    open_fixture(&f);
    dx.op = "linear_dx";
    dw.op = "linear_dw";
    double even = ops_price(&prices, f.ops, &forward), sum = ops_price(&prices, f.ops, &add);
    double back = ops_price(&prices, f.ops, &dx), weights = ops_price(&prices, f.ops, &dw);
    const struct ops_backend *own = f.ops->backend;
    struct ops_backend waves = *own;
    waves.product_times = rows_over_columns;
    f.ops->backend = &waves;
    assert_near(ops_price(&prices, f.ops, &forward), even * (30.0 / 10 + 5));
    assert_near(ops_price(&prices, f.ops, &dx), back * (30.0 / 5 + 10));
    assert_near(ops_price(&prices, f.ops, &dw), weights * (5.0 / 10 + 30));
    assert_near(ops_price(&prices, f.ops, &add), sum);
    f.ops->backend = own;
    close_fixture(&f);
}

static void test_measured_lines_count_first(void **state)
{
    (void)state;
    struct fixture f;
    struct ops_case twice = product, biased = product, far = product;
    twice.rows = 20;
    biased.bias = true;
    far.rows = 1099;
    struct ops_measured lines[] = {{far, DTYPE_F32, 439.6},
                                   {product, DTYPE_BF16, 9.0},
                                   {product, DTYPE_F32, 7.0},
                                   {{.op = "add", .count = 3}, DTYPE_F32, 5.0}};
    struct ops_prices prices = {
        .rates = {[OPS_KIND_PRODUCT] = {0.0, 1.0, 0.0}}, .measured = lines, .measured_count = 4};
    ops_prices_sort(&prices);
    open_fixture(&f);
    assert_near(ops_price(&prices, f.ops, &product), 7.0);
    assert_near(ops_price(&prices, f.ops, &far), 439.6);
    assert_about(ops_price(&prices, f.ops, &twice), 14.0);
    assert_about(ops_price(&prices, f.ops, &biased), 7.0);
    far.rows = 500;
    assert_about(ops_price(&prices, f.ops, &far), 200.0);
    far.rows = 109; /* as far from 10 as from 1099: the mean of 0.7 and 0.4 a row */
    assert_near(ops_price(&prices, f.ops, &far), 109 * 0.55);
    close_fixture(&f);
}

/* Without a measured attention_backward_rope, its price is the sum of its two parts. */
static void test_attention_that_turns(void **state)
{
    (void)state;
    struct fixture f;
    const struct ops_case turns = {"attention_backward_rope",
                                   .attention = OPS_HEADS(1, 8, 2, 1, 4)};
    struct ops_case backward = turns, rope = turns, other = turns;
    backward.op = "attention_backward";
    rope.op = "rope_inverse";
    other.attention.batch = 2;
    struct ops_measured lines[] = {{backward, DTYPE_F32, 5.0}, {other, DTYPE_F32, 12.0}};
    struct ops_prices prices = {
        .rates = {
            [OPS_KIND_ATTENTION_BACKWARD] = {0.0, 1.0, 0.0}, [OPS_KIND_MEMORY] = {3.0, 0.0, 1e9}}};
    open_fixture(&f);
    assert_near(ops_price(&prices, f.ops, &turns),
                ops_price(&prices, f.ops, &backward) + ops_price(&prices, f.ops, &rope));
    prices.measured = lines;
    prices.measured_count = 1;
    assert_near(ops_price(&prices, f.ops, &turns), 5.0 + ops_price(&prices, f.ops, &rope));
    prices.measured_count = 2; /* with one measured, the nearest is scaled: half of it */
    ops_prices_sort(&prices);
    assert_near(ops_price(&prices, f.ops, &turns), 6.0);
    close_fixture(&f);
}

static void test_the_meter_notes_each_call_once(void **state)
{
    (void)state;
    struct fixture f;
    struct ops_prices prices = {
        .rates = {[OPS_KIND_PRODUCT] = {1.0, 0.0, 0.0}, [OPS_KIND_MEMORY] = {0.25, 0.0, 0.0}}};
    struct ops_meter *meter;
    float *x, *w, *y;
    bool all;
    open_fixture(&f);
    assert_ok(device_alloc(f.device, MEM_OTHER, "x", 800, &x));
    assert_ok(device_alloc(f.device, MEM_OTHER, "w", 2400, &w));
    assert_ok(device_alloc(f.device, MEM_OTHER, "y", 1200, &y));
    assert_ok(ops_meter_create(&f.env, &prices, &meter));
    ops_linear(f.ops, f.stream, product.linear, product.rows, x, w, NULL, y);
    assert_true(stream_clock(f.stream) == 0.0); /* no meter, no time */
    f.ops->meter = meter;
    for (int i = 0; i < 3; i++) {
        ops_linear(f.ops, f.stream, product.linear, product.rows, x, w, NULL, y);
        ops_add(f.ops, f.stream, 100, x, w, y);
        ops_add(f.ops, f.stream, 0, x, w, y); /* an empty call is not noted */
    }
    ops_linear(f.ops, f.stream, product.linear, product.rows, x, w, x, y);
    assert_near(stream_clock(f.stream), 3 * 1.25 + 1.0);
    assert_int_equal(ops_meter_count(meter, &all), 3);
    assert_true(all);
    assert_true(ops_case_equal(ops_meter_case(meter, 0), &product));
    assert_string_equal(ops_meter_case(meter, 1)->op, "add");
    assert_true(ops_meter_case(meter, 2)->bias);
    ops_meter_destroy(meter);
    device_free(f.device, x);
    device_free(f.device, w);
    device_free(f.device, y);
    close_fixture(&f);
}

static bool takes_even(const struct ops *ops, int64_t rows, int64_t depth, int64_t ff,
                       bool backward)
{
    (void)ops;
    (void)depth;
    (void)backward;
    return rows % 2 == 0 && ff % 2 == 0;
}

/* A machine without kernels for products with SwiGLU pays for both; otherwise the memory traffic of
 * SwiGLU is hidden in the product. */
static void test_swiglu_alone(void **state)
{
    (void)state;
    struct fixture f;
    struct ops_prices prices = {
        .rates = {[OPS_KIND_PRODUCT] = {0.0, 100.0, 1e9}, [OPS_KIND_MEMORY] = {3.0, 0.0, 1e3}}};
    const struct ops_case forward = {"linear_swiglu", .rows = 10, .linear = {.in = 6, .out = 8},
                                     .act = true};
    const struct ops_case backward = {"linear_dx_dswiglu", .rows = 10,
                                      .linear = {.in = 4, .out = 6}};
    struct ops_case bare = forward, up = forward, down = backward;
    const struct ops_case alone = {"swiglu", .rows = 10, .width = 4};
    const struct ops_case slopes = {"swiglu_backward", .rows = 10, .width = 4, .act = true};
    bare.act = up.act = false;
    up.op = "linear";
    down.op = "linear_dx";
    open_fixture(&f);
    double forth = ops_price(&prices, f.ops, &up), back = ops_price(&prices, f.ops, &down);
    assert_near(ops_price(&prices, f.ops, &forward), forth);
    assert_near(ops_price(&prices, f.ops, &backward), back);
    prices.swiglu_alone = true;
    assert_near(ops_price(&prices, f.ops, &bare), forth);
    assert_near(ops_price(&prices, f.ops, &forward), forth + ops_price(&prices, f.ops, &alone));
    assert_near(ops_price(&prices, f.ops, &backward), back + ops_price(&prices, f.ops, &slopes));
    close_fixture(&f);
}

/* Where a back end computes a product with SwiGLU in one piece, that is one call; else it is two:
 * the product, with a bias, too, and SwiGLU where act is wanted. */
static void test_products_with_swiglu(void **state)
{
    (void)state;
    struct fixture f;
    struct ops_meter *meter;
    float *x;
    bool all;
    const struct linear up = {.in = 6, .out = 8}, down = {.in = 4, .out = 6};
    static const char *const expected[] = {"linear",          "swiglu",           "linear_swiglu",
                                           "linear_swiglu",   "linear",           "linear_dx",
                                           "swiglu_backward", "linear_dx_dswiglu"};
    enum { EXPECTED = sizeof expected / sizeof *expected };
    open_fixture(&f);
    assert_ok(device_alloc(f.device, MEM_OTHER, "x", 1600, &x));
    assert_ok(ops_meter_create(&f.env, NULL, &meter));
    f.ops->meter = meter;
    struct ops_backend fused = *f.ops->backend;
    const struct ops_backend *own = f.ops->backend;
    struct linear_swiglu a = {.x = x, .w = x, .gate_up = x, .act = x};
    struct linear_dx_dswiglu d = {.dy = x, .w = x, .gate_up = x, .dgate_up = x, .act = x};
    ops_linear_swiglu(f.ops, f.stream, up, 4, &a);
    fused.takes_swiglu = takes_even;
    f.ops->backend = &fused;
    ops_linear_swiglu(f.ops, f.stream, up, 4, &a);
    a.act = NULL;
    ops_linear_swiglu(f.ops, f.stream, up, 4, &a);
    ops_linear_swiglu(f.ops, f.stream, up, 5, &a);
    ops_linear_dx_dswiglu(f.ops, f.stream, down, 5, &d);
    ops_linear_dx_dswiglu(f.ops, f.stream, down, 4, &d);
    assert_int_equal(ops_meter_count(meter, &all), EXPECTED);
    for (int i = 0; i < EXPECTED; i++)
        assert_string_equal(ops_meter_case(meter, i)->op, expected[i]);
    assert_true(ops_meter_case(meter, 2)->act && !ops_meter_case(meter, 3)->act);
    a.bias = x;
    ops_linear_swiglu(f.ops, f.stream, up, 4, &a);
    assert_int_equal(ops_meter_count(meter, &all), EXPECTED + 1);
    assert_string_equal(ops_meter_case(meter, EXPECTED)->op, "linear");
    f.ops->backend = own;
    ops_meter_destroy(meter);
    device_free(f.device, x);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rates),
        cmocka_unit_test(test_tiles_of_attention),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_attention_of_cuda),
        cmocka_unit_test(test_scratch_of_cuda),
        cmocka_unit_test(test_products_that_take_longer),
        cmocka_unit_test(test_measured_lines_count_first),
        cmocka_unit_test(test_attention_that_turns),
        cmocka_unit_test(test_the_meter_notes_each_call_once),
        cmocka_unit_test(test_products_with_swiglu),
        cmocka_unit_test(test_swiglu_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
