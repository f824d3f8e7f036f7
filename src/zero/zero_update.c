/* zero_update -- the end of a step: add the uses of tied pieces, form the verdict, update the
 * parameters, and send the new ones to the ranks that need them.
 */
#include "zero/zero_norm.h"
#include "zero/zero_offload.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>

#include "ops/ops.h"

/* --- segments ------------------------------------------------------------------------------- */

/* The index of the last group that matches; -1: none. */
static int group_index(const struct zero_config *config, const char *tensor)
{
    int g = config->group_count - 1;
    while (g >= 0 && fnmatch(config->groups[g].match, tensor, 0) != 0)
        g--;
    return g;
}

static struct zero_group group_of(const struct zero_config *config, const char *tensor)
{
    int g = group_index(config, tensor);
    if (g >= 0)
        return config->groups[g];
    return (struct zero_group){
        .lr_mul = 1.0, .decay = config->weight_decay, .optimizer = config->optimizer};
}

struct optimizer zero_optimizer_of(const struct zero_config *config,
                                   const struct unit_tensor *tensor)
{
    return optimizer_for(group_of(config, tensor->name).optimizer, tensor);
}

/* Muon works on whole matrices, which tensor parallelism cuts. */
static enum status refuse_parts(const struct zero *zero, const struct unit_tensor *tensor)
{
    int g = group_index(&zero->config, tensor->name);
    char key[64] = "optimizer.kind";
    if (g >= 0)
        snprintf(key, sizeof key, "optimizer.groups entry %d", g + 1);
    return FAIL(zero->env, CONFIG,
                "%s: muon needs whole matrices: parallel.tp must be 1; otherwise choose "
                "another optimizer for '%s'",
                key, tensor->name);
}

struct piece_range zero_updated_part(const struct zero *zero, int t)
{
    struct piece_range range = partition_tensor(&zero->partition, t);
    if (zero->shard < 0 || !zero_is_learned(zero, range.piece))
        return (struct piece_range){range.piece, range.first, 0};
    return partition_clip_part(&zero->partition, range, zero->shard, zero->shards);
}

struct update_segment zero_segment_of(const struct zero *zero, int t, struct piece_range mine,
                                      const struct state_view *view)
{
    const struct unit_tensor *tensor = &zero->graph->tensors[t];
    struct zero_group group = group_of(&zero->config, tensor->name);
    enum dtype grad_type = zero_sum_type(zero, mine.piece);
    struct update_segment segment = {
        .count = mine.count,
        .param = (float *)(void *)view->master + (mine.first - view->master_first),
        .copy = zero_is_narrow(zero)
                    ? zero_at(view->copy, zero->type, mine.first - view->copy_first)
                    : NULL,
        .copy_type = zero->type,
        .grad_type = grad_type,
        .grad = zero_at(view->grad, grad_type, mine.first - view->grad_first),
        .lr_mul = (float)group.lr_mul,
        .decay = tensor->decay ? (float)group.decay : 0.0f,
    };
    moments_set(zero, t, mine, view, &segment);
    return segment;
}

/* A group that matches no tensor, or none that is updated, is a configuration error. */
static enum status check_groups(const struct zero *zero)
{
    const struct unit_graph *whole = zero->pipe.cut ? zero->pipe.cut->whole : zero->graph;
    for (int g = 0; g < zero->config.group_count; g++) {
        const char *match = zero->config.groups[g].match;
        int matched = 0, updated = 0;
        for (int t = 0; t < whole->tensor_count; t++) {
            bool matches = fnmatch(match, whole->tensors[t].name, 0) == 0;
            matched += matches;
            updated += matches && !zero->frozen[t];
        }
        if (matched == 0)
            return FAIL(zero->env, CONFIG,
                        "optimizer.groups: '%s' matches no parameter; names look like '%s'", match,
                        whole->tensors[whole->tensor_count - 1].name);
        if (updated == 0)
            return FAIL(zero->env, CONFIG,
                        "optimizer.groups: '%s' matches only parameters that are never updated; "
                        "leave the group out",
                        match);
    }
    return STATUS_OK;
}

