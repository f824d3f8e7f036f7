/* ops -- the faces: back ends by name, argument checks, and the call into the table.
 *
 * A face checks what is cheap to check (shapes, missing pointers, the stream's device), also on a
 * dry device, so that `sifr plan` detects a wrong shape too. It then does nothing on a stream that
 * has failed, and on a dry device it only spends time if there is a meter. Back ends check values
 * (tokens, labels).
 */
#include "ops/ops.h"
#include <stdio.h>
#include <string.h>
#include "base/plugin.h"
#include "ops/ops_impl.h"

/* The back ends, compiled in or in a plugin. Each table starts as a copy of ref's. */
static const struct {
    const char *name;
    ops_fill_fn *fill; /* NULL: ref itself, or from the plugin of that name */
    const char *entry; /* of the plugin, or NULL */
} backends[] = {
    {"ref", NULL, NULL},
    {"cpu", ops_cpu_fill, NULL},
    {"cuda", NULL, OPS_CUDA_ENTRY},
};
enum { BACKEND_COUNT = sizeof backends / sizeof backends[0] };

struct ops_with_table {
    struct ops base;
    struct ops_backend table;
};

static enum status fail_unknown(struct env *env, const char *name)
{
    char known[128] = "";
    size_t used = 0;
    for (int i = 0; i < BACKEND_COUNT; i++) {
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i == 0 ? "" : ", ",
                                 backends[i].name);
        CHECK_LT(used, sizeof known);
    }
    return FAIL(env, CONFIG, "unknown ops back end '%s'; use one of: %s", name, known);
}

static bool is_real(enum dtype type)
{
    return type == DTYPE_F32 || type == DTYPE_BF16 || type == DTYPE_F16 || type == DTYPE_F64;
}

static bool is_f32_or_narrower(enum dtype type)
{
    return is_real(type) && type != DTYPE_F64;
}

static enum status fill_table(const struct device *device, const char *name, enum dtype type,
                              struct ops_backend *table)
{
    struct env *env = device_env(device);
    int found = 0;
    while (found < BACKEND_COUNT && strcmp(backends[found].name, name) != 0)
        found++;
    if (found == BACKEND_COUNT)
        return fail_unknown(env, name);
    ops_fill_fn *fill = backends[found].fill;
    if (backends[found].entry != NULL)
        TRY(plugin_find(env, name, backends[found].entry, &fill));
    ops_ref_fill(table, is_real(type) ? type : DTYPE_F32);
    if (fill != NULL)
        fill(table);
    if (!table->supports(type))
        return FAIL(env, CONFIG, "ops back end '%s' does not support %s", name, dtype_name(type));
    if (!device_is_dry(device) && device_on_host(device) != table->on_host)
        return FAIL(env, CONFIG, "ops back end '%s' does not run on the device '%s'", table->name,
                    device_backend(device));
    return STATUS_OK;
}

enum status ops_create(struct device *device, const char *backend, enum dtype type,
                       struct ops **ops)
{
    enum status st;
    struct env *env = device_env(device);
    struct ops_with_table *o;
    TRY(mem_alloc(env, MEM_OTHER, "ops", sizeof *o, &o));
    TRY_OR(undo_self, fill_table(device, backend, type, &o->table));
    o->base = (struct ops){.backend = &o->table,
                           .device = device,
                           .type = type,
                           .products = DTYPE_F32,
                           .threads = env->threads};
    if (o->table.workspace_bytes > 0)
        TRY_OR(undo_self, device_alloc(device, MEM_SCRATCH, "library workspace",
                                       o->table.workspace_bytes, &o->base.workspace));
    if (o->table.open != NULL && !device_is_dry(device))
        TRY_OR(undo_workspace, o->table.open(&o->base));
    *ops = &o->base;
    return STATUS_OK;
undo_workspace:
    device_free(device, o->base.workspace);
undo_self:
    mem_free(env, o);
    return st;
}

void ops_be_fast(struct ops *ops)
{
    ops->fast = true;
}

