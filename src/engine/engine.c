/* engine -- the order of passes of a step.
 *
 *     for each round   forward of units 0 .. n-2, loss of unit n-1, backward of units n-2 .. 0
 *                      (or down to the first unit that learns)
 *     then             the store judges the sum of all gradients and updates the params
 *
 * Each worker computes one micro-batch per round. Ranks without one (idle in the last round, or
 * servers) make the same calls to the store in the same order and compute nothing.
 *
 * The number of valid labels of the whole step is known before the first backward pass, and the
 * loss gradient is divided by it at once, so there is no average of averages. Losses are added in
 * the order of the micro-batches. In fp16 the loss gradient is also multiplied by a scale
 * (struct loss_scale), which judgement and update divide out again.
 */
#include <math.h>
#include <string.h>

#include "engine/pipeline_impl.h"

struct scopes *engine_scopes(struct engine *engine)
{
    return &engine->scopes;
}

enum status engine_set_micro_batches(struct engine *engine, int64_t count)
{
    TRY(zero_set_micro_batches(engine->zero, count));
    engine->micro_batches = count;
    return STATUS_OK;
}

void *engine_input(struct engine *engine, int64_t round, int i)
{
    CHECK(round >= 0 && round < engine_most_rounds(engine) && i < engine->inputs.count);
    return engine->inputs.host[i] + (size_t)round * engine->inputs.bytes[i];
}

void engine_batch(struct engine *engine, int64_t round, int32_t **tokens, int32_t **labels)
{
    CHECK(!engine->graph->inputs);
    *tokens = engine_input(engine, round, INPUT_TOKENS);
    *labels = engine_input(engine, round, INPUT_LABELS);
}

/* --- over all ranks ------------------------------------------------------------------------- */

/* all (ranks, bytes) = the `mine` of every rank. */
static enum status exchange(struct engine *engine, const void *mine, size_t bytes, void *all)
{
    struct comm *comm = zero_comm(engine->zero);
    if (comm)
        return comm_exchange(comm, mine, bytes, all);
    memcpy(all, mine, bytes);
    return STATUS_OK;
}

/* all_losses is free at this point and large enough. */
enum status engine_sum(struct engine *engine, int64_t mine, int64_t *sum)
{
    int64_t *all = (int64_t *)engine->all_losses;
    TRY(exchange(engine, &mine, sizeof mine, all));
    *sum = 0;
    for (int rank = 0; rank < zero_roster(engine->zero)->size; rank++)
        *sum += all[rank];
    return STATUS_OK;
}

enum status engine_vote(struct engine *engine, int64_t mine, int64_t *sum)
{
    TRY(engine_sum(engine, mine, sum));
    if (engine->pipeline)
        TRY(pipeline_sum(engine->pipeline, *sum, sum));
    struct comm *group = engine->config.group;
    if (!group)
        return STATUS_OK;
    mine = *sum;
    TRY(comm_exchange(group, &mine, sizeof mine, engine->votes));
    *sum = 0;
    for (int rank = 0; rank < comm_size(group); rank++)
        *sum += engine->votes[rank];
    return STATUS_OK;
}

/* The loss of micro-batch m, after losses were exchanged. */
static double loss_of(const struct engine *engine, int64_t rounds, int64_t m)
{
    int workers = zero_roster(engine->zero)->workers;
    return engine->all_losses[m % workers * rounds + m / workers];
}

/* Add the losses of `count` micro-batches, computed in `rounds` rounds, in their order. */
static enum status add_own_losses(struct engine *engine, int64_t rounds, int64_t count, double *sum)
{
    size_t bytes = (size_t)rounds * sizeof(double);
    device_copy(engine->stream, engine->losses_host, engine->losses, bytes);
    TRY(stream_sync(engine->stream));
    TRY(exchange(engine, engine->losses_host, bytes, engine->all_losses));
    for (int64_t m = 0; m < count; m++)
        *sum += loss_of(engine, rounds, m);
    return STATUS_OK;
}

