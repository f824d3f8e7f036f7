/* classifier -- which of ten shapes is in a picture? Trained only through include/sifr.h.
 *
 * The program draws its own pictures: 16 x 16 floats with a bar, a cross, a disc, ... of random
 * size, at a random place, under noise. Picture i depends on i only, so every rank can draw exactly
 * the pictures that it needs. A step has three inputs, each an array with one entry per sample:
 *
 *     pixels   256 floats
 *     class    an integer from 0 to 9
 *     weight   a float: how much the sample counts. Noisy pictures count less
 *
 * A sample is one row (tokens = 1), and the units have different widths:
 *
 *     look     256 pixels -> 256    4 filters of 3 x 3, stride 2, in plain C        W, b
 *     dense 0  256 -> 128           tanh(x W^T + b)                                 W, b
 *     dense 1  128 -> 64            the same                                        W, b
 *     decide   64 -> 10 classes     softmax, weighted cross-entropy                 W, b
 *
 * The first three have a `weights` function: a pipeline with the zero-bubble schedule first
 * computes the gradients of their inputs, which the previous stage waits for, and fills its idle
 * time with the gradients of the parameters.
 *
 *     example_classifier                                                 one rank
 *     example_classifier --ranks 4 --stage 3                             four ranks as threads
 *     example_classifier --ranks 4 --stage 1 --pipeline 2 --schedule 3   two pipelines of two
 *     mpirun -n 3 example_classifier --stage 2                           three processes
 *
 * All of them train the same parameters, to the bit. See usage() for all options. It exits with 1
 * unless it recognizes most of the pictures of an evaluation.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sifr.h"

enum { SIDE = 16, PIXELS = SIDE * SIDE, CLASSES = 10 };
enum { FILTERS = 4, TAPS = 9, MAP = SIDE / 2, SEEN = FILTERS * MAP * MAP };
enum { BATCH = 32, MICRO_BATCHES = 4, TEST_MICRO_BATCHES = 12 };

enum { INPUT_PIXELS, INPUT_CLASS, INPUT_WEIGHT, INPUT_COUNT };

#define PARAMS(array)                                                         \
    .params = (array), .param_count = (int)(sizeof(array) / sizeof *(array)), \
    .param_size = sizeof *(array)
#define BUFFERS(array)                                                          \
    .buffers = (array), .buffer_count = (int)(sizeof(array) / sizeof *(array)), \
    .buffer_size = sizeof *(array)

/* --- look: a convolution of the pixels, and ReLU -------------------------------------------- */

static const struct sifr_param look_params[] = {
    {.name = "look.W", .dims = 2, .shape = {FILTERS, TAPS}, .init = SIFR_NORMAL, .scale = 0.3},
    {.name = "look.b", .dims = 1, .shape = {FILTERS}},
};
enum { LOOK_PATCHES, LOOK_DOUTPUT };
static const struct sifr_buffer look_buffers[] = {
    {.name = "patches", .per_row = MAP * MAP * TAPS},
    {.name = "gradient of output", .per_row = SEEN},
};

/* The 3 x 3 pixels around each second pixel of a picture: (MAP, MAP, TAPS); 0 outside. */
static void cut(const float *pixels, float *patches)
{
    for (int y = 0; y < MAP; y++)
        for (int x = 0; x < MAP; x++)
            for (int tap = 0; tap < TAPS; tap++) {
                int row = 2 * y + tap / 3 - 1, column = 2 * x + tap % 3 - 1;
                int inside = row >= 0 && row < SIDE && column >= 0 && column < SIDE;
                patches[(y * MAP + x) * TAPS + tap] = inside ? pixels[row * SIDE + column] : 0.0f;
            }
}

static float filter(const float *patch, const float *w, float b)
{
    float sum = b;
    for (int tap = 0; tap < TAPS; tap++)
        sum += w[tap] * patch[tap];
    return sum;
}

static void look_forward(void *user, const struct sifr_call *call)
{
    const float *pixels = call->inputs[INPUT_PIXELS], *w = call->params[0], *b = call->params[1];
    float *patches = call->buffers[LOOK_PATCHES], *output = call->output;
    (void)user;
    for (int64_t row = 0; row < call->rows; row++)
        cut(pixels + row * PIXELS, patches + row * MAP * MAP * TAPS);
    for (int64_t place = 0; place < call->rows * MAP * MAP; place++)
        for (int f = 0; f < FILTERS; f++)
            output[place * FILTERS + f] =
                fmaxf(0.0f, filter(patches + place * TAPS, w + f * TAPS, b[f]));
}