void ops_multiply_in(struct ops *ops, enum dtype type)
{
    ops->products = type;
}

void ops_destroy(struct ops *ops)
{
    if (ops == NULL)
        return;
    if (ops->backend->close != NULL && !device_is_dry(ops->device))
        ops->backend->close(ops);
    device_free(ops->device, ops->workspace);
    mem_free(device_env(ops->device), ops);
}

int64_t ops_chunk_logits(const struct ops *ops)
{
    return ops->backend->chunk_logits;
}

int64_t ops_row_stride(const struct ops *ops, int64_t width)
{
    int64_t unit = ops->backend->row_bytes / (int64_t)dtype_bytes(ops->type);
    return unit > 1 ? (width + unit - 1) / unit * unit : width;
}

void ops_spend(struct ops *ops, struct stream *stream, const struct ops_case *c)
{
    if (ops->meter != NULL && !stream_failed(stream))
        ops->meter->spend(ops, stream, c);
}

/* Returns true if the back end must run the call. On a dry device the call's time is spent instead,
 * and on a stream that has failed nothing is done. */
static bool run_or_spend(struct ops *ops, struct stream *stream, const struct ops_case *c)
{
    CHECK(stream_device(stream) == ops->device);
    if (!device_is_dry(ops->device))
        return !stream_failed(stream);
    ops_spend(ops, stream, c);
    return false;
}

#define CASE(...) (&(const struct ops_case){__VA_ARGS__})

/* --- linear --------------------------------------------------------------------------------- */

/* Returns the shape with its stride. */
static struct linear check_linear(struct linear l, int64_t rows)
{
    l.y_stride = l.y_stride ? l.y_stride : l.out;
    CHECK_LT(0, l.in);
    CHECK_LT(0, l.out);
    CHECK_LE(l.out, l.y_stride);
    CHECK_LT(0, rows);
    return l;
}

void ops_linear(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                const void *x, const void *w, const void *bias, void *y)
{
    l = check_linear(l, rows);
    CHECK(x && w && y);
    if (run_or_spend(ops, stream, CASE("linear", .rows = rows, .linear = l, .bias = bias != NULL)))
        ops->backend->linear(ops, stream, l, rows, x, w, bias, y);
}

void ops_linear_gelu(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                     const struct linear_gelu *a)
{
    l = check_linear(l, rows);
    CHECK_EQ(l.y_stride, l.out);
    CHECK(a->x && a->w && a->pre && a->y);
    if (run_or_spend(ops, stream,
                     CASE("linear_gelu", .rows = rows, .linear = l, .bias = a->bias != NULL)))
        ops->backend->linear_gelu(ops, stream, l, rows, a);
}

bool ops_gelu_remakes(const struct ops *ops)
{
    return !ops->backend->gelu_of_sums;
}

void ops_linear_dx(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                   const void *dy, const void *w, void *dx)
{
    l = check_linear(l, rows);
    CHECK(dy && w && dx);
    if (run_or_spend(ops, stream, CASE("linear_dx", .rows = rows, .linear = l)))
        ops->backend->linear_dx(ops, stream, l, rows, dy, w, dx);
}

void ops_linear_dx_dgelu(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                         const struct linear_dx_dgelu *a)
{
    l = check_linear(l, rows);
    CHECK(a->dy && a->w && a->pre && a->dpre);
    if (run_or_spend(ops, stream,
                     CASE("linear_dx_dgelu", .rows = rows, .linear = l, .bias = a->dbias != NULL)))
        ops->backend->linear_dx_dgelu(ops, stream, l, rows, a);
}

void ops_linear_dw(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                   const struct linear_dw *a)
{
    l = check_linear(l, rows);
    CHECK(a->x && a->dy);
    if (!a->dw && !a->dbias)
        return;
    struct linear priced = l;
    if (!a->dw) /* column sums: a product with one column of ones */
        priced.in = 1;
    if (run_or_spend(ops, stream,
                     CASE("linear_dw", .rows = rows, .linear = priced, .add = a->add,
                          .bias = a->dbias != NULL)))
        ops->backend->linear_dw(ops, stream, l, rows, a);
}

