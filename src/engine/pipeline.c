/* pipeline -- one stage of a pipeline carries out its list (timetable.h).
 *
 * Passes run on the compute stream, messages on four streams of their own, one for each direction
 * of each kind, so that none waits behind another that is not due. What a chunk receives and sends
 * lies in rings of buffers, as many as the list ever has in use:
 *
 *     stage before --acts--> in[round] -> forward -> out[round] --acts--> stage after
 *                  <-grads-- gradient[round] <- backward (in place) <- gradient[round] <--grads--
 *
 * At a boundary goes the sum of residual and pending, which the next unit would form first anyway:
 * the same bits as without a boundary. A chunk with the last unit keeps that sum for its loss, which
 * begins its backward pass. A replica that is idle in a round sends nothing in it, at all stages.
 *
 * Where backward is in two parts, the gradients of params wait for the second, which needs neither
 * messages nor params; all that goes between stages is done by the first. Each part goes through the
 * rounds in their order, so the store adds as it does otherwise.
 *
 * Micro-batches of a chunk are between forward and backward in the order of rounds, so round mod n
 * finds a buffer and a copy of the units' places.
 *
 * An evaluation goes the same way without coming back: a stage takes the next micro-batch as soon
 * as it has passed one on.
 */
#include <string.h>

#include "engine/engine_impl.h"

/* Buffers of one kind, each with the event after which it may be written, and the one after which
 * it may be read. */
struct ring {
    int count;
    void **at;
    struct event **ready, **spent;
};

struct chunk {
    int first, end; /* units */
    bool has_input, has_output, has_loss;
    struct ring in, out, gradient;
};

enum { ACTS_IN, ACTS_OUT, GRADS_IN, GRADS_OUT, LINES };

typedef char action_name[TIMETABLE_NAME_BYTES];

/* The way to or from a neighbour. */
struct line {
    struct comm *comm; /* of all stages; two lines of a rank never share one */
    struct stream *stream;
};

enum { COPIES = 6 }; /* of the communicator: three for each kind */

struct pipeline {
    struct engine *engine; /* borrowed */
    struct comm *comm;     /* borrowed */
    struct timetable table;
    int stage; /* this rank's */
    struct chunk *chunks;
    struct unit_copies *unit_copies; /* (units) */
    double *shared;                  /* (stages) room for a number of each */
    struct comm *copies[COPIES];
    struct line lines[LINES];
    double stalled;     /* seconds that compute has waited for messages */
    action_name *names; /* of this rank's actions, for the trace; NULL: there is none */
    const struct timetable_action *pass; /* of the list, under way; NULL: none */
};

/* --- construction --------------------------------------------------------------------------- */

static enum status ring_create(struct pipeline *p, const char *name, int count, struct ring *ring)
{
    struct device *device = p->engine->ops->device;
    struct env *env = p->engine->env;
    size_t n = (size_t)count, bytes = engine_stream_bytes(p->engine);
    bool worker = roster_is_worker(zero_roster(p->engine->zero));
    TRY(mem_alloc_array(env, MEM_OTHER, "pipeline", n, sizeof *ring->at, &ring->at));
    TRY(mem_alloc_array(env, MEM_OTHER, "pipeline", n, sizeof *ring->ready, &ring->ready));
    TRY(mem_alloc_array(env, MEM_OTHER, "pipeline", n, sizeof *ring->spent, &ring->spent));
    for (ring->count = 0; ring->count < count; ring->count++) {
        if (worker)
            TRY(device_alloc(device, MEM_ACTIVATIONS, name, bytes, &ring->at[ring->count]));
        TRY(event_create(device, &ring->ready[ring->count]));
        TRY(event_create(device, &ring->spent[ring->count]));
    }
    return STATUS_OK;
}

static void ring_free(struct pipeline *p, struct ring *ring)
{
    for (int i = 0; i < ring->count; i++) {
        device_free(p->engine->ops->device, ring->at[i]);
        event_destroy(ring->ready[i]);
        event_destroy(ring->spent[i]);
    }
    mem_free(p->engine->env, ring->at);
    mem_free(p->engine->env, ring->ready);
    mem_free(p->engine->env, ring->spent);
}

