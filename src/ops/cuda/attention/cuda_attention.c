/* cuda_attention -- the slots of attention. A shape takes the first of four implementations that
 * supports it:
 *
 *     Hopper   our kernels for compute capability 9.0, 16-bit types, heads of up to 128 columns
 *              (cuda_attention_forward_hopper.cu, cuda_attention_hopper.cu)
 *     cuDNN    its flash engines: 16-bit types, heads of up to 256 columns in steps of 8
 *     matrix   our kernels for tensor cores of any GPU, f32 in TF32 (cuda_attention_matrix.cu)
 *     plain    our kernels without tensor cores: f32 with SIFR_CUDA_EXACT=1, heads wider than 256
 *              (cuda_attention_plain.cu)
 *
 * Windows are taken by the Hopper kernels and by the last two, caps by the last two only.
 *
 * On Hopper our forward pass is a fifth to a third faster than cuDNN's, and cuDNN's deterministic
 * backward pass writes dS to memory and reads it again, including the masked half. cuDNN goes
 * first only where our tiles are wider than the heads (cudnn_is_faster).
 *
 * A plan is made when a shape is first seen and kept; later calls find it and allocate nothing on
 * the device. The workspace is the caller's scratch, whose size is known without a GPU: a plan
 * that needs more than that bound is not used (cuda_attention_graph.c).
 *
 * Bits: cuDNN's deterministic form of the backward pass keeps T x T elements per head in its
 * workspace. To bound that, the batch is split into sub-batches (sequences are independent) whose
 * scores fit sub_batch_bytes; the split depends on the shape only. Rotary embedding is undone by
 * its own kernel, from rounded dq and dk, except by the Hopper kernel at widths 64 and 128, which
 * does it before rounding: a shape always takes the same one.
 *
 * The first query of a sequence has dS = 0: our kernels know, cuDNN is made to compute it
 * (cuda_attention_first.cu).
 *
 * cuDNN's backward pass up to 9.15.0 needs a multiple of 128 tokens. Heads wider than 128 columns get it for other
 * lengths, too, on copies of the sequences that are filled up with zeros: 160 columns on an H200 take
 * 0.2 to 0.7 of the time of the matrix kernels (`gpu_attention_times`).
 *
 * In fast mode (ops_be_fast) cuDNN uses its other form, which adds with atomics: bits differ from
 * run to run.
 */
#include "ops/cuda/attention/cuda_attention.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "ops/cuda/attention/cuda_cudnn.h"
#include "ops/cuda/cuda_impl.h"

struct attention_plan {
    struct attention_plan *next;
    enum attention_pass pass;
    struct attention shape;
    struct dnn_plan dnn; /* dnn.plan NULL: no engine */
};

struct cuda_attention_state {
    cudnnHandle_t handle;
    struct attention_plan *plans; /* made so far, newest first */
    bool cudnn;                   /* cuDNN may be used */
    bool hopper;                  /* the Hopper kernels may be used */
    bool matrix;                  /* the kernels for tensor cores of any GPU may be used */
    bool said;                    /* that a shape is slow */
    enum cuda_clusters clusters;  /* of the Hopper kernels */
};

enum { WAY_MATRIX, WAY_CLUSTERS };
static const char *const ways[] = {"matrix", "clusters", NULL};

/* Called without a GPU, too; opening checks that the word is known. */
static bool is_asked(int way)
{
    const char *asked = getenv("SIFR_CUDA_ATTENTION");
    return asked && !strcmp(asked, ways[way]);
}

static enum cuda_clusters clusters_asked(void)
{
    return is_asked(WAY_CLUSTERS) ? CUDA_CLUSTERS_WHERE_POSSIBLE : CUDA_CLUSTERS_WHERE_FASTER;
}

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

static struct cuda_heads heads_of(struct attention a)
{
    return (struct cuda_heads){.batch = a.batch,
                               .tokens = a.tokens,
                               .heads = a.heads,
                               .kv_heads = a.kv_heads,
                               .width = a.head_width,
                               .valid = a.head_width,
                               .window = a.window > 0 ? a.window : a.tokens,
                               .scale = (float)ops_attention_scale(a),
                               .cap = (float)a.cap};
}

