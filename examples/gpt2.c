/* gpt2 -- GPT-2 written with the helpers of include/sifr.h, trained on the bytes of a text file.
 *
 *     embed      x = wte[id] + wpe[position]
 *     h 0 ...    x = x + attention(norm(x));  x = x + mlp(norm(x))
 *     head       softmax(norm(x) wte^T), cross-entropy with the next byte; wte is tied to embed's
 *
 * It runs as fast as the built-in model, because it does the same work in the same order:
 *
 *   - A block passes a pair on: its `residual`, which is a buffer that it keeps anyway, and its
 *     output. The next unit `adds` them inside its first norm, so no unit copies the stream.
 *   - Backward overwrites a kept buffer as soon as its content is no longer needed. So a block has
 *     no large scratch buffers.
 *   - The gradients of most biases are column sums that a norm or attention forms on the way.
 *
 *     example_gpt2 TEXT-FILE                                one rank, a small model
 *     example_gpt2 --ranks 4 --stage 3 --recompute          four ranks as threads, ZeRO stage 3
 *     mpirun -n 4 example_gpt2 --pipeline 2                 four processes, two pipelines
 *     example_gpt2 --bench 10 --layers 6 --width 384 --heads 6 --context 256 --vocab 8192
 *
 * See usage() for all options. It exits with 1 unless the loss falls to less than 0.8 of its first
 * value. Letters: C width, R rows.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sifr.h"

enum { BLOCK_PARAMS = 12, BLOCK_BUFFERS = 11, HEAD_BUFFERS = 5, NAME = 40 };

struct sizes {
    int layers, width, heads, context, vocab, batch, micro_batches;
};

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* --- embed ---------------------------------------------------------------------------------- */

static void embed_forward(void *user, const struct sifr_call *call)
{
    const struct sizes *size = user;
    sifr_embedding(call, size->width, size->vocab, call->ids, call->params[0], call->params[1],
                   call->output);
}

static void embed_backward(void *user, const struct sifr_call *call)
{
    const struct sizes *size = user;
    sifr_embedding_backward(call, size->width, size->vocab, call->ids, call->gradient,
                            call->grads[0], call->grads[1], call->buffers[0]);
}

/* --- norms ---------------------------------------------------------------------------------- */

/* sum = residual + pending, y = norm(sum); stats (2 R) keeps means and deviations. */
static void norm(const struct sifr_call *call, const struct sizes *size, const void *residual,
                 const void *pending, int weight, void *sum, void *y, float *stats)
{
    sifr_norm(call, SIFR_ARGS(sifr_norm, .rows = call->rows, .width = size->width, .eps = 1e-5,
                              .residual = residual, .pending = pending,
                              .weight = call->params[weight], .bias = call->params[weight + 1],
                              .sum = sum, .y = y, .mean = stats, .rstd = stats + call->rows));
}

/* What the backward pass of a norm needs. dsum (may be NULL) and the result are the gradient of the
 * stream. */
static struct sifr_norm_backward norm_gradient(const struct sifr_call *call,
                                               const struct sizes *size, const void *dy,
                                               const void *dsum, int weight, const void *sum,
                                               const float *stats, void *scratch)
{
    return (struct sifr_norm_backward){.size = sizeof(struct sifr_norm_backward),
                                       .rows = call->rows,
                                       .width = size->width,
                                       .eps = 1e-5,
                                       .dy = dy,
                                       .sum = sum,
                                       .weight = call->params[weight],
                                       .mean = stats,
                                       .rstd = stats + call->rows,
                                       .dsum = dsum,
                                       .dsum_out = call->gradient,
                                       .dweight = call->grads[weight],
                                       .dbias = call->grads[weight + 1],
                                       .scratch = scratch};
}

/* --- a block -------------------------------------------------------------------------------- */

enum { LN1_W, LN1_B, QKV_W, QKV_B, PROJ_W, PROJ_B, LN2_W, LN2_B, FC_W, FC_B, OUT_W, OUT_B };
enum { STATS1, NORMED1, QKV, ATTN, LSE, SUM2, STATS2, NORMED2, PRE, ACT, SCRATCH };

