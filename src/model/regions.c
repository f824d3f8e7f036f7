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
 * Calls are enqueued on the stream that computes. A gradient that goes out is sent before the
 * weights' gradient is formed, which does not need it: whoever has a second stream can hide one
 * behind the other. Where backward is in two parts the first meets the others, and leaves what it has
 * gathered to the second; only rows that are not kept gathered (regather) are gathered in the second,
 * which alone needs them.
 */
#include "comm/comm.h"
#include "model/model_impl.h"

struct region region_of(const struct team *team, const struct unit_run *run, int64_t width,
                        void *scratch)
{
    bool parallel = team->size > 1;
    CHECK(parallel ? run->group != NULL : run->shape.sequence == 0);
    if (parallel)
        CHECK_EQ(comm_size(run->group), team->size);
    if (run->shape.sequence != 0)
        CHECK_EQ(run->shape.sequence, team->size);
    return (struct region){.team = team,
                           .run = run,
                           .width = width,
                           .parallel = parallel,
                           .sequence = run->shape.sequence != 0,
                           .scratch = scratch};
}

/* comm_reduce_scatter wants as much as there is, comm_all_reduce a margin more. */
size_t region_scratch(const struct team *team, const struct ops *ops, bool sequence, int64_t rows,
                      int64_t width)
{
    int64_t count = rows * width;
    if (team->size == 1)
        return 0;
    return (size_t)(sequence ? count : count + 64 * team->size) * dtype_bytes(ops->type);
}

void *region_own(const struct region *r, int64_t own, void *full)
{
    size_t row = (size_t)r->width * dtype_bytes(r->run->ops->type);
    return r->sequence ? (char *)full + (size_t)(r->team->rank * own) * row : full;
}

const void *region_enter(const struct region *r, int64_t own, const void *rows, void *full)
{
    if (!r->sequence)
        return rows;
    comm_all_gather(r->run->group, rows, full, own * r->width, r->run->ops->type, r->run->stream);
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
    const struct unit_run *run = r->run;
    int64_t count = own * r->width;
    if (r->sequence)
        comm_reduce_scatter(run->group, partial, rows, count, run->ops->type, r->scratch,
                            run->stream);
    else if (r->parallel)
        comm_all_reduce(run->group, rows, count, run->ops->type, r->scratch, run->stream);
}
