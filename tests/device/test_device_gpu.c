/* test_device_gpu -- what every device guarantees, tested without touching its memory from the
 * host: copies, sums, and the order of work and tasks on plain and worker streams.
 *
 * Without arguments it tests the CPU. `test_device_gpu cuda` tests a GPU and exits with 77 if there
 * is none. */
#include <math.h>
#include "base/rng.h"
#include "device/device.h"
#include "gpu.h"

enum { NO_GPU = 77 };

struct rig {
    struct env env;
    struct device *device;
    struct stream *compute, *copies; /* plain */
    struct stream *worker;
};

static void rig_open(struct rig *rig, const char *backend)
{
    rig->env = testing_env(2);
    if (device_create(&rig->env, backend, 0, &rig->device) != STATUS_OK)
        fail_msg("%s", log_first_error(rig->env.log));
    assert_ok(stream_create(rig->device, "compute", &rig->compute));
    assert_ok(stream_create(rig->device, "copies", &rig->copies));
    assert_ok(stream_create_worker(rig->device, "worker", &rig->worker));
}

static void rig_close(struct rig *rig)
{
    stream_destroy(rig->worker);
    stream_destroy(rig->copies);
    stream_destroy(rig->compute);
    device_destroy(rig->device);
    env_destroy(&rig->env);
}

static void *on_device(struct rig *rig, size_t bytes)
{
    void *block;
    assert_ok(device_alloc(rig->device, MEM_SCRATCH, "test", bytes, &block));
    return block;
}

static void *on_host(size_t bytes)
{
    void *block = calloc(1, bytes);
    assert_non_null(block);
    return block;
}

/* --- memory --------------------------------------------------------------------------------- */

static void test_memory(void **state)
{
    enum { BYTES = 100003 };
    struct rig rig;
    char *found = on_host(BYTES), *pinned;
    rig_open(&rig, *state);
    size_t before = mem_total(rig.env.mem);
    for (int round = 0; round < 3; round++) { /* reused memory is zeroed again */
        char *block = on_device(&rig, BYTES);
        assert_int_equal((uintptr_t)block % 64, 0);
        assert_int_equal(mem_bytes(rig.env.mem, MEM_SCRATCH), BYTES);
        memset(found, 1, BYTES);
        device_copy(rig.compute, found, block, BYTES);
        assert_ok(stream_sync(rig.compute));
        for (int i = 0; i < BYTES; i++)
            assert_int_equal(found[i], 0);
        memset(found, 7, BYTES);
        device_copy(rig.compute, block, found, BYTES);
        assert_ok(stream_sync(rig.compute));
        device_free(rig.device, block);
    }
    assert_ok(device_alloc_host(rig.device, MEM_COMM, "stage", BYTES, &pinned));
    assert_int_equal(mem_bytes(rig.env.mem, MEM_COMM), BYTES);
    for (int i = 0; i < BYTES; i++)
        assert_int_equal(pinned[i], 0);
    device_free(rig.device, pinned);
    assert_int_equal(mem_total(rig.env.mem), before);
    free(found);
    rig_close(&rig);
}

/* A large block of host memory, which is mapped and then pinned: zeroed, copied to the device and
 * back, freed; and one that is larger than the machine is refused. */
static void test_large_host_blocks(void **state)
{
    struct rig rig;
    const size_t bytes = ((size_t)65 << 20) + 5, part = 4 << 20;
    char *large, *other;
    rig_open(&rig, *state);
    size_t before = mem_total(rig.env.mem);
    char *device = on_device(&rig, part);
    assert_ok(device_alloc_host(rig.device, MEM_COMM, "large", bytes, &large));
    for (size_t i = 0; i < bytes; i++)
        if (large[i] != 0)
            fail_msg("byte %zu is %d", i, large[i]);
    for (size_t i = 0; i < part; i++)
        large[i] = (char)(i * 7);
    device_copy(rig.compute, device, large, part);
    device_copy(rig.compute, large + bytes - part, device, part);
    assert_ok(stream_sync(rig.compute));
    assert_memory_equal(large, large + bytes - part, part);
    assert_int_equal(device_alloc_host(rig.device, MEM_COMM, "impossible", (size_t)1 << 46, &other),
                     STATUS_MEMORY);
    assert_non_null(strstr(log_first_error(rig.env.log), "impossible"));
    device_free(rig.device, large);
    device_free(rig.device, device);
    assert_int_equal(mem_total(rig.env.mem), before);
    rig_close(&rig);
}

