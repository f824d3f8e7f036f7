/* zero_state -- the state in its saved form: masters and moments by tensor, for reading and writing
 * checkpoints; and a snapshot of this rank's part, which is saved in the background.
 *
 * Every element of a tensor is in exactly one rank's reduce shard (roster.h), also where several
 * ranks hold it. So when each rank saves its reduce shards, every element is saved once, and all
 * ranks save about the same amount. On loading, a rank reads everything that it holds. Padding is
 * in no range.
 *
 * A reduce shard begins with a complete block, so where moments have codes the scale of every block
 * is saved once, too, by the rank that saves its elements.
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
#include "zero/zero_offload.h"

/* --- arrays --------------------------------------------------------------------------------- */

static bool is_scales(enum zero_state state)
{
    return state == ZERO_MOMENTUM_SCALES || state == ZERO_VARIANCE_SCALES;
}

struct zero_array zero_state_array(const struct zero *zero, enum zero_state state, int tensor)
{
    const struct unit_graph *graph = zero_whole_graph(zero);
    enum moment_form form = zero_state_form(zero, state, tensor);
    bool codes = form == MOMENT_CODE8 && !zero->tp_group.comm;
    struct zero_range all = {0, unit_tensor_whole(&graph->tensors[tensor])};
    if (is_scales(state))
        all = codes ? zero_code_blocks(zero_code_skip(graph, tensor), all) : (struct zero_range){0};
    return (struct zero_array){codes ? DTYPE_U8 : DTYPE_F32, form == MOMENT_NONE ? 0 : all.count};
}

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

/* Elements first .. end-1 of a part that is split across lines. */
static struct reduce_shard part_of_lines(const struct unit_tensor *tensor, int64_t first,
                                         int64_t end, int t, int tp_group)
{
    const struct unit_lines l = unit_tensor_lines(tensor);
    /* The first line that begins here, and the one after the last that ends here. */
    int64_t begun = (first + l.run - 1) / l.run, ended = end / l.run;
    int64_t from = begun == 0 ? 0 : begun <= l.lead ? 1 : begun - l.lead + 1;
    int64_t to = ended < l.lead ? 0 : ended - l.lead + 1, lines = to - from;
    if (lines < 0)
        return (struct reduce_shard){.head = own_range(tensor, first, end)};
    int64_t mine = unit_line_place(&l, from + lines * t / tp_group);
    int64_t next = unit_line_place(&l, from + lines * (t + 1) / tp_group);
    struct reduce_shard reduce_shard = {
        .head = own_range(tensor, first, unit_line_place(&l, from) * l.run),
        .tail = own_range(tensor, unit_line_place(&l, to) * l.run, end),
        .together = lines > 0};
    if (mine < next)
        reduce_shard.lines = (struct zero_range){mine * l.line, (next - mine) * l.line};
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
    return part_of_lines(&part, first, end, t, zero->tp_group.size);
}

static void add_range(struct zero_ranges *ranges, struct zero_range range)
{
    if (range.count > 0)
        ranges->at[ranges->count++] = range;
}

/* The same for any state: blocks where it is an array of scales. */
static struct reduce_shard saved_items(const struct zero *zero, enum zero_state state, int tensor,
                                       int reduce_shard, int t)
{
    if (zero_state_array(zero, state, tensor).count == 0)
        return (struct reduce_shard){0};
    struct reduce_shard saved = saved_part(zero, tensor, reduce_shard, t);
    if (is_scales(state))
        saved.head = zero_code_blocks(zero_code_skip(zero_whole_graph(zero), tensor), saved.head);
    return saved;
}

