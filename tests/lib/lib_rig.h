/* lib_rig -- a small model for tests of the public library: a tied table as embedding and head, and
 * two hidden units with a residual, a split backward pass and a statistic. */
#ifndef TESTS_LIB_LIB_RIG_H
#define TESTS_LIB_LIB_RIG_H
#include "testing.h"
#include <stdlib.h>

#include "sifr.h"

enum { WIDTH = 6, HIDDEN = 9, VOCAB = 11, BATCH = 2, TOKENS = 5, ROWS = BATCH * TOKENS };
enum { MICRO_BATCHES = 3, STEP_ROWS = MICRO_BATCHES * ROWS };

/* --- embed ---------------------------------------------------------------------------------- */

static inline void embed_forward(void *user, const struct sifr_call *call)
{
    const float *table = call->params[0];
    float *output = call->output;
    (void)user;
    for (int64_t i = 0; i < call->rows * WIDTH; i++)
        output[i] = table[call->ids[i / WIDTH] * WIDTH + i % WIDTH];
}

static inline void embed_backward(void *user, const struct sifr_call *call)
{
    float *table = call->grads[0];
    const float *gradient = call->gradient;
    (void)user;
    memset(table, 0, VOCAB * WIDTH * sizeof *table);
    for (int64_t i = 0; i < call->rows * WIDTH; i++)
        table[call->ids[i / WIDTH] * WIDTH + i % WIDTH] += gradient[i];
}

/* --- hidden: output = relu(input W^T) V^T, added to the input -------------------------------- */

enum { HIDDEN_UNITS, HIDDEN_D, HIDDEN_DY, HIDDEN_DX };
static const struct sifr_buffer hidden_buffers[] = {
    {.name = "units", .per_row = HIDDEN},
    {.name = "d units", .per_row = HIDDEN},
    {.name = "dy", .per_row = WIDTH},
    {.name = "dx", .per_row = WIDTH, .lifetime = SIFR_SCRATCH},
};

static inline void hidden_forward(void *user, const struct sifr_call *call)
{
    float *units = call->buffers[HIDDEN_UNITS];
    (void)user;
    sifr_linear(call, call->rows, WIDTH, HIDDEN, call->input, call->params[0], NULL, units);
    for (int64_t i = 0; i < call->rows * HIDDEN; i++) {
        units[i] = units[i] > 0 ? units[i] : 0;
        if (call->statistic) /* how much each hidden unit was active, and the number of rows */
            call->statistic[i % HIDDEN] += units[i];
    }
    if (call->statistic)
        call->statistic[HIDDEN] += (float)call->rows;
    sifr_linear(call, call->rows, HIDDEN, WIDTH, units, call->params[1], NULL, call->output);
}

static inline void hidden_weights(void *user, const struct sifr_call *call)
{
    (void)user;
    sifr_linear_backward(call, call->rows, HIDDEN, WIDTH, call->buffers[HIDDEN_UNITS], NULL,
                         call->buffers[HIDDEN_DY], NULL, call->grads[1], NULL);
    sifr_linear_backward(call, call->rows, WIDTH, HIDDEN, call->input, NULL,
                         call->buffers[HIDDEN_D], NULL, call->grads[0], NULL);
}

static inline void hidden_backward(void *user, const struct sifr_call *call)
{
    const float *units = call->buffers[HIDDEN_UNITS];
    float *d = call->buffers[HIDDEN_D], *dx = call->buffers[HIDDEN_DX], *gradient = call->gradient;
    memcpy(call->buffers[HIDDEN_DY], gradient, (size_t)call->rows * WIDTH * sizeof *gradient);
    sifr_linear_backward(call, call->rows, HIDDEN, WIDTH, NULL, call->params[1], gradient, d, NULL,
                         NULL);
    for (int64_t i = 0; i < call->rows * HIDDEN; i++)
        d[i] = units[i] > 0 ? d[i] : 0;
    sifr_linear_backward(call, call->rows, WIDTH, HIDDEN, NULL, call->params[0], d, dx, NULL, NULL);
    for (int64_t i = 0; i < call->rows * WIDTH; i++)
        gradient[i] += dx[i];
    if (call->pass == SIFR_BACKWARD)
        hidden_weights(user, call);
}

