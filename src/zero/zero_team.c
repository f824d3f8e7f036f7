/* zero_team -- what the stores of tensor-parallel ranks do together.
 *
 * Each has a store of its own over its parts of the tensors (unit_split), all with the same layout:
 * what is at one place of a piece in one of them is there in all. Three things need the others:
 *
 *     gradients    where each has a share of a gradient (partial), the shares are added in the order
 *                  of the ranks, once a step
 *     elements     a range of a whole tensor is a range of every part: the parts are sent as they lie
 *                  and put together, run by run, by who wants the whole
 *     the norm     each has the squares of what it answers for; their sums are added in the order of
 *                  the ranks (zero_norm.c)
 *
 * Which part the others have is told once, at start-up. Everything goes through chunks on the host,
 * but for the gradients.
 */
#include <string.h>

#include "zero/zero_impl.h"

/* --- construction --------------------------------------------------------------------------- */

static const struct unit_graph *whole_graph(const struct zero *zero)
{
    return zero->pipe.cut ? zero->pipe.cut->whole : zero->graph;
}

/* How many ranks share a partial gradient, where that is not all of them; 0: there is none. */
static int find_replicas(const struct zero *zero)
{
    int replicas = 0;
    for (int t = 0; t < zero->graph->tensor_count; t++) {
        const struct unit_split *s = &zero->graph->tensors[t].split;
        if (!s->partial || s->replicas == zero->team.size)
            continue;
        CHECK(replicas == 0 || replicas == s->replicas);
        replicas = s->replicas;
    }
    return replicas;
}

static enum status open_replicas(struct zero *zero)
{
    struct zero_team *team = &zero->team;
    int replicas = find_replicas(zero), *colours;
    if (replicas <= 1)
        return STATUS_OK;
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "colours", (size_t)team->size, sizeof *colours,
                        &colours));
    for (int t = 0; t < team->size; t++)
        colours[t] = t / replicas;
    enum status st = comm_split_known(team->comm, colours, "tp replicas", &team->replicas);
    mem_free(zero->env, colours);
    if (st == STATUS_OK)
        comm_set_lane(team->replicas, TRACE_TENSOR);
    return st;
}

static enum status share_splits(struct zero *zero)
{
    struct zero_team *team = &zero->team;
    const struct unit_graph *graph = whole_graph(zero);
    size_t count = (size_t)graph->tensor_count;
    struct unit_split *mine;
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "parts of tensors", count * (size_t)team->size,
                        sizeof *team->splits, &team->splits));
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "parts of tensors", count, sizeof *mine, &mine));
    for (int t = 0; t < graph->tensor_count; t++)
        mine[t] = graph->tensors[t].split;
    enum status st = comm_exchange(team->comm, mine, count * sizeof *mine, team->splits);
    mem_free(zero->env, mine);
    return st;
}

/* Elements of partial gradients that are added at once. */
static int64_t partial_count(const struct zero *zero)
{
    int64_t count = 0;
    if (zero->config.micro_batches == 0 || zero->share < 0)
        return 0;
    for (int t = 0; t < zero->graph->tensor_count; t++)
        if (zero->graph->tensors[t].split.partial)
            count += unit_tensor_count(&zero->graph->tensors[t]);
    return count < TEAM_PARTIAL ? count : TEAM_PARTIAL;
}

enum status team_create(struct zero *zero)
{
    struct zero_team *team = &zero->team;
    struct device *device = zero->ops->device;
    size_t size = (size_t)team->size, chunk = ZERO_STAGING * sizeof(float);
    int64_t *counts;
    if (!team->comm)
        return STATUS_OK;
    comm_set_lane(team->comm, TRACE_TENSOR);
    TRY(share_splits(zero));
    TRY(open_replicas(zero));
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "team tables", 4 * size, sizeof *counts, &counts));
    team->swap = (struct exchange){counts, counts + size, counts + 2 * size, counts + 3 * size};
    TRY(mem_alloc(zero->env, MEM_OTHER, "elements of parts", chunk, &team->mine));
    TRY(mem_alloc(zero->env, MEM_OTHER, "elements of parts", chunk, &team->all));
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "sums of a team", size, sizeof *team->sums,
                        &team->sums));
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "ranges of a team", size, sizeof *team->wanted,
                        &team->wanted));
    size_t partial = (size_t)(team->partial_count = partial_count(zero));
    if (partial == 0)
        return STATUS_OK;
    size_t width = dtype_bytes(zero->sum_type);
    TRY(device_alloc(device, MEM_COMM, "shares of gradients", partial * width, &team->partial));
    return device_alloc(device, MEM_COMM, "shares of gradients", (partial + 64 * size) * width,
                        &team->scratch);
}

