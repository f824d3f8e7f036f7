/* decoder -- runs the units' decode passes and keeps their caches. Choosing a token is up to the
 * caller.
 *
 * All buffers hold chunks of at most `chunk` tokens and are shared by the units: only keys and
 * values are kept. Each row has its own. Rows are computed one after the other, each as if it were
 * alone, between acquire and release of a unit's params.
 *
 * Generating one token is the same work each time, except for the token and its position. Where all
 * params are in place and no other rank takes part, the work is recorded once, with these two
 * values in device memory, and replayed: on a GPU a token is then one launch instead of some
 * hundred. The first token of a text always runs without a recording, and so does the first token
 * of all that follows another, so that libraries can initialize themselves. Devices that cannot
 * record, such as the CPU, launch every operation. The bits are the same.
 *
 * Some models compute long texts in another way than short ones, from their first token on. When a
 * text becomes long, its tokens, which are kept for this, are fed again.
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

struct row {
    struct activations *activations;
    void **caches;                 /* (units) device memory; NULL where a unit needs none */
    int32_t *tokens;               /* device: (chunk) */
    void *logits;                  /* device: (V) in the compute type */
    float *wide, *logits_host;     /* (V) on the device (= logits if that is fp32), and on the host
                                      */
    struct next *next, *next_host; /* on the device, and its source on the host */
    struct recording *recording;   /* of one token; NULL: not recorded */
    bool warm;                     /* one token has been fed */
    int64_t position;
    int32_t *text; /* host: (room) the tokens at positions below `position`; NULL: not needed */
    int64_t text_count; /* tokens with all that are being fed */
    bool recorded_long; /* the recording is of a long text */
    void *passed;       /* (chunk, C): the stream between PP stages */

    bool replayed;       /* the current tokens are: no walk feeds them */
    struct unit_run run; /* of the current walk */
    bool wants_logits;   /* this walk feeds its last tokens */
};

struct decoder {
    struct ops *ops;                /* borrowed */
    struct stream *stream;          /* borrowed */
    const struct unit_graph *graph; /* borrowed */
    struct zero *zero;              /* borrowed */
    struct env *env;                /* borrowed */
    struct row *rows;
    struct row **fed; /* (rows) those that take part in the current walk */
    int row_count, fed_count;
    bool records; /* recording is possible */
    int64_t room, chunk;
    struct comm *group;      /* borrowed: the TP group; NULL: one rank */
    struct engine_pipe pipe; /* comm NULL: this rank has the whole model */
};

static size_t stream_bytes(const struct decoder *d, int64_t tokens)
{
    return (size_t)(tokens * d->graph->stream_width) * dtype_bytes(d->ops->type);
}

/* A server computes nothing and only joins the collectives. */
static bool computes(const struct decoder *d)
{
    return roster_is_worker(zero_roster(d->zero));
}

static enum status alloc_units(struct decoder *d, struct row *row)
{
    struct unit_shape shape = {.batch = 1, .tokens = d->chunk};
    uint32_t passes = 1u << PASS_DECODE | 1u << PASS_LOGITS;
    TRY(activations_create(d->ops, d->graph, shape, KEEP_ALWAYS, passes, NULL, FAR_NONE, 0,
                           &row->activations));
    TRY(mem_alloc_array(d->env, MEM_OTHER, "decoder caches", (size_t)d->graph->unit_count,
                        sizeof *row->caches, &row->caches));
    for (int u = 0; u < d->graph->unit_count; u++) {
        const struct unit *unit = &d->graph->units[u];
        size_t bytes =
            unit->type->cache_bytes ? unit->type->cache_bytes(unit, d->ops, 1, d->room) : 0;
        if (bytes > 0)
            TRY(device_alloc(d->ops->device, MEM_ACTIVATIONS, "keys and values", bytes,
                             &row->caches[u]));
    }
    if (d->pipe.comm)
        TRY(device_alloc(d->ops->device, MEM_ACTIVATIONS, "stream between stages",
                         stream_bytes(d, d->chunk), &row->passed));
    return STATUS_OK;
}

