/* pipeline_make -- creates a PP stage: its list of actions, checked; rings of buffers, as many as
 * the list ever has in use; lines to its neighbours.
 */
#include "engine/pipeline_impl.h"

static enum status ring_create(struct pipeline *p, const char *name, int count, int64_t elements,
                               struct ring *ring)
{
    struct device *device = p->engine->ops->device;
    struct env *env = p->engine->env;
    size_t n = (size_t)count, bytes = (size_t)elements * dtype_bytes(p->engine->ops->type);
    bool worker = roster_is_worker(zero_roster(p->engine->zero));
    TRY(mem_alloc_array(env, MEM_OTHER, "pipeline", n, sizeof *ring->at, &ring->at));
    TRY(mem_alloc_array(env, MEM_OTHER, "pipeline", n, sizeof *ring->ready, &ring->ready));
    TRY(mem_alloc_array(env, MEM_OTHER, "pipeline", n, sizeof *ring->spent, &ring->spent));
    ring->count = count; /* ring_free frees what there is of each */
    for (int i = 0; i < count; i++) {
        if (worker)
            TRY(device_alloc(device, MEM_ACTIVATIONS, name, bytes, &ring->at[i]));
        TRY(event_create(device, &ring->ready[i]));
        TRY(event_create(device, &ring->spent[i]));
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

/* The most rounds of a chunk that are between the begin of one action and the end of another at the
 * same time. */
static int most_between(const struct pipeline *p, int chunk, int begin, int end)
{
    const struct timetable *t = &p->table;
    int now = 0, most = 1;
    for (int64_t i = t->first[p->pp_stage]; i < t->first[p->pp_stage + 1]; i++) {
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
    int at = timetable_pp_stage(shape, p->pp_stage, c), last = timetable_pp_stages(shape) - 1;
    struct timetable_peaks peaks = timetable_count_peaks(&p->table, p->pp_stage, c);
    int loss = timetable_splits(shape) ? TIMETABLE_INPUT
                                       : TIMETABLE_BACKWARD; /* the loss runs in this pass */
    int waiting = most_between(p, c, TIMETABLE_RECV_ACTIVATION, TIMETABLE_FORWARD);
    *chunk = (struct chunk){.first = config->chunks[c].first,
                            .end = config->chunks[c].end,
                            .has_input = at > 0,
                            .has_output = at < last,
                            .has_loss = at == last};
    CHECK(chunk->first < chunk->end && chunk->end <= graph->unit_count);
    int64_t rows = unit_stream_rows(engine_batch_shape(p->engine));
    int last_forward = chunk->end - 1 - chunk->has_loss; /* or none: the loss reads the input */
    chunk->in_elements = rows * unit_in_width(graph, chunk->first);
    chunk->out_elements = last_forward < chunk->first ? chunk->in_elements
                                                      : rows * unit_out_width(graph, last_forward);
    for (int u = chunk->first; u < chunk->end; u++)
        p->unit_copies[u] =
            (struct unit_copies){timetable_in_flight(shape, p->pp_stage, c), peaks.split};
    if (chunk->has_input)
        TRY(ring_create(p, "stream from the stage before", waiting + 1, chunk->in_elements,
                        &chunk->in));
    TRY(ring_create(p, chunk->has_loss ? "stream before the loss" : "stream to the next stage",
                    chunk->has_loss ? most_between(p, c, TIMETABLE_FORWARD, loss) : 2,
                    chunk->out_elements, &chunk->out));
    if (p->engine->config.micro_batches == 0)
        return STATUS_OK;
    return ring_create(p, "gradient of the stream", peaks.gradients + 1, rows * graph->stream_width,
                       &chunk->gradient);
}

/* Two lines between neighbours must not use the same communicator at either end. Even and odd
 * stages send on one each; in a ring of an odd number of stages the last one needs a third. */
static int copy_of_sender(const struct pipeline *p, int pp_stage)
{
    int pp_stages = comm_size(p->comm);
    return pp_stage == pp_stages - 1 && pp_stages % 2 == 1 ? 2 : pp_stage % 2;
}

#define LANE(r, w, is_collective)                                                        \
    {                                                                                    \
        .row = (r), .word = (w), .collective = (is_collective), .group = pipeline_lanes, \
        .group_count = LANES                                                             \
    }
const struct trace_lane pipeline_lanes[LANES] = {
    [ACTS_IN] = LANE(5, "acts in", true),    [ACTS_OUT] = LANE(6, "acts out", true),
    [GRADS_IN] = LANE(7, "grads in", true),  [GRADS_OUT] = LANE(8, "grads out", true),
    [LANE_PASSES] = LANE(4, "stage", false),
};

static enum status open_lines(struct pipeline *p)
{
    int pp_stages = comm_size(p->comm), before = (p->pp_stage + pp_stages - 1) % pp_stages;
    int mine = copy_of_sender(p, p->pp_stage);
    const int copies[LINES] = {[ACTS_IN] = copy_of_sender(p, before),
                               [ACTS_OUT] = mine,
                               [GRADS_IN] = 3 + mine,
                               [GRADS_OUT] = 3 + copy_of_sender(p, before)};
    for (int i = 0; i < COPIES; i++)
        TRY(comm_dup(p->comm, i < 3 ? "acts" : "grads", &p->copies[i]));
    for (int i = 0; i < LINES; i++) {
        p->lines[i].comm = p->copies[copies[i]];
        comm_set_lane(p->lines[i].comm, &pipeline_lanes[i]);
        TRY(comm_stream_create(p->comm, pipeline_lanes[i].word, &p->lines[i].stream));
    }
    return STATUS_OK;
}

/* The trace borrows the names of its spans. */
static enum status name_actions(struct pipeline *p)
{
    const struct timetable *t = &p->table;
    int64_t first = t->first[p->pp_stage], count = t->first[p->pp_stage + 1] - first;
    if (!p->engine->env->trace)
        return STATUS_OK;
    TRY(mem_alloc_array(p->engine->env, MEM_OTHER, "pipeline", (size_t)count, sizeof *p->names,
                        &p->names));
    for (int64_t i = 0; i < count; i++)
        timetable_name(&t->shape, p->pp_stage, t->actions[first + i], p->names[i]);
    return STATUS_OK;
}

static enum status fill(struct pipeline *p, const struct engine_pipe *config)
{
    struct env *env = p->engine->env;
    /* An evaluation has an order of its own (pipeline_eval): of the table it needs the buffers, and
     * 1f1b has the fewest. */
    bool evaluates = p->engine->config.micro_batches == 0 && config->chunk_count == 1;
    struct timetable_shape shape = {.kind = evaluates ? TIMETABLE_1F1B : config->kind,
                                    .pp = comm_size(config->comm),
                                    .chunks = config->chunk_count,
                                    .rounds = (int)engine_most_rounds(p->engine),
                                    .eager = config->eager && !evaluates};
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
    p->pp_stage = comm_rank(config->comm);
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

bool pipeline_has_loss(const struct pipeline *p)
{
    return p->pp_stage == comm_size(p->comm) - 1;
}