static void block_forward(void *user, const struct sifr_call *call)
{
    const struct sizes *size = user;
    int64_t rows = call->rows, width = size->width;
    const void *const *w = call->params;
    void *const *b = call->buffers;
    norm(call, size, call->residual, call->pending, LN1_W, call->sum, b[NORMED1], b[STATS1]);
    sifr_linear(call, rows, width, 3 * width, b[NORMED1], w[QKV_W], w[QKV_B], b[QKV]);
    sifr_attention(call, SIFR_ARGS(sifr_attention, .heads = size->heads, .kv_heads = size->heads,
                                   .head_width = width / size->heads, .qkv = b[QKV], .out = b[ATTN],
                                   .lse = b[LSE], .scratch = b[SCRATCH]));
    void *branch = b[ACT]; /* (R, C) of attention, before ACT has its own content */
    sifr_linear(call, rows, width, width, b[ATTN], w[PROJ_W], w[PROJ_B], branch);
    norm(call, size, call->input, branch, LN2_W, b[SUM2], b[NORMED2], b[STATS2]);
    sifr_linear_gelu(call, rows, width, 4 * width, b[NORMED2], w[FC_W], w[FC_B], b[PRE], b[ACT]);
    if (call->pass != SIFR_RECOMPUTE)
        sifr_linear(call, rows, 4 * width, width, b[ACT], w[OUT_W], w[OUT_B], call->output);
}

static void block_backward(void *user, const struct sifr_call *call)
{
    const struct sizes *size = user;
    int64_t rows = call->rows, width = size->width;
    const void *const *w = call->params;
    void *const *d = call->grads, *const *b = call->buffers;
    void *g =
        call->gradient; /* (R, C) of the stream: after the block, between its halves, before */
    struct sifr_norm_backward n;

    /* MLP. The gradient of PRE overwrites ACT, that of NORMED2 overwrites NORMED2. */
    sifr_linear_backward(call, rows, 4 * width, width, b[ACT], w[OUT_W], g, NULL, d[OUT_W], NULL);
    sifr_linear_gelu_backward(call, rows, 4 * width, width, g, w[OUT_W], b[PRE], b[ACT], d[FC_B]);
    sifr_linear_backward(call, rows, width, 4 * width, b[NORMED2], w[FC_W], b[ACT], b[NORMED2],
                         d[FC_W], NULL);
    n = norm_gradient(call, size, b[NORMED2], g, LN2_W, b[SUM2], b[STATS2], b[SCRATCH]);
    n.dsum_columns = d[OUT_B];
    n.out_columns = d[PROJ_B];
    sifr_norm_backward(call, &n);

    /* Attention. The gradient of ATTN overwrites NORMED2, that of QKV overwrites ACT. */
    sifr_linear_backward(call, rows, width, width, b[ATTN], w[PROJ_W], g, b[NORMED2], d[PROJ_W],
                         NULL);
    sifr_attention_backward(call,
                            SIFR_ARGS(sifr_attention, .heads = size->heads, .kv_heads = size->heads,
                                      .head_width = width / size->heads, .qkv = b[QKV],
                                      .out = b[ATTN], .lse = b[LSE], .scratch = b[SCRATCH],
                                      .dout = b[NORMED2], .dqkv = b[ACT], .dbias = d[QKV_B]));
    sifr_linear_backward(call, rows, width, 3 * width, b[NORMED1], w[QKV_W], b[ACT], b[NORMED1],
                         d[QKV_W], NULL);
    n = norm_gradient(call, size, b[NORMED1], g, LN1_W, call->input, b[STATS1], b[SCRATCH]);
    sifr_norm_backward(call, &n);
}

/* --- head ----------------------------------------------------------------------------------- */

enum { LN_W, LN_B, WTE };
enum { HEAD_STATS, HEAD_NORMED, HEAD_LOGITS, HEAD_LOSSES, HEAD_SCRATCH };

