/* cuda_attention -- the slots of attention. A shape takes the first of four implementations that
 * supports it:
 *
 *     Hopper   our kernels for compute capability 9.0, 16-bit types, heads of up to 128 columns
 *              (cuda_attention_forward_hopper.cu, cuda_attention_hopper.cu)
 *     cuDNN    its flash engines: 16-bit types, heads of up to 256 columns in steps of 8
 *              (cuda_attention_cudnn.c)
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
 * Rotary embedding is undone by its own kernel, from rounded dq and dk, except by the Hopper kernel
 * at widths 64 and 128, which does it before rounding: a shape always takes the same one.
 */
#include "ops/cuda/attention/cuda_attention.h"
#include <stdlib.h>
#include <string.h>
#include "ops/cuda/attention/cuda_attention_cudnn.h"
#include "ops/cuda/attention/cuda_attention_impl.h"
#include "ops/cuda/attention/cuda_cudnn.h"
#include "ops/cuda/cuda_impl.h"

/* That attention copies heads, or takes the kernels for any GPU, with or without tensor cores */
enum saying { SAY_COPIES, SAY_MATRIX, SAY_PLAIN, SAYINGS };

struct cuda_attention_state {
    struct dnn_attention *dnn;
    bool hopper;                 /* the Hopper kernels may be used */
    bool said[SAYINGS][2];       /* forward, backward */
    enum cuda_clusters clusters; /* of the Hopper kernels */
};

static const char *const passes[] = {"attention's forward pass", "attention's backward pass"};

enum { WAY_MATRIX, WAY_CLUSTERS };
static const char *const ways[] = {"matrix", "clusters", NULL};

/* Called without a GPU, too; opening checks that the word is known. */
static bool is_asked(int way)
{
    const char *asked = getenv("SIFR_CUDA_ATTENTION");
    return asked && !strcmp(asked, ways[way]);
}

static struct dnn_attention *dnn_of(const struct ops *ops)
{
    return cuda_ops_of(ops)->attention->dnn;
}

static enum cuda_clusters clusters_asked(void)
{
    return is_asked(WAY_CLUSTERS) ? CUDA_CLUSTERS_WHERE_POSSIBLE : CUDA_CLUSTERS_WHERE_FASTER;
}

/* --- memory --------------------------------------------------------------------------------- */

/* What the Hopper kernels receive: heads of full 16-byte units. Others are copied to such heads
 * and back. */
static struct cuda_heads hopper_heads(struct attention a)
{
    struct cuda_heads heads = attention_heads(a);
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
    return !(type == DTYPE_F32 && cuda_is_exact()) && cuda_attend_matrix_takes(attention_heads(a));
}

/* Heads of 96 at 16 x 1024 tokens (H200): a step takes 2 % less with cuDNN. At longer sequences
 * its dS dominates, and its deterministic form does not support other lengths. */
static bool cudnn_is_faster(struct attention a)
{
    return a.head_width > 64 && a.head_width < 128 && a.tokens % 128 == 0 && a.tokens <= 2048;
}

/* Whether the Hopper kernels do both passes. Then no scratch is needed for cuDNN, whose backward
 * pass keeps the scores: 4 GiB for 32 heads of 8192 tokens. */
static bool is_for_hopper(const struct ops *ops, struct attention a)
{
    const struct cuda_ops *cuda = cuda_ops_of(ops);
    bool hopper = cuda ? cuda->attention->hopper
                       : device_capability(ops->device) == 90 && !is_asked(WAY_MATRIX);
    return hopper && !cudnn_is_faster(a) &&
           cuda_attend_forward_hopper_takes(ops->type, hopper_heads(a)) &&
           cuda_attend_hopper_takes(ops->type, hopper_heads(a), clusters_asked());
}

/* Scratch is: row sums of dout * out (B, H, T); or what cuDNN needs; or what the Hopper kernel
 * needs; whichever is largest, where the kind of GPU is not known. What attention with a cache
 * needs does not depend on the number of tokens: a decoder has one scratch for all lengths. */
