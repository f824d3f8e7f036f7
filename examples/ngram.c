/* ngram -- a language model that is not a transformer, trained only through include/sifr.h.
 *
 * The last bytes up to each position are embedded and concatenated, two hidden layers with a
 * residual mix them, and a softmax predicts the next byte. There are three kinds of units, each a
 * forward and a backward function in plain C:
 *
 *     recall    output[t] = [ E[id t], E[id t-1], ..., E[id t-7] ]          parameter: E (256, 12)
 *     mix       output = input + tanh(input W1^T + b1) W2^T                 parameters: W1, b1, W2
 *     guess     logits = input W^T + b, cross-entropy with the next byte    parameters: W, b
 *
 * Nothing in the units knows about ranks. Options choose the layout, and the trained parameters are
 * the same to the bit:
 *
 *     example_ngram                                    one rank
 *     example_ngram --ranks 4 --stage 3                four ranks as threads, ZeRO stage 3
 *     mpirun -n 4 example_ngram --stage 3              four processes
 *
 * See usage() for all options. It exits with 1 unless the loss falls to less than 0.7 of its first
 * value.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sifr.h"

enum { VOCAB = 256, LETTERS = 12, REACH = 8, WIDTH = LETTERS * REACH, HIDDEN = 192 };
enum { BATCH = 8, TOKENS = 64, MICRO_BATCHES = 4 };
enum { ROWS = BATCH * TOKENS };

/* --- recall: embeddings of the last REACH bytes --------------------------------------------- */

static const struct sifr_param recall_params[] = {
    {.name = "recall.E", .dims = 2, .shape = {VOCAB, LETTERS}, .init = SIFR_NORMAL, .scale = 0.5},
};

static void recall_forward(void *user, const struct sifr_call *call)
{
    const float *table = call->params[0];
    (void)user;
    for (int64_t row = 0; row < call->rows; row++)
        for (int64_t back = 0; back < REACH; back++) {
            float *to = (float *)call->output + row * WIDTH + back * LETTERS;
            int inside = row % call->tokens >= back; /* before the sequence: zeros */
            for (int i = 0; i < LETTERS; i++)
                to[i] = inside ? table[call->ids[row - back] * LETTERS + i] : 0.0f;
        }
}

static void recall_backward(void *user, const struct sifr_call *call)
{
    float *table = call->grads[0];
    const float *gradient = call->gradient;
    (void)user;
    /* Gradients are overwritten, never added to. */
    memset(table, 0, VOCAB * LETTERS * sizeof *table);
    for (int64_t row = 0; row < call->rows; row++)
        for (int64_t back = 0; back < REACH && back <= row % call->tokens; back++)
            for (int i = 0; i < LETTERS; i++)
                table[call->ids[row - back] * LETTERS + i] +=
                    gradient[row * WIDTH + back * LETTERS + i];
}

/* --- mix: a hidden layer with a residual ---------------------------------------------------- */

enum { MIX_W1, MIX_B1, MIX_W2 };
enum { MIX_HIDDEN, MIX_DHIDDEN, MIX_DINPUT };
static const struct sifr_buffer mix_buffers[] = {
    {.name = "hidden", .per_row = HIDDEN},
    {.name = "gradient of hidden", .per_row = HIDDEN, .lifetime = SIFR_SCRATCH},
    {.name = "gradient of input", .per_row = WIDTH, .lifetime = SIFR_SCRATCH},
};

static void mix_forward(void *user, const struct sifr_call *call)
{
    float *hidden = call->buffers[MIX_HIDDEN];
    (void)user;
    sifr_linear(call, call->rows, WIDTH, HIDDEN, call->input, call->params[MIX_W1],
                call->params[MIX_B1], hidden);
    for (int64_t i = 0; i < call->rows * HIDDEN; i++)
        hidden[i] = tanhf(hidden[i]);
    sifr_linear(call, call->rows, HIDDEN, WIDTH, hidden, call->params[MIX_W2], NULL, call->output);
}

static void mix_backward(void *user, const struct sifr_call *call)
{
    const float *hidden = call->buffers[MIX_HIDDEN];
    float *dhidden = call->buffers[MIX_DHIDDEN], *dinput = call->buffers[MIX_DINPUT];
    float *gradient = call->gradient;
    (void)user;
    sifr_linear_backward(call, call->rows, HIDDEN, WIDTH, hidden, call->params[MIX_W2],
                         call->gradient, dhidden, call->grads[MIX_W2], NULL);
    for (int64_t i = 0; i < call->rows * HIDDEN; i++)
        dhidden[i] *= 1.0f - hidden[i] * hidden[i];
    sifr_linear_backward(call, call->rows, WIDTH, HIDDEN, call->input, call->params[MIX_W1],
                         dhidden, dinput, call->grads[MIX_W1], call->grads[MIX_B1]);
    for (int64_t i = 0; i < call->rows * WIDTH; i++)
        gradient[i] += dinput[i]; /* it already holds the residual path's gradient */
}

/* --- guess: softmax over the next byte ------------------------------------------------------ */