void team_free(struct zero *zero)
{
    struct zero_team *team = &zero->team;
    comm_destroy(team->replicas);
    device_free(zero->ops->device, team->partial);
    device_free(zero->ops->device, team->scratch);
    mem_free(zero->env, team->splits);
    mem_free(zero->env, team->swap.send_counts);
    mem_free(zero->env, team->mine);
    mem_free(zero->env, team->all);
    mem_free(zero->env, team->sums);
    mem_free(zero->env, team->wanted);
}

struct unit_tensor team_tensor(const struct zero *zero, int tensor, int t)
{
    const struct unit_graph *graph = whole_graph(zero);
    struct unit_tensor result = graph->tensors[tensor];
    if (zero->team.comm)
        result.split = zero->team.splits[(int64_t)t * graph->tensor_count + tensor];
    return result;
}

/* --- gradients ------------------------------------------------------------------------------ */

/* Stretches of sums whose shares are added by one call. */
struct stretches {
    struct comm *comm;
    void *at[64];
    int64_t counts[64];
    int count;
    int64_t elements;
};

static void add_stretches(struct zero *zero, struct stretches *s)
{
    struct zero_team *team = &zero->team;
    size_t width = dtype_bytes(zero->sum_type);
    if (s->count == 0)
        return;
    for (int way = 0; way < 2; way++) {
        char *packed = team->partial;
        for (int i = 0; i < s->count; packed += (size_t)s->counts[i++] * width)
            device_copy(zero->stream, way == 0 ? packed : s->at[i], way == 0 ? s->at[i] : packed,
                        (size_t)s->counts[i] * width);
        if (way == 1)
            break;
        comm_label(s->comm, "shares of gradients");
        comm_all_reduce(s->comm, team->partial, s->elements, zero->sum_type, team->scratch,
                        zero->stream);
    }
    s->count = 0;
    s->elements = 0;
}

static void take_stretch(struct zero *zero, struct stretches *s, void *sum, int64_t count)
{
    while (count > 0) {
        if (s->count == 64 || s->elements == zero->team.partial_count)
            add_stretches(zero, s);
        int64_t room = zero->team.partial_count - s->elements, part = count < room ? count : room;
        s->at[s->count] = sum;
        s->counts[s->count++] = part;
        s->elements += part;
        sum = zero_at(sum, zero->sum_type, part);
        count -= part;
    }
}

static void add_shares_of(struct zero *zero, struct comm *comm)
{
    struct stretches stretches = {.comm = comm};
    for (int t = 0; t < zero->graph->tensor_count; t++) {
        const struct unit_split *split = &zero->graph->tensors[t].split;
        struct place place = partition_tensor(&zero->partition, t);
        struct place mine = partition_clip(&zero->partition, place, zero->share);
        if (!split->partial || split->replicas != comm_size(comm) || mine.count == 0 ||
            !zero_is_learned(zero, place.piece))
            continue;
        CHECK_EQ(zero_sum_type(zero, place.piece), zero->sum_type);
        int64_t first = mine.first - zero->share * zero_share_count(zero, place.piece);
        take_stretch(zero, &stretches,
                     zero_at(zero->pieces[place.piece].uses[0].sum, zero->sum_type, first),
                     mine.count);
    }
    add_stretches(zero, &stretches);
}

enum status team_add_shares(struct zero *zero)
{
    struct zero_team *team = &zero->team;
    if (!team->comm || zero->share < 0)
        return STATUS_OK;
    add_shares_of(zero, team->comm);
    if (team->replicas)
        add_shares_of(zero, team->replicas);
    TRY(stream_sync(zero->stream));
    TRY(team->replicas ? comm_status(team->replicas) : STATUS_OK);
    return comm_status(team->comm);
}

enum status team_add(struct zero *zero, double *value)
{
    struct zero_team *team = &zero->team;
    TRY(comm_exchange(team->comm, value, sizeof *value, team->sums));
    *value = team->sums[0];
    for (int t = 1; t < team->size; t++)
        *value += team->sums[t];
    return STATUS_OK;
}

/* --- elements ------------------------------------------------------------------------------- */

struct zero_range team_part(const struct unit_tensor *tensor, struct zero_range whole)
{
    int64_t first = unit_tensor_before(tensor, whole.first);
    return (struct zero_range){first,
                               unit_tensor_before(tensor, whole.first + whole.count) - first};
}

const float *team_pack(const struct unit_tensor *tensor, int64_t local, int64_t count,
                       int64_t first, const float *values, float *room)
{
    int64_t run, place = unit_tensor_place(tensor, local, &run);
    if (run >= count)
        return values + place - first;
    for (int64_t done = 0, part; done < count; done += part) {
        place = unit_tensor_place(tensor, local + done, &run);
        part = run < count - done ? run : count - done;
        memcpy(room + done, values + place - first, (size_t)part * sizeof *room);
    }
    return room;
}

