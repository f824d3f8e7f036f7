/* zero_muon -- the update of matrices by Muon, whose direction must be orthogonalized as a whole
 * matrix while owners hold shards of it.
 *
 * Each tensor is given to one owner of all (zero_muon_assign: by shapes alone, so every rank finds
 * the same). In a round every owner orthogonalizes one tensor:
 *
 *     owner 0  momentum -> directions --.    .-> tensor A -> orthogonalize --.    .-> apply
 *     owner 1  momentum -> directions --+ -> +-> tensor B -> orthogonalize --+ -> +-> apply
 *     owner 2  momentum -> directions --'    '-> tensor C -> orthogonalize --'    '-> apply
 *              of its shard              collect                              give back
 *
 * Directions come from the owners of the same copy; results go to all owners of all copies, so no
 * matrix is computed twice. A tensor of n elements, in C copies of G shards, costs (G-1)/G n
 * elements on the way there and (C - 1/G) n on the way back: 2 (N-1)/N n with one copy, and
 * (N-1) n, as an all-gather of the results, where every rank holds everything (ZeRO stage 0), since
 * its directions are complete. The matrix that is orthogonalized is the same, computed by the same
 * op, in every layout: no layout changes a bit.
 *
 * An exchange may carry only a window of each tensor, so that no owner needs memory for much more
 * than the largest tensor, wherever its shards lie. In one exchange the tensors are in different
 * windows, because the same windows of similar tensors tend to be held by the same owner:
 *
 *     4 windows      exchange 0      1        2        3
 *     tensor A       |####....|  |..##....|  ...              window (exchange + owner) mod 4
 *     tensor B       |..##....|  |....##..|  ...
 *
 * The exchanges of one round overlap with the orthogonalization of another:
 *
 *     compute   m0  m1   [orthogonalize 0]  m2   [orthogonalize 1]  m3   apply 0 ...
 *     exchange     collect 0  collect 1        give back 0, collect 2  ...
 *
 * Where state or sums are far (zero_offload.c), the two rules run packet by packet: the first
 * brings the momentum and the sum of a packet to the device, the second its masters.
 *
 * A lone owner does the same without exchanges, one tensor after the other. All owners have buffers
 * of the same sizes: those of the owner that needs most. TP ranks have parts of matrices, so
 * zero_batches_create refuses Muon there.
 */
#include "zero/zero_offload.h"

#include <stdlib.h>
#include <string.h>

#include "ops/ops.h"

enum { SLOTS = 2, MOST_WINDOWS = 32 };

/* One exchange: a window of every tensor of a round. */
struct exchange {
    struct comm_parts collect, give_back; /* among the owners */
};

struct zero_muon {
    int owners, me; /* me: this rank among the owners */
    int rounds, windows;
    int *given;                 /* (rounds, owners) tensors; -1: none */
    int64_t part_room;          /* elements of a slot of directions or results */
    int64_t segment_room;       /* segments of all exchanges */
    int64_t tensor_room;        /* elements of the largest tensor */
    struct exchange *exchanges; /* (rounds, windows) */
    int64_t *counts;            /* memory of their tables */
    int *first;                 /* (rounds, windows, batches) and the end, of the segments */
    int64_t *elements;          /* (rounds, windows, batches) */
    int *packets;               /* (segments) where its state or sum is far; -1: resident */
    struct update_segment *rules, *applies;   /* device memory: the two rules of a segment */
    struct update_location *locations;        /* device memory; NULL: rounded to nearest */
    void *directions[SLOTS], *results[SLOTS]; /* of this rank's shards, one exchange each */
    void *whole[SLOTS];                       /* the tensor given to this rank, one round each */
    void *matrix;                             /* one of a tensor's matrices */
    void *scratch;
    struct event *sent[SLOTS];      /* directions[s] may be overwritten */
    struct event *collected[SLOTS]; /* whole[s] is complete */
    struct event *arrived[SLOTS];   /* results[s] are complete */
    int waiting[SLOTS];             /* the exchange whose results are not applied yet; -1: none */
};

static bool is_muon(const struct zero *zero, int t)
{
    return zero_is_learned(zero, partition_tensor(&zero->partition, t).piece) &&
           zero->batches[zero->batch_of[t]].optimizer.kind == OPTIMIZER_MUON;
}