static struct timetable_shape shape_of(const struct engine *engine,
                                       const struct engine_pipe *config)
{
    return (struct timetable_shape){.kind = config->kind,
                                    .pp = comm_size(config->comm),
                                    .chunks = config->chunk_count,
                                    .rounds = (int)engine_rounds(engine),
                                    .eager = config->eager};
}

/* The most rounds of a chunk that are at once between the begin of one action and the end of another,
 * as far as there are both. */
static int most_between(const struct pipeline *p, int chunk, int begin, int end)
{
    const struct timetable *t = &p->table;
    int now = 0, most = 1;
    for (int64_t i = t->first[p->stage]; i < t->first[p->stage + 1]; i++) {
        struct timetable_action a = t->actions[i];
        if (a.chunk != chunk)
            continue;
        now += a.verb == begin;
        most = now > most ? now : most;
        now -= a.verb == end;
    }
    return most;
}

static enum status chunk_create(struct pipeline *p, const struct engine_pipe *config, int c)
{
    const struct timetable_shape *shape = &p->table.shape;
    const struct unit_graph *graph = p->engine->graph;
    struct chunk *chunk = &p->chunks[c];
    int at = timetable_stage(shape, p->stage, c), last = timetable_stages(shape) - 1;
    struct timetable_peaks peaks = timetable_count_peaks(&p->table, p->stage, c);
    int loss = timetable_splits(shape) ? TIMETABLE_INPUT : TIMETABLE_BACKWARD; /* comes with it */
    int waiting = most_between(p, c, TIMETABLE_RECV_ACTIVATION, TIMETABLE_FORWARD);
    *chunk = (struct chunk){.first = config->chunks[c].first,
                            .end = config->chunks[c].end,
                            .has_input = at > 0,
                            .has_output = at < last,
                            .has_loss = at == last};
    CHECK(chunk->first < chunk->end && chunk->end <= graph->unit_count);
    for (int u = chunk->first; u < chunk->end; u++)
        p->unit_copies[u] =
            (struct unit_copies){timetable_in_flight(shape, p->stage, c), peaks.split};
    if (chunk->has_input)
        TRY(ring_create(p, "stream from the stage before", waiting + 1, &chunk->in));
    TRY(ring_create(p, chunk->has_loss ? "stream before the loss" : "stream to the next stage",
                    chunk->has_loss ? most_between(p, c, TIMETABLE_FORWARD, loss) : 2,
                    &chunk->out));
    if (p->engine->config.micro_batches == 0)
        return STATUS_OK;
    return ring_create(p, "gradient of the stream", peaks.gradients + 1, &chunk->gradient);
}

/* Two lines between neighbours must not share a communicator at either of them: even and odd stages
 * send by one each; in a ring of an odd number the last has a third. */
static int copy_of_sender(const struct pipeline *p, int stage)
{
    int stages = comm_size(p->comm);
    return stage == stages - 1 && stages % 2 == 1 ? 2 : stage % 2;
}

static enum status open_lines(struct pipeline *p)
{
    static const char *const names[LINES] = {"acts in", "acts out", "grads in", "grads out"};
    int stages = comm_size(p->comm), before = (p->stage + stages - 1) % stages;
    int mine = copy_of_sender(p, p->stage);
    const int copies[LINES] = {[ACTS_IN] = copy_of_sender(p, before),
                               [ACTS_OUT] = mine,
                               [GRADS_IN] = 3 + mine,
                               [GRADS_OUT] = 3 + copy_of_sender(p, before)};
    for (int i = 0; i < COPIES; i++)
        TRY(comm_dup(p->comm, i < 3 ? "acts" : "grads", &p->copies[i]));
    for (int i = 0; i < LINES; i++) {
        p->lines[i].comm = p->copies[copies[i]];
        comm_set_lane(p->lines[i].comm, (enum trace_lane)(TRACE_ACTS_IN + i));
        TRY(comm_stream_create(p->comm, names[i], &p->lines[i].stream));
    }
    return STATUS_OK;
}

/* The trace borrows what it shows. */
static enum status name_actions(struct pipeline *p)
{
    const struct timetable *t = &p->table;
    int64_t first = t->first[p->stage], count = t->first[p->stage + 1] - first;
    if (!p->engine->env->trace)
        return STATUS_OK;
    TRY(mem_alloc_array(p->engine->env, MEM_OTHER, "pipeline", (size_t)count, sizeof *p->names,
                        &p->names));
    for (int64_t i = 0; i < count; i++)
        timetable_name(&t->shape, p->stage, t->actions[first + i], p->names[i]);
    return STATUS_OK;
}

