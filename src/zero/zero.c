/* zero -- create and destroy the store: configuration checks and this rank's role; and its traffic.
 */
#include "zero/zero_offload.h"

#include <stdio.h>

/* --- construction --------------------------------------------------------------------------- */

/* Says in messages which ranks are counted. */
static const char *of_a_pp_stage(const struct zero_config *config)
{
    return config->pipe ? " of one PP stage" : "";
}

static enum status check_group(struct env *env, const struct zero_config *config, int size)
{
    int group = config->shard_group;
    if (config->servers > 0)
        return FAIL(env, CONFIG,
                    "zero.shard_group and zero.servers exclude each other; set one of them to 0");
    if (!sharding_of(config->stage).optim)
        return FAIL(env, CONFIG,
                    "zero.shard_group needs zero.stage 1, 2 or 3; stage 0 shards nothing");
    if (size % group == 0)
        return STATUS_OK;
    char divisors[128] = "";
    size_t used = 0;
    for (int d = 1; d <= size && used < sizeof divisors - 16; d++)
        if (size % d == 0)
            used += (size_t)snprintf(divisors + used, sizeof divisors - used, " %d", d);
    return FAIL(env, CONFIG, "zero.shard_group=%d does not divide %d rank%s%s; try one of%s", group,
                size, size == 1 ? "" : "s", of_a_pp_stage(config), divisors);
}

static enum status check_config(struct env *env, const struct zero_config *config, int size)
{
    if (config->servers > 0 && config->servers >= size)
        return FAIL(
            env, CONFIG,
            "zero.servers=%d leaves no worker among %d rank%s%s; use fewer servers or more ranks",
            config->servers, size, size == 1 ? "" : "s", of_a_pp_stage(config));
    if (config->servers > 0 && !sharding_of(config->stage).optim)
        return FAIL(
            env, CONFIG,
            "zero.servers needs zero.stage 1, 2 or 3; in stage 0 every rank owns everything");
    if (config->sum_type != DTYPE_F32 && config->type == DTYPE_F32)
        return FAIL(env, CONFIG,
                    "precision.accumulate: bf16 needs precision.mode bf16 or fp16: fp32 gradients "
                    "are summed in fp32");
    return config->shard_group > 0 ? check_group(env, config, size) : STATUS_OK;
}

struct unit_merge zero_merge(const struct zero_config *config)
{
    return (struct unit_merge){.units = config->unit_layers,
                               .elements = config->bucket / (int64_t)dtype_bytes(config->type)};
}

/* How many gradients a step of this many micro-batches sums. */
static int64_t count_reductions(const struct zero *zero, int64_t micro_batches)
{
    int64_t workers = zero->roster.workers;
    bool once = zero->config.local && !zero_alone(zero) && micro_batches > workers;
    return once ? workers : micro_batches;
}

/* This rank's role: which shards it holds, sums and computes with. */
static void find_role(struct zero *zero, int rank, int size)
{
    struct zero_config *c = &zero->config;
    struct roster *r = &zero->roster;
    *r = roster_of(rank, size, c->servers);
    if (size > 1 && !sharding_of(c->stage).optim)
        r->copies = size;
    else if (c->shard_group > 0)
        r->copies = size / c->shard_group;
    zero->worker = roster_is_worker(r);
    zero->shards = roster_shards(r);
    zero->shard = roster_shard(r, rank);
    zero->reduce_shard = roster_reduce_shard(r, rank);
    zero->members = r->copies > 1 ? zero->shards : size;
    zero->first_member = r->copies > 1 ? rank / zero->shards * zero->shards : 0;
    c->noise = c->noise && c->micro_batches > 1;
    /* One rank sums its own anyway, but a 16-bit sum must be rounded like one that is sent, and so
     * must a single gradient in fp16 that goes through a sum in bf16. */
    bool rounds = c->micro_batches > 1 ||
                  (c->micro_batches == 1 && c->sum_type != DTYPE_F32 && c->sum_type != c->type);
    c->local = c->local && (size > 1 || (c->type != DTYPE_F32 && rounds));
    zero->micro_batches = c->micro_batches;
    zero->reductions = zero->most_reductions = count_reductions(zero, c->micro_batches);
    zero->type = c->micro_batches > 0 ? c->type : zero->ops->type;
    zero->sum_type = c->micro_batches > 0 ? c->sum_type : DTYPE_F32;
    /* One rank owns everything: nothing is sharded and nothing is held twice. */
    zero->sharding =
        size > 1 ? sharding_of(c->stage) : (struct sharding){.optim = true, .grads = true};
    zero->sharding.params = zero->sharding.params || c->offload.params != FAR_NONE;
}