/* --- who orthogonalizes what ------------------------------------------------------------------ */

/* In proportion to the arithmetic of ops_orthogonalize: x x^T, A A and (..) x. */
static int64_t cost_of(const struct unit_tensor *tensor)
{
    int64_t rows = tensor->shape[0], columns = tensor->shape[1] / tensor->matrices;
    int64_t n = rows < columns ? rows : columns, m = rows < columns ? columns : rows;
    return tensor->matrices * n * n * (2 * m + n);
}

static int compare_tasks(const void *a, const void *b)
{
    const struct muon_task *x = a, *y = b;
    if (x->cost != y->cost)
        return x->cost > y->cost ? -1 : 1;
    return x->tensor - y->tensor;
}

int zero_muon_assign(struct muon_task *tasks, int count, int owners, int64_t *work)
{
    int rounds = 0;
    qsort(tasks, (size_t)count, sizeof *tasks, compare_tasks);
    for (int i = 0; i < count; i++) {
        int least = 0;
        for (int owner = 1; owner < owners; owner++)
            least = work[owner] < work[least] ? owner : least;
        tasks[i].owner = least;
        tasks[i].round = 0;
        for (int k = 0; k < i; k++)
            tasks[i].round += tasks[k].owner == least;
        work[least] += tasks[i].cost;
        rounds = tasks[i].round < rounds ? rounds : tasks[i].round + 1;
    }
    return rounds;
}

/* Fill `given`; no rounds: Muon updates nothing here. */
static enum status assign(struct zero *zero, struct zero_muon *muon)
{
    const struct unit_graph *graph = zero->graph;
    struct muon_task *tasks;
    int64_t *work = NULL;
    int count = 0;
    enum status st;
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "muon", (size_t)graph->tensor_count, sizeof *tasks,
                        &tasks));
    for (int t = 0; t < graph->tensor_count; t++)
        if (is_muon(zero, t))
            tasks[count++] = (struct muon_task){.tensor = t, .cost = cost_of(&graph->tensors[t])};
    TRY_OR(undo, mem_alloc_array(zero->env, MEM_OTHER, "muon", (size_t)muon->owners, sizeof *work,
                                 &work));
    muon->rounds = zero_muon_assign(tasks, count, muon->owners, work);
    TRY_OR(undo, mem_alloc_array(zero->env, MEM_OTHER, "muon",
                                 (size_t)muon->rounds * (size_t)muon->owners, sizeof *muon->given,
                                 &muon->given));
    for (int i = 0; i < muon->rounds * muon->owners; i++)
        muon->given[i] = -1;
    for (int i = 0; i < count; i++)
        muon->given[tasks[i].round * muon->owners + tasks[i].owner] = tasks[i].tensor;
undo:
    mem_free(zero->env, work);
    mem_free(zero->env, tasks);
    return st;
}

/* --- ranges of an exchange -------------------------------------------------------------------- */

/* The tensor of `owner` in the round of exchange e; -1: none. */
static int tensor_of(const struct zero_muon *muon, int e, int owner)
{
    return muon->given[e / muon->windows * muon->owners + owner];
}

/* What exchange e carries of the tensor of `owner`. Windows begin at multiples of 64 elements. */
static struct piece_range window_of(const struct zero *zero, const struct zero_muon *muon, int e,
                                    int owner)
{
    int t = tensor_of(muon, e, owner), window = (e + owner) % muon->windows;
    if (t < 0)
        return (struct piece_range){0};
    struct piece_range range = partition_tensor(&zero->partition, t);
    int64_t blocks = (range.count + OPS_BLOCK - 1) / OPS_BLOCK;
    int64_t first = blocks * window / muon->windows * OPS_BLOCK;
    int64_t end = blocks * (window + 1) / muon->windows * OPS_BLOCK;
    end = end < range.count ? end : range.count;
    return (struct piece_range){range.piece, range.first + first, end - first};
}

/* The part of it in a shard. */
static struct piece_range part_of(const struct zero *zero, const struct zero_muon *muon, int e,
                                  int owner, int shard)
{
    struct piece_range window = window_of(zero, muon, e, owner);
    return window.count == 0 ? window
                             : partition_clip_part(&zero->partition, window, shard, zero->shards);
}