/* --- norms ---------------------------------------------------------------------------------- */

static void check_norm(struct norm n, int64_t rows)
{
    CHECK(n.kind == NORM_LAYER || n.kind == NORM_RMS);
    CHECK(n.eps >= 0);
    CHECK_LT(0, n.width);
    CHECK_LT(0, rows);
}

void ops_add_norm(struct ops *ops, struct stream *stream, struct norm n, int64_t rows,
                  const struct add_norm *a)
{
    check_norm(n, rows);
    CHECK(a->residual && a->weight && a->y && a->rstd);
    CHECK(a->sum != NULL || a->branch == NULL);
    CHECK(a->mean != NULL || n.kind == NORM_RMS);
    if (run_or_spend(ops, stream,
                     CASE("add_norm", .rows = rows, .norm = n, .branch = a->branch != NULL,
                          .bias = a->bias != NULL)))
        ops->backend->add_norm(ops, stream, n, rows, a);
}

void ops_norm_apply(struct ops *ops, struct stream *stream, struct norm n, int64_t rows,
                    const struct norm_apply *a)
{
    check_norm(n, rows);
    CHECK(a->sum && a->weight && a->rstd && a->y);
    CHECK(a->mean != NULL || n.kind == NORM_RMS);
    if (run_or_spend(ops, stream,
                     CASE("norm_apply", .rows = rows, .norm = n, .bias = a->bias != NULL)))
        ops->backend->norm_apply(ops, stream, n, rows, a);
}

void ops_norm_backward(struct ops *ops, struct stream *stream, struct norm n, int64_t rows,
                       const struct norm_backward *a)
{
    bool columns = a->dsum_columns != NULL || a->out_columns != NULL;
    check_norm(n, rows);
    CHECK(a->dy && a->sum && a->weight && a->rstd && a->dsum_out && a->scratch);
    CHECK(a->mean != NULL || n.kind == NORM_RMS);
    CHECK(a->dsum != NULL || !columns);
    if (run_or_spend(ops, stream,
                     CASE("norm_backward", .rows = rows, .norm = n, .branch = a->dsum != NULL,
                          .bias = a->dbias != NULL, .columns = columns)))
        ops->backend->norm_backward(ops, stream, n, rows, a);
}

size_t ops_norm_scratch(const struct ops *ops, struct norm n, int64_t rows)
{
    check_norm(n, rows);
    return ops->backend->norm_scratch(ops, n, rows);
}

void ops_add(struct ops *ops, struct stream *stream, int64_t count, const void *a, const void *b,
             void *sum)
{
    CHECK_LE(0, count);
    CHECK(count == 0 || (a && b && sum));
    if (count > 0 && run_or_spend(ops, stream, CASE("add", .count = count)))
        ops->backend->add(ops, stream, count, a, b, sum);
}

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
    if (run_or_spend(ops, stream, &c))
        ops->backend->head_sums(ops, stream, n, a);
}

void ops_head_rms(struct ops *ops, struct stream *stream, struct head_rms n,
                  const struct head_rms_forward *a)
{
    struct ops_case c = head_case("head_rms", n);
    check_heads(n);
    CHECK(a->q && a->k && a->squares && a->qkv);
    if (run_or_spend(ops, stream, &c))
        ops->backend->head_rms(ops, stream, n, a);
}

void ops_head_rms_backward(struct ops *ops, struct stream *stream, struct head_rms n,
                           const struct head_rms_backward *a)
{
    struct ops_case c = head_case("head_rms_backward", n);
    check_heads(n);
    CHECK(a->q && a->k && a->squares && a->dots && a->kept && a->dqkv && a->scratch);
    if (run_or_spend(ops, stream, &c))
        ops->backend->head_rms_backward(ops, stream, n, a);
}

size_t ops_head_rms_scratch(const struct ops *ops, struct head_rms n)
{
    check_heads(n);
    return ops->backend->head_rms_scratch(ops, n);
}

/* --- activations ---------------------------------------------------------------------------- */