static enum status check_noise(const struct zero *zero)
{
    bool summed = !zero_alone(zero) && comm_library_sums(zero->comm, zero->type) &&
                  roster_is_even(&zero->roster);
    if (!zero->config.noise || zero->config.local || !summed)
        return STATUS_OK;
    return FAIL(zero->env, CONFIG,
                "train.noise_scale needs the gradient of each micro-batch, but NCCL adds fp32 "
                "gradients on their way; set run.deterministic: true or precision.mode: bf16");
}

enum status zero_create(struct ops *ops, struct stream *stream, struct comm *comm,
                        const struct unit_graph *graph, const struct zero_config *config,
                        struct zero **zero)
{
    struct env *env = device_env(ops->device);
    struct zero *z;
    int size = comm ? comm_size(comm) : 1, rank = comm ? comm_rank(comm) : 0;
    unit_graph_check(graph);
    TRY(check_config(env, config, size));
    TRY(mem_alloc(env, MEM_OTHER, "store", sizeof *z, &z));
    *z = (struct zero){
        .ops = ops, .stream = stream, .comm = comm, .graph = graph, .env = env, .config = *config};
    z->first_held = graph->piece_count;
    pthread_mutex_init(&z->hold_lock, NULL);
    pthread_cond_init(&z->released, NULL);
    if (config->pipe)
        z->pipe = *config->pipe;
    z->tp_group = (struct zero_tp_group){.comm = config->tp_group, .size = 1};
    if (config->tp_group) {
        z->tp_group.rank = comm_rank(config->tp_group);
        z->tp_group.size = comm_size(config->tp_group);
    }
    offload_choose(z);
    find_role(z, rank, size);
    enum status st = check_noise(z);
    CHECK(ops->type == DTYPE_F32 || ops->type == z->type);
    if (st == STATUS_OK)
        st = zero_memory_create(z);
    if (st != STATUS_OK) {
        zero_destroy(z);
        return st;
    }
    z->config.groups = NULL, z->config.pipe = NULL, z->config.chunks = NULL;
    z->config.offload.folder = NULL;
    *zero = z;
    return STATUS_OK;
}

void zero_destroy(struct zero *zero)
{
    if (!zero)
        return;
    stream_destroy(zero->gather_stream);
    stream_destroy(zero->reduce_stream);
    stream_destroy(zero->host.stream);
    stream_destroy(zero->in_stream);
    stream_destroy(zero->out_stream);
    stream_destroy(zero->params_stream);
    comm_destroy(zero->lent_comm);
    comm_destroy(zero->lend_comm);
    comm_destroy(zero->gather_comm);
    comm_destroy(zero->replica_comm);
    comm_destroy(zero->reduce_comm);
    comm_destroy(zero->muon_comm);
    zero_memory_free(zero);
    pthread_cond_destroy(&zero->released);
    pthread_mutex_destroy(&zero->hold_lock);
    mem_free(zero->env, zero);
}

enum status zero_set_micro_batches(struct zero *zero, int64_t count)
{
    CHECK(count >= 1 && count <= zero->config.micro_batches);
    if (count == zero->micro_batches)
        return STATUS_OK;
    TRY(zero_settle(zero)); /* calls that are in flight read the tables */
    zero->micro_batches = count;
    zero->reductions = count_reductions(zero, count);
    exchange_set_last_round(zero);
    return STATUS_OK;
}

const struct roster *zero_roster(const struct zero *zero)
{
    return &zero->roster;
}

bool zero_held_once(const struct zero *zero)
{
    return zero->roster.copies == 1 && !zero->tp_group.comm;
}