static int64_t max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Parts are padded in directions and results, as params are in pieces. */
static int64_t padded(int64_t count)
{
    return (count + OPS_BLOCK - 1) / OPS_BLOCK * OPS_BLOCK;
}

/* What owners have: of elements in one exchange, and of segments in all. */
struct share {
    int64_t elements, segments;
};

/* Find the rooms that the owners need. shares: (shards) */
static void find_rooms(const struct zero *zero, struct zero_muon *muon, struct share *shares)
{
    muon->part_room = muon->segment_room = 0;
    for (int s = 0; s < zero->shards; s++)
        shares[s].segments = 0;
    for (int e = 0; e < muon->rounds * muon->windows; e++) {
        for (int s = 0; s < zero->shards; s++)
            shares[s].elements = 0;
        for (int owner = 0; owner < muon->owners; owner++) {
            struct piece_range window = window_of(zero, muon, e, owner);
            if (window.count == 0)
                continue;
            int64_t shard = zero_shard_count(zero, window.piece);
            int last = (int)((window.first + window.count - 1) / shard);
            for (int s = (int)(window.first / shard); s <= last; s++) {
                struct share *share = &shares[s];
                share->elements += padded(part_of(zero, muon, e, owner, s).count);
                share->segments++;
                muon->part_room = max(muon->part_room, share->elements);
                muon->segment_room = max(muon->segment_room, share->segments);
            }
        }
    }
}

/* As few windows as keep an exchange within the largest tensor. */
static enum status choose_windows(struct zero *zero, struct zero_muon *muon)
{
    struct share *shares;
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "muon", (size_t)zero->shards, sizeof *shares,
                        &shares));
    for (int i = 0; i < muon->rounds * muon->owners; i++) {
        int t = muon->given[i];
        if (t >= 0)
            muon->tensor_room = max(muon->tensor_room, unit_tensor_count(&zero->graph->tensors[t]));
    }
    for (muon->windows = 1;; muon->windows *= 2) {
        find_rooms(zero, muon, shares);
        if (muon->part_room <= padded(muon->tensor_room) || muon->windows >= muon->owners ||
            muon->windows == MOST_WINDOWS)
            break;
    }
    mem_free(zero->env, shares);
    return STATUS_OK;
}

/* --- the tables ------------------------------------------------------------------------------- */

/* Collect: this rank sends its parts of the tensors of the owners of its copy, and receives theirs
 * of its own tensor. Giving back is the reverse, with all copies. */
static void fill_exchange(const struct zero *zero, const struct zero_muon *muon, int e,
                          struct exchange *x)
{
    int shards = zero->shards, t = tensor_of(muon, e, muon->me);
    int64_t at = 0, start = t < 0 ? 0 : partition_tensor(&zero->partition, t).first;
    for (int owner = 0; owner < muon->owners; owner++) {
        struct piece_range mine = part_of(zero, muon, e, owner, zero->shard);
        struct piece_range theirs = part_of(zero, muon, e, muon->me, owner % shards);
        bool same_copy = owner / shards == muon->me / shards;
        x->collect.send_offsets[owner] = x->give_back.recv_offsets[owner] = at;
        x->collect.recv_offsets[owner] = x->give_back.send_offsets[owner] =
            theirs.count > 0 ? theirs.first - start : 0;
        x->give_back.recv_counts[owner] = mine.count;
        x->give_back.send_counts[owner] = theirs.count;
        x->collect.send_counts[owner] = same_copy ? mine.count : 0;
        x->collect.recv_counts[owner] = same_copy ? theirs.count : 0;
        at += padded(mine.count);
    }
}

static enum status make_exchanges(struct zero *zero, struct zero_muon *muon)
{
    size_t count = (size_t)muon->rounds * (size_t)muon->windows, owners = (size_t)muon->owners;
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "muon exchanges", count, sizeof *muon->exchanges,
                        &muon->exchanges));
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "muon exchanges", count * owners,
                        6 * sizeof *muon->counts, &muon->counts));
    int64_t *next = muon->counts;
    for (int e = 0; e < (int)count; e++, next += 6 * owners) {
        struct exchange *x = &muon->exchanges[e];
        x->collect = (struct comm_parts){next, next + owners, next + 2 * owners, next + 3 * owners};
        x->give_back = (struct comm_parts){next + 4 * owners, x->collect.recv_offsets,
                                           next + 5 * owners, x->collect.send_offsets};
        fill_exchange(zero, muon, e, x);
    }
    return STATUS_OK;
}

