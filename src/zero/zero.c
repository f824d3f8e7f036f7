/* zero -- what each rank holds by stage and role, and taking the memory for it.
 *
 *                      params        gradients          sums (fp32)   optimizer
 *     stage 0 worker   whole         whole, one a use   slice         whole
 *     stage 1 worker   whole         whole, one a use   slice         slice
 *     stage 2 worker   whole         two slots          slice         slice
 *     stage 3 worker   slice, slots  two slots          slice         slice
 *     server           slice         -                  slice         slice
 *     one rank         whole         (a slot)           whole         whole
 *
 * With one round a step the sums of stages 0 and 1 lie in the gradients. Workers that are not
 * owners (beside servers) have no slices. Owners have room for one slice from every worker.
 */
#include "zero/zero_impl.h"

#include <stdio.h>

/* --- gradients' uses -------------------------------------------------------------------------- */

static bool unit_writes_piece(const struct unit_graph *graph, const struct unit *unit, int piece)
{
    for (int use = 0; use < unit->use_count; use++) {
        if (graph->params[unit->uses[use]].piece != piece)
            continue;
        for (int pass = 0; pass < PASS_COUNT; pass++)
            if (unit_writes(unit, pass, use))
                return true;
    }
    return false;
}

static enum status find_uses(struct zero *zero)
{
    const struct unit_graph *graph = zero->graph;
    size_t most = (size_t)graph->unit_count * UNIT_MAX_USES;
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "gradient uses", most, sizeof *zero->uses,
                        &zero->uses));
    struct zero_use *next = zero->uses;
    for (int i = 0; i < graph->piece_count; i++) {
        zero->pieces[i].uses = next;
        for (int u = 0; u < graph->unit_count; u++)
            if (unit_writes_piece(graph, &graph->units[u], i))
                *next++ = (struct zero_use){.unit = u};
        zero->pieces[i].use_count = (int)(next - zero->pieces[i].uses);
    }
    return STATUS_OK;
}

/* --- pieces ----------------------------------------------------------------------------------- */

static enum status alloc_floats(struct zero *zero, enum mem_category category, const char *what,
                                const char *piece, int64_t count, float **out)
{
    char name[3 * UNIT_NAME];
    snprintf(name, sizeof name, "%s %s", piece, what);
    return device_alloc(zero->ops->device, category, name, (size_t)count * sizeof(float), out);
}

static enum status alloc_params(struct zero *zero, int i)
{
    struct zero_piece *piece = &zero->pieces[i];
    const char *name = zero->graph->pieces[i].name;
    int64_t slice = partition_slice(&zero->partition, i);
    bool whole = zero->worker && !zero->sharding.params;
    if (whole)
        TRY(alloc_floats(zero, MEM_PARAMS, "params", name, zero->partition.piece_count[i],
                         &piece->full));
    if (zero->owner >= 0 && whole)
        piece->slice = piece->full + zero->owner * slice;
    else if (zero->owner >= 0)
        TRY(alloc_floats(zero, MEM_PARAMS, "params", name, slice, &piece->slice));
    if (zero_alone(zero) || zero->sharding.params)
        return STATUS_OK;
    return event_create(zero->ops->device, &piece->published);
}

static enum status alloc_optimizer(struct zero *zero, int i)
{
    struct zero_piece *piece = &zero->pieces[i];
    const char *name = zero->graph->pieces[i].name;
    int64_t slice = partition_slice(&zero->partition, i);
    if (zero->owner < 0)
        return STATUS_OK;
    piece->optim_first = zero->sharding.optim ? zero->owner * slice : 0;
    piece->optim_count = zero->sharding.optim ? slice : zero->partition.piece_count[i];
    TRY(alloc_floats(zero, MEM_OPTIMIZER, "momentum", name, piece->optim_count, &piece->m));
    return alloc_floats(zero, MEM_OPTIMIZER, "variance", name, piece->optim_count, &piece->v);
}

