/* ops_layers -- the faces of linear layers, norms of rows, activations. */
#include "ops/ops_face.h"

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
    if (ops_must_run(ops, stream, CASE("linear", .rows = rows, .linear = l, .bias = bias != NULL)))
        ops->backend->linear(ops, stream, l, rows, x, w, bias, y);
}

void ops_linear_gelu(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                     const struct linear_gelu *a)
{
    l = check_linear(l, rows);
    CHECK_EQ(l.y_stride, l.out);
    CHECK(a->x && a->w && a->pre && a->y);
    if (ops_must_run(ops, stream,
                     CASE("linear_gelu", .rows = rows, .linear = l, .bias = a->bias != NULL)))
        ops->backend->linear_gelu(ops, stream, l, rows, a);
}

bool ops_gelu_remakes(const struct ops *ops)
{
    const struct ops_backend *backend = ops->backend;
    return !backend->gelu_of_sums || !backend->gelu_of_sums(ops);
}

void ops_linear_dx(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                   const void *dy, const void *w, void *dx)
{
    l = check_linear(l, rows);
    CHECK(dy && w && dx);
    if (ops_must_run(ops, stream, CASE("linear_dx", .rows = rows, .linear = l)))
        ops->backend->linear_dx(ops, stream, l, rows, dy, w, dx);
}

void ops_linear_dx_dgelu(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                         const struct linear_dx_dgelu *a)
{
    l = check_linear(l, rows);
    CHECK(a->dy && a->w && a->pre && a->dpre);
    if (ops_must_run(ops, stream,
                     CASE("linear_dx_dgelu", .rows = rows, .linear = l, .bias = a->dbias != NULL)))
        ops->backend->linear_dx_dgelu(ops, stream, l, rows, a);
}

/* Whether the back end may compute a product with SwiGLU in one piece. */
static bool takes_swiglu(const struct ops *ops, int64_t rows, int64_t depth, int64_t ff,
                         bool backward)
{
    const struct ops_backend *backend = ops->backend;
    return backend->takes_swiglu && backend->takes_swiglu(ops, rows, depth, ff, backward);
}

void ops_linear_swiglu(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                       const struct linear_swiglu *a)
{
    l = check_linear(l, rows);
    CHECK_EQ(l.y_stride, l.out);
    CHECK_EQ(l.out % 2, 0);
    CHECK(a->x && a->w && a->gate_up);
    if (!a->bias && takes_swiglu(ops, rows, l.in, l.out / 2, false) &&
        (!ops_must_run(ops, stream,
                       CASE("linear_swiglu", .rows = rows, .linear = l, .act = a->act != NULL)) ||
         ops->backend->linear_swiglu(ops, stream, l, rows, a)))
        return;
    ops_linear(ops, stream, l, rows, a->x, a->w, a->bias, a->gate_up);
    if (a->act)
        ops_swiglu(ops, stream, rows, l.out / 2, a->gate_up, a->act);
}

void ops_linear_dx_dswiglu(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                           const struct linear_dx_dswiglu *a)
{
    l = check_linear(l, rows);
    CHECK(a->dy && a->w && a->gate_up && a->dgate_up && a->act);
    if (l.y_stride == l.out && takes_swiglu(ops, rows, l.out, l.in, true) &&
        (!ops_must_run(ops, stream, CASE("linear_dx_dswiglu", .rows = rows, .linear = l)) ||
         ops->backend->linear_dx_dswiglu(ops, stream, l, rows, a)))
        return;
    ops_linear_dx(ops, stream, l, rows, a->dy, a->w, a->act);
    ops_swiglu_backward(ops, stream, rows, l.in, a->gate_up, a->act, a->dgate_up, a->act);
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
    if (ops_must_run(ops, stream,
                     CASE("linear_dw", .rows = rows, .linear = priced, .add = a->add,
                          .bias = a->dbias != NULL)))
        ops->backend->linear_dw(ops, stream, l, rows, a);
}

bool ops_sums_dw(const struct ops *ops, struct linear l, int64_t rows, enum dtype type,
                 bool several)
{
    const struct ops_backend *backend = ops->backend;
    return backend->sums_dw && backend->sums_dw(ops, check_linear(l, rows), rows, type, several);
}

/* By separate calls */
static void sum_after(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                      const struct linear_dw_sum *a)
{
    CHECK(a->type == DTYPE_F32 || a->type == ops->type);
    ops_linear_dw(
        ops, stream, l, rows,
        &(struct linear_dw){
            .x = a->x, .dy = a->dy, .several = a->several, .dw = a->dw, .dbias = a->dbias});
    if (a->add)
        device_accumulate(stream, a->sum, DTYPE_F32, a->dw, ops->type, l.in * l.out);
    else
        ops_cast(ops, stream, a->sum, DTYPE_F32, a->dw, ops->type, l.in * l.out);
}