/* The second part of backward: gradients of the parameters, from buffers only. */
static void look_weights(void *user, const struct sifr_call *call)
{
    const float *patches = call->buffers[LOOK_PATCHES], *doutput = call->buffers[LOOK_DOUTPUT];
    float *dw = call->grads[0], *db = call->grads[1];
    (void)user;
    memset(dw, 0, FILTERS * TAPS * sizeof *dw); /* gradients are overwritten, never added to */
    memset(db, 0, FILTERS * sizeof *db);
    for (int64_t place = 0; place < call->rows * MAP * MAP; place++)
        for (int f = 0; f < FILTERS; f++) {
            float d = doutput[place * FILTERS + f];
            for (int tap = 0; tap < TAPS; tap++)
                dw[f * TAPS + tap] += d * patches[place * TAPS + tap];
            db[f] += d;
        }
}

/* The first part keeps what the second one needs: the gradient of the output where ReLU let it
 * pass. Pixels have no gradient. */
static void look_backward(void *user, const struct sifr_call *call)
{
    const float *w = call->params[0], *b = call->params[1], *gradient = call->gradient;
    const float *patches = call->buffers[LOOK_PATCHES];
    float *doutput = call->buffers[LOOK_DOUTPUT];
    for (int64_t place = 0; place < call->rows * MAP * MAP; place++)
        for (int f = 0; f < FILTERS; f++) {
            int64_t i = place * FILTERS + f;
            int passed = filter(patches + place * TAPS, w + f * TAPS, b[f]) > 0.0f;
            doutput[i] = passed ? gradient[i] : 0.0f;
        }
    if (call->pass == SIFR_BACKWARD) /* both parts at once */
        look_weights(user, call);
}

/* --- dense: y = tanh(x W^T + b) ------------------------------------------------------------- */

struct dense {
    int64_t in, out;
};
static const struct dense dense_sizes[] = {{SEEN, 128}, {128, 64}};

static const struct sifr_param dense_params[][2] = {
    {{"dense.0.W", 2, {128, SEEN}, SIFR_NORMAL, 0.06, 1}, {"dense.0.b", 1, {128}, SIFR_ZERO, 0, 0}},
    {{"dense.1.W", 2, {64, 128}, SIFR_NORMAL, 0.09, 1}, {"dense.1.b", 1, {64}, SIFR_ZERO, 0, 0}},
};
/* y, and from the first part of backward on the gradient of x W^T + b. */
static const struct sifr_buffer dense_buffers[][1] = {
    {{.name = "y", .per_row = 128}},
    {{.name = "y", .per_row = 64}},
};

static void dense_forward(void *user, const struct sifr_call *call)
{
    const struct dense *size = user;
    float *y = call->buffers[0], *output = call->output;
    sifr_linear(call, call->rows, size->in, size->out, call->input, call->params[0],
                call->params[1], y);
    for (int64_t i = 0; i < call->rows * size->out; i++)
        output[i] = y[i] = tanhf(y[i]);
}

static void dense_weights(void *user, const struct sifr_call *call)
{
    const struct dense *size = user;
    sifr_linear_backward(call, call->rows, size->in, size->out, call->input, NULL, call->buffers[0],
                         NULL, call->grads[0], call->grads[1]);
}

static void dense_backward(void *user, const struct sifr_call *call)
{
    const struct dense *size = user;
    const float *gradient = call->gradient; /* (rows, out), then (rows, in) */
    float *y = call->buffers[0];
    for (int64_t i = 0; i < call->rows * size->out; i++)
        y[i] = gradient[i] * (1.0f - y[i] * y[i]);
    sifr_linear_backward(call, call->rows, size->in, size->out, NULL, call->params[0], y,
                         call->gradient, NULL, NULL);
    if (call->pass == SIFR_BACKWARD)
        dense_weights(user, call);
}

/* --- decide: softmax over the classes, weighted cross-entropy ------------------------------- */

