/* zero_tp_group -- what the stores of a TP group do together.
 *
 * Each rank has a store of its own over its parts of the tensors (unit_split). All stores have the
 * same layout: the same offset in a piece means the same thing in all of them. Three things need
 * the other ranks:
 *
 *     gradients    where each rank has a partial gradient, these are added in rank order, once
 *                  per step
 *     elements     a range of a whole tensor is a range of every part: each rank sends its part
 *                  as it is stored, and the receiver assembles the whole, run by run
 *     the norm     each rank has the squares of what it answers for; their sums are added in
 *                  rank order (zero_norm.c)
 *
 * The ranks exchange their splits once, at start-up. Everything except the gradients goes through
 * chunks in host memory.
 */
#include <string.h>

#include "zero/zero_impl.h"

static const struct trace_lane lane_tensor = {.row = 9, .word = "tensor", .collective = true};

/* --- construction --------------------------------------------------------------------------- */

/* Where ranks share a partial gradient and are not the whole group: their communicator. */
static enum status open_replicas(struct zero *zero)
{
    struct zero_tp_group *tp_group = &zero->tp_group;
    int replicas = 0, *colours;
    for (int t = 0; t < zero->graph->tensor_count; t++) {
        const struct unit_split *s = &zero->graph->tensors[t].split;
        if (!s->partial || s->replicas == tp_group->size)
            continue;
        CHECK(replicas == 0 || replicas == s->replicas);
        replicas = s->replicas;
    }
    if (replicas <= 1)
        return STATUS_OK;
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "colours", (size_t)tp_group->size, sizeof *colours,
                        &colours));
    for (int t = 0; t < tp_group->size; t++)
        colours[t] = t / replicas;
    enum status st = comm_split_known(tp_group->comm, colours, "tp replicas", &tp_group->replicas);
    mem_free(zero->env, colours);
    if (st == STATUS_OK)
        comm_set_lane(tp_group->replicas, &lane_tensor);
    return st;
}

static enum status exchange_splits(struct zero *zero)
{
    struct zero_tp_group *tp_group = &zero->tp_group;
    const struct unit_graph *graph = zero_whole_graph(zero);
    size_t count = (size_t)graph->tensor_count;
    struct unit_split *mine;
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "parts of tensors", count * (size_t)tp_group->size,
                        sizeof *tp_group->splits, &tp_group->splits));
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "parts of tensors", count, sizeof *mine, &mine));
    for (int t = 0; t < graph->tensor_count; t++)
        mine[t] = graph->tensors[t].split;
    enum status st = comm_exchange(tp_group->comm, mine, count * sizeof *mine, tp_group->splits);
    mem_free(zero->env, mine);
    return st;
}

/* Elements of partial gradients that are added at a time. */
static int64_t partial_count(const struct zero *zero)
{
    int64_t count = 0;
    if (zero->config.micro_batches == 0 || zero->reduce_shard < 0)
        return 0;
    for (int t = 0; t < zero->graph->tensor_count; t++)
        if (zero->graph->tensors[t].split.partial)
            count += unit_tensor_count(&zero->graph->tensors[t]);
    return count < TP_GROUP_PARTIAL ? count : TP_GROUP_PARTIAL;
}

enum status tp_group_create(struct zero *zero)
{
    struct zero_tp_group *tp_group = &zero->tp_group;
    struct device *device = zero->ops->device;
    size_t size = (size_t)tp_group->size, chunk = ZERO_STAGING * sizeof(float);
    int64_t *counts;
    if (!tp_group->comm)
        return STATUS_OK;
    comm_set_lane(tp_group->comm, &lane_tensor);
    TRY(exchange_splits(zero));
    TRY(open_replicas(zero));
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "TP group tables", 4 * size, sizeof *counts,
                        &counts));
    tp_group->swap =
        (struct comm_parts){counts, counts + size, counts + 2 * size, counts + 3 * size};
    TRY(mem_alloc(zero->env, MEM_OTHER, "elements of parts", chunk, &tp_group->mine));
    TRY(mem_alloc(zero->env, MEM_OTHER, "elements of parts", chunk, &tp_group->all));
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "sums of a TP group", size, sizeof *tp_group->sums,
                        &tp_group->sums));
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "ranges of a TP group", size,
                        sizeof *tp_group->wanted, &tp_group->wanted));
    size_t partial = (size_t)(tp_group->partial_count = partial_count(zero));
    if (partial == 0)
        return STATUS_OK;
    size_t width = dtype_bytes(zero->sum_type);
    TRY(device_alloc(device, MEM_COMM, "partial gradients", partial * width, &tp_group->partial));
    return device_alloc(device, MEM_COMM, "partial gradients", (partial + 64 * size) * width,
                        &tp_group->scratch);
}

