/* test_ops_again -- a recomputed output of a linear layer has its original bits: with GELU by
 * ops_gelu if ops_gelu_remakes, else by the product; with SwiGLU by each op that computes it.
 *
 * Without arguments on the CPU; `test_ops_again cuda` on a GPU, exit status 77 = no GPU. */
#include "gpu.h"
#include "base/rng.h"
#include "ops/op_rig.h"

enum { ROWS = 96, IN = 64, OUT = 128 };

struct subject {
    const char *backend;
    enum dtype type;
};

static void *taken(struct rig *rig, int64_t count)
{
    void *memory;
    size_t bytes = (size_t)count * dtype_bytes(rig->ops->type);
    assert_ok(device_alloc(rig->device, MEM_SCRATCH, "test", bytes, &memory));
    return memory;
}

/* Numbers from -1 to 1, different for every name. */
static void *filled(struct rig *rig, int64_t count, const char *name)
{
    struct rng rng = rng_stream(3, name);
    float *wide;
    void *on_device, *narrow = taken(rig, count);
    assert_ok(mem_alloc_array(&rig->env, MEM_OTHER, "test", (size_t)count, sizeof *wide, &wide));
    for (int64_t i = 0; i < count; i++)
        wide[i] = (float)(2 * rng_uniform(rng, (uint64_t)i) - 1);
    size_t bytes = (size_t)count * sizeof *wide;
    assert_ok(device_alloc(rig->device, MEM_SCRATCH, "test", bytes, &on_device));
    device_copy(rig->stream, on_device, wide, bytes);
    ops_cast(rig->ops, rig->stream, narrow, rig->ops->type, on_device, DTYPE_F32, count);
    assert_ok(stream_sync(rig->stream));
    device_free(rig->device, on_device);
    mem_free(&rig->env, wide);
    return narrow;
}

static void same_bits(struct rig *rig, const void *a, const void *b, int64_t count)
{
    size_t bytes = (size_t)count * dtype_bytes(rig->ops->type);
    unsigned char *host;
    assert_ok(mem_alloc(&rig->env, MEM_OTHER, "test", 2 * bytes, &host));
    device_copy(rig->stream, host, a, bytes);
    device_copy(rig->stream, host + bytes, b, bytes);
    assert_ok(stream_sync(rig->stream));
    assert_memory_equal(host, host + bytes, bytes);
    mem_free(&rig->env, host);
}

static void test_linear_gelu(void **state)
{
    const struct subject *subject = *state;
    const struct linear l = {.in = IN, .out = OUT};
    struct rig rig;
    rig_open(&rig, subject->backend, subject->type, 2);
    void *x = filled(&rig, ROWS * IN, "x"), *w = filled(&rig, IN * OUT, "w");
    void *bias = filled(&rig, OUT, "bias"), *pre = taken(&rig, ROWS * OUT);
    void *y = taken(&rig, ROWS * OUT), *again = taken(&rig, ROWS * OUT);
    ops_linear_gelu(rig.ops, rig.stream, l, ROWS,
                    &(struct linear_gelu){.x = x, .w = w, .bias = bias, .pre = pre, .y = y});
    if (ops_gelu_remakes(rig.ops))
        ops_gelu(rig.ops, rig.stream, ROWS * OUT, pre, again);
    else
        ops_linear_gelu(
            rig.ops, rig.stream, l, ROWS,
            &(struct linear_gelu){.x = x, .w = w, .bias = bias, .pre = pre, .y = again});
    same_bits(&rig, y, again, ROWS * OUT);
    void *all[] = {x, w, bias, pre, y, again};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        device_free(rig.device, all[i]);
    rig_close(&rig);
}

static float float_at(const void *x, enum dtype type, int64_t i)
{
    float value;
    dtype_convert(&value, DTYPE_F32, (const char *)x + (size_t)i * dtype_bytes(type), type, 1);
    return value;
}

/* Whether a device's numbers are the same to a few roundings. */
static void nearly_same(struct rig *rig, const void *a, const void *b, int64_t count)
{
    enum dtype type = rig->ops->type;
    size_t bytes = (size_t)count * dtype_bytes(type);
    double difference = 0, norm = 0;
    char *host;
    assert_ok(mem_alloc(&rig->env, MEM_OTHER, "test", 2 * bytes, &host));
    device_copy(rig->stream, host, a, bytes);
    device_copy(rig->stream, host + bytes, b, bytes);
    assert_ok(stream_sync(rig->stream));
    for (int64_t i = 0; i < count; i++) {
        double x = (double)float_at(host, type, i), y = (double)float_at(host + bytes, type, i);
        difference += (x - y) * (x - y);
        norm += y * y;
    }
    assert_true(norm > 0 && difference <= 1e-4 * norm); /* NaN is neither */
    mem_free(&rig->env, host);
}

