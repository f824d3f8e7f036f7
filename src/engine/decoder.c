/* decoder -- feeds tokens through the units' decode passes and keeps their caches; choosing is in
 * sampling.c.
 *
 * All buffers are for chunks of at most `chunk` tokens and are shared by the units: nothing is kept
 * but keys and values.
 */
#include "engine/decoder.h"

#include <string.h>

#include "engine/activations.h"

struct decoder {
    struct ops *ops;                /* borrowed */
    struct stream *stream;          /* borrowed */
    const struct unit_graph *graph; /* borrowed */
    struct zero *zero;              /* borrowed */
    struct env *env;                /* borrowed */
    struct activations *activations;
    void **caches;             /* (units) device memory; NULL where a unit needs none */
    int32_t *tokens;           /* device: (chunk) */
    void *logits;              /* device: (V) in the compute type */
    float *wide, *logits_host; /* (V): on the device, which is logits where that is fp32 */
    int64_t position, room, chunk;
};

static enum status alloc_caches(struct decoder *d)
{
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
    return STATUS_OK;
}

static enum status alloc_all(struct decoder *d)
{
    struct unit_shape shape = {.batch = 1, .tokens = d->chunk};
    uint32_t passes = 1u << PASS_DECODE | 1u << PASS_LOGITS;
    size_t vocab = (size_t)d->graph->vocab, element = dtype_bytes(d->ops->type);
    if (roster_is_worker(zero_roster(d->zero))) {
        TRY(activations_create(d->ops, d->graph, shape, KEEP_ALWAYS, passes, &d->activations));
        TRY(alloc_caches(d));
    }
    TRY(device_alloc(d->ops->device, MEM_ACTIVATIONS, "decoded tokens",
                     (size_t)d->chunk * sizeof(int32_t), &d->tokens));
    TRY(device_alloc(d->ops->device, MEM_ACTIVATIONS, "logits", vocab * element, &d->logits));
    if (d->ops->type == DTYPE_F32)
        d->wide = d->logits;
    else
        TRY(device_alloc(d->ops->device, MEM_ACTIVATIONS, "logits in fp32", vocab * sizeof(float),
                         &d->wide));
    return mem_alloc(d->env, MEM_OTHER, "logits", vocab * sizeof(float), &d->logits_host);
}

enum status decoder_create(struct ops *ops, struct stream *stream, const struct unit_graph *graph,
                           struct zero *zero, int64_t tokens, int64_t chunk,
                           struct decoder **decoder)
{
    struct env *env = device_env(ops->device);
    struct decoder *d;
    CHECK(tokens <= graph->context && chunk >= 1 && chunk <= tokens);
    TRY(mem_alloc(env, MEM_OTHER, "decoder", sizeof *d, &d));
    *d = (struct decoder){.ops = ops,
                          .stream = stream,
                          .graph = graph,
                          .zero = zero,
                          .env = env,
                          .room = tokens,
                          .chunk = chunk};
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
    for (int u = 0; d->caches && u < d->graph->unit_count; u++)
        device_free(device, d->caches[u]);
    activations_destroy(d->activations);
    device_free(device, d->tokens);
    if (d->wide != d->logits)
        device_free(device, d->wide);
    device_free(device, d->logits);
    mem_free(d->env, d->logits_host);
    mem_free(d->env, d->caches);
    mem_free(d->env, d);
}

void decoder_reset(struct decoder *d)
{
    d->position = 0;
}

int64_t decoder_position(const struct decoder *d)
{
    return d->position;
}

static void feed_chunk(struct decoder *d, const int32_t *tokens, int64_t count, bool want_logits)
{
    struct unit_run run = {
        .ops = d->ops,
        .stream = d->stream,
        .shape = {.batch = 1, .tokens = count},
        .tokens = d->tokens,
        .logits = d->logits,
        .logit_tokens = 1,
        .past = d->position,
        .cache_tokens = d->room,
    };
    int last = d->graph->unit_count - 1;
    zero_walk(d->zero, false);
    device_copy(d->stream, d->tokens, tokens, (size_t)count * sizeof *tokens);
    for (int u = 0; u < last + want_logits; u++) {
        enum pass pass = u < last ? PASS_DECODE : PASS_LOGITS;
        zero_acquire(d->zero, u, pass, &run);
        if (d->activations) { /* a server has none and only takes part */
            run.cache = d->caches[u];
            activations_bind(d->activations, u, pass, &run);
            unit_run_pass(&d->graph->units[u], pass, &run);
            activations_advance(d->activations, u, &run);
        }
        zero_release(d->zero, u, pass);
    }
    d->position += count;
}

enum status decoder_feed(struct decoder *d, const int32_t *tokens, int64_t count,
                         const float **logits)
{
    CHECK(count >= 1 && d->position + count <= d->room);
    for (int64_t first = 0; first < count; first += d->chunk) {
        int64_t part = count - first < d->chunk ? count - first : d->chunk;
        feed_chunk(d, tokens + first, part, first + part == count);
    }
    const struct roster *roster = zero_roster(d->zero);
    if (d->wide != d->logits)
        ops_cast(d->ops, d->stream, d->wide, DTYPE_F32, d->logits, d->ops->type, d->graph->vocab);
    if (roster->workers < roster->size) /* servers compute no logits, and choose the same token */
        comm_broadcast(zero_comm(d->zero), d->wide, d->graph->vocab, DTYPE_F32, 0, d->stream);
    device_copy(d->stream, d->logits_host, d->wide, (size_t)d->graph->vocab * sizeof(float));
    TRY(stream_sync(d->stream));
    *logits = d->logits_host;
    return STATUS_OK;
}
