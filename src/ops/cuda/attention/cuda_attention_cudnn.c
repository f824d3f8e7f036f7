/* cuda_attention_cudnn -- attention by cuDNN: 16-bit types, heads of up to 256 columns in steps of
 * 8.
 *
 * A plan is made when a shape is first seen and kept; later calls find it and allocate nothing on
 * the device. The workspace is the caller's scratch, whose size is known without a GPU: a plan
 * that needs more than that bound is not used (cuda_attention_graph.c).
 *
 * Bits: cuDNN's deterministic form of the backward pass keeps T x T elements per head in its
 * workspace. To bound that, the batch is split into sub-batches (sequences are independent) whose
 * scores fit sub_batch_bytes; the split depends on the shape only.
 *
 * cuDNN computes dS of the first query of a sequence, which is 0: cuda_attention_first.cu sees to
 * that.
 *
 * cuDNN's backward pass up to 9.15.0 needs a multiple of 128 tokens. Heads wider than 128 columns
 * get it for other lengths, too, on copies of the sequences that are filled up with zeros: 160
 * columns on an H200 take 0.2 to 0.7 of the time of the matrix kernels (`gpu_attention_times`).
 *
 * In fast mode (ops_be_fast) cuDNN uses its other form, which adds with atomics: bits differ from
 * run to run.
 */
#include "ops/cuda/attention/cuda_attention_cudnn.h"
#include <math.h>
#include <string.h>
#include "ops/cuda/attention/cuda_attention_impl.h"
#include "ops/cuda/attention/cuda_cudnn.h"

struct attention_plan {
    struct attention_plan *next;
    enum attention_pass pass;
    struct attention shape;
    struct dnn_plan dnn; /* dnn.plan NULL: no engine */
};

struct dnn_attention {
    cudnnHandle_t handle;
    struct attention_plan *plans; /* made so far, newest first */
    bool used;
};

/* --- memory --------------------------------------------------------------------------------- */

/* Larger sub-batches fill the GPU better (gpt2-124m, 64 x 1024, H200: 2 GiB made a step 1.1 %
 * faster than 512 MiB). LEAST costs nothing: the output head's chunk of logits needs that much of
 * the same scratch anyway. Above LEAST a sub-batch may use what one layer keeps for its backward
 * pass, about six times qkv. */
static size_t sub_batch_bytes(struct attention a)
{
    const size_t LEAST = (size_t)896 << 20, MOST = (size_t)2 << 30;
    size_t row = (size_t)((a.heads + 2 * a.kv_heads) * a.head_width) * 2;
    size_t layer = 6 * (size_t)(a.batch * a.tokens) * row;
    return layer < LEAST ? LEAST : layer < MOST ? layer : MOST;
}

/* Whether cuDNN's deterministic backward pass may be used: the scores of one sequence, which it
 * keeps, are at most 8 GiB (11,500 tokens of 32 heads). Beyond that they would be most of the GPU's
 * memory, and of what is planned for every GPU. */
static bool scores_fit(struct attention a)
{
    const size_t MOST = (size_t)8 << 30;
    a.batch = 1;
    return attention_graph_scores(a) <= MOST;
}

/* The sub-batch that is computed at once; sub-batches are as equal as possible. */
static struct attention sub_attention(struct attention a)
{
    struct attention one = a;
    one.batch = 1;
    int64_t most = (int64_t)(sub_batch_bytes(a) / attention_graph_scores(one));
    int64_t parts = most < 1 ? a.batch : (a.batch + most - 1) / most;
    a.batch = (a.batch + parts - 1) / parts;
    return a;
}

/* cuDNN's backward pass is right for multiples of this, and from 9.15.1 on for all lengths. */
enum { FULL_TOKENS = 128 };

struct attention dnn_attention_filled(struct attention a)
{
    a.tokens = (a.tokens + FULL_TOKENS - 1) / FULL_TOKENS * FULL_TOKENS;
    return a;
}

static bool must_fill(struct attention a)
{
    return a.tokens % FULL_TOKENS != 0 && cudnnGetVersion() <= 91500;
}

/* Whether filling up is worth it, if it is needed: not where the Hopper kernels are fast, nor where
 * there would be much to fill. */
