/* regions -- where the ranks of a TP group exchange activations and gradients.
 *
 * Between two norms a layer is one region: a matrix split by columns, an element-wise or head-wise
 * function, a matrix split by rows. Every rank needs all rows of the region's input and produces a
 * partial sum of its output; inside the region the ranks do not communicate.
 *
 *     tensor parallel      every rank has all R rows of the stream
 *         forward          enter: nothing                       leave: all-reduce
 *         backward         gradient in: nothing                 gradient out: all-reduce
 *     sequence parallel    every rank has N = R / ranks rows of the stream, in rank order
 *         forward          enter: all-gather of the rows        leave: reduce-scatter to the rows
 *         backward         gradient in: all-gather              gradient out: reduce-scatter
 *
 * An all-reduce is a reduce-scatter and an all-gather, so both send the same number of bytes. comm
 * adds in rank order, so the bits of a sum are the same in every run and on all ranks.
 *
 * A forward pass cannot overlap its calls: each product reads what the previous call brings, so the
 * calls run on the compute stream. In a backward pass a call is begun on the side stream and
 * awaited where its result is read. What it overlaps with:
 *
 *     gradient out     the products for the gradients of the weights
 *     gradient in      the same products where they can be delayed (Llama, sequence parallel)
 *     rows again       (regather) begun after `gradient in`; all work before the product that reads
 *                      the rows
 *     loss             gradient out of a chunk of rows: the matrix's gradient
 *
 * When backward runs in two halves, the first half makes all these calls and has nothing to overlap
 * them with; the second half reuses what it gathered. Only rows that are not kept gathered
 * (regather) are gathered in the second half, which alone needs them, each during the product
 * before it.
 */
#include "comm/comm.h"
#include "model/model_impl.h"

struct region region_of(const struct tp_group *tp_group, const struct unit_run *run, int64_t width,
                        void *scratch)
{
    bool parallel = tp_group->size > 1;
    CHECK(parallel ? run->group != NULL : run->shape.sequence == 0);
    if (parallel)
        CHECK_EQ(comm_size(run->group), tp_group->size);
    if (run->shape.sequence != 0)
        CHECK_EQ(run->shape.sequence, tp_group->size);
    return (struct region){.tp_group = tp_group,
                           .run = run,
                           .width = width,
                           .parallel = parallel,
                           .sequence = run->shape.sequence != 0,
                           .scratch = scratch};
}

/* comm_reduce_scatter needs as much scratch as data, comm_all_reduce 64 elements a rank more. */
size_t region_scratch(const struct tp_group *tp_group, const struct ops *ops, bool sequence,
                      int64_t rows, int64_t width)
{
    int64_t count = rows * width;
    if (tp_group->size == 1)
        return 0;
    return (size_t)(sequence ? count : count + 64 * tp_group->size) * dtype_bytes(ops->type);
}

void *region_own(const struct region *r, int64_t own, void *full)
{
    size_t row = (size_t)r->width * dtype_bytes(r->run->ops->type);
    return r->sequence ? (char *)full + (size_t)(r->tp_group->rank * own) * row : full;
}

/* --- calls ---------------------------------------------------------------------------------- */

static void gather(const struct region *r, int call, int64_t own, const void *rows, void *full,
                   struct stream *stream)
{
    enum pass pass = r->run->pass;
    bool again = call == REGION_AGAIN || pass == PASS_REBUILD;
    bool back = pass == PASS_BACKWARD || pass == PASS_BACKWARD_INPUT;
    /* comm keeps the pointer, so labels are string literals */
    comm_label(r->run->group, again ? "rows again" : back ? "gradient in" : "rows in");
    comm_all_gather(r->run->group, rows, full, own * r->width, r->run->ops->type, stream);
}

static void add_up(const struct region *r, int64_t own, void *partial, void *rows,
                   struct stream *stream)
{
    struct comm *group = r->run->group;
    enum dtype type = r->run->ops->type;
    enum pass pass = r->run->pass;
    bool back = pass == PASS_BACKWARD || pass == PASS_BACKWARD_INPUT || pass == PASS_LOSS;
    int64_t count = own * r->width;
    comm_label(group, back ? "gradient out" : "sum out");
    if (r->sequence)
        comm_reduce_scatter(group, partial, rows, count, type, r->scratch, stream);
    else
        comm_all_reduce(group, rows, count, type, r->scratch, stream);
}

/* The compute stream, for a call that does not overlap; no other call may be in progress. */
static struct stream *compute_stream(const struct region *r)
{
    CHECK(!r->run->side_stream || r->run->side_stream->open == 0);
    return r->run->stream;
}

const void *region_enter(const struct region *r, int64_t own, const void *rows, void *full)
{
    if (!r->sequence)
        return rows;
    gather(r, REGION_STREAM, own, rows, full, compute_stream(r));
    return full;
}

void region_keep(const struct region *r, int64_t own, const void *rows, void *full)
{
    size_t bytes = (size_t)(own * r->width) * dtype_bytes(r->run->ops->type);
    if (region_enter(r, own, rows, full) != full)
        device_copy(r->run->stream, full, rows, bytes);
}

void region_leave(const struct region *r, int64_t own, void *partial, void *rows)
{
    if (r->parallel)
        add_up(r, own, partial, rows, compute_stream(r));
}

/* As for comm_all_reduce: 64 elements a rank more than the data. */
size_t region_numbers_scratch(const struct tp_group *tp_group, int64_t count)
{
    return tp_group->size == 1 ? 0 : (size_t)(count + 64 * tp_group->size) * sizeof(double);
}

void region_add_numbers(const struct region *r, int64_t count, double *numbers)
{
    if (!r->parallel)
        return;
    comm_label(r->run->group, "norms of heads");
    comm_all_reduce(r->run->group, numbers, count, DTYPE_F64, r->scratch, compute_stream(r));
}

/* --- calls that overlap with compute -------------------------------------------------------- */

/* The stream for the call; it first waits for what is on the compute stream now. */
static struct stream *begin(const struct region *r, enum region_call call)
{
    struct unit_side_stream *side_stream = r->run->side_stream;
    if (!side_stream)
        return r->run->stream;
    CHECK_EQ(side_stream->open & 1u << call, 0);
    side_stream->open |= 1u << call;
    event_record(side_stream->written, r->run->stream);
    stream_wait(side_stream->stream, side_stream->written);
    return side_stream->stream;
}

static void begun(const struct region *r, enum region_call call)
{
    if (r->run->side_stream)
        event_record(r->run->side_stream->done[call], r->run->side_stream->stream);
}

const void *region_begin_enter(const struct region *r, enum region_call call, int64_t own,
                               const void *rows, void *full)
{
    if (!r->sequence)
        return rows;
    gather(r, call, own, rows, full, begin(r, call));
    begun(r, call);
    return full;
}

void region_begin_leave(const struct region *r, int64_t own, void *partial, void *rows)
{
    if (!r->parallel)
        return;
    add_up(r, own, partial, rows, begin(r, REGION_STREAM));
    begun(r, REGION_STREAM);
}

void region_await(const struct region *r, enum region_call call)
{
    struct unit_side_stream *side_stream = r->run->side_stream;
    if (!side_stream || (side_stream->open & 1u << call) == 0)
        return;
    double before = stream_waited(r->run->stream);
    stream_wait(r->run->stream, side_stream->done[call]);
    side_stream->waited += stream_waited(r->run->stream) - before;
    side_stream->open &= ~(1u << call);
}