static const struct sifr_param guess_params[] = {
    {.name = "guess.W",
     .dims = 2,
     .shape = {VOCAB, WIDTH},
     .init = SIFR_NORMAL,
     .scale = 0.05,
     .decay = 1},
    {.name = "guess.b", .dims = 1, .shape = {VOCAB}},
};

enum { GUESS_LOGITS, GUESS_LOSSES };
static const struct sifr_buffer guess_buffers[] = {
    {.name = "logits", .per_row = VOCAB, .lifetime = SIFR_SCRATCH},
    {.name = "losses", .per_row = 1, .type = SIFR_F64, .lifetime = SIFR_SCRATCH},
};

static void guess_loss(void *user, const struct sifr_call *call)
{
    float *logits = call->buffers[GUESS_LOGITS];
    (void)user;
    sifr_linear(call, call->rows, WIDTH, VOCAB, call->input, call->params[0], call->params[1],
                logits);
    sifr_cross_entropy(call, VOCAB, call->labels, logits, call->buffers[GUESS_LOSSES]);
    if (call->pass == SIFR_LOSS) /* an evaluation needs only the loss */
        sifr_linear_backward(call, call->rows, WIDTH, VOCAB, call->input, call->params[0], logits,
                             call->gradient, call->grads[0], call->grads[1]);
}

/* --- the model ------------------------------------------------------------------------------ */

static const struct sifr_param mix_params[2][3] = {
    {{"mix.0.W1", 2, {HIDDEN, WIDTH}, SIFR_NORMAL, 0.1, 1},
     {"mix.0.b1", 1, {HIDDEN}, SIFR_ZERO, 0, 0},
     {"mix.0.W2", 2, {WIDTH, HIDDEN}, SIFR_NORMAL, 0.05, 1}},
    {{"mix.1.W1", 2, {HIDDEN, WIDTH}, SIFR_NORMAL, 0.1, 1},
     {"mix.1.b1", 1, {HIDDEN}, SIFR_ZERO, 0, 0},
     {"mix.1.W2", 2, {WIDTH, HIDDEN}, SIFR_NORMAL, 0.05, 1}},
};

#define PARAMS(array) \
    .params = (array), .param_count = sizeof(array) / sizeof *(array), .param_size = sizeof *(array)
#define BUFFERS(array)                                                   \
    .buffers = (array), .buffer_count = sizeof(array) / sizeof *(array), \
    .buffer_size = sizeof *(array)

static const struct sifr_unit units[] = {
    {.name = "recall",
     .width = WIDTH,
     PARAMS(recall_params),
     .forward = recall_forward,
     .backward = recall_backward},
    {.name = "mix 0",
     .width = WIDTH,
     PARAMS(mix_params[0]),
     BUFFERS(mix_buffers),
     .forward = mix_forward,
     .backward = mix_backward,
     .residual = SIFR_ADD_INPUT},
    {.name = "mix 1",
     .width = WIDTH,
     PARAMS(mix_params[1]),
     BUFFERS(mix_buffers),
     .forward = mix_forward,
     .backward = mix_backward,
     .residual = SIFR_ADD_INPUT},
    {.name = "guess", PARAMS(guess_params), BUFFERS(guess_buffers), .loss = guess_loss},
};

static const struct sifr_model model = {.size = sizeof model,
                                        .units = units,
                                        .unit_count = sizeof units / sizeof *units,
                                        .unit_size = sizeof *units,
                                        .vocab = VOCAB};

/* --- training ------------------------------------------------------------------------------- */

struct setup {
    struct sifr_options options;
    int steps;
    const char *text_file, *save;         /* save NULL: parameters are not saved */
    const char *checkpoints, *checkpoint; /* folder to resume from, folder to save to at the end */
    char *text;
    size_t bytes;
};

static char *read_text(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return NULL;
    char *text = malloc(1 << 20);
    *bytes = text ? fread(text, 1, 1 << 20, file) : 0;
    fclose(file);
    return text;
}

/* Micro-batch m of a step: windows of the text whose positions depend on step and m only. */
static void fill(const struct setup *setup, int64_t step, int64_t m, int32_t *ids, int32_t *labels)
{
    for (int64_t s = 0; s < BATCH; s++) {
        size_t start =
            (size_t)(step * 7919 + (m * BATCH + s) * 104729) % (setup->bytes - TOKENS - 1);
        for (int t = 0; t < TOKENS; t++) {
            ids[s * TOKENS + t] = (unsigned char)setup->text[start + t];
            labels[s * TOKENS + t] = (unsigned char)setup->text[start + t + 1];
        }
    }
}

/* Fill this rank's micro-batches of a step, one after the other. */
static void fill_own(struct sifr_trainer *trainer, const struct setup *setup, int64_t step,
                     int32_t *ids, int32_t *labels)
{
    int64_t own = 0;
    for (int64_t m = 0; m < MICRO_BATCHES; m++)
        if (sifr_is_mine(trainer, m)) {
            fill(setup, step, m, ids + own * ROWS, labels + own * ROWS);
            own++;
        }
}

