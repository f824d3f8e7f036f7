/* zero_norm -- the sum of squares of the whole gradient, the same bits however it is cut.
 *
 * Blocks of 64 elements are numbered through all learned pieces, in order, without the padding at
 * their ends. An owner forms the aligned nodes of the tree (norm_tree.h) that its shares cover.
 * Neighbouring shares of a piece lie side by side, so the nodes of neighbours are joined two by
 * two on the way to the first of them, who adds up what is left; the sum goes to all:
 *
 *     shares   0   1   2   3   4          each sends its nodes once: a few for every piece,
 *              0 <-    2 <-    4          however many shares they stand for
 *              0  <-   2       4
 *              0      <-       4
 *
 * Tensor-parallel ranks have a tree each, over what they answer for: the other blocks are zero. The
 * sums of the trees are added in the order of the ranks.
 *
 * Which nodes a share has follows from the partition, so that only their values travel.
 *
 * A rank's nodes are made of parts that the device forms and the host reads in one copy: a range
 * of blocks is cut at multiples of 2^PART_LEVEL blocks; what lies between is one part for each of
 * these, the blocks before and after are a part each.
 *
 *     blocks    first . . . . | . . . . . . . . | . . . . . . . . | . . end
 *     parts     1 1 1 1 1 1 1   2^PART_LEVEL      2^PART_LEVEL      1 1
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "zero/zero_impl.h"

/* --- whose nodes ---------------------------------------------------------------------------- */

/* Blocks first .. end-1 of the whole. */
struct block_range {
    int64_t first, end;
};

/* The blocks of share `share` of a piece. */
static struct block_range shared_blocks(const struct zero *zero, int piece, int share)
{
    int64_t number = zero->first_block[piece];
    int64_t count = zero_share_count(zero, piece) / OPS_BLOCK;
    int64_t used = zero->partition.piece_used[piece] / OPS_BLOCK;
    int64_t first = share * count < used ? share * count : used;
    int64_t end = first + count < used ? first + count : used;
    return (struct block_range){number + first, number + end};
}

/* The level of the largest aligned node that a range begins with. */
static int first_level(struct block_range range)
{
    int longest = 63 - __builtin_clzll((uint64_t)(range.end - range.first));
    int aligned = range.first == 0 ? longest : __builtin_ctzll((uint64_t)range.first);
    return aligned < longest ? aligned : longest;
}

/* Nodes grow up to the last number with the highest bit in which the ends differ, and shrink from
 * there: one for each bit of both lengths. */
static int node_count(struct block_range range)
{
    uint64_t first = (uint64_t)range.first, end = (uint64_t)range.end;
    if (first == end)
        return 0;
    int bit = 63 - __builtin_clzll(first ^ end);
    uint64_t middle = end >> bit << bit;
    return __builtin_popcountll(middle - first) + __builtin_popcountll(end - middle);
}

/* The blocks of shares first .. end-1. */
static struct block_range group_blocks(const struct zero *zero, int piece, int first, int end)
{
    return (struct block_range){shared_blocks(zero, piece, first).first,
                                shared_blocks(zero, piece, end - 1).end};
}

static int64_t group_nodes(const struct zero *zero, int first, int end)
{
    int64_t count = 0;
    for (int i = 0; i < zero->graph->piece_count; i++)
        if (zero_is_learned(zero, i))
            count += node_count(group_blocks(zero, i, first, end));
    return count;
}

/* --- the way to the first share ------------------------------------------------------------- */

/* In step 1, 2, 4, ... share s holds what shares s .. s+step-1 have. Then it sends this to
 * s - step and is done, or takes what s + step has, if there is such a share. */
struct meeting {
    bool sends, takes;
    int first, middle,
        end; /* what is sent or held: first .. middle; what is taken: middle .. end */
};

static struct meeting meeting_of(const struct zero *zero, int step)
{
    int share = zero->share, shares = zero->roster.owners;
    int middle = share + step < shares ? share + step : shares;
    return (struct meeting){.sends = (share & step) != 0,
                            .takes = (share & step) == 0 && middle < shares,
                            .first = share,
                            .middle = middle,
                            .end = middle + step < shares ? middle + step : shares};
}

