/* zero_norm_parts -- the nodes of the norm (zero_norm.c) that a rank's own reduce shards cover.
 *
 * Nodes are made of parts, which the device computes and the host reads in one copy. A range of
 * blocks is cut at multiples of 2^PART_LEVEL blocks: each complete stretch between two cuts is one
 * wide part, and each block before the first cut and after the last is a part of its own.
 *
 *     blocks    first . . . . | . . . . . . . . | . . . . . . . . | . . end
 *     parts     1 1 1 1 1 1 1   2^PART_LEVEL      2^PART_LEVEL      1 1
 *
 * The wide parts of all pieces come first, then the single blocks. So each call processes as many
 * blocks as there is room for, not one piece: fewer and larger calls.
 */
#include "zero/zero_norm.h"

/* --- cutting a range into parts ------------------------------------------------------------- */

enum { PART_LEVEL = 8, CHUNK_LEVEL = 20 /* blocks whose sums exist at once: 64 Mi elements */ };

/* A range with its cuts: the blocks before `middle` and from `tail` are parts of their own. */
struct cut {
    int64_t middle, tail;
};

static struct cut cut_range(struct block_range range)
{
    int64_t mask = ((int64_t)1 << PART_LEVEL) - 1;
    int64_t middle = (range.first + mask) & ~mask, tail = range.end & ~mask;
    return middle < tail ? (struct cut){middle, tail} : (struct cut){range.end, range.end};
}

enum status norm_parts_create(struct zero *zero)
{
    struct device *device = zero->ops->device;
    int64_t most = 0; /* blocks of a piece in wide parts */
    for (int i = 0; zero->reduce_shard >= 0 && i < zero->graph->piece_count; i++) {
        struct block_range range = norm_reduce_shard_blocks(zero, i, zero->reduce_shard);
        struct cut cut = cut_range(range);
        int64_t blocks = cut.tail - cut.middle, wide = blocks >> PART_LEVEL;
        if (!zero_is_learned(zero, i))
            continue;
        zero->wide_count += wide;
        zero->part_count += range.end - range.first - blocks + wide;
        most = blocks > most ? blocks : most;
    }
    zero->block_room = most < 1ll << CHUNK_LEVEL ? most : 1ll << CHUNK_LEVEL;
    size_t bytes = (size_t)zero->part_count * sizeof *zero->parts;
    TRY(device_alloc(device, MEM_SCRATCH, "norm block sums",
                     (size_t)zero->block_room * sizeof *zero->block_sums, &zero->block_sums));
    TRY(device_alloc(device, MEM_SCRATCH, "norm parts", bytes, &zero->parts));
    return device_alloc_host(device, MEM_OTHER, "norm parts", bytes, &zero->parts_host);
}

/* --- sums of blocks ------------------------------------------------------------------------- */

/* Ranges whose block sums are computed together. */
struct wanted {
    struct norm_source source;
    enum dtype type; /* of the pieces' sums */
    struct square_range ranges[32];
    int count;
};

static void form_wanted(struct zero *zero, struct wanted *wanted)
{
    if (wanted->count > 0)
        ops_square_sums(zero->ops, zero->stream, wanted->type, wanted->ranges, wanted->count);
    wanted->count = 0;
}