static const struct sifr_param decide_params[] = {
    {.name = "decide.W", .dims = 2, .shape = {CLASSES, 64}, .init = SIFR_NORMAL, .scale = 0.1},
    {.name = "decide.b", .dims = 1, .shape = {CLASSES}},
};
static const struct sifr_buffer decide_buffers[] = {
    {.name = "logits", .per_row = CLASSES, .lifetime = SIFR_SCRATCH},
};

static int largest(const float *values, int count)
{
    int best = 0;
    for (int i = 1; i < count; i++)
        best = values[i] > values[best] ? i : best;
    return best;
}

/* Replace logits by probabilities; returns the cross-entropy with `class`. */
static double softmax(float *logits, int32_t class)
{
    float most = logits[largest(logits, CLASSES)], sum = 0.0f, own = logits[class] - most;
    for (int i = 0; i < CLASSES; i++)
        sum += logits[i] = expf(logits[i] - most);
    for (int i = 0; i < CLASSES; i++)
        logits[i] /= sum;
    return log((double)sum) - own;
}

/* The loss is the sum over the samples; sifr divides it by `count` below. An evaluation may measure
 * something else than training does: here, the weight of the wrong answers. */
static void decide_loss(void *user, const struct sifr_call *call)
{
    const int32_t *classes = call->inputs[INPUT_CLASS];
    const float *weights = call->inputs[INPUT_WEIGHT];
    float *logits = call->buffers[0];
    double loss = 0.0, wrong = 0.0;
    (void)user;
    sifr_linear(call, call->rows, 64, CLASSES, call->input, call->params[0], call->params[1],
                logits);
    for (int64_t row = 0; row < call->rows; row++) {
        float *some = logits + row * CLASSES, weight = weights[row];
        int right = largest(some, CLASSES) == classes[row];
        wrong += right ? 0.0 : weight;
        if (call->statistic) /* right answers of the step */
            call->statistic[0] += (float)right;
        loss += weight * softmax(some, classes[row]);
        some[classes[row]] -= 1.0f;
        for (int i = 0; i < CLASSES; i++)
            some[i] *= weight * call->loss_scale;
    }
    *call->loss = call->pass == SIFR_EVAL ? wrong : loss;
    if (call->pass == SIFR_LOSS)
        sifr_linear_backward(call, call->rows, 64, CLASSES, call->input, call->params[0], logits,
                             call->gradient, call->grads[0], call->grads[1]);
}

/* --- the model ------------------------------------------------------------------------------ */

static const struct sifr_unit units[] = {
    {.name = "look",
     .width = SEEN,
     PARAMS(look_params),
     BUFFERS(look_buffers),
     .forward = look_forward,
     .backward = look_backward,
     .weights = look_weights,
     .work = 2 * SEEN * TAPS},
    {.name = "dense 0",
     .user = (void *)&dense_sizes[0],
     .width = 128,
     PARAMS(dense_params[0]),
     BUFFERS(dense_buffers[0]),
     .forward = dense_forward,
     .backward = dense_backward,
     .weights = dense_weights},
    {.name = "dense 1",
     .user = (void *)&dense_sizes[1],
     .width = 64,
     PARAMS(dense_params[1]),
     BUFFERS(dense_buffers[1]),
     .forward = dense_forward,
     .backward = dense_backward,
     .weights = dense_weights},
    {.name = "decide",
     PARAMS(decide_params),
     BUFFERS(decide_buffers),
     .loss = decide_loss,
     .statistics = 1},
};

static const struct sifr_input inputs[INPUT_COUNT] = {
    [INPUT_PIXELS] = {.name = "pixels", .type = SIFR_F32, .count = PIXELS},
    [INPUT_CLASS] = {.name = "class", .type = SIFR_I32, .count = 1, .limit = CLASSES},
    [INPUT_WEIGHT] = {.name = "weight", .type = SIFR_F32, .count = 1},
};

static double count(void *user, int64_t batch, int64_t tokens, const void *const *data)
{
    const float *weights = data[INPUT_WEIGHT];
    double sum = 0.0;
    (void)user, (void)tokens;
    for (int64_t i = 0; i < batch; i++)
        sum += weights[i];
    return sum;
}

static const struct sifr_model model = {.size = sizeof model,
                                        .units = units,
                                        .unit_count = sizeof units / sizeof *units,
                                        .unit_size = sizeof *units,
                                        .inputs = inputs,
                                        .input_count = INPUT_COUNT,
                                        .input_size = sizeof *inputs,
                                        .count = count};