struct zero_ranges zero_state_to_save(const struct zero *zero, enum zero_state state, int tensor,
                                      int rank)
{
    const struct unit_cut *cut = zero->pipe.cut;
    int pp_stages = cut ? comm_size(zero->pipe.comm) : 1, tp_group = zero->tp_group.size;
    int number = roster_reduce_shard(&zero->roster, rank / tp_group / pp_stages);
    struct zero_ranges ranges = {.count = 0};
    if (number < 0 || (cut && cut->owner[tensor] != rank / tp_group % pp_stages))
        return ranges;
    struct reduce_shard saved = saved_items(zero, state, tensor, number, rank % tp_group);
    add_range(&ranges, saved.head);
    add_range(&ranges, saved.lines);
    add_range(&ranges, saved.tail);
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

/* The elements of a tensor's first block that are not the tensor's. */
static int own_skip(const struct zero *zero, int own)
{
    return (int)(partition_tensor(&zero->partition, own).first % OPS_BLOCK);
}

/* The same for any state. */
static struct zero_range held_items(const struct zero *zero, enum zero_state state, int own)
{
    struct zero_range held = held_range(zero, own);
    return is_scales(state) ? zero_code_blocks(own_skip(zero, own), held) : held;
}

struct zero_range zero_state_held(const struct zero *zero, enum zero_state state, int tensor)
{
    int own = zero_own_tensor(zero, tensor);
    if (own < 0 || zero_state_array(zero, state, tensor).count == 0)
        return (struct zero_range){0};
    struct zero_range held = held_items(zero, state, own);
    if (held.count == 0 || is_scales(state))
        return held;
    const struct unit_tensor *t = &zero->graph->tensors[own];
    int64_t first = unit_tensor_index(t, held.first, NULL);
    int64_t last = unit_tensor_index(t, held.first + held.count - 1, NULL);
    return (struct zero_range){first, last + 1 - first};
}

/* --- reading and writing state -------------------------------------------------------------- */

/* Bytes of an element, or of a scale, as the store has it. */
static size_t width_of(const struct zero *zero, enum zero_state state, int own)
{
    bool wide = zero_state_form(zero, state, zero_whole_tensor(zero, own)) == MOMENT_F32;
    return wide ? sizeof(float) : 1;
}

/* Items of a state of this rank's own part of a tensor, which are consecutive bytes: in device
 * memory, or in a packet of far memory. */
struct place {
    char *at;   /* NULL: far */
    int packet; /* -1: they are in device memory */
    size_t offset;
    int64_t count;
};

/* Are far params the masters of a tensor of this graph? They have 16 bits where they are frozen. */
static bool are_far_params(const struct zero *zero, enum zero_state state, int own)
{
    int piece = partition_tensor(&zero->partition, own).piece;
    return state == ZERO_MASTER && !zero_piece_has_master(zero, piece) &&
           zero->pieces[piece].params_are_far;
}

/* Is a state of a tensor of this graph in far memory, as it is saved? */
static bool is_far(const struct zero *zero, enum zero_state state, int own)
{
    int piece = partition_tensor(&zero->partition, own).piece;
    if (state == ZERO_MASTER && !zero_piece_has_master(zero, piece))
        return are_far_params(zero, state, own) && zero->type == DTYPE_F32;
    return zero->pieces[piece].state_is_far;
}

/* Elements of this rank's part of a tensor, as a range of its piece. */
static struct piece_range piece_part(const struct zero *zero, int own, struct zero_range part)
{
    struct piece_range tensor = partition_tensor(&zero->partition, own);
    return (struct piece_range){tensor.piece, tensor.first + part.first, part.count};
}

/* The place of the first items of a range; it may be the place of all of them. */
static struct place find_items(const struct zero *zero, enum zero_state state, int own,
                               struct zero_range range)
{
    struct piece_range tensor = partition_tensor(&zero->partition, own);
    struct zero_range all = held_items(zero, state, own);
    CHECK(zero->config.micro_batches > 0);
    CHECK(range.first >= all.first && range.first + range.count <= all.first + all.count);
    int64_t blocks = tensor.first / OPS_BLOCK + range.first;
    int64_t element = is_scales(state) ? blocks * OPS_BLOCK : tensor.first + range.first;
    int64_t shard = zero->shard * zero_shard_count(zero, tensor.piece);
    element = element > shard ? element : shard;
    int packet = is_far(zero, state, own) ? offload_packet(zero, tensor.piece, element) : -1;
    struct state_view view = offload_view(zero, tensor.piece, packet);
    int64_t held = tensor.first > view.held.first ? tensor.first : view.held.first;
    int64_t left = view.held.first + view.held.count - element;
    struct place place = {.packet = packet, .count = range.count};
    char *bases[] = {view.master, view.m, view.v};
    int which = state == ZERO_VARIANCE || state == ZERO_VARIANCE_SCALES;
    char *base = state == ZERO_MASTER ? bases[0] : bases[1 + which];
    if (state == ZERO_MASTER) {
        place.offset = (size_t)(element - view.master_first) *
                       dtype_bytes(zero_master_type(zero, tensor.piece));
    } else if (is_scales(state)) {
        place.offset = moments_place(zero, view.held, which, own).scales +
                       (size_t)(element / OPS_BLOCK - held / OPS_BLOCK);
        left = (left + OPS_BLOCK - 1) / OPS_BLOCK;
    } else {
        place.offset = moments_place(zero, view.held, which, own).values +
                       (size_t)(element - held) * width_of(zero, state, own);
    }
    if (packet < 0) {
        place.at = base + place.offset;
        return place;
    }
    const struct zero_packet *p = &zero->packets[packet];
    place.offset += state == ZERO_MASTER ? 0 : which == 0 ? p->m : p->v;
    place.count = left < range.count ? left : range.count;
    return place;
}

/* Copy items between this rank's state and host memory. Waits where they are far; otherwise the
 * caller waits for the stream. */
static enum status take_items(struct zero *zero, enum zero_state state, int own,
                              struct zero_range range, void *out)
{
    size_t width = width_of(zero, state, own);
    if (are_far_params(zero, state, own))
        return far_params_read(zero, piece_part(zero, own, range), out);
    for (struct zero_range left = range; left.count > 0;) {
        struct place place = find_items(zero, state, own, left);
        char *to = (char *)out + (size_t)(left.first - range.first) * width;
        size_t bytes = (size_t)place.count * width;
        if (place.packet < 0)
            device_copy(zero->stream, to, place.at, bytes);
        else
            TRY(offload_read(zero, place.packet, place.offset, to, bytes));
        left = (struct zero_range){left.first + place.count, left.count - place.count};
    }
    return STATUS_OK;
}

static enum status put_items(struct zero *zero, enum zero_state state, int own,
                             struct zero_range range, const void *values)
{
    size_t width = width_of(zero, state, own);
    for (struct zero_range left = range; left.count > 0;) {
        struct place place = find_items(zero, state, own, left);
        const char *from = (const char *)values + (size_t)(left.first - range.first) * width;
        size_t bytes = (size_t)place.count * width;
        if (place.packet < 0)
            device_copy(zero->stream, place.at, from, bytes);
        else
            TRY(offload_write(zero, place.packet, place.offset, from, bytes));
        left = (struct zero_range){left.first + place.count, left.count - place.count};
    }
    return STATUS_OK;
}

/* A range of an array of the whole tensor, as a range of this rank's part. */
static struct zero_range own_part(const struct zero *zero, enum zero_state state, int own,
                                  struct zero_range whole)
{
    return is_scales(state) ? whole : tp_group_part(&zero->graph->tensors[own], whole);
}

static enum zero_state scales_of(enum zero_state state)
{
    return state == ZERO_MOMENTUM ? ZERO_MOMENTUM_SCALES : ZERO_VARIANCE_SCALES;
}

/* Does the store have codes of this moment? */
static bool has_codes(const struct zero *zero, enum zero_state state, int own)
{
    return !is_scales(state) &&
           zero_state_form(zero, state, zero_whole_tensor(zero, own)) == MOMENT_CODE8;
}

/* Does the store have 16-bit params in place of these masters? */
static bool has_narrow(const struct zero *zero, enum zero_state state, int own)
{
    int piece = partition_tensor(&zero->partition, own).piece;
    return state == ZERO_MASTER && zero_master_type(zero, piece) != DTYPE_F32;
}

/* 16-bit params as fp32. */
static enum status widen_part(struct zero *zero, int own, struct zero_range part, float *out)
{
    for (int64_t done = 0, n; done < part.count; done += n) {
        n = part.count - done < ZERO_STAGING ? part.count - done : ZERO_STAGING;
        struct zero_range chunk = {part.first + done, n};
        if (are_far_params(zero, ZERO_MASTER, own))
            TRY(far_params_read(zero, piece_part(zero, own, chunk), zero->staging));
        else
            device_copy(zero->stream, zero->staging, find_items(zero, ZERO_MASTER, own, chunk).at,
                        (size_t)n * dtype_bytes(zero->type));
        TRY(stream_sync(zero->stream));
        dtype_convert(out + done, DTYPE_F32, zero->staging, zero->type, n);
    }
    return STATUS_OK;
}

static enum status decode_part(struct zero *zero, enum zero_state state, int own,
                               struct zero_range part, float *out)
{
    uint8_t *codes = zero->codes, *scales = codes + ZERO_CODES_MOST;
    int skip = own_skip(zero, own);
    for (int64_t done = 0, n; done < part.count; done += n) {
        n = part.count - done < ZERO_STAGING ? part.count - done : ZERO_STAGING;
        struct zero_range chunk = {part.first + done, n}, blocks = zero_code_blocks(skip, chunk);
        TRY(take_items(zero, state, own, chunk, codes));
        TRY(take_items(zero, scales_of(state), own, blocks, scales));
        TRY(stream_sync(zero->stream));
        zero_decode(state, codes, scales, (chunk.first + skip) % OPS_BLOCK, n, zero->env->threads,
                    out + done);
    }
    return STATUS_OK;
}

enum status zero_state_read_part(struct zero *zero, enum zero_state state, int own,
                                 struct zero_range part, float *out)
{
    if (has_codes(zero, state, own))
        return decode_part(zero, state, own, part, out);
    if (has_narrow(zero, state, own))
        return widen_part(zero, own, part, out);
    return take_items(zero, state, own, part, out);
}

enum status zero_state_read(struct zero *zero, enum zero_state state, int tensor, int64_t first,
                            int64_t count, void *out)
{
    int own = zero_own_tensor(zero, tensor);
    CHECK(own >= 0);
    TRY(zero_settle(zero));
    struct zero_range part = own_part(zero, state, own, (struct zero_range){first, count});
    CHECK_EQ(part.count, count);
    if (count > 0 && zero_state_array(zero, state, tensor).type == DTYPE_F32)
        TRY(zero_state_read_part(zero, state, own, part, out));
    else if (count > 0)
        TRY(take_items(zero, state, own, part, out));
    return stream_sync(zero->stream);
}

/* What this rank holds of a range of the whole array, as a range of its own part. */
static struct zero_range held_part(const struct zero *zero, enum zero_state state, int own,
                                   struct zero_range whole)
{
    struct zero_range part = own_part(zero, state, own, whole);
    struct zero_range held = held_items(zero, state, own);
    int64_t end = part.first + part.count, held_end = held.first + held.count;
    end = end < held_end ? end : held_end;
    part.first = part.first > held.first ? part.first : held.first;
    part.count = end > part.first ? end - part.first : 0;
    return part;
}

/* Encode elements of this rank's part, and store the blocks that they complete. */
static enum status encode_part(struct zero *zero, enum zero_state state, int own,
                               struct zero_range part, const float *values)
{
    struct zero_encoder *e = &zero->encoder;
    struct zero_range held = held_range(zero, own);
    uint8_t *codes = zero->codes, *scales = codes + ZERO_CODES_MOST;
    int skip = own_skip(zero, own);
    if (part.first == held.first)
        *e = (struct zero_encoder){.next = held.first};
    CHECK_EQ(part.first, e->next);
    struct zero_range done = {e->next - e->count, 0};
    for (int64_t i = 0, block = 0; i < part.count; i++) {
        e->values[e->count++] = values[i];
        e->next++;
        if ((e->next + skip) % OPS_BLOCK != 0 && e->next != held.first + held.count)
            continue;
        moments_encode(state, e->values, e->count, codes + done.count, &scales[block++]);
        done.count += e->count;
        e->count = 0;
    }
    struct zero_range blocks = zero_code_blocks(skip, done);
    if (done.count == 0)
        return STATUS_OK;
    TRY(put_items(zero, state, own, done, codes));
    return put_items(zero, scales_of(state), own, blocks, scales);
}

enum status zero_write_masters(struct zero *zero, int own, struct zero_range part,
                               const float *values)
{
    struct piece_range tensor = partition_tensor(&zero->partition, own);
    int64_t shard = zero->shard * zero_shard_count(zero, tensor.piece);
    enum dtype type = zero_master_type(zero, tensor.piece);
    if (are_far_params(zero, ZERO_MASTER, own))
        return far_params_write(zero, piece_part(zero, own, part), values);
    if (is_far(zero, ZERO_MASTER, own))
        return put_items(zero, ZERO_MASTER, own, part, values);
    void *to = zero_at(zero->pieces[tensor.piece].master, type, tensor.first + part.first - shard);
    if (type != DTYPE_F32)
        return zero_write_rounded(zero, to, values, part.count);
    device_copy(zero->stream, to, values, (size_t)part.count * sizeof *values);
    return stream_sync(zero->stream);
}

enum status zero_state_write(struct zero *zero, enum zero_state state, int tensor, int64_t first,
                             int64_t count, enum dtype type, const void *values)
{
    int own = zero_own_tensor(zero, tensor);
    CHECK(own >= 0 && zero_state_form(zero, state, tensor) != MOMENT_NONE);
    TRY(zero_settle(zero));
    struct zero_range part = held_part(zero, state, own, (struct zero_range){first, count});
    if (type == DTYPE_U8 && part.count > 0) { /* codes or scales as they are */
        CHECK_EQ(zero_state_array(zero, state, tensor).type, DTYPE_U8);
        TRY(put_items(zero, state, own, part, (const char *)values + (part.first - first)));
        return stream_sync(zero->stream);
    }
    for (int64_t done = 0, n; done < part.count; done += n) {
        n = part.count - done < ZERO_STAGING ? part.count - done : ZERO_STAGING;
        struct zero_range chunk = {part.first + done, n};
        const float *packed =
            tp_group_pack(&zero->graph->tensors[own], chunk.first, n, first, values, zero->staging);
        if (has_codes(zero, state, own))
            TRY(encode_part(zero, state, own, chunk, packed));
        else if (state == ZERO_MASTER)
            TRY(zero_write_masters(zero, own, chunk, packed));
        else
            TRY(put_items(zero, state, own, chunk, packed));
        TRY(stream_sync(zero->stream));
    }
    return stream_sync(zero->stream);
}

/* --- snapshots ------------------------------------------------------------------------------ */

/* The snapshot of a piece holds state after state, of each its tensors one after the other, and of
 * each tensor what this rank saves. */

static struct reduce_shard own_saved(const struct zero *zero, enum zero_state state, int own)
{
    return saved_items(zero, state, zero_whole_tensor(zero, own), zero->reduce_shard,
                       zero->tp_group.rank);
}

/* Far state is not copied, but saved from where it is: no update changes it before
 * zero_snapshot_pass. TP ranks need the lines of each other, which they copy. */
static bool saved_in_place(const struct zero *zero, enum zero_state state, int own)
{
    return is_far(zero, state, own) && !zero->tp_group.comm;
}

/* The place of a state of a tensor in the snapshot of its piece, after the first *bytes, which grow
 * by it. */
static size_t place_copy(const struct zero *zero, enum zero_state state, int own, size_t *bytes)
{
    if (saved_in_place(zero, state, own))
        return *bytes;
    struct reduce_shard saved = own_saved(zero, state, own);
    int64_t count = saved.head.count + saved.lines.count + saved.tail.count;
    size_t width = dtype_bytes(zero_state_array(zero, state, zero_whole_tensor(zero, own)).type);
    size_t place = (*bytes + width - 1) / width * width;
    *bytes = place + (size_t)count * width;
    return place;
}

/* The place of a state of tensor `own`; ZERO_STATES: the end. */
static size_t find_copy(const struct zero *zero, int piece, enum zero_state state, int own)
{
    int first, end;
    size_t bytes = 0;
    zero_piece_tensors(zero->graph, piece, &first, &end);
    for (int s = 0; s < ZERO_STATES; s++)
        for (int t = first; t < end; t++) {
            size_t place = place_copy(zero, (enum zero_state)s, t, &bytes);
            if (s == (int)state && t == own)
                return place;
        }
    return bytes;
}

size_t zero_snapshot_bytes(const struct zero *zero, int piece)
{
    return zero->reduce_shard < 0 ? 0 : find_copy(zero, piece, ZERO_STATES, 0);
}

/* Bytes of one allocation that are contiguous on both sides are copied in one call. Most tensors of
 * a unit are. */
struct copy_run {
    char *to;
    const char *from;
    size_t bytes;
};

static void copy_now(struct zero *zero, struct copy_run *run)
{
    device_copy(zero->stream, run->to, run->from, run->bytes);
    run->bytes = 0;
}

static enum status copy_own(struct zero *zero, enum zero_state state, int own,
                            struct zero_range range, char *out, struct copy_run *run)
{
    if (range.count == 0)
        return STATUS_OK;
    struct zero_range part = own_part(zero, state, own, range);
    if ((has_codes(zero, state, own) && zero->tp_group.comm) || has_narrow(zero, state, own))
        return zero_state_read_part(zero, state, own, part, (float *)out);
    if (is_far(zero, state, own))
        return take_items(zero, state, own, part, out);
    const char *from = find_items(zero, state, own, part).at;
    if (run->bytes == 0 || out != run->to + run->bytes || from != run->from + run->bytes) {
        copy_now(zero, run);
        *run = (struct copy_run){out, from, 0};
    }
    run->bytes += (size_t)range.count * width_of(zero, state, own);
    return STATUS_OK;
}

static enum status copy_tensor(struct zero *zero, enum zero_state state, int own, char *out,
                               struct copy_run *run)
{
    int tensor = zero_whole_tensor(zero, own);
    struct reduce_shard saved = own_saved(zero, state, own);
    size_t width = dtype_bytes(zero_state_array(zero, state, tensor).type);
    if (saved_in_place(zero, state, own))
        return STATUS_OK;
    char *lines = out + (size_t)saved.head.count * width;
    TRY(copy_own(zero, state, own, saved.head, out, run));
    TRY(copy_own(zero, state, own, saved.tail, lines + (size_t)saved.lines.count * width, run));
    if (!saved.together)
        return STATUS_OK;
    for (int t = 0; t < zero->tp_group.size; t++)
        zero->tp_group.wanted[t] = saved_part(zero, tensor, zero->reduce_shard, t).lines;
    return tp_group_collect(zero, state, tensor, (float *)lines);
}

static enum status copy_piece(struct zero *zero, int piece)
{
    int first, end;
    size_t bytes = 0;
    zero_piece_tensors(zero->graph, piece, &first, &end);
    for (int s = 0; s < ZERO_STATES; s++) {
        struct copy_run run = {0};
        for (int t = first; t < end; t++) {
            enum zero_state state = (enum zero_state)s;
            char *out = zero->pieces[piece].snapshot + place_copy(zero, state, t, &bytes);
            TRY(copy_tensor(zero, state, t, out, &run));
        }
        copy_now(zero, &run); /* the next state may be the next allocation, and a GPU copies no more
                                 than one at a time */
    }
    return STATUS_OK;
}

enum status zero_snapshot(struct zero *zero)
{
    CHECK(zero->config.snapshot);
    TRY(zero_settle(zero));
    for (int i = 0; i < zero->graph->piece_count; i++)
        if (zero->pieces[i].snapshot)
            TRY(copy_piece(zero, i));
    TRY(stream_sync(zero->stream));
    if (!zero->tp_group.comm)
        offload_hold(zero, 0);
    return STATUS_OK;
}

void zero_snapshot_pass(struct zero *zero, int tensor)
{
    int own = zero_own_tensor(zero, tensor);
    if (own >= 0)
        offload_hold(zero, partition_tensor(&zero->partition, own).piece);
}

void zero_snapshot_end(struct zero *zero)
{
    offload_hold(zero, zero->graph->piece_count);
}

const void *zero_snapshot_at(const struct zero *zero, enum zero_state state, int tensor,
                             int64_t first)
{
    int own = zero_own_tensor(zero, tensor);
    int piece = partition_tensor(&zero->partition, own).piece;
    size_t width = dtype_bytes(zero_state_array(zero, state, tensor).type);
    struct reduce_shard saved = own_saved(zero, state, own);
    const struct zero_range ranges[] = {saved.head, saved.lines, saved.tail};
    if (saved_in_place(zero, state, own))
        return NULL;
    const char *at = zero->pieces[piece].snapshot + find_copy(zero, piece, state, own);
    for (int i = 0; i < ZERO_RANGES; at += (size_t)ranges[i++].count * width)
        if (first >= ranges[i].first && first < ranges[i].first + ranges[i].count)
            return at + (size_t)(first - ranges[i].first) * width;
    CHECK(!"an element that is another rank's to save");
    return NULL;
}

enum status zero_snapshot_read(struct zero *zero, enum zero_state state, int tensor, int64_t first,
                               int64_t count, void *room, const void **data)
{
    int own = zero_own_tensor(zero, tensor);
    *data = zero_snapshot_at(zero, state, tensor, first);
    if (*data)
        return STATUS_OK;
    *data = room;
    return take_items(zero, state, own,
                      own_part(zero, state, own, (struct zero_range){first, count}), room);
}