int64_t norm_answered_count(const struct unit_graph *graph, int param, enum unit_phase phase)
{
    const struct unit_param *p = &graph->params[param];
    int64_t count = 0;
    bool over = false;
    if (unit_param_phase(graph, param) != phase)
        return 0;
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

/* Zero the sums of complete blocks from element `from` to `to`, which do not count here. */
static void zero_blocks(struct zero *zero, const struct sum_range *b, int64_t from, int64_t to)
{
    from = (from + OPS_BLOCK - 1) / OPS_BLOCK;
    to = (to + OPS_BLOCK - 1) / OPS_BLOCK;
    from = from > b->first ? from : b->first;
    to = to < b->end ? to : b->end;
    if (from < to)
        device_zero(zero->stream, b->sums + from - b->first, (size_t)(to - from) * sizeof(double));
}

/* sums = those of blocks first .. end-1 of a piece, counted from its start. Param by param, to skip
 * padding. */
static void want_blocks(struct zero *zero, struct wanted *wanted, int piece, int64_t first,
                        int64_t end, double *sums)
{
    const struct unit_piece *unit_piece = &zero->graph->pieces[piece];
    const struct zero_use *use = &zero->pieces[piece].uses[0];
    int64_t base = zero->reduce_shard * zero_reduce_shard_count(zero, piece);
    if (wanted->source.blocks >= NORM_SQUARES) {
        device_copy(zero->stream, sums, use->squares + first - base / OPS_BLOCK,
                    (size_t)(end - first) * sizeof *sums);
        return;
    }
    for (int q = unit_piece->first_param; q < unit_piece->first_param + unit_piece->param_count;
         q++) {
        int64_t from = zero->partition.param_offset[q];
        int64_t to = from + norm_answered_count(zero->graph, q, wanted->source.phase);
        zero_blocks(zero, &(struct sum_range){first, end, sums}, to,
                    from + unit_param_room(zero->graph, q));
        from = from > first * OPS_BLOCK ? from : first * OPS_BLOCK;
        to = to < end * OPS_BLOCK ? to : end * OPS_BLOCK;
        if (from >= to)
            continue;
        if (zero->pieces[piece].sum_is_far) {
            device_copy(zero->stream, sums + from / OPS_BLOCK - first,
                        use->sum_squares + (from - base) / OPS_BLOCK,
                        (size_t)((to - from + OPS_BLOCK - 1) / OPS_BLOCK) * sizeof *sums);
            continue;
        }
        if (wanted->count == (int)(sizeof wanted->ranges / sizeof *wanted->ranges))
            form_wanted(zero, wanted);
        wanted->ranges[wanted->count++] =
            (struct square_range){zero_at(use->sum, wanted->type, from - base), to - from,
                                  sums + from / OPS_BLOCK - first};
    }
}

/* Work in progress: the sums that are wanted, the number of them in zero->block_sums that become
 * wide parts, and where the next parts go. */
struct forming {
    struct wanted wanted;
    int64_t blocks;
    double *wide, *single;
};

static void form_wide(struct zero *zero, struct forming *forming)
{
    form_wanted(zero, &forming->wanted);
    if (forming->blocks > 0)
        ops_tree_sums(zero->ops, zero->stream, forming->blocks, PART_LEVEL, zero->block_sums,
                      forming->wide);
    forming->wide += forming->blocks >> PART_LEVEL;
    forming->blocks = 0;
}

/* The parts of this rank's range of a piece. */
static void form_parts(struct zero *zero, int piece, struct block_range range,
                       struct forming *forming)
{
    int64_t number = zero->first_block[piece];
    struct cut cut = cut_range(range);
    struct wanted *wanted = &forming->wanted;
    if (wanted->type != zero_sum_type(zero, piece))
        form_wanted(zero, wanted);
    wanted->type = zero_sum_type(zero, piece);
    want_blocks(zero, wanted, piece, range.first - number, cut.middle - number, forming->single);
    forming->single += cut.middle - range.first;
    want_blocks(zero, wanted, piece, cut.tail - number, range.end - number, forming->single);
    forming->single += range.end - cut.tail;
    for (int64_t done = cut.middle; done < cut.tail;) {
        int64_t left = cut.tail - done, room = zero->block_room - forming->blocks;
        int64_t count = left < room ? left : room;
        want_blocks(zero, wanted, piece, done - number, done + count - number,
                    zero->block_sums + forming->blocks);
        forming->blocks += count;
        done += count;
        if (forming->blocks == zero->block_room)
            form_wide(zero, forming);
    }
}

/* Leave the parts of a range as they are. */
static void keep_parts(struct zero *zero, struct block_range range, struct forming *forming)
{
    struct cut cut = cut_range(range);
    form_wide(zero, forming);
    forming->wide += (cut.tail - cut.middle) >> PART_LEVEL;
    forming->single += cut.middle - range.first + range.end - cut.tail;
}

/* Enqueue the parts of the pieces that `forms` asks for; the others stay as they are. */
static void form_all(struct zero *zero, struct norm_source source,
                     bool (*forms)(const struct zero *zero, int piece))
{
    struct forming forming = {
        .wanted.source = source, .wide = zero->parts, .single = zero->parts + zero->wide_count};
    for (int i = 0; i < zero->graph->piece_count; i++) {
        struct block_range range = norm_reduce_shard_blocks(zero, i, zero->reduce_shard);
        if (!zero_is_learned(zero, i))
            continue;
        if (forms(zero, i))
            form_parts(zero, i, range, &forming);
        else
            keep_parts(zero, range, &forming);
    }
    form_wide(zero, &forming);
    CHECK_EQ(forming.wide - zero->parts, zero->wide_count);
    CHECK_EQ(forming.single - zero->parts, zero->part_count);
}

static bool is_any(const struct zero *zero, int piece)
{
    (void)zero, (void)piece;
    return true;
}

static bool is_early(const struct zero *zero, int piece)
{
    return !zero_is_late(zero, piece);
}

static bool is_changed(const struct zero *zero, int piece)
{
    return zero->pieces[piece].changes;
}

void norm_form_early(struct zero *zero)
{
    if (zero->reduce_shard >= 0)
        form_all(zero, (struct norm_source){.phase = PHASE_MAIN}, is_early);
}

enum status norm_read_parts(struct zero *zero, struct norm_source source)
{
    form_all(zero, source,
             source.blocks == NORM_LATE_SUMS         ? zero_is_late
             : source.blocks == NORM_CHANGED_SQUARES ? is_changed
                                                     : is_any);
    device_copy(zero->stream, zero->parts_host, zero->parts,
                (size_t)zero->part_count * sizeof *zero->parts);
    return stream_sync(zero->stream);
}

/* A node over 2^level blocks, made of the next parts; advances both pointers past them. */
static double node_value(int level, const double **wide, const double **single)
{
    int64_t count = 1ll << (level < PART_LEVEL ? level : level - PART_LEVEL);
    const double **parts = level < PART_LEVEL ? single : wide;
    double value = norm_tree_node(*parts, count);
    *parts += count;
    return value;
}

enum status norm_form_nodes(struct zero *zero, struct norm_source source)
{
    int count = 0;
    const double *wide = zero->parts_host, *single = wide + zero->wide_count;
    TRY(norm_read_parts(zero, source));
    for (int i = 0; i < zero->graph->piece_count; i++) {
        if (!zero_is_learned(zero, i))
            continue;
        struct block_range range = norm_reduce_shard_blocks(zero, i, zero->reduce_shard);
        while (range.first < range.end) {
            int level = norm_first_level(range);
            CHECK_LT(count, zero->node_room);
            zero->nodes[count++] = node_value(level, &wide, &single);
            range.first += 1ll << level;
        }
    }
    return STATUS_OK;
}
