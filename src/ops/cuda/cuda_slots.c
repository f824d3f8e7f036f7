/* cuda_slots -- the slots of all ops except products and attention: shapes to launchers.
 *
 * A slot makes the GPU current (the caller may be any thread), calls the launcher and passes its
 * error to the stream, which keeps the first one. Scratch sizes need no GPU: `sifr plan` asks for
 * them without one.
 */
#include "ops/cuda/cuda_impl.h"

/* The structs that kernels read have the layout of their counterparts in ops.h. */
#define SAME_PLACE(a, b, field)                                                          \
    _Static_assert(offsetof(struct a, field) == offsetof(struct b, field) &&             \
                       sizeof(((struct a *)0)->field) == sizeof(((struct b *)0)->field), \
                   #a "." #field " is where " #b " has it")
SAME_PLACE(kernel_scalars, step_scalars, loss_scale);
SAME_PLACE(kernel_scalars, step_scalars, lr);
SAME_PLACE(kernel_scalars, step_scalars, correction1);
SAME_PLACE(kernel_scalars, step_scalars, correction2);
SAME_PLACE(kernel_scalars, step_scalars, grad_scale);
SAME_PLACE(kernel_segment, update_segment, count);
SAME_PLACE(kernel_segment, update_segment, param);
SAME_PLACE(kernel_segment, update_segment, copy);
SAME_PLACE(kernel_segment, update_segment, copy_type);
SAME_PLACE(kernel_segment, update_segment, grad_type);
SAME_PLACE(kernel_segment, update_segment, grad);
SAME_PLACE(kernel_segment, update_segment, m);
SAME_PLACE(kernel_segment, update_segment, v);
SAME_PLACE(kernel_segment, update_segment, lr_mul);
SAME_PLACE(kernel_segment, update_segment, decay);
SAME_PLACE(kernel_segment, update_segment, m_scale);
SAME_PLACE(kernel_segment, update_segment, v_scale);
SAME_PLACE(kernel_segment, update_segment, first);
SAME_PLACE(kernel_segment, update_segment, key);
SAME_PLACE(kernel_segment, update_segment, skip);
SAME_PLACE(kernel_segment, update_segment, scale);
_Static_assert(sizeof(struct kernel_segment) == sizeof(struct update_segment), "one stride");
SAME_PLACE(kernel_location, update_location, key);
SAME_PLACE(kernel_location, update_location, first);
SAME_PLACE(kernel_location, update_location, run);
SAME_PLACE(kernel_location, update_location, apart);
SAME_PLACE(kernel_location, update_location, start);
SAME_PLACE(kernel_location, update_location, lead);
_Static_assert(sizeof(struct kernel_location) == sizeof(struct update_location), "one stride");
SAME_PLACE(kernel_range, square_range, x);
SAME_PLACE(kernel_range, square_range, count);
SAME_PLACE(kernel_range, square_range, sums);
_Static_assert(sizeof(struct kernel_range) == sizeof(struct square_range), "one stride");
_Static_assert((int)KERNEL_ADAMW == (int)UPDATE_ADAMW && (int)KERNEL_ADAMW8 == (int)UPDATE_ADAMW8 &&
                   (int)KERNEL_SGD == (int)UPDATE_SGD && (int)KERNEL_MUON == (int)UPDATE_MUON &&
                   (int)KERNEL_APPLY == (int)UPDATE_APPLY,
               "one order of the rules");
_Static_assert((int)KERNEL_LOSS_PART == (int)OPS_LOSS_PART, "one stride");
_Static_assert((int)KERNEL_ROUTE_WIDTH == (int)OPS_ROUTE_WIDTH, "one limit");

/* Launches on the stream's GPU; `what` names the call in an error. */
#define ENQUEUE(what, launch)                                                   \
    do {                                                                        \
        cudaError_t error_ = cudaSetDevice(cuda_device_of(ops->device)->index); \
        cuda_enqueued(stream, error_ == cudaSuccess ? (launch) : error_, what); \
    } while (0)
#define ON cuda_handle(stream), ops->type

/* --- norms ---------------------------------------------------------------------------------- */

static void cuda_add_norm(struct ops *ops, struct stream *stream, struct norm n, int64_t rows,
                          const struct add_norm *a)
{
    ENQUEUE("add_norm",
            launch_add_norm(ON, n.kind == NORM_LAYER, n.width, n.eps, n.offset, rows, a->residual,
                            a->branch, a->weight, a->bias, a->sum, a->y, a->mean, a->rstd));
}

static void cuda_norm_apply(struct ops *ops, struct stream *stream, struct norm n, int64_t rows,
                            const struct norm_apply *a)
{
    ENQUEUE("norm_apply", launch_norm_apply(ON, n.kind == NORM_LAYER, n.width, n.offset, rows,
                                            a->sum, a->weight, a->bias, a->mean, a->rstd, a->y));
}

static void cuda_norm_backward(struct ops *ops, struct stream *stream, struct norm n, int64_t rows,
                               const struct norm_backward *a)
{
    struct kernel_norm_backward call = {.layer = n.kind == NORM_LAYER,
                                        .width = n.width,
                                        .rows = rows,
                                        .dy = a->dy,
                                        .sum = a->sum,
                                        .weight = a->weight,
                                        .mean = a->mean,
                                        .rstd = a->rstd,
                                        .dsum = a->dsum,
                                        .dsum_out = a->dsum_out,
                                        .dweight = a->dweight,
                                        .dbias = a->dbias,
                                        .dsum_columns = a->dsum_columns,
                                        .out_columns = a->out_columns,
                                        .scratch = a->scratch,
                                        .offset = (float)n.offset};
    ENQUEUE("norm_backward", launch_norm_backward(ON, call, cuda_ops_of(ops)->is_hopper));
}

static size_t cuda_norm_scratch(const struct ops *ops, struct norm n, int64_t rows)
{
    return kernel_norm_scratch(ops->type, n.width, rows);
}

/* --- element by element --------------------------------------------------------------------- */

static void cuda_add(struct ops *ops, struct stream *stream, int64_t count, const void *a,
                     const void *b, void *sum)
{
    ENQUEUE("add", launch_add(ON, count, a, b, sum));
}

static void cuda_gelu(struct ops *ops, struct stream *stream, int64_t count, const void *pre,
                      void *y)
{
    ENQUEUE("gelu", launch_gelu(ON, count, pre, y));
}

static void cuda_gelu_backward(struct ops *ops, struct stream *stream, int64_t count,
                               const void *pre, const void *dy, void *dpre)
{
    ENQUEUE("gelu_backward", launch_gelu_backward(ON, count, pre, dy, dpre));
}

static void cuda_swiglu(struct ops *ops, struct stream *stream, int64_t rows, int64_t ff,
                        const void *gate_up, void *y)
{
    ENQUEUE("swiglu", launch_swiglu(ON, rows, ff, gate_up, y));
}

static void cuda_swiglu_backward(struct ops *ops, struct stream *stream, int64_t rows, int64_t ff,
                                 const void *gate_up, const void *dy, void *dgate_up, void *act)
{
    ENQUEUE("swiglu_backward", launch_swiglu_backward(ON, rows, ff, gate_up, dy, dgate_up, act));
}

static struct kernel_past past_here(struct past past)
{
    return (struct kernel_past){past.count, past.at};
}

static void cuda_gelu_exact(struct ops *ops, struct stream *stream, int64_t count, const void *pre,
                            void *y)
{
    ENQUEUE("gelu_exact", launch_gelu_exact(ON, count, pre, y));
}

static void cuda_gelu_exact_backward(struct ops *ops, struct stream *stream, int64_t count,
                                     const void *pre, const void *dy, void *dpre)
{
    ENQUEUE("gelu_exact_backward", launch_gelu_exact_backward(ON, count, pre, dy, dpre));
}

static void cuda_geglu(struct ops *ops, struct stream *stream, int64_t rows, int64_t ff,
                       const void *gate_up, void *y)
{
    ENQUEUE("geglu", launch_geglu(ON, rows, ff, gate_up, y));
}

static void cuda_geglu_backward(struct ops *ops, struct stream *stream, int64_t rows, int64_t ff,
                                const void *gate_up, const void *dy, void *dgate_up, void *act)
{
    ENQUEUE("geglu_backward", launch_geglu_backward(ON, rows, ff, gate_up, dy, dgate_up, act));
}

static void cuda_scale(struct ops *ops, struct stream *stream, int64_t count, double factor,
                       void *x)
{
    ENQUEUE("scale", launch_scale(ON, count, (float)factor, x));
}

static void cuda_rope(struct ops *ops, struct stream *stream, struct attention a,
                      const float *table, struct past past, bool inverse, void *qkv)
{
    ENQUEUE("rope", launch_rope(ON, a.batch * a.tokens, a.tokens, a.heads + a.kv_heads,
                                a.head_width, a.rotary, (a.heads + 2 * a.kv_heads) * a.head_width,
                                table, past_here(past), inverse, qkv));
}

/* --- embedding and loss --------------------------------------------------------------------- */

static struct kernel_ids ids_of(struct embedding e, const int32_t *tokens)
{
    return (struct kernel_ids){tokens, e.first_id, e.vocab, .part = e.id_count > 0};
}

static void cuda_embedding(struct ops *ops, struct stream *stream, struct embedding e,
                           const int32_t *tokens, const void *wte, const void *wpe,
                           struct past past, void *out)
{
    ENQUEUE("embedding", launch_embedding(ON, e.batch * e.tokens, e.tokens, e.width,
                                          ids_of(e, tokens), wte, wpe, past_here(past), out));
}

static void cuda_embedding_backward(struct ops *ops, struct stream *stream, struct embedding e,
                                    const int32_t *tokens, const void *dout, void *dwte, void *dwpe,
                                    void *scratch)
{
    ENQUEUE("embedding_backward",
            launch_embedding_backward(ON, e.batch, e.tokens, e.width, e.positions,
                                      ids_of(e, tokens), dout, dwte, dwpe, scratch));
}

static size_t cuda_embedding_scratch(const struct ops *ops, struct embedding e)
{
    (void)ops;
    return kernel_embedding_scratch(e.batch * e.tokens, e.width, e.vocab);
}

static struct kernel_logits logits_here(struct logits l)
{
    return (struct kernel_logits){l.vocab, l.stride, l.first_id, (float)l.cap};
}

static void cuda_cross_entropy(struct ops *ops, struct stream *stream, struct logits l,
                               int64_t rows, const struct cross_entropy *a)
{
    struct kernel_logits here = logits_here(l);
    const struct kernel_scalars *on_gpu = (const struct kernel_scalars *)a->scalars;
    if (a->gradient && cuda_ops_of(ops)->is_hopper &&
        kernel_loss_hopper_takes(ops->type, here, a->logits))
        ENQUEUE("cross_entropy", launch_cross_entropy_hopper(ON, here, rows, a->labels, on_gpu,
                                                             a->logits, a->losses));
    else
        ENQUEUE("cross_entropy", launch_cross_entropy(ON, here, rows, a->labels, a->gradient,
                                                      on_gpu, a->logits, a->losses));
}

static void cuda_cross_entropy_part(struct ops *ops, struct stream *stream, struct logits l,
                                    int64_t rows, const int32_t *labels, const void *logits,
                                    double *parts)
{
    ENQUEUE("cross_entropy_part",
            launch_cross_entropy_part(ON, logits_here(l), rows, labels, logits, parts));
}

static void cuda_cross_entropy_join(struct ops *ops, struct stream *stream, struct logits l,
                                    int64_t rows, int ranks, const double *parts,
                                    const struct cross_entropy *a)
{
    ENQUEUE("cross_entropy_join",
            launch_cross_entropy_join(ON, logits_here(l), rows, a->labels, ranks, parts,
                                      a->gradient, (const struct kernel_scalars *)a->scalars,
                                      a->logits, a->losses));
}

static void cuda_softcap(struct ops *ops, struct stream *stream, int64_t count, double cap, void *x)
{
    ENQUEUE("softcap", launch_softcap(ON, count, (float)cap, x));
}

static void cuda_sum(struct ops *ops, struct stream *stream, int64_t count, const double *values,
                     double *sum)
{
    ENQUEUE("sum", launch_sum(cuda_handle(stream), count, values, sum));
}

static void cuda_tree_sums(struct ops *ops, struct stream *stream, int64_t count, int level,
                           const double *values, double *sums)
{
    ENQUEUE("tree_sums", launch_tree_sums(cuda_handle(stream), count, level, values, sums));
}

/* --- norms of heads ------------------------------------------------------------------------- */

static struct kernel_heads heads_of(struct head_rms n)
{
    return (struct kernel_heads){.rows = n.rows,
                                 .heads = n.heads,
                                 .kv_heads = n.kv_heads,
                                 .head_width = n.head_width,
                                 .whole = n.whole,
                                 .eps = (float)n.eps,
                                 .offset = (float)n.offset};
}

static void cuda_head_sums(struct ops *ops, struct stream *stream, struct head_rms n,
                           const struct head_sums *a)
{
    ENQUEUE("head_sums", launch_head_sums(ON, heads_of(n), a->x, a->dy, a->q, a->k, a->sums));
}

static void cuda_head_rms(struct ops *ops, struct stream *stream, struct head_rms n,
                          const struct head_rms_forward *a)
{
    ENQUEUE("head_rms", launch_head_rms(ON, heads_of(n), a->q, a->k, a->squares, a->kept, a->qkv));
}

static void cuda_head_rms_backward(struct ops *ops, struct stream *stream, struct head_rms n,
                                   const struct head_rms_backward *a)
{
    ENQUEUE("head_rms_backward",
            launch_head_rms_backward(ON, heads_of(n), a->q, a->k, a->squares, a->dots, a->kept,
                                     a->dqkv, a->dq, a->dk, a->scratch));
}

static size_t cuda_head_rms_scratch(const struct ops *ops, struct head_rms n)
{
    (void)ops;
    return kernel_head_scratch(heads_of(n));
}

/* --- routing -------------------------------------------------------------------------------- */

static void cuda_mas(struct ops *ops, struct stream *stream, int64_t groups, int64_t width,
                     const void *gate, void *cost)
{
    ENQUEUE("mas", launch_mas(ON, groups, width, gate, cost));
}

static void cuda_mas_backward(struct ops *ops, struct stream *stream, int64_t groups, int64_t width,
                              const void *gate, const float *dcost, void *dgate)
{
    ENQUEUE("mas_backward", launch_mas_backward(ON, groups, width, gate, dcost, dgate));
}

static void cuda_route(struct ops *ops, struct stream *stream, struct routing n, int64_t rows,
                       const struct route *a)
{
    ENQUEUE("route", launch_route(ON, rows, n.groups * n.width, ops_route_scale(n), a->pre,
                                  a->match, a->cost, a->logits, a->out));
}

static void cuda_route_backward(struct ops *ops, struct stream *stream, struct routing n,
                                int64_t rows, const struct route_backward *a)
{
    struct kernel_route call = {.in = n.in,
                                .groups = n.groups,
                                .width = n.width,
                                .rows = rows,
                                .minus = n.minus,
                                .standardise = n.standardise,
                                .scale = ops_route_scale(n),
                                .weight = a->weight,
                                .x = a->x,
                                .dout = a->dout,
                                .pre = a->pre,
                                .logits = a->logits,
                                .dpre = a->dpre,
                                .dmatch = a->dmatch,
                                .goodness = a->goodness,
                                .active = a->active,
                                .dcost = a->dcost,
                                .entropy = a->entropy,
                                .scratch = a->scratch};
    ENQUEUE("route_backward", launch_route_backward(ON, call));
}

static size_t cuda_route_scratch(const struct ops *ops, struct routing n, int64_t rows)
{
    (void)ops;
    return kernel_route_scratch(n.groups, n.width, rows);
}

static void cuda_gate_rows(struct ops *ops, struct stream *stream, enum dtype type,
                           const struct gate_rows *a)
{
    ENQUEUE("gate_rows", launch_gate_rows(cuda_handle(stream), type, a->first, a->count, a->columns,
                                          a->goodness, a->limit, a->x));
}

/* --- flat ranges ---------------------------------------------------------------------------- */

static void cuda_cast(struct ops *ops, struct stream *stream, void *dst, enum dtype dst_type,
                      const void *src, enum dtype src_type, int64_t count)
{
    ENQUEUE("cast", launch_cast(cuda_handle(stream), dst, dst_type, src, src_type, count));
}

static void cuda_square_sums(struct ops *ops, struct stream *stream, enum dtype type,
                             const struct square_range *ranges, int range_count)
{
    ENQUEUE("square_sums", launch_square_sums(cuda_handle(stream), type,
                                              (const struct kernel_range *)ranges, range_count));
}

static void cuda_find_nonfinite(struct ops *ops, struct stream *stream, enum dtype type,
                                const void *x, int64_t count, int64_t *first)
{
    ENQUEUE("find_nonfinite", launch_find_nonfinite(cuda_handle(stream), type, x, count, first));
}

/* All streams of an ops share one tile counter, so an update waits for the previous one. */
static cudaError_t adamw_by_tiles(struct ops *ops, cudaStream_t stream, struct kernel_update update,
                                  const struct kernel_scalars *scalars,
                                  const struct kernel_segment *segments, int segment_count)
{
    const struct cuda_ops *cuda = cuda_ops_of(ops);
    cudaError_t error = cudaStreamWaitEvent(stream, cuda->adamw_done, 0);
    if (error == cudaSuccess)
        error = launch_adamw_hopper(stream, update, scalars, segments, segment_count,
                                    cuda_device_of(ops->device)->processors, cuda->adamw_taken);
    return error == cudaSuccess ? cudaEventRecord(cuda->adamw_done, stream) : error;
}

static void cuda_update(struct ops *ops, struct stream *stream, const struct update *update,
                        const struct step_scalars *scalars, const struct update_segment *segments,
                        int segment_count)
{
    struct kernel_update rounded = {.rule = (enum kernel_rule)update->rule,
                                    .beta1 = (float)update->beta1,
                                    .rest1 = (float)(1 - update->beta1),
                                    .beta2 = (float)update->beta2,
                                    .rest2 = (float)(1 - update->beta2),
                                    .eps = (float)update->eps,
                                    .nesterov = update->nesterov,
                                    .number = update->number};
    const char *what = "update";
    const struct kernel_scalars *now = (const struct kernel_scalars *)scalars;
    const struct kernel_segment *list = (const struct kernel_segment *)segments;
    const struct kernel_location *locations = (const struct kernel_location *)update->locations;
    if (cuda_ops_of(ops)->is_hopper && update->rule == UPDATE_ADAMW && !locations)
        ENQUEUE(what, adamw_by_tiles(ops, cuda_handle(stream), rounded, now, list, segment_count));
    else
        ENQUEUE(what,
                launch_update(cuda_handle(stream), rounded, now, list, locations, segment_count));
}

void cuda_slots_fill(struct ops_backend *table)
{
    table->add_norm = cuda_add_norm;
    table->norm_apply = cuda_norm_apply;
    table->norm_backward = cuda_norm_backward;
    table->norm_scratch = cuda_norm_scratch;
    table->add = cuda_add;
    table->gelu = cuda_gelu;
    table->gelu_backward = cuda_gelu_backward;
    table->swiglu = cuda_swiglu;
    table->swiglu_backward = cuda_swiglu_backward;
    table->gelu_exact = cuda_gelu_exact;
    table->gelu_exact_backward = cuda_gelu_exact_backward;
    table->geglu = cuda_geglu;
    table->geglu_backward = cuda_geglu_backward;
    table->scale = cuda_scale;
    table->head_sums = cuda_head_sums;
    table->head_rms = cuda_head_rms;
    table->head_rms_backward = cuda_head_rms_backward;
    table->head_rms_scratch = cuda_head_rms_scratch;
    table->rope = cuda_rope;
    table->embedding = cuda_embedding;
    table->embedding_backward = cuda_embedding_backward;
    table->embedding_scratch = cuda_embedding_scratch;
    table->cross_entropy = cuda_cross_entropy;
    table->cross_entropy_part = cuda_cross_entropy_part;
    table->cross_entropy_join = cuda_cross_entropy_join;
    table->softcap = cuda_softcap;
    table->mas = cuda_mas;
    table->mas_backward = cuda_mas_backward;
    table->route = cuda_route;
    table->route_backward = cuda_route_backward;
    table->route_scratch = cuda_route_scratch;
    table->gate_rows = cuda_gate_rows;
    table->sum = cuda_sum;
    table->tree_sums = cuda_tree_sums;
    table->cast = cuda_cast;
    table->square_sums = cuda_square_sums;
    table->find_nonfinite = cuda_find_nonfinite;
    table->update = cuda_update;
}
