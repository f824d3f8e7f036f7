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
 * Usage: example_ngram [TEXT FILE]. Without a file it trains on its own source code. It exits with
 * 1 unless the loss falls to less than 0.7 of its first value and is bitwise the same with kept and
 * with recomputed activations.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sifr.h"

enum { VOCAB = 256, LETTERS = 12, REACH = 8, WIDTH = LETTERS * REACH, HIDDEN = 192 };
enum { BATCH = 8, TOKENS = 64, MICRO_BATCHES = 2, STEPS = 100 };
enum { ROWS = BATCH * TOKENS, STEP_ROWS = MICRO_BATCHES * ROWS };

/* --- recall: embeddings of the last REACH bytes --------------------------------------------- */

static const struct sifr_param recall_params[] = {
    {.name = "recall.E", .dims = 2, .shape = {VOCAB, LETTERS}, .init = SIFR_NORMAL, .scale = 0.5},
};

static void recall_forward(void *user, const struct sifr_run *run)
{
    const float *table = run->params[0];
    (void)user;
    for (int64_t row = 0; row < run->rows; row++)
        for (int64_t back = 0; back < REACH; back++) {
            float *to = run->output + row * WIDTH + back * LETTERS;
            int inside = row % run->tokens >= back; /* before the sequence: zeros */
            for (int i = 0; i < LETTERS; i++)
                to[i] = inside ? table[run->ids[row - back] * LETTERS + i] : 0.0f;
        }
}

static void recall_backward(void *user, const struct sifr_run *run)
{
    float *table = run->grads[0];
    (void)user;
    /* Gradients are overwritten, never added to. */
    memset(table, 0, VOCAB * LETTERS * sizeof *table);
    for (int64_t row = 0; row < run->rows; row++)
        for (int64_t back = 0; back < REACH && back <= row % run->tokens; back++)
            for (int i = 0; i < LETTERS; i++)
                table[run->ids[row - back] * LETTERS + i] +=
                    run->gradient[row * WIDTH + back * LETTERS + i];
}

/* --- mix: a hidden layer with a residual ---------------------------------------------------- */

enum { MIX_W1, MIX_B1, MIX_W2 };
enum { MIX_HIDDEN, MIX_SCRATCH }; /* kept floats */

static void mix_forward(void *user, const struct sifr_run *run)
{
    float *hidden = run->kept[MIX_HIDDEN];
    (void)user;
    sifr_linear(run, run->rows, WIDTH, HIDDEN, run->input, run->params[MIX_W1], run->params[MIX_B1],
                hidden);
    for (int64_t i = 0; i < run->rows * HIDDEN; i++)
        hidden[i] = tanhf(hidden[i]);
    sifr_linear(run, run->rows, HIDDEN, WIDTH, hidden, run->params[MIX_W2], NULL, run->output);
    for (int64_t i = 0; i < run->rows * WIDTH; i++)
        run->output[i] += run->input[i];
}