enum status zero_batches_create(struct zero *zero)
{
    const struct unit_graph *graph = zero->graph;
    size_t most = (size_t)graph->tensor_count;
    TRY(check_groups(zero));
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "batches", most, sizeof *zero->batches,
                        &zero->batches));
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "batches", most, sizeof *zero->batch_of,
                        &zero->batch_of));
    for (int t = 0, b; t < graph->tensor_count; t++) {
        const struct unit_tensor *tensor = &graph->tensors[t];
        struct optimizer chosen = zero_optimizer_of(&zero->config, tensor);
        zero->batch_of[t] = -1;
        if (zero->frozen[zero_whole_tensor(zero, t)])
            continue;
        if (chosen.kind == OPTIMIZER_MUON && zero->tp_group.size > 1)
            return refuse_parts(zero, tensor);
        for (b = 0; b < zero->batch_count; b++)
            if (zero->batches[b].phase == tensor->phase &&
                optimizer_same(&zero->batches[b].optimizer, &chosen))
                break;
        zero->batch_of[t] = b;
        if (b == zero->batch_count)
            zero->batches[zero->batch_count++] =
                (struct zero_batch){.optimizer = chosen, .phase = tensor->phase};
    }
    return STATUS_OK;
}

/* Segments while they are listed. */
struct segment_list {
    struct update_segment *at;
    struct update_location *locations;
};

/* The next segment: `mine` of tensor t, in a resident piece, or in a packet. The tensors of a piece
 * are consecutive, and so are the segments of a batch in a piece and in a packet. */
static void add_segment(struct zero *zero, int t, struct piece_range mine, int packet,
                        struct segment_list *list)
{
    int b = zero->batch_of[t], pieces = zero->graph->piece_count;
    struct segment_run *all = &zero->batches[b].all;
    struct segment_run *run = zero_run(zero, b, packet < 0 ? mine.piece : pieces + packet);
    struct state_view view = offload_view(zero, mine.piece, packet);
    if (run->count == 0)
        run->first = zero->segment_count;
    run->count++, run->elements += mine.count;
    all->count++, all->elements += mine.count;
    list->locations[zero->segment_count] =
        zero_location_of(zero, t, mine.first - partition_tensor(&zero->partition, t).first);
    list->at[zero->segment_count++] = zero_segment_of(zero, t, mine, &view);
}

/* The segments of a tensor: one, or one in each packet. */
static void add_tensor(struct zero *zero, int t, struct segment_list *list)
{
    struct piece_range left = zero_updated_part(zero, t);
    while (left.count > 0) {
        int packet;
        struct piece_range mine = offload_first(zero, left, &packet);
        add_segment(zero, t, mine, packet, list);
        left.first += mine.count, left.count -= mine.count;
    }
}

static enum status send_segments(struct zero *zero, const struct segment_list *list)
{
    size_t count = (size_t)zero->segment_count;
    struct device *device = zero->ops->device;
    TRY(device_alloc(device, MEM_OTHER, "optimizer segments", count * sizeof *list->at,
                     &zero->segments));
    device_copy(zero->stream, zero->segments, list->at, count * sizeof *list->at);
    if (zero_rounds_at_random(zero)) {
        TRY(device_alloc(device, MEM_OTHER, "places of segments", count * sizeof *list->locations,
                         &zero->segment_locations));
        device_copy(zero->stream, zero->segment_locations, list->locations,
                    count * sizeof *list->locations);
    }
    return stream_sync(zero->stream);
}

enum status zero_segments_create(struct zero *zero)
{
    size_t most = (size_t)(zero->graph->tensor_count + zero->packet_count);
    size_t runs = (size_t)(zero->graph->piece_count + zero->packet_count);
    struct segment_list list = {0};
    enum status st;
    TRY(mem_alloc_array(zero->env, MEM_OTHER, "runs of segments", (size_t)zero->batch_count * runs,
                        sizeof *zero->runs, &zero->runs));
    TRY_OR(undo,
           mem_alloc_array(zero->env, MEM_OTHER, "segments", most, sizeof *list.at, &list.at));
    TRY_OR(undo, mem_alloc_array(zero->env, MEM_OTHER, "segments", most, sizeof *list.locations,
                                 &list.locations));
    for (int b = 0; b < zero->batch_count; b++) {
        zero->batches[b].all.first = zero->segment_count;
        for (int t = 0; t < zero->graph->tensor_count; t++)
            if (zero->batch_of[t] == b && zero_in_one_call(zero, b))
                add_tensor(zero, t, &list);
    }
    TRY_OR(undo, send_segments(zero, &list));
    TRY_OR(undo, zero_muon_create(zero));
    if (zero->host.stream) {
        host_keep(zero, list.at, list.locations);
        return STATUS_OK;
    }
undo:
    mem_free(zero->env, list.at);
    mem_free(zero->env, list.locations);
    return st;
}