/* The most values that this rank holds at any time. */
static int64_t most_nodes(const struct zero *zero)
{
    if (zero->share < 0)
        return 1;
    int64_t most = group_nodes(zero, zero->share, zero->share + 1);
    for (int step = 1; step < zero->roster.owners && !meeting_of(zero, step).sends; step *= 2) {
        struct meeting m = meeting_of(zero, step);
        int64_t taken = m.takes ? group_nodes(zero, m.middle, m.end) : 0;
        int64_t joined = group_nodes(zero, m.first, m.end);
        most = taken > most ? taken : most;
        most = joined > most ? joined : most;
    }
    return most;
}

/* --- the parts that they are made of -------------------------------------------------------- */

enum { PART_LEVEL = 8, CHUNK_LEVEL = 20 /* blocks whose sums exist at once: 64 Mi elements */ };

/* A range cut: blocks up to `middle` and from `tail` on are parts by themselves. */
struct cut {
    int64_t middle, tail;
};

static struct cut cut_range(struct block_range range)
{
    int64_t mask = ((int64_t)1 << PART_LEVEL) - 1;
    int64_t middle = (range.first + mask) & ~mask, tail = range.end & ~mask;
    return middle < tail ? (struct cut){middle, tail} : (struct cut){range.end, range.end};
}

static int64_t count_parts(struct block_range range)
{
    struct cut cut = cut_range(range);
    return cut.middle - range.first + ((cut.tail - cut.middle) >> PART_LEVEL) + range.end -
           cut.tail;
}

/* The parts of this rank; *most: blocks whose sums exist at once. */
static int64_t own_parts(const struct zero *zero, int64_t *most)
{
    int64_t count = 0;
    *most = 0;
    for (int i = 0; zero->share >= 0 && i < zero->graph->piece_count; i++) {
        struct block_range range = shared_blocks(zero, i, zero->share);
        struct cut cut = cut_range(range);
        if (!zero_is_learned(zero, i))
            continue;
        count += count_parts(range);
        *most = cut.tail - cut.middle > *most ? cut.tail - cut.middle : *most;
    }
    *most = *most < 1ll << CHUNK_LEVEL ? *most : 1ll << CHUNK_LEVEL;
    return count;
}

/* Blocks are numbered through what is learned: of the whole model, where this is a part of it. */
static enum status number_blocks(struct zero *zero)
{
    int64_t next = 0;
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "norm blocks", (size_t)zero->graph->piece_count,
                        sizeof *zero->first_block, &zero->first_block));
    for (int i = 0; i < zero->graph->piece_count; i++) {
        zero->first_block[i] = zero->pipe.cut ? zero->pipe.cut->first_block[i] : next;
        next += zero_is_learned(zero, i) ? zero->partition.piece_used[i] / OPS_BLOCK : 0;
    }
    return STATUS_OK;
}

/* Room for the nodes of the stage, at the first stage of all: each says how many it has. */
static enum status make_room_for_stages(struct zero *zero)
{
    struct comm *comm = zero->pipe.comm;
    int64_t count = group_nodes(zero, 0, zero->roster.owners), all = count;
    if (comm) {
        TRY(mem_alloc_array(zero->env, MEM_OTHER, "norm nodes", (size_t)comm_size(comm),
                            sizeof count, &zero->stage_nodes));
        TRY(comm_exchange(comm, &count, sizeof count, zero->stage_nodes));
        for (int stage = 1; comm_rank(comm) == 0 && stage < comm_size(comm); stage++)
            all += zero->stage_nodes[stage];
    }
    if (zero->share != 0)
        return STATUS_OK;
    return mem_alloc_array(zero->env, MEM_OTHER, "norm nodes", (size_t)all, sizeof *zero->staged,
                           &zero->staged);
}

