/* cpu_attention -- how attention is cut into tasks, and the memory of its threads.
 *
 *   forward   a task is some rows of one head, or of all query heads that share a key head
 *   backward  OpenBLAS: a task is a key head and its query heads; our kernel: a query head and a
 *             block of keys; those of all heads take turns, so that those that wait for each other
 *             seldom run at the same time
 *
 * The products in a task are a kernel's of our own (cpu_attention_forward.c and
 * cpu_attention_backward.c) or OpenBLAS's (cpu_attention_blas.c). Tasks are taken by any thread,
 * long ones first; the bits follow from the shape alone.
 *
 * Threads use the workspace of products, which is free here; where it is too small, scratch.
 */
#include <string.h>
#include "ops/cpu/cpu_attention.h"
#include "ops/cpu/cpu_vector.h"

enum { ALIGNMENT = 64 };

/* Packing pays off from two queries on. */
static const struct cpu_kernel *kernel_for(struct attention a)
{
    return a.tokens > 1 ? cpu_kernel() : NULL;
}

/* From about 60 us on one thread */
static int threads_for(const struct ops *ops, struct attention a)
{
    double pairs = (double)(a.batch * a.heads) * ops_attention_pairs(a, a.tokens);
    return cpu_threads(ops, (int64_t)(pairs * (double)a.head_width / 64));
}

/* --- memory --------------------------------------------------------------------------------- */

/* Floats that a thread needs, for any number of tokens */
static int64_t thread_room(struct attention a)
{
    const struct cpu_kernel *kernel = cpu_kernel();
    int64_t room = cpu_attention_blas_room();
    if (kernel) {
        room = max64(room, cpu_attention_forward_room(kernel, a));
        room = max64(room, cpu_attention_backward_room(kernel, a));
    }
    return cpu_round_up(room, ALIGNMENT / (int64_t)sizeof(float));
}

static size_t threads_bytes(const struct ops *ops, struct attention a)
{
    return (size_t)(ops->threads * thread_room(a)) * sizeof(float) + ALIGNMENT;
}

/* What the tasks of a backward pass share: how far each is, (B, H, blocks of keys), and rowsum(dout
 * out), (B, H, T) */
static int64_t done_count(struct attention a)
{
    return a.batch * a.heads * cpu_attention_key_blocks(a);
}

static size_t shared_bytes(struct attention a)
{
    return (size_t)done_count(a) * sizeof(int64_t) +
           (size_t)(a.batch * a.heads * a.tokens) * sizeof(float) + ALIGNMENT;
}

static void *align(void *x)
{
    return (char *)x + (-(uintptr_t)x & (ALIGNMENT - 1));
}

static int64_t *done_in(void *scratch)
{
    return align(scratch);
}

static float *delta_in(struct attention a, void *scratch)
{
    return (float *)(done_in(scratch) + done_count(a));
}

size_t cpu_attention_scratch(const struct ops *ops, struct attention a)
{
    size_t threads = threads_bytes(ops, a);
    bool fits = threads <= ops->backend->workspace_bytes;
    return shared_bytes(a) + (fits ? 0 : threads);
}

/* The calling thread's memory */
static float *room_of_thread(const struct ops *ops, struct attention a, void *scratch)
{
    bool fits = threads_bytes(ops, a) <= ops->backend->workspace_bytes;
    float *first = align(fits ? ops->workspace : (char *)scratch + shared_bytes(a));
    return first + omp_get_thread_num() * thread_room(a);
}

/* --- forward -------------------------------------------------------------------------------- */

/* Head number `head` of sequence b of the packed qkv */
static struct cpu_head packed_head(struct attention a, int64_t b, int64_t head, const float *qkv)
{
    int64_t width = (a.heads + 2 * a.kv_heads) * a.head_width, kv = head / (a.heads / a.kv_heads);
    const float *base = qkv + b * a.tokens * width;
    return (struct cpu_head){
        .shape = a,
        .width = a.head_width,
        .tokens = a.tokens,
        .scale = (float)ops_attention_scale(a),
        .cap = (float)a.cap,
        .q = base + head * a.head_width,
        .k = base + (a.heads + kv) * a.head_width,
        .v = base + (a.heads + a.kv_heads + kv) * a.head_width,
        .q_stride = width,
        .kv_stride = width,
    };
}

