/* zero_norm_parts -- the nodes of the norm (zero_norm.c) that a rank's own shares cover.
 *
 * They are made of parts that the device forms and the host reads in one copy: a range of blocks is
 * cut at multiples of 2^PART_LEVEL blocks; what lies between is one part for each of these, the
 * blocks before and after are a part each.
 *
 *     blocks    first . . . . | . . . . . . . . | . . . . . . . . | . . end
 *     parts     1 1 1 1 1 1 1   2^PART_LEVEL      2^PART_LEVEL      1 1
 */
#include "zero/zero_norm.h"

/* --- how a range is cut --------------------------------------------------------------------- */

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
        struct block_range range = norm_share_blocks(zero, i, zero->share);
        struct cut cut = cut_range(range);
        if (!zero_is_learned(zero, i))
            continue;
        count += count_parts(range);
        *most = cut.tail - cut.middle > *most ? cut.tail - cut.middle : *most;
    }
    *most = *most < 1ll << CHUNK_LEVEL ? *most : 1ll << CHUNK_LEVEL;
    return count;
}

enum status norm_parts_create(struct zero *zero)
{
    struct device *device = zero->ops->device;
    int64_t blocks;
    size_t bytes = (size_t)(zero->part_count = own_parts(zero, &blocks)) * sizeof *zero->parts;
    TRY(device_alloc(device, MEM_SCRATCH, "norm block sums",
                     (size_t)blocks * sizeof *zero->block_sums, &zero->block_sums));
    TRY(device_alloc(device, MEM_SCRATCH, "norm parts", bytes, &zero->parts));
    return device_alloc_host(device, MEM_OTHER, "norm parts", bytes, &zero->parts_host);
}

/* --- sums of blocks ------------------------------------------------------------------------- */

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

enum status norm_read_parts(struct zero *zero)
{
    int64_t count = 0;
    for (int i = 0; i < zero->graph->piece_count; i++)
        if (zero_is_learned(zero, i))
            count +=
                form_parts(zero, i, norm_share_blocks(zero, i, zero->share), zero->parts + count);
    CHECK_EQ(count, zero->part_count);
    device_copy(zero->stream, zero->parts_host, zero->parts, (size_t)count * sizeof *zero->parts);
    return stream_sync(zero->stream);
}

/* A node over 2^level blocks from the parts it begins with; they are passed. */
static double node_value(int level, const double **parts)
{
    int64_t count = 1ll << (level < PART_LEVEL ? level : level - PART_LEVEL);
    double value = norm_tree_node(*parts, count);
    *parts += count;
    return value;
}

enum status norm_form_nodes(struct zero *zero)
{
    int count = 0;
    const double *next = zero->parts_host;
    TRY(norm_read_parts(zero));
    for (int i = 0; i < zero->graph->piece_count; i++) {
        if (!zero_is_learned(zero, i))
            continue;
        struct block_range range = norm_share_blocks(zero, i, zero->share);
        while (range.first < range.end) {
            int level = norm_first_level(range);
            CHECK_LT(count, zero->node_room);
            zero->nodes[count++] = node_value(level, &next);
            range.first += 1ll << level;
        }
    }
    return STATUS_OK;
}