enum status norm_create(struct zero *zero)
{
    struct device *device = zero->ops->device;
    TRY(number_blocks(zero));
    size_t room = (size_t)(zero->node_room = most_nodes(zero)), ranks = (size_t)zero->roster.size;
    if (zero->pipe.comm && (size_t)comm_size(zero->pipe.comm) > ranks)
        ranks = (size_t)comm_size(zero->pipe.comm);
    if ((size_t)zero->team.size > ranks)
        ranks = (size_t)zero->team.size;
    int64_t blocks;
    size_t parts = (size_t)(zero->part_count = own_parts(zero, &blocks)) * sizeof *zero->parts;
    TRY(device_alloc(device, MEM_SCRATCH, "norm block sums",
                     (size_t)blocks * sizeof *zero->block_sums, &zero->block_sums));
    TRY(device_alloc(device, MEM_SCRATCH, "norm parts", parts, &zero->parts));
    TRY(mem_alloc(zero->env, MEM_OTHER, "norm parts", parts, &zero->parts_host));
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "norm nodes", room, sizeof *zero->nodes,
                        &zero->nodes));
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "norm nodes", room, sizeof *zero->nodes_taken,
                        &zero->nodes_taken));
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "norm nodes", room, sizeof *zero->nodes_joined,
                        &zero->nodes_joined));
    TRY(make_room_for_stages(zero));
    return mem_alloc_array(zero->env, MEM_OTHER, "non-finite places", ranks, sizeof *zero->all_bad,
                           &zero->all_bad);
}

/* --- their values --------------------------------------------------------------------------- */

/* Ranges of a piece whose block sums are to be formed together. */
struct wanted {
    enum dtype type; /* of the piece's sum */
    struct square_range ranges[32];
    int count;
};

static void form_wanted(struct zero *zero, struct wanted *wanted)
{
    ops_square_sums(zero->ops, zero->stream, wanted->type, wanted->ranges, wanted->count);
    wanted->count = 0;
}

static void want(struct zero *zero, struct wanted *wanted, const void *x, int64_t count,
                 double *sums)
{
    if (wanted->count == (int)(sizeof wanted->ranges / sizeof *wanted->ranges))
        form_wanted(zero, wanted);
    wanted->ranges[wanted->count++] = (struct square_range){x, count, sums};
}

/* The first so many elements of a param are this rank's to answer for, the others are not. */
static int64_t answered_count(const struct unit_graph *graph, int param)
{
    const struct unit_param *p = &graph->params[param];
    int64_t count = 0;
    bool over = false;
    for (int t = p->first_tensor; t < p->first_tensor + p->tensor_count; t++) {
        bool answers = unit_tensor_answers(&graph->tensors[t]);
        CHECK(!answers || !over);
        over = !answers;
        count += answers ? unit_tensor_count(&graph->tensors[t]) : 0;
    }
    return count;
}

struct sum_range {
    int64_t first, end; /* blocks of a piece */
    double *sums;
};

/* Sums of what nobody answers for here: whole blocks from element `from` on, up to `to`. */
static void zero_blocks(struct zero *zero, const struct sum_range *b, int64_t from, int64_t to)
{
    from = (from + OPS_BLOCK - 1) / OPS_BLOCK;
    to = (to + OPS_BLOCK - 1) / OPS_BLOCK;
    from = from > b->first ? from : b->first;
    to = to < b->end ? to : b->end;
    if (from < to)
        device_zero(zero->stream, b->sums + from - b->first, (size_t)(to - from) * sizeof(double));
}

/* sums = those of blocks first .. end-1 of a piece, counted from its start. By param, so that
 * padding is skipped. */