static enum status fill(struct pipeline *p, const struct engine_pipe *config)
{
    struct env *env = p->engine->env;
    struct timetable_shape shape = shape_of(p->engine, config);
    TRY(timetable_validate(env, &shape));
    TRY(timetable_create(env, &shape, &p->table));
    TRY(timetable_check(env, &p->table));
    TRY(mem_alloc_array(env, MEM_OTHER, "pipeline", (size_t)shape.chunks, sizeof *p->chunks,
                        &p->chunks));
    TRY(mem_alloc_array(env, MEM_OTHER, "pipeline", (size_t)p->engine->graph->unit_count,
                        sizeof *p->unit_copies, &p->unit_copies));
    TRY(mem_alloc_array(env, MEM_OTHER, "pipeline", (size_t)shape.pp, sizeof *p->shared,
                        &p->shared));
    for (int c = 0; c < shape.chunks; c++)
        TRY(chunk_create(p, config, c));
    TRY(name_actions(p));
    return open_lines(p);
}

enum status pipeline_create(struct engine *engine, const struct engine_pipe *config,
                            struct pipeline **pipeline)
{
    struct pipeline *p;
    TRY(mem_alloc(engine->env, MEM_OTHER, "pipeline", sizeof *p, &p));
    *p = (struct pipeline){.engine = engine, .comm = config->comm};
    p->stage = comm_rank(config->comm);
    enum status st = fill(p, config);
    if (st != STATUS_OK) {
        pipeline_destroy(p);
        return st;
    }
    *pipeline = p;
    return STATUS_OK;
}

void pipeline_destroy(struct pipeline *p)
{
    if (!p)
        return;
    struct env *env = p->engine->env;
    for (int i = 0; i < LINES; i++)
        stream_destroy(p->lines[i].stream);
    for (int i = 0; i < COPIES; i++)
        comm_destroy(p->copies[i]);
    for (int c = 0; p->chunks && c < p->table.shape.chunks; c++) {
        ring_free(p, &p->chunks[c].in);
        ring_free(p, &p->chunks[c].out);
        ring_free(p, &p->chunks[c].gradient);
    }
    mem_free(env, p->names);
    mem_free(env, p->shared);
    mem_free(env, p->unit_copies);
    mem_free(env, p->chunks);
    timetable_free(env, &p->table);
    mem_free(env, p);
}

bool pipeline_has_parts(const struct pipeline *p)
{
    return timetable_splits(&p->table.shape);
}

const struct unit_copies *pipeline_copies(const struct pipeline *p)
{
    return p->unit_copies;
}

bool pipeline_has_loss(const struct pipeline *p)
{
    return p->stage == comm_size(p->comm) - 1;
}

/* --- messages ------------------------------------------------------------------------------- */

static int64_t stream_count(const struct pipeline *p)
{
    return (int64_t)(engine_stream_bytes(p->engine) / dtype_bytes(p->engine->ops->type));
}

/* Compute goes on when a message has come. */
static void await(struct pipeline *p, struct event *ready)
{
    struct stream *compute = p->engine->stream;
    double before = stream_waited(compute);
    stream_wait(compute, ready);
    p->stalled += stream_waited(compute) - before;
}

/* A buffer is filled by the message, once it may be written. */
static void receive(struct pipeline *p, int line, int from, struct ring *ring, int i,
                    const char *name)
{
    struct stream *stream = p->lines[line].stream;
    stream_wait(stream, ring->spent[i]);
    comm_label(p->lines[line].comm, name);
    comm_recv(p->lines[line].comm, ring->at[i], stream_count(p), p->engine->ops->type, from,
              stream);
    event_record(ring->ready[i], stream);
}

/* A buffer is sent, once compute has written it. */
static void send(struct pipeline *p, int line, int to, struct ring *ring, int i, const char *name)
{
    struct stream *stream = p->lines[line].stream;
    stream_wait(stream, ring->ready[i]);
    comm_label(p->lines[line].comm, name);
    comm_send(p->lines[line].comm, ring->at[i], stream_count(p), p->engine->ops->type, to, stream);
    event_record(ring->spent[i], stream);
}