/* Segments while they are listed. */
struct muon_list {
    struct update_segment *rules, *applies;
    struct update_location *locations;
    int count;
};

/* A part of this rank's part of the tensor of `owner`, as segments of both rules. */
static void add_segment(const struct zero *zero, struct zero_muon *muon, int e, int owner,
                        struct piece_range mine, int packet, int64_t at, struct muon_list *list)
{
    int t = tensor_of(muon, e, owner), slot = e % SLOTS, i = list->count++;
    const struct unit_tensor *tensor = &zero->graph->tensors[t];
    struct state_view view = offload_view(zero, mine.piece, packet);
    struct update_segment *rule = &list->rules[i], *apply = &list->applies[i];
    enum dtype type = zero->ops->type;
    CHECK_LT(i, muon->segment_room);
    *rule = *apply = zero_segment_of(zero, t, mine, &view);
    rule->copy = zero_at(muon->directions[slot], type, at);
    rule->copy_type = type;
    apply->grad = zero_at(muon->results[slot], type, at);
    apply->grad_type = type;
    apply->scale =
        (float)optimizer_muon_scale(tensor->shape[0], tensor->shape[1] / tensor->matrices);
    muon->packets[i] = packet;
    list->locations[i] =
        zero_location_of(zero, t, mine.first - partition_tensor(&zero->partition, t).first);
}

/* The same of all of it: one segment, or one in each packet. */
static void add_part(const struct zero *zero, struct zero_muon *muon, int e, int owner,
                     struct piece_range mine, int64_t at, struct muon_list *list)
{
    struct piece_range left = mine;
    while (left.count > 0) {
        int packet;
        struct piece_range part = offload_first(zero, left, &packet);
        add_segment(zero, muon, e, owner, part, packet, at + part.first - mine.first, list);
        left.first += part.count, left.count -= part.count;
    }
}

/* Segments are ordered by exchange, then by batch, then by owner. */
static void list_segments(const struct zero *zero, struct zero_muon *muon, struct muon_list *list)
{
    int run = 0;
    for (int e = 0; e < muon->rounds * muon->windows; e++)
        for (int b = 0; b < zero->batch_count; b++, run++) {
            int64_t at = 0;
            muon->first[run] = list->count;
            muon->elements[run] = 0;
            for (int owner = 0; owner < muon->owners; owner++) {
                int t = tensor_of(muon, e, owner);
                struct piece_range mine = part_of(zero, muon, e, owner, zero->shard);
                int64_t here = at;
                at += padded(mine.count);
                if (mine.count == 0 || zero->batch_of[t] != b)
                    continue;
                muon->elements[run] += mine.count;
                add_part(zero, muon, e, owner, mine, here, list);
            }
        }
    muon->first[run] = list->count;
}

static enum status to_device(struct zero *zero, const char *name, const void *list, size_t bytes,
                             void *out)
{
    void *block;
    TRY(device_alloc(zero->ops->device, MEM_OTHER, name, bytes, out));
    memcpy(&block, out, sizeof block);
    device_copy(zero->stream, block, list, bytes);
    return stream_sync(zero->stream);
}

static enum status make_segments(struct zero *zero, struct zero_muon *muon)
{
    size_t runs = (size_t)muon->rounds * (size_t)muon->windows * (size_t)zero->batch_count;
    struct muon_list list = {0};
    bool random = zero_rounds_at_random(zero);
    enum status st;
    /* A part that packets cut has one segment more for each cut. */
    muon->segment_room += (int64_t)muon->windows * zero->packet_count;
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "muon segments", runs + 1, sizeof *muon->first,
                        &muon->first));
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "muon segments", runs, sizeof *muon->elements,
                        &muon->elements));
    size_t count = (size_t)muon->segment_room, bytes = count * sizeof *list.rules;
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "muon segments", count, sizeof *muon->packets,
                        &muon->packets));
    TRY_OR(undo, mem_alloc(zero->env, MEM_OTHER, "muon segments", bytes, &list.rules));
    TRY_OR(undo, mem_alloc(zero->env, MEM_OTHER, "muon segments", bytes, &list.applies));
    TRY_OR(undo, mem_alloc_array(zero->env, MEM_OTHER, "muon segments", count,
                                 sizeof *list.locations, &list.locations));
    list_segments(zero, muon, &list);
    TRY_OR(undo, to_device(zero, "muon segments", list.rules, bytes, &muon->rules));
    TRY_OR(undo, to_device(zero, "muon segments", list.applies, bytes, &muon->applies));
    if (random)
        TRY_OR(undo, to_device(zero, "places of muon segments", list.locations,
                               count * sizeof *list.locations, &muon->locations));