/* An impossible allocation fails with its name and size in the message, and is not counted. */
static void test_out_of_memory(void **state)
{
    struct rig rig;
    void *block;
    rig_open(&rig, *state);
    size_t before = mem_total(rig.env.mem);
    assert_int_equal(device_alloc(rig.device, MEM_GRADS, "too much", (size_t)1 << 46, &block),
                     STATUS_MEMORY);
    assert_null(block);
    assert_non_null(strstr(log_first_error(rig.env.log), "too much"));
    assert_non_null(strstr(log_first_error(rig.env.log), "64.0 TiB"));
    assert_int_equal(mem_total(rig.env.mem), before);
    block = on_device(&rig, 1000); /* the device still works */
    device_zero(rig.compute, block, 1000);
    assert_ok(stream_sync(rig.compute));
    device_free(rig.device, block);
    rig_close(&rig);
}

static enum status build(struct env *env, const char *backend)
{
    enum status st;
    struct device *device;
    struct stream *plain = NULL, *worker = NULL;
    struct event *event = NULL;
    void *a = NULL, *b = NULL;
    TRY(device_create(env, backend, 0, &device));
    TRY_OR(undo, stream_create(device, "plain", &plain));
    TRY_OR(undo, stream_create_worker(device, "worker", &worker));
    TRY_OR(undo, event_create(device, &event));
    TRY_OR(undo, device_alloc(device, MEM_PARAMS, "a", 100, &a));
    TRY_OR(undo, device_alloc_host(device, MEM_PARAMS, "b", 100, &b));
undo:
    device_free(device, b);
    device_free(device, a);
    event_destroy(event);
    stream_destroy(worker);
    stream_destroy(plain);
    device_destroy(device);
    return st;
}

static void test_failing_allocations(void **state)
{
    assert_true(testing_fail_each(build, *state) >= 10);
}

/* --- copies and sums ------------------------------------------------------------------------ */

/* Ordinary source memory may be changed as soon as the call returns. Chunks of a copy join without
 * a gap. */
static void test_copy(void **state)
{
    enum { BYTES = (9 << 20) + 77, ROUNDS = 3, SMALL = 1000 };
    struct rig rig;
    unsigned char *source = on_host(BYTES), *found = on_host(BYTES);
    rig_open(&rig, *state);
    unsigned char *a = on_device(&rig, BYTES), *b = on_device(&rig, BYTES);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < BYTES; i++)
            source[i] = (unsigned char)(i % 251 + round);
        device_copy(rig.compute, a, source, BYTES);
        memset(source, 255, BYTES);
        device_copy(rig.compute, b, a, BYTES);
        device_zero(rig.compute, b + 100, 50);
        device_copy(rig.compute, found, b, BYTES);
        assert_ok(stream_sync(rig.compute));
        for (int i = 0; i < BYTES; i++) {
            int expected = i >= 100 && i < 150 ? 0 : (i % 251 + round) % 256;
            if (found[i] != expected)
                fail_msg("byte %d is %d, not %d", i, found[i], expected);
        }
    }
    for (int i = 0; i < SMALL; i++) { /* many small copies from one address */
        int value = 3 * i;
        device_copy(rig.compute, a + (size_t)i * sizeof value, &value, sizeof value);
    }
    device_copy(rig.compute, found, a, SMALL * sizeof(int));
    assert_ok(stream_sync(rig.compute));
    for (int i = 0; i < SMALL; i++)
        assert_int_equal(((int *)(void *)found)[i], 3 * i);
    device_copy(rig.compute, source, found, BYTES); /* host to host */
    assert_ok(stream_sync(rig.compute));
    assert_memory_equal(source, found, BYTES);
    device_free(rig.device, a);
    device_free(rig.device, b);
    free(source);
    free(found);
    rig_close(&rig);
}

/* Some columns of a matrix, to a dense one and back to others. */
static void test_copy_rows(void **state)
{
    enum { ROWS = 300, COLUMNS = 50, FIRST = 7, WIDTH = 20, BYTES = ROWS * COLUMNS };
    struct rig rig;
    unsigned char *source = on_host(BYTES), *found = on_host(BYTES);
    rig_open(&rig, *state);
    unsigned char *a = on_device(&rig, BYTES), *b = on_device(&rig, ROWS * WIDTH);
    for (int i = 0; i < BYTES; i++)
        source[i] = (unsigned char)(i % 251);
    device_copy(rig.compute, a, source, BYTES);
    device_copy_rows(rig.compute, b, WIDTH, a + FIRST, COLUMNS, WIDTH, ROWS);
    device_zero(rig.compute, a, BYTES);
    device_copy_rows(rig.compute, a, COLUMNS, b, WIDTH, WIDTH, ROWS);
    device_copy(rig.compute, found, a, BYTES);
    assert_ok(stream_sync(rig.compute));
    for (int row = 0; row < ROWS; row++)
        for (int column = 0; column < COLUMNS; column++)
            assert_int_equal(found[row * COLUMNS + column],
                             column < WIDTH ? source[row * COLUMNS + FIRST + column] : 0);
    device_free(rig.device, a);
    device_free(rig.device, b);
    free(source);
    free(found);
    rig_close(&rig);
}

