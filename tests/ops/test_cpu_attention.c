/* test_cpu_attention -- attention by kernels of our own has the same bits with every fp32 kernel,
 * any number of threads, and however its queries are cut into tasks or calls. */
#include "ops/cpu/cpu_attention.h"
#include "ops/cpu/cpu_vector.h"
#include "ops/op_rig.h"

#define SHAPE(b, t, h, g, d, w, s, c)                                                       \
    {                                                                                       \
        .batch = b, .tokens = t, .heads = h, .kv_heads = g, .head_width = d, .window = (w), \
        .scale = (s), .cap = (c)                                                            \
    }

/* One head with several blocks of keys, which wait for each other; grouped heads; windows smaller
 * than a panel, than a block, and over several; widths that no kernel divides */
static const struct attention shapes[] = {
    SHAPE(1, 1000, 1, 1, 8, 0, 0, 0),     SHAPE(1, 801, 6, 2, 20, 0, 0, 0),
    SHAPE(2, 401, 2, 2, 64, 0, 0.3, 0),   SHAPE(1, 195, 2, 1, 256, 0, 0, 0),
    SHAPE(1, 130, 40, 1, 16, 0, 0, 0),    SHAPE(1, 700, 24, 12, 12, 5, 0, 0),
    SHAPE(1, 700, 2, 1, 12, 100, 0, 1.5), SHAPE(1, 700, 2, 2, 32, 290, 0.2, 0),
    SHAPE(1, 300, 1, 1, 10, 1, 0, 0.7),   SHAPE(3, 2, 2, 1, 9, 0, 0, 0),
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

struct tensors {
    int64_t qkv_count, out_count, lse_count;
    float *qkv, *dout;       /* in */
    float *out, *lse, *dqkv; /* out */
};

static float *numbers(int64_t count, uint32_t seed)
{
    float *x = malloc((size_t)count * sizeof(float));
    assert_non_null(x);
    for (int64_t i = 0; i < count; i++)
        x[i] = (float)(((uint32_t)i + seed) * 2654435761u >> 8) * 0x1p-22f - 2.0f;
    return x;
}

static struct tensors tensors_of(struct attention a)
{
    int64_t rows = a.batch * a.tokens;
    struct tensors t = {.qkv_count = rows * (a.heads + 2 * a.kv_heads) * a.head_width,
                        .out_count = rows * a.heads * a.head_width,
                        .lse_count = rows * a.heads};
    t.qkv = numbers(t.qkv_count, 1);
    t.dout = numbers(t.out_count, 77);
    t.out = numbers(t.out_count, 0);
    t.lse = numbers(t.lse_count, 0);
    t.dqkv = numbers(t.qkv_count, 0);
    return t;
}

static void tensors_free(struct tensors *t)
{
    free(t->qkv);
    free(t->dout);
    free(t->out);
    free(t->lse);
    free(t->dqkv);
}

static void assert_same(const struct tensors *x, const struct tensors *y, const char *what,
                        int shape)
{
    if (memcmp(x->out, y->out, (size_t)x->out_count * sizeof(float)) != 0)
        fail_msg("shape %d: out has other bits with %s", shape, what);
    if (memcmp(x->lse, y->lse, (size_t)x->lse_count * sizeof(float)) != 0)
        fail_msg("shape %d: lse has other bits with %s", shape, what);
    if (memcmp(x->dqkv, y->dqkv, (size_t)x->qkv_count * sizeof(float)) != 0)
        fail_msg("shape %d: dqkv has other bits with %s", shape, what);
}

/* --- kernels -------------------------------------------------------------------------------- */

/* Query head `head` of sequence b, and what its gradients are */
static struct cpu_head head_of(const struct attention *a, const struct tensors *t, int64_t b,
                               int64_t head, struct cpu_head_gradient *g)
{
    int64_t d = a->head_width, width = (a->heads + 2 * a->kv_heads) * d, row = b * a->tokens;
    int64_t kv = head / cpu_head_group(*a), at = row * a->heads * d + head * d;
    struct cpu_head h = {.shape = *a,
                         .width = d,
                         .tokens = a->tokens,
                         .scale = (float)ops_attention_scale(*a),
                         .cap = (float)a->cap,
                         .q = t->qkv + row * width + head * d,
                         .k = t->qkv + row * width + (a->heads + kv) * d,
                         .v = t->qkv + row * width + (a->heads + a->kv_heads + kv) * d,
                         .q_stride = width,
                         .kv_stride = width,
                         .out = t->out + at,
                         .out_stride = a->heads * d,
                         .lse = t->lse + row * a->heads + head * a->tokens};
    *g = (struct cpu_head_gradient){.dout = t->dout + at,
                                    .dq = t->dqkv + (h.q - t->qkv),
                                    .dk = t->dqkv + (h.k - t->qkv),
                                    .dv = t->dqkv + (h.v - t->qkv)};
    return h;
}

/* All tasks of key head `kv` of sequence b, one after the other, with `rows` rows in a task */
static void run_group(const struct cpu_kernel *kernel, struct attention a, struct tensors *t,
                      int64_t b, int64_t kv, int64_t rows)
{
    int64_t room =
        max64(cpu_attention_forward_room(kernel, a), cpu_attention_backward_room(kernel, a));
    int64_t blocks = cpu_attention_key_blocks(a), group = cpu_head_group(a), first = kv * group;
    struct cpu_head_gradient g;
    struct cpu_head h = head_of(&a, t, b, first, &g);
    float *memory = numbers(room, 0), *delta = numbers(a.tokens, 0);
    int64_t *done = calloc((size_t)(group * blocks), sizeof *done);
    assert_non_null(done);
    memset(memory, 0xff, (size_t)room * sizeof(float)); /* NaN */
    for (int64_t t0 = 0; t0 < a.tokens; t0 += rows)
        cpu_attention_forward_task(kernel, &h, t0, min64(rows, a.tokens - t0), memory);
    for (int64_t turn = 0; turn < group; turn++) {
        h = head_of(&a, t, b, first + turn, &g);
        for (int64_t i = 0; i < a.tokens; i++)
            delta[i] = v_row_dot(g.dout + i * h.out_stride, h.out + i * h.out_stride, h.width);
        memset(memory, 0xff, (size_t)room * sizeof(float));
        for (int64_t block = 0; block < blocks; block++)
            cpu_attention_backward_task(kernel, &h, &g, delta, block, turn, done + turn * blocks,
                                        memory);
    }
    free(memory);
    free(delta);
    free(done);
}

static struct tensors run_kernel(const struct cpu_kernel *kernel, struct attention a, int64_t tasks)
{
    struct tensors t = tensors_of(a);
    for (int64_t b = 0; b < a.batch; b++)
        for (int64_t kv = 0; kv < a.kv_heads; kv++)
            run_group(kernel, a, &t, b, kv, cpu_attention_rows(kernel, a, tasks));
    return t;
}

static void test_kernels(void **state)
{
    (void)state;
    int ran = 0;
    for (int s = 0; s < SHAPES; s++) {
        struct tensors plain = run_kernel(&cpu_kernel_plain, shapes[s], 1);
        for (int i = 0; cpu_kernels[i] != NULL; i++) {
            const struct cpu_kernel *kernel = cpu_kernels[i];
            if (kernel->packed_bytes != sizeof(float) || !cpu_kernel_runs(kernel))
                continue;
            struct tensors other = run_kernel(kernel, shapes[s], 1000);
            assert_same(&plain, &other, kernel->name, s);
            tensors_free(&other);
            ran++;
        }
        tensors_free(&plain);
    }
    assert_true(ran >= SHAPES);
}

/* --- threads -------------------------------------------------------------------------------- */

static struct tensors run_op(struct attention a, int threads)
{
    struct rig rig;
    rig_open(&rig, "cpu", DTYPE_F32, threads);
    struct tensors t = tensors_of(a);
    void *scratch = malloc(ops_attention_scratch(rig.ops, a));
    assert_non_null(scratch);
    ops_attention(rig.ops, rig.stream, a, t.qkv, t.out, t.lse, scratch);
    ops_attention_backward(rig.ops, rig.stream, a,
                           &(struct attention_backward){.qkv = t.qkv,
                                                        .out = t.out,
                                                        .lse = t.lse,
                                                        .dout = t.dout,
                                                        .dqkv = t.dqkv,
                                                        .scratch = scratch});
    assert_ok(stream_sync(rig.stream));
    free(scratch);
    rig_close(&rig);
    return t;
}

static void test_threads(void **state)
{
    (void)state;
    static const int threads[] = {2, 3, 7, 16};
    for (int s = 0; s < SHAPES; s++) {
        struct tensors one = run_op(shapes[s], 1);
        for (int i = 0; i < 4; i++) {
            char what[32];
            snprintf(what, sizeof what, "%d threads", threads[i]);
            struct tensors many = run_op(shapes[s], threads[i]);
            assert_same(&one, &many, what, s);
            tensors_free(&many);
        }
        tensors_free(&one);
    }
}

/* --- calls ---------------------------------------------------------------------------------- */

/* A sequence in several calls that keep keys and values in a cache */
static void test_cached(void **state)
{
    (void)state;
    enum { CALLS = 5 };
    static const int64_t tokens[CALLS] = {200, 7, 2, 190, 301};
    if (!cpu_kernel())
        skip();
    for (int s = 0; s < SHAPES; s++) {
        struct attention a = shapes[s];
        a.batch = 1;
        a.tokens = 700;
        struct rig rig;
        rig_open(&rig, "cpu", DTYPE_F32, 2);
        struct tensors t = tensors_of(a);
        int64_t kv = a.tokens * a.kv_heads * a.head_width, past = 0;
        float *cache_k = numbers(kv, 0), *cache_v = numbers(kv, 0), *out = numbers(t.out_count, 0);
        void *scratch = malloc(ops_attention_scratch(rig.ops, a));
        assert_non_null(scratch);
        ops_attention(rig.ops, rig.stream, a, t.qkv, t.out, t.lse, scratch);
        for (int i = 0; i < CALLS; past += tokens[i++]) {
            struct attention part = a;
            part.tokens = tokens[i];
            ops_attention_cached(
                rig.ops, rig.stream, part,
                &(struct attention_cached){.past = {past, NULL},
                                           .room = a.tokens,
                                           .qkv = t.qkv + past * (t.qkv_count / a.tokens),
                                           .cache_k = cache_k,
                                           .cache_v = cache_v,
                                           .out = out + past * (t.out_count / a.tokens),
                                           .scratch = scratch});
        }
        if (memcmp(out, t.out, (size_t)t.out_count * sizeof(float)) != 0)
            fail_msg("shape %d: out has other bits in %d calls", s, CALLS);
        free(cache_k);
        free(cache_v);
        free(out);
        free(scratch);
        tensors_free(&t);
        rig_close(&rig);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernels),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_cached),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
