/* zero_state -- the state in its saved form: masters, momentum and variance by tensor and element,
 * for reading and writing checkpoints; and a snapshot of this rank's part, which is saved in the
 * background.
 *
 * Every element of a tensor is in exactly one rank's reduce shard (roster.h), also where several
 * ranks hold it. So when each rank saves its reduce shards, every element is saved once, and all
 * ranks save about the same amount. On loading, a rank reads everything that it holds. Padding is
 * in no range.
 *
 * Where a TP group splits a tensor across its lines, each rank has a short run of every line, and
 * saving the runs would write many tiny fragments. Instead, the lines that are complete in a reduce
 * shard are distributed: each rank saves some of them from end to end, and receives the other
 * ranks' runs when the snapshot is made. The incomplete lines at both ends of the reduce shard are
 * saved by the rank that has them.
 *
 *     lines    rank 0    rank 1          a reduce shard on both, from * to +
 *     0        . . . *   . . . *         each saves its own end
 *     1        * * * *   * * * *         saved by rank 0
 *     2        * * * *   * * * *         saved by rank 1
 *     3        * + . .   * + . .         each saves its own end
 */
#include "zero/zero_impl.h"

/* --- which rank saves and holds what -------------------------------------------------------- */

/* The elements of a tensor that a rank saves: of its own part, and after those the lines that it
 * assembles with its TP group. Ranges of the whole tensor. */
struct reduce_shard {
    struct zero_range head, lines, tail;
    bool together;
};

/* Elements first .. end-1 of a part, which must be contiguous in the whole tensor. */
static struct zero_range own_range(const struct unit_tensor *tensor, int64_t first, int64_t end)
{
    if (first == end)
        return (struct zero_range){0};
    return (struct zero_range){unit_tensor_index(tensor, first, NULL), end - first};
}

/* Elements first .. end-1 of a part that is split across lines: `run` elements of every line. */
static struct reduce_shard part_of_lines(const struct unit_tensor *tensor, int64_t first,
                                         int64_t end, int64_t run, int t, int tp_group)
{
    int64_t width = unit_tensor_whole(tensor) / (unit_tensor_count(tensor) / run);
    int64_t from = (first + run - 1) / run, to = end / run, lines = to - from;
    if (lines < 0)
        return (struct reduce_shard){.head = own_range(tensor, first, end)};
    int64_t mine = from + lines * t / tp_group, next = from + lines * (t + 1) / tp_group;
    struct reduce_shard reduce_shard = {.head = own_range(tensor, first, from * run),
                                        .tail = own_range(tensor, to * run, end),
                                        .together = lines > 0};
    if (mine < next)
        reduce_shard.lines = (struct zero_range){mine * width, (next - mine) * width};
    return reduce_shard;
}

/* What rank t of the TP group saves of reduce shard `reduce_shard` of a tensor. */
static struct reduce_shard saved_part(const struct zero *zero, int tensor, int reduce_shard, int t)
{
    const struct partition *partition = zero->pipe.cut ? &zero->whole : &zero->partition;
    const struct unit_tensor part = tp_group_tensor(zero, tensor, t);
    struct piece_range range = partition_tensor(partition, tensor);
    int64_t run, count = unit_tensor_count(&part);
    range.count = count;
    struct piece_range clipped = partition_clip(partition, range, reduce_shard);
    int64_t first = clipped.first - range.first, end = first + clipped.count;
    if (clipped.count == 0 || !unit_tensor_answers(&part))
        return (struct reduce_shard){0};
    unit_tensor_index(&part, 0, &run);
    if (run == count)
        return (struct reduce_shard){.head = own_range(&part, first, end)};
    CHECK(part.split.replicas <= 1 && part.split.most == 0);
    return part_of_lines(&part, first, end, run, t, zero->tp_group.size);
}

static void add_range(struct zero_ranges *ranges, struct zero_range range)
{
    if (range.count > 0)
        ranges->at[ranges->count++] = range;
}

struct zero_ranges zero_state_to_save(const struct zero *zero, int tensor, int rank)
{
    const struct unit_cut *cut = zero->pipe.cut;
    int pp_stages = cut ? comm_size(zero->pipe.comm) : 1, tp_group = zero->tp_group.size;
    int number = roster_reduce_shard(&zero->roster, rank / tp_group / pp_stages);
    struct zero_ranges ranges = {.count = 0};
    if (number < 0 || (cut && cut->owner[tensor] != rank / tp_group % pp_stages))
        return ranges;
    struct reduce_shard reduce_shard = saved_part(zero, tensor, number, rank % tp_group);
    add_range(&ranges, reduce_shard.head);
    add_range(&ranges, reduce_shard.lines);
    add_range(&ranges, reduce_shard.tail);
    return ranges;
}

