/* zero_norm -- the sum of squares of the whole gradient, with bits that do not depend on sharding.
 *
 * Blocks of 64 elements are numbered through all learned pieces, in order, without the padding at
 * their ends. An owner computes the aligned nodes of the tree (struct norm_tree) that its reduce
 * shards cover. Adjacent reduce shards of a piece are contiguous, so the nodes of neighbours are
 * merged two by two on the way to the owner of the first, which adds what is left; the sum then
 * goes to all ranks:
 *
 *     reduce shards   0   1   2   3   4       each owner sends its nodes once: a few for every
 *                     0 <-    2 <-    4       piece, however many reduce shards they stand for
 *                     0  <-   2       4
 *                     0      <-       4
 *
 * Each rank of a TP group has a tree of its own over the elements that it answers for; all other
 * blocks are zero. The sums of these trees are added in rank order. Each phase of a model
 * (enum unit_phase) has a norm and so a tree of its own, in which the blocks of the other are zero.
 *
 * Which nodes a rank has follows from the partition, so only their values are sent.
 * zero_norm_parts.c computes a rank's own nodes.
 */
#include <stdlib.h>
#include <string.h>

#include "zero/zero_norm.h"

/* --- the tree -------------------------------------------------------------------------------- */

/* Adding leaves in order is counting in binary: a carry is a complete pair. */
void norm_tree_add(struct norm_tree *tree, int level, double value)
{
    uint64_t width = (uint64_t)1 << level;
    CHECK((tree->leaves & (width - 1)) == 0);
    while (tree->leaves >> level & 1) {
        value = tree->node[level] + value;
        level++;
    }
    tree->node[level] = value;
    tree->leaves += width;
}

double norm_tree_sum(const struct norm_tree *tree)
{
    double sum = 0.0;
    for (int level = 0, first = 1; level < 64; level++) {
        if (!(tree->leaves >> level & 1))
            continue;
        sum = first ? tree->node[level] : tree->node[level] + sum;
        first = 0;
    }
    return sum;
}

double norm_tree_node(const double *x, int64_t count)
{
    CHECK(count > 0 && (count & (count - 1)) == 0);
    if (count == 8)
        return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
    if (count == 1)
        return x[0];
    return norm_tree_node(x, count / 2) + norm_tree_node(x + count / 2, count / 2);
}

/* --- which nodes a reduce shard has --------------------------------------------------------- */

struct block_range norm_reduce_shard_blocks(const struct zero *zero, int piece, int reduce_shard)
{
    int64_t number = zero->first_block[piece];
    int64_t count = zero_reduce_shard_count(zero, piece) / OPS_BLOCK;
    int64_t used = zero->partition.piece_used[piece] / OPS_BLOCK;
    int64_t first = reduce_shard * count < used ? reduce_shard * count : used;
    int64_t end = first + count < used ? first + count : used;
    return (struct block_range){number + first, number + end};
}

/* The number of aligned nodes of a range: one for each bit of the lengths on both sides of the
 * number in the range with the most trailing zeros. */
static int node_count(struct block_range range)
{
    uint64_t first = (uint64_t)range.first, end = (uint64_t)range.end;
    if (first == end)
        return 0;
    int bit = 63 - __builtin_clzll(first ^ end);
    uint64_t middle = end >> bit << bit;
    return __builtin_popcountll(middle - first) + __builtin_popcountll(end - middle);
}

/* The blocks of reduce shards first .. end-1. */
static struct block_range group_blocks(const struct zero *zero, int piece, int first, int end)
{
    return (struct block_range){norm_reduce_shard_blocks(zero, piece, first).first,
                                norm_reduce_shard_blocks(zero, piece, end - 1).end};
}

static int64_t group_nodes(const struct zero *zero, int first, int end)
{
    int64_t count = 0;
    for (int i = 0; i < zero->graph->piece_count; i++)
        if (zero_is_learned(zero, i))
            count += node_count(group_blocks(zero, i, first, end));
    return count;
}

/* --- merging towards the first reduce shard ------------------------------------------------- */

/* At step 1, 2, 4, ... reduce shard s holds the nodes of reduce shards s .. s+step-1. Its owner
 * then sends them to the owner of s - step and is done, or receives those of s + step, if that
 * exists. */
struct meeting {
    bool sends, takes;
    int first, middle, end; /* held or sent: first .. middle; received: middle .. end */
};

static struct meeting meeting_of(const struct zero *zero, int step)
{
    int reduce_shard = zero->reduce_shard, reduce_shards = zero->roster.owners;
    int middle = reduce_shard + step < reduce_shards ? reduce_shard + step : reduce_shards;
    return (struct meeting){.sends = (reduce_shard & step) != 0,
                            .takes = (reduce_shard & step) == 0 && middle < reduce_shards,
                            .first = reduce_shard,
                            .middle = middle,
                            .end = middle + step < reduce_shards ? middle + step : reduce_shards};
}

