/* A device counts its memory and frees it; the dry device counts the same; the first failure sticks
 * to a stream; misuse aborts. test_device_gpu.c has what every device guarantees. */
#include <math.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "base/host.h"
#include "device/device.h"
#include "testing.h"

static void test_create(void **state)
{
    (void)state;
    struct env env = testing_env(3);
    struct device *device = NULL;
    assert_int_equal(device_create(&env, "gpu", 0, &device), STATUS_CONFIG);
    assert_null(device);
    assert_non_null(strstr(log_first_error(env.log), "cpu, cuda, dry"));
    assert_ok(device_create(&env, "cpu", 0, &device));
    assert_string_equal(device_backend(device), "cpu");
    assert_ptr_equal(device_env(device), &env);
    assert_false(device_is_dry(device));
    device_destroy(device);
    device_destroy(NULL);
    env_destroy(&env);
}

/* The memory account after the same allocations on a back end. */
struct account {
    size_t params, grads, total;
};

static struct account allocate_on(const char *backend)
{
    struct env env = testing_env(1);
    struct device *device;
    char *a, *b, *c;
    assert_ok(device_create(&env, backend, 0, &device));
    size_t before = mem_total(env.mem);
    assert_ok(device_alloc(device, MEM_PARAMS, "a", 1000, &a));
    assert_ok(device_alloc(device, MEM_PARAMS, "b", 0, &b));
    assert_ok(device_alloc(device, MEM_GRADS, "c", 3 << 20, &c));
    struct account account = {mem_bytes(env.mem, MEM_PARAMS), mem_bytes(env.mem, MEM_GRADS),
                              mem_total(env.mem) - before};
    assert_true(a != NULL && b != NULL && c != NULL && a != b && b != c);
    assert_int_equal((uintptr_t)a % 64 + (uintptr_t)b % 64 + (uintptr_t)c % 64, 0);
    device_free(device, b);
    device_free(device, NULL);
    assert_int_equal(mem_bytes(env.mem, MEM_PARAMS), 1000);
    device_free(device, a);
    device_free(device, c);
    assert_int_equal(mem_total(env.mem), before);
    device_destroy(device);
    env_destroy(&env);
    return account;
}

static void test_accounts(void **state)
{
    (void)state;
    struct account cpu = allocate_on("cpu"), dry = allocate_on("dry");
    assert_int_equal(cpu.params, 1001);
    assert_int_equal(cpu.grads, 3 << 20);
    assert_int_equal(dry.params, cpu.params);
    assert_int_equal(dry.grads, cpu.grads);
    assert_int_equal(dry.total, cpu.total);
}

/* A dry device accepts allocations that no machine has room for, and touches no memory. */
static void test_dry(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct device *device;
    struct stream *stream;
    char *a, *b;
    size_t bytes = (size_t)1 << 44;
    assert_ok(device_create(&env, "dry", 0, &device));
    assert_true(device_is_dry(device));
    assert_ok(stream_create(device, "test", &stream));
    assert_ok(device_alloc(device, MEM_OPTIMIZER, "state", bytes, &a));
    assert_ok(device_alloc(device, MEM_OPTIMIZER, "state", bytes, &b));
    assert_true(b >= a + bytes || a >= b + bytes);
    assert_int_equal(mem_bytes(env.mem, MEM_OPTIMIZER), 2 * bytes);
    device_zero(stream, a, bytes);
    device_copy(stream, a, b, bytes);
    device_accumulate(stream, a, DTYPE_F32, b, DTYPE_BF16, 1000);
    assert_ok(stream_sync(stream));
    device_free(device, a);
    device_free(device, b);
    stream_destroy(stream);
    device_destroy(device);
    env_destroy(&env);
}

/* The blocks of a deep model are freed in allocation order. A linear search for each of them would
 * take minutes. */
static void test_many_blocks(void **state)
{
    (void)state;
    enum { BLOCKS = 100000 };
    struct env env = testing_env(1);
    struct device *device;
    static char *blocks[BLOCKS];
    clock_t start = clock();
    assert_ok(device_create(&env, "dry", 0, &device));
    size_t before = mem_total(env.mem);
    for (int i = 0; i < BLOCKS; i++)
        assert_ok(device_alloc(device, MEM_PARAMS, "a", 1000, &blocks[i]));
    for (int i = 0; i < BLOCKS; i++)
        device_free(device, blocks[i]);
    assert_int_equal(mem_total(env.mem), before);
    assert_true((double)(clock() - start) / CLOCKS_PER_SEC < 10);
    device_destroy(device);
    env_destroy(&env);
}

static enum status build(struct env *env, const char *backend)
{
    enum status st;
    struct device *device;
    struct stream *stream;
    void *a = NULL, *b = NULL;
    TRY(device_create(env, backend, 0, &device));
    TRY_OR(undo_device, stream_create(device, "test", &stream));
    TRY_OR(undo_stream, device_alloc(device, MEM_PARAMS, "a", 100, &a));
    TRY_OR(undo_stream, device_alloc(device, MEM_PARAMS, "b", 100, &b));
undo_stream:
    device_free(device, a);
    device_free(device, b);
    stream_destroy(stream);
undo_device:
    device_destroy(device);
    return st;
}

