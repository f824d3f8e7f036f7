/* zero_noise -- squares of gradients, from which the gradient noise scale follows (engine.c).
 *
 * Two sums over the elements that all micro-batches of a step have in common:
 *
 *     A   the squares of each micro-batch's gradient, times the micro-batch's weight
 *     S   the squares of the step's summed gradient
 *
 * An owner sees each micro-batch's gradient when it is added (zero_exchange.c): fp32 sums and
 * squares are formed in one reading. It adds the squares to one double for every block of 64
 * elements, in the order of the micro-batches; the blocks are then added by the tree of the norm
 * (zero_norm.c). So the bits of A depend on the layout no more than those of the norm.
 *
 * S is the square of the norm, except for the pieces whose sums change before the norm is computed:
 * tied ones, gated ones. When A is known, their blocks take the squares of S; all other blocks are
 * those of the norm.
 *
 * The uses of a tied piece are never added for a single micro-batch. So each use counts as elements
 * of its own, in A and in S. Elements whose gradient is partial, and those of PHASE_META, count in
 * neither.
 *
 * With config.local an owner never sees a single micro-batch. Each worker squares its own, and the
 * blocks are sent with the gradients, once a step.
 */
#include "zero/zero_norm.h"

/* --- which elements count ------------------------------------------------------------------- */

/* The elements of a param, from its start, that count. */
static int64_t param_count(const struct unit_graph *graph, int param)
{
    const struct unit_param *p = &graph->params[param];
    for (int t = p->first_tensor; t < p->first_tensor + p->tensor_count; t++)
        if (graph->tensors[t].split.partial)
            return 0;
    return norm_answered_count(graph, param, PHASE_MAIN);
}

/* Params without padding between them become one range. */
static void find_ranges(struct zero *zero, int piece, struct zero_range *ranges)
{
    const struct unit_piece *p = &zero->graph->pieces[piece];
    struct zero_piece *out = &zero->pieces[piece];
    out->squared = ranges;
    for (int q = p->first_param; q < p->first_param + p->param_count; q++) {
        int64_t first = zero->partition.param_offset[q], count = param_count(zero->graph, q);
        struct zero_range *last = &ranges[out->squared_count - 1];
        if (count == 0)
            continue;
        if (out->squared_count > 0 && last->first + last->count == first)
            last->count += count;
        else
            ranges[out->squared_count++] = (struct zero_range){first, count};
    }
}

struct zero_range noise_next(const struct zero *zero, struct piece_range part, int64_t done)
{
    const struct zero_piece *p = &zero->pieces[part.piece];
    for (int i = 0; i < p->squared_count; i++) {
        int64_t from = p->squared[i].first - part.first, to = from + p->squared[i].count;
        from = from > done ? from : done;
        to = to < part.count ? to : part.count;
        if (from < to)
            return (struct zero_range){from, to - from};
    }
    return (struct zero_range){part.count, 0};
}

/* sums += weight * the squares of the elements `part`, which begin at x. */
static void add_squares(const struct zero *zero, struct stream *stream, struct piece_range part,
                        const void *x, enum dtype type, double weight, double *sums)
{
    for (struct zero_range r = noise_next(zero, part, 0); r.count > 0;
         r = noise_next(zero, part, r.first + r.count))
        device_add_squares(stream, sums + r.first / OPS_BLOCK, zero_at(x, type, r.first), type,
                           r.count, weight);
}

/* The reduce shard of this rank. */
static struct piece_range own_part(const struct zero *zero, int piece)
{
    int64_t count = zero_reduce_shard_count(zero, piece);
    return (struct piece_range){piece, zero->reduce_shard * count, count};
}

/* --- memory --------------------------------------------------------------------------------- */

static enum status alloc_blocks(struct zero *zero, int64_t elements, double **blocks)
{
    return device_alloc(zero->ops->device, MEM_GRADS, "squares of gradients",
                        (size_t)(elements / OPS_BLOCK) * sizeof **blocks, blocks);
}

static enum status create_piece(struct zero *zero, int i)
{
    struct zero_piece *piece = &zero->pieces[i];
    int64_t shard = zero_reduce_shard_count(zero, i);
    for (int k = 0; k < piece->use_count; k++) {
        if (zero->reduce_shard >= 0)
            TRY(alloc_blocks(zero, shard, &piece->uses[k].squares));
        if (zero->config.local && zero_alone(zero))
            piece->uses[k].local_squares = piece->uses[k].squares;
        else if (zero->worker && zero->config.local)
            TRY(alloc_blocks(zero, zero->partition.piece_count[i], &piece->uses[k].local_squares));
    }
    if (piece->lent_sum)
        TRY(alloc_blocks(zero, shard, &piece->lent_squares));
    return STATUS_OK;
}

enum status noise_create(struct zero *zero)
{
    const struct unit_graph *graph = zero->graph;
    if (!zero->config.noise)
        return STATUS_OK;
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "squared ranges", (size_t)graph->param_count,
                        sizeof *zero->squared, &zero->squared));
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "weights of micro-batches",
                        (size_t)zero->config.micro_batches, sizeof *zero->weights, &zero->weights));
    for (int i = 0; i < graph->piece_count; i++) {
        find_ranges(zero, i, zero->squared + graph->pieces[i].first_param);
        zero->pieces[i].changes = zero_sum_changes(zero, i);
        TRY(create_piece(zero, i));
    }
    return STATUS_OK;
}

