/* pipeline -- one PP stage carries out its list of actions (timetable.h).
 *
 * Passes run on the compute stream. Messages run on four streams of their own, one for each
 * direction of each kind, so that no message waits behind one that is not due yet. What a chunk
 * receives and sends lies in rings of buffers, as many as the list ever has in use:
 *
 *     previous stage --acts--> in[round] -> forward -> out[round] --acts--> next stage
 *                    <-grads-- gradient[round] <- backward (in place) <- gradient[round] <--grads--
 *
 * A stage sends the sum of residual and pending. The next unit would form this sum first anyway, so
 * a boundary does not change any bit. The chunk with the last unit keeps the sum for its loss,
 * which begins its backward pass. A replica that is idle in a round sends nothing in it, on all
 * stages.
 *
 * Where backward passes are split in two, the gradients of params are computed in the second part,
 * which needs neither messages nor params. Each part goes through the rounds in order, so the store
 * adds gradients in the same order as without a split.
 *
 * The micro-batches of a chunk enter and leave in the order of rounds, so round mod n finds a
 * buffer and a copy of the units' activations.
 */
#include "engine/pipeline_impl.h"

/* --- messages ------------------------------------------------------------------------------- */

/* Compute waits for a message; the time counts as stalled. */
static void await(struct pipeline *p, struct event *ready)
{
    struct stream *compute = p->engine->stream;
    double before = stream_waited(compute);
    stream_wait(compute, ready);
    p->stalled += stream_waited(compute) - before;
}

/* Receive into buffer i once it may be written. `name` is for the trace, and may be NULL. */
static void receive_buffer(struct pipeline *p, int line, int from, struct ring *ring, int i,
                           int64_t elements, const char *name)
{
    struct stream *stream = p->lines[line].stream;
    stream_wait(stream, ring->spent[i]);
    comm_label(p->lines[line].comm, name);
    comm_recv(p->lines[line].comm, ring->at[i], elements, p->engine->ops->type, from, stream);
    event_record(ring->ready[i], stream);
}

/* Send buffer i once compute has written it. */
static void send_buffer(struct pipeline *p, int line, int to, struct ring *ring, int i,
                        int64_t elements, const char *name)
{
    struct stream *stream = p->lines[line].stream;
    stream_wait(stream, ring->ready[i]);
    comm_label(p->lines[line].comm, name);
    comm_send(p->lines[line].comm, ring->at[i], elements, p->engine->ops->type, to, stream);
    event_record(ring->spent[i], stream);
}

/* --- passes --------------------------------------------------------------------------------- */

static int forward_end(const struct chunk *chunk)
{
    return chunk->has_loss ? chunk->end - 1 : chunk->end;
}

/* Write residual + pending, as the next unit would form it. */
static void put_out(struct pipeline *p, const struct chunk *chunk, struct walk *walk, void *out)
{
    struct engine *engine = p->engine;
    int64_t count = chunk->out_elements;
    if (walk->run.pending)
        ops_add(engine->ops, engine->stream, count, walk->run.residual, walk->run.pending, out);
    else
        device_copy(engine->stream, out, walk->run.residual,
                    (size_t)count * dtype_bytes(engine->ops->type));
}

/* All units of a chunk but the loss, from its input to its output. `scope` begins when the input
 * has arrived; an idle rank does not begin it. */
static void forward(struct pipeline *p, struct chunk *chunk, int64_t round, bool idle,
                    struct scope *scope)
{
    struct engine *engine = p->engine;
    int end = forward_end(chunk);
    struct walk walk = engine_start_walk(engine, round, idle, chunk->first, end, WALK_FORWARD);
    int in = chunk->has_input ? (int)(round % chunk->in.count) : 0;
    int out = (int)(round % chunk->out.count);
    if (!idle && chunk->has_input) {
        await(p, chunk->in.ready[in]);
        walk.run.residual = chunk->in.at[in];
    }
    if (!idle)
        scope_begin(&engine->scopes, scope);
    engine_forward(engine, chunk->first, end, &walk);
    if (idle)
        return;
    stream_wait(engine->stream, chunk->out.spent[out]);
    put_out(p, chunk, &walk, chunk->out.at[out]);
    event_record(chunk->out.ready[out], engine->stream);
    if (chunk->has_input)
        event_record(chunk->in.spent[in], engine->stream);
    scope_end(&engine->scopes, scope);
}

