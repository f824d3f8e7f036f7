/* decoder -- runs the units' decode passes and keeps their caches. Choosing a token is up to the
 * caller.
 *
 * All buffers hold chunks of at most `chunk` tokens and are shared by the units: only keys and
 * values are kept.
 *
 * Generating one token is the same work each time, except for the token and its position. Where all
 * params are in place and no other rank takes part, the work is recorded once, with these two
 * values in device memory, and replayed: on a GPU a token is then one launch instead of some
 * hundred. The first token of a text always runs without a recording, and so does the first token
 * of all that follows another, so that libraries can initialize themselves. Devices that cannot
 * record, such as the CPU, launch every operation. The bits are the same.
 */
#include "engine/decoder.h"

#include <string.h>

#include "base/progress.h"
#include "engine/activations.h"

/* What changes from token to token. */
struct next {
    int64_t past;
    int32_t token;
};

struct decoder {
    struct ops *ops;                /* borrowed */
    struct stream *stream;          /* borrowed */
    const struct unit_graph *graph; /* borrowed */
    struct zero *zero;              /* borrowed */
    struct env *env;                /* borrowed */
    struct activations *activations;
    void **caches;                 /* (units) device memory; NULL where a unit needs none */
    int32_t *tokens;               /* device: (chunk) */
    void *logits;                  /* device: (V) in the compute type */
    float *wide, *logits_host;     /* (V) on the device (= logits if that is fp32), and on the host
                                      */
    struct next *next, *next_host; /* on the device, and its source on the host */
    struct recording *recording;   /* of one token; NULL: not recorded */
    bool records, warm;            /* recording is possible; one token has been fed */
    int64_t position, room, chunk;
    struct comm *group;      /* borrowed: the TP group; NULL: one rank */
    struct engine_pipe pipe; /* comm NULL: this rank has the whole model */
    void *passed;            /* (chunk, C): the stream between PP stages */
};

static size_t stream_bytes(const struct decoder *d, int64_t tokens)
{
    return (size_t)(tokens * d->graph->stream_width) * dtype_bytes(d->ops->type);
}

static enum status alloc_all(struct decoder *d)
{
    struct unit_shape shape = {.batch = 1, .tokens = d->chunk};
    uint32_t passes = 1u << PASS_DECODE | 1u << PASS_LOGITS;
    size_t vocab = (size_t)d->graph->vocab, element = dtype_bytes(d->ops->type);
    if (roster_is_worker(zero_roster(d->zero))) {
        TRY(activations_create(d->ops, d->graph, shape, KEEP_ALWAYS, passes, NULL,
                               &d->activations));
        TRY(mem_alloc_array(d->env, MEM_OTHER, "decoder caches", (size_t)d->graph->unit_count,
                            sizeof *d->caches, &d->caches));
        for (int u = 0; u < d->graph->unit_count; u++) {
            const struct unit *unit = &d->graph->units[u];
            size_t bytes =
                unit->type->cache_bytes ? unit->type->cache_bytes(unit, d->ops, 1, d->room) : 0;
            if (bytes > 0)
                TRY(device_alloc(d->ops->device, MEM_ACTIVATIONS, "keys and values", bytes,
                                 &d->caches[u]));
        }
        if (d->pipe.comm)
            TRY(device_alloc(d->ops->device, MEM_ACTIVATIONS, "stream between stages",
                             stream_bytes(d, d->chunk), &d->passed));
    }
    TRY(device_alloc(d->ops->device, MEM_ACTIVATIONS, "decoded tokens",
                     (size_t)d->chunk * sizeof(int32_t), &d->tokens));
    TRY(device_alloc(d->ops->device, MEM_ACTIVATIONS, "logits", vocab * element, &d->logits));
    if (d->ops->type == DTYPE_F32)
        d->wide = d->logits;
    else
        TRY(device_alloc(d->ops->device, MEM_ACTIVATIONS, "logits in fp32", vocab * sizeof(float),
                         &d->wide));
    TRY(device_alloc(d->ops->device, MEM_ACTIVATIONS, "next token", sizeof *d->next, &d->next));
    TRY(device_alloc_host(d->ops->device, MEM_OTHER, "next token", sizeof *d->next_host,
                          &d->next_host));
    return device_alloc_host(d->ops->device, MEM_OTHER, "logits", vocab * sizeof(float),
                             &d->logits_host);
}