/* act of a product with SwiGLU, of the backward product, of ops_swiglu and of ops_swiglu_backward:
 * all of the same gate_up, which has the same bits without act. The slopes agree with those of the
 * ops that they are made of elsewhere. */
static void check_swiglu(struct rig *rig, int64_t rows, int64_t width, int64_t ff)
{
    struct ops *ops = rig->ops;
    struct stream *stream = rig->stream;
    const struct linear up = {.in = width, .out = 2 * ff, .out_in = true},
                        down = {.in = ff, .out = width, .out_in = true};
    int64_t count = rows * ff;
    void *x = filled(rig, rows * width, "x"), *w = filled(rig, 2 * ff * width, "w");
    void *both = taken(rig, 2 * count), *act = taken(rig, count), *again = taken(rig, 2 * count);
    void *slopes = taken(rig, 2 * count), *d_act = taken(rig, count);
    ops_linear_swiglu(ops, stream, up, rows,
                      &(struct linear_swiglu){.x = x, .w = w, .gate_up = both, .act = act});
    ops_linear_swiglu(ops, stream, up, rows,
                      &(struct linear_swiglu){.x = x, .w = w, .gate_up = again});
    same_bits(rig, both, again, 2 * count);
    ops_linear(ops, stream, up, rows, x, w, NULL, again);
    nearly_same(rig, both, again, 2 * count);
    ops_swiglu(ops, stream, rows, ff, both, again);
    same_bits(rig, act, again, count);
    ops_linear_dx(ops, stream, down, rows, x, w, d_act);
    ops_swiglu_backward(ops, stream, rows, ff, both, d_act, slopes, d_act);
    same_bits(rig, act, d_act, count);
    ops_linear_dx_dswiglu(ops, stream, down, rows,
                          &(struct linear_dx_dswiglu){
                              .dy = x, .w = w, .gate_up = both, .dgate_up = again, .act = d_act});
    same_bits(rig, act, d_act, count);
    nearly_same(rig, slopes, again, 2 * count);
    ops_linear_dx_dswiglu(ops, stream, down, rows,
                          &(struct linear_dx_dswiglu){
                              .dy = x, .w = w, .gate_up = both, .dgate_up = both, .act = d_act});
    same_bits(rig, act, d_act, count);
    same_bits(rig, both, again, 2 * count);
    void *all[] = {x, w, both, act, again, slopes, d_act};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        device_free(rig->device, all[i]);
}

/* On a GPU, the large shape is one for our own kernels on Hopper, and the others with "own". */
static void test_linear_swiglu(void **state)
{
    const struct subject *subject = *state;
    static const char *const ways[] = {"library", "large", "own"};
    bool on_gpu = strcmp(subject->backend, "cuda") == 0;
    for (int way = 0; way < (on_gpu ? 3 : 1); way++) {
        struct rig rig;
        setenv("SIFR_CUDA_SWIGLU", ways[way], 1);
        rig_open(&rig, subject->backend, subject->type, 2);
        if (on_gpu)
            rig_check_own(&rig);
        check_swiglu(&rig, ROWS, IN, 72);
        check_swiglu(&rig, ROWS + 1, 37, 41);
        if (on_gpu) {
            check_swiglu(&rig, 8191, 320, 1096);
            check_swiglu(&rig, 16384, 1024, 2816);
        }
        rig_close(&rig);
    }
    unsetenv("SIFR_CUDA_SWIGLU");
}

int main(int count, char **words)
{
    static struct subject host[] = {{"ref", DTYPE_F32}, {"ref", DTYPE_F64}, {"cpu", DTYPE_F32}};
    static struct subject gpu[] = {{"cuda", DTYPE_F32}, {"cuda", DTYPE_BF16}, {"cuda", DTYPE_F16}};
    bool on_gpu = count > 1;
    if (on_gpu && test_missing(words[1]))
        return 77;
    struct subject *subjects = on_gpu ? gpu : host;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_linear_gelu, &subjects[0]),
        cmocka_unit_test_prestate(test_linear_gelu, &subjects[1]),
        cmocka_unit_test_prestate(test_linear_gelu, &subjects[2]),
        cmocka_unit_test_prestate(test_linear_swiglu, &subjects[0]),
        cmocka_unit_test_prestate(test_linear_swiglu, &subjects[1]),
        cmocka_unit_test_prestate(test_linear_swiglu, &subjects[2]),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