void ops_gelu(struct ops *ops, struct stream *stream, int64_t count, const void *pre, void *y)
{
    CHECK_LE(0, count);
    CHECK(count == 0 || (pre && y));
    if (count > 0 && run_or_spend(ops, stream, CASE("gelu", .count = count)))
        ops->backend->gelu(ops, stream, count, pre, y);
}

void ops_gelu_backward(struct ops *ops, struct stream *stream, int64_t count, const void *pre,
                       const void *dy, void *dpre)
{
    CHECK_LE(0, count);
    CHECK(count == 0 || (pre && dy && dpre));
    if (count > 0 && run_or_spend(ops, stream, CASE("gelu_backward", .count = count)))
        ops->backend->gelu_backward(ops, stream, count, pre, dy, dpre);
}

void ops_gelu_exact(struct ops *ops, struct stream *stream, int64_t count, const void *pre, void *y)
{
    CHECK_LE(0, count);
    CHECK(count == 0 || (pre && y));
    if (count > 0 && run_or_spend(ops, stream, CASE("gelu_exact", .count = count)))
        ops->backend->gelu_exact(ops, stream, count, pre, y);
}

void ops_gelu_exact_backward(struct ops *ops, struct stream *stream, int64_t count, const void *pre,
                             const void *dy, void *dpre)
{
    CHECK_LE(0, count);
    CHECK(count == 0 || (pre && dy && dpre));
    if (count > 0 && run_or_spend(ops, stream, CASE("gelu_exact_backward", .count = count)))
        ops->backend->gelu_exact_backward(ops, stream, count, pre, dy, dpre);
}

void ops_swiglu(struct ops *ops, struct stream *stream, int64_t rows, int64_t ff,
                const void *gate_up, void *y)
{
    CHECK_LT(0, rows);
    CHECK_LT(0, ff);
    CHECK(gate_up && y);
    if (run_or_spend(ops, stream, CASE("swiglu", .rows = rows, .width = ff)))
        ops->backend->swiglu(ops, stream, rows, ff, gate_up, y);
}

void ops_swiglu_backward(struct ops *ops, struct stream *stream, int64_t rows, int64_t ff,
                         const void *gate_up, const void *dy, void *dgate_up, void *act)
{
    CHECK_LT(0, rows);
    CHECK_LT(0, ff);
    CHECK(gate_up && dy && dgate_up);
    if (run_or_spend(ops, stream,
                     CASE("swiglu_backward", .rows = rows, .width = ff, .act = act != NULL)))
        ops->backend->swiglu_backward(ops, stream, rows, ff, gate_up, dy, dgate_up, act);
}

void ops_geglu(struct ops *ops, struct stream *stream, int64_t rows, int64_t ff,
               const void *gate_up, void *y)
{
    CHECK_LT(0, rows);
    CHECK_LT(0, ff);
    CHECK(gate_up && y);
    if (run_or_spend(ops, stream, CASE("geglu", .rows = rows, .width = ff)))
        ops->backend->geglu(ops, stream, rows, ff, gate_up, y);
}

void ops_geglu_backward(struct ops *ops, struct stream *stream, int64_t rows, int64_t ff,
                        const void *gate_up, const void *dy, void *dgate_up, void *act)
{
    CHECK_LT(0, rows);
    CHECK_LT(0, ff);
    CHECK(gate_up && dy && dgate_up);
    if (run_or_spend(ops, stream,
                     CASE("geglu_backward", .rows = rows, .width = ff, .act = act != NULL)))
        ops->backend->geglu_backward(ops, stream, rows, ff, gate_up, dy, dgate_up, act);
}

