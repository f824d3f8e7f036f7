/* regions -- where the ranks of a tensor-parallel group meet.
 *
 * Between two norms a layer is one region: a matrix cut by columns, something element by element or
 * head by head, a matrix cut by rows. Every rank needs all rows of its input and comes out with a
 * share of the sum of its output; in between nobody talks.
 *
 *     tensor parallel      every rank has all R rows of the stream
 *         forward          in: nothing                          out: all-reduce
 *         backward         the gradient comes in: nothing       goes out: all-reduce
 *     sequence parallel    every rank has N = R / ranks rows of the stream, in rank order
 *         forward          in: all-gather of the rows           out: reduce-scatter to the rows
 *         backward         the gradient comes in: all-gather    goes out: reduce-scatter
 *
 * An all-reduce is a reduce-scatter and an all-gather, so both send the same. What is summed is
 * summed in rank order (comm), hence the same bits from run to run, and on all ranks.
 *
 * What needs a sum or rows at once waits for them: the call is on the stream that computes. That is
 * all of a forward pass, where each product reads what the last call brings. In backward a call is
 * begun on a stream beside it, and waited for where its result is read:
 *
 *     gradient out     under the products for weights' gradients
 *     gradient in      under them where the weights can wait (Llama; sequence parallel)
 *     rows again       (regather) begun behind `gradient in`, under all that comes before the product
 *                      that reads them
 *     loss             gradient out of a chunk of rows, under the matrix's gradient
 *
 * Where backward is in two parts the first meets the others, and has nothing to hide it under; it
 * leaves what it has gathered to the second. Only rows that are not kept gathered (regather) are
 * gathered in the second, which alone needs them, each under the product before it.
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

/* comm_reduce_scatter wants as much as there is, comm_all_reduce a margin more. */
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

/* How the trace has it: labels are borrowed for ever. */
static const char *label_in(const struct region *r, int call)
{
    if (call == REGION_AGAIN || r->run->pass == PASS_REBUILD)
        return "rows again";
    return r->run->pass == PASS_BACKWARD || r->run->pass == PASS_BACKWARD_INPUT ? "gradient in"
                                                                                : "rows in";
}

static const char *label_out(const struct region *r)
{
    enum pass pass = r->run->pass;
    bool back = pass == PASS_BACKWARD || pass == PASS_BACKWARD_INPUT || pass == PASS_LOSS;
    return back ? "gradient out" : "sum out";
}

static void gather(const struct region *r, int call, int64_t own, const void *rows, void *full,
                   struct stream *stream)
{
    comm_label(r->run->group, label_in(r, call));
    comm_all_gather(r->run->group, rows, full, own * r->width, r->run->ops->type, stream);
}

static void add_up(const struct region *r, int64_t own, void *partial, void *rows,
                   struct stream *stream)
{
    struct comm *group = r->run->group;
    enum dtype type = r->run->ops->type;
    int64_t count = own * r->width;
    comm_label(group, label_out(r));
    if (r->sequence)
        comm_reduce_scatter(group, partial, rows, count, type, r->scratch, stream);
    else
        comm_all_reduce(group, rows, count, type, r->scratch, stream);
}

/* The stream that computes, for a call that holds it up. */
static struct stream *alone(const struct region *r)
{
    CHECK(!r->run->side_stream || r->run->side_stream->open == 0);
    return r->run->stream;
}

const void *region_enter(const struct region *r, int64_t own, const void *rows, void *full)
{
    if (!r->sequence)
        return rows;
    gather(r, REGION_STREAM, own, rows, full, alone(r));
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
        add_up(r, own, partial, rows, alone(r));
}

/* --- calls beside compute ------------------------------------------------------------------- */

/* The stream for one, which comes to it when compute has come to this point. */
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