bool zero_in_place(const struct zero *zero)
{
    for (int i = 0; i < zero->graph->piece_count; i++)
        if (zero->pieces[i].published)
            return false;
    return zero->worker && !zero->sharding.params && !zero_widens(zero);
}

bool zero_wants_scaling(const struct zero *zero)
{
    return zero->type == DTYPE_F16;
}

struct comm *zero_comm(const struct zero *zero)
{
    return zero->comm;
}

enum status zero_settle(struct zero *zero)
{
    TRY(zero_finish_update(zero));
    TRY(stream_sync(zero->stream));
    TRY(offload_settle(zero));
    if (zero->params_stream)
        TRY(stream_sync(zero->params_stream));
    if (zero_alone(zero))
        return STATUS_OK;
    TRY(stream_sync(zero->gather_stream));
    return stream_sync(zero->reduce_stream);
}

enum status zero_check(struct zero *zero)
{
    if (zero->params_stream)
        TRY(stream_sync(zero->params_stream));
    return offload_check(zero);
}

/* sum += all calls of a communicator, which may be NULL. */
static void add_counters(const struct comm *comm, struct comm_counter *sum)
{
    for (int kind = 0; comm && kind < COMM_KIND_COUNT; kind++) {
        struct comm_counter counter = comm_counted(comm, (enum comm_kind)kind);
        sum->bytes += counter.bytes;
        sum->calls += counter.calls;
        sum->seconds += counter.seconds;
        sum->blocked += counter.blocked;
    }
}

struct traffic zero_traffic(const struct zero *zero)
{
    struct comm_counter gather = {0}, reduce = {0}, tensor = {0}, muon = {0}, control = {0};
    const struct comm *tp_comms[] = {zero->tp_group.comm, zero->tp_group.replicas};
    add_counters(zero->gather_comm, &gather);
    add_counters(zero->replica_comm, &gather); /* summed gradients to the ranks that update */
    add_counters(zero->lend_comm, &gather);
    add_counters(zero->reduce_comm, &reduce);
    add_counters(zero->lent_comm, &reduce);
    add_counters(zero->muon_comm, &muon);
    for (int i = 0; i < 2; i++)
        add_counters(tp_comms[i], &tensor);
    for (int i = 0; i < 2 && tp_comms[i]; i++) { /* their bytes count, their time does not */
        struct comm_counter agreed = comm_counted(tp_comms[i], COMM_CONTROL);
        tensor.seconds -= agreed.seconds;
        tensor.blocked -= agreed.blocked;
    }
    add_counters(zero->comm, &control);
    add_counters(zero->pipe.comm, &control);
    bool waits = !zero_alone(zero) || zero->pipe.comm || zero->tp_group.comm;
    struct traffic traffic = {
        .sent = {[TRAFFIC_GATHER] = gather.bytes,
                 [TRAFFIC_REDUCE] = reduce.bytes,
                 [TRAFFIC_MUON] = muon.bytes,
                 [TRAFFIC_TENSOR] = tensor.bytes,
                 [TRAFFIC_CONTROL] = control.bytes},
        .calls = {[TRAFFIC_GATHER] = gather.calls,
                  [TRAFFIC_REDUCE] = reduce.calls,
                  [TRAFFIC_MUON] = muon.calls,
                  [TRAFFIC_TENSOR] = tensor.calls,
                  [TRAFFIC_CONTROL] = control.calls},
        .in_flight = gather.seconds + reduce.seconds + muon.seconds + tensor.seconds,
        .waited = waits ? stream_waited(zero->stream) + zero->waited_for_sums + tensor.blocked : 0,
        .tensor_in_flight = tensor.seconds,
        .tensor_waited = tensor.blocked,
    };
    traffic_add_far(&traffic, zero->far_state);
    traffic_add_far(&traffic, zero->far_sums);
    traffic_add_far(&traffic, zero->far_params);
    traffic_add_far(&traffic, zero->host.slots);
    return traffic;
}

void zero_slow_gathers(struct zero *zero, double seconds)
{
    struct comm *const comms[] = {zero->gather_comm, zero->replica_comm};
    CHECK(comms[0] || comms[1]);
    for (int i = 0; i < 2; i++)
        if (comms[i])
            comm_slow_down(comms[i], seconds);
}