enum status decoder_create(struct ops *ops, struct stream *stream, const struct unit_graph *graph,
                           struct zero *zero, const struct decoder_config *config,
                           struct decoder **decoder)
{
    struct env *env = device_env(ops->device);
    struct decoder *d;
    CHECK(config->tokens <= graph->context);
    CHECK(config->chunk >= 1 && config->chunk <= config->tokens);
    TRY(mem_alloc(env, MEM_OTHER, "decoder", sizeof *d, &d));
    *d = (struct decoder){.ops = ops,
                          .stream = stream,
                          .graph = graph,
                          .zero = zero,
                          .env = env,
                          .group = config->group,
                          .room = config->tokens,
                          .chunk = config->chunk};
    if (config->pipe)
        d->pipe = *config->pipe;
    const struct roster *roster = zero_roster(zero);
    d->records =
        !d->pipe.comm && !d->group && roster->workers == roster->size && zero_in_place(zero);
    enum status st = alloc_all(d);
    if (st != STATUS_OK) {
        decoder_destroy(d);
        return st;
    }
    *decoder = d;
    return STATUS_OK;
}

void decoder_destroy(struct decoder *d)
{
    if (!d)
        return;
    struct device *device = d->ops->device;
    recording_destroy(device, d->recording);
    for (int u = 0; d->caches && u < d->graph->unit_count; u++)
        device_free(device, d->caches[u]);
    activations_destroy(d->activations);
    device_free(device, d->passed);
    device_free(device, d->tokens);
    if (d->wide != d->logits)
        device_free(device, d->wide);
    device_free(device, d->logits);
    device_free(device, d->logits_host);
    device_free(device, d->next_host);
    device_free(device, d->next);
    mem_free(d->env, d->caches);
    mem_free(d->env, d);
}

void decoder_reset(struct decoder *d)
{
    d->position = 0;
}

/* Run units first .. end-1. The last unit of the model runs only for logits. */
static void feed_units(struct decoder *d, int first, int end, bool want_logits,
                       struct unit_run *run)
{
    bool has_loss = d->graph->units[end - 1].type->run[PASS_LOGITS] != NULL;
    int stop = has_loss && !want_logits ? end - 1 : end;
    zero_walk(d->zero, first, end, WALK_FORWARD);
    for (int u = first; u < stop; u++) {
        enum pass pass = has_loss && u == end - 1 ? PASS_LOGITS : PASS_DECODE;
        zero_acquire(d->zero, u, pass, run);
        if (d->activations) { /* a server computes nothing and only joins the collectives */
            run->cache = d->caches[u];
            activations_bind(d->activations, u, 0, pass, run);
            unit_run_pass(&d->graph->units[u], pass, run);
            activations_advance(d->activations, u, run);
        }
        zero_release(d->zero, u, pass);
    }
}

/* Between PP stages, residual + pending is sent. */
static void feed_pp_stage(struct decoder *d, int64_t count, bool want_logits, struct unit_run *run)
{
    struct comm *comm = d->pipe.comm;
    int pp_stage = comm_rank(comm), pp_stages = comm_size(comm);
    int64_t elements = count * d->graph->stream_width;
    for (int c = 0; c < d->pipe.chunk_count; c++) {
        bool first_of_all = pp_stage == 0 && c == 0;
        bool last_of_all = pp_stage == pp_stages - 1 && c == d->pipe.chunk_count - 1;
        if (!first_of_all && d->activations) {
            comm_recv(comm, d->passed, elements, d->ops->type,
                      (pp_stage + pp_stages - 1) % pp_stages, d->stream);
            run->residual = d->passed;
            run->pending = NULL;
        }
        feed_units(d, d->pipe.chunks[c].first, d->pipe.chunks[c].end, want_logits, run);
        if (last_of_all || !d->activations)
            continue;
        if (run->pending)
            ops_add(d->ops, d->stream, elements, run->residual, run->pending, d->passed);
        else
            device_copy(d->stream, d->passed, run->residual, stream_bytes(d, count));
        comm_send(comm, d->passed, elements, d->ops->type, (pp_stage + 1) % pp_stages, d->stream);
    }
}