/* What the Hopper kernels receive: heads of full 16-byte units. Others are copied to such heads
 * and back. */
static struct cuda_heads hopper_heads(struct attention a)
{
    struct cuda_heads heads = heads_of(a);
    heads.width = (a.head_width + 7) / 8 * 8;
    return heads;
}

static bool is_padded(struct attention a)
{
    return a.head_width % 8 != 0;
}

/* Bytes of a padded copy with `heads` heads per token, of a 16-bit type. */
static size_t padded_bytes(struct attention a, int64_t heads)
{
    size_t bytes = (size_t)(a.batch * a.tokens * heads * hopper_heads(a).width) * 2;
    return (bytes + 255) / 256 * 256;
}

static size_t padded_qkv_bytes(struct attention a)
{
    return padded_bytes(a, a.heads + 2 * a.kv_heads);
}

static size_t padded_out_bytes(struct attention a)
{
    return padded_bytes(a, a.heads);
}

/* Whether tensor cores may be used and support the shape. */
static bool does_matrix(enum dtype type, struct attention a)
{
    return !(type == DTYPE_F32 && cuda_is_exact()) && cuda_attend_matrix_takes(heads_of(a));
}

/* Heads of 96 at 16 x 1024 tokens (H200): a step takes 2 % less with cuDNN. At longer sequences
 * its dS dominates, and its deterministic form does not support other lengths. */
static bool cudnn_is_faster(struct attention a)
{
    return a.head_width > 64 && a.head_width < 128 && a.tokens % 128 == 0 && a.tokens <= 2048;
}

/* cuDNN's backward pass is right for multiples of this, and from 9.15.1 on for all lengths. */
enum { FULL_TOKENS = 128 };

static struct attention filled_attention(struct attention a)
{
    a.tokens = (a.tokens + FULL_TOKENS - 1) / FULL_TOKENS * FULL_TOKENS;
    return a;
}

/* Whether filling up is worth it, if it is needed: not where the Hopper kernels are fast, nor where
 * there would be much to fill. */