/* The elements that this rank holds, of its own part of a tensor of this graph. */
static struct zero_range held_range(const struct zero *zero, int own)
{
    struct piece_range whole = partition_tensor(&zero->partition, own);
    if (zero->shard < 0 || zero_borrowed_from(zero, whole.piece) != UNIT_NO_STAGE)
        return (struct zero_range){0};
    struct piece_range part =
        partition_clip_part(&zero->partition, whole, zero->shard, zero->shards);
    return (struct zero_range){part.count > 0 ? part.first - whole.first : 0, part.count};
}

struct zero_range zero_state_held(const struct zero *zero, int tensor)
{
    int own = zero_own_tensor(zero, tensor);
    struct zero_range held = own < 0 ? (struct zero_range){0} : held_range(zero, own);
    if (held.count == 0)
        return held;
    const struct unit_tensor *t = &zero->graph->tensors[own];
    int64_t first = unit_tensor_index(t, held.first, NULL);
    int64_t last = unit_tensor_index(t, held.first + held.count - 1, NULL);
    return (struct zero_range){first, last + 1 - first};
}

/* --- reading and writing state -------------------------------------------------------------- */

/* The address of elements that this rank holds, of its own part of a tensor of this graph. */
static float *elements_at(const struct zero *zero, enum zero_state state, int own,
                          struct zero_range range)
{
    struct piece_range tensor = partition_tensor(&zero->partition, own);
    struct zero_range held = held_range(zero, own);
    CHECK(zero->config.micro_batches > 0);
    CHECK(range.first >= held.first && range.first + range.count <= held.first + held.count);
    const struct zero_piece *piece = &zero->pieces[tensor.piece];
    float *const states[] = {
        [ZERO_MASTER] = piece->master, [ZERO_MOMENTUM] = piece->m, [ZERO_VARIANCE] = piece->v};
    int64_t shard_first = zero->shard * zero_shard_count(zero, tensor.piece);
    return states[state] + tensor.first + range.first - shard_first;
}

enum status zero_state_read(struct zero *zero, enum zero_state state, int tensor, int64_t first,
                            int64_t count, float *out)
{
    int own = zero_own_tensor(zero, tensor);
    CHECK(own >= 0);
    struct zero_range part =
        tp_group_part(&zero->graph->tensors[own], (struct zero_range){first, count});
    CHECK_EQ(part.count, count);
    if (count > 0)
        device_copy(zero->stream, out, elements_at(zero, state, own, part),
                    (size_t)count * sizeof *out);
    return stream_sync(zero->stream);
}

/* The elements of a range of the whole tensor that this rank holds, as elements of its own part. */
static struct zero_range held_part(const struct zero *zero, int own, struct zero_range whole)
{
    struct zero_range part = tp_group_part(&zero->graph->tensors[own], whole);
    struct zero_range held = held_range(zero, own);
    int64_t end = part.first + part.count, held_end = held.first + held.count;
    end = end < held_end ? end : held_end;
    part.first = part.first > held.first ? part.first : held.first;
    part.count = end > part.first ? end - part.first : 0;
    return part;
}

enum status zero_state_write(struct zero *zero, enum zero_state state, int tensor, int64_t first,
                             int64_t count, const float *values)
{
    int own = zero_own_tensor(zero, tensor);
    CHECK(own >= 0);
    struct zero_range part = held_part(zero, own, (struct zero_range){first, count});
    for (int64_t done = 0, n; done < part.count; done += n) {
        n = part.count - done < ZERO_STAGING ? part.count - done : ZERO_STAGING;
        struct zero_range chunk = {part.first + done, n};
        device_copy(
            zero->stream, elements_at(zero, state, own, chunk),
            tp_group_pack(&zero->graph->tensors[own], chunk.first, n, first, values, zero->staging),
            (size_t)n * sizeof *values);
        TRY(stream_sync(zero->stream));
    }
    return stream_sync(zero->stream);
}

/* --- snapshots ------------------------------------------------------------------------------ */

/* The snapshot of a piece holds its tensors one after the other, and of each the elements that this
 * rank saves. */

static int whole_tensor(const struct zero *zero, int own)
{
    return zero->pipe.cut ? zero->pipe.cut->whole_tensor[own] : own;
}

static int64_t saved_count(const struct zero *zero, int own)
{
    struct reduce_shard s =
        saved_part(zero, whole_tensor(zero, own), zero->reduce_shard, zero->tp_group.rank);
    return s.head.count + s.lines.count + s.tail.count;
}