/* --- the verdict ---------------------------------------------------------------------------- */

/* A wait of the compute stream, which is counted and traced. */
struct standstill {
    double start, traced;
};

static struct standstill begin_standstill(const struct zero *zero)
{
    return (struct standstill){stream_clock(zero->stream), trace_begin(zero->env->trace)};
}

static void end_standstill(struct zero *zero, struct standstill still)
{
    zero->waited_for_sums += stream_clock(zero->stream) - still.start;
    stream_trace_wait(zero->stream, still.traced);
}

/* Wait for a worker stream while compute stands still. */
static enum status stand_still(struct zero *zero, struct stream *worker)
{
    struct standstill still = begin_standstill(zero);
    enum status st = stream_sync(worker);
    end_standstill(zero, still);
    return st;
}

static void add_uses(struct zero *zero, bool late)
{
    for (int i = 0; zero->reduce_shard >= 0 && i < zero->graph->piece_count; i++) {
        struct zero_piece *piece = &zero->pieces[i];
        for (int k = 1; k < piece->use_count && zero_is_late(zero, i) == late; k++)
            device_accumulate(zero->stream, piece->uses[0].sum, zero_sum_type(zero, i),
                              piece->uses[k].sum, zero_use_type(zero, i, &piece->uses[k]),
                              zero_reduce_shard_count(zero, i));
    }
}

/* Add the gradient that another PP stage has of a piece owned here. It comes last, as its unit
 * does. */
static enum status add_uses_of_pp_stages(struct zero *zero)
{
    struct comm *comm = zero->lent_comm;
    struct standstill still = begin_standstill(zero);
    for (int i = 0; zero->reduce_shard >= 0 && i < zero->graph->piece_count; i++) {
        struct zero_piece *piece = &zero->pieces[i];
        int to = zero_borrowed_from(zero, i), from = zero_lent_to(zero, i);
        int64_t count = zero_reduce_shard_count(zero, i);
        enum dtype type = zero_type_of_sum(zero, false);
        if ((to == UNIT_NO_STAGE && from == UNIT_NO_STAGE) || zero_is_frozen(zero, i))
            continue;
        comm_label(comm, zero->graph->pieces[i].name);
        if (to != UNIT_NO_STAGE)
            comm_send(comm, piece->uses[0].sum, count, type, to, zero->stream);
        if (from == UNIT_NO_STAGE)
            continue;
        comm_recv(comm, piece->lent_sum, count, type, from, zero->stream);
        device_accumulate(zero->stream, piece->uses[0].sum, zero_sum_type(zero, i), piece->lent_sum,
                          type, count);
    }
    TRY(stream_sync(zero->stream));
    end_standstill(zero, still);
    return comm_status(comm);
}

/* What this owner has summed of the gradient of its tensor t; count 0: nothing. A far sum has no
 * address. */
static struct zero_gradient own_sum(const struct zero *zero, int t)
{
    struct piece_range whole = partition_tensor(&zero->partition, t);
    if (zero->reduce_shard < 0 || !zero_is_learned(zero, whole.piece))
        return (struct zero_gradient){0};
    struct piece_range mine = partition_clip(&zero->partition, whole, zero->reduce_shard);
    int64_t own_first = zero->reduce_shard * zero_reduce_shard_count(zero, whole.piece);
    enum dtype type = zero_sum_type(zero, whole.piece);
    const void *sum = zero->pieces[whole.piece].uses[0].sum;
    return (struct zero_gradient){.tensor = zero->pipe.cut ? zero->pipe.cut->whole_tensor[t] : t,
                                  .first = mine.first - whole.first,
                                  .count = mine.count,
                                  .type = type,
                                  .values =
                                      sum ? zero_at(sum, type, mine.first - own_first) : NULL};
}