static struct unit_run run_of(const struct decoder *d, const int32_t *tokens, int64_t count,
                              struct past past)
{
    return (struct unit_run){
        .ops = d->ops,
        .stream = d->stream,
        .group = d->group,
        .shape = {.batch = 1, .tokens = count},
        .tokens = tokens,
        .logits = d->logits,
        .logit_tokens = 1,
        .past = past,
        .cache_tokens = d->room,
    };
}

static void feed_chunk(struct decoder *d, const int32_t *tokens, int64_t count, bool want_logits)
{
    struct unit_run run = run_of(d, d->tokens, count, (struct past){.count = d->position});
    device_copy(d->stream, d->tokens, tokens, (size_t)count * sizeof *tokens);
    if (d->pipe.comm)
        feed_pp_stage(d, count, want_logits, &run);
    else
        feed_units(d, 0, d->graph->unit_count, want_logits, &run);
    d->position += count;
}

/* Copy the logits to the host of every rank. */
static void fetch_logits(struct decoder *d)
{
    const struct roster *roster = zero_roster(d->zero);
    if (d->wide != d->logits)
        ops_cast(d->ops, d->stream, d->wide, DTYPE_F32, d->logits, d->ops->type, d->graph->vocab);
    if (d->pipe.comm)
        comm_broadcast(d->pipe.comm, d->wide, d->graph->vocab, DTYPE_F32,
                       comm_size(d->pipe.comm) - 1, d->stream);
    if (roster->workers < roster->size) /* servers have no logits but must choose the same token */
        comm_broadcast(zero_comm(d->zero), d->wide, d->graph->vocab, DTYPE_F32, 0, d->stream);
    device_copy(d->stream, d->logits_host, d->wide, (size_t)d->graph->vocab * sizeof(float));
}

/* --- one token, recorded -------------------------------------------------------------------- */

static void record(struct decoder *d)
{
    struct unit_run run =
        run_of(d, &d->next->token, 1, (struct past){.count = d->position, .at = &d->next->past});
    if (stream_record_begin(d->stream)) {
        device_copy(d->stream, d->next, d->next_host, sizeof *d->next);
        feed_units(d, 0, d->graph->unit_count, true, &run);
        fetch_logits(d);
        d->recording = stream_record_end(d->stream);
    }
    d->records = d->recording != NULL;
}

/* Returns false if the token is not replayed and must be fed the usual way: as the first of a text,
 * where units may put more into their caches than keys and values. */
static bool feed_recorded(struct decoder *d, int32_t token)
{
    if (d->position == 0)
        return false;
    if (d->records && d->warm && !d->recording)
        record(d);
    d->warm = true;
    if (!d->recording)
        return false;
    *d->next_host = (struct next){.past = d->position++, .token = token};
    stream_replay(d->stream, d->recording);
    return true;
}

enum status decoder_feed(struct decoder *d, const int32_t *tokens, int64_t count,
                         const float **logits)
{
    CHECK(count >= 1 && d->position + count <= d->room);
    if (count > 1 || !feed_recorded(d, tokens[0])) {
        for (int64_t first = 0; first < count; first += d->chunk) {
            int64_t part = count - first < d->chunk ? count - first : d->chunk;
            feed_chunk(d, tokens + first, part, first + part == count);
        }
        fetch_logits(d);
    }
    TRY(stream_sync(d->stream));
    TRY(zero_check(d->zero));
    progress_add(d->env);
    *logits = d->logits_host;
    return STATUS_OK;
}