/* The same, on all PP stages. */
static enum status add_losses(struct engine *engine, int64_t rounds, int64_t count, double *sum)
{
    TRY(zero_check(engine->zero)); /* before any rank sees a loss */
    if (!engine->pipeline)
        return add_own_losses(engine, rounds, count, sum);
    TRY(pipeline_settle(engine->pipeline));
    if (pipeline_has_loss(engine->pipeline))
        TRY(add_own_losses(engine, rounds, count, sum));
    return pipeline_share(engine->pipeline, sum);
}

/* The first micro-batch whose loss is not finite, on every rank. */
static enum status find_bad_loss(struct engine *engine, int64_t *micro_batch)
{
    double first = -1; /* a double, because pipeline_share passes doubles */
    bool here = !engine->pipeline || pipeline_has_loss(engine->pipeline);
    for (int64_t m = engine->micro_batches - 1; here && m >= 0; m--)
        first = isfinite(loss_of(engine, engine_rounds(engine), m)) ? first : (double)m;
    if (engine->pipeline)
        TRY(pipeline_share(engine->pipeline, &first));
    *micro_batch = (int64_t)first;
    return STATUS_OK;
}

/* --- a step --------------------------------------------------------------------------------- */

/* What the loss of the micro-batch of a round is divided by. */
static double count_round(struct engine *engine, int64_t round)
{
    const void *inputs[UNIT_MAX_INPUTS];
    int64_t valid = 0;
    for (int i = 0; i < engine->inputs.count; i++)
        inputs[i] = engine_input(engine, round, i);
    if (engine->graph->count)
        return engine->graph->count(engine->graph, engine_batch_shape(engine), inputs);
    for (int64_t i = 0; i < engine_batch_rows(engine); i++)
        valid += ((const int32_t *)inputs[INPUT_LABELS])[i] >= 0;
    return (double)valid;
}

/* *sum = what the loss of `count` micro-batches, computed in `rounds` rounds, is divided by. Counts
 * are added in the order of the micro-batches, since they need not be whole numbers. */
static enum status sum_counts(struct engine *engine, int64_t rounds, int64_t count, double *sum)
{
    const struct roster *roster = zero_roster(engine->zero);
    double *mine = engine->losses_host; /* free at this point */
    int64_t labels = 0;
    for (int64_t round = 0; round < rounds; round++) {
        bool idle = roster_micro_batch(roster, count, round) < 0;
        mine[round] = idle || device_is_dry(engine->ops->device) ? 0.0 : count_round(engine, round);
        labels += (int64_t)mine[round];
    }
    *sum = 0.0;
    if (!engine->graph->count &&
        !zero_weights(engine->zero)) { /* whole numbers: their order does not matter */
        TRY(engine_sum(engine, labels, &labels));
        *sum = (double)labels;
        return STATUS_OK;
    }
    TRY(exchange(engine, mine, (size_t)rounds * sizeof *mine, engine->all_losses));
    for (int64_t m = 0; m < count; m++)
        *sum += loss_of(engine, rounds, m);
    return STATUS_OK;
}

/* The squares of a micro-batch's gradient are weighted by N / c: the labels of the step, and its
 * own. Called when the counts of all micro-batches are known. */
static void weigh_micro_batches(struct engine *engine, double count)
{
    double *weights = zero_weights(engine->zero);
    bool dry = device_is_dry(engine->ops->device);
    for (int64_t m = 0; weights && m < engine->micro_batches; m++) {
        double own = dry ? count : loss_of(engine, engine_rounds(engine), m);
        weights[m] = own > 0 ? count / own : 0;
    }
}

/* What the gradients of a step say about |G|^2, the square of the true gradient, and tr S, the
 * trace of the covariance of one sequence's gradient. Micro-batch i has c_i of the step's N labels;
 * its gradient g_i is already divided by N. Of n micro-batches with labels,
 *
 *     each = sum of (N / c_i) |g_i|^2   is |G|^2 + n T / N on average, and
 *     sum  = |sum of g_i|^2             is |G|^2 + T / N,
 *
 * where T is the trace for one label: T / N = tr S / (sequences of the step). */