static bool is_long(const struct decoder *d, int64_t tokens)
{
    return d->graph->short_text > 0 && tokens > d->graph->short_text;
}

static enum status alloc_row(struct decoder *d, struct row *row)
{
    struct device *device = d->ops->device;
    size_t vocab = (size_t)d->graph->vocab, element = dtype_bytes(d->ops->type);
    if (computes(d))
        TRY(alloc_units(d, row));
    if (is_long(d, d->room))
        TRY(mem_alloc_array(d->env, MEM_OTHER, "decoded text", (size_t)d->room, sizeof *row->text,
                            &row->text));
    TRY(device_alloc(device, MEM_ACTIVATIONS, "decoded tokens", (size_t)d->chunk * sizeof(int32_t),
                     &row->tokens));
    TRY(device_alloc(device, MEM_ACTIVATIONS, "logits", vocab * element, &row->logits));
    if (d->ops->type == DTYPE_F32)
        row->wide = row->logits;
    else
        TRY(device_alloc(device, MEM_ACTIVATIONS, "logits in fp32", vocab * sizeof(float),
                         &row->wide));
    TRY(device_alloc(device, MEM_ACTIVATIONS, "next token", sizeof *row->next, &row->next));
    TRY(device_alloc_host(device, MEM_OTHER, "next token", sizeof *row->next_host,
                          &row->next_host));
    return device_alloc_host(device, MEM_OTHER, "logits", vocab * sizeof(float), &row->logits_host);
}