enum { COUNT = 150011 };

/* Ordinary values, preceded by hard cases: subnormal numbers, ties, infinities. */
static void fill(void *data, enum dtype type, const char *name)
{
    static const double hard[] = {0,     -0.0,   1e-7,     6e-8, -5.9604644775390625e-08,
                                  65504, -65504, INFINITY, 1,    1.0009765625};
    struct rng rng = rng_stream(11, name);
    for (int64_t i = 0; i < COUNT; i++) {
        double value = i < 10 ? hard[i] : rng_normal(rng, (uint64_t)i);
        dtype_convert((char *)data + (size_t)i * dtype_bytes(type), type, &value, DTYPE_F64, 1);
    }
}

/* The sum by definition: computed in float (in double if the target is double), rounded once. */
static void expect(char *dst, enum dtype dst_type, const char *src, enum dtype src_type)
{
    double a, b;
    dtype_convert(&a, DTYPE_F64, dst, dst_type, 1);
    dtype_convert(&b, DTYPE_F64, src, src_type, 1);
    double sum = a + b; /* accurate enough for one rounding to float */
    float single = (float)sum;
    if (dst_type == DTYPE_F64)
        memcpy(dst, &sum, sizeof sum);
    else
        dtype_convert(dst, dst_type, &single, DTYPE_F32, 1);
}

/* Adds elements skip .. COUNT - 1 - skip; the others must not change. */
static void accumulate_pair(struct rig *rig, enum dtype dst_type, enum dtype src_type, int64_t skip)
{
    size_t width = dtype_bytes(dst_type), src_width = dtype_bytes(src_type);
    size_t bytes = COUNT * width, src_bytes = COUNT * src_width, at = (size_t)skip;
    char *src = on_host(src_bytes), *expected = on_host(bytes), *found = on_host(bytes);
    char *device_src = on_device(rig, src_bytes), *device_dst = on_device(rig, bytes);
    rig->env.threads = 1 + (int)skip / 4; /* the CPU uses one to three */
    fill(src, src_type, "src");
    fill(expected, dst_type, "dst");
    device_copy(rig->compute, device_src, src, src_bytes);
    device_copy(rig->compute, device_dst, expected, bytes);
    for (size_t i = at; i < COUNT - at; i++)
        expect(expected + i * width, dst_type, src + i * src_width, src_type);
    device_accumulate(rig->compute, device_dst + at * width, dst_type, device_src + at * src_width,
                      src_type, COUNT - 2 * skip);
    device_copy(rig->compute, found, device_dst, bytes);
    assert_ok(stream_sync(rig->compute));
    if (memcmp(found, expected, bytes) != 0)
        fail_msg("%s += %s is wrong from element %d on, with %d threads", dtype_name(dst_type),
                 dtype_name(src_type), (int)skip, rig->env.threads);
    device_free(rig->device, device_src);
    device_free(rig->device, device_dst);
    free(src);
    free(expected);
    free(found);
}

static void test_accumulate(void **state)
{
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_F64};
    struct rig rig;
    rig_open(&rig, *state);
    for (int d = 0; d < 4; d++) {
        for (int s = 0; s < (d == 3 ? 4 : 3); s++) {
            for (int64_t skip = 0; skip <= 8; skip += 4) /* aligned to 16 bytes or not */
                accumulate_pair(&rig, types[d], types[s], skip);
            accumulate_pair(&rig, types[d], types[s], 1);
        }
    }
    rig_close(&rig);
}

/* --- squares --------------------------------------------------------------------------------- */

