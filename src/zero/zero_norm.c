/* zero_norm -- the sum of squares of the whole gradient, the same bits however it is cut.
 *
 * Blocks of 64 elements are numbered through all learned pieces, in order, without the padding at
 * their ends. A rank forms the aligned nodes of the tree (norm_tree.h) that its shares cover, all
 * ranks exchange them, and each adds all of them up in the order of the blocks. Which nodes a
 * rank has follows from the partition, so that only their values travel.
 */
#include <math.h>
#include <string.h>

#include "zero/zero_impl.h"

/* --- whose nodes ------------------------------------------------------------------------------ */

/* Blocks first .. end-1 of the whole. */
struct block_range {
    int64_t first, end;
};

/* The blocks of share `share` of a piece whose first block has number `number`. */
static struct block_range shared_blocks(const struct zero *zero, int piece, int64_t number,
                                        int share)
{
    int64_t count = zero_share_count(zero, piece) / OPS_BLOCK;
    int64_t used = zero->partition.piece_used[piece] / OPS_BLOCK;
    int64_t first = share * count < used ? share * count : used;
    int64_t end = first + count < used ? first + count : used;
    return (struct block_range){number + first, number + end};
}

static int64_t piece_blocks(const struct zero *zero, int piece)
{
    return zero_is_learned(zero, piece) ? zero->partition.piece_used[piece] / OPS_BLOCK : 0;
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

/* The most nodes that one share has; two at least, for find_bad. */
static int most_nodes(const struct zero *zero)
{
    int most = 2;
    for (int share = 0; share < zero->roster.owners; share++) {
        int64_t number = 0;
        int count = 0;
        for (int i = 0; i < zero->graph->piece_count; i++) {
            if (zero_is_learned(zero, i))
                count += node_count(shared_blocks(zero, i, number, share));
            number += piece_blocks(zero, i);
        }
        most = count > most ? count : most;
    }
    return most;
}

enum status norm_create(struct zero *zero)
{
    size_t sums = ZERO_CHUNK_BLOCKS * sizeof(double);
    size_t room = (size_t)(zero->node_room = most_nodes(zero)), ranks = (size_t)zero->roster.size;
    TRY(device_alloc(zero->ops->device, MEM_SCRATCH, "norm block sums", sums, &zero->block_sums));
    TRY(mem_alloc(zero->env, MEM_OTHER, "norm block sums", sums, &zero->block_sums_host));
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "norm nodes", room, sizeof *zero->nodes,
                        &zero->nodes));
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "norm nodes", ranks, sizeof *zero->nodes_taken,
                        &zero->nodes_taken));
    return mem_alloc_array(zero->env, MEM_OTHER, "norm nodes", room * ranks,
                           sizeof *zero->all_nodes, &zero->all_nodes);
}

/* --- their values ----------------------------------------------------------------------------- */

const float *sums_as_f32(struct zero *zero, const void *sum, int64_t first, int64_t count)
{
    const void *at = zero_at(sum, zero->sum_type, first);
    if (zero->sum_type == DTYPE_F32)
        return at;
    CHECK_LE(count, ZERO_STAGING);
    ops_cast(zero->ops, zero->stream, zero->wide, DTYPE_F32, at, zero->sum_type, count);
    return zero->wide;
}

/* Elements of the params of a piece that lie in [first, first + count), by param: padding is
 * skipped. Sums of whole blocks from `first` on go to the host's buffer. */
static enum status block_sums(struct zero *zero, int piece, int64_t first, int64_t count)
{
    const struct zero_piece *p = &zero->pieces[piece];
    const struct unit_piece *unit_piece = &zero->graph->pieces[piece];
    int64_t base = zero->share * zero_share_count(zero, piece);
    for (int q = unit_piece->first_param; q < unit_piece->first_param + unit_piece->param_count;
         q++) {
        int64_t begin = zero->partition.param_offset[q];
        int64_t end = begin + unit_param_count(zero->graph, q);
        begin = begin > first ? begin : first;
        end = end < first + count ? end : first + count;
        if (begin < end)
            ops_square_sums(zero->ops, zero->stream,
                            sums_as_f32(zero, p->uses[0].sum, begin - base, end - begin),
                            end - begin, zero->block_sums + (begin - first) / OPS_BLOCK);
    }
    device_copy(zero->stream, zero->block_sums_host, zero->block_sums,
                (size_t)(count / OPS_BLOCK) * sizeof(double));
    return stream_sync(zero->stream);
}

/* The node over 2^level blocks from element `first` of the piece, a chunk at a time. */
static enum status node_value(struct zero *zero, int piece, int64_t first, int level, double *value)
{
    struct norm_tree tree = {0};
    int64_t count = ((int64_t)1 << level) * OPS_BLOCK;
    for (int64_t done = 0; done < count; done += ZERO_STAGING) {
        int64_t part = count - done < ZERO_STAGING ? count - done : ZERO_STAGING;
        TRY(block_sums(zero, piece, first + done, part));
        for (int64_t b = 0; b < part / OPS_BLOCK; b++)
            norm_tree_add(&tree, 0, zero->block_sums_host[b]);
    }
    *value = norm_tree_sum(&tree);
    return STATUS_OK;
}

/* This rank's nodes, in the order of the blocks. */
static enum status own_nodes(struct zero *zero)
{
    int64_t number = 0;
    int count = 0;
    for (int i = 0; i < zero->graph->piece_count; i++) {
        if (!zero_is_learned(zero, i))
            continue;
        struct block_range range = shared_blocks(zero, i, number, zero->share);
        while (range.first < range.end) {
            int level = first_level(range);
            CHECK_LT(count, zero->node_room);
            TRY(node_value(zero, i, (range.first - number) * OPS_BLOCK, level,
                           &zero->nodes[count++]));
            range.first += 1ll << level;
        }
        number += piece_blocks(zero, i);
    }
    return STATUS_OK;
}

/* --- of all ----------------------------------------------------------------------------------- */

static double add_up(struct zero *zero)
{
    struct norm_tree tree = {0};
    int64_t number = 0;
    memset(zero->nodes_taken, 0, (size_t)zero->roster.size * sizeof *zero->nodes_taken);
    for (int i = 0; i < zero->graph->piece_count; i++) {
        if (!zero_is_learned(zero, i))
            continue;
        for (int share = 0; share < zero->roster.owners; share++) {
            struct block_range range = shared_blocks(zero, i, number, share);
            int rank = roster_share_rank(&zero->roster, share);
            const double *values = zero->all_nodes + (size_t)rank * (size_t)zero->node_room;
            while (range.first < range.end) {
                int level = first_level(range);
                norm_tree_add(&tree, level, values[zero->nodes_taken[rank]++]);
                range.first += 1ll << level;
            }
        }
        number += piece_blocks(zero, i);
    }
    return norm_tree_sum(&tree);
}

enum status norm_of_sums(struct zero *zero, double *square_sum)
{
    bool dry = device_is_dry(zero->ops->device); /* nothing to read: the exchange is only counted */
    size_t bytes = (size_t)zero->node_room * sizeof *zero->nodes;
    if (zero->share >= 0 && !dry)
        TRY(own_nodes(zero));
    if (zero_alone(zero))
        memcpy(zero->all_nodes, zero->nodes, bytes);
    else
        TRY(comm_exchange(zero->comm, zero->nodes, bytes, zero->all_nodes));
    *square_sum = dry ? 0.0 : add_up(zero);
    return STATUS_OK;
}