undo:
    mem_free(zero->env, list.rules);
    mem_free(zero->env, list.applies);
    mem_free(zero->env, list.locations);
    return st;
}

/* --- memory ----------------------------------------------------------------------------------- */

/* For the orthogonalization of the largest tensor. */
static enum status alloc_work(struct zero *zero, struct zero_muon *muon)
{
    struct device *device = zero->ops->device;
    size_t scratch = 0, matrix = 0, width = dtype_bytes(zero->ops->type);
    for (int t = 0; t < zero->graph->tensor_count; t++) {
        const struct unit_tensor *tensor = &zero->graph->tensors[t];
        if (!is_muon(zero, t))
            continue;
        int64_t rows = tensor->shape[0], columns = tensor->shape[1] / tensor->matrices;
        size_t need = ops_orthogonalize_scratch(zero->ops, rows, columns);
        size_t bytes = tensor->matrices > 1 ? (size_t)(rows * columns) * width : 0;
        scratch = need > scratch ? need : scratch;
        matrix = bytes > matrix ? bytes : matrix;
    }
    if (matrix > 0)
        TRY(device_alloc(device, MEM_SCRATCH, "muon: a matrix", matrix, &muon->matrix));
    return device_alloc(device, MEM_SCRATCH, "muon: orthogonalization", scratch, &muon->scratch);
}

/* A lone owner has everything of a tensor: its directions are the tensor, and so are its
 * results. */
static enum status alloc_slots(struct zero *zero, struct zero_muon *muon)
{
    struct device *device = zero->ops->device;
    size_t width = dtype_bytes(zero->ops->type);
    size_t whole = (size_t)padded(muon->tensor_room) * width;
    for (int s = 0; s < SLOTS; s++) {
        if (zero->muon_comm || s == 0)
            TRY(device_alloc(device, MEM_SCRATCH, "muon: a tensor", whole, &muon->whole[s]));
        if (!zero->muon_comm) {
            muon->directions[s] = muon->results[s] = muon->whole[0];
            continue;
        }
        size_t part = (size_t)muon->part_room * width;
        TRY(device_alloc(device, MEM_COMM, "muon: directions", part, &muon->directions[s]));
        TRY(device_alloc(device, MEM_COMM, "muon: results", part, &muon->results[s]));
        TRY(event_create(device, &muon->sent[s]));
        TRY(event_create(device, &muon->collected[s]));
        TRY(event_create(device, &muon->arrived[s]));
        muon->waiting[s] = -1;
    }
    return STATUS_OK;
}

/* A communicator of the owners. Collective over all ranks. */
static enum status open_comm(struct zero *zero, struct zero_muon *muon)
{
    const struct roster *r = &zero->roster;
    int *colours;
    if (muon->owners == 1)
        return STATUS_OK;
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "colours", (size_t)r->size, sizeof *colours,
                        &colours));
    for (int rank = 0; rank < r->size; rank++)
        colours[rank] = roster_shard(r, rank) < 0 ? -1 : 0;
    enum status st = comm_split_known(zero->comm, colours, "muon", &zero->muon_comm);
    mem_free(zero->env, colours);
    if (st == STATUS_OK && zero->muon_comm)
        comm_set_lane(zero->muon_comm, &trace_lane_gather);
    return st;
}