void noise_free(struct zero *zero)
{
    struct device *device = zero->ops->device;
    for (int i = 0; zero->pieces && i < zero->graph->piece_count; i++) {
        struct zero_piece *piece = &zero->pieces[i];
        device_free(device, piece->lent_squares);
        for (int k = 0; k < piece->use_count; k++) {
            if (piece->uses[k].local_squares != piece->uses[k].squares)
                device_free(device, piece->uses[k].local_squares);
            device_free(device, piece->uses[k].squares);
        }
    }
    mem_free(zero->env, zero->squared);
    mem_free(zero->env, zero->weights);
}

double *zero_weights(const struct zero *zero)
{
    return zero->weights;
}

/* --- in a step ------------------------------------------------------------------------------ */

static void clear(struct stream *stream, double *blocks, int64_t elements)
{
    device_zero(stream, blocks, (size_t)(elements / OPS_BLOCK) * sizeof *blocks);
}

double noise_weight(const struct zero *zero, int64_t round, int worker)
{
    return zero->weights[round * zero->roster.workers + worker];
}

void noise_add(struct zero *zero, struct stream *stream, struct piece_range range, double *squares,
               const void *gradients, int active, int64_t round)
{
    if (round == 0)
        clear(stream, squares, range.count);
    for (int worker = 0; worker < active; worker++)
        add_squares(zero, stream, range, zero_at(gradients, zero->type, worker * range.count),
                    zero->type, noise_weight(zero, round, worker), squares);
}

void noise_add_local(struct zero *zero, struct piece_range range, const struct zero_use *use,
                     const void *gradient, int64_t round)
{
    int64_t m = roster_micro_batch(&zero->roster, zero->micro_batches, round);
    if (!use->local_squares)
        return;
    double *squares = use->local_squares + range.first / OPS_BLOCK;
    if (round == 0)
        clear(zero->stream, squares, range.count);
    add_squares(zero, zero->stream, range, gradient, zero->ops->type, zero->weights[m], squares);
}

void noise_send_local(struct zero *zero, int piece, const struct zero_use *use)
{
    struct stream *stream = zero->reduce_stream;
    int active = roster_active(&zero->roster, zero->reductions, 0);
    int64_t blocks = zero_reduce_shard_count(zero, piece) / OPS_BLOCK;
    if (!zero->config.noise || zero_alone(zero))
        return;
    comm_all_to_all_v(zero->reduce_comm, use->local_squares, zero->contributions,
                      &zero->pieces[piece].reduce_squares, DTYPE_F64, stream);
    if (zero->reduce_shard < 0)
        return;
    clear(stream, use->squares, zero_reduce_shard_count(zero, piece));
    device_accumulate_parts(stream, use->squares, DTYPE_F64, zero->contributions, DTYPE_F64, blocks,
                            blocks, active);
}

/* --- the end of a step ---------------------------------------------------------------------- */

/* Add the squares that another PP stage has of a piece owned here. */
static enum status add_lent_squares(struct zero *zero)
{
    struct comm *comm = zero->lent_comm;
    for (int i = 0; zero->reduce_shard >= 0 && i < zero->graph->piece_count; i++) {
        struct zero_piece *piece = &zero->pieces[i];
        int to = zero_borrowed_from(zero, i);
        int64_t blocks = zero_reduce_shard_count(zero, i) / OPS_BLOCK;
        if (to != UNIT_NO_STAGE && piece->use_count > 0)
            comm_send(comm, piece->uses[0].squares, blocks, DTYPE_F64, to, zero->stream);
        if (!piece->lent_squares)
            continue;
        comm_recv(comm, piece->lent_squares, blocks, DTYPE_F64, zero_lent_to(zero, i),
                  zero->stream);
        device_accumulate(zero->stream, piece->uses[0].squares, DTYPE_F64, piece->lent_squares,
                          DTYPE_F64, blocks);
    }
    TRY(stream_sync(zero->stream));
    return comm_status(comm);
}

enum status noise_judge_each(struct zero *zero, double *sum)
{
    if (!zero->config.noise)
        return STATUS_OK;
    for (int i = 0; zero->reduce_shard >= 0 && i < zero->graph->piece_count; i++) {
        struct zero_piece *piece = &zero->pieces[i];
        for (int k = 1; k < piece->use_count; k++)
            device_accumulate(zero->stream, piece->uses[0].squares, DTYPE_F64,
                              piece->uses[k].squares, DTYPE_F64,
                              zero_reduce_shard_count(zero, i) / OPS_BLOCK);
    }
    if (zero->pipe.comm)
        TRY(add_lent_squares(zero));
    TRY(norm_of_squares(zero, NORM_SQUARES, sum));
    for (int i = 0; zero->reduce_shard >= 0 && i < zero->graph->piece_count; i++) {
        struct zero_piece *piece = &zero->pieces[i];
        if (!zero_is_learned(zero, i) || !piece->changes)
            continue;
        clear(zero->stream, piece->uses[0].squares, zero_reduce_shard_count(zero, i));
        for (int k = 0; k < piece->use_count; k++)
            add_squares(zero, zero->stream, own_part(zero, i), piece->uses[k].sum,
                        zero_use_type(zero, i, &piece->uses[k]), 1, piece->uses[0].squares);
    }
    return STATUS_OK;
}

void noise_add_lent(struct zero *zero)
{
    for (int i = 0; zero->config.noise && i < zero->graph->piece_count; i++)
        if (zero->pieces[i].lent_squares)
            add_squares(zero, zero->stream, own_part(zero, i), zero->pieces[i].lent_sum,
                        zero_type_of_sum(zero, false), 1, zero->pieces[i].uses[0].squares);
}

enum status noise_judge_sum(struct zero *zero, double *sum)
{
    return zero->config.noise ? norm_of_squares(zero, NORM_CHANGED_SQUARES, sum) : STATUS_OK;
}