static void test_failing_allocations(void **state)
{
    assert_int_equal(testing_fail_each(build, *state), 7); /* device, stream, two per block */
}

static void test_sticky_error(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct device *device;
    struct stream *stream;
    int from = 5, to = 3;
    assert_ok(device_create(&env, "cpu", 0, &device));
    assert_ok(stream_create(device, "test", &stream));
    assert_ptr_equal(stream_device(stream), device);
    stream_fail(stream, STATUS_OK);
    assert_false(stream_failed(stream));
    stream_fail(stream, STATUS_DEVICE);
    stream_fail(stream, STATUS_IO);
    assert_true(stream_failed(stream));
    device_copy(stream, &to, &from, sizeof to);
    device_zero(stream, &to, sizeof to);
    assert_int_equal(to, 3);
    assert_int_equal(stream_sync(stream), STATUS_DEVICE);
    assert_int_equal(stream_sync(stream), STATUS_DEVICE);
    stream_destroy(stream);
    device_destroy(device);
    env_destroy(&env);
}

/* --- copies and sums ------------------------------------------------------------------------ */

struct rig {
    struct env env;
    struct device *device;
    struct stream *stream;
};

static void rig_open(struct rig *rig, int threads)
{
    rig->env = testing_env(threads);
    assert_ok(device_create(&rig->env, "cpu", 0, &rig->device));
    assert_ok(stream_create(rig->device, "test", &rig->stream));
}

static void rig_close(struct rig *rig)
{
    assert_ok(stream_sync(rig->stream));
    stream_destroy(rig->stream);
    device_destroy(rig->device);
    env_destroy(&rig->env);
}

static void test_copy(void **state)
{
    (void)state;
    enum { BYTES = (5 << 20) + 77 };
    struct rig rig;
    unsigned char *a, *b;
    rig_open(&rig, 3);
    assert_ok(device_alloc(rig.device, MEM_SCRATCH, "a", BYTES, &a));
    assert_ok(device_alloc(rig.device, MEM_SCRATCH, "b", BYTES + 1, &b));
    for (int i = 0; i < BYTES; i++)
        a[i] = (unsigned char)(i % 251);
    b[BYTES] = 9;
    device_copy(rig.stream, b, a, BYTES);
    assert_memory_equal(a, b, BYTES);
    device_copy(rig.stream, b + 3, a + 10, BYTES - 10); /* from and to unaligned addresses */
    assert_memory_equal(a, b, 3);
    assert_memory_equal(a + 10, b + 3, BYTES - 10);
    assert_memory_equal(a + BYTES - 7, b + BYTES - 7, 7);
    device_zero(rig.stream, b, BYTES);
    for (int i = 0; i < BYTES; i++)
        assert_int_equal(b[i], 0);
    assert_int_equal(b[BYTES], 9);
    device_copy(rig.stream, NULL, NULL, 0);
    device_free(rig.device, a);
    device_free(rig.device, b);
    rig_close(&rig);
}

/* Two of five columns out of three rows, and from there into a matrix of four columns. */
static void test_copy_rows(void **state)
{
    (void)state;
    enum { ROWS = 3, FROM = 5, TO = 4, WIDTH = 2 };
    static const char from[ROWS * FROM] = "abcdefghijklmn", expected[] = "..bc..gh..lm";
    char dense[ROWS * WIDTH], to[ROWS * TO];
    struct rig rig;
    rig_open(&rig, 1);
    memset(to, '.', sizeof to);
    device_copy_rows(rig.stream, dense, WIDTH, from + 1, FROM, WIDTH, ROWS);
    assert_memory_equal(dense, "bcghlm", ROWS * WIDTH);
    device_copy_rows(rig.stream, to + 2, TO, dense, WIDTH, WIDTH, ROWS);
    assert_memory_equal(to, expected, sizeof to);
    device_copy_rows(rig.stream, to, TO, from, FROM, 0, ROWS);
    device_copy_rows(rig.stream, to, TO, from, FROM, WIDTH, 0);
    assert_memory_equal(to, expected, sizeof to);
    rig_close(&rig);
}

/* Every f16 number, to the bit: the vector code does its own widening. */
static void test_accumulate_f16(void **state)
{
    (void)state;
    enum { ALL = 65536 };
    static uint16_t src[ALL];
    static float dst[ALL];
    struct rig rig;
    rig_open(&rig, 1);
    for (int i = 0; i < ALL; i++)
        src[i] = (uint16_t)i;
    device_accumulate(rig.stream, dst, DTYPE_F32, src, DTYPE_F16, ALL);
    for (int i = 0; i < ALL; i++) {
        float expected = f16_to_f32((uint16_t)i);
        assert_true(dst[i] == expected || (isnan(dst[i]) && isnan(expected)));
    }
    rig_close(&rig);
}