static bool may_fill(struct attention a)
{
    int64_t tokens = dnn_attention_filled(a).tokens;
    return a.head_width > 128 && tokens > a.tokens && 2 * tokens <= 3 * a.tokens;
}

bool dnn_attention_backward_takes(const struct ops *ops, struct attention a)
{
    return attention_graph_takes(ops->type, a) && (ops->fast || scores_fit(a)) &&
           (!must_fill(a) || may_fill(a));
}

static size_t row_bytes(struct attention a, int64_t heads)
{
    return (size_t)(heads * a.head_width) * 2;
}

/* Copies of qkv, dqkv, out and dout, filled up */
static size_t filled_bytes(struct attention a)
{
    return (size_t)(a.batch * a.tokens) * 2 *
           (row_bytes(a, a.heads + 2 * a.kv_heads) + row_bytes(a, a.heads));
}

/* Scratch is: lse (B, H, T); then, of a sub-batch, copies that are filled up, if they may be, the
 * row sums, an fp32 dq (fast form only) and the workspace. */
static size_t dq_bytes(struct attention a)
{
    return attention_sums_bytes(a) * (size_t)a.head_width;
}

size_t dnn_attention_scratch(enum dtype type, struct attention a)
{
    if (!attention_graph_takes(type, a))
        return 0;
    bool fills = may_fill(a);
    struct attention whole = fills ? dnn_attention_filled(a) : a, sub = sub_attention(whole);
    size_t kept = scores_fit(whole) ? attention_graph_workspace(ATTENTION_BACKWARD, sub) : 0;
    size_t fast = attention_graph_workspace(ATTENTION_BACKWARD_FAST, sub) + dq_bytes(sub);
    return attention_sums_bytes(whole) + attention_sums_bytes(sub) +
           (fills ? filled_bytes(sub) : 0) + (kept > fast ? kept : fast);
}

/* --- plans ---------------------------------------------------------------------------------- */

static enum status add_plan(struct ops *ops, struct dnn_attention *dnn, enum attention_pass pass,
                            struct attention a)
{
    struct env *env = device_env(ops->device);
    struct attention_plan *plan;
    enum status st;
    TRY(mem_alloc(env, MEM_OTHER, "attention plans", sizeof *plan, &plan));
    TRY_OR(undo_plan, attention_graph_plan(env, ops->type, a, pass, dnn->handle,
                                           attention_graph_workspace(pass, a), &plan->dnn));
    if (!plan->dnn.plan)
        log_debug(env,
                  "cuDNN has no engine for attention with %lld heads of width %lld over %lld "
                  "tokens: our own kernels are used",
                  (long long)a.heads, (long long)a.head_width, (long long)a.tokens);
    plan->pass = pass;
    plan->shape = a;
    plan->next = dnn->plans;
    dnn->plans = plan;
    return STATUS_OK;
undo_plan:
    mem_free(env, plan);
    return st;
}

/* The plan for a shape, made when it is first seen. NULL: there is no engine for it, or the stream
 * has failed. */
static const struct dnn_plan *find_plan(struct ops *ops, struct dnn_attention *dnn,
                                        struct stream *stream, enum attention_pass pass,
                                        struct attention a)
{
    if (!cuda_on_gpu(ops, stream) || !dnn->used || !attention_graph_takes(ops->type, a))
        return NULL;
    const struct attention_plan *plan = dnn->plans;
    while (plan && (plan->pass != pass || memcmp(&plan->shape, &a, sizeof a) != 0))
        plan = plan->next;
    if (!plan) {
        enum status st = add_plan(ops, dnn, pass, a);
        if (st) {
            stream_fail(stream, st);
            return NULL;
        }
        plan = dnn->plans;
    }
    return plan->dnn.plan ? &plan->dnn : NULL;
}

/* --- running -------------------------------------------------------------------------------- */

/* The addresses of a run, by name. */
struct binding {
    int count;
    int64_t names[DNN_NAMES];
    void *addresses[DNN_NAMES];
};

static void bind(struct binding *b, enum attention_name name, const void *address)
{
    CHECK_LT(b->count, DNN_NAMES);
    b->names[b->count] = name;
    b->addresses[b->count++] = (void *)address;
}