/* The tasks of a forward pass: `rows` rows of `heads` heads */
struct cut {
    const struct cpu_kernel *kernel;
    int64_t heads, rows, blocks, tasks;
};

static struct cut cut_forward(struct attention a, int threads)
{
    enum { TASKS = 6 }; /* of a thread */
    struct cut c = {.kernel = kernel_for(a), .heads = 1, .rows = CPU_ATTENTION_BLAS_ROWS};
    if (c.kernel) {
        c.heads = cpu_head_group(a);
        c.rows = cpu_attention_rows(c.kernel, a, TASKS * threads);
    }
    c.blocks = ceil_div(a.tokens, c.rows);
    c.tasks = a.batch * a.heads / c.heads * c.blocks;
    return c;
}

/* Where a task begins: longest first, which are the last rows */
static void place(const struct cut *c, struct attention a, int64_t task, int64_t *b, int64_t *head,
                  int64_t *t0)
{
    int64_t groups = a.heads / c->heads, all = a.batch * groups;
    *b = task % all / groups;
    *head = task % groups * c->heads;
    *t0 = (c->blocks - 1 - task / all) * c->rows;
}

static void run_forward(const struct cut *c, const struct cpu_head *h, int64_t t0, float *room)
{
    if (c->kernel)
        cpu_attention_forward_task(c->kernel, h, t0, min64(c->rows, h->tokens - t0), room);
    else
        cpu_attention_blas_forward(h, t0, room);
}

static void forward_thread(struct ops *ops, struct attention a, const float *qkv, float *out,
                           float *lse, void *scratch, int64_t *next)
{
    struct cut c = cut_forward(a, ops->threads);
    int64_t out_width = a.heads * a.head_width, b, head, t0;
    float *room = room_of_thread(ops, a, scratch);
    for (int64_t task; (task = next_chunk(next)) < c.tasks;) {
        place(&c, a, task, &b, &head, &t0);
        struct cpu_head h = packed_head(a, b, head, qkv);
        h.out = out + b * a.tokens * out_width + head * a.head_width;
        h.out_stride = out_width;
        h.lse = lse + (b * a.heads + head) * a.tokens;
        run_forward(&c, &h, t0, room);
    }
}

void cpu_attention(struct ops *ops, struct stream *stream, struct attention a, const void *qkv,
                   void *out, float *lse, void *scratch)
{
    int64_t next = 0;
    IN_THREADS(threads_for(ops, a), forward_thread(ops, a, qkv, out, lse, scratch, &next));
}

/* --- backward ------------------------------------------------------------------------------- */

/* Query head `head` of sequence b and, by our kernel, block `block` of its keys; by OpenBLAS, all
 * heads of its group, whose first one it is */
static void backward_task(const struct cpu_kernel *kernel, struct attention a, int64_t b,
                          int64_t head, int64_t block, const struct attention_backward *all,
                          float *room)
{
    const float *qkv = all->qkv; /* (B, T, (H + 2G) D), as dqkv */
    float *dqkv = all->dqkv;
    int64_t row = b * a.heads + head, out_width = a.heads * a.head_width;
    int64_t at = b * a.tokens * out_width + head * a.head_width;
    struct cpu_head h = packed_head(a, b, head, qkv);
    h.out = (float *)all->out + at; /* only read here, as is lse */
    h.out_stride = out_width;
    h.lse = (float *)all->lse + row * a.tokens;
    struct cpu_head_gradient g = {.dout = (const float *)all->dout + at,
                                  .dq = dqkv + (h.q - qkv),
                                  .dk = dqkv + (h.k - qkv),
                                  .dv = dqkv + (h.v - qkv)};
    if (kernel)
        cpu_attention_backward_task(kernel, &h, &g, delta_in(a, all->scratch) + row * a.tokens,
                                    block, head % cpu_head_group(a),
                                    done_in(all->scratch) + row * cpu_attention_key_blocks(a),
                                    room);
    else
        cpu_attention_blas_backward(&h, &g, room);
}