/* The sums of blocks of elements skip .. COUNT - 1, added twice with different weights. */
static void squares_of(struct rig *rig, enum dtype type, int64_t skip)
{
    enum { BLOCKS = (COUNT + DEVICE_SQUARES - 1) / DEVICE_SQUARES };
    size_t width = dtype_bytes(type), bytes = COUNT * width;
    double *sums = on_device(rig, (BLOCKS + 1) * sizeof *sums), found[BLOCKS + 1];
    char *src = on_host(bytes), *device_src = on_device(rig, bytes);
    int64_t count = COUNT - skip;
    float *values = on_host(COUNT * sizeof *values);
    rig->env.threads = 1 + (int)skip;
    fill(src, type, "src");
    dtype_convert(values, DTYPE_F32, src, type, COUNT);
    device_copy(rig->compute, device_src, src, bytes);
    device_add_squares(rig->compute, sums, device_src + (size_t)skip * width, type, count, 1);
    device_add_squares(rig->compute, sums, device_src + (size_t)skip * width, type, count, 0.5);
    device_copy(rig->compute, found, sums, sizeof found);
    assert_ok(stream_sync(rig->compute));
    for (int64_t b = 0; b * DEVICE_SQUARES < count; b++) {
        double sum = 0;
        for (int64_t i = b * DEVICE_SQUARES; i < (b + 1) * DEVICE_SQUARES && i < count; i++)
            sum += 1.5 * (double)values[skip + i] * (double)values[skip + i];
        if (isfinite(sum) && !(fabs(found[b] - sum) <= 1e-12 * sum))
            fail_msg("%s, from element %d: block %d is %g, not %g", dtype_name(type), (int)skip,
                     (int)b, found[b], sum);
        assert_int_equal(isfinite(sum), isfinite(found[b]));
    }
    assert_true(found[BLOCKS] == 0);
    device_free(rig->device, device_src);
    device_free(rig->device, sums);
    free(values);
    free(src);
}

static void test_squares(void **state)
{
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    struct rig rig;
    rig_open(&rig, *state);
    for (int t = 0; t < 3; t++)
        for (int64_t skip = 0; skip <= 3; skip++) /* aligned to 16 bytes or not */
            squares_of(&rig, types[t], skip);
    rig_close(&rig);
}

/* A range that is added and squared: where it starts in each buffer, and its length. */
struct both {
    enum dtype type;
    int64_t src_skip, dst_skip, count;
    bool first;
};

/* What dst and the sums become, by separate calls. */
static void add_separately(struct rig *rig, const struct both *b, float *dst, double *sums,
                           const void *src)
{
    int64_t blocks = (b->count + DEVICE_SQUARES - 1) / DEVICE_SQUARES;
    float *minus_zeros = on_host((size_t)b->count * sizeof *dst);
    for (int64_t i = 0; i < b->count; i++)
        minus_zeros[i] = -0.0f;
    if (b->first) {
        device_copy(rig->compute, dst, minus_zeros, (size_t)b->count * sizeof *dst);
        device_zero(rig->compute, sums, (size_t)blocks * sizeof *sums);
    }
    device_accumulate(rig->compute, dst, DTYPE_F32, src, b->type, b->count);
    device_add_squares(rig->compute, sums, src, b->type, b->count, 0.3);
    assert_ok(stream_sync(rig->compute));
    free(minus_zeros);
}

/* Both ways start with the same buffers; all of dst and sums is compared, also around the range. */
static void add_both(struct rig *rig, struct both b)
{
    enum { BLOCKS = (COUNT + DEVICE_SQUARES - 1) / DEVICE_SQUARES + 2 };
    size_t width = dtype_bytes(b.type), bytes = COUNT * sizeof(float), sums_bytes = BLOCKS * 8;
    char *src = on_host(COUNT * width), *device_src = on_device(rig, COUNT * width);
    float *dst[2], *found[2], *start = on_host(bytes);
    double *sums[2], *found_sums[2], *start_sums = on_host(sums_bytes);
    fill(src, b.type, "src");
    fill(start, DTYPE_F32, "dst");
    for (int i = 0; i < BLOCKS; i++)
        start_sums[i] = 1.0 / (i + 1);
    device_copy(rig->compute, device_src, src, COUNT * width);
    const char *from = device_src + (size_t)b.src_skip * width;
    for (int way = 0; way < 2; way++) {
        dst[way] = on_device(rig, bytes), found[way] = on_host(bytes);
        sums[way] = on_device(rig, sums_bytes), found_sums[way] = on_host(sums_bytes);
        device_copy(rig->compute, dst[way], start, bytes);
        device_copy(rig->compute, sums[way], start_sums, sums_bytes);
        if (way == 0)
            add_separately(rig, &b, dst[way] + b.dst_skip, sums[way] + 1, from);
        else
            device_accumulate_squares(rig->compute, dst[way] + b.dst_skip, from, b.type, b.count,
                                      b.first, sums[way] + 1, 0.3);
        device_copy(rig->compute, found[way], dst[way], bytes);
        device_copy(rig->compute, found_sums[way], sums[way], sums_bytes);
        assert_ok(stream_sync(rig->compute));
    }
    if (memcmp(found[0], found[1], bytes) != 0 ||
        memcmp(found_sums[0], found_sums[1], sums_bytes) != 0)
        fail_msg("%s, %d elements from %d to %d%s: not the bits of separate calls",
                 dtype_name(b.type), (int)b.count, (int)b.src_skip, (int)b.dst_skip,
                 b.first ? ", the first" : "");
    for (int way = 0; way < 2; way++) {
        device_free(rig->device, dst[way]);
        device_free(rig->device, sums[way]);
        free(found[way]);
        free(found_sums[way]);
    }
    device_free(rig->device, device_src);
    free(start);
    free(start_sums);
    free(src);
}