/* --- passes --------------------------------------------------------------------------------- */

static int forward_end(const struct chunk *chunk)
{
    return chunk->has_loss ? chunk->end - 1 : chunk->end;
}

/* The sum of the stream's two parts, as the next unit would form it. */
static void put_out(struct pipeline *p, struct walk *walk, void *out)
{
    struct engine *engine = p->engine;
    if (walk->run.pending)
        ops_add(engine->ops, engine->stream, stream_count(p), walk->run.residual, walk->run.pending,
                out);
    else
        device_copy(engine->stream, out, walk->run.residual, engine_stream_bytes(engine));
}

/* A pass of the timetable, without what it waited for before it: for who watches, and the trace. */
static double begin_pass(struct pipeline *p)
{
    if (p->pass)
        engine_tell(p->engine, ENGINE_PASS_BEGIN, p->pass);
    return trace_begin(p->engine->env->trace);
}

static void end_pass(struct pipeline *p, double start, const char *name)
{
    if (p->pass)
        engine_tell(p->engine, ENGINE_PASS_END, p->pass);
    if (name)
        trace_end(p->engine->env->trace, start,
                  &(struct trace_span){.lane = TRACE_STAGE, .name = name});
}

/* `name` (NULL: none) is for the trace. */
static void forward(struct pipeline *p, struct chunk *chunk, int64_t round, bool idle,
                    const char *name)
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
    double start = begin_pass(p);
    engine_forward(engine, chunk->first, end, &walk);
    if (idle)
        return;
    stream_wait(engine->stream, chunk->out.spent[out]);
    put_out(p, &walk, chunk->out.at[out]);
    event_record(chunk->out.ready[out], engine->stream);
    if (chunk->has_input)
        event_record(chunk->in.spent[in], engine->stream);
    end_pass(p, start, name);
}

/* All of it, or its first part. */
static void backward(struct pipeline *p, struct chunk *chunk, int64_t round, bool idle,
                     const char *name)
{
    struct engine *engine = p->engine;
    int i = (int)(round % chunk->gradient.count), out = (int)(round % chunk->out.count);
    struct walk walk =
        engine_start_walk(engine, round, idle, chunk->first, chunk->end, WALK_BACKWARD);
    walk.parts = pipeline_has_parts(p);
    walk.run.gradient = chunk->gradient.at[i];
    if (!idle && chunk->has_output)
        await(p, chunk->gradient.ready[i]);
    else if (!idle)
        stream_wait(engine->stream, chunk->gradient.spent[i]);
    double start = begin_pass(p);
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
    end_pass(p, start, name);
}

static void weight(struct pipeline *p, struct chunk *chunk, int64_t round, bool idle,
                   const char *name)
{
    struct walk walk = engine_start_round(p->engine, round, idle);
    double start = begin_pass(p);
    engine_backward_weight(p->engine, chunk->first, forward_end(chunk), &walk);
    if (!idle)
        end_pass(p, start, name);
}

/* --- a step --------------------------------------------------------------------------------- */

static void act(struct pipeline *p, struct timetable_action a, const char *name)
{
    struct chunk *chunk = &p->chunks[a.chunk];
    bool idle = engine_micro_batch(p->engine, a.round) < 0;
    int peer = timetable_is_message(a.verb) ? timetable_peer(&p->table.shape, p->stage, a.verb) : 0;
    if (idle && timetable_is_message(a.verb))
        return;
    p->pass = &a;
    switch (a.verb) {
    case TIMETABLE_FORWARD: forward(p, chunk, a.round, idle, name); break;
    case TIMETABLE_BACKWARD:
    case TIMETABLE_INPUT: backward(p, chunk, a.round, idle, name); break;
    case TIMETABLE_WEIGHT: weight(p, chunk, a.round, idle, name); break;
    case TIMETABLE_RECV_ACTIVATION:
        receive(p, ACTS_IN, peer, &chunk->in, a.round % chunk->in.count, name);
        break;
    case TIMETABLE_SEND_ACTIVATION:
        send(p, ACTS_OUT, peer, &chunk->out, a.round % chunk->out.count, name);
        break;
    case TIMETABLE_RECV_GRADIENT:
        receive(p, GRADS_IN, peer, &chunk->gradient, a.round % chunk->gradient.count, name);
        break;
    default:
        send(p, GRADS_OUT, peer, &chunk->gradient, a.round % chunk->gradient.count, name);
        break;
    }
    p->pass = NULL;
}