/* The whole backward pass, or its first part where it is split. */
static void backward(struct pipeline *p, struct chunk *chunk, int64_t round, bool idle,
                     struct scope *scope)
{
    struct engine *engine = p->engine;
    int i = (int)(round % chunk->gradient.count), out = (int)(round % chunk->out.count);
    struct walk walk =
        engine_start_walk(engine, round, idle, chunk->first, chunk->end, WALK_BACKWARD);
    walk.parts = timetable_splits(&p->table.shape);
    walk.run.gradient = chunk->gradient.at[i];
    if (!idle && chunk->has_output)
        await(p, chunk->gradient.ready[i]);
    else if (!idle)
        stream_wait(engine->stream, chunk->gradient.spent[i]);
    if (!idle)
        scope_begin(&engine->scopes, scope);
    if (chunk->has_loss) {
        walk.run.residual = chunk->out.at[out];
        engine_run_pass_with_gradients(engine, chunk->end - 1, PASS_LOSS, &walk);
        if (!idle)
            event_record(chunk->out.spent[out], engine->stream);
    }
    engine_backward(engine, chunk->first, forward_end(chunk), &walk);
    if (idle)
        return;
    event_record(chunk->has_input ? chunk->gradient.ready[i] : chunk->gradient.spent[i],
                 engine->stream);
    scope_end(&engine->scopes, scope);
}

/* --- a step --------------------------------------------------------------------------------- */

static void act(struct pipeline *p, struct timetable_action a, const char *name)
{
    struct chunk *chunk = &p->chunks[a.chunk];
    bool idle = engine_micro_batch(p->engine, a.round) < 0;
    int peer =
        timetable_is_message(a.verb) ? timetable_peer(&p->table.shape, p->pp_stage, a.verb) : 0;
    struct scope scope = {.kind = SCOPE_ACTION,
                          .span = {.lane = &pipeline_lanes[LANE_PASSES], .name = name},
                          .stream = p->engine->stream,
                          .action = &a};
    struct walk walk;
    if (idle && timetable_is_message(a.verb))
        return;
    switch (a.verb) {
    case TIMETABLE_FORWARD: forward(p, chunk, a.round, idle, &scope); break;
    case TIMETABLE_BACKWARD:
    case TIMETABLE_INPUT: backward(p, chunk, a.round, idle, &scope); break;
    case TIMETABLE_WEIGHT:
        walk = engine_start_round(p->engine, a.round, idle);
        if (!idle)
            scope_begin(&p->engine->scopes, &scope);
        engine_backward_weight(p->engine, chunk->first, forward_end(chunk), &walk);
        if (!idle)
            scope_end(&p->engine->scopes, &scope);
        break;
    case TIMETABLE_RECV_ACTIVATION:
        receive_buffer(p, ACTS_IN, peer, &chunk->in, a.round % chunk->in.count, chunk->in_elements,
                       name);
        break;
    case TIMETABLE_SEND_ACTIVATION:
        send_buffer(p, ACTS_OUT, peer, &chunk->out, a.round % chunk->out.count, chunk->out_elements,
                    name);
        break;
    case TIMETABLE_RECV_GRADIENT:
        receive_buffer(p, GRADS_IN, peer, &chunk->gradient, a.round % chunk->gradient.count,
                       chunk->out_elements, name);
        break;
    default:
        send_buffer(p, GRADS_OUT, peer, &chunk->gradient, a.round % chunk->gradient.count,
                    chunk->in_elements, name);
        break;
    }
}

/* The list is that of the largest step. A smaller one leaves out the last rounds on all stages:
 * what remains of a common order is one, so the laws of timetable.h still hold, and no more buffers
 * are in use. */
void pipeline_step(struct pipeline *p)
{
    const struct timetable *t = &p->table;
    int64_t first = t->first[p->pp_stage], rounds = engine_rounds(p->engine);
    for (int64_t i = first; i < t->first[p->pp_stage + 1]; i++)
        if (t->actions[i].round < rounds)
            act(p, t->actions[i], p->names ? p->names[i - first] : NULL);
}

/* --- an evaluation ------------------------------------------------------------------------- */

/* A stage takes the next micro-batch as soon as it has sent one on: pp rounds through one
 * chunk, then the same rounds through its next chunk, so that all stages are busy when they have
 * several chunks. */
struct eval {
    struct pipeline *pipeline;
    int64_t rounds, count;
};