void ops_scale(struct ops *ops, struct stream *stream, int64_t count, double factor, void *x)
{
    CHECK_LE(0, count);
    CHECK(count == 0 || x);
    if (count > 0 && run_or_spend(ops, stream, CASE("scale", .count = count)))
        ops->backend->scale(ops, stream, count, factor, x);
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

/* A window that no query fills is none: such calls take the same kernels as those without. */
static struct attention whole_window(struct attention a)
{
    check_attention(a);
    a.window = a.window < a.tokens ? a.window : 0;
    return a;
}

/* Host back ends run immediately, so the value in memory is read here. */
static struct past resolve_past(const struct ops *ops, struct past past)
{
    return past.at && device_on_host(ops->device) ? (struct past){.count = *past.at} : past;
}

void ops_rope(struct ops *ops, struct stream *stream, struct attention a, const float *table,
              struct past past, bool inverse, void *qkv)
{
    check_attention(a);
    a = with_rotary(a);
    CHECK_LE(0, past.count);
    CHECK(table && qkv);
    if (run_or_spend(ops, stream,
                     CASE(inverse ? "rope_inverse" : "rope", .attention = a, .first = past.count)))
        ops->backend->rope(ops, stream, a, table, resolve_past(ops, past), inverse, qkv);
}

void ops_attention(struct ops *ops, struct stream *stream, struct attention a, const void *qkv,
                   void *out, float *lse, void *scratch)
{
    a = whole_window(a);
    CHECK(qkv && out && lse && scratch);
    if (run_or_spend(ops, stream, CASE("attention", .attention = a)))
        ops->backend->attention(ops, stream, a, qkv, out, lse, scratch);
}

void ops_attention_backward(struct ops *ops, struct stream *stream, struct attention a,
                            const struct attention_backward *b)
{
    a = whole_window(a);
    a = b->rope ? with_rotary(a) : a;
    CHECK(b->qkv && b->out && b->lse && b->dout && b->dqkv && b->scratch);
    if (run_or_spend(ops, stream,
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
    if (!run_or_spend(
            ops, stream,
            CASE("attention_cached", .attention = a, .past = c->past.count, .room = c->room)))
        return;
    struct attention_cached call = *c;
    call.past = resolve_past(ops, c->past);
    ops->backend->attention_cached(ops, stream, a, &call);
}

/* --- embedding and loss --------------------------------------------------------------------- */

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
    if (run_or_spend(ops, stream,
                     CASE("embedding", .embedding = case_embedding(e, wpe), .first = past.count)))
        ops->backend->embedding(ops, stream, e, tokens, wte, wpe, resolve_past(ops, past), out);
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
    if (run_or_spend(ops, stream, CASE("embedding_backward", .embedding = case_embedding(e, dwpe))))
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
    if (run_or_spend(ops, stream,
                     CASE(a->gradient ? "cross_entropy_gradient" : "cross_entropy", .rows = rows,
                          .width = l.vocab, .stride = l.stride, .cap = l.cap)))
        ops->backend->cross_entropy(ops, stream, l, rows, a);
}

void ops_cross_entropy_part(struct ops *ops, struct stream *stream, struct logits l, int64_t rows,
                            const int32_t *labels, const void *logits, double *parts)
{
    l = check_logits(l, rows);
    CHECK(labels && logits && parts);
    if (run_or_spend(ops, stream,
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
    if (run_or_spend(ops, stream,
                     CASE("cross_entropy_join", .rows = rows, .width = l.vocab, .stride = l.stride,
                          .cap = l.cap)))
        ops->backend->cross_entropy_join(ops, stream, l, rows, ranks, parts, a);
}

void ops_softcap(struct ops *ops, struct stream *stream, int64_t count, double cap, void *x)
{
    CHECK_LE(0, count);
    CHECK(cap > 0);
    CHECK(count == 0 || x);
    if (count > 0 && run_or_spend(ops, stream, CASE("softcap", .count = count, .cap = cap)))
        ops->backend->softcap(ops, stream, count, cap, x);
}

void ops_sum(struct ops *ops, struct stream *stream, int64_t count, const double *values,
             double *sum)
{
    CHECK_LE(0, count);
    CHECK((count == 0 || values) && sum);
    if (run_or_spend(ops, stream, CASE("sum", .count = count)))
        ops->backend->sum(ops, stream, count, values, sum);
}

void ops_tree_sums(struct ops *ops, struct stream *stream, int64_t count, int level,
                   const double *values, double *sums)
{
    CHECK_LE(0, count);
    CHECK(level >= 0 && level < 63);
    CHECK_EQ(count & (((int64_t)1 << level) - 1), 0);
    CHECK(count == 0 || (values && sums));
    if (count > 0 && run_or_spend(ops, stream, CASE("tree_sums", .count = count, .level = level)))
        ops->backend->tree_sums(ops, stream, count, level, values, sums);
}

/* --- routing -------------------------------------------------------------------------------- */

static void check_routing(struct routing n, int64_t rows)
{
    CHECK_LT(0, n.in);
    CHECK_LT(0, n.groups);
    CHECK(0 < n.width && n.width <= OPS_ROUTE_WIDTH);
    CHECK_LT(0, rows);
}

void ops_mas(struct ops *ops, struct stream *stream, int64_t groups, int64_t width,
             const void *gate, void *cost)
{
    CHECK(groups > 0 && width > 0 && gate && cost);
    if (run_or_spend(ops, stream, CASE("mas", .routing = {.groups = groups, .width = width})))
        ops->backend->mas(ops, stream, groups, width, gate, cost);
}

void ops_mas_backward(struct ops *ops, struct stream *stream, int64_t groups, int64_t width,
                      const void *gate, const float *dcost, void *dgate)
{
    CHECK(groups > 0 && width > 0 && gate && dcost && dgate);
    if (run_or_spend(ops, stream,
                     CASE("mas_backward", .routing = {.groups = groups, .width = width})))
        ops->backend->mas_backward(ops, stream, groups, width, gate, dcost, dgate);
}

void ops_route(struct ops *ops, struct stream *stream, struct routing n, int64_t rows,
               const struct route *a)
{
    check_routing(n, rows);
    CHECK(a->pre && a->match && a->cost && a->logits && a->out && a->logits != a->out);
    if (run_or_spend(ops, stream, CASE("route", .rows = rows, .routing = n)))
        ops->backend->route(ops, stream, n, rows, a);
}

void ops_route_backward(struct ops *ops, struct stream *stream, struct routing n, int64_t rows,
                        const struct route_backward *a)
{
    check_routing(n, rows);
    CHECK(a->x && a->dout && a->pre && a->logits && a->dpre && a->dmatch && a->scratch);
    CHECK(a->goodness && a->active && a->dcost && a->entropy && a->dpre != a->dmatch);
    if (run_or_spend(ops, stream, CASE("route_backward", .rows = rows, .routing = n)))
        ops->backend->route_backward(ops, stream, n, rows, a);
}

size_t ops_route_scratch(const struct ops *ops, struct routing n, int64_t rows)
{
    check_routing(n, rows);
    return ops->backend->route_scratch(ops, n, rows);
}

void ops_gate_rows(struct ops *ops, struct stream *stream, enum dtype type,
                   const struct gate_rows *a)
{
    CHECK(is_f32_or_narrower(type));
    CHECK(a->first >= 0 && a->count >= 0 && a->limit > 0);
    CHECK((a->goodness != NULL) == (a->columns > 0));
    CHECK(a->count == 0 || a->x);
    if (a->count > 0 && run_or_spend(ops, stream,
                                     CASE("gate_rows", .count = a->count, .first = a->first,
                                          .width = a->columns, .from = type)))
        ops->backend->gate_rows(ops, stream, type, a);
}

/* --- flat ranges ---------------------------------------------------------------------------- */

void ops_cast(struct ops *ops, struct stream *stream, void *dst, enum dtype dst_type,
              const void *src, enum dtype src_type, int64_t count)
{
    CHECK_LE(0, count);
    CHECK(is_real(dst_type) && is_real(src_type));
    CHECK(count == 0 || (dst && src));
    if (count > 0 &&
        run_or_spend(ops, stream, CASE("cast", .count = count, .from = src_type, .to = dst_type)))
        ops->backend->cast(ops, stream, dst, dst_type, src, src_type, count);
}

void ops_square_sums(struct ops *ops, struct stream *stream, enum dtype type,
                     const struct square_range *ranges, int range_count)
{
    int64_t total = 0;
    CHECK_LE(0, range_count);
    CHECK(is_f32_or_narrower(type));
    for (int i = 0; i < range_count; i++) {
        CHECK_LE(0, ranges[i].count);
        total += ranges[i].count;
        CHECK(ranges[i].count == 0 || (ranges[i].x && ranges[i].sums));
    }
    if (range_count > 0 &&
        run_or_spend(ops, stream, CASE("square_sums", .count = total, .from = type)))
        ops->backend->square_sums(ops, stream, type, ranges, range_count);
}

void ops_find_nonfinite(struct ops *ops, struct stream *stream, enum dtype type, const void *x,
                        int64_t count, int64_t *first)
{
    CHECK_LE(0, count);
    CHECK(is_f32_or_narrower(type));
    CHECK((count == 0 || x) && first);
    if (run_or_spend(ops, stream, CASE("find_nonfinite", .count = count, .from = type, .bad = -1)))
        ops->backend->find_nonfinite(ops, stream, type, x, count, first);
}

const char *update_word(enum update_rule rule)
{
    static const char *const words[] = {[UPDATE_ADAMW] = "adamw",
                                        [UPDATE_ADAMW8] = "adamw8",
                                        [UPDATE_SGD] = "sgd",
                                        [UPDATE_MUON] = "muon",
                                        [UPDATE_APPLY] = "apply"};
    return words[rule];
}

void ops_check_segment(const struct update *update, const struct update_segment *s)
{
    enum update_rule rule = update->rule;
    CHECK_LE(0, s->count);
    CHECK(s->copy == NULL || is_real(s->copy_type));
    CHECK(is_f32_or_narrower(s->grad_type));
    if (s->count == 0)
        return;
    CHECK(s->grad && (s->param || rule == UPDATE_MUON));
    CHECK(s->m || rule == UPDATE_SGD || rule == UPDATE_APPLY);
    CHECK(s->v || (rule != UPDATE_ADAMW && rule != UPDATE_ADAMW8));
    CHECK(s->copy || rule != UPDATE_MUON);
    CHECK(rule != UPDATE_ADAMW8 || (s->m_scale && s->v_scale));
    CHECK(s->skip >= 0 && s->skip < OPS_BLOCK);
}

void ops_update(struct ops *ops, struct stream *stream, const struct update *update,
                const struct step_scalars *scalars, const struct update_segment *segments,
                int segment_count)
{
    CHECK_LE(0, segment_count);
    CHECK(scalars && (segment_count == 0 || segments));
    CHECK(stream_device(stream) == ops->device);
    if (!device_is_dry(ops->device) && !stream_failed(stream) && segment_count > 0)
        ops->backend->update(ops, stream, update, scalars, segments, segment_count);
}

/* Updates use no library, so nothing is opened. */
void ops_update_on_host(int threads, const struct update *update,
                        const struct step_scalars *scalars, const struct update_segment *segments,
                        int segment_count)
{
    struct ops_backend table;
    CHECK(threads > 0 && segment_count >= 0);
    CHECK(scalars && (segment_count == 0 || segments));
    ops_ref_fill(&table, DTYPE_F32);
    ops_cpu_fill(&table);
    struct ops cpu = {.backend = &table, .type = DTYPE_F32, .threads = threads};
    table.update(&cpu, NULL, update, scalars, segments, segment_count);
}

void ops_orthogonalize(struct ops *ops, struct stream *stream, int64_t rows, int64_t columns,
                       void *x, void *scratch)
{
    CHECK(rows > 0 && columns > 0 && x && scratch);
    if (run_or_spend(ops, stream, CASE("orthogonalize", .rows = rows, .width = columns)))
        ops->backend->orthogonalize(ops, stream, rows, columns, x, scratch);
}

size_t ops_orthogonalize_scratch(const struct ops *ops, int64_t rows, int64_t columns)
{
    return ops->backend->orthogonalize_scratch(ops, rows, columns);
}