void pipeline_step(struct pipeline *p)
{
    const struct timetable *t = &p->table;
    int64_t first = t->first[p->stage];
    for (int64_t i = first; i < t->first[p->stage + 1]; i++)
        act(p, t->actions[i], p->names ? p->names[i - first] : NULL);
}

/* --- an evaluation -------------------------------------------------------------------------- */

/* The passes of a stage: some rounds through one chunk, then through the next, so that stages with
 * several chunks work at once, too. */
struct eval_walk {
    struct pipeline *pipeline;
    int64_t rounds, count;
};

static struct chunk *eval_pass(const struct eval_walk *walk, int64_t i, int64_t *round)
{
    const struct pipeline *p = walk->pipeline;
    int64_t chunks = p->table.shape.chunks, pp = p->table.shape.pp;
    int64_t group = i / (chunks * pp), first = group * pp;
    int64_t width = walk->rounds - first < pp ? walk->rounds - first : pp;
    int64_t rest = i - first * chunks;
    *round = first + rest % width;
    return &p->chunks[rest / width];
}

static bool is_idle(const struct eval_walk *walk, int64_t round)
{
    return roster_micro_batch(zero_roster(walk->pipeline->engine->zero), walk->count, round) < 0;
}

/* Ask for the input of pass i. */
static void eval_ask(const struct eval_walk *walk, int64_t i)
{
    struct pipeline *p = walk->pipeline;
    int64_t round;
    struct chunk *chunk = eval_pass(walk, i, &round);
    int stages = comm_size(p->comm);
    if (chunk->has_input && !is_idle(walk, round))
        receive(p, ACTS_IN, (p->stage + stages - 1) % stages, &chunk->in,
                (int)(round % chunk->in.count), NULL);
}

static void eval_loss(struct pipeline *p, struct chunk *chunk, int64_t round, bool idle)
{
    int out = (int)(round % chunk->out.count);
    struct walk walk =
        engine_start_walk(p->engine, round, idle, chunk->first, chunk->end, WALK_FORWARD);
    walk.run.residual = chunk->out.at[out];
    engine_run_pass(p->engine, chunk->end - 1, PASS_EVAL, &walk);
    if (!idle)
        event_record(chunk->out.spent[out], p->engine->stream);
}

void pipeline_eval(struct pipeline *p, int64_t rounds, int64_t count)
{
    struct eval_walk walk = {p, rounds, count};
    int64_t passes = rounds * p->table.shape.chunks;
    int stages = comm_size(p->comm);
    eval_ask(&walk, 0);
    for (int64_t i = 0; i < passes; i++) {
        int64_t round;
        struct chunk *chunk = eval_pass(&walk, i, &round);
        bool idle = is_idle(&walk, round);
        if (i + 1 < passes)
            eval_ask(&walk, i + 1);
        forward(p, chunk, round, idle, NULL);
        if (chunk->has_output && !idle)
            send(p, ACTS_OUT, (p->stage + 1) % stages, &chunk->out, (int)(round % chunk->out.count),
                 NULL);
        if (chunk->has_loss)
            eval_loss(p, chunk, round, idle);
    }
}

/* --- between stages ------------------------------------------------------------------------- */

struct comm *pipeline_comm(const struct pipeline *p)
{
    return p->comm;
}

enum status pipeline_share(struct pipeline *p, double *value)
{
    TRY(comm_exchange(p->comm, value, sizeof *value, p->shared));
    *value = p->shared[comm_size(p->comm) - 1];
    return STATUS_OK;
}

enum status pipeline_sum(struct pipeline *p, int64_t mine, int64_t *sum)
{
    int64_t *all = (int64_t *)p->shared; /* as long as its doubles */
    TRY(comm_exchange(p->comm, &mine, sizeof mine, all));
    *sum = 0;
    for (int stage = 0; stage < comm_size(p->comm); stage++)
        *sum += all[stage];
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

double pipeline_stalled(const struct pipeline *p)
{
    return p->stalled;
}