static size_t cuda_attention_scratch(const struct ops *ops, struct attention a)
{
    size_t most = attention_sums_bytes(a), cached = cuda_attend_cached_scratch(a.head_width);
    size_t dnn = is_for_hopper(ops, a) ? 0 : dnn_attention_scratch(ops->type, a);
    most = most > dnn ? most : dnn;
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
        a = dnn_attention_filled(a);
        a.head_width = wide ? 256 : a.head_width <= 64 ? 64 : 128;
    } else if (does_matrix(ops->type, a)) {
        a.tokens = (a.tokens + 63) / 64 * 64;
        a.head_width = cuda_attend_matrix_width(a.head_width);
    }
    return a;
}

/* How many times as long a pass takes that copies padded heads: a copy per token, which counts less
 * in longer sequences (H200, 100 columns at T 939); and on the kernels for any GPU (H200). */
static double padded_times(struct attention a, bool backward)
{
    return 1 + (backward ? 350.0 : 500.0) / (double)dnn_attention_filled(a).tokens;
}

static const double matrix_times = 2.5;

/* The rates of a machine are those of the Hopper kernels, or of cuDNN, for 16-bit types. For f32
 * the matrix kernels are the only ones; above 128 columns they form dk and dv in two launches.
 * Heads of up to 32 columns leave out half of a tile. The factors are estimates. */
static double cuda_attention_times(const struct ops *ops, struct attention a, bool backward)
{
    const double PLAIN = 30, TWICE = 2, NARROW = 0.85;
    const struct cuda_heads heads = hopper_heads(a);
    bool hopper = backward ? cuda_attend_hopper_takes(ops->type, heads, clusters_asked())
                           : cuda_attend_forward_hopper_takes(ops->type, heads);
    bool dnn =
        backward ? dnn_attention_backward_takes(ops, a) : attention_graph_takes(ops->type, a);
    if (!does_matrix(ops->type, a))
        return PLAIN;
    if (ops->type == DTYPE_F32)
        return backward && a.head_width > 128 ? TWICE : 1;
    if (hopper && is_padded(a))
        return padded_times(a, backward);
    if (hopper && cuda_attend_hopper_columns(heads) == 32)
        return NARROW;
    return hopper || dnn ? 1 : matrix_times;
}

/* --- running -------------------------------------------------------------------------------- */

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

/* Whether to say, once for each kind and pass, that attention takes a slower way. Shorter sequences
 * take no time worth a message. */
static bool is_news(const struct ops *ops, struct attention a, enum saying kind, bool backward)
{
    enum { LEAST_TOKENS = 256 };
    bool *said = &cuda_ops_of(ops)->attention->said[kind][backward];
    bool news = !*said && a.tokens >= LEAST_TOKENS;
    *said = *said || news;
    return news;
}

static void say_copies(struct ops *ops, struct attention a, bool backward)
{
    if (is_news(ops, a, SAY_COPIES, backward))
        log_info(device_env(ops->device),
                 "%s copies heads of width %lld to %lld: about %.1f times as long (H200); "
                 "multiples of 8 need no copy",
                 passes[backward], (long long)a.head_width, (long long)hopper_heads(a).width,
                 padded_times(a, backward));
}

/* In f32 no kernels are faster than those for any GPU; SIFR_CUDA_ATTENTION=matrix asks for them. */
static void say_any_gpu(struct ops *ops, struct attention a, bool backward)
{
    struct env *env = device_env(ops->device);
    bool f32 = ops->type == DTYPE_F32;
    if (does_matrix(ops->type, a)) {
        if (!f32 && !is_asked(WAY_MATRIX) && is_news(ops, a, SAY_MATRIX, backward))
            log_info(env,
                     "%s over %lld tokens with heads of width %lld%s takes the kernels for any "
                     "GPU: about %.1f times as long (H200)",
                     passes[backward], (long long)a.tokens, (long long)a.head_width,
                     a.window > 0 || a.cap > 0 ? " and a window or cap" : "", matrix_times);
    } else if (!(f32 && cuda_is_exact()) && is_news(ops, a, SAY_PLAIN, backward)) {
        log_warn(env,
                 "%s with heads of width %lld runs without tensor cores, 10 to 50 times slower; "
                 "use heads of up to 256 columns",
                 passes[backward], (long long)a.head_width);
    }
}

