/* ops_attention -- the faces of norms of heads, rotary positions, attention. */
#include "ops/ops_face.h"

/* --- norms of heads ------------------------------------------------------------------------- */

static void check_heads(struct head_rms n)
{
    CHECK_LT(0, n.rows);
    CHECK_LT(0, n.heads);
    CHECK_LT(0, n.kv_heads);
    CHECK_LT(0, n.head_width);
    CHECK_EQ(n.whole % n.heads, 0);
    CHECK(n.eps >= 0);
}

static struct ops_case head_case(const char *op, struct head_rms n)
{
    return (struct ops_case){.op = op,
                             .attention = OPS_HEADS(1, n.rows, n.heads, n.kv_heads, n.head_width),
                             .width = n.whole};
}

void ops_head_sums(struct ops *ops, struct stream *stream, struct head_rms n,
                   const struct head_sums *a)
{
    struct ops_case c = head_case("head_sums", n);
    check_heads(n);
    CHECK(a->x && a->sums);
    CHECK(a->dy == NULL || (a->q && a->k));
    c.branch = a->dy != NULL;
    if (ops_must_run(ops, stream, &c))
        ops->backend->head_sums(ops, stream, n, a);
}

void ops_head_rms(struct ops *ops, struct stream *stream, struct head_rms n,
                  const struct head_rms_forward *a)
{
    struct ops_case c = head_case("head_rms", n);
    check_heads(n);
    CHECK(a->q && a->k && a->squares && a->qkv);
    if (ops_must_run(ops, stream, &c))
        ops->backend->head_rms(ops, stream, n, a);
}

void ops_head_rms_backward(struct ops *ops, struct stream *stream, struct head_rms n,
                           const struct head_rms_backward *a)
{
    struct ops_case c = head_case("head_rms_backward", n);
    check_heads(n);
    CHECK(a->q && a->k && a->squares && a->dots && a->kept && a->dqkv && a->scratch);
    if (ops_must_run(ops, stream, &c))
        ops->backend->head_rms_backward(ops, stream, n, a);
}

size_t ops_head_rms_scratch(const struct ops *ops, struct head_rms n)
{
    check_heads(n);
    return ops->backend->head_rms_scratch(ops, n);
}

/* --- attention ------------------------------------------------------------------------------ */

static void check_attention(struct attention a)
{
    CHECK_LT(0, a.batch);
    CHECK_LT(0, a.tokens);
    CHECK_LT(0, a.heads);
    CHECK_LT(0, a.kv_heads);
    CHECK_LT(0, a.head_width);
    CHECK_EQ(a.heads % a.kv_heads, 0);
    CHECK_LE(0, a.window);
    CHECK(a.scale >= 0 && a.cap >= 0);
    CHECK(a.rotary >= 0 && a.rotary <= a.head_width);
}

/* The shape with its rotary columns. */
static struct attention with_rotary(struct attention a)
{
    a.rotary = a.rotary ? a.rotary : a.head_width;
    CHECK_EQ(a.rotary % 2, 0);
    return a;
}

/* A window at least as long as the sequence hides nothing: such calls use the kernels without. */
static struct attention whole_window(struct attention a)
{
    check_attention(a);
    a.window = a.window < a.tokens ? a.window : 0;
    return a;
}

void ops_rope(struct ops *ops, struct stream *stream, struct attention a, const float *table,
              struct past past, bool inverse, void *qkv)
{
    check_attention(a);
    a = with_rotary(a);
    CHECK_LE(0, past.count);
    CHECK(table && qkv);
    if (ops_must_run(ops, stream,
                     CASE(inverse ? "rope_inverse" : "rope", .attention = a, .first = past.count)))
        ops->backend->rope(ops, stream, a, table, ops_resolve_past(ops, past), inverse, qkv);
}

void ops_attention(struct ops *ops, struct stream *stream, struct attention a, const void *qkv,
                   void *out, float *lse, void *scratch)
{
    a = whole_window(a);
    CHECK(qkv && out && lse && scratch);
    if (ops_must_run(ops, stream, CASE("attention", .attention = a)))
        ops->backend->attention(ops, stream, a, qkv, out, lse, scratch);
}

void ops_attention_backward(struct ops *ops, struct stream *stream, struct attention a,
                            const struct attention_backward *b)
{
    a = whole_window(a);
    a = b->rope ? with_rotary(a) : a;
    CHECK(b->qkv && b->out && b->lse && b->dout && b->dqkv && b->scratch);
    if (ops_must_run(ops, stream,
                     CASE(b->rope ? "attention_backward_rope" : "attention_backward",
                          .attention = a, .bias = b->dbias != NULL)))
        ops->backend->attention_backward(ops, stream, a, b);
}

size_t ops_attention_scratch(const struct ops *ops, struct attention a)
{
    a = whole_window(a);
    return ops->backend->attention_scratch(ops, a);
}

void ops_attention_cached(struct ops *ops, struct stream *stream, struct attention a,
                          const struct attention_cached *c)
{
    check_attention(a);
    CHECK_LE(0, c->past.count);
    CHECK_LE(c->past.count + a.tokens, c->room);
    CHECK(c->qkv && c->cache_k && c->cache_v && c->out && c->scratch);
    if (!ops_must_run(
            ops, stream,
            CASE("attention_cached", .attention = a, .past = c->past.count, .room = c->room)))
        return;
    struct attention_cached call = *c;
    call.past = ops_resolve_past(ops, c->past);
    ops->backend->attention_cached(ops, stream, a, &call);
}