static enum status alloc_use(struct zero *zero, int i, struct zero_use *use)
{
    int64_t slice = partition_slice(&zero->partition, i);
    bool one_round = roster_rounds(&zero->roster, zero->config.micro_batches) == 1;
    const char *piece = zero->graph->pieces[i].name;
    char what[UNIT_NAME + 16];
    snprintf(what, sizeof what, "gradient, %s", zero->graph->units[use->unit].name);
    if (!zero->sharding.grads && zero->worker) {
        TRY(alloc_floats(zero, MEM_GRADS, what, piece, zero->partition.piece_count[i], &use->full));
        TRY(event_create(zero->ops->device, &use->free));
    }
    if (zero->owner < 0)
        return STATUS_OK;
    use->sum_inside = use->full && one_round;
    if (!use->sum_inside)
        return alloc_floats(zero, MEM_GRADS, what, piece, slice, &use->sum);
    use->sum = use->full + zero->owner * slice;
    return STATUS_OK;
}

static enum status alloc_piece(struct zero *zero, int i)
{
    TRY(alloc_params(zero, i));
    if (zero->config.micro_batches == 0)
        return STATUS_OK;
    TRY(alloc_optimizer(zero, i));
    for (int k = 0; k < zero->pieces[i].use_count; k++)
        TRY(alloc_use(zero, i, &zero->pieces[i].uses[k]));
    return STATUS_OK;
}

/* --- slots ------------------------------------------------------------------------------------ */

/* Elements of all pieces that one unit writes: they lie one after the other in a gradient slot. */
static int64_t written_count(const struct zero *zero, int u)
{
    int64_t count = 0;
    for (int i = 0; i < zero->graph->piece_count; i++)
        if (unit_writes_piece(zero->graph, &zero->graph->units[u], i))
            count += zero->partition.piece_count[i];
    return count;
}

/* Units take the slots in turn, so each slot is for the largest of its own units. One rank alone
 * has nothing under way: one place serves all. */
static enum status alloc_gradient_slots(struct zero *zero)
{
    bool wanted = zero_alone(zero) ? zero->config.micro_batches > 1 : zero->sharding.grads;
    int slots = zero_alone(zero) ? 1 : GRADIENT_SLOTS;
    if (!wanted || !zero->worker)
        return STATUS_OK;
    for (int s = 0; s < slots; s++) {
        struct gradient_slot *slot = &zero->gradient_slots[s];
        int64_t most = 0;
        for (int u = s; u < zero->graph->unit_count; u += slots)
            most = written_count(zero, u) > most ? written_count(zero, u) : most;
        TRY(device_alloc(zero->ops->device, MEM_SLOTS, "gradients", (size_t)most * sizeof(float),
                         &slot->at));
        TRY(event_create(zero->ops->device, &slot->free));
    }
    return STATUS_OK;
}

static enum status alloc_param_slots(struct zero *zero)
{
    struct device *device = zero->ops->device;
    struct slot_table *t = &zero->slots;
    TRY(slot_table_create(zero->env, &zero->partition, zero->config.prefetch, t));
    size_t slots = (size_t)t->slots, size = sizeof(void *);
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "slots", slots, size, &zero->slot_at));
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "slots", slots, size, &zero->slot_ready));
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "slots", slots, size, &zero->slot_free));
    for (int s = 0; s < t->slots; s++) {
        size_t bytes = (size_t)t->slot_count[s] * sizeof(float);
        if (zero->worker)
            TRY(device_alloc(device, MEM_SLOTS, "params", bytes, &zero->slot_at[s]));
        TRY(event_create(device, &zero->slot_ready[s]));
        TRY(event_create(device, &zero->slot_free[s]));
    }
    return STATUS_OK;
}

/* --- communication ---------------------------------------------------------------------------- */

