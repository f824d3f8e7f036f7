/* ops_loss -- the faces of embedding, logits and loss. */
#include "ops/ops_face.h"

static void check_embedding(struct embedding e)
{
    CHECK_LT(0, e.batch);
    CHECK_LT(0, e.tokens);
    CHECK_LT(0, e.width);
    CHECK_LT(0, e.vocab);
    CHECK_LE(0, e.positions);
    CHECK_LE(0, e.first_id);
    CHECK(e.id_count == 0 ? e.first_id == 0 : e.first_id + e.vocab <= e.id_count);
}

/* The shape for a case: without wpe there are no positions. */
static struct embedding case_embedding(struct embedding e, const void *wpe)
{
    e.positions = wpe != NULL ? e.positions : 0;
    return e;
}

void ops_embedding(struct ops *ops, struct stream *stream, struct embedding e,
                   const int32_t *tokens, const void *wte, const void *wpe, struct past past,
                   void *out)
{
    check_embedding(e);
    CHECK(tokens && wte && out);
    CHECK_LE(0, past.count);
    if (wpe != NULL)
        CHECK_LE(past.count + e.tokens, e.positions);
    if (ops_must_run(ops, stream,
                     CASE("embedding", .embedding = case_embedding(e, wpe), .first = past.count)))
        ops->backend->embedding(ops, stream, e, tokens, wte, wpe, ops_resolve_past(ops, past), out);
}

void ops_embedding_backward(struct ops *ops, struct stream *stream, struct embedding e,
                            const int32_t *tokens, const void *dout, void *dwte, void *dwpe,
                            void *scratch)
{
    check_embedding(e);
    CHECK(tokens && dout && scratch);
    if (!dwte && !dwpe)
        return;
    if (dwpe != NULL)
        CHECK_LE(e.tokens, e.positions);
    if (ops_must_run(ops, stream, CASE("embedding_backward", .embedding = case_embedding(e, dwpe))))
        ops->backend->embedding_backward(ops, stream, e, tokens, dout, dwte, dwpe, scratch);
}

size_t ops_embedding_scratch(const struct ops *ops, struct embedding e)
{
    check_embedding(e);
    return ops->backend->embedding_scratch(ops, e);
}

/* Returns the shape with its stride. */
static struct logits check_logits(struct logits l, int64_t rows)
{
    l.stride = l.stride ? l.stride : l.vocab;
    CHECK_LT(0, rows);
    CHECK_LT(0, l.vocab);
    CHECK_LE(l.vocab, l.stride);
    CHECK_LE(0, l.first_id);
    CHECK(l.cap >= 0);
    return l;
}

static void check_cross_entropy(const struct cross_entropy *a)
{
    CHECK(a->labels && a->logits && a->losses);
    CHECK(a->scalars != NULL || !a->gradient);
}

void ops_cross_entropy(struct ops *ops, struct stream *stream, struct logits l, int64_t rows,
                       const struct cross_entropy *a)
{
    l = check_logits(l, rows);
    CHECK_EQ(l.first_id, 0);
    check_cross_entropy(a);
    if (ops_must_run(ops, stream,
                     CASE(a->gradient ? "cross_entropy_gradient" : "cross_entropy", .rows = rows,
                          .width = l.vocab, .stride = l.stride, .cap = l.cap)))
        ops->backend->cross_entropy(ops, stream, l, rows, a);
}

void ops_cross_entropy_part(struct ops *ops, struct stream *stream, struct logits l, int64_t rows,
                            const int32_t *labels, const void *logits, double *parts)
{
    l = check_logits(l, rows);
    CHECK(labels && logits && parts);
    if (ops_must_run(ops, stream,
                     CASE("cross_entropy_part", .rows = rows, .width = l.vocab, .stride = l.stride,
                          .cap = l.cap)))
        ops->backend->cross_entropy_part(ops, stream, l, rows, labels, logits, parts);
}

void ops_cross_entropy_join(struct ops *ops, struct stream *stream, struct logits l, int64_t rows,
                            int ranks, const double *parts, const struct cross_entropy *a)
{
    l = check_logits(l, rows);
    check_cross_entropy(a);
    CHECK_LT(0, ranks);
    CHECK(parts);
    if (ops_must_run(ops, stream,
                     CASE("cross_entropy_join", .rows = rows, .width = l.vocab, .stride = l.stride,
                          .cap = l.cap)))
        ops->backend->cross_entropy_join(ops, stream, l, rows, ranks, parts, a);
}

void ops_softcap(struct ops *ops, struct stream *stream, int64_t count, double cap, void *x)
{
    CHECK_LE(0, count);
    CHECK(cap > 0);
    CHECK(count == 0 || x);
    if (count > 0 && ops_must_run(ops, stream, CASE("softcap", .count = count, .cap = cap)))
        ops->backend->softcap(ops, stream, count, cap, x);
}

void ops_sum(struct ops *ops, struct stream *stream, int64_t count, const double *values,
             double *sum)
{
    CHECK_LE(0, count);
    CHECK((count == 0 || values) && sum);
    if (ops_must_run(ops, stream, CASE("sum", .count = count)))
        ops->backend->sum(ops, stream, count, values, sum);
}

void ops_tree_sums(struct ops *ops, struct stream *stream, int64_t count, int level,
                   const double *values, double *sums)
{
    CHECK_LE(0, count);
    CHECK(level >= 0 && level < 63);
    CHECK_EQ(count & (((int64_t)1 << level) - 1), 0);
    CHECK(count == 0 || (values && sums));
    if (count > 0 && ops_must_run(ops, stream, CASE("tree_sums", .count = count, .level = level)))
        ops->backend->tree_sums(ops, stream, count, level, values, sums);
}