/* The most values that this rank holds at any time. */
static int64_t most_nodes(const struct zero *zero)
{
    if (zero->reduce_shard < 0)
        return 1;
    int64_t most = group_nodes(zero, zero->reduce_shard, zero->reduce_shard + 1);
    for (int step = 1; step < zero->roster.owners && !meeting_of(zero, step).sends; step *= 2) {
        struct meeting m = meeting_of(zero, step);
        int64_t taken = m.takes ? group_nodes(zero, m.middle, m.end) : 0;
        int64_t joined = group_nodes(zero, m.first, m.end);
        most = taken > most ? taken : most;
        most = joined > most ? joined : most;
    }
    return most;
}

/* --- buffers -------------------------------------------------------------------------------- */

/* Allocate room for nodes: each PP stage tells the first how many it has. */
static enum status make_room_for_pp_stages(struct zero *zero)
{
    struct comm *comm = zero->pipe.comm;
    int64_t count = group_nodes(zero, 0, zero->roster.owners), all = count;
    if (comm) {
        TRY(mem_alloc_array(zero->env, MEM_OTHER, "norm nodes", (size_t)comm_size(comm),
                            sizeof count, &zero->pp_stage_nodes));
        TRY(comm_exchange(comm, &count, sizeof count, zero->pp_stage_nodes));
        for (int stage = 1; comm_rank(comm) == 0 && stage < comm_size(comm); stage++)
            all += zero->pp_stage_nodes[stage];
    }
    if (zero->reduce_shard != 0)
        return STATUS_OK;
    return mem_alloc_array(zero->env, MEM_OTHER, "norm nodes", (size_t)all, sizeof *zero->staged,
                           &zero->staged);
}

enum status norm_create(struct zero *zero)
{
    int64_t next = 0;
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "norm blocks", (size_t)zero->graph->piece_count,
                        sizeof *zero->first_block, &zero->first_block));
    for (int i = 0; i < zero->graph->piece_count; i++) {
        zero->first_block[i] = zero->pipe.cut ? zero->pipe.cut->first_block[i] : next;
        next += zero_is_learned(zero, i) ? zero->partition.piece_used[i] / OPS_BLOCK : 0;
    }
    size_t room = (size_t)(zero->node_room = most_nodes(zero)), ranks = (size_t)zero->roster.size;
    if (zero->pipe.comm && (size_t)comm_size(zero->pipe.comm) > ranks)
        ranks = (size_t)comm_size(zero->pipe.comm);
    if ((size_t)zero->tp_group.size > ranks)
        ranks = (size_t)zero->tp_group.size;
    TRY(norm_parts_create(zero));
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "norm nodes", room, sizeof *zero->nodes,
                        &zero->nodes));
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "norm nodes", room, sizeof *zero->nodes_taken,
                        &zero->nodes_taken));
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "norm nodes", room, sizeof *zero->nodes_joined,
                        &zero->nodes_joined));
    TRY(make_room_for_pp_stages(zero));
    return mem_alloc_array(zero->env, MEM_OTHER, "non-finite places", ranks, sizeof *zero->all_bad,
                           &zero->all_bad);
}

/* --- the norm of the model ------------------------------------------------------------------ */

/* Nodes of one piece in block order. Two halves of a larger node are replaced by it. */
struct joined {
    struct block_range ranges[2 * 64];
    double values[2 * 64];
    int count;
};

static void join_range(struct joined *joined, struct block_range range, const double *values)
{
    while (range.first < range.end) {
        int64_t first = range.first, width = 1ll << norm_first_level(range);
        double value = *values++;
        for (; joined->count > 0; joined->count--, width *= 2) {
            struct block_range left = joined->ranges[joined->count - 1];
            if (left.end - left.first != width || left.first % (2 * width) != 0)
                break;
            value = joined->values[joined->count - 1] + value;
            first = left.first;
        }
        joined->ranges[joined->count] = (struct block_range){first, first + width};
        joined->values[joined->count++] = value;
        range.first = first + width;
    }
}

/* Merge the nodes held with those received, piece by piece. */
static void join_nodes(struct zero *zero, const struct meeting *m)
{
    const double *held = zero->nodes, *taken = zero->nodes_taken;
    double *out = zero->nodes_joined;
    struct joined joined;
    for (int i = 0; i < zero->graph->piece_count; i++) {
        if (!zero_is_learned(zero, i))
            continue;
        struct block_range left = group_blocks(zero, i, m->first, m->middle);
        struct block_range right = group_blocks(zero, i, m->middle, m->end);
        joined.count = 0;
        join_range(&joined, left, held);
        join_range(&joined, right, taken);
        CHECK_EQ(joined.count, node_count((struct block_range){left.first, right.end}));
        memcpy(out, joined.values, (size_t)joined.count * sizeof *out);
        held += node_count(left);
        taken += node_count(right);
        out += joined.count;
    }
    double *old = zero->nodes;
    zero->nodes = zero->nodes_joined;
    zero->nodes_joined = old;
}

static enum status settle(struct zero *zero, const struct comm *comm)
{
    TRY(stream_sync(zero->stream));
    return comm_status(comm);
}