static int learn(struct sifr_context *context, struct sifr_trainer *trainer,
                 const struct setup *setup)
{
    int32_t *ids = malloc(MICRO_BATCHES * ROWS * sizeof *ids);
    int32_t *labels = malloc(MICRO_BATCHES * ROWS * sizeof *labels);
    const void *inputs[] = {ids, labels};
    const struct sifr_batch batch = {.size = sizeof batch, .inputs = inputs, .own = 1};
    struct sifr_result result = {.size = sizeof result};
    double first = 0.0;
    int64_t step = 0;
    size_t none = 0;
    int status = ids && labels ? 0 : SIFR_MEMORY;
    if (status == 0 && setup->checkpoints)
        status = sifr_resume(trainer, setup->checkpoints, &step, NULL, &none);
    for (int64_t start = step; status == 0 && step < setup->steps; step++) {
        fill_own(trainer, setup, step, ids, labels);
        status = sifr_step(trainer, &batch, 3e-3, &result);
        first = step == start ? result.loss : first;
        if (status == 0 && sifr_rank(context) == 0 && (step % 50 == 0 || step + 1 == setup->steps))
            printf("step %3lld  loss %.4f  gradient norm %.3f\n", (long long)step + 1, result.loss,
                   result.grad_norm);
    }
    if (status == 0 && setup->save)
        status = sifr_save(trainer, setup->save);
    if (status == 0 && setup->checkpoint)
        status = sifr_checkpoint(trainer, setup->checkpoint, NULL, 0);
    if (status == 0 && setup->steps >= 100 && result.loss >= 0.7 * first)
        status = SIFR_FORMAT;
    free(labels);
    free(ids);
    return status;
}

/* One rank, from start to end. */
static int train(struct sifr_context *context, void *user)
{
    const struct setup *setup = user;
    struct sifr_trainer *trainer;
    int status = sifr_trainer_create(context, &model, &setup->options, &trainer);
    if (status != 0)
        return status;
    if (sifr_rank(context) == 0)
        printf("%lld parameters, %d ranks, ZeRO stage %d; rank 0 has %zu KiB of activations\n",
               (long long)sifr_param_count(trainer), sifr_ranks(context), setup->options.stage,
               sifr_memory(trainer, SIFR_ACTIVATIONS) / 1024);
    status = learn(context, trainer, setup);
    sifr_trainer_destroy(trainer);
    return status;
}

static void print_line(void *user, int rank, const char *line)
{
    (void)user;
    fprintf(stderr, "rank %d: %s\n", rank, line);
}

static int usage(const char *program)
{
    fprintf(stderr,
            "usage: %s [--ranks N] [--stage 0..3] [--servers N] [--pipeline N] [--prefetch N]\n"
            "       [--schedule 0..3] [--bf16] [--recompute] [--steps N] [--save FILE]\n"
            "       [--resume FOLDER] [--checkpoint FOLDER] [TEXT-FILE]\n",
            program);
    return 2;
}

int main(int argc, char **argv)
{
    struct setup setup = {.steps = 100, .text_file = __FILE__};
    struct sifr_job job = {.size = sizeof job, .log = print_line};
    struct sifr_options *o = &setup.options;
    sifr_options_init(o);
    o->batch = BATCH;
    o->tokens = TOKENS;
    o->micro_batches = MICRO_BATCHES;
    o->seed = 1;
    for (int i = 1; i < argc; i++) {
        const char *key = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        int number = value ? atoi(value) : 0;
        if (strcmp(key, "--bf16") == 0) {
            o->precision = SIFR_BF16;
        } else if (strcmp(key, "--recompute") == 0) {
            o->recompute = SIFR_RECOMPUTE_ALL;
        } else if (key[0] != '-') {
            setup.text_file = key;
        } else if (!value) {
            return usage(argv[0]);
        } else {
            i++;
            if (strcmp(key, "--ranks") == 0)
                job.ranks = number;
            else if (strcmp(key, "--stage") == 0)
                o->stage = number;
            else if (strcmp(key, "--servers") == 0)
                o->servers = number;
            else if (strcmp(key, "--pipeline") == 0)
                o->pipeline = number;
            else if (strcmp(key, "--schedule") == 0)
                o->schedule = (enum sifr_schedule)number;
            else if (strcmp(key, "--prefetch") == 0)
                o->prefetch = number;
            else if (strcmp(key, "--steps") == 0)
                setup.steps = number;
            else if (strcmp(key, "--save") == 0)
                setup.save = value;
            else if (strcmp(key, "--resume") == 0)
                setup.checkpoints = value;
            else if (strcmp(key, "--checkpoint") == 0)
                setup.checkpoint = value;
            else
                return usage(argv[0]);
        }
    }
    setup.text = read_text(setup.text_file, &setup.bytes);
    if (!setup.text || setup.bytes < 2 * TOKENS) {
        fprintf(stderr, "%s: a text file of at least %d bytes is needed\n", setup.text_file,
                2 * TOKENS);
        return 2;
    }
    int status = sifr_run(&job, train, &setup);
    free(setup.text);
    if (status == SIFR_FORMAT)
        fprintf(stderr, "the model has not learned\n");
    return status != 0;
}
