/* zero_norm -- the sum of squares of the whole gradient, the same bits however it is cut.
 *
 * Blocks of 64 elements are numbered through all learned pieces, in order, without the padding at
 * their ends. A rank forms the aligned nodes of the tree (norm_tree.h) that its shares cover, all
 * ranks exchange them, and each adds all of them up in the order of the blocks.
 */
#include <math.h>
#include <string.h>

#include "zero/zero_impl.h"

struct norm_node {
    uint64_t first; /* block */
    int64_t level;  /* 2^level blocks; -1 ends the list */
    double value;
};

/* The most nodes a rank can have: an unaligned range of n blocks has at most 2 log2(n) + 2. */
static int node_bound(const struct zero *zero)
{
    int bound = 1;
    for (int i = 0; i < zero->graph->piece_count; i++) {
        int64_t blocks = partition_slice(&zero->partition, i) / OPS_BLOCK;
        for (bound += 2; blocks > 0; blocks /= 2)
            bound += 2;
    }
    return bound;
}

enum status norm_create(struct zero *zero)
{
    size_t sums = ZERO_CHUNK_BLOCKS * sizeof(double);
    size_t room = (size_t)(zero->node_room = node_bound(zero));
    TRY(device_alloc(zero->ops->device, MEM_SCRATCH, "norm block sums", sums, &zero->block_sums));
    TRY(mem_alloc(zero->env, MEM_OTHER, "norm block sums", sums, &zero->block_sums_host));
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "norm nodes", room, sizeof *zero->nodes,
                        &zero->nodes));
    return mem_alloc_array(zero->env, MEM_OTHER, "norm nodes", room * (size_t)zero->roster.size,
                           sizeof *zero->all_nodes, &zero->all_nodes);
}

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

/* The aligned nodes of this owner's share of one piece, whose first block has number `number`. */
static enum status piece_nodes(struct zero *zero, int piece, int64_t number, int *count)
{
    int64_t share = zero_share_count(zero, piece) / OPS_BLOCK;
    int64_t used = zero->partition.piece_used[piece] / OPS_BLOCK;
    int64_t block = zero->share * share, end = block + share < used ? block + share : used;
    while (block < end) {
        int level = 0;
        while ((number + block) % (2ll << level) == 0 && block + (2ll << level) <= end)
            level++;
        CHECK_LT(*count, zero->node_room - 1);
        struct norm_node *node = &zero->nodes[(*count)++];
        *node = (struct norm_node){.first = (uint64_t)(number + block), .level = level};
        TRY(node_value(zero, piece, block * OPS_BLOCK, level, &node->value));
        block += 1ll << level;
    }
    return STATUS_OK;
}

/* Each rank's list is in the order of the blocks; the next block is the head of one of them. */
static double add_up(const struct zero *zero, uint64_t blocks)
{
    struct norm_tree tree = {0};
    int size = zero->roster.size, rank = 0, misses = 0;
    struct norm_node *lists = zero->all_nodes;
    while (tree.leaves < blocks) {
        struct norm_node *head = &lists[(size_t)rank * (size_t)zero->node_room];
        int64_t next = head->level; /* the head of a list counts what was taken of it */
        struct norm_node *node = &head[1 + next];
        if (node->level >= 0 && node->first == tree.leaves) {
            norm_tree_add(&tree, (int)node->level, node->value);
            head->level++;
            misses = 0;
        } else {
            rank = (rank + 1) % size;
            CHECK(misses++ <= size);
        }
    }
    return norm_tree_sum(&tree);
}

enum status norm_of_sums(struct zero *zero, double *square_sum)
{
    int count = 1; /* nodes[0] is the list's head */
    int64_t number = 0;
    zero->nodes[0] = (struct norm_node){0};
    for (int i = 0; i < zero->graph->piece_count; i++) {
        if (!zero_is_learned(zero, i))
            continue;
        if (zero->share >= 0)
            TRY(piece_nodes(zero, i, number, &count));
        number += zero->partition.piece_used[i] / OPS_BLOCK;
    }
    zero->nodes[count] = (struct norm_node){.level = -1};
    size_t bytes = (size_t)zero->node_room * sizeof *zero->nodes;
    if (zero_alone(zero))
        memcpy(zero->all_nodes, zero->nodes, bytes);
    else
        TRY(comm_exchange(zero->comm, zero->nodes, bytes, zero->all_nodes));
    *square_sum = add_up(zero, (uint64_t)number);
    return STATUS_OK;
}