/* out (the elements `whole`) gets those of a part. */
static void unpack(const struct unit_tensor *tensor, struct zero_range part, const float *packed,
                   struct zero_range whole, float *out)
{
    for (int64_t done = 0, run; done < part.count; done += run) {
        int64_t place = unit_tensor_place(tensor, part.first + done, &run);
        run = run < part.count - done ? run : part.count - done;
        memcpy(out + place - whole.first, packed + done, (size_t)run * sizeof *out);
    }
}

/* What rank t sends of `whole`. */
static struct zero_range sent_part(const struct unit_tensor *tensor, struct zero_range whole)
{
    return unit_tensor_answers(tensor) ? team_part(tensor, whole) : (struct zero_range){0};
}

/* Parts of what this rank wants come in; what it sends has been set up. */
static enum status swap(struct zero *zero, int tensor, struct zero_range wanted, float *out)
{
    struct zero_team *team = &zero->team;
    struct exchange *e = &team->swap;
    int64_t taken = 0;
    for (int t = 0; t < team->size; t++) {
        struct unit_tensor theirs = team_tensor(zero, tensor, t);
        e->recv_counts[t] = sent_part(&theirs, wanted).count;
        e->recv_offsets[t] = taken;
        taken += e->recv_counts[t];
    }
    CHECK_EQ(taken, wanted.count);
    comm_label(team->comm, "elements");
    comm_all_to_all_v(team->comm, team->mine, e->send_counts, e->send_offsets, team->all,
                      e->recv_counts, e->recv_offsets, DTYPE_F32, zero->stream);
    TRY(stream_sync(zero->stream));
    TRY(comm_status(team->comm));
    for (int t = 0; t < team->size; t++) {
        struct unit_tensor theirs = team_tensor(zero, tensor, t);
        unpack(&theirs, sent_part(&theirs, wanted), team->all + e->recv_offsets[t], wanted, out);
    }
    return STATUS_OK;
}

enum status team_read(struct zero *zero, int tensor, team_read_fn *read, int64_t first,
                      int64_t count, float *out)
{
    struct zero_team *team = &zero->team;
    struct unit_tensor own = team_tensor(zero, tensor, team->rank);
    int own_tensor = zero_own_tensor(zero, tensor);
    if (own.split.units == 0)
        return read(zero, own_tensor, first, count, out);
    for (int64_t done = 0; done < count; done += ZERO_STAGING) {
        int64_t part = count - done < ZERO_STAGING ? count - done : ZERO_STAGING;
        struct zero_range wanted = {first + done, part}, mine = sent_part(&own, wanted);
        TRY(read(zero, own_tensor, mine.first, mine.count, team->mine));
        for (int t = 0; t < team->size; t++) {
            team->swap.send_counts[t] = mine.count;
            team->swap.send_offsets[t] = 0;
        }
        TRY(swap(zero, tensor, wanted, out + done));
    }
    return STATUS_OK;
}

/* The next chunk of a range, `number` chunks of `most` after its start. */
static struct zero_range chunk_of(struct zero_range range, int64_t number, int64_t most)
{
    int64_t done = number * most < range.count ? number * most : range.count;
    int64_t left = range.count - done;
    return (struct zero_range){range.first + done, left < most ? left : most};
}

enum status team_collect(struct zero *zero, int tensor, const float *own_state, int64_t own_first,
                         float *out)
{
    struct zero_team *team = &zero->team;
    const struct zero_range *wanted = team->wanted;
    struct unit_tensor own = team_tensor(zero, tensor, team->rank);
    int64_t most = ZERO_STAGING / team->size, rounds = 0;
    for (int t = 0; t < team->size; t++)
        if ((wanted[t].count + most - 1) / most > rounds)
            rounds = (wanted[t].count + most - 1) / most;
    for (int64_t round = 0; round < rounds; round++) {
        struct zero_range mine = chunk_of(wanted[team->rank], round, most);
        int64_t sent = 0;
        for (int t = 0; t < team->size; t++) {
            struct zero_range part = sent_part(&own, chunk_of(wanted[t], round, most));
            team->swap.send_counts[t] = part.count;
            team->swap.send_offsets[t] = sent;
            if (part.count > 0)
                device_copy(zero->stream, team->mine + sent, own_state + part.first - own_first,
                            (size_t)part.count * sizeof(float));
            sent += part.count;
        }
        TRY(stream_sync(zero->stream));
        TRY(swap(zero, tensor, mine, out + (mine.first - wanted[team->rank].first)));
    }
    return STATUS_OK;
}