static void head_loss(void *user, const struct sifr_call *call)
{
    const struct sizes *size = user;
    void *const *b = call->buffers;
    norm(call, size, call->residual, call->pending, LN_W, call->sum, b[HEAD_NORMED], b[HEAD_STATS]);
    sifr_linear_cross_entropy(call, size->width, size->vocab, b[HEAD_NORMED], call->params[WTE],
                              call->labels, b[HEAD_LOGITS], b[HEAD_LOSSES], call->gradient,
                              call->grads ? call->grads[WTE] : NULL);
    if (call->pass != SIFR_LOSS)
        return;
    struct sifr_norm_backward n = norm_gradient(call, size, call->gradient, NULL, LN_W, call->input,
                                                b[HEAD_STATS], b[HEAD_SCRATCH]);
    sifr_norm_backward(call, &n);
}

/* --- the model ------------------------------------------------------------------------------ */

struct block {
    char unit[NAME], names[BLOCK_PARAMS][NAME];
    struct sifr_param params[BLOCK_PARAMS];
};

struct gpt2 { /* the tables of a model, which sifr copies */
    struct sifr_param embed_params[2], head_params[3];
    struct sifr_buffer embed_buffers[1], block_buffers[BLOCK_BUFFERS], head_buffers[HEAD_BUFFERS];
    struct block *blocks;
    struct sifr_unit *units;
    struct sifr_model model;
};

static struct sifr_param matrix(const char *name, int64_t out, int64_t in, double scale)
{
    return (struct sifr_param){name, 2, {out, in}, SIFR_NORMAL, scale, 1};
}

static struct sifr_param vector(const char *name, int64_t count, enum sifr_init init)
{
    return (struct sifr_param){name, 1, {count}, init, 0.0, 0};
}

static void make_embed(struct gpt2 *g, struct sizes *size, const struct sifr_context *context)
{
    int64_t scratch =
        sifr_embedding_scratch(context, size->batch, size->context, size->width, size->vocab);
    g->embed_params[0] = matrix("wte.weight", size->vocab, size->width, 0.02);
    g->embed_params[1] = matrix("wpe.weight", size->context, size->width, 0.02);
    g->embed_buffers[0] =
        (struct sifr_buffer){"embedding scratch", 0, scratch, SIFR_U8, SIFR_SCRATCH};
    g->units[0] = (struct sifr_unit){
        .name = "embed",
        .user = size,
        .width = size->width,
        .params = g->embed_params,
        .param_count = 2,
        .param_size = sizeof(struct sifr_param),
        .buffers = g->embed_buffers,
        .buffer_count = 1,
        .buffer_size = sizeof(struct sifr_buffer),
        .forward = embed_forward,
        .backward = embed_backward,
        .work = size->width,
    };
}

static void make_block_buffers(struct gpt2 *g, const struct sizes *size,
                               const struct sifr_context *context)
{
    int64_t width = size->width, rows = (int64_t)size->batch * size->context;
    int64_t scratch = larger(sifr_norm_scratch(context, rows, width),
                             sifr_attention_scratch(context, size->batch, size->context,
                                                    size->heads, size->heads, width / size->heads));
    const struct sifr_buffer buffers[BLOCK_BUFFERS] = {
        [STATS1] = {.name = "statistics 1", .per_row = 2},
        [NORMED1] = {.name = "normed 1", .per_row = width},
        [QKV] = {.name = "qkv", .per_row = 3 * width},
        [ATTN] = {.name = "attention", .per_row = width},
        [LSE] = {.name = "attention lse", .per_row = size->heads},
        [SUM2] = {.name = "sum 2", .per_row = width},
        [STATS2] = {.name = "statistics 2", .per_row = 2},
        [NORMED2] = {.name = "normed 2", .per_row = width},
        [PRE] = {.name = "mlp", .per_row = 4 * width},
        [ACT] = {.name = "mlp activation", .per_row = 4 * width},
        [SCRATCH] = {"block scratch", 0, scratch, SIFR_U8, SIFR_SCRATCH},
    };
    memcpy(g->block_buffers, buffers, sizeof buffers);
}