/* --- pictures ------------------------------------------------------------------------------- */

/* A number from 0 to 1 that depends on the sample and `which` only. */
static float chance(int64_t sample, int which)
{
    uint64_t x = (uint64_t)sample * 1024 + (uint64_t)which + 1;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (float)((x ^ x >> 31) >> 40) / (float)(1 << 24);
}

/* Whether a shape of radius r covers the point (x, y), seen from its center. */
static int covers(int class, float x, float y, float r)
{
    const float pen = 0.9f;
    float square = fmaxf(fabsf(x), fabsf(y)), round = sqrtf(x * x + y * y);
    int across = fabsf(y) < pen, down = fabsf(x) < pen;
    int rise = fabsf(x + y) < 1.4f * pen, fall = fabsf(x - y) < 1.4f * pen;
    if (square > r + pen)
        return 0;
    switch (class) {
    case 0: return across;
    case 1: return down;
    case 2: return rise;
    case 3: return fall;
    case 4: return across || down;
    case 5: return rise || fall;
    case 6: return round < r;
    case 7: return fabsf(round - r) < pen;
    case 8: return square < r;
    default: return fabsf(square - r) < pen;
    }
}

static void draw(int64_t sample, float *pixels, int32_t *class, float *weight)
{
    float x = 5.5f + 4.0f * chance(sample, 0), y = 5.5f + 4.0f * chance(sample, 1);
    float r = 3.0f + 2.0f * chance(sample, 2), noise = 0.2f + 0.6f * chance(sample, 3);
    *class = (int32_t)(chance(sample, 4) * CLASSES);
    *weight = 1.0f - noise;
    for (int i = 0; i < PIXELS; i++) {
        int ink = covers(*class, (float)(i % SIDE) - x, (float)(i / SIDE) - y, r);
        pixels[i] = (float)ink + noise * (2.0f * chance(sample, 5 + i) - 1.0f);
    }
}

/* The arrays of one call of sifr_step or sifr_eval. */
struct data {
    float *pixels, *weights; /* (micro-batches, BATCH, PIXELS), (micro-batches, BATCH) */
    int32_t *classes;
    const void *inputs[INPUT_COUNT];
    struct sifr_batch batch;
};

static int data_create(struct data *data, int64_t micro_batches)
{
    size_t samples = (size_t)micro_batches * BATCH;
    data->pixels = malloc(samples * PIXELS * sizeof *data->pixels);
    data->weights = malloc(samples * sizeof *data->weights);
    data->classes = malloc(samples * sizeof *data->classes);
    data->inputs[INPUT_PIXELS] = data->pixels;
    data->inputs[INPUT_CLASS] = data->classes;
    data->inputs[INPUT_WEIGHT] = data->weights;
    data->batch = (struct sifr_batch){.size = sizeof data->batch, .inputs = data->inputs, .own = 1};
    return data->pixels && data->weights && data->classes ? 0 : SIFR_MEMORY;
}

static void data_destroy(struct data *data)
{
    free(data->classes);
    free(data->weights);
    free(data->pixels);
}

/* Draw this rank's micro-batches, the first of which has sample number `first`. */
static void data_draw(struct data *data, const struct sifr_trainer *trainer, int64_t first,
                      int64_t micro_batches)
{
    int64_t at = 0;
    for (int64_t m = 0; m < micro_batches; m++)
        for (int64_t s = 0; s < BATCH && sifr_is_mine(trainer, m); s++, at++)
            draw(first + m * BATCH + s, data->pixels + at * PIXELS, data->classes + at,
                 data->weights + at);
}

/* --- training ------------------------------------------------------------------------------- */

struct setup {
    struct sifr_job job;
    struct sifr_options options;
    int steps;
    const char *save;                /* file for the parameters at the end; NULL: none */
    const char *resume, *checkpoint; /* folder to start from, folder to save to at the end */
};