static void want_blocks(struct zero *zero, struct wanted *wanted, int piece, int64_t first,
                        int64_t end, double *sums)
{
    const struct unit_piece *unit_piece = &zero->graph->pieces[piece];
    const void *sum = zero->pieces[piece].uses[0].sum;
    int64_t base = zero->share * zero_share_count(zero, piece);
    for (int q = unit_piece->first_param; q < unit_piece->first_param + unit_piece->param_count;
         q++) {
        int64_t from = zero->partition.param_offset[q];
        int64_t to = from + answered_count(zero->graph, q);
        zero_blocks(zero, &(struct sum_range){first, end, sums}, to,
                    from + unit_param_room(zero->graph, q));
        from = from > first * OPS_BLOCK ? from : first * OPS_BLOCK;
        to = to < end * OPS_BLOCK ? to : end * OPS_BLOCK;
        if (from < to)
            want(zero, wanted, zero_at(sum, wanted->type, from - base), to - from,
                 sums + from / OPS_BLOCK - first);
    }
}

/* The parts of this rank's range of a piece; returns how many. */
static int64_t form_parts(struct zero *zero, int piece, struct block_range range, double *parts)
{
    int64_t number = zero->first_block[piece];
    struct cut cut = cut_range(range);
    double *next = parts + (cut.middle - range.first);
    double *last = next + ((cut.tail - cut.middle) >> PART_LEVEL);
    struct wanted wanted = {.type = zero_sum_type(zero, piece)};
    want_blocks(zero, &wanted, piece, range.first - number, cut.middle - number, parts);
    want_blocks(zero, &wanted, piece, cut.tail - number, range.end - number, last);
    for (int64_t done = cut.middle; done < cut.tail; done += 1ll << CHUNK_LEVEL) {
        int64_t left = cut.tail - done;
        int64_t count = left < 1ll << CHUNK_LEVEL ? left : 1ll << CHUNK_LEVEL;
        want_blocks(zero, &wanted, piece, done - number, done + count - number, zero->block_sums);
        form_wanted(zero, &wanted);
        ops_tree_sums(zero->ops, zero->stream, count, PART_LEVEL, zero->block_sums, next);
        next += count >> PART_LEVEL;
    }
    form_wanted(zero, &wanted);
    return count_parts(range);
}

/* All parts of this rank, to the host. */
static enum status read_parts(struct zero *zero)
{
    int64_t count = 0;
    for (int i = 0; i < zero->graph->piece_count; i++)
        if (zero_is_learned(zero, i))
            count += form_parts(zero, i, shared_blocks(zero, i, zero->share), zero->parts + count);
    CHECK_EQ(count, zero->part_count);
    device_copy(zero->stream, zero->parts_host, zero->parts, (size_t)count * sizeof *zero->parts);
    return stream_sync(zero->stream);
}

/* A node over 2^level blocks from the parts it begins with; they are passed. */
static double node_value(int level, const double **parts)
{
    struct norm_tree tree = {0};
    int64_t count = 1ll << (level < PART_LEVEL ? level : level - PART_LEVEL);
    for (int64_t i = 0; i < count; i++)
        norm_tree_add(&tree, 0, *(*parts)++);
    return norm_tree_sum(&tree);
}

/* This rank's nodes, in the order of the blocks. */
static enum status own_nodes(struct zero *zero)
{
    int count = 0;
    const double *next = zero->parts_host;
    TRY(read_parts(zero));
    for (int i = 0; i < zero->graph->piece_count; i++) {
        if (!zero_is_learned(zero, i))
            continue;
        struct block_range range = shared_blocks(zero, i, zero->share);
        while (range.first < range.end) {
            int level = first_level(range);
            CHECK_LT(count, zero->node_room);
            zero->nodes[count++] = node_value(level, &next);
            range.first += 1ll << level;
        }
    }
    return STATUS_OK;
}

/* --- of all --------------------------------------------------------------------------------- */

/* Nodes of one piece in the order of their blocks; two halves of a larger one become it. */
struct joined {
    struct block_range ranges[2 * 64];
    double values[2 * 64];
    int count;
};