static void make_block(struct gpt2 *g, struct sizes *size, int layer)
{
    static const char *const names[BLOCK_PARAMS] = {
        "ln_1.weight",        "ln_1.bias",        "attn.c_attn.weight", "attn.c_attn.bias",
        "attn.c_proj.weight", "attn.c_proj.bias", "ln_2.weight",        "ln_2.bias",
        "mlp.c_fc.weight",    "mlp.c_fc.bias",    "mlp.c_proj.weight",  "mlp.c_proj.bias",
    };
    struct block *block = &g->blocks[layer];
    int64_t width = size->width;
    double last = 0.02 / sqrt(2.0 * size->layers); /* matrices whose output the stream adds up */
    for (int i = 0; i < BLOCK_PARAMS; i++)
        snprintf(block->names[i], NAME, "h.%d.%s", layer, names[i]);
    snprintf(block->unit, NAME, "h %d", layer);
    const struct sifr_param params[BLOCK_PARAMS] = {
        [LN1_W] = vector(block->names[LN1_W], width, SIFR_ONE),
        [LN1_B] = vector(block->names[LN1_B], width, SIFR_ZERO),
        [QKV_W] = matrix(block->names[QKV_W], 3 * width, width, 0.02),
        [QKV_B] = vector(block->names[QKV_B], 3 * width, SIFR_ZERO),
        [PROJ_W] = matrix(block->names[PROJ_W], width, width, last),
        [PROJ_B] = vector(block->names[PROJ_B], width, SIFR_ZERO),
        [LN2_W] = vector(block->names[LN2_W], width, SIFR_ONE),
        [LN2_B] = vector(block->names[LN2_B], width, SIFR_ZERO),
        [FC_W] = matrix(block->names[FC_W], 4 * width, width, 0.02),
        [FC_B] = vector(block->names[FC_B], 4 * width, SIFR_ZERO),
        [OUT_W] = matrix(block->names[OUT_W], width, 4 * width, last),
        [OUT_B] = vector(block->names[OUT_B], width, SIFR_ZERO),
    };
    memcpy(block->params, params, sizeof params);
    g->units[1 + layer] = (struct sifr_unit){
        .name = block->unit,
        .user = size,
        .width = width,
        .params = block->params,
        .param_count = BLOCK_PARAMS,
        .param_size = sizeof(struct sifr_param),
        .buffers = g->block_buffers,
        .buffer_count = BLOCK_BUFFERS,
        .buffer_size = sizeof(struct sifr_buffer),
        .forward = block_forward,
        .backward = block_backward,
        .residual = SIFR_ADD_BUFFER(SUM2),
        .adds = 1,
        .work = 2.0 * (12.0 * (double)width + size->context) * (double)width,
    };
}

static void make_head(struct gpt2 *g, struct sizes *size, const struct sifr_context *context)
{
    int64_t width = size->width, rows = (int64_t)size->batch * size->context;
    const struct sifr_buffer buffers[HEAD_BUFFERS] = {
        [HEAD_STATS] = {.name = "statistics", .per_row = 2, .lifetime = SIFR_SCRATCH},
        [HEAD_NORMED] = {.name = "normed", .per_row = width, .lifetime = SIFR_SCRATCH},
        [HEAD_LOGITS] = {.name = "logits",
                         .fixed = sifr_logits_count(context, rows, size->vocab),
                         .lifetime = SIFR_SCRATCH},
        [HEAD_LOSSES] = {.name = "losses",
                         .per_row = 1,
                         .type = SIFR_F64,
                         .lifetime = SIFR_SCRATCH},
        [HEAD_SCRATCH] = {.name = "head scratch",
                          .fixed = sifr_norm_scratch(context, rows, width),
                          .type = SIFR_U8,
                          .lifetime = SIFR_SCRATCH},
    };
    memcpy(g->head_buffers, buffers, sizeof buffers);
    g->head_params[LN_W] = vector("ln_f.weight", width, SIFR_ONE);
    g->head_params[LN_B] = vector("ln_f.bias", width, SIFR_ZERO);
    g->head_params[WTE] = matrix("wte.weight", size->vocab, width, 0.02);
    g->units[1 + size->layers] = (struct sifr_unit){
        .name = "head",
        .user = size,
        .params = g->head_params,
        .param_count = 3,
        .param_size = sizeof(struct sifr_param),
        .buffers = g->head_buffers,
        .buffer_count = HEAD_BUFFERS,
        .buffer_size = sizeof(struct sifr_buffer),
        .loss = head_loss,
        .adds = 1,
        .work = 2.0 * (double)width * size->vocab,
    };
}