enum status zero_muon_create(struct zero *zero)
{
    struct zero_muon *muon;
    int tensors = 0;
    for (int t = 0; t < zero->graph->tensor_count; t++)
        tensors += is_muon(zero, t);
    if (tensors == 0)
        return STATUS_OK;
    TRY(mem_alloc(zero->env, MEM_OTHER, "muon", sizeof *muon, &muon));
    *muon = (struct zero_muon){.owners = zero->roster.owners,
                               .me = zero->roster.rank - zero->roster.first_owner};
    zero->muon = muon;
    TRY(open_comm(zero, muon));
    if (zero->shard < 0)
        return STATUS_OK;
    TRY(assign(zero, muon));
    TRY(choose_windows(zero, muon));
    TRY(alloc_slots(zero, muon));
    TRY(alloc_work(zero, muon));
    if (zero->muon_comm)
        TRY(make_exchanges(zero, muon));
    return make_segments(zero, muon);
}

void zero_muon_free(struct zero *zero)
{
    struct zero_muon *muon = zero->muon;
    struct device *device = zero->ops->device;
    if (!muon)
        return;
    for (int s = 0; s < SLOTS; s++) {
        if (muon->directions[s] != muon->whole[0]) {
            device_free(device, muon->directions[s]);
            device_free(device, muon->results[s]);
        }
        event_destroy(muon->sent[s]);
        event_destroy(muon->collected[s]);
        event_destroy(muon->arrived[s]);
    }
    for (int s = 0; s < SLOTS; s++)
        device_free(device, muon->whole[s]);
    device_free(device, muon->matrix);
    device_free(device, muon->scratch);
    device_free(device, muon->rules);
    device_free(device, muon->applies);
    device_free(device, muon->locations);
    mem_free(zero->env, muon->given);
    mem_free(zero->env, muon->exchanges);
    mem_free(zero->env, muon->counts);
    mem_free(zero->env, muon->first);
    mem_free(zero->env, muon->elements);
    mem_free(zero->env, muon->packets);
    mem_free(zero->env, muon);
    zero->muon = NULL;
}

struct muon_counts zero_muon_counts(const struct zero *zero)
{
    const struct zero_muon *muon = zero->muon;
    struct muon_counts counts = {0};
    for (int i = 0; muon && i < muon->rounds * muon->owners; i++) {
        int t = muon->given[i], owner = i % muon->owners;
        if (t < 0 || owner / zero->shards != muon->me / zero->shards)
            continue;
        int64_t mine = zero_updated_part(zero, t).count;
        counts.held += mine;
        if (owner != muon->me)
            continue;
        counts.given += unit_tensor_count(&zero->graph->tensors[t]);
        counts.kept += mine;
    }
    return counts;
}

/* --- in a step -------------------------------------------------------------------------------- */

/* Runs one of the two rules on the segments of exchange e. A dry device cannot read the segments,
 * so this adds the price itself. */
static void run_rule(struct zero *zero, int e, int64_t number, bool apply)
{
    const struct zero_muon *muon = zero->muon;
    for (int b = 0; b < zero->batch_count; b++) {
        int run = e * zero->batch_count + b, first = muon->first[run];
        struct update update = optimizer_update(&zero->batches[b].optimizer);
        const struct ops_case price = {.op = update_word(apply ? UPDATE_APPLY : UPDATE_MUON),
                                       .count = muon->elements[run],
                                       .from = apply ? zero->ops->type : zero->sum_type,
                                       .to = apply ? zero->type : zero->ops->type,
                                       .random = apply && muon->locations,
                                       .nesterov = !apply && update.nesterov};
        if (muon->first[run + 1] == first)
            continue;
        if (apply)
            update = (struct update){.rule = UPDATE_APPLY};
        update.number = number;
        for (int i = first, end; i < muon->first[run + 1]; i = end) {
            const struct update_segment *segments = (apply ? muon->applies : muon->rules) + i;
            int packet = muon->packets[i];
            for (end = i + 1; end < muon->first[run + 1] && muon->packets[end] == packet;)
                end++;
            if (apply && muon->locations)
                update.locations = muon->locations + i;
            offload_visit(zero, packet, apply);
            ops_update(zero->ops, zero->stream, &update, &zero->scalars[1 + b], segments, end - i);
            offload_leave(zero, packet, apply);
        }
        if (device_is_dry(zero->ops->device))
            ops_spend(zero->ops, zero->stream, &price);
    }
}