void tp_group_free(struct zero *zero)
{
    struct zero_tp_group *tp_group = &zero->tp_group;
    comm_destroy(tp_group->replicas);
    device_free(zero->ops->device, tp_group->partial);
    device_free(zero->ops->device, tp_group->scratch);
    mem_free(zero->env, tp_group->splits);
    mem_free(zero->env, tp_group->swap.send_counts);
    mem_free(zero->env, tp_group->mine);
    mem_free(zero->env, tp_group->all);
    mem_free(zero->env, tp_group->sums);
    mem_free(zero->env, tp_group->wanted);
}

struct unit_tensor tp_group_tensor(const struct zero *zero, int tensor, int t)
{
    const struct unit_graph *graph = zero_whole_graph(zero);
    struct unit_tensor result = graph->tensors[tensor];
    if (zero->tp_group.comm)
        result.split = zero->tp_group.splits[(int64_t)t * graph->tensor_count + tensor];
    return result;
}

/* --- gradients ------------------------------------------------------------------------------ */

/* Stretches of sums that one call adds. */
struct stretches {
    struct comm *comm;
    void *at[64];
    int64_t counts[64];
    int count;
    int64_t elements;
};

static void add_stretches(struct zero *zero, struct stretches *s)
{
    struct zero_tp_group *tp_group = &zero->tp_group;
    size_t width = dtype_bytes(zero->sum_type);
    if (s->count == 0)
        return;
    for (int way = 0; way < 2; way++) {
        char *packed = tp_group->partial;
        for (int i = 0; i < s->count; packed += (size_t)s->counts[i++] * width)
            device_copy(zero->stream, way == 0 ? packed : s->at[i], way == 0 ? s->at[i] : packed,
                        (size_t)s->counts[i] * width);
        if (way == 1)
            break;
        comm_label(s->comm, "partial gradients");
        comm_all_reduce(s->comm, tp_group->partial, s->elements, zero->sum_type, tp_group->scratch,
                        zero->stream);
    }
    s->count = 0;
    s->elements = 0;
}

static void take_stretch(struct zero *zero, struct stretches *s, void *sum, int64_t count)
{
    while (count > 0) {
        if (s->count == 64 || s->elements == zero->tp_group.partial_count)
            add_stretches(zero, s);
        int64_t room = zero->tp_group.partial_count - s->elements,
                part = count < room ? count : room;
        s->at[s->count] = sum;
        s->counts[s->count++] = part;
        s->elements += part;
        sum = zero_at(sum, zero->sum_type, part);
        count -= part;
    }
}

static void add_partials_of(struct zero *zero, struct comm *comm)
{
    struct stretches stretches = {.comm = comm};
    for (int t = 0; t < zero->graph->tensor_count; t++) {
        const struct unit_split *split = &zero->graph->tensors[t].split;
        struct piece_range range = partition_tensor(&zero->partition, t);
        struct piece_range mine = partition_clip(&zero->partition, range, zero->reduce_shard);
        if (!split->partial || split->replicas != comm_size(comm) || mine.count == 0 ||
            !zero_is_learned(zero, range.piece))
            continue;
        CHECK_EQ(zero_sum_type(zero, range.piece), zero->sum_type);
        int64_t first =
            mine.first - zero->reduce_shard * zero_reduce_shard_count(zero, range.piece);
        take_stretch(zero, &stretches,
                     zero_at(zero->pieces[range.piece].uses[0].sum, zero->sum_type, first),
                     mine.count);
    }
    add_stretches(zero, &stretches);
}

enum status tp_group_add_partials(struct zero *zero)
{
    struct zero_tp_group *tp_group = &zero->tp_group;
    if (!tp_group->comm || zero->reduce_shard < 0)
        return STATUS_OK;
    add_partials_of(zero, tp_group->comm);
    if (tp_group->replicas)
        add_partials_of(zero, tp_group->replicas);
    TRY(stream_sync(zero->stream));
    TRY(tp_group->replicas ? comm_status(tp_group->replicas) : STATUS_OK);
    return comm_status(tp_group->comm);
}

enum status tp_group_add(struct zero *zero, double *value)
{
    struct zero_tp_group *tp_group = &zero->tp_group;
    TRY(comm_exchange(tp_group->comm, value, sizeof *value, tp_group->sums));
    *value = tp_group->sums[0];
    for (int t = 1; t < tp_group->size; t++)
        *value += tp_group->sums[t];
    return STATUS_OK;
}

/* --- ranges of elements --------------------------------------------------------------------- */

struct zero_range tp_group_part(const struct unit_tensor *tensor, struct zero_range whole)
{
    int64_t first = unit_tensor_before(tensor, whole.first);
    return (struct zero_range){first,
                               unit_tensor_before(tensor, whole.first + whole.count) - first};
}

const float *tp_group_pack(const struct unit_tensor *tensor, int64_t local, int64_t count,
                           int64_t first, const float *values, float *room)
{
    int64_t run, range = unit_tensor_index(tensor, local, &run);
    if (run >= count)
        return values + range - first;
    for (int64_t done = 0, part; done < count; done += part) {
        range = unit_tensor_index(tensor, local + done, &run);
        part = run < count - done ? run : count - done;
        memcpy(room + done, values + range - first, (size_t)part * sizeof *room);
    }
    return room;
}