void ops_linear_dw_sum(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                       const struct linear_dw_sum *a)
{
    l = check_linear(l, rows);
    CHECK(a->x && a->dy && a->sum && a->dw);
    const struct ops_backend *backend = ops->backend;
    if (!backend->linear_dw_sum ||
        (backend->sums_dw && !ops_sums_dw(ops, l, rows, a->type, a->several))) {
        sum_after(ops, stream, l, rows, a);
        return;
    }
    bool runs = ops_must_run(
        ops, stream, CASE("linear_dw", .rows = rows, .linear = l, .bias = a->dbias != NULL));
    if (backend->on_host) /* the price of reading and writing the sum; a GPU does so meanwhile */
        runs = ops_must_run(ops, stream, CASE("cast", .count = l.in * l.out)) && runs;
    if (runs)
        backend->linear_dw_sum(ops, stream, l, rows, a);
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
    if (ops_must_run(ops, stream,
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
    if (ops_must_run(ops, stream,
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
    if (ops_must_run(ops, stream,
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
    if (count > 0 && ops_must_run(ops, stream, CASE("add", .count = count)))
        ops->backend->add(ops, stream, count, a, b, sum);
}

/* --- activations ---------------------------------------------------------------------------- */

void ops_gelu(struct ops *ops, struct stream *stream, int64_t count, const void *pre, void *y)
{
    CHECK_LE(0, count);
    CHECK(count == 0 || (pre && y));
    if (count > 0 && ops_must_run(ops, stream, CASE("gelu", .count = count)))
        ops->backend->gelu(ops, stream, count, pre, y);
}

void ops_gelu_backward(struct ops *ops, struct stream *stream, int64_t count, const void *pre,
                       const void *dy, void *dpre)
{
    CHECK_LE(0, count);
    CHECK(count == 0 || (pre && dy && dpre));
    if (count > 0 && ops_must_run(ops, stream, CASE("gelu_backward", .count = count)))
        ops->backend->gelu_backward(ops, stream, count, pre, dy, dpre);
}

void ops_gelu_exact(struct ops *ops, struct stream *stream, int64_t count, const void *pre, void *y)
{
    CHECK_LE(0, count);
    CHECK(count == 0 || (pre && y));
    if (count > 0 && ops_must_run(ops, stream, CASE("gelu_exact", .count = count)))
        ops->backend->gelu_exact(ops, stream, count, pre, y);
}

void ops_gelu_exact_backward(struct ops *ops, struct stream *stream, int64_t count, const void *pre,
                             const void *dy, void *dpre)
{
    CHECK_LE(0, count);
    CHECK(count == 0 || (pre && dy && dpre));
    if (count > 0 && ops_must_run(ops, stream, CASE("gelu_exact_backward", .count = count)))
        ops->backend->gelu_exact_backward(ops, stream, count, pre, dy, dpre);
}

void ops_swiglu(struct ops *ops, struct stream *stream, int64_t rows, int64_t ff,
                const void *gate_up, void *y)
{
    CHECK_LT(0, rows);
    CHECK_LT(0, ff);
    CHECK(gate_up && y);
    if (ops_must_run(ops, stream, CASE("swiglu", .rows = rows, .width = ff)))
        ops->backend->swiglu(ops, stream, rows, ff, gate_up, y);
}

void ops_swiglu_backward(struct ops *ops, struct stream *stream, int64_t rows, int64_t ff,
                         const void *gate_up, const void *dy, void *dgate_up, void *act)
{
    CHECK_LT(0, rows);
    CHECK_LT(0, ff);
    CHECK(gate_up && dy && dgate_up);
    if (ops_must_run(ops, stream,
                     CASE("swiglu_backward", .rows = rows, .width = ff, .act = act != NULL)))
        ops->backend->swiglu_backward(ops, stream, rows, ff, gate_up, dy, dgate_up, act);
}

void ops_geglu(struct ops *ops, struct stream *stream, int64_t rows, int64_t ff,
               const void *gate_up, void *y)
{
    CHECK_LT(0, rows);
    CHECK_LT(0, ff);
    CHECK(gate_up && y);
    if (ops_must_run(ops, stream, CASE("geglu", .rows = rows, .width = ff)))
        ops->backend->geglu(ops, stream, rows, ff, gate_up, y);
}

void ops_geglu_backward(struct ops *ops, struct stream *stream, int64_t rows, int64_t ff,
                        const void *gate_up, const void *dy, void *dgate_up, void *act)
{
    CHECK_LT(0, rows);
    CHECK_LT(0, ff);
    CHECK(gate_up && dy && dgate_up);
    if (ops_must_run(ops, stream,
                     CASE("geglu_backward", .rows = rows, .width = ff, .act = act != NULL)))
        ops->backend->geglu_backward(ops, stream, rows, ff, gate_up, dy, dgate_up, act);
}

void ops_scale(struct ops *ops, struct stream *stream, int64_t count, double factor, void *x)
{
    CHECK_LE(0, count);
    CHECK(count == 0 || x);
    if (count > 0 && ops_must_run(ops, stream, CASE("scale", .count = count)))
        ops->backend->scale(ops, stream, count, factor, x);
}
