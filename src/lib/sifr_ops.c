/* sifr_ops -- helpers for programs' units: the ops of the built-in models. */
#include <math.h>

#include "lib/lib_impl.h"
#include "model/model.h"

static struct ops *ops_of(const struct sifr_call *call)
{
    return call->context->session.ops;
}

static struct stream *stream_of(const struct sifr_call *call)
{
    return call->context->session.stream;
}

void sifr_fail(const struct sifr_call *call, const char *message)
{
    if (!stream_failed(stream_of(call)))
        stream_fail(stream_of(call), FAIL(&call->context->env, STOPPED, "%s", message));
}

/* --- linear layers -------------------------------------------------------------------------- */

void sifr_linear(const struct sifr_call *call, int64_t rows, int64_t in, int64_t out, const void *x,
                 const void *w, const void *bias, void *y)
{
    ops_linear(ops_of(call), stream_of(call), (struct linear){in, out, .out_in = true}, rows, x, w,
               bias, y);
}

void sifr_linear_backward(const struct sifr_call *call, int64_t rows, int64_t in, int64_t out,
                          const void *x, const void *w, const void *dy, void *dx, void *dw,
                          void *dbias)
{
    struct linear l = {in, out, .out_in = true};
    if (dw)
        ops_linear_dw(ops_of(call), stream_of(call), l, rows,
                      &(struct linear_dw){.x = x, .dy = dy, .dw = dw, .dbias = dbias});
    if (dx)
        ops_linear_dx(ops_of(call), stream_of(call), l, rows, dy, w, dx);
}

void sifr_linear_gelu(const struct sifr_call *call, int64_t rows, int64_t in, int64_t out,
                      const void *x, const void *w, const void *bias, void *pre, void *y)
{
    ops_linear_gelu(ops_of(call), stream_of(call), (struct linear){in, out, .out_in = true}, rows,
                    &(struct linear_gelu){.x = x, .w = w, .bias = bias, .pre = pre, .y = y});
}

void sifr_linear_gelu_backward(const struct sifr_call *call, int64_t rows, int64_t in, int64_t out,
                               const void *dy, const void *w, const void *pre, void *dpre,
                               void *dbias)
{
    ops_linear_dx_dgelu(
        ops_of(call), stream_of(call), (struct linear){in, out, .out_in = true}, rows,
        &(struct linear_dx_dgelu){.dy = dy, .w = w, .pre = pre, .dpre = dpre, .dbias = dbias});
}

/* --- embedding ------------------------------------------------------------------------------ */

static struct embedding embedding_of(int64_t batch, int64_t tokens, int64_t width, int64_t vocab,
                                     bool positions)
{
    return (struct embedding){.batch = batch,
                              .tokens = tokens,
                              .width = width,
                              .vocab = vocab,
                              .positions = positions ? tokens : 0};
}

void sifr_embedding(const struct sifr_call *call, int64_t width, int64_t vocab, const int32_t *ids,
                    const void *table, const void *positions, void *y)
{
    ops_embedding(ops_of(call), stream_of(call),
                  embedding_of(call->batch, call->tokens, width, vocab, positions != NULL), ids,
                  table, positions, (struct past){0}, y);
}

void sifr_embedding_backward(const struct sifr_call *call, int64_t width, int64_t vocab,
                             const int32_t *ids, const void *dy, void *dtable, void *dpositions,
                             void *scratch)
{
    ops_embedding_backward(
        ops_of(call), stream_of(call),
        embedding_of(call->batch, call->tokens, width, vocab, dpositions != NULL), ids, dy, dtable,
        dpositions, scratch);
}

int64_t sifr_embedding_scratch(const struct sifr_context *context, int64_t batch, int64_t tokens,
                               int64_t width, int64_t vocab)
{
    return (int64_t)ops_embedding_scratch(context->session.ops,
                                          embedding_of(batch, tokens, width, vocab, true));
}

/* --- norms ---------------------------------------------------------------------------------- */

static struct norm norm_of(enum sifr_norm_kind kind, int64_t width, double eps)
{
    return (struct norm){kind == SIFR_RMS_NORM ? NORM_RMS : NORM_LAYER, width, eps, 0};
}

void sifr_norm(const struct sifr_call *call, const struct sifr_norm *n)
{
    ops_add_norm(ops_of(call), stream_of(call), norm_of(n->kind, n->width, n->eps), n->rows,
                 &(struct add_norm){.residual = n->residual,
                                    .branch = n->pending,
                                    .weight = n->weight,
                                    .bias = n->bias,
                                    .sum = n->sum,
                                    .y = n->y,
                                    .mean = n->mean,
                                    .rstd = n->rstd});
}

void sifr_norm_backward(const struct sifr_call *call, const struct sifr_norm_backward *n)
{
    ops_norm_backward(ops_of(call), stream_of(call), norm_of(n->kind, n->width, n->eps), n->rows,
                      &(struct norm_backward){.dy = n->dy,
                                              .sum = n->sum,
                                              .weight = n->weight,
                                              .mean = n->mean,
                                              .rstd = n->rstd,
                                              .dsum = n->dsum,
                                              .dsum_out = n->dsum_out,
                                              .dweight = n->dweight,
                                              .dbias = n->dbias,
                                              .dsum_columns = n->dsum_columns,
                                              .out_columns = n->out_columns,
                                              .scratch = n->scratch});
}