/* The first source is stored to the bit, -0 too, and replaces what was there. */
static void test_first_of_squares(void **state)
{
    (void)state;
    enum { ALL = 65536, BLOCKS = ALL / DEVICE_SQUARES };
    static uint16_t src[ALL];
    static float dst[ALL];
    static double sums[BLOCKS], expected_sums[BLOCKS];
    struct rig rig;
    rig_open(&rig, 1);
    for (int i = 0; i < ALL; i++) {
        src[i] = (uint16_t)i;
        dst[i] = NAN;
    }
    for (int b = 0; b < BLOCKS; b++)
        sums[b] = NAN;
    device_accumulate_squares(rig.stream, dst, src, DTYPE_F16, ALL, true, sums, 0.7);
    device_add_squares(rig.stream, expected_sums, src, DTYPE_F16, ALL, 0.7);
    for (int i = 0; i < ALL; i++) {
        float expected = f16_to_f32((uint16_t)i);
        if (isnan(expected))
            assert_true(isnan(dst[i]));
        else
            assert_memory_equal(&dst[i], &expected, sizeof expected);
    }
    for (int b = 0; b < BLOCKS; b++)
        assert_true(sums[b] == expected_sums[b] || (isnan(sums[b]) && isnan(expected_sums[b])));
    rig_close(&rig);
}

/* --- broken invariants ---------------------------------------------------------------------- */

static void leak(struct device *device)
{
    void *block;
    (void)device_alloc(device, MEM_PARAMS, "a", 10, &block);
    device_destroy(device);
}

static void free_twice(struct device *device)
{
    void *block;
    (void)device_alloc(device, MEM_PARAMS, "a", 10, &block);
    device_free(device, block);
    device_free(device, block);
}

static void free_inside(struct device *device)
{
    char *block;
    (void)device_alloc(device, MEM_PARAMS, "a", 10, &block);
    device_free(device, block + 1);
}

static void keep_stream(struct device *device)
{
    struct stream *stream;
    (void)stream_create(device, "a", &stream);
    device_destroy(device);
}

static void overlap(struct device *device)
{
    struct stream *stream;
    char bytes[20] = {0};
    (void)stream_create(device, "a", &stream);
    device_copy(stream, bytes, bytes + 5, 10);
}

static void overlap_squares(struct device *device)
{
    struct stream *stream;
    float values[20] = {0};
    double sum;
    (void)stream_create(device, "a", &stream);
    device_accumulate_squares(stream, values, values + 5, DTYPE_F32, 10, true, &sum, 1);
}

static void test_aborts(void **state)
{
    (void)state;
    static void (*const wrong[])(struct device *) = {leak,        free_twice, free_inside,
                                                     keep_stream, overlap,    overlap_squares};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            struct env env = testing_env(1);
            struct device *device;
            assert_ok(device_create(&env, "cpu", 0, &device));
            signal(SIGABRT, SIG_DFL);
            assert_non_null(freopen("/dev/null", "w", stderr));
            wrong[i](device);
            _exit(0);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT)
            fail_msg("misuse %zu was not detected", i);
    }
}

/* Several threads touch what they allocate, so that pages are spread over their NUMA nodes; the
 * contents are zeros. One thread leaves it to the first use. */
static void test_touched(void **state)
{
    (void)state;
    const size_t bytes = ((size_t)64 << 20) + 12345, slack = (size_t)8 << 20;
    if (TESTING_SANITIZED)
        testing_skip("a sanitizer touches memory itself");
    for (int threads = 1; threads <= 3; threads++) {
        struct env env = testing_env(threads);
        struct device *device;
        char *block;
        assert_ok(device_create(&env, "cpu", 0, &device));
        size_t before = resident_bytes();
        assert_ok(device_alloc(device, MEM_PARAMS, "block", bytes, &block));
        size_t grown = resident_bytes() - before;
        assert_true(threads == 1 ? grown < slack : grown > bytes - slack);
        assert_true(block[0] == 0 && memcmp(block, block + 1, bytes - 1) == 0);
        device_free(device, block);
        device_destroy(device);
        env_destroy(&env);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_aborts),
        cmocka_unit_test(test_create),
        cmocka_unit_test(test_accounts),
        cmocka_unit_test(test_dry),
        cmocka_unit_test(test_many_blocks),
        {"test_failing_allocations cpu", test_failing_allocations, NULL, NULL, "cpu"},
        {"test_failing_allocations dry", test_failing_allocations, NULL, NULL, "dry"},
        cmocka_unit_test(test_sticky_error),
        cmocka_unit_test(test_copy),
        cmocka_unit_test(test_copy_rows),
        cmocka_unit_test(test_accumulate_f16),
        cmocka_unit_test(test_first_of_squares),
        cmocka_unit_test(test_touched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