/* Apply the gates and limits of the tensors to what this owner has summed. */
static void gate_gradients(struct zero *zero, double scale, const float *statistics)
{
    for (int t = 0; t < zero->graph->tensor_count; t++) {
        const struct unit_tensor *tensor = &zero->graph->tensors[t];
        struct zero_gradient mine = own_sum(zero, t);
        struct gate_rows gate = {
            .first = mine.first, .count = mine.count, .limit = INFINITY, .x = mine.values};
        if (mine.count == 0 || (!tensor->gated && tensor->limit == 0))
            continue;
        if (tensor->gated) {
            CHECK(statistics && tensor->split.units == 0);
            gate.columns = unit_tensor_whole(tensor) / tensor->shape[0];
            gate.goodness = statistics + tensor->gate;
        }
        if (tensor->limit > 0)
            gate.limit = (float)(tensor->limit * scale);
        ops_gate_rows(zero->ops, zero->stream, mine.type, &gate);
    }
}

static enum status show_gradients(struct zero *zero, double scale)
{
    for (int t = 0; t < zero->graph->tensor_count; t++) {
        struct zero_gradient gradient = own_sum(zero, t);
        gradient.scale = scale;
        if (gradient.count > 0)
            TRY(zero->config.gradient(zero->config.gradient_user, &gradient));
    }
    return STATUS_OK;
}

/* *first = the first non-finite value; -1: none. */
static enum status find_bad(struct zero *zero, enum dtype type, const void *values, int64_t count,
                            int64_t *first)
{
    ops_find_nonfinite(zero->ops, zero->stream, type, values, count, zero->nonfinite);
    device_copy(zero->stream, first, zero->nonfinite, sizeof *first);
    return stream_sync(zero->stream);
}

/* The same of a tensor whose sum is far. */
static enum status find_far_bad(struct zero *zero, int t, struct zero_gradient mine, int64_t *first)
{
    struct piece_range whole = partition_tensor(&zero->partition, t);
    int64_t begin = whole.first + mine.first, end = begin + mine.count;
    *first = -1;
    for (int64_t at = begin; at < end && *first < 0;) {
        int packet;
        struct piece_range part =
            offload_first(zero, (struct piece_range){whole.piece, at, end - at}, &packet);
        const void *sum;
        TRY(offload_fetch_sum(zero, packet, &sum));
        sum = zero_at(sum, mine.type, at - zero->packets[packet].range.first);
        TRY(find_bad(zero, mine.type, sum, part.count, first));
        *first += *first < 0 ? 0 : at - begin;
        at += part.count;
    }
    return STATUS_OK;
}

/* The first non-finite element that this owner has, as (tensor, element). */
static enum status find_own_bad(struct zero *zero, struct zero_verdict *verdict)
{
    for (int t = 0; t < zero->graph->tensor_count; t++) {
        struct zero_gradient mine = own_sum(zero, t);
        int64_t first;
        if (mine.count == 0)
            continue;
        if (zero->pieces[partition_tensor(&zero->partition, t).piece].sum_is_far)
            TRY(find_far_bad(zero, t, mine, &first));
        else
            TRY(find_bad(zero, mine.type, mine.values, mine.count, &first));
        if (first < 0)
            continue;
        verdict->bad_tensor = mine.tensor;
        verdict->bad_index = unit_tensor_index(&zero->graph->tensors[t], first + mine.first, NULL);
        return STATUS_OK;
    }
    return STATUS_OK;
}

/* The ranks of `comm` agree on the first that any of them has. */
static enum status agree_on_bad(struct zero *zero, struct comm *comm, struct zero_verdict *verdict)
{
    int64_t mine[2] = {verdict->bad_tensor, verdict->bad_index};
    TRY(comm_exchange(comm, mine, sizeof mine, zero->all_bad));
    for (int rank = 0; rank < comm_size(comm); rank++) {
        int64_t tensor = zero->all_bad[rank][0], index = zero->all_bad[rank][1];
        bool later = verdict->bad_tensor >= 0 &&
                     (tensor > verdict->bad_tensor ||
                      (tensor == verdict->bad_tensor && index >= verdict->bad_index));
        if (tensor < 0 || later)
            continue;
        verdict->bad_tensor = (int)tensor;
        verdict->bad_index = index;
    }
    return STATUS_OK;
}