static bool may_fill(struct attention a)
{
    int64_t tokens = filled_attention(a).tokens;
    return a.head_width > 128 && tokens > a.tokens && 2 * tokens <= 3 * a.tokens;
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

/* Scratch is: row sums of dout * out (B, H, T); or, for cuDNN, its lse (B, H, T), then of a
 * sub-batch copies that are filled up, if they may be, the row sums and an fp32 dq (fast form only),
 * and the workspace; or what the Hopper kernel needs, whichever is larger, since no GPU is
 * consulted. What attention with a cache needs does not depend on the number of tokens: a decoder
 * has one scratch for all lengths. */
static size_t sums_bytes(struct attention a)
{
    return ((size_t)(a.batch * a.heads * a.tokens) * sizeof(float) + 255) / 256 * 256;
}

static size_t dq_bytes(struct attention a)
{
    return sums_bytes(a) * (size_t)a.head_width;
}

static size_t cuda_attention_scratch(const struct ops *ops, struct attention a)
{
    size_t most = sums_bytes(a), cached = cuda_attend_cached_scratch(a.head_width);
    if (attention_graph_takes(ops->type, a)) {
        bool fills = may_fill(a);
        struct attention whole = fills ? filled_attention(a) : a, sub = sub_attention(whole);
        size_t kept = scores_fit(whole) ? attention_graph_workspace(ATTENTION_BACKWARD, sub) : 0;
        size_t fast = attention_graph_workspace(ATTENTION_BACKWARD_FAST, sub) + dq_bytes(sub);
        most = sums_bytes(whole) + sums_bytes(sub) + (fills ? filled_bytes(sub) : 0) +
               (kept > fast ? kept : fast);
    }
    if (cuda_attend_forward_hopper_takes(ops->type, hopper_heads(a)) && is_padded(a)) {
        size_t padded = padded_qkv_bytes(a) + padded_out_bytes(a);
        most = most > padded ? most : padded;
    }
    if (cuda_attend_hopper_takes(ops->type, hopper_heads(a), clusters_asked())) {
        size_t hopper = cuda_attend_hopper_scratch(hopper_heads(a), clusters_asked());
        if (is_padded(a)) /* qkv, dqkv, out, dout */
            hopper += 2 * padded_qkv_bytes(a) + 2 * padded_out_bytes(a);
        most = most > hopper ? most : hopper;
    }
    return most > cached ? most : cached;
}

/* Without a GPU, Hopper is assumed. cuDNN takes as long for any head wider than 128 columns as for
 * one of 256. */
static struct attention cuda_attention_tiles(const struct ops *ops, struct attention a)
{
    bool wide = attention_graph_takes(ops->type, a) && a.head_width > 128;
    if (wide || cuda_attend_hopper_takes(ops->type, hopper_heads(a), clusters_asked())) {
        a = filled_attention(a);
        a.head_width = wide ? 256 : a.head_width <= 64 ? 64 : 128;
    } else if (does_matrix(ops->type, a)) {
        a.tokens = (a.tokens + 63) / 64 * 64;
        a.head_width = cuda_attend_matrix_width(a.head_width);
    }
    return a;
}

/* The rates of a machine are those of the Hopper kernels, or of cuDNN, for 16-bit types. For f32 the
 * matrix kernels are the only ones; above 128 columns they form dk and dv in two launches. Padded
 * heads cost a copy per token, which counts less in longer sequences (H200, 100 columns at T 939).
 * Heads of up to 32 columns leave out half of a tile. The factors are estimates. */
static double cuda_attention_times(const struct ops *ops, struct attention a, bool backward)
{
    const double MATRIX = 2.5, PLAIN = 30, TWICE = 2, NARROW = 0.85;
    const struct cuda_heads heads = hopper_heads(a);
    bool hopper = backward ? cuda_attend_hopper_takes(ops->type, heads, clusters_asked())
                           : cuda_attend_forward_hopper_takes(ops->type, heads);
    if (!does_matrix(ops->type, a))
        return PLAIN;
    if (ops->type == DTYPE_F32)
        return backward && a.head_width > 128 ? TWICE : 1;
    if (hopper && is_padded(a))
        return 1 + (backward ? 350.0 : 500.0) / (double)filled_attention(a).tokens;
    if (hopper && cuda_attend_hopper_columns(heads) == 32)
        return NARROW;
    return hopper || attention_graph_takes(ops->type, a) ? 1 : MATRIX;
}

/* --- plans ---------------------------------------------------------------------------------- */

static enum status add_plan(struct ops *ops, struct cuda_attention_state *state,
                            enum attention_pass pass, struct attention a)
{
    struct env *env = device_env(ops->device);
    struct attention_plan *plan;
    enum status st;
    TRY(mem_alloc(env, MEM_OTHER, "attention plans", sizeof *plan, &plan));
    TRY_OR(undo_plan, attention_graph_plan(env, ops->type, a, pass, state->handle,
                                           attention_graph_workspace(pass, a), &plan->dnn));
    if (!plan->dnn.plan)
        log_debug(env,
                  "cuDNN has no engine for attention with %lld heads of width %lld over %lld "
                  "tokens: our own kernels are used",
                  (long long)a.heads, (long long)a.head_width, (long long)a.tokens);
    plan->pass = pass;
    plan->shape = a;
    plan->next = state->plans;
    state->plans = plan;
    return STATUS_OK;
undo_plan:
    mem_free(env, plan);
    return st;
}

/* The plan for a shape, made when it is first seen. NULL: there is no engine for it, or the stream
 * has failed. */
static const struct dnn_plan *find_plan(struct ops *ops, struct stream *stream,
                                        enum attention_pass pass, struct attention a)
{
    struct cuda_attention_state *state = cuda_ops_of(ops)->attention;
    if (!cuda_on_gpu(ops, stream) || !state->cudnn || !attention_graph_takes(ops->type, a))
        return NULL;
    const struct attention_plan *plan = state->plans;
    while (plan && (plan->pass != pass || memcmp(&plan->shape, &a, sizeof a) != 0))
        plan = plan->next;
    if (!plan) {
        enum status st = add_plan(ops, state, pass, a);
        if (st) {
            stream_fail(stream, st);
            return NULL;
        }
        plan = state->plans;
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

static void run(struct ops *ops, struct stream *stream, const struct dnn_plan *plan,
                const struct binding *b, void *workspace)
{
    struct cuda_attention_state *state = cuda_ops_of(ops)->attention;
    enum status st =
        dnn_status(device_env(ops->device), cudnnSetStream(state->handle, cuda_handle(stream)),
                   "cudnnSetStream");
    if (!st)
        st = dnn_plan_run(plan, state->handle, b->count, b->names, b->addresses, workspace);
    if (st)
        stream_fail(stream, st);
}

static bool aligned(const void *a, const void *b, const void *c, const void *d)
{
    return ((uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d) % 16 == 0;
}

/* Copies `heads` heads of every token of a batch from one width to another. */
static void resize(struct ops *ops, struct stream *stream, struct attention a, int64_t heads,
                   int64_t from_width, int64_t to_width, const void *from, void *to)
{
    if (cuda_on_gpu(ops, stream))
        cuda_enqueued(stream,
                      cuda_resize_heads(a.batch * a.tokens * heads, from_width, to_width, from, to,
                                        cuda_handle(stream)),
                      "padding heads");
}

/* Says once, for all shapes, that attention is slower than it could be, and by how much. */
static void say_slow(struct ops *ops, struct attention a)
{
    struct cuda_attention_state *state = cuda_ops_of(ops)->attention;
    struct env *env = device_env(ops->device);
    const double forward = cuda_attention_times(ops, a, false);
    const double backward = cuda_attention_times(ops, a, true);
    const int64_t SHORT = 256; /* fewer tokens take no time worth a message */
    bool exact = ops->type == DTYPE_F32 && cuda_is_exact();
    if (state->said || exact || !state->matrix || (forward < 1.05 && backward < 1.05))
        return;
    if (!does_matrix(ops->type, a))
        log_warn(env,
                 "attention with heads of width %lld runs without tensor cores, 10 to 50 times "
                 "slower; use heads of up to 256 columns",
                 (long long)a.head_width);
    else if (a.tokens >= SHORT && is_padded(a))
        log_info(env,
                 "attention copies heads of width %lld to %lld: about %.1f times as long forward "
                 "and %.1f backward; multiples of 8 need no copy",
                 (long long)a.head_width, (long long)hopper_heads(a).width, forward, backward);
    else if (a.tokens >= SHORT)
        log_info(env,
                 "attention with heads of width %lld%s takes kernels for any GPU: about %.1f "
                 "times as long forward and %.1f backward",
                 (long long)a.head_width, a.window > 0 || a.cap > 0 ? " and a window or cap" : "",
                 forward, backward);
    else
        return;
    state->said = true;
}

/* By our Hopper kernel. False: not supported, and nothing was done. */
static bool forward_hopper(struct ops *ops, struct stream *stream, struct attention a,
                           const void *qkv, void *out, float *lse, char *scratch)
{
    const struct cuda_heads heads = hopper_heads(a);
    if (!cuda_ops_of(ops)->attention->hopper ||
        !cuda_attend_forward_hopper_takes(ops->type, heads) || !aligned(qkv, out, lse, scratch))
        return false;
    void *to = out;
    if (is_padded(a)) {
        if (cuda_on_gpu(ops, stream))
            say_slow(ops, a);
        resize(ops, stream, a, a.heads + 2 * a.kv_heads, a.head_width, heads.width, qkv, scratch);
        qkv = scratch;
        to = scratch + padded_qkv_bytes(a);
    }
    if (cuda_on_gpu(ops, stream))
        cuda_enqueued(stream,
                      cuda_attend_forward_hopper(ops->type, heads, qkv, to, lse,
                                                 cuda_device_of(ops->device)->processors,
                                                 cuda_handle(stream)),
                      "attention");
    if (is_padded(a))
        resize(ops, stream, a, a.heads, heads.width, a.head_width, to, out);
    return true;
}

/* By cuDNN. False: not supported. */
static bool forward_cudnn(struct ops *ops, struct stream *stream, struct attention a,
                          const void *qkv, void *out, float *lse, void *scratch)
{
    const float scale = (float)ops_attention_scale(a), masked = -INFINITY;
    const struct dnn_plan *plan = find_plan(ops, stream, ATTENTION_FORWARD, a);
    struct binding b = {0};
    if (!plan || !aligned(qkv, out, lse, scratch))
        return false;
    bind_parts(&b, Q, K, V, qkv, a, dtype_bytes(ops->type));
    bind(&b, OUT, out);
    bind(&b, LSE, lse);
    bind(&b, SCALE, &scale);
    bind(&b, MASKED, &masked);
    run(ops, stream, plan, &b, scratch);
    return true;
}

/* By kernels that any GPU can run. */
static void forward_own(struct ops *ops, struct stream *stream, struct attention a, const void *qkv,
                        void *out, float *lse)
{
    const struct cuda_heads heads = heads_of(a);
    cudaStream_t to = cuda_handle(stream);
    if (stream_failed(stream) || !cuda_on_gpu(ops, stream))
        return;
    say_slow(ops, a);
    if (cuda_ops_of(ops)->attention->matrix && does_matrix(ops->type, a)) {
        cuda_enqueued(stream, cuda_attend_matrix_forward(ops->type, heads, qkv, out, lse, to),
                      "attention");
    } else {
        cuda_enqueued(stream, cuda_attend_forward(ops->type, heads, qkv, out, lse, to),
                      "attention");
    }
}

static void cuda_attention(struct ops *ops, struct stream *stream, struct attention a,
                           const void *qkv, void *out, float *lse, void *scratch)
{
    if ((cudnn_is_faster(a) && forward_cudnn(ops, stream, a, qkv, out, lse, scratch)) ||
        forward_hopper(ops, stream, a, qkv, out, lse, scratch) ||
        forward_cudnn(ops, stream, a, qkv, out, lse, scratch))
        return;
    forward_own(ops, stream, a, qkv, out, lse);
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
static void backward_sub_batch(struct ops *ops, struct stream *stream, const struct dnn_plan *plan,
                               struct attention sub, const struct attention_backward *g,
                               const float *lse, char *scratch)
{
    const float scale = (float)ops_attention_scale(sub), masked = -INFINITY, one = 1;
    size_t element = dtype_bytes(ops->type);
    bool fast = backward_pass(ops) == ATTENTION_BACKWARD_FAST;
    char *dq = scratch + sums_bytes(sub);
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
    run(ops, stream, plan, &b, fast ? dq + dq_bytes(sub) : dq);
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
static void backward_filled(struct ops *ops, struct stream *stream, const struct dnn_plan *plan,
                            struct attention sub, int64_t tokens,
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
        ops, stream, plan, sub,
        &(struct attention_backward){.qkv = qkv, .dqkv = dqkv, .out = out, .dout = dout}, lse,
        scratch + filled_bytes(sub));
    resize_sequences(stream, sub, own, all, dqkv, g->dqkv);
}

/* By cuDNN. False: not supported. */
static bool backward_cudnn(struct ops *ops, struct stream *stream, struct attention a,
                           const struct attention_backward *g)
{
    enum attention_pass pass = backward_pass(ops);
    bool fills = a.tokens % FULL_TOKENS != 0 && cudnnGetVersion() <= 91500;
    struct attention whole = fills ? filled_attention(a) : a;
    struct attention sub = sub_attention(whole), last = sub;
    if ((pass == ATTENTION_BACKWARD && !scores_fit(whole)) || (fills && !may_fill(a)))
        return false;
    last.batch = a.batch - (a.batch - 1) / sub.batch * sub.batch;
    const struct dnn_plan *plan = find_plan(ops, stream, pass, sub), *last_plan = plan;
    if (plan && last.batch != sub.batch)
        last_plan = find_plan(ops, stream, pass, last);
    if (!plan || !last_plan || !aligned(g->qkv, g->out, g->dout, g->dqkv) ||
        !aligned(g->lse, g->scratch, NULL, NULL))
        return false;
    const struct cuda_heads heads = heads_of(a);
    float *lse = g->scratch;
    char *scratch = (char *)g->scratch + sums_bytes(whole);
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
            backward_filled(ops, stream, by, these, a.tokens, &part, part_lse, scratch);
        else
            backward_sub_batch(ops, stream, by, these, &part, part_lse, scratch);
    }
    cuda_enqueued(stream,
                  cuda_attend_add_first(ops->type, heads, g->dout, g->dqkv, cuda_handle(stream)),
                  "attention backward");
    return true;
}

/* By kernels that any GPU can run. */
static void backward_own(struct ops *ops, struct stream *stream, struct attention a,
                         const struct attention_backward *g)
{
    const struct cuda_heads heads = heads_of(a);
    cudaStream_t to = cuda_handle(stream);
    if (stream_failed(stream) || !cuda_on_gpu(ops, stream))
        return;
    say_slow(ops, a);
    if (cuda_ops_of(ops)->attention->matrix && does_matrix(ops->type, a)) {
        cuda_enqueued(stream,
                      cuda_attend_matrix_backward(ops->type, heads, g->qkv, g->out, g->lse, g->dout,
                                                  g->dqkv, g->scratch, to),
                      "attention backward");
    } else {
        cuda_enqueued(stream,
                      cuda_attend_backward(ops->type, heads, g->qkv, g->out, g->lse, g->dout,
                                           g->dqkv, g->scratch, to),
                      "attention backward");
    }
}

/* By our Hopper kernel. False: this GPU or shape is not supported, and nothing was done. */
static bool backward_hopper(struct ops *ops, struct stream *stream, struct attention a,
                            const float *rope, void *dbias, const struct attention_backward *g)
{
    const void *qkv = g->qkv, *out = g->out, *dout = g->dout;
    void *dqkv = g->dqkv, *scratch = g->scratch;
    const struct cuda_attention_state *state = cuda_ops_of(ops)->attention;
    const struct cuda_heads heads = hopper_heads(a);
    if (!state->hopper || !cuda_attend_hopper_takes(ops->type, heads, state->clusters) ||
        !aligned(qkv, out, dout, dqkv) || !aligned(scratch, rope, NULL, NULL))
        return false;
    int processors = cuda_device_of(ops->device)->processors;
    int64_t all = a.heads + 2 * a.kv_heads;
    void *to = dqkv;
    if (is_padded(a)) {
        char *wide_qkv = scratch, *wide_out = wide_qkv + 2 * padded_qkv_bytes(a);
        char *wide_dout = wide_out + padded_out_bytes(a);
        resize(ops, stream, a, all, a.head_width, heads.width, qkv, wide_qkv);
        resize(ops, stream, a, a.heads, a.head_width, heads.width, out, wide_out);
        resize(ops, stream, a, a.heads, a.head_width, heads.width, dout, wide_dout);
        qkv = wide_qkv;
        to = wide_qkv + padded_qkv_bytes(a);
        out = wide_out;
        dout = wide_dout;
        scratch = wide_dout + padded_out_bytes(a);
    }
    if (cuda_on_gpu(ops, stream))
        cuda_enqueued(stream,
                      cuda_attend_backward_hopper(ops->type, heads, state->clusters, rope, qkv, out,
                                                  g->lse, dout, to, dbias, scratch, processors,
                                                  cuda_handle(stream)),
                      "attention backward");
    if (is_padded(a))
        resize(ops, stream, a, all, heads.width, a.head_width, to, dqkv);
    return true;
}

/* Column sums come from the Hopper kernel if nothing is rotated or padded, otherwise from a
 * separate pass. The Hopper kernel also undoes rope, at the widths it supports. */
static void cuda_attention_backward(struct ops *ops, struct stream *stream, struct attention a,
                                    const struct attention_backward *g)
{
    const float *rope = g->rope;
    const bool sums = cuda_attend_hopper_sums(hopper_heads(a), clusters_asked());
    void *dbias = g->dbias, *fused = rope || is_padded(a) || !sums ? NULL : dbias;
    const float *turned =
        cuda_attend_hopper_turns(hopper_heads(a)) && a.rotary == a.head_width ? rope : NULL;
    bool done = cudnn_is_faster(a) && backward_cudnn(ops, stream, a, g);
    if (!done && backward_hopper(ops, stream, a, turned, fused, g)) {
        done = true;
        dbias = fused ? NULL : dbias;
        rope = turned ? NULL : rope;
    }
    if (!done && !backward_cudnn(ops, stream, a, g))
        backward_own(ops, stream, a, g);
    if (rope)
        ops->backend->rope(ops, stream, a, rope, (struct past){0}, true, g->dqkv);
    if (dbias)
        cuda_sum_columns(ops, stream, a.batch * a.tokens, (a.heads + 2 * a.kv_heads) * a.head_width,
                         g->dqkv, false, dbias);
}

static void cuda_attention_cached(struct ops *ops, struct stream *stream, struct attention a,
                                  const struct attention_cached *c)
{
    struct cuda_heads heads = heads_of(a);
    heads.window = a.window > 0 ? a.window : c->room;
    if (cuda_on_gpu(ops, stream))
        cuda_enqueued(stream,
                      cuda_attend_cached(ops->type, heads,
                                         (struct kernel_past){c->past.count, c->past.at}, c->room,
                                         c->qkv, c->cache_k, c->cache_v, c->out, c->scratch,
                                         cuda_ops_of(ops)->cached_arrived, cuda_handle(stream)),
                      "attention with a cache");
}

/* --- opening -------------------------------------------------------------------------------- */

enum status cuda_attention_open(struct ops *ops, struct cuda_attention_state **out)
{
    struct env *env = device_env(ops->device);
    struct cuda_attention_state *state;
    enum status st;
    int way;
    TRY(cuda_word(env, "SIFR_CUDA_ATTENTION", ways, &way));
    TRY(cuda_status(env, cudaSetDevice(cuda_device_of(ops->device)->index), "choosing the GPU"));
    TRY(mem_alloc(env, MEM_OTHER, "attention plans", sizeof *state, &state));
    TRY_OR(undo_state, dnn_status(env, cudnnCreate(&state->handle), "cudnnCreate"));
    state->cudnn = way != WAY_MATRIX;
    state->matrix = cuda_device_of(ops->device)->capability >= 80;
    state->clusters = clusters_asked();
    state->hopper = way != WAY_MATRIX && cuda_device_of(ops->device)->capability == 90;
    *out = state;
    return STATUS_OK;
undo_state:
    mem_free(env, state);
    return st;
}

void cuda_attention_close(struct ops *ops, struct cuda_attention_state *state)
{
    struct env *env = device_env(ops->device);
    if (!state)
        return;
    for (struct attention_plan *plan = state->plans, *next; plan; plan = next) {
        next = plan->next;
        dnn_plan_destroy(&plan->dnn);
        mem_free(env, plan);
    }
    cudnnDestroy(state->handle);
    mem_free(env, state);
}

void cuda_attention_fill(struct ops_backend *table)
{
    table->attention = cuda_attention;
    table->attention_backward = cuda_attention_backward;
    table->attention_scratch = cuda_attention_scratch;
    table->attention_tiles = cuda_attention_tiles;
    table->attention_times = cuda_attention_times;
    table->attention_cached = cuda_attention_cached;
}