static void delta_thread(struct attention a, const struct attention_backward *all)
{
    const float *out = all->out, *dout = all->dout;
    float *delta = delta_in(a, all->scratch);
#pragma omp for schedule(static)
    for (int64_t r = 0; r < a.batch * a.tokens; r++)
        for (int64_t head = 0; head < a.heads; head++) {
            int64_t at = (r * a.heads + head) * a.head_width, b = r / a.tokens;
            delta[(b * a.heads + head) * a.tokens + r % a.tokens] =
                v_row_dot(dout + at, out + at, a.head_width);
        }
}

/* Tasks are in the order of their blocks, then of the heads of a group. */
static void backward_thread(struct ops *ops, struct attention a,
                            const struct attention_backward *all, int64_t *next)
{
    const struct cpu_kernel *kernel = kernel_for(a);
    int64_t group = cpu_head_group(a), turns = kernel ? group : 1, groups = a.batch * a.kv_heads;
    int64_t blocks = kernel ? cpu_attention_key_blocks(a) : 1;
    float *room = room_of_thread(ops, a, all->scratch);
    delta_thread(a, all); /* ends with a barrier */
    for (int64_t task; (task = next_chunk(next)) < groups * turns * blocks;) {
        int64_t kv = task % groups, turn = task / groups % turns;
        backward_task(kernel, a, kv / a.kv_heads, kv % a.kv_heads * group + turn,
                      task / groups / turns, all, room);
    }
}

void cpu_attention_backward(struct ops *ops, struct stream *stream, struct attention a,
                            const struct attention_backward *g)
{
    int64_t next = 0;
    memset(done_in(g->scratch), 0, (size_t)done_count(a) * sizeof(int64_t));
    IN_THREADS(threads_for(ops, a), backward_thread(ops, a, g, &next));
    if (g->rope)
        cpu_rope(ops, stream, a, g->rope, (struct past){0}, true, g->dqkv);
    if (g->dbias)
        cpu_column_sums(ops, a.batch * a.tokens, (a.heads + 2 * a.kv_heads) * a.head_width, g->dqkv,
                        g->dbias);
}

/* --- decoding ------------------------------------------------------------------------------- */

static void keep_thread(struct attention a, const struct attention_cached *c)
{
    float *cache_k = c->cache_k, *cache_v = c->cache_v; /* (B, room, G D) */
    int64_t kv_width = a.kv_heads * a.head_width, q_width = a.heads * a.head_width;
#pragma omp for schedule(static)
    for (int64_t r = 0; r < a.batch * a.tokens; r++) {
        const float *from = (const float *)c->qkv + r * (q_width + 2 * kv_width) + q_width;
        int64_t at = (r / a.tokens * c->room + c->past.count + r % a.tokens) * kv_width;
        memcpy(cache_k + at, from, (size_t)kv_width * sizeof(float));
        memcpy(cache_v + at, from + kv_width, (size_t)kv_width * sizeof(float));
    }
}

static void cached_thread(struct ops *ops, struct attention a, const struct attention_cached *c,
                          int64_t *next)
{
    int64_t kv_width = a.kv_heads * a.head_width, out_width = a.heads * a.head_width, b, head, t0;
    struct cut cut = cut_forward(a, ops->threads);
    float *room = room_of_thread(ops, a, c->scratch);
    keep_thread(a, c); /* ends with a barrier: all rows are in the cache when it returns */
    for (int64_t task; (task = next_chunk(next)) < cut.tasks;) {
        place(&cut, a, task, &b, &head, &t0);
        int64_t at = b * c->room * kv_width + head / cpu_head_group(a) * a.head_width;
        struct cpu_head h = packed_head(a, b, head, c->qkv);
        h.past = c->past.count;
        h.k = (const float *)c->cache_k + at;
        h.v = (const float *)c->cache_v + at;
        h.kv_stride = kv_width;
        h.out = (float *)c->out + b * a.tokens * out_width + head * a.head_width;
        h.out_stride = out_width;
        run_forward(&cut, &h, t0, room);
    }
}

void cpu_attention_cached(struct ops *ops, struct stream *stream, struct attention a,
                          const struct attention_cached *c)
{
    int64_t next = 0, seen = c->past.count + a.tokens - ops_first_key(a, c->past.count);
    int64_t work = a.batch * a.tokens * seen * a.heads * a.head_width;
    IN_THREADS(a.tokens == 1 ? cpu_threads_of_token(ops, work) : cpu_threads(ops, work),
               cached_thread(ops, a, c, &next));
}