/* The norm of each phase that the model has. */
static enum status find_norms(struct zero *zero, double scale, bool early,
                              struct zero_verdict *verdict)
{
    double *const norms[] = {
        [PHASE_MAIN] = &verdict->grad_norm, [PHASE_META] = &verdict->meta_norm};
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        double square_sum;
        if (!unit_has_phase(zero_whole_graph(zero), (enum unit_phase)phase))
            continue;
        TRY(norm_of_sums(zero, (enum unit_phase)phase, early, &square_sum));
        *norms[phase] = sqrt(square_sum) / scale;
        if (phase == PHASE_MAIN)
            TRY(noise_judge_sum(zero, &verdict->sum_square));
    }
    verdict->each_square /= scale * scale;
    verdict->sum_square /= scale * scale;
    return STATUS_OK;
}

/* Where sums do not change between their arrival and the norm, except that uses are added: the norm
 * of most pieces is computed while the last sums arrive. */
static bool judges_early(const struct zero *zero)
{
    if (zero_alone(zero) || zero->pipe.comm || zero->tp_group.comm || zero->config.noise ||
        zero->config.offload.grads != FAR_NONE || zero->config.gradient ||
        unit_has_phase(zero->graph, PHASE_META))
        return false;
    for (int t = 0; t < zero->graph->tensor_count; t++)
        if (zero->graph->tensors[t].gated || zero->graph->tensors[t].limit > 0)
            return false;
    return true;
}

enum status zero_judge(struct zero *zero, double scale, const float *statistics,
                       struct zero_verdict *verdict)
{
    bool early = judges_early(zero);
    TRY(zero_finish_update(zero)); /* of pieces that no pass has used since */
    if (early) {
        stream_wait(zero->stream, zero->early);
        add_uses(zero, false);
        norm_form_early(zero);
    }
    if (zero->reduce_stream)
        TRY(stand_still(zero, zero->reduce_stream));
    TRY(offload_check(zero));
    *verdict = (struct zero_verdict){.bad_tensor = -1, .bad_index = -1};
    TRY(noise_judge_each(zero, &verdict->each_square));
    if (!early)
        add_uses(zero, false);
    add_uses(zero, true);
    if (zero->pipe.comm)
        TRY(add_uses_of_pp_stages(zero));
    noise_add_lent(zero);
    TRY(tp_group_add_partials(zero));
    gate_gradients(zero, scale, statistics);
    if (zero->config.gradient && !device_is_dry(zero->ops->device))
        TRY(show_gradients(zero, scale));
    TRY(find_norms(zero, scale, early, verdict));
    if (isfinite(verdict->grad_norm) && isfinite(verdict->meta_norm))
        return STATUS_OK;
    TRY(find_own_bad(zero, verdict));
    struct comm *const comms[] = {zero_alone(zero) ? NULL : zero->comm, zero->pipe.comm,
                                  zero->tp_group.comm};
    for (int i = 0; i < 3; i++)
        if (comms[i])
            TRY(agree_on_bad(zero, comms[i], verdict));
    return STATUS_OK;
}

/* --- the update ----------------------------------------------------------------------------- */

/* Send the new shards to the PP stages that borrow them; `all`: also frozen ones. */
static enum status lend_params(struct zero *zero, bool all)
{
    struct comm *comm = zero->lend_comm;
    struct standstill still = begin_standstill(zero);
    for (int i = 0; zero->shard >= 0 && i < zero->graph->piece_count; i++) {
        void *shard = zero->pieces[i].shard;
        int64_t count = zero_shard_count(zero, i);
        int to = zero_lent_to(zero, i), from = zero_borrowed_from(zero, i);
        if ((to == UNIT_NO_STAGE && from == UNIT_NO_STAGE) || (zero_is_frozen(zero, i) && !all))
            continue;
        comm_label(comm, zero->graph->pieces[i].name);
        if (to != UNIT_NO_STAGE)
            comm_send(comm, shard, count, zero->type, to, zero->stream);
        if (from != UNIT_NO_STAGE)
            comm_recv(comm, shard, count, zero->type, from, zero->stream);
    }
    TRY(stream_sync(zero->stream));
    end_standstill(zero, still);
    return comm_status(comm);
}