/* Send nodes towards the owner of the first reduce shard, which ends with those of the whole. */
static enum status gather_nodes(struct zero *zero, bool dry)
{
    for (int step = 1; step < zero->roster.owners; step *= 2) {
        struct meeting m = meeting_of(zero, step);
        int64_t held = group_nodes(zero, m.first, m.middle);
        int64_t taken = m.takes ? group_nodes(zero, m.middle, m.end) : 0;
        if (m.sends && held > 0)
            comm_send(zero->comm, zero->nodes, held, DTYPE_F64,
                      roster_reduce_shard_rank(&zero->roster, m.first - step), zero->stream);
        if (taken > 0)
            comm_recv(zero->comm, zero->nodes_taken, taken, DTYPE_F64,
                      roster_reduce_shard_rank(&zero->roster, m.middle), zero->stream);
        TRY(settle(zero, zero->comm));
        if (m.takes && !dry)
            join_nodes(zero, &m);
        if (m.sends)
            break;
    }
    return STATUS_OK;
}

/* The nodes of this PP stage, in block order; called by the owner of its first reduce shard. */
static int64_t staged_nodes(const struct zero *zero, struct staged_node *out)
{
    const double *values = zero->nodes;
    int64_t count = 0;
    for (int i = 0; i < zero->graph->piece_count; i++) {
        if (!zero_is_learned(zero, i))
            continue;
        struct block_range range = group_blocks(zero, i, 0, zero->roster.owners);
        for (; range.first < range.end; count++) {
            int level = norm_first_level(range);
            out[count] = (struct staged_node){(double)range.first, level, *values++};
            range.first += 1ll << level;
        }
    }
    return count;
}

static int compare_nodes(const void *a, const void *b)
{
    double x = ((const struct staged_node *)a)->first, y = ((const struct staged_node *)b)->first;
    return x < y ? -1 : x > y;
}

/* Collect the nodes of all PP stages on the first, after its own. */
static enum status gather_pp_stages(struct zero *zero, int64_t *count)
{
    struct comm *comm = zero->pipe.comm;
    if (comm_rank(comm) > 0)
        comm_send(comm, zero->staged, *count * 3, DTYPE_F64, 0, zero->stream);
    for (int stage = 1; comm_rank(comm) == 0 && stage < comm_size(comm); stage++) {
        comm_recv(comm, zero->staged + *count, zero->pp_stage_nodes[stage] * 3, DTYPE_F64, stage,
                  zero->stream);
        *count += zero->pp_stage_nodes[stage];
    }
    return settle(zero, comm);
}

/* Called by the owner of the first reduce shard; on the first PP stage it returns the complete
 * sum. */
static enum status add_up(struct zero *zero, bool dry, double *square_sum)
{
    struct norm_tree tree = {0};
    int64_t count =
        dry ? group_nodes(zero, 0, zero->roster.owners) : staged_nodes(zero, zero->staged);
    if (zero->pipe.comm)
        TRY(gather_pp_stages(zero, &count));
    if (dry || (zero->pipe.comm && comm_rank(zero->pipe.comm) > 0))
        return STATUS_OK;
    qsort(zero->staged, (size_t)count, sizeof *zero->staged, compare_nodes);
    for (int64_t i = 0; i < count; i++)
        norm_tree_add(&tree, (int)zero->staged[i].level, zero->staged[i].value);
    *square_sum = norm_tree_sum(&tree);
    return STATUS_OK;
}

static enum status sum_of_tree(struct zero *zero, struct norm_source source, double *square_sum)
{
    bool dry = device_is_dry(zero->ops->device); /* nothing to read: messages are only counted */
    struct comm *pp_stages = zero->pipe.comm;
    *square_sum = 0.0;
    if (zero->reduce_shard >= 0)
        TRY(dry ? norm_read_parts(zero, source) : norm_form_nodes(zero, source));
    if (zero->reduce_shard >= 0 && !zero_alone(zero))
        TRY(gather_nodes(zero, dry));
    if (zero->reduce_shard == 0)
        TRY(add_up(zero, dry, square_sum));
    if (zero->reduce_shard == 0 && zero->tp_group.comm && (!pp_stages || comm_rank(pp_stages) == 0))
        TRY(tp_group_add(zero, square_sum));
    if (!zero_alone(zero) && (!pp_stages || comm_rank(pp_stages) == 0)) {
        comm_broadcast(zero->comm, square_sum, 1, DTYPE_F64,
                       roster_reduce_shard_rank(&zero->roster, 0), zero->stream);
        TRY(settle(zero, zero->comm));
    }
    if (!pp_stages)
        return STATUS_OK;
    comm_broadcast(pp_stages, square_sum, 1, DTYPE_F64, 0, zero->stream);
    return settle(zero, pp_stages);
}

enum status norm_of_sums(struct zero *zero, enum unit_phase phase, bool late, double *square_sum)
{
    const struct norm_source source = {late ? NORM_LATE_SUMS : NORM_SUMS, phase};
    return sum_of_tree(zero, source, square_sum);
}

enum status norm_of_squares(struct zero *zero, enum norm_blocks blocks, double *sum)
{
    return sum_of_tree(zero, (struct norm_source){.blocks = blocks}, sum);
}