static enum status open_comm(struct zero *zero)
{
    struct device *device = zero->ops->device;
    int64_t largest = 0;
    for (int i = 0; i < zero->graph->piece_count; i++)
        if (partition_slice(&zero->partition, i) > largest)
            largest = partition_slice(&zero->partition, i);
    if (zero->owner >= 0 && zero->config.micro_batches > 0)
        TRY(device_alloc(device, MEM_COMM, "contributions of the workers",
                         (size_t)(largest * zero->roster.workers) * sizeof(float),
                         &zero->contributions));
    TRY(comm_dup(zero->comm, "gather", &zero->gather_comm));
    TRY(comm_dup(zero->comm, "reduce", &zero->reduce_comm));
    comm_set_lane(zero->gather_comm, TRACE_GATHER);
    comm_set_lane(zero->reduce_comm, TRACE_REDUCE);
    TRY(stream_create_worker(device, "gather", &zero->gather_stream));
    TRY(stream_create_worker(device, "reduce", &zero->reduce_stream));
    return event_create(device, &zero->written);
}

static enum status alloc_all(struct zero *zero)
{
    const struct unit_graph *graph = zero->graph;
    struct device *device = zero->ops->device;
    TRY(partition_create(zero->env, graph, zero->roster.owners, &zero->partition));
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "pieces", (size_t)graph->piece_count,
                        sizeof *zero->pieces, &zero->pieces));
    TRY(find_uses(zero));
    TRY(exchange_tables_create(zero));
    for (int i = 0; i < graph->piece_count; i++)
        TRY(alloc_piece(zero, i));
    TRY(device_alloc(device, MEM_OTHER, "step scalars", sizeof *zero->scalars, &zero->scalars));
    TRY(mem_alloc(zero->env, MEM_OTHER, "staging", ZERO_STAGING * sizeof(float), &zero->staging));
    if (zero->sharding.params)
        TRY(alloc_param_slots(zero));
    if (!zero_alone(zero))
        TRY(open_comm(zero));
    if (zero->config.micro_batches == 0)
        return STATUS_OK;
    TRY(alloc_gradient_slots(zero));
    TRY(norm_create(zero));
    TRY(device_alloc(device, MEM_SCRATCH, "non-finite index", sizeof *zero->nonfinite,
                     &zero->nonfinite));
    return zero_segments_create(zero);
}

static enum status check_config(struct env *env, const struct zero_config *config, int size)
{
    if (config->servers > 0 && config->servers >= size)
        return FAIL(env, CONFIG, "zero.servers: %d of %d ranks leave no worker", config->servers,
                    size);
    if (config->servers > 0 && !sharding_of(config->stage).optim)
        return FAIL(env, CONFIG,
                    "zero.servers needs stage 1, 2 or 3: in stage 0 every rank owns everything");
    return STATUS_OK;
}

enum status zero_create(struct ops *ops, struct stream *stream, struct comm *comm,
                        const struct unit_graph *graph, const struct zero_config *config,
                        struct zero **zero)
{
    struct env *env = device_env(ops->device);
    struct zero *z;
    int size = comm ? comm_size(comm) : 1, rank = comm ? comm_rank(comm) : 0;
    CHECK_EQ(ops->type, DTYPE_F32);
    unit_graph_check(graph);
    TRY(check_config(env, config, size));
    TRY(mem_alloc(env, MEM_OTHER, "store", sizeof *z, &z));
    *z = (struct zero){.ops = ops,
                       .stream = stream,
                       .comm = comm,
                       .graph = graph,
                       .env = env,
                       .config = *config,
                       .roster = roster_of(rank, size, config->servers)};
    z->owner = roster_owner(&z->roster);
    z->worker = roster_is_worker(&z->roster);
    /* One rank owns all there is: nothing is cut and nothing is held twice. */
    z->sharding =
        size > 1 ? sharding_of(config->stage) : (struct sharding){.optim = true, .grads = true};
    enum status st = alloc_all(z);
    if (st != STATUS_OK) {
        zero_destroy(z);
        return st;
    }
    z->config.groups = NULL;
    *zero = z;
    return STATUS_OK;
}

/* --- the end ---------------------------------------------------------------------------------- */