/* Queries, keys and values, or their gradients, in a row of (H + 2G) D elements. */
static void bind_parts(struct binding *b, enum attention_name q, enum attention_name k,
                       enum attention_name v, const char *row, struct attention a, size_t element)
{
    size_t head = (size_t)a.head_width * element;
    bind(b, q, row);
    bind(b, k, row + (size_t)a.heads * head);
    bind(b, v, row + (size_t)(a.heads + a.kv_heads) * head);
}

static void run(struct ops *ops, struct dnn_attention *dnn, struct stream *stream,
                const struct dnn_plan *plan, const struct binding *b, void *workspace)
{
    enum status st = dnn_status(device_env(ops->device),
                                cudnnSetStream(dnn->handle, cuda_handle(stream)), "cudnnSetStream");
    if (!st)
        st = dnn_plan_run(plan, dnn->handle, b->count, b->names, b->addresses, workspace);
    if (st)
        stream_fail(stream, st);
}

bool dnn_attention_forward(struct ops *ops, struct dnn_attention *dnn, struct stream *stream,
                           struct attention a, const void *qkv, void *out, float *lse,
                           void *scratch)
{
    const float scale = (float)ops_attention_scale(a), masked = -INFINITY;
    const struct dnn_plan *plan = find_plan(ops, dnn, stream, ATTENTION_FORWARD, a);
    struct binding b = {0};
    if (!plan || !attention_aligned(qkv, out, lse, scratch))
        return false;
    bind_parts(&b, Q, K, V, qkv, a, dtype_bytes(ops->type));
    bind(&b, OUT, out);
    bind(&b, LSE, lse);
    bind(&b, SCALE, &scale);
    bind(&b, MASKED, &masked);
    run(ops, dnn, stream, plan, &b, scratch);
    return true;
}

static enum attention_pass backward_pass(const struct ops *ops)
{
    return ops->fast ? ATTENTION_BACKWARD_FAST : ATTENTION_BACKWARD;
}

/* The sequences of `a` from `first` on */
static struct attention_backward from_sequence(struct attention a, int64_t first,
                                               const struct attention_backward *g)
{
    size_t token = (size_t)(first * a.tokens);
    size_t row = row_bytes(a, a.heads), wide = row_bytes(a, a.heads + 2 * a.kv_heads);
    return (struct attention_backward){.qkv = (const char *)g->qkv + token * wide,
                                       .dqkv = (char *)g->dqkv + token * wide,
                                       .out = (const char *)g->out + token * row,
                                       .dout = (const char *)g->dout + token * row};
}

/* One sub-batch; scratch: row sums, dq in the fast form, workspace. */
static void backward_sub_batch(struct ops *ops, struct dnn_attention *dnn, struct stream *stream,
                               const struct dnn_plan *plan, struct attention sub,
                               const struct attention_backward *g, const float *lse, char *scratch)
{
    const float scale = (float)ops_attention_scale(sub), masked = -INFINITY, one = 1;
    size_t element = dtype_bytes(ops->type);
    bool fast = backward_pass(ops) == ATTENTION_BACKWARD_FAST;
    char *dq = scratch + attention_sums_bytes(sub);
    struct binding b = {0};
    bind_parts(&b, Q, K, V, g->qkv, sub, element);
    bind_parts(&b, DQ, DK, DV, g->dqkv, sub, element);
    bind(&b, OUT, g->out);
    bind(&b, DOUT, g->dout);
    bind(&b, LSE, lse);
    bind(&b, SUMS, scratch);
    bind(&b, SCALE, &scale);
    bind(&b, MASKED, &masked);
    bind(&b, ONE, &one);
    if (fast)
        bind(&b, DQ_SUM, dq);
    run(ops, dnn, stream, plan, &b, fast ? dq + dq_bytes(sub) : dq);
}

/* Copies sequences of `heads` heads between lengths. */
static void resize_sequences(struct stream *stream, struct attention from, struct attention to,
                             int64_t heads, const void *x, void *y)
{
    if (!stream_failed(stream))
        cuda_enqueued(stream,
                      cuda_resize_sequences(from.batch, from.tokens, to.tokens,
                                            (int64_t)row_bytes(from, heads), x, y,
                                            cuda_handle(stream)),
                      "filling up sequences");
}