static void mix_backward(void *user, const struct sifr_run *run)
{
    float *hidden = run->kept[MIX_HIDDEN];
    float *dhidden = run->kept[MIX_SCRATCH], *dinput = dhidden + run->rows * HIDDEN;
    (void)user;
    sifr_linear_backward(run, run->rows, HIDDEN, WIDTH, hidden, run->params[MIX_W2], run->gradient,
                         dhidden, run->grads[MIX_W2], NULL);
    for (int64_t i = 0; i < run->rows * HIDDEN; i++)
        dhidden[i] *= 1.0f - hidden[i] * hidden[i];
    sifr_linear_backward(run, run->rows, WIDTH, HIDDEN, run->input, run->params[MIX_W1], dhidden,
                         dinput, run->grads[MIX_W1], run->grads[MIX_B1]);
    for (int64_t i = 0; i < run->rows * WIDTH; i++)
        run->gradient[i] += dinput[i]; /* it already holds the residual path's gradient */
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

static void guess_loss(void *user, const struct sifr_run *run)
{
    float *logits = run->kept[0];
    double *losses = user;
    sifr_linear(run, run->rows, WIDTH, VOCAB, run->input, run->params[0], run->params[1], logits);
    sifr_cross_entropy(run, VOCAB, logits, losses);
    if (run->gradient) /* NULL in evaluation, which needs only the loss */
        sifr_linear_backward(run, run->rows, WIDTH, VOCAB, run->input, run->params[0], logits,
                             run->gradient, run->grads[0], run->grads[1]);
}

/* --- training ------------------------------------------------------------------------------- */

static double losses[ROWS];

static struct sifr_unit mix_unit(const char *name, struct sifr_param params[3],
                                 const char *const names[3])
{
    params[MIX_W1] = (struct sifr_param){names[0], 2, {HIDDEN, WIDTH}, SIFR_NORMAL, 0.1, 1};
    params[MIX_B1] = (struct sifr_param){names[1], 1, {HIDDEN}, SIFR_ZERO, 0, 0};
    params[MIX_W2] = (struct sifr_param){names[2], 2, {WIDTH, HIDDEN}, SIFR_NORMAL, 0.05, 1};
    return (struct sifr_unit){.name = name,
                              .params = params,
                              .param_count = 3,
                              .kept = {HIDDEN, HIDDEN + WIDTH},
                              .forward = mix_forward,
                              .backward = mix_backward};
}

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

/* Windows of the text whose positions depend only on the step. */
static void fill(const char *text, size_t bytes, int step, int32_t *ids, int32_t *labels)
{
    for (int s = 0; s < STEP_ROWS / TOKENS; s++) {
        size_t start = (size_t)(step * 7919 + s * 104729) % (bytes - TOKENS - 1);
        for (int t = 0; t < TOKENS; t++) {
            ids[s * TOKENS + t] = (unsigned char)text[start + t];
            labels[s * TOKENS + t] = (unsigned char)text[start + t + 1];
        }
    }
}

/* Train from the same initial state; returns the last loss, negative = failed. */
static double train(struct sifr_context *context, const struct sifr_model *model, int recompute,
                    const char *text, size_t bytes, double *first)
{
    static int32_t ids[STEP_ROWS], labels[STEP_ROWS];
    struct sifr_options options = sifr_options_default();
    struct sifr_trainer *trainer;
    struct sifr_result result = {0};
    options.batch = BATCH;
    options.tokens = TOKENS;
    options.micro_batches = MICRO_BATCHES;
    options.recompute = recompute;
    options.seed = 1;
    if (sifr_trainer_create(context, model, &options, &trainer) != 0)
        return -1.0;
    printf("%lld parameters, recompute %s, activations %zu KiB\n",
           (long long)sifr_param_count(trainer), recompute ? "on" : "off",
           sifr_memory(trainer, "activations") / 1024);
    for (int step = 0; step < STEPS; step++) {
        fill(text, bytes, step, ids, labels);
        if (sifr_step(trainer, ids, labels, 3e-3, &result) != 0)
            break;
        *first = step == 0 ? result.loss : *first;
        if (step % 50 == 0 || step == STEPS - 1)
            printf("  step %3d  loss %.4f  gradient norm %.3f\n", step + 1, result.loss,
                   result.grad_norm);
    }
    sifr_trainer_destroy(trainer);
    return *sifr_error(context) ? -1.0 : result.loss;
}

static void print_line(void *user, const char *line)
{
    (void)user;
    fprintf(stderr, "%s\n", line);
}

int main(int argc, char **argv)
{
    struct sifr_param mix[2][3];
    const struct sifr_unit units[] = {
        {.name = "recall",
         .params = recall_params,
         .param_count = 1,
         .forward = recall_forward,
         .backward = recall_backward},
        mix_unit("mix 0", mix[0], (const char *const[]){"mix.0.W1", "mix.0.b1", "mix.0.W2"}),
        mix_unit("mix 1", mix[1], (const char *const[]){"mix.1.W1", "mix.1.b1", "mix.1.W2"}),
        {.name = "guess",
         .user = losses,
         .params = guess_params,
         .param_count = 2,
         .kept = {VOCAB},
         .loss = guess_loss},
    };
    const struct sifr_model model = {units, 4, WIDTH, VOCAB};
    struct sifr_context *context;
    size_t bytes;
    char *text = read_text(argc > 1 ? argv[1] : __FILE__, &bytes);
    if (!text || bytes < 2 * TOKENS || sifr_context_create(0, print_line, NULL, &context) != 0) {
        fprintf(stderr, "usage: %s TEXT-FILE (of at least %d bytes)\n", argv[0], 2 * TOKENS);
        return 2;
    }
    double first = 0.0, kept = train(context, &model, 0, text, bytes, &first);
    double again = train(context, &model, 1, text, bytes, &first);
    int good = kept > 0.0 && kept < 0.7 * first && memcmp(&kept, &again, sizeof kept) == 0;
    printf("%s: %.4f -> %.4f, the same bits with recomputation: %s\n", good ? "learned" : "FAILED",
           first, kept, memcmp(&kept, &again, sizeof kept) == 0 ? "yes" : "no");
    sifr_context_destroy(context);
    free(text);
    return !good;
}