static void free_piece(struct zero *zero, struct zero_piece *piece)
{
    struct device *device = zero->ops->device;
    for (int k = 0; k < piece->use_count; k++) {
        struct zero_use *use = &piece->uses[k];
        if (!use->sum_inside)
            device_free(device, use->sum);
        device_free(device, use->full);
        event_destroy(use->free);
    }
    device_free(device, piece->v);
    device_free(device, piece->m);
    if (!piece->full)
        device_free(device, piece->slice);
    device_free(device, piece->full);
    event_destroy(piece->published);
}

static void free_slots(struct zero *zero)
{
    struct device *device = zero->ops->device;
    for (int s = 0; s < zero->slots.slots; s++) {
        if (zero->slot_at)
            device_free(device, zero->slot_at[s]);
        if (zero->slot_ready)
            event_destroy(zero->slot_ready[s]);
        if (zero->slot_free)
            event_destroy(zero->slot_free[s]);
    }
    mem_free(zero->env, zero->slot_at);
    mem_free(zero->env, zero->slot_ready);
    mem_free(zero->env, zero->slot_free);
    slot_table_free(zero->env, &zero->slots);
    for (int s = 0; s < GRADIENT_SLOTS; s++) {
        device_free(device, zero->gradient_slots[s].at);
        event_destroy(zero->gradient_slots[s].free);
    }
}

void zero_destroy(struct zero *zero)
{
    if (!zero)
        return;
    struct device *device = zero->ops->device;
    stream_destroy(zero->gather_stream);
    stream_destroy(zero->reduce_stream);
    comm_destroy(zero->gather_comm);
    comm_destroy(zero->reduce_comm);
    for (int i = 0; zero->pieces && i < zero->graph->piece_count; i++)
        free_piece(zero, &zero->pieces[i]);
    free_slots(zero);
    event_destroy(zero->written);
    device_free(device, zero->contributions);
    device_free(device, zero->segments);
    device_free(device, zero->nonfinite);
    device_free(device, zero->block_sums);
    device_free(device, zero->scalars);
    mem_free(zero->env, zero->block_sums_host);
    mem_free(zero->env, zero->nodes);
    mem_free(zero->env, zero->all_nodes);
    mem_free(zero->env, zero->staging);
    mem_free(zero->env, zero->exchange_counts);
    mem_free(zero->env, zero->uses);
    mem_free(zero->env, zero->pieces);
    partition_free(zero->env, &zero->partition);
    mem_free(zero->env, zero);
}

const struct roster *zero_roster(const struct zero *zero)
{
    return &zero->roster;
}

struct comm *zero_comm(const struct zero *zero)
{
    return zero->comm;
}

/* --- traffic ---------------------------------------------------------------------------------- */

static int64_t bytes_sent(const struct comm *comm, double *seconds)
{
    int64_t bytes = 0;
    for (int kind = 0; kind < COMM_KIND_COUNT; kind++) {
        struct comm_counter counter = comm_counted(comm, (enum comm_kind)kind);
        bytes += counter.bytes;
        *seconds += counter.seconds;
    }
    return bytes;
}

struct zero_traffic zero_traffic(const struct zero *zero)
{
    struct zero_traffic traffic = {0};
    double control_seconds = 0;
    if (zero_alone(zero))
        return traffic;
    traffic.gather = bytes_sent(zero->gather_comm, &traffic.in_flight);
    traffic.reduce = bytes_sent(zero->reduce_comm, &traffic.in_flight);
    traffic.control = bytes_sent(zero->comm, &control_seconds);
    traffic.waited = stream_waited(zero->stream) + zero->waited_for_sums;
    return traffic;
}

enum status zero_settle(struct zero *zero)
{
    return zero_alone(zero) ? STATUS_OK : stream_sync(zero->gather_stream);
}

void zero_slow_gathers(struct zero *zero, double seconds)
{
    CHECK(!zero_alone(zero));
    comm_slow_down(zero->gather_comm, seconds);
}