static struct noise estimate_noise(const struct engine *engine, const struct zero_verdict *v)
{
    const double *weights = zero_weights(engine->zero);
    double n = 0;
    for (int64_t m = 0; weights && m < engine->micro_batches; m++)
        n += weights[m] > 0;
    if (n < 2 || !isfinite(v->each_square) || !isfinite(v->sum_square))
        return (struct noise){0};
    double sequences = (double)(engine->config.micro_batch * engine->micro_batches);
    return (struct noise){.known = true,
                          .square = (n * v->sum_square - v->each_square) / (n - 1),
                          .trace = sequences * (v->each_square - v->sum_square) / (n - 1)};
}

/* Sum the units' statistics over the micro-batches of the step, in their order. Each PP stage has
 * those of its units; the others are 0. */
static enum status sum_statistics(struct engine *engine)
{
    int64_t width = engine->graph->statistics, rounds = engine_rounds(engine);
    size_t bytes = (size_t)(rounds * width) * sizeof(float);
    int workers = zero_roster(engine->zero)->workers;
    float *sum = engine->statistics_host;
    if (width == 0)
        return STATUS_OK;
    if (engine->statistics) /* not on servers */
        device_copy(engine->stream, sum, engine->statistics, bytes);
    TRY(stream_sync(engine->stream));
    TRY(exchange(engine, sum, bytes, engine->all_statistics));
    memset(sum, 0, (size_t)width * sizeof *sum);
    for (int64_t m = 0; m < engine->micro_batches; m++) {
        const float *one = engine->all_statistics + (m % workers * rounds + m / workers) * width;
        for (int64_t i = 0; i < width; i++)
            sum[i] += one[i];
    }
    if (engine->pipeline)
        TRY(pipeline_add(engine->pipeline, sum, width, engine->all_statistics));
    if (engine->gates)
        device_copy(engine->stream, engine->gates, sum, (size_t)width * sizeof *sum);
    return STATUS_OK;
}

const float *engine_statistics(const struct engine *engine)
{
    return engine->statistics_host;
}

static void forward_and_backward(struct engine *engine, int64_t round)
{
    bool idle = engine_micro_batch(engine, round) < 0;
    int last = engine->graph->unit_count - 1;
    const struct timetable_action whole = {.verb = TIMETABLE_FORWARD, .round = (int32_t)round};
    struct scope scope = {.kind = SCOPE_ACTION, .action = &whole};
    scope_begin(&engine->scopes, &scope);
    struct walk walk = engine_start_walk(engine, round, idle, 0, last + 1, WALK_BOTH);
    engine_forward(engine, 0, last, &walk);
    engine_run_pass_with_gradients(engine, last, PASS_LOSS, &walk);
    if (engine->carry_gradient && !idle) /* nobody uses the carry of the last unit that has one */
        device_zero(engine->stream, engine->carry_gradient, engine_carry_bytes(engine));
    engine_backward(engine, engine->graph->backward_from, last, &walk);
    scope_end(&engine->scopes, &scope);
}

/* Some processors set the sign of a NaN, which would be printed. */
static double unsigned_nan(double value)
{
    return isnan(value) ? (double)NAN : value;
}

/* All labels of the step are masked. */
static struct engine_result no_labels(const struct engine *engine)
{
    return (struct engine_result){.loss = NAN,
                                  .grad_norm = NAN,
                                  .meta_norm = NAN,
                                  .skipped = true,
                                  .bad_tensor = -1,
                                  .bad_micro_batch = -1,
                                  .loss_scale = engine->scale.scale,
                                  .next_loss_scale = engine->scale.scale};
}