static void join_range(struct joined *joined, struct block_range range, const double *values)
{
    while (range.first < range.end) {
        int64_t first = range.first, width = 1ll << first_level(range);
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

/* What is held and what was taken, piece by piece. */
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

/* Down to the first share, which then has the nodes of the whole. */
static enum status gather_nodes(struct zero *zero, bool dry)
{
    for (int step = 1; step < zero->roster.owners; step *= 2) {
        struct meeting m = meeting_of(zero, step);
        int64_t held = group_nodes(zero, m.first, m.middle);
        int64_t taken = m.takes ? group_nodes(zero, m.middle, m.end) : 0;
        if (m.sends && held > 0)
            comm_send(zero->comm, zero->nodes, held, DTYPE_F64,
                      roster_share_rank(&zero->roster, m.first - step), zero->stream);
        if (taken > 0)
            comm_recv(zero->comm, zero->nodes_taken, taken, DTYPE_F64,
                      roster_share_rank(&zero->roster, m.middle), zero->stream);
        TRY(settle(zero, zero->comm));
        if (m.takes && !dry)
            join_nodes(zero, &m);
        if (m.sends)
            break;
    }
    return STATUS_OK;
}

/* What the first share of this stage has, in the order of its blocks. */
static int64_t staged_nodes(const struct zero *zero, struct staged_node *out)
{
    const double *values = zero->nodes;
    int64_t count = 0;
    for (int i = 0; i < zero->graph->piece_count; i++) {
        if (!zero_is_learned(zero, i))
            continue;
        struct block_range range = group_blocks(zero, i, 0, zero->roster.owners);
        for (; range.first < range.end; count++) {
            int level = first_level(range);
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

/* The nodes of all stages to the first one, behind its own. */
static enum status gather_stages(struct zero *zero, int64_t *count)
{
    struct comm *comm = zero->pipe.comm;
    if (comm_rank(comm) > 0)
        comm_send(comm, zero->staged, *count * 3, DTYPE_F64, 0, zero->stream);
    for (int stage = 1; comm_rank(comm) == 0 && stage < comm_size(comm); stage++) {
        comm_recv(comm, zero->staged + *count, zero->stage_nodes[stage] * 3, DTYPE_F64, stage,
                  zero->stream);
        *count += zero->stage_nodes[stage];
    }
    return settle(zero, comm);
}

/* By the first share; at the first stage, the sum of everything. */
static enum status add_up(struct zero *zero, bool dry, double *square_sum)
{
    struct norm_tree tree = {0};
    int64_t count =
        dry ? group_nodes(zero, 0, zero->roster.owners) : staged_nodes(zero, zero->staged);
    if (zero->pipe.comm)
        TRY(gather_stages(zero, &count));
    if (dry || (zero->pipe.comm && comm_rank(zero->pipe.comm) > 0))
        return STATUS_OK;
    qsort(zero->staged, (size_t)count, sizeof *zero->staged, compare_nodes);
    for (int64_t i = 0; i < count; i++)
        norm_tree_add(&tree, (int)zero->staged[i].level, zero->staged[i].value);
    *square_sum = norm_tree_sum(&tree);
    return STATUS_OK;
}

enum status norm_of_sums(struct zero *zero, double *square_sum)
{
    bool dry = device_is_dry(zero->ops->device); /* nothing to read: messages are only counted */
    struct comm *stages = zero->pipe.comm;
    *square_sum = 0.0;
    if (zero->share >= 0)
        TRY(dry ? read_parts(zero) : own_nodes(zero));
    if (zero->share >= 0 && !zero_alone(zero))
        TRY(gather_nodes(zero, dry));
    if (zero->share == 0)
        TRY(add_up(zero, dry, square_sum));
    if (zero->share == 0 && zero->team.comm && (!stages || comm_rank(stages) == 0))
        TRY(team_add(zero, square_sum));
    if (!zero_alone(zero) && (!stages || comm_rank(stages) == 0)) {
        comm_broadcast(zero->comm, square_sum, 1, DTYPE_F64, roster_share_rank(&zero->roster, 0),
                       zero->stream);
        TRY(settle(zero, zero->comm));
    }
    if (!stages)
        return STATUS_OK;
    comm_broadcast(stages, square_sum, 1, DTYPE_F64, 0, zero->stream);
    return settle(zero, stages);
}