/* Copy the elements of a part to `out`, which holds the elements `whole`. */
static void unpack(const struct unit_tensor *tensor, struct zero_range part, const float *packed,
                   struct zero_range whole, float *out)
{
    for (int64_t done = 0, run; done < part.count; done += run) {
        int64_t range = unit_tensor_index(tensor, part.first + done, &run);
        run = run < part.count - done ? run : part.count - done;
        memcpy(out + range - whole.first, packed + done, (size_t)run * sizeof *out);
    }
}

/* What rank t sends of `whole`. */
static struct zero_range sent_part(const struct unit_tensor *tensor, struct zero_range whole)
{
    return unit_tensor_answers(tensor) ? tp_group_part(tensor, whole) : (struct zero_range){0};
}

/* Receive the parts of what this rank wants. The table of what it sends is already set. */
static enum status swap(struct zero *zero, int tensor, struct zero_range wanted, float *out)
{
    struct zero_tp_group *tp_group = &zero->tp_group;
    struct comm_parts *e = &tp_group->swap;
    int64_t taken = 0;
    for (int t = 0; t < tp_group->size; t++) {
        struct unit_tensor theirs = tp_group_tensor(zero, tensor, t);
        e->recv_counts[t] = sent_part(&theirs, wanted).count;
        e->recv_offsets[t] = taken;
        taken += e->recv_counts[t];
    }
    CHECK_EQ(taken, wanted.count);
    comm_label(tp_group->comm, "elements");
    comm_all_to_all_v(tp_group->comm, tp_group->mine, tp_group->all, e, DTYPE_F32, zero->stream);
    TRY(stream_sync(zero->stream));
    TRY(comm_status(tp_group->comm));
    for (int t = 0; t < tp_group->size; t++) {
        struct unit_tensor theirs = tp_group_tensor(zero, tensor, t);
        unpack(&theirs, sent_part(&theirs, wanted), tp_group->all + e->recv_offsets[t], wanted,
               out);
    }
    return STATUS_OK;
}

enum status tp_group_read(struct zero *zero, int tensor, tp_group_read_fn *read, int64_t first,
                          int64_t count, float *out)
{
    struct zero_tp_group *tp_group = &zero->tp_group;
    struct unit_tensor own = tp_group_tensor(zero, tensor, tp_group->rank);
    int own_tensor = zero_own_tensor(zero, tensor);
    if (own.split.units == 0)
        return read(zero, own_tensor, first, count, out);
    for (int64_t done = 0; done < count; done += ZERO_STAGING) {
        int64_t part = count - done < ZERO_STAGING ? count - done : ZERO_STAGING;
        struct zero_range wanted = {first + done, part}, mine = sent_part(&own, wanted);
        TRY(read(zero, own_tensor, mine.first, mine.count, tp_group->mine));
        for (int t = 0; t < tp_group->size; t++) {
            tp_group->swap.send_counts[t] = mine.count;
            tp_group->swap.send_offsets[t] = 0;
        }
        TRY(swap(zero, tensor, wanted, out + done));
    }
    return STATUS_OK;
}

/* Chunk `number` of a range, in chunks of `most` elements. */
static struct zero_range chunk_of(struct zero_range range, int64_t number, int64_t most)
{
    int64_t done = number * most < range.count ? number * most : range.count;
    int64_t left = range.count - done;
    return (struct zero_range){range.first + done, left < most ? left : most};
}

enum status tp_group_collect(struct zero *zero, enum zero_state state, int tensor, float *out)
{
    struct zero_tp_group *tp_group = &zero->tp_group;
    const struct zero_range *wanted = tp_group->wanted;
    struct unit_tensor own = tp_group_tensor(zero, tensor, tp_group->rank);
    int64_t most = ZERO_STAGING / tp_group->size, rounds = 0;
    for (int t = 0; t < tp_group->size; t++)
        if ((wanted[t].count + most - 1) / most > rounds)
            rounds = (wanted[t].count + most - 1) / most;
    for (int64_t round = 0; round < rounds; round++) {
        struct zero_range mine = chunk_of(wanted[tp_group->rank], round, most);
        int64_t sent = 0;
        for (int t = 0; t < tp_group->size; t++) {
            struct zero_range part = sent_part(&own, chunk_of(wanted[t], round, most));
            tp_group->swap.send_counts[t] = part.count;
            tp_group->swap.send_offsets[t] = sent;
            if (part.count > 0)
                TRY(zero_state_read_part(zero, state, zero_own_tensor(zero, tensor), part,
                                         tp_group->mine + sent));
            sent += part.count;
        }
        TRY(stream_sync(zero->stream));
        TRY(swap(zero, tensor, mine, out + (mine.first - wanted[tp_group->rank].first)));
    }
    return STATUS_OK;
}
