/* test_ops_again -- a recomputed output of a linear layer with GELU has its original bits, by
 * ops_gelu if ops_gelu_remakes, else by the product.
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