/* The same with sequences of `tokens` tokens, filled up to those of `sub` in copies. */
static void backward_filled(struct ops *ops, struct dnn_attention *dnn, struct stream *stream,
                            const struct dnn_plan *plan, struct attention sub, int64_t tokens,
                            const struct attention_backward *g, const float *lse, char *scratch)
{
    struct attention own = sub;
    int64_t all = sub.heads + 2 * sub.kv_heads;
    own.tokens = tokens;
    char *qkv = scratch, *dqkv = qkv + (size_t)(sub.batch * sub.tokens) * row_bytes(sub, all);
    char *out = dqkv + (dqkv - qkv);
    char *dout = out + (size_t)(sub.batch * sub.tokens) * row_bytes(sub, sub.heads);
    resize_sequences(stream, own, sub, all, g->qkv, qkv);
    resize_sequences(stream, own, sub, sub.heads, g->out, out);
    resize_sequences(stream, own, sub, sub.heads, g->dout, dout);
    backward_sub_batch(
        ops, dnn, stream, plan, sub,
        &(struct attention_backward){.qkv = qkv, .dqkv = dqkv, .out = out, .dout = dout}, lse,
        scratch + filled_bytes(sub));
    resize_sequences(stream, sub, own, all, dqkv, g->dqkv);
}

bool dnn_attention_backward(struct ops *ops, struct dnn_attention *dnn, struct stream *stream,
                            struct attention a, const struct attention_backward *g)
{
    enum attention_pass pass = backward_pass(ops);
    bool fills = must_fill(a);
    struct attention whole = fills ? dnn_attention_filled(a) : a;
    struct attention sub = sub_attention(whole), last = sub;
    if (!dnn_attention_backward_takes(ops, a))
        return false;
    last.batch = a.batch - (a.batch - 1) / sub.batch * sub.batch;
    const struct dnn_plan *plan = find_plan(ops, dnn, stream, pass, sub), *last_plan = plan;
    if (plan && last.batch != sub.batch)
        last_plan = find_plan(ops, dnn, stream, pass, last);
    if (!plan || !last_plan || !attention_aligned(g->qkv, g->out, g->dout, g->dqkv) ||
        !attention_aligned(g->lse, g->scratch, NULL, NULL))
        return false;
    const struct cuda_heads heads = attention_heads(a);
    float *lse = g->scratch;
    char *scratch = (char *)g->scratch + attention_sums_bytes(whole);
    cuda_enqueued(stream,
                  cuda_attend_hide_first(heads, whole.tokens, g->lse, lse, cuda_handle(stream)),
                  "attention backward");
    for (int64_t first = 0; first < a.batch; first += sub.batch) {
        bool full = first + sub.batch <= a.batch;
        const struct dnn_plan *by = full ? plan : last_plan;
        struct attention these = full ? sub : last;
        struct attention_backward part = from_sequence(a, first, g);
        const float *part_lse = lse + first * a.heads * whole.tokens;
        if (fills)
            backward_filled(ops, dnn, stream, by, these, a.tokens, &part, part_lse, scratch);
        else
            backward_sub_batch(ops, dnn, stream, by, these, &part, part_lse, scratch);
    }
    cuda_enqueued(stream,
                  cuda_attend_add_first(ops->type, heads, g->dout, g->dqkv, cuda_handle(stream)),
                  "attention backward");
    return true;
}

/* --- opening -------------------------------------------------------------------------------- */

enum status dnn_attention_open(struct env *env, bool used, struct dnn_attention **dnn)
{
    enum status st;
    struct dnn_attention *d;
    TRY(mem_alloc(env, MEM_OTHER, "attention plans", sizeof *d, &d));
    d->used = used;
    TRY_OR(undo, dnn_status(env, cudnnCreate(&d->handle), "cudnnCreate"));
    *dnn = d;
    return STATUS_OK;
undo:
    mem_free(env, d);
    return st;
}

void dnn_attention_close(struct env *env, struct dnn_attention *dnn)
{
    if (!dnn)
        return;
    for (struct attention_plan *plan = dnn->plans, *next; plan; plan = next) {
        next = plan->next;
        dnn_plan_destroy(&plan->dnn);
        mem_free(env, plan);
    }
    cudnnDestroy(dnn->handle);
    mem_free(env, dnn);
}