static enum status gradients(struct engine *engine, struct engine_result *result,
                             struct zero_verdict *verdict)
{
    int64_t rounds = engine_rounds(engine);
    double count, loss_sum = 0.0;
    TRY(sum_counts(engine, rounds, engine->micro_batches, &count));
    if (device_is_dry(engine->ops->device)) /* a plan has no labels; any count will do */
        count = 1;
    if (count == 0) { /* on every rank: there is nothing to compute */
        *result = no_labels(engine);
        return STATUS_OK;
    }
    if (!(count > 0 && isfinite(count)))
        return FAIL(engine->env, FORMAT, "the count of this step is %g; it must be above 0", count);
    weigh_micro_batches(engine, count);
    if (engine->statistics)
        device_zero(engine->stream, engine->statistics,
                    (size_t)(rounds * engine->graph->statistics) * sizeof(float));
    zero_loss_scale(engine->zero, engine->scale.scale, count);
    engine->in_step = true;
    if (engine->pipeline)
        pipeline_step(engine->pipeline);
    for (int64_t round = 0; !engine->pipeline && round < rounds; round++)
        forward_and_backward(engine, round);
    engine->in_step = false;
    struct scope scope = {.kind = SCOPE_JUDGE,
                          .words = "gradient norm",
                          .span = {.lane = &trace_lane_compute, .name = "judge"},
                          .stream = engine->stream};
    scope_begin(&engine->scopes, &scope);
    TRY(sum_statistics(engine));
    TRY(zero_judge(engine->zero, engine->scale.scale, engine->gates, verdict));
    TRY(activations_check(engine->activations));
    if (engine->side_stream)
        TRY(stream_sync(engine->side_stream->stream)); /* everything on it has finished by now, or
                                                          has failed */
    scope_end(&engine->scopes, &scope);
    TRY(add_losses(engine, rounds, engine->micro_batches,
                   &loss_sum)); /* does not wait: everything has finished */
    *result = (struct engine_result){
        .loss = unsigned_nan(loss_sum / count),
        .grad_norm = unsigned_nan(verdict->grad_norm),
        .meta_norm = unsigned_nan(verdict->meta_norm),
        .count = count,
        .bad_tensor = verdict->bad_tensor,
        .bad_index = verdict->bad_index,
        .bad_micro_batch = -1,
        .loss_scale = engine->scale.scale,
        .next_loss_scale = engine->scale.scale,
        .noise = estimate_noise(engine, verdict),
    };
    result->skipped =
        !isfinite(result->loss) || !isfinite(result->grad_norm) || !isfinite(result->meta_norm);
    if (!isfinite(loss_sum))
        TRY(find_bad_loss(engine, &result->bad_micro_batch));
    return STATUS_OK;
}

enum status engine_gradients(struct engine *engine, struct engine_result *result)
{
    struct zero_verdict verdict;
    return gradients(engine, result, &verdict);
}

struct loss_scale loss_scale_start(void)
{
    return (struct loss_scale){.scale = LOSS_SCALE_FIRST, .patience = LOSS_SCALE_HYSTERESIS};
}

bool loss_scale_update(struct loss_scale *s, bool overflow)
{
    bool explained = overflow && s->scale > LOSS_SCALE_FLOOR;
    if (overflow) {
        s->good_steps = 0;
        if (s->patience > 1)
            s->patience--;
        else
            s->scale = s->scale / 2 > LOSS_SCALE_FLOOR ? s->scale / 2 : LOSS_SCALE_FLOOR;
    } else if (++s->good_steps >= LOSS_SCALE_WINDOW) {
        s->good_steps = 0;
        s->patience = LOSS_SCALE_HYSTERESIS;
        if (s->scale < LOSS_SCALE_CEILING)
            s->scale *= 2;
    }
    return explained;
}