static struct chunk *eval_pass(const struct eval *eval, int64_t i, int64_t *round)
{
    const struct pipeline *p = eval->pipeline;
    int64_t chunks = p->table.shape.chunks, pp = p->table.shape.pp;
    int64_t group = i / (chunks * pp), first = group * pp;
    int64_t width = eval->rounds - first < pp ? eval->rounds - first : pp;
    int64_t rest = i - first * chunks;
    *round = first + rest % width;
    return &p->chunks[rest / width];
}

static bool is_idle(const struct eval *eval, int64_t round)
{
    return roster_micro_batch(zero_roster(eval->pipeline->engine->zero), eval->count, round) < 0;
}

/* Post the receive for the input of pass i. */
static void eval_receive(const struct eval *eval, int64_t i)
{
    struct pipeline *p = eval->pipeline;
    int64_t round;
    struct chunk *chunk = eval_pass(eval, i, &round);
    int pp_stages = comm_size(p->comm);
    if (chunk->has_input && !is_idle(eval, round))
        receive_buffer(p, ACTS_IN, (p->pp_stage + pp_stages - 1) % pp_stages, &chunk->in,
                       (int)(round % chunk->in.count), chunk->in_elements, NULL);
}

void pipeline_eval(struct pipeline *p, int64_t rounds, int64_t count)
{
    struct eval eval = {p, rounds, count};
    int64_t passes = rounds * p->table.shape.chunks;
    int pp_stages = comm_size(p->comm);
    eval_receive(&eval, 0);
    for (int64_t i = 0; i < passes; i++) {
        int64_t round;
        struct chunk *chunk = eval_pass(&eval, i, &round);
        bool idle = is_idle(&eval, round);
        if (i + 1 < passes)
            eval_receive(&eval, i + 1);
        forward(p, chunk, round, idle, &(struct scope){0});
        if (chunk->has_output && !idle)
            send_buffer(p, ACTS_OUT, (p->pp_stage + 1) % pp_stages, &chunk->out,
                        (int)(round % chunk->out.count), chunk->out_elements, NULL);
        if (!chunk->has_loss)
            continue;
        int out = (int)(round % chunk->out.count);
        struct walk walk =
            engine_start_walk(p->engine, round, idle, chunk->first, chunk->end, WALK_FORWARD);
        walk.run.residual = chunk->out.at[out];
        engine_run_pass(p->engine, chunk->end - 1, PASS_EVAL, &walk);
        if (!idle)
            event_record(chunk->out.spent[out], p->engine->stream);
    }
}

/* --- between stages ------------------------------------------------------------------------- */

enum status pipeline_share(struct pipeline *p, double *value)
{
    TRY(comm_exchange(p->comm, value, sizeof *value, p->shared));
    *value = p->shared[comm_size(p->comm) - 1];
    return STATUS_OK;
}

enum status pipeline_sum(struct pipeline *p, int64_t mine, int64_t *sum)
{
    int64_t *all = (int64_t *)p->shared; /* the same size as its doubles */
    TRY(comm_exchange(p->comm, &mine, sizeof mine, all));
    *sum = 0;
    for (int pp_stage = 0; pp_stage < comm_size(p->comm); pp_stage++)
        *sum += all[pp_stage];
    return STATUS_OK;
}

enum status pipeline_add(struct pipeline *p, float *values, int64_t count, float *all)
{
    TRY(comm_exchange(p->comm, values, (size_t)count * sizeof *values, all));
    for (int64_t i = 0; i < count; i++) {
        values[i] = 0.0f;
        for (int pp_stage = 0; pp_stage < comm_size(p->comm); pp_stage++)
            values[i] += all[pp_stage * count + i];
    }
    return STATUS_OK;
}

enum status pipeline_settle(struct pipeline *p)
{
    for (int i = 0; i < LINES; i++)
        TRY(stream_sync(p->lines[i].stream));
    for (int i = 0; i < COPIES; i++)
        TRY(comm_status(p->copies[i]));
    return STATUS_OK;
}

struct comm_counter pipeline_counted(const struct pipeline *p)
{
    struct comm_counter sum = {0};
    for (int i = 0; i < COPIES; i++)
        for (int kind = COMM_SEND; kind <= COMM_RECV; kind++) {
            struct comm_counter one = comm_counted(p->copies[i], (enum comm_kind)kind);
            sum.calls += one.calls;
            sum.bytes += one.bytes;
            sum.seconds += one.seconds;
        }
    return sum;
}