static void gpt2_destroy(struct gpt2 *g)
{
    free(g->units);
    free(g->blocks);
}

static int gpt2_create(struct gpt2 *g, struct sizes *size, const struct sifr_context *context)
{
    g->blocks = calloc((size_t)size->layers, sizeof *g->blocks);
    g->units = calloc((size_t)size->layers + 2, sizeof *g->units);
    if (!g->blocks || !g->units)
        return SIFR_MEMORY;
    make_embed(g, size, context);
    make_block_buffers(g, size, context);
    for (int layer = 0; layer < size->layers; layer++)
        make_block(g, size, layer);
    make_head(g, size, context);
    g->model = (struct sifr_model){.size = sizeof g->model,
                                   .units = g->units,
                                   .unit_count = size->layers + 2,
                                   .unit_size = sizeof *g->units,
                                   .vocab = size->vocab};
    return 0;
}

/* --- training ------------------------------------------------------------------------------- */

struct setup {
    struct sifr_job job;
    struct sifr_options options;
    struct sizes sizes;
    int steps, bench;                /* bench: number of timed steps; 0: train */
    const char *text_file, *save;    /* save NULL: parameters are not saved */
    const char *resume, *checkpoint; /* folder to start from, folder to save to at the end */
    char *text;
    size_t bytes;
};

/* This rank's micro-batches of a step: windows of the text whose places depend on step and m only.
 */
static void fill(const struct setup *setup, const struct sifr_trainer *trainer, int64_t step,
                 int32_t *ids, int32_t *labels)
{
    const struct sizes *size = &setup->sizes;
    int64_t at = 0;
    for (int64_t m = 0; m < size->micro_batches; m++)
        for (int64_t s = 0; s < size->batch && sifr_is_mine(trainer, m); s++) {
            size_t start = (size_t)(step * 7919 + (m * size->batch + s) * 104729) %
                           (setup->bytes - (size_t)size->context);
            for (int t = 0; t < size->context; t++, at++) {
                ids[at] = (unsigned char)setup->text[start + (size_t)t];
                labels[at] = (unsigned char)setup->text[start + (size_t)t + 1];
            }
        }
}