static void test_accumulate_squares(void **state)
{
    static const enum dtype types[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    static const int64_t skips[][2] = {{0, 0}, {8, 4}, {1, 0}, {0, 1}, {3, 3}}; /* aligned first */
    static const int64_t counts[] = {0, 1, 7, 64, 65, 2047, 4096 + 64, COUNT - 8};
    struct rig rig;
    rig_open(&rig, *state);
    for (int t = 0; t < 3; t++)
        for (int s = 0; s < 5; s++)
            for (int c = 0; c < 8; c++)
                for (int first = 0; first < 2; first++) {
                    rig.env.threads = 1 + s % 3; /* of the CPU */
                    add_both(&rig,
                             (struct both){types[t], skips[s][0], skips[s][1], counts[c], first});
                }
    rig_close(&rig);
}

/* --- order ---------------------------------------------------------------------------------- */

/* A chain of sums that each double a long range, alternating between two streams. */
static void test_plain_events(void **state)
{
    enum { LENGTH = 1 << 20, TURNS = 20 };
    struct rig rig;
    struct event *event;
    float one = 1, *found = on_host(LENGTH * sizeof *found);
    rig_open(&rig, *state);
    float *a = on_device(&rig, LENGTH * sizeof *a), *b = on_device(&rig, LENGTH * sizeof *b);
    assert_ok(event_create(rig.device, &event));
    device_copy(rig.compute, a + LENGTH - 1, &one, sizeof one);
    for (int turn = 0; turn < TURNS; turn++) {
        struct stream *now = turn % 2 == 0 ? rig.compute : rig.copies;
        struct stream *next = turn % 2 == 0 ? rig.copies : rig.compute;
        device_copy(now, b, a, LENGTH * sizeof *a);
        device_accumulate(now, a, DTYPE_F32, b, DTYPE_F32, LENGTH);
        event_record(event, now);
        stream_wait(next, event);
    }
    device_copy(rig.compute, found, a, LENGTH * sizeof *a);
    assert_ok(stream_sync(rig.compute));
    assert_true(found[LENGTH - 1] == (float)(1 << TURNS) && found[0] == 0);
    event_destroy(event);
    device_free(rig.device, a);
    device_free(rig.device, b);
    free(found);
    rig_close(&rig);
}

/* A task of the worker: out = in + 1, where `in` was copied before it. */
struct relay {
    const float *in;
    float *out;
    int64_t count;
};

static void add_one(struct stream *stream, const void *args)
{
    const struct relay *relay = args;
    (void)stream;
    for (int64_t i = 0; i < relay->count; i++)
        relay->out[i] = relay->in[i] + 1;
}

/* Compute doubles x on the device. The worker copies it to the host, adds one there and copies it
 * back, and compute continues with the result. Only events keep the order. */
static void test_worker_events(void **state)
{
    enum { LENGTH = 300000, TURNS = 40 };
    struct rig rig;
    struct event *made, *back;
    float *in, *out, *found = on_host(LENGTH * sizeof *found);
    size_t bytes = LENGTH * sizeof(float);
    rig_open(&rig, *state);
    float *x = on_device(&rig, bytes), *y = on_device(&rig, bytes);
    assert_ok(device_alloc_host(rig.device, MEM_COMM, "in", bytes, &in));
    assert_ok(device_alloc_host(rig.device, MEM_COMM, "out", bytes, &out));
    assert_ok(event_create(rig.device, &made));
    assert_ok(event_create(rig.device, &back));
    struct relay relay = {in, out, LENGTH};
    double expected = 0;
    for (int turn = 0; turn < TURNS; turn++) {
        device_copy(rig.compute, y, x, bytes);
        if (turn % 4 == 0)
            device_accumulate(rig.compute, x, DTYPE_F32, y, DTYPE_F32, LENGTH);
        event_record(made, rig.compute);
        stream_wait(rig.worker, made);
        device_copy(rig.worker, in, x, bytes);
        stream_enqueue(rig.worker, add_one, &relay, sizeof relay);
        device_copy(rig.worker, x, out, bytes);
        event_record(back, rig.worker);
        stream_wait(rig.compute, back);
        expected = (turn % 4 == 0 ? 2 : 1) * expected + 1;
    }
    device_copy(rig.compute, found, x, bytes);
    assert_ok(stream_sync(rig.compute));
    assert_ok(stream_sync(rig.worker));
    for (int i = 0; i < LENGTH; i += 997)
        assert_true(found[i] == (float)expected);
    event_destroy(made);
    event_destroy(back);
    device_free(rig.device, x);
    device_free(rig.device, y);
    device_free(rig.device, in);
    device_free(rig.device, out);
    free(found);
    rig_close(&rig);
}

/* Many records are made before the worker reaches its waits: each wait is for its own record. */
static void test_lagging_worker(void **state)
{
    enum { TURNS = 100 };
    struct rig rig;
    struct event *event;
    float *rows = on_host(TURNS * sizeof *rows), one = 1;
    rig_open(&rig, *state);
    float *x = on_device(&rig, (TURNS + 2) * sizeof *x);
    assert_ok(event_create(rig.device, &event));
    device_copy(rig.compute, x + 1, &one, sizeof one);
    for (int turn = 0; turn < TURNS; turn++) {
        device_accumulate(rig.compute, x, DTYPE_F32, x + 1, DTYPE_F32, 1);
        device_copy(rig.compute, x + 2 + turn, x, sizeof *x);
        event_record(event, rig.compute);
        stream_wait(rig.worker, event);
        device_copy(rig.worker, rows + turn, x + 2 + turn, sizeof *x);
    }
    assert_ok(stream_sync(rig.worker));
    for (int turn = 0; turn < TURNS; turn++)
        assert_true(rows[turn] == (float)(turn + 1));
    event_destroy(event);
    device_free(rig.device, x);
    free(rows);
    rig_close(&rig);
}

/* Inside a task, on either kind of stream, work on the task's own stream is done when the call
 * returns. */
struct inner {
    float *device, *host;
    int *right;
};

static void use_own_stream(struct stream *stream, const void *args)
{
    const struct inner *inner = args;
    inner->host[0] = 5;
    inner->host[1] = 0;
    device_copy(stream, inner->device, inner->host, sizeof(float));
    device_accumulate(stream, inner->device, DTYPE_F32, inner->device + 1, DTYPE_F32, 1);
    device_copy(stream, inner->host + 1, inner->device, sizeof(float));
    *inner->right += inner->host[1] == 7;
}

static void test_inside_task(void **state)
{
    enum { TURNS = 50 };
    struct rig rig;
    float *host, two = 2;
    int right = 0;
    rig_open(&rig, *state);
    float *device = on_device(&rig, 2 * sizeof *device);
    assert_ok(device_alloc_host(rig.device, MEM_COMM, "host", 2 * sizeof *host, &host));
    struct inner inner = {device, host, &right};
    device_copy(rig.compute, device + 1, &two, sizeof two);
    for (int turn = 0; turn < TURNS; turn++)
        stream_enqueue(rig.compute, use_own_stream, &inner, sizeof inner);
    assert_ok(stream_sync(rig.compute));
    for (int turn = 0; turn < TURNS; turn++)
        stream_enqueue(rig.worker, use_own_stream, &inner, sizeof inner);
    assert_ok(stream_sync(rig.worker));
    assert_int_equal(right, 2 * TURNS);
    device_free(rig.device, device);
    device_free(rig.device, host);
    rig_close(&rig);
}

/* --- failure -------------------------------------------------------------------------------- */

static void count_up(struct stream *stream, const void *args)
{
    (void)stream;
    ++**(int *const *)args;
}

/* A failed stream skips work, still runs tasks, and blocks no other stream. */
static void test_failed(void **state)
{
    struct rig rig;
    struct event *event;
    int ran = 0, *counter = &ran;
    float value = 1, found = 3;
    rig_open(&rig, *state);
    float *x = on_device(&rig, sizeof *x);
    assert_ok(event_create(rig.device, &event));
    stream_fail(rig.worker, STATUS_COMM);
    device_copy(rig.worker, x, &value, sizeof value);
    stream_enqueue(rig.worker, count_up, &counter, sizeof counter);
    event_record(event, rig.worker);
    stream_wait(rig.compute, event);
    assert_int_equal(stream_sync(rig.worker), STATUS_COMM);
    device_copy(rig.compute, &found, x, sizeof found);
    assert_ok(stream_sync(rig.compute));
    assert_true(ran == 1 && found == 0);
    event_destroy(event);
    device_free(rig.device, x);
    rig_close(&rig);
}

/* --- memory use and gauges ------------------------------------------------------------------ */

/* Allocations show in whole pages, both in the account and on the GPU, whatever libraries and other
 * processes have allocated before. */
static void test_in_use(void **state)
{
    enum { MIB = 1 << 20 };
    struct rig rig;
    char *block, *pinned;
    rig_open(&rig, *state);
    size_t before = device_in_use(rig.device);
    size_t accounted = mem_sums(rig.env.mem, MEM_GPU, false).total_bytes;
    size_t host = mem_sums(rig.env.mem, MEM_HOST, false).total_bytes;
    assert_int_equal(device_memory(rig.device), MEM_GPU);
    assert_ok(device_alloc(rig.device, MEM_PARAMS, "large", 9 * MIB + 5, &block));
    assert_ok(device_alloc_host(rig.device, MEM_COMM, "pinned", MIB, &pinned));
    struct mem_sums gpu = mem_sums(rig.env.mem, MEM_GPU, false);
    assert_int_equal(gpu.bytes[MEM_PARAMS], 9 * MIB + 5);
    assert_int_equal(gpu.total_bytes - accounted, 10 * MIB);
    assert_int_equal(device_in_use(rig.device) - before, 10 * MIB);
    assert_true(mem_sums(rig.env.mem, MEM_HOST, false).total_bytes >= host + MIB);
    device_free(rig.device, block);
    device_free(rig.device, pinned);
    assert_int_equal(mem_sums(rig.env.mem, MEM_GPU, false).total_bytes, accounted);
    rig_close(&rig);
}

/* Every plain stream has a pinned bounce buffer, also on a dry GPU. */
static void test_stream_bounce_buffer(void **state)
{
    const char *const backends[] = {*state, "dry-gpu"};
    for (int i = 0; i < 2; i++) {
        struct env env = testing_env(1);
        struct device *device;
        struct stream *plain, *worker;
        assert_ok(device_create(&env, backends[i], 0, &device));
        size_t before = mem_total(env.mem);
        assert_ok(stream_create_worker(device, "worker", &worker));
        assert_true(mem_total(env.mem) < before + (1 << 20));
        assert_ok(stream_create(device, "plain", &plain));
        assert_true(mem_sums(env.mem, MEM_HOST, false).total_bytes >= before + (2 << 20));
        assert_int_equal(mem_sums(env.mem, MEM_GPU, false).total_bytes, 0);
        stream_destroy(worker);
        stream_destroy(plain);
        device_destroy(device);
        env_destroy(&env);
    }
}

/* With the management library, memory of other processes is reported separately, and device_look
 * creates no context. This test runs first, because a context cannot be undone. */
static void test_management(void **state)
{
    const size_t others = (size_t)300 << 20, context = (size_t)64 << 20, whole = (size_t)16 << 30;
    bool fake = getenv("SIFR_TEST_NVML") != NULL;
    struct rig rig;
    struct device_info info;
    struct device_gauges gauges;
    device_look("cuda", 0, &info);
    assert_true(info.free_bytes > 0 && info.free_bytes < info.total_bytes);
    if (fake) {
        assert_int_equal(info.total_bytes, whole);
        assert_int_equal(info.free_bytes, whole - others);
    }
    rig_open(&rig, *state);
    device_read_gauges(rig.device, &gauges);
    if (fake) {
        assert_int_equal(device_in_use(rig.device), context);
        assert_true(gauges.clock_mhz == 1755 && fabs(gauges.watts - 640.5) < 1e-9 &&
                    gauges.celsius == 61);
    } else {
        assert_true(device_in_use(rig.device) > 0);
    }
    rig_close(&rig);
}

static void test_no_such_gpu(void **state)
{
    struct env env = testing_env(1);
    struct device *device = NULL;
    (void)state;
    assert_int_equal(device_create(&env, "cuda", 4321, &device), STATUS_CONFIG);
    assert_non_null(strstr(log_first_error(env.log), "no GPU 4321"));
    assert_null(device);
    assert_int_equal(mem_total(env.mem), 0);
    env_destroy(&env);
}

/* --- recordings ----------------------------------------------------------------------------- */

/* A GPU can record work and replay it on the current memory; the CPU refuses. */
static void test_recording(void **state)
{
    struct rig rig;
    rig_open(&rig, *state);
    bool gpu = !device_on_host(rig.device);
    float *sum = on_device(&rig, sizeof *sum), *term = on_device(&rig, sizeof *term), *pinned;
    assert_ok(device_alloc_host(rig.device, MEM_COMM, "stage", 2 * sizeof *pinned, &pinned));
    assert_false(stream_record_begin(rig.worker));
    assert_int_equal(stream_record_begin(rig.compute), gpu);
    if (gpu) {
        device_copy(rig.compute, term, pinned, sizeof *term);
        device_accumulate(rig.compute, sum, DTYPE_F32, term, DTYPE_F32, 1);
        device_copy(rig.compute, pinned + 1, sum, sizeof *sum);
        struct recording *recording = stream_record_end(rig.compute);
        assert_non_null(recording);
        assert_ok(stream_sync(rig.compute));
        assert_true(pinned[1] == 0); /* recording does not run the work */
        for (int i = 1; i <= 4; i++) {
            pinned[0] = (float)i;
            stream_replay(rig.compute, recording);
            assert_ok(stream_sync(rig.compute));
            assert_true(pinned[1] == (float)(i * (i + 1) / 2));
        }
        recording_destroy(rig.device, recording);
    }
    recording_destroy(rig.device, NULL);
    device_free(rig.device, pinned);
    device_free(rig.device, term);
    device_free(rig.device, sum);
    rig_close(&rig);
}

static void try_to_record(struct stream *stream, const void *args)
{
    (void)args;
    assert_false(stream_record_begin(stream)); /* not inside a task either */
}

/* A failed recording leaves the stream usable. */
static void test_failed_recording(void **state)
{
    struct rig rig;
    float value = 3, *block;
    rig_open(&rig, *state);
    block = on_device(&rig, sizeof *block);
    stream_enqueue(rig.compute, try_to_record, NULL, 0);
    if (stream_record_begin(rig.compute)) {
        device_zero(rig.compute, block, sizeof *block);
        stream_sync(rig.compute); /* not allowed while recording */
        assert_null(stream_record_end(rig.compute));
    }
    assert_false(stream_failed(rig.compute));
    device_copy(rig.compute, block, &value, sizeof value);
    value = 0;
    device_copy(rig.compute, &value, block, sizeof value);
    assert_ok(stream_sync(rig.compute));
    assert_true(value == 3);
    device_free(rig.device, block);
    rig_close(&rig);
}

int main(int count, char **words)
{
    char *backend = count > 1 ? words[1] : "cpu";
    bool gpu = strcmp(backend, "cuda") == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(test_memory, backend),
        cmocka_unit_test_prestate(test_failing_allocations, backend),
        cmocka_unit_test_prestate(test_large_host_blocks, backend),
        cmocka_unit_test_prestate(test_copy, backend),
        cmocka_unit_test_prestate(test_copy_rows, backend),
        cmocka_unit_test_prestate(test_accumulate, backend),
        cmocka_unit_test_prestate(test_squares, backend),
        cmocka_unit_test_prestate(test_accumulate_squares, backend),
        cmocka_unit_test_prestate(test_plain_events, backend),
        cmocka_unit_test_prestate(test_worker_events, backend),
        cmocka_unit_test_prestate(test_lagging_worker, backend),
        cmocka_unit_test_prestate(test_inside_task, backend),
        cmocka_unit_test_prestate(test_failed, backend),
        cmocka_unit_test_prestate(test_recording, backend),
        cmocka_unit_test_prestate(test_failed_recording, backend),
    };
    const struct CMUnitTest gpu_tests[] = {
        cmocka_unit_test_prestate(test_out_of_memory, backend),
        cmocka_unit_test_prestate(test_in_use, backend),
        cmocka_unit_test_prestate(test_stream_bounce_buffer, backend),
        cmocka_unit_test(test_no_such_gpu),
    };
    const struct CMUnitTest first_tests[] = {cmocka_unit_test_prestate(test_management, backend)};
    if (gpu && test_missing("cuda"))
        return NO_GPU;
    return (gpu ? cmocka_run_group_tests(first_tests, NULL, NULL) : 0) +
           cmocka_run_group_tests(tests, NULL, NULL) +
           (gpu ? cmocka_run_group_tests(gpu_tests, NULL, NULL) : 0);
}