int64_t sifr_norm_scratch(const struct sifr_context *context, int64_t rows, int64_t width)
{
    const struct ops *ops = context->session.ops;
    size_t layer = ops_norm_scratch(ops, norm_of(SIFR_LAYER_NORM, width, 1e-5), rows);
    size_t rms = ops_norm_scratch(ops, norm_of(SIFR_RMS_NORM, width, 1e-5), rows);
    return (int64_t)(layer > rms ? layer : rms);
}

/* --- attention ------------------------------------------------------------------------------ */

static struct attention attention_of(const struct sifr_call *call, const struct sifr_attention *a)
{
    return (struct attention)OPS_HEADS(call->batch, call->tokens, a->heads, a->kv_heads,
                                       a->head_width);
}

void sifr_attention(const struct sifr_call *call, const struct sifr_attention *a)
{
    ops_attention(ops_of(call), stream_of(call), attention_of(call, a), a->qkv, a->out, a->lse,
                  a->scratch);
}

void sifr_attention_backward(const struct sifr_call *call, const struct sifr_attention *a)
{
    ops_attention_backward(ops_of(call), stream_of(call), attention_of(call, a),
                           &(struct attention_backward){.rope = a->rope,
                                                        .qkv = a->qkv,
                                                        .out = a->out,
                                                        .lse = a->lse,
                                                        .dout = a->dout,
                                                        .dqkv = a->dqkv,
                                                        .dbias = a->dbias,
                                                        .scratch = a->scratch});
}

int64_t sifr_attention_scratch(const struct sifr_context *context, int64_t batch, int64_t tokens,
                               int64_t heads, int64_t kv_heads, int64_t head_width)
{
    return (int64_t)ops_attention_scratch(
        context->session.ops,
        (struct attention)OPS_HEADS(batch, tokens, heads, kv_heads, head_width));
}

void sifr_rope(const struct sifr_call *call, int64_t heads, int64_t kv_heads, int64_t head_width,
               const float *table, void *qkv)
{
    struct attention a = OPS_HEADS(call->batch, call->tokens, heads, kv_heads, head_width);
    ops_rope(ops_of(call), stream_of(call), a, table, (struct past){0}, false, qkv);
}

void sifr_rope_table(int64_t tokens, int64_t head_width, double base, float *table)
{
    int64_t half = head_width / 2;
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t i = 0; i < half; i++) {
            double angle = (double)t * pow(base, -2.0 * (double)i / (double)head_width);
            table[2 * (t * half + i)] = (float)cos(angle);
            table[2 * (t * half + i) + 1] = (float)sin(angle);
        }
}

/* --- activations ---------------------------------------------------------------------------- */

void sifr_swiglu(const struct sifr_call *call, int64_t rows, int64_t ff, const void *gate_up,
                 void *y)
{
    ops_swiglu(ops_of(call), stream_of(call), rows, ff, gate_up, y);
}

void sifr_swiglu_backward(const struct sifr_call *call, int64_t rows, int64_t ff,
                          const void *gate_up, const void *dy, void *dgate_up)
{
    ops_swiglu_backward(ops_of(call), stream_of(call), rows, ff, gate_up, dy, dgate_up, NULL);
}

/* --- loss ----------------------------------------------------------------------------------- */

static void losses_of(const struct sifr_call *call, int64_t rows, int64_t vocab,
                      const int32_t *labels, void *logits, double *losses)
{
    struct step_scalars scalars = {.loss_scale = call->loss_scale};
    ops_cross_entropy(ops_of(call), stream_of(call), (struct logits){.vocab = vocab}, rows,
                      &(struct cross_entropy){.labels = labels,
                                              .gradient = call->pass == SIFR_LOSS,
                                              .scalars = &scalars,
                                              .logits = logits,
                                              .losses = losses});
}

void sifr_cross_entropy(const struct sifr_call *call, int64_t vocab, const int32_t *labels,
                        void *logits, double *losses)
{
    losses_of(call, call->rows, vocab, labels, logits, losses);
    ops_sum(ops_of(call), stream_of(call), call->rows, losses, call->loss);
}

void sifr_linear_cross_entropy(const struct sifr_call *call, int64_t in, int64_t vocab,
                               const void *x, const void *w, const int32_t *labels, void *logits,
                               double *losses, void *dx, void *dw)
{
    struct ops *ops = ops_of(call);
    struct stream *stream = stream_of(call);
    struct linear l = {in, vocab, .out_in = true};
    size_t row = (size_t)in * dtype_bytes(ops->type);
    int64_t chunk = head_chunk_rows(ops, call->rows, vocab);
    for (int64_t first = 0; first < call->rows; first += chunk) {
        int64_t rows = call->rows - first < chunk ? call->rows - first : chunk;
        const void *some = (const char *)x + (size_t)first * row;
        ops_linear(ops, stream, l, rows, some, w, NULL, logits);
        losses_of(call, rows, vocab, labels + first, logits, losses + first);
        if (call->pass != SIFR_LOSS)
            continue;
        ops_linear_dx(ops, stream, l, rows, logits, w, (char *)dx + (size_t)first * row);
        ops_linear_dw(ops, stream, l, rows,
                      &(struct linear_dw){.x = some, .dy = logits, .add = first > 0, .dw = dw});
    }
    ops_sum(ops, stream, call->rows, losses, call->loss);
}

int64_t sifr_logits_count(const struct sifr_context *context, int64_t rows, int64_t vocab)
{
    return head_chunk_rows(context->session.ops, rows, vocab) * vocab;
}