/* An exchange on the gather stream, after what compute has enqueued so far. */
static void exchange(struct zero *zero, int e, const void *from, void *to,
                     const struct comm_parts *parts, struct event *done)
{
    struct comm *comm = zero->muon_comm;
    int t = tensor_of(zero->muon, e, zero->muon->me);
    event_record(zero->written, zero->stream);
    stream_wait(zero->gather_stream, zero->written);
    comm_label(comm, t < 0 ? NULL : zero->graph->tensors[t].name);
    comm_all_to_all_v(comm, from, to, parts, zero->ops->type, zero->gather_stream);
    event_record(done, zero->gather_stream);
}

static void collect(struct zero *zero, int round, int64_t number)
{
    struct zero_muon *muon = zero->muon;
    int end = (round + 1) * muon->windows;
    for (int e = round * muon->windows; e < end; e++) {
        int slot = e % SLOTS;
        if (zero->muon_comm)
            stream_wait(zero->stream, muon->sent[slot]);
        run_rule(zero, e, number, false);
        if (zero->muon_comm)
            exchange(zero, e, muon->directions[slot], muon->whole[round % SLOTS],
                     &muon->exchanges[e].collect, muon->sent[slot]);
    }
    if (zero->muon_comm)
        event_record(muon->collected[round % SLOTS], zero->gather_stream);
}

static void orthogonalize(struct zero *zero, int round)
{
    struct zero_muon *muon = zero->muon;
    int t = muon->given[round * muon->owners + muon->me],
        slot = zero->muon_comm ? round % SLOTS : 0;
    if (t < 0)
        return;
    const struct unit_tensor *tensor = &zero->graph->tensors[t];
    int64_t rows = tensor->shape[0], columns = tensor->shape[1] / tensor->matrices;
    size_t row = (size_t)tensor->shape[1] * dtype_bytes(zero->ops->type);
    size_t part = row / (size_t)tensor->matrices;
    if (zero->muon_comm)
        stream_wait(zero->stream, muon->collected[slot]);
    for (int i = 0; i < tensor->matrices; i++) {
        char *at = (char *)muon->whole[slot] + (size_t)i * part;
        bool dense = tensor->matrices == 1;
        if (!dense)
            device_copy_rows(zero->stream, muon->matrix, part, at, row, part, rows);
        ops_orthogonalize(zero->ops, zero->stream, rows, columns, dense ? at : muon->matrix,
                          muon->scratch);
        if (!dense)
            device_copy_rows(zero->stream, at, row, muon->matrix, part, part, rows);
    }
}

static void apply_waiting(struct zero *zero, int slot, int64_t number)
{
    struct zero_muon *muon = zero->muon;
    if (muon->waiting[slot] < 0)
        return;
    stream_wait(zero->stream, muon->arrived[slot]);
    run_rule(zero, muon->waiting[slot], number, true);
    muon->waiting[slot] = -1;
}

/* Results stay in their slot until the next exchange needs it: compute need not wait for them. */
static void give_back(struct zero *zero, int round, int64_t number)
{
    struct zero_muon *muon = zero->muon;
    int end = (round + 1) * muon->windows;
    for (int e = round * muon->windows; e < end; e++) {
        int slot = e % SLOTS;
        if (!zero->muon_comm) {
            run_rule(zero, e, number, true);
            continue;
        }
        apply_waiting(zero, slot, number);
        exchange(zero, e, muon->whole[round % SLOTS], muon->results[slot],
                 &muon->exchanges[e].give_back, muon->arrived[slot]);
        muon->waiting[slot] = e;
    }
}

enum status zero_muon_update(struct zero *zero, int64_t number)
{
    struct zero_muon *muon = zero->muon;
    if (!muon || zero->shard < 0)
        return STATUS_OK;
    int behind =
        zero->muon_comm ? 1 : 0; /* the round that is computed while the next is collected */
    for (int round = 0; round < muon->rounds + behind; round++) {
        if (round < muon->rounds)
            collect(zero, round, number);
        if (round < behind)
            continue;
        orthogonalize(zero, round - behind);
        give_back(zero, round - behind, number);
    }
    if (!zero->muon_comm)
        return STATUS_OK;
    int end = muon->rounds * muon->windows;
    for (int e = end; e < end + SLOTS; e++) /* the oldest first */
        apply_waiting(zero, e % SLOTS, number);
    return stream_sync(zero->gather_stream);
}