/* The tensors of a piece: first .. end-1. */
static void tensors_of(const struct unit_graph *graph, int piece, int *first, int *end)
{
    const struct unit_piece *p = &graph->pieces[piece];
    const struct unit_param *last = &graph->params[p->first_param + p->param_count - 1];
    *first = graph->params[p->first_param].first_tensor;
    *end = last->first_tensor + last->tensor_count;
}

/* Elements in the snapshot of a piece before those of tensor `own`. */
static int64_t copied_before(const struct zero *zero, int piece, int own)
{
    int first, end;
    int64_t count = 0;
    tensors_of(zero->graph, piece, &first, &end);
    for (int t = first; t < own; t++)
        count += saved_count(zero, t);
    return count;
}

int64_t zero_snapshot_count(const struct zero *zero, int piece)
{
    int first, end;
    if (zero->reduce_shard < 0)
        return 0;
    tensors_of(zero->graph, piece, &first, &end);
    return copied_before(zero, piece, end);
}

/* Elements that are contiguous on both sides are copied in one call. Most tensors of a unit are. */
struct copy_run {
    float *to;
    const float *from;
    int64_t count;
};

static void copy_now(struct zero *zero, struct copy_run *run)
{
    device_copy(zero->stream, run->to, run->from, (size_t)run->count * sizeof *run->to);
    run->count = 0;
}

static void copy_own(struct zero *zero, enum zero_state state, int own, struct zero_range range,
                     float *out, struct copy_run *run)
{
    if (range.count == 0)
        return;
    struct zero_range part = tp_group_part(&zero->graph->tensors[own], range);
    const float *from = elements_at(zero, state, own, part);
    if (run->count == 0 || out != run->to + run->count || from != run->from + run->count) {
        copy_now(zero, run);
        *run = (struct copy_run){out, from, 0};
    }
    run->count += range.count;
}

static enum status copy_tensor(struct zero *zero, enum zero_state state, int own, float *out,
                               struct copy_run *run)
{
    int tensor = whole_tensor(zero, own);
    struct reduce_shard reduce_shard =
        saved_part(zero, tensor, zero->reduce_shard, zero->tp_group.rank);
    copy_own(zero, state, own, reduce_shard.head, out, run);
    copy_own(zero, state, own, reduce_shard.tail,
             out + reduce_shard.head.count + reduce_shard.lines.count, run);
    if (!reduce_shard.together)
        return STATUS_OK;
    struct zero_range held = held_range(zero, own);
    for (int t = 0; t < zero->tp_group.size; t++)
        zero->tp_group.wanted[t] = saved_part(zero, tensor, zero->reduce_shard, t).lines;
    return tp_group_collect(zero, tensor, elements_at(zero, state, own, held), held.first,
                            out + reduce_shard.head.count);
}

static enum status copy_piece(struct zero *zero, int piece)
{
    int64_t count = zero_snapshot_count(zero, piece);
    int first, end;
    struct copy_run run = {0};
    tensors_of(zero->graph, piece, &first, &end);
    for (int state = 0; state < ZERO_STATES; state++) {
        float *out = zero->pieces[piece].snapshot + state * count;
        for (int t = first; t < end; t++) {
            TRY(copy_tensor(zero, (enum zero_state)state, t, out, &run));
            out += saved_count(zero, t);
        }
    }
    copy_now(zero, &run);
    return STATUS_OK;
}

enum status zero_snapshot(struct zero *zero)
{
    CHECK(zero->config.snapshot);
    for (int i = 0; i < zero->graph->piece_count; i++)
        if (zero->pieces[i].snapshot)
            TRY(copy_piece(zero, i));
    return stream_sync(zero->stream);
}

const float *zero_snapshot_at(const struct zero *zero, enum zero_state state, int tensor,
                              int64_t first)
{
    int own = zero_own_tensor(zero, tensor);
    int piece = partition_tensor(&zero->partition, own).piece;
    struct reduce_shard reduce_shard =
        saved_part(zero, tensor, zero->reduce_shard, zero->tp_group.rank);
    const struct zero_range ranges[] = {reduce_shard.head, reduce_shard.lines, reduce_shard.tail};
    const float *at = zero->pieces[piece].snapshot + state * zero_snapshot_count(zero, piece) +
                      copied_before(zero, piece, own);
    for (int i = 0; i < ZERO_RANGES; at += ranges[i++].count)
        if (first >= ranges[i].first && first < ranges[i].first + ranges[i].count)
            return at + first - ranges[i].first;
    CHECK(!"an element that is another rank's to save");
    return NULL;
}