static int train_steps(struct sifr_context *context, struct sifr_trainer *trainer,
                       const struct setup *setup, struct data *data)
{
    struct sifr_result result = {.size = sizeof result};
    int64_t step = 0;
    size_t none = 0;
    float right = 0.0f;
    int status = 0;
    if (setup->resume)
        status = sifr_resume(trainer, setup->resume, &step, NULL, &none);
    for (; status == 0 && step < setup->steps; step++) {
        data_draw(data, trainer, step * MICRO_BATCHES * BATCH, MICRO_BATCHES);
        status = sifr_step(trainer, &data->batch, 3e-3, &result);
        if (status == 0)
            status = sifr_statistic(trainer, "decide", &right, 1);
        if (status == 0 && sifr_rank(context) == 0 && (step % 50 == 0 || step + 1 == setup->steps))
            printf("step %3lld  loss %.4f  weights %.2f  right %.0f of %d\n", (long long)step + 1,
                   result.loss, result.count, (double)right, MICRO_BATCHES * BATCH);
    }
    if (status == 0 && setup->save)
        status = sifr_save(trainer, setup->save);
    if (status == 0 && setup->checkpoint)
        status = sifr_checkpoint(trainer, setup->checkpoint, NULL, 0);
    return status;
}

/* The part of new pictures that is recognized, by weight. */
static int test(struct sifr_context *context, struct sifr_trainer *trainer,
                const struct setup *setup, struct data *data)
{
    const int64_t unseen = INT64_C(1) << 40;
    struct sifr_result result = {.size = sizeof result};
    data_draw(data, trainer, unseen, TEST_MICRO_BATCHES);
    int status = sifr_eval(trainer, &data->batch, TEST_MICRO_BATCHES, &result);
    if (status != 0)
        return status;
    double accuracy = 1.0 - result.loss;
    if (sifr_rank(context) == 0)
        printf("accuracy %.4f on %d new pictures; by chance %.4f\n", accuracy,
               TEST_MICRO_BATCHES * BATCH, 1.0 / CLASSES);
    return setup->steps >= 100 && accuracy < 0.6 ? SIFR_FORMAT : 0;
}

/* One rank, from start to end. */
static int train(struct sifr_context *context, void *user)
{
    const struct setup *setup = user;
    struct sifr_trainer *trainer;
    struct data data;
    int status = sifr_trainer_create(context, &model, &setup->options, &trainer);
    if (status != 0)
        return status;
    if (sifr_rank(context) == 0)
        printf("%lld parameters, %d ranks, ZeRO stage %d\n", (long long)sifr_param_count(trainer),
               sifr_ranks(context), setup->options.stage);
    status = data_create(&data, TEST_MICRO_BATCHES);
    if (status == 0)
        status = train_steps(context, trainer, setup, &data);
    if (status == 0)
        status = test(context, trainer, setup, &data);
    data_destroy(&data);
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
            "usage: %s [--ranks N] [--stage 0..3] [--servers N] [--pipeline N] [--schedule 0..3]\n"
            "       [--prefetch N] [--bf16] [--recompute] [--steps N] [--save FILE]\n"
            "       [--resume FOLDER] [--checkpoint FOLDER]\n",
            program);
    return 2;
}

/* 0, or -1 for an option that is unknown or has no value. */
static int read_options(int argc, char **argv, struct setup *setup)
{
    struct sifr_options *o = &setup->options;
    int schedule = SIFR_1F1B;
    const struct {
        const char *key;
        int *number;
        const char **text;
    } known[] = {
        {"--ranks", &setup->job.ranks, NULL}, {"--stage", &o->stage, NULL},
        {"--servers", &o->servers, NULL},     {"--pipeline", &o->pipeline, NULL},
        {"--schedule", &schedule, NULL},      {"--prefetch", &o->prefetch, NULL},
        {"--steps", &setup->steps, NULL},     {"--save", NULL, &setup->save},
        {"--resume", NULL, &setup->resume},   {"--checkpoint", NULL, &setup->checkpoint},
    };
    for (int i = 1; i < argc; i++) {
        size_t k = 0;
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
    return 0;
}

int main(int argc, char **argv)
{
    struct setup setup = {.job = {.size = sizeof setup.job, .log = print_line}, .steps = 200};
    sifr_options_init(&setup.options);
    setup.options.batch = BATCH;
    setup.options.tokens = 1;
    setup.options.micro_batches = MICRO_BATCHES;
    setup.options.seed = 1;
    if (read_options(argc, argv, &setup) != 0)
        return usage(argv[0]);
    int status = sifr_run(&setup.job, train, &setup);
    if (status == SIFR_FORMAT)
        fprintf(stderr, "the model has not learned\n");
    return status != 0;
}