/* --- head ----------------------------------------------------------------------------------- */

static const struct sifr_buffer head_buffers[] = {
    {.name = "logits", .per_row = VOCAB, .lifetime = SIFR_SCRATCH},
    {.name = "losses", .per_row = 1, .type = SIFR_F64, .lifetime = SIFR_SCRATCH},
};

static inline void head_loss(void *user, const struct sifr_call *call)
{
    void *logits = call->buffers[0];
    (void)user;
    sifr_linear(call, call->rows, WIDTH, VOCAB, call->input, call->params[0], NULL, logits);
    sifr_cross_entropy(call, VOCAB, call->labels, logits, call->buffers[1]);
    if (call->pass == SIFR_LOSS)
        sifr_linear_backward(call, call->rows, WIDTH, VOCAB, call->input, call->params[0], logits,
                             call->gradient, call->grads[0], NULL);
}

/* --- the model ------------------------------------------------------------------------------ */

#define PARAMS(array) \
    .params = (array), .param_count = sizeof(array) / sizeof *(array), .param_size = sizeof *(array)
#define BUFFERS(array)                                                   \
    .buffers = (array), .buffer_count = sizeof(array) / sizeof *(array), \
    .buffer_size = sizeof *(array)

static const struct sifr_param table_params[] = {
    {"table", 2, {VOCAB, WIDTH}, SIFR_NORMAL, 0.3, 1, 0}};
static const struct sifr_param hidden_params[2][2] = {
    {{"a.in", 2, {HIDDEN, WIDTH}, SIFR_NORMAL, 0.5, 1, 1},
     {"a.out", 2, {WIDTH, HIDDEN}, SIFR_NORMAL, 0.5, 1, 1}},
    {{"b.in", 2, {HIDDEN, WIDTH}, SIFR_NORMAL, 0.5, 1, 1},
     {"b.out", 2, {WIDTH, HIDDEN}, SIFR_NORMAL, 0.5, 1, 1}},
};

#define HIDDEN_UNIT(name_, params_)                                                        \
    {                                                                                      \
        .name = (name_), .width = WIDTH, PARAMS(params_), BUFFERS(hidden_buffers),         \
        .forward = hidden_forward, .backward = hidden_backward, .weights = hidden_weights, \
        .residual = SIFR_ADD_INPUT, .statistics = HIDDEN + 1                               \
    }

static const struct sifr_unit good_units[] = {
    {.name = "embed",
     .width = WIDTH,
     PARAMS(table_params),
     .forward = embed_forward,
     .backward = embed_backward},
    HIDDEN_UNIT("a", hidden_params[0]),
    HIDDEN_UNIT("b", hidden_params[1]),
    {.name = "head", PARAMS(table_params), BUFFERS(head_buffers), .loss = head_loss},
};
enum { UNITS = sizeof good_units / sizeof *good_units };

static inline struct sifr_model model_of(const struct sifr_unit *units)
{
    return (struct sifr_model){.size = sizeof(struct sifr_model),
                               .units = units,
                               .unit_count = UNITS,
                               .unit_size = sizeof *units,
                               .vocab = VOCAB};
}

static inline struct sifr_options small_options(void)
{
    struct sifr_options options;
    sifr_options_init(&options);
    options.batch = BATCH;
    options.tokens = TOKENS;
    options.micro_batches = MICRO_BATCHES;
    options.seed = 7;
    return options;
}

/* The whole data of a step, which depends on its number only. */
static inline void fill_step(int64_t step, int32_t ids[STEP_ROWS], int32_t labels[STEP_ROWS])
{
    for (int i = 0; i < STEP_ROWS; i++) {
        ids[i] = (int32_t)((step * 31 + i * i * 7 + i) % VOCAB);
        labels[i] = i % 13 == 5 ? -1 : (ids[i] * 3 + 1) % VOCAB;
    }
}

static inline struct sifr_context *join_alone(void)
{
    struct sifr_job job = {.size = sizeof job, .threads = 1};
    struct sifr_context *context;
    assert_int_equal(sifr_join(&job, &context), 0);
    return context;
}

#endif