static enum status alloc_all(struct decoder *d)
{
    size_t rows = (size_t)d->row_count;
    TRY(mem_alloc_array(d->env, MEM_OTHER, "decoder rows", rows, sizeof *d->rows, &d->rows));
    TRY(mem_alloc_array(d->env, MEM_OTHER, "decoder rows", rows, sizeof *d->fed, &d->fed));
    for (int r = 0; r < d->row_count; r++)
        TRY(alloc_row(d, &d->rows[r]));
    return STATUS_OK;
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
                          .row_count = config->rows > 0 ? config->rows : 1,
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

static void free_row(struct decoder *d, struct row *row)
{
    struct device *device = d->ops->device;
    recording_destroy(device, row->recording);
    for (int u = 0; row->caches && u < d->graph->unit_count; u++)
        device_free(device, row->caches[u]);
    mem_free(d->env, row->caches);
    mem_free(d->env, row->text);
    activations_destroy(row->activations);
    device_free(device, row->passed);
    device_free(device, row->tokens);
    if (row->wide != row->logits)
        device_free(device, row->wide);
    device_free(device, row->logits);
    device_free(device, row->logits_host);
    device_free(device, row->next_host);
    device_free(device, row->next);
}

void decoder_destroy(struct decoder *d)
{
    if (!d)
        return;
    for (int r = 0; d->rows && r < d->row_count; r++)
        free_row(d, &d->rows[r]);
    mem_free(d->env, d->fed);
    mem_free(d->env, d->rows);
    mem_free(d->env, d);
}

void decoder_reset(struct decoder *d)
{
    for (int r = 0; r < d->row_count; r++)
        d->rows[r].position = 0;
}

/* --- walks ---------------------------------------------------------------------------------- */

static void start_row(struct decoder *d, struct row *row, const int32_t *tokens, int64_t count,
                      struct past past, bool wants_logits)
{
    row->run = (struct unit_run){
        .ops = d->ops,
        .stream = d->stream,
        .group = d->group,
        .shape = {.batch = 1, .tokens = count},
        .tokens = tokens,
        .logits = row->logits,
        .logit_tokens = 1,
        .past = past,
        .cache_tokens = d->room,
        .text_tokens = row->text_count,
    };
    row->wants_logits = wants_logits;
    d->fed[d->fed_count++] = row;
}

static void run_unit(struct decoder *d, struct row *row, int u, enum pass pass)
{
    if (pass == PASS_LOGITS && !row->wants_logits)
        return;
    row->run.cache = row->caches[u];
    activations_bind(row->activations, u, 0, pass, &row->run);
    unit_run_pass(&d->graph->units[u], pass, &row->run);
    activations_advance(row->activations, u, &row->run);
}

/* Run units first .. end-1. The last unit of the model runs only for logits. */
static void feed_units(struct decoder *d, int first, int end)
{
    bool has_loss = d->graph->units[end - 1].type->run[PASS_LOGITS] != NULL, wanted = false;
    for (int i = 0; i < d->fed_count; i++)
        wanted = wanted || d->fed[i]->wants_logits;
    int stop = has_loss && !wanted ? end - 1 : end;
    zero_walk(d->zero, first, stop, WALK_FORWARD);
    for (int u = first; u < stop; u++) {
        enum pass pass = has_loss && u == end - 1 ? PASS_LOGITS : PASS_DECODE;
        struct unit_run *run = &d->fed[0]->run;
        zero_acquire(d->zero, u, pass, run);
        for (int i = 0; computes(d) && i < d->fed_count; i++) {
            if (i > 0) {
                memcpy(d->fed[i]->run.params, run->params, sizeof run->params);
                d->fed[i]->run.bf16 = run->bf16;
            }
            run_unit(d, d->fed[i], u, pass);
        }
        zero_release(d->zero, u, pass);
    }
}

static int64_t stream_elements(const struct decoder *d, const struct row *row)
{
    return row->run.shape.tokens * d->graph->stream_width;
}

static void receive(struct decoder *d, struct row *row)
{
    struct comm *comm = d->pipe.comm;
    int pp_stages = comm_size(comm), before = (comm_rank(comm) + pp_stages - 1) % pp_stages;
    comm_recv(comm, row->passed, stream_elements(d, row), d->ops->type, before, d->stream);
    row->run.residual = row->passed;
    row->run.pending = NULL;
}

/* Between PP stages, residual + pending is sent. */
static void send(struct decoder *d, struct row *row)
{
    struct comm *comm = d->pipe.comm;
    const struct unit_run *run = &row->run;
    int64_t elements = stream_elements(d, row);
    if (run->pending)
        ops_add(d->ops, d->stream, elements, run->residual, run->pending, row->passed);
    else
        device_copy(d->stream, row->passed, run->residual, stream_bytes(d, run->shape.tokens));
    comm_send(comm, row->passed, elements, d->ops->type, (comm_rank(comm) + 1) % comm_size(comm),
              d->stream);
}

static void feed_pp_stage(struct decoder *d)
{
    int pp_stage = comm_rank(d->pipe.comm), pp_stages = comm_size(d->pipe.comm);
    for (int c = 0; c < d->pipe.chunk_count; c++) {
        bool first_of_all = pp_stage == 0 && c == 0;
        bool last_of_all = pp_stage == pp_stages - 1 && c == d->pipe.chunk_count - 1;
        for (int i = 0; computes(d) && !first_of_all && i < d->fed_count; i++)
            receive(d, d->fed[i]);
        feed_units(d, d->pipe.chunks[c].first, d->pipe.chunks[c].end);
        for (int i = 0; computes(d) && !last_of_all && i < d->fed_count; i++)
            send(d, d->fed[i]);
    }
}

/* Tokens `first` and following of an input, at most a chunk. */
static void start_chunk(struct decoder *d, const struct decoder_input *input, int64_t first)
{
    struct row *row = &d->rows[input->row];
    int64_t left = input->count - first, count = left < d->chunk ? left : d->chunk;
    device_copy(d->stream, row->tokens, input->tokens + first, (size_t)count * sizeof(int32_t));
    start_row(d, row, row->tokens, count, (struct past){.count = row->position}, count == left);
    row->position += count;
}

/* Copy the logits of a row to the host of every rank. */
static void fetch_logits(struct decoder *d, struct row *row)
{
    const struct roster *roster = zero_roster(d->zero);
    int64_t vocab = d->graph->vocab;
    if (row->wide != row->logits)
        ops_cast(d->ops, d->stream, row->wide, DTYPE_F32, row->logits, d->ops->type, vocab);
    if (d->pipe.comm)
        comm_broadcast(d->pipe.comm, row->wide, vocab, DTYPE_F32, comm_size(d->pipe.comm) - 1,
                       d->stream);
    if (roster->workers < roster->size) /* servers have no logits but must choose the same token */
        comm_broadcast(zero_comm(d->zero), row->wide, vocab, DTYPE_F32, 0, d->stream);
    device_copy(d->stream, row->logits_host, row->wide, (size_t)vocab * sizeof(float));
}

/* --- one token, recorded -------------------------------------------------------------------- */

static void record(struct decoder *d, struct row *row)
{
    d->fed_count = 0;
    start_row(d, row, &row->next->token, 1,
              (struct past){.count = row->position, .at = &row->next->past}, true);
    if (stream_record_begin(d->stream)) {
        device_copy(d->stream, row->next, row->next_host, sizeof *row->next);
        feed_units(d, 0, d->graph->unit_count);
        fetch_logits(d, row);
        row->recording = stream_record_end(d->stream);
    }
    d->records = row->recording != NULL;
}

/* Returns false if the token is not replayed and must be fed the usual way: as the first of a text,
 * where units may put more into their caches than keys and values. */
static bool feed_recorded(struct decoder *d, const struct decoder_input *input)
{
    struct row *row = &d->rows[input->row];
    if (input->count > 1 || row->position == 0)
        return false;
    if (row->recording && row->recorded_long != is_long(d, row->text_count)) {
        recording_destroy(d->ops->device, row->recording);
        row->recording = NULL;
        row->warm = false;
    }
    if (d->records && row->warm && !row->recording) {
        row->recorded_long = is_long(d, row->text_count);
        record(d, row);
    }
    row->warm = true;
    if (!row->recording)
        return false;
    *row->next_host = (struct next){.past = row->position++, .token = input->tokens[0]};
    stream_replay(d->stream, row->recording);
    return true;
}

/* --- feeding -------------------------------------------------------------------------------- */

/* Chunk by chunk, in each walk all inputs that have one. */
static void feed_walks(struct decoder *d, const struct decoder_input *inputs, int count)
{
    for (int64_t first = 0;; first += d->chunk) {
        d->fed_count = 0;
        for (int i = 0; i < count; i++)
            if (first < inputs[i].count && !d->rows[inputs[i].row].replayed)
                start_chunk(d, &inputs[i], first);
        if (d->fed_count == 0)
            break;
        if (d->pipe.comm)
            feed_pp_stage(d);
        else
            feed_units(d, 0, d->graph->unit_count);
    }
    for (int i = 0; i < count; i++)
        if (!d->rows[inputs[i].row].replayed)
            fetch_logits(d, &d->rows[inputs[i].row]);
}

/* Keep the tokens of an input. If they make the text a long one, they become all of its tokens. */
static void keep_text(const struct decoder *d, struct row *row, struct decoder_input *input)
{
    row->text_count = row->position + input->count;
    if (!row->text)
        return;
    memcpy(row->text + row->position, input->tokens, (size_t)input->count * sizeof *row->text);
    if (row->position == 0 || is_long(d, row->position) || !is_long(d, row->text_count))
        return;
    row->position = 0;
    input->tokens = row->text;
    input->count = row->text_count;
}

enum status decoder_feed_rows(struct decoder *d, struct decoder_input *inputs, int count)
{
    for (int i = 0; i < count; i++) {
        struct row *row = &d->rows[inputs[i].row];
        CHECK(inputs[i].row >= 0 && inputs[i].row < d->row_count);
        CHECK(inputs[i].count >= 1 && row->position + inputs[i].count <= d->room);
        keep_text(d, row, &inputs[i]);
        row->replayed = feed_recorded(d, &inputs[i]);
        inputs[i].logits = row->logits_host;
    }
    feed_walks(d, inputs, count);
    TRY(stream_sync(d->stream));
    TRY(zero_check(d->zero));
    progress_add(d->env);
    return STATUS_OK;
}

enum status decoder_feed(struct decoder *d, const int32_t *tokens, int64_t count,
                         const float **logits)
{
    struct decoder_input input = {.tokens = tokens, .count = count};
    TRY(decoder_feed_rows(d, &input, 1));
    *logits = input.logits;
    return STATUS_OK;
}
