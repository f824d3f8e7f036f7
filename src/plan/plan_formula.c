/* plan_formula -- evaluates the closed formulas (formula.h) for a rank of a plan. */
#include "plan/plan.h"

static double rows_of(const struct plan_request *request)
{
    return (double)(request->engine.micro_batch * request->engine.tokens);
}

/* Calls among the rank's TP group, and the partial gradients it sends. */
static void fill_tp_group(const struct plan_request *request, const struct plan_rank *rank,
                          struct volume *volume)
{
    const struct spread_counts *part = &rank->part;
    const struct layers layers =
        formula_layers(part, &request->parallel, request->engine.recompute);
    volume->tp = plan_tp(request);
    volume->meetings = formula_meetings(&layers);
    volume->loss_rows = part->last ? rows_of(request) : 0.0;
    volume->partial = part->partial;
    volume->norms = part->first && rank->roster.rank == roster_reduce_shard_rank(&rank->roster, 0);
}

double plan_sent_formula(const struct plan_request *request, int64_t rounds,
                         const struct plan_rank *rank, int stage, enum traffic_purpose purpose)
{
    const struct zero_config *store = &request->zero;
    double stream =
        rows_of(request) * (double)request->model.width * (double)dtype_bytes(request->compute);
    bool rows = request->parallel.sequence && plan_tp(request) > 1;
    struct volume volume = {.parameters = (double)rank->part.parameters,
                            .rounds = rounds,
                            .reductions = store->local ? 1 : rounds,
                            .value = (double)dtype_bytes(store->type),
                            .total = (double)dtype_bytes(store->sum_type),
                            .borrowed = (double)rank->part.borrowed,
                            .lent = (double)rank->part.lent,
                            .messages = spread_messages(&request->parallel, rank->p),
                            .message_bytes = rows ? stream / plan_tp(request) : stream,
                            .stream_bytes = stream};
    fill_tp_group(request, rank, &volume);
    return formula_sent(&rank->roster, stage, &volume, purpose);
}

double plan_block_formula(const struct plan_request *request, int recompute)
{
    const struct activation_shape shape = {.tokens = (double)request->engine.tokens,
                                           .batch = (double)request->engine.micro_batch,
                                           .width = (double)request->model.width,
                                           .heads = (double)request->model.heads,
                                           .value = (double)dtype_bytes(request->compute),
                                           .tp = plan_tp(request),
                                           .sequence = request->parallel.sequence};
    return formula_activations(&shape, recompute);
}