/* By our Hopper kernel. False: not supported, and nothing was done. */
static bool forward_hopper(struct ops *ops, struct stream *stream, struct attention a,
                           const void *qkv, void *out, float *lse, char *scratch)
{
    const struct cuda_heads heads = hopper_heads(a);
    if (!cuda_ops_of(ops)->attention->hopper ||
        !cuda_attend_forward_hopper_takes(ops->type, heads) ||
        !attention_aligned(qkv, out, lse, scratch))
        return false;
    void *to = out;
    if (is_padded(a)) {
        if (cuda_on_gpu(ops, stream))
            say_copies(ops, a, false);
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

/* By kernels that any GPU can run. */
static void forward_own(struct ops *ops, struct stream *stream, struct attention a, const void *qkv,
                        void *out, float *lse)
{
    const struct cuda_heads heads = attention_heads(a);
    cudaStream_t to = cuda_handle(stream);
    if (stream_failed(stream) || !cuda_on_gpu(ops, stream))
        return;
    say_any_gpu(ops, a, false);
    if (does_matrix(ops->type, a)) {
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
    if ((cudnn_is_faster(a) &&
         dnn_attention_forward(ops, dnn_of(ops), stream, a, qkv, out, lse, scratch)) ||
        forward_hopper(ops, stream, a, qkv, out, lse, scratch) ||
        (!is_for_hopper(ops, a) &&
         dnn_attention_forward(ops, dnn_of(ops), stream, a, qkv, out, lse, scratch)))
        return;
    forward_own(ops, stream, a, qkv, out, lse);
}

/* By kernels that any GPU can run. */
static void backward_own(struct ops *ops, struct stream *stream, struct attention a,
                         const struct attention_backward *g)
{
    const struct cuda_heads heads = attention_heads(a);
    cudaStream_t to = cuda_handle(stream);
    if (stream_failed(stream) || !cuda_on_gpu(ops, stream))
        return;
    say_any_gpu(ops, a, true);
    if (does_matrix(ops->type, a)) {
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
        !attention_aligned(qkv, out, dout, dqkv) || !attention_aligned(scratch, rope, NULL, NULL))
        return false;
    int processors = cuda_device_of(ops->device)->processors;
    int64_t all = a.heads + 2 * a.kv_heads;
    void *to = dqkv;
    if (is_padded(a)) {
        char *wide_qkv = scratch, *wide_out = wide_qkv + 2 * padded_qkv_bytes(a);
        char *wide_dout = wide_out + padded_out_bytes(a);
        if (cuda_on_gpu(ops, stream))
            say_copies(ops, a, true);
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
    bool done = cudnn_is_faster(a) && dnn_attention_backward(ops, dnn_of(ops), stream, a, g);
    if (!done && backward_hopper(ops, stream, a, turned, fused, g)) {
        done = true;
        dbias = fused ? NULL : dbias;
        rope = turned ? NULL : rope;
    }
    done =
        done || (!is_for_hopper(ops, a) && dnn_attention_backward(ops, dnn_of(ops), stream, a, g));
    if (!done)
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
    struct cuda_heads heads = attention_heads(a);
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
    TRY_OR(undo_state, dnn_attention_open(env, way != WAY_MATRIX, &state->dnn));
    state->clusters = clusters_asked();
    state->hopper = way != WAY_MATRIX && device_capability(ops->device) == 90;
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
    dnn_attention_close(env, state->dnn);
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