enum status engine_step(struct engine *engine, int64_t t, double lr, struct engine_result *result)
{
    struct zero_verdict verdict;
    TRY(gradients(engine, result, &verdict));
    if (!result->skipped) {
        struct scope scope = {.words = "optimizer update",
                              .span = {.lane = &trace_lane_compute, .name = "optimizer"},
                              .stream = engine->stream};
        scope_begin(&engine->scopes, &scope);
        TRY(zero_update(engine->zero, t, lr, result->loss_scale, &verdict));
        scope_end(&engine->scopes, &scope);
    }
    if (zero_wants_scaling(engine->zero) && result->count > 0) {
        bool explained = loss_scale_update(&engine->scale, result->skipped);
        result->overflow = explained && isfinite(result->loss);
        result->next_loss_scale = engine->scale.scale;
    }
    return STATUS_OK;
}

struct loss_scale engine_loss_scale(const struct engine *engine)
{
    return engine->scale;
}

void engine_set_loss_scale(struct engine *engine, struct loss_scale scale)
{
    if (zero_wants_scaling(engine->zero))
        engine->scale = scale;
}

/* --- without gradients ---------------------------------------------------------------------- */

int64_t engine_eval_rounds(const struct engine *engine)
{
    return engine->pipeline ? engine_most_rounds(engine) : 1;
}

enum status engine_eval(struct engine *engine, int64_t count, double *loss_sum, double *labels)
{
    const struct roster *roster = zero_roster(engine->zero);
    int64_t rounds = roster_rounds(roster, count);
    double sum;
    CHECK_LE(rounds, engine_eval_rounds(engine));
    if (engine->pipeline) {
        pipeline_eval(engine->pipeline, rounds, count);
    } else {
        int last = engine->graph->unit_count - 1;
        bool idle = roster_micro_batch(roster, count, 0) < 0;
        struct walk walk = engine_start_walk(engine, 0, idle, 0, last + 1, WALK_FORWARD);
        engine_forward(engine, 0, last, &walk);
        engine_run_pass(engine, last, PASS_EVAL, &walk);
    }
    TRY(sum_counts(engine, rounds, count, &sum));
    *labels += sum;
    return add_losses(engine, rounds, count, loss_sum);
}

enum status engine_logits(struct engine *engine, int64_t count, float *logits)
{
    struct device *device = engine->ops->device;
    enum dtype type = engine->ops->type;
    int64_t total = engine->config.micro_batch * count * engine->graph->vocab;
    int last = engine->graph->unit_count - 1;
    struct walk walk = engine_start_walk(engine, 0, false, 0, last + 1, WALK_FORWARD);
    float *wide;
    enum status st;
    TRY(device_alloc(device, MEM_OTHER, "logits", (size_t)total * sizeof *wide, &wide));
    TRY_OR(undo_wide, device_alloc(device, MEM_OTHER, "logits", (size_t)total * dtype_bytes(type),
                                   &walk.run.logits));
    walk.run.logit_tokens = count;
    engine_forward(engine, 0, last, &walk);
    engine_run_pass(engine, last, PASS_LOGITS, &walk);
    ops_cast(engine->ops, engine->stream, wide, DTYPE_F32, walk.run.logits, type, total);
    device_copy(engine->stream, logits, wide, (size_t)total * sizeof *wide);
    st = stream_sync(engine->stream);
    if (st == STATUS_OK)
        st = zero_check(engine->zero);
    device_free(device, walk.run.logits);
undo_wide:
    device_free(device, wide);
    return st;
}

/* --- traffic ---------------------------------------------------------------- */

struct traffic engine_traffic(const struct engine *engine)
{
    struct traffic all = zero_traffic(engine->zero);
    traffic_add_far(&all, activations_far(engine->activations));
    if (engine->side_stream)
        all.tensor_waited += engine->side_stream->waited;
    if (!engine->pipeline)
        return all;
    struct comm_counter pipe = pipeline_counted(engine->pipeline);
    all.sent[TRAFFIC_PIPE] = pipe.bytes;
    all.calls[TRAFFIC_PIPE] = pipe.calls;
    all.in_flight += pipe.seconds;
    all.stalled = engine->pipeline->stalled;
    return all;
}