/* Send the new shards to all ranks that keep full params; `all`: also frozen ones. */
static enum status publish_params(struct zero *zero, bool all)
{
    if (zero->pipe.comm)
        TRY(lend_params(zero, all));
    if (!zero->gather_comm)
        return STATUS_OK;
    event_record(zero->written, zero->stream);
    stream_wait(zero->gather_stream, zero->written);
    for (int i = 0; !zero->sharding.params && i < zero->graph->piece_count; i++) {
        if (zero_is_frozen(zero, i) && !all)
            continue;
        shards_to_members(zero, i, zero->pieces[i].shard, zero->pieces[i].full);
        event_record(zero->pieces[i].published, zero->gather_stream);
    }
    return STATUS_OK;
}

enum status zero_publish(struct zero *zero, int64_t updates)
{
    zero->ahead = 0; /* what the next walk has gathered is no longer valid */
    for (int i = 0; zero->shard >= 0 && i < zero->graph->piece_count; i++)
        if (zero->pieces[i].params_are_far && zero_piece_has_master(zero, i))
            TRY(far_params_publish(zero, i));
        else if (zero->pieces[i].state_is_far && zero_piece_has_master(zero, i))
            TRY(offload_publish(zero, i));
        else if (zero_piece_has_master(zero, i) && zero->pieces[i].master)
            ops_cast(zero->ops, zero->stream, zero->pieces[i].shard, zero->type,
                     zero->pieces[i].master, DTYPE_F32, zero_shard_count(zero, i));
    if (zero_rounds_at_random(zero))
        TRY(zero_round_all(zero, updates));
    return publish_params(zero, true);
}

struct update zero_update_of(const struct zero *zero, int b, const struct segment_run *run,
                             const struct update_location *locations)
{
    struct update update = optimizer_update(&zero->batches[b].optimizer);
    update.locations = locations ? locations + run->first : NULL;
    update.number = zero->update_number;
    return update;
}

struct ops_case zero_update_case(const struct zero *zero, int b, const struct segment_run *run)
{
    struct update update = optimizer_update(&zero->batches[b].optimizer);
    return (struct ops_case){.op = update_word(update.rule),
                             .count = run->elements,
                             .from = zero->sum_type,
                             .to = zero_is_narrow(zero) ? zero->type : DTYPE_F32,
                             .momentum = update.rule == UPDATE_SGD && update.beta1 > 0};
}

/* A dry device cannot read the segments, so this adds the price itself. */
void zero_update_segments(struct zero *zero, int b, const struct segment_run *run)
{
    struct update update = zero_update_of(zero, b, run, zero->segment_locations);
    const struct ops_case price = zero_update_case(zero, b, run);
    if (run->count == 0)
        return;
    ops_update(zero->ops, zero->stream, &update, &zero->scalars[1 + b], zero->segments + run->first,
               run->count);
    if (device_is_dry(zero->ops->device))
        ops_spend(zero->ops, zero->stream, &price);
}

/* `clip` 0: gradients are not clipped. */
static double clip_factor(double clip, double norm)
{
    double factor = clip / (norm + 1e-6); /* as in PyTorch */
    return clip > 0.0 && factor < 1.0 ? factor : 1.0;
}

enum status zero_update(struct zero *zero, int64_t t, double lr, double scale,
                        const struct zero_verdict *verdict)
{
    const struct zero_config *c = &zero->config;
    const double factors[] = {[PHASE_MAIN] = clip_factor(c->clip, verdict->grad_norm),
                              [PHASE_META] = clip_factor(c->meta_clip, verdict->meta_norm)};
    for (int b = 0; b < zero->batch_count; b++) {
        const struct optimizer *o = &zero->batches[b].optimizer;
        zero->scalars_host[1 + b] =
            (struct step_scalars){.lr = (float)lr,
                                  .correction1 = (float)(1.0 - pow(o->beta1, (double)t)),
                                  .correction2 = (float)(1.0 - pow(o->beta2, (double)t)),
                                  .grad_scale = (float)(factors[zero->batches[b].phase] / scale)};
    }
    device_copy(zero->stream, zero->scalars, zero->scalars_host,
                (size_t)(1 + zero->batch_count) * sizeof *zero->scalars);
    zero->update_number = t;
    zero_begin_update(zero);
    if (zero_defers_updates(zero))
        return stream_sync(zero->stream);
    for (int b = 0; !zero->updating && b < zero->batch_count; b++)
        zero_update_segments(zero, b, &zero->batches[b].all);
    TRY(zero_finish_update(zero));
    TRY(zero_muon_update(zero, t));
    TRY(stream_sync(zero->stream));
    return publish_params(zero, false);
}