static double seconds(void)
{
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct room { /* for the data of a step, and for times */
    int32_t *ids, *labels;
    double *times;
    const void *inputs[2];
    struct sifr_batch batch;
};

static int room_create(struct room *room, const struct setup *setup)
{
    const struct sizes *size = &setup->sizes;
    size_t tokens = (size_t)size->micro_batches * (size_t)size->batch * (size_t)size->context;
    room->ids = malloc(tokens * sizeof *room->ids);
    room->labels = malloc(tokens * sizeof *room->labels);
    room->times = malloc(((size_t)setup->bench + 1) * sizeof *room->times);
    room->inputs[0] = room->ids;
    room->inputs[1] = room->labels;
    room->batch = (struct sifr_batch){.size = sizeof room->batch, .inputs = room->inputs, .own = 1};
    return room->ids && room->labels && room->times ? 0 : SIFR_MEMORY;
}

static void room_destroy(struct room *room)
{
    free(room->times);
    free(room->labels);
    free(room->ids);
}

/* Tokens per second: the median of the steps, after two that are not timed. */
static int bench(struct sifr_context *context, struct sifr_trainer *trainer,
                 const struct setup *setup, struct room *room)
{
    const struct sizes *size = &setup->sizes;
    struct sifr_result result = {.size = sizeof result};
    int status = 0;
    for (int64_t step = -2; status == 0 && step < setup->bench; step++) {
        fill(setup, trainer, step + 2, room->ids, room->labels);
        double start = seconds();
        status = sifr_step(trainer, &room->batch, 1e-3, &result);
        if (step >= 0)
            room->times[step] = seconds() - start;
    }
    if (status != 0 || sifr_rank(context) != 0)
        return status;
    qsort(room->times, (size_t)setup->bench, sizeof *room->times, by_value);
    double tokens = (double)size->micro_batches * size->batch * size->context;
    printf("%.0f tokens/s in the median, %.0f at best\n", tokens / room->times[setup->bench / 2],
           tokens / room->times[0]);
    return 0;
}

static int learn(struct sifr_context *context, struct sifr_trainer *trainer,
                 const struct setup *setup, struct room *room)
{
    struct sifr_result result = {.size = sizeof result};
    double first = 0.0;
    int64_t step = 0;
    size_t none = 0;
    int status = 0;
    if (setup->resume)
        status = sifr_resume(trainer, setup->resume, &step, NULL, &none);
    for (int64_t start = step; status == 0 && step < setup->steps; step++) {
        double warm = step < 20 ? (double)(step + 1) / 20.0 : 1.0;
        fill(setup, trainer, step, room->ids, room->labels);
        status = sifr_step(trainer, &room->batch, 3e-3 * warm, &result);
        first = step == start ? result.loss : first;
        if (status == 0 && sifr_rank(context) == 0 && (step % 20 == 0 || step + 1 == setup->steps))
            printf("step %3lld  loss %.4f  gradient norm %.3f\n", (long long)step + 1, result.loss,
                   result.grad_norm);
    }
    if (status == 0 && setup->save)
        status = sifr_save(trainer, setup->save);
    if (status == 0 && setup->checkpoint)
        status = sifr_checkpoint(trainer, setup->checkpoint, NULL, 0);
    if (status == 0 && !setup->resume && setup->steps >= 60 && result.loss >= 0.8 * first)
        status = SIFR_FORMAT;
    return status;
}

/* One rank, from start to end. The model's tables are made here, because the helpers' scratch
 * depends on the rank's threads. */
static int train(struct sifr_context *context, void *user)
{
    struct setup *setup = user;
    struct gpt2 gpt2;
    struct room room;
    struct sifr_trainer *trainer = NULL;
    int status = gpt2_create(&gpt2, &setup->sizes, context);
    if (status == 0)
        status = sifr_trainer_create(context, &gpt2.model, &setup->options, &trainer);
    gpt2_destroy(&gpt2);
    if (status != 0)
        return status;
    if (sifr_rank(context) == 0)
        printf("%lld parameters, %d ranks, ZeRO stage %d; rank 0 has %zu KiB of activations\n",
               (long long)sifr_param_count(trainer), sifr_ranks(context), setup->options.stage,
               sifr_memory(trainer, SIFR_ACTIVATIONS) / 1024);
    status = room_create(&room, setup);
    if (status == 0)
        status = (setup->bench > 0 ? bench : learn)(context, trainer, setup, &room);
    room_destroy(&room);
    sifr_trainer_destroy(trainer);
    return status;
}

/* --- the command ---------------------------------------------------------------------------- */

static void print_line(void *user, int rank, const char *line)
{
    (void)user;
    fprintf(stderr, "rank %d: %s\n", rank, line);
}

static int usage(const char *program)
{
    fprintf(stderr,
            "usage: %s [--layers N] [--width N] [--heads N] [--context N] [--vocab N]\n"
            "       [--batch N] [--micro-batches N] [--steps N] [--bench N] [--ranks N]\n"
            "       [--threads N] [--stage 0..3] [--servers N] [--pipeline N] [--schedule 0..3]\n"
            "       [--prefetch N] [--bf16] [--recompute] [--save FILE] [--resume FOLDER]\n"
            "       [--checkpoint FOLDER] [TEXT-FILE]\n"
            "The width must be a multiple of the heads, and the vocabulary at least 256.\n",
            program);
    return 2;
}

/* 0, or -1 for an option that is unknown or has no value. */
static int read_options(int argc, char **argv, struct setup *setup)
{
    struct sifr_options *o = &setup->options;
    struct sizes *size = &setup->sizes;
    int schedule = SIFR_1F1B;
    const struct {
        const char *key;
        int *number;
        const char **text;
    } known[] = {
        {"--layers", &size->layers, NULL},
        {"--width", &size->width, NULL},
        {"--heads", &size->heads, NULL},
        {"--context", &size->context, NULL},
        {"--vocab", &size->vocab, NULL},
        {"--batch", &size->batch, NULL},
        {"--micro-batches", &size->micro_batches, NULL},
        {"--steps", &setup->steps, NULL},
        {"--bench", &setup->bench, NULL},
        {"--ranks", &setup->job.ranks, NULL},
        {"--threads", &setup->job.threads, NULL},
        {"--stage", &o->stage, NULL},
        {"--servers", &o->servers, NULL},
        {"--pipeline", &o->pipeline, NULL},
        {"--schedule", &schedule, NULL},
        {"--prefetch", &o->prefetch, NULL},
        {"--save", NULL, &setup->save},
        {"--resume", NULL, &setup->resume},
        {"--checkpoint", NULL, &setup->checkpoint},
    };
    for (int i = 1; i < argc; i++) {
        size_t k = 0;
        if (argv[i][0] != '-') {
            setup->text_file = argv[i];
            continue;
        }
        if (strcmp(argv[i], "--bf16") == 0) {
            o->precision = SIFR_BF16;
            continue;
        }
        if (strcmp(argv[i], "--recompute") == 0) {
            o->recompute = SIFR_RECOMPUTE_ALL;
            continue;
        }
        while (k < sizeof known / sizeof *known && strcmp(argv[i], known[k].key) != 0)
            k++;
        if (k == sizeof known / sizeof *known || ++i == argc)
            return -1;
        if (known[k].number)
            *known[k].number = atoi(argv[i]);
        else
            *known[k].text = argv[i];
    }
    o->schedule = (enum sifr_schedule)schedule;
    return size->layers > 0 && size->heads > 0 && size->width > 0 &&
                   size->width % size->heads == 0 && size->context > 0 && size->vocab >= 256 &&
                   size->batch > 0 && size->micro_batches > 0 && setup->bench >= 0
               ? 0
               : -1;
}

static char *read_text(const char *path, size_t *bytes)
{
    enum { MOST = 1 << 22 };
    FILE *file = fopen(path, "rb");
    if (!file)
        return NULL;
    char *text = malloc(MOST);
    *bytes = text ? fread(text, 1, MOST, file) : 0;
    fclose(file);
    return text;
}

int main(int argc, char **argv)
{
    struct setup setup = {.job = {.size = sizeof setup.job, .log = print_line},
                          .sizes = {.layers = 2,
                                    .width = 64,
                                    .heads = 4,
                                    .context = 64,
                                    .vocab = 256,
                                    .batch = 4,
                                    .micro_batches = 4},
                          .steps = 100,
                          .text_file = __FILE__};
    sifr_options_init(&setup.options);
    if (read_options(argc, argv, &setup) != 0)
        return usage(argv[0]);
    setup.options.batch = setup.sizes.batch;
    setup.options.tokens = setup.sizes.context;
    setup.options.micro_batches = setup.sizes.micro_batches;
    setup.options.seed = 1;
    setup.text = read_text(setup.text_file, &setup.bytes);
    if (!setup.text || setup.bytes <= (size_t)setup.sizes.context) {
        fprintf(stderr, "%s: a text file of more than %d bytes is needed\n", setup.text_file,
                setup.sizes.context);
        free(setup.text);
        return 2;
    }
    int status = sifr_run(&setup.job, train, &setup);
    free(setup.text);
    if (status == SIFR_FORMAT)
        fprintf(stderr, "the model has not learned\n");
    return status != 0;
}
