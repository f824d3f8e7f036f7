/* The gradient noise scale of a linear regression, whose answer is known.
 *
 * A sample is x, d standard normal numbers, and y = x w* + s e with standard normal e. The loss is
 * (x w - y)^2 / 2, so with u = w - w* the gradient of a sample is x (x u) - s e x. Over all samples
 *
 *     G = u,   tr S = (d + 1) |u|^2 + d s^2.
 *
 * The learning rate is 0, so u stays. A sample may be masked: it has no loss and no gradient. */
#include <math.h>
#include "testing.h"
#include "base/rng.h"
#include "sifr.h"

enum { D = 20, BATCH = 4, MICRO_BATCHES = 8, SAMPLES = BATCH * MICRO_BATCHES, STEPS = 1000 };
enum { INPUT_X, INPUT_Y, INPUT_VALID };
static const double S = 0.7;

static void pass_on(void *user, const struct sifr_call *call)
{
    (void)user;
    memcpy(call->output, call->inputs[INPUT_X], (size_t)call->rows * D * sizeof(float));
}

static void nothing(void *user, const struct sifr_call *call)
{
    (void)user, (void)call;
}

static void regress(void *user, const struct sifr_call *call)
{
    const float *x = call->input, *y = call->inputs[INPUT_Y], *w = call->params[0];
    const int32_t *valid = call->inputs[INPUT_VALID];
    float *dw = call->pass == SIFR_LOSS ? call->grads[0] : NULL;
    (void)user;
    *call->loss = 0;
    for (int i = 0; dw && i < D; i++)
        dw[i] = 0;
    for (int64_t row = 0; row < call->rows; row++, x += D) {
        float error = -y[row];
        for (int i = 0; i < D; i++)
            error += x[i] * w[i];
        *call->loss += valid[row] ? 0.5 * error * error : 0;
        for (int i = 0; dw && valid[row] && i < D; i++)
            dw[i] += call->loss_scale * error * x[i];
    }
    if (dw)
        memset(call->gradient, 0, (size_t)call->rows * D * sizeof(float));
}

static double count_valid(void *user, int64_t batch, int64_t tokens, const void *const *inputs)
{
    double count = 0;
    (void)user, (void)tokens;
    for (int64_t i = 0; i < batch; i++)
        count += ((const int32_t *)inputs[INPUT_VALID])[i];
    return count;
}

static const struct sifr_param weight = {.name = "w", .dims = 1, .shape = {D}, .init = SIFR_ONE};
static const struct sifr_unit units[] = {
    {.name = "x", .width = D, .forward = pass_on, .backward = nothing},
    {.name = "regress",
     .params = &weight,
     .param_count = 1,
     .param_size = sizeof weight,
     .loss = regress},
};
static const struct sifr_input inputs[] = {{.name = "x", .type = SIFR_F32, .count = D},
                                           {.name = "y", .type = SIFR_F32, .count = 1},
                                           {.name = "valid", .type = SIFR_I32, .count = 1}};

struct step_data {
    float x[SAMPLES][D], y[SAMPLES];
    int32_t valid[SAMPLES];
};

/* w* is 0 but for its first element, and w is 1 everywhere. */
static const float TRUE_W0 = 3;

static void draw(struct step_data *data, int64_t step, double masked)
{
    struct rng rng = rng_stream(3, "regression");
    for (int i = 0; i < SAMPLES; i++) {
        uint64_t at = (uint64_t)(step * SAMPLES + i) * (D + 2);
        for (int k = 0; k < D; k++)
            data->x[i][k] = (float)rng_normal(rng, at + (uint64_t)k);
        data->y[i] = TRUE_W0 * data->x[i][0] + (float)(S * rng_normal(rng, at + D));
        data->valid[i] = rng_uniform(rng, at + D + 1) >= masked;
    }
}

struct job {
    double masked;
    struct sifr_options options;
    double square, trace; /* means over the steps */
    double sequences;     /* mean of samples / valid samples */
};

static int measure(struct sifr_context *context, void *user)
{
    struct job *job = user, mine = *job;
    const struct sifr_model model = {.size = sizeof model,
                                     .units = units,
                                     .unit_count = 2,
                                     .unit_size = sizeof *units,
                                     .inputs = inputs,
                                     .input_count = 3,
                                     .input_size = sizeof *inputs,
                                     .count = count_valid};
    struct sifr_trainer *trainer;
    struct sifr_result result = {.size = sizeof result};
    assert_int_equal(sifr_trainer_create(context, &model, &job->options, &trainer), 0);
    for (int64_t step = 0; step < STEPS; step++) {
        static _Thread_local struct step_data data;
        const void *const arrays[] = {data.x, data.y, data.valid};
        const struct sifr_batch batch = {.size = sizeof batch, .inputs = arrays};
        draw(&data, step, job->masked);
        assert_int_equal(sifr_step(trainer, &batch, 0, &result), 0);
        mine.square += result.noise_square / STEPS;
        mine.trace += result.noise_trace / STEPS;
        mine.sequences += SAMPLES / result.count / STEPS;
    }
    sifr_trainer_destroy(trainer);
    if (sifr_rank(context) == 0)
        *job = mine;
    return 0;
}

static struct job run(int ranks, int stage, int local, double masked)
{
    const struct sifr_job job = {.size = sizeof job, .ranks = ranks, .threads = 1};
    struct job regression = {.masked = masked};
    sifr_options_init(&regression.options);
    regression.options.batch = BATCH;
    regression.options.tokens = 1;
    regression.options.micro_batches = MICRO_BATCHES;
    regression.options.stage = stage;
    regression.options.sum_locally = local;
    regression.options.noise_scale = 1;
    assert_int_equal(sifr_run(&job, measure, &regression), 0);
    return regression;
}

static void expect(const char *what, double found, double wanted)
{
    print_message("%s %.4f, the answer is %.4f (%+.1f %%)\n", what, found, wanted,
                  100 * (found / wanted - 1));
    if (!(fabs(found / wanted - 1) < 0.05))
        fail_msg("%s: %g instead of %g", what, found, wanted);
}

static void test_the_answer_is_found(void **state)
{
    double u2 = D - 1 + (1 - TRUE_W0) * (1 - TRUE_W0), trace = (D + 1) * u2 + D * S * S;
    (void)state;
    for (int masked = 0; masked < 2; masked++) {
        struct job found = run(1, 0, 0, masked ? 0.4 : 0);
        expect("square of the gradient", found.square, u2);
        expect("trace of the covariance", found.trace, trace * found.sequences);
        expect("noise scale", found.trace / found.square, trace * found.sequences / u2);
    }
}

static void test_layouts_have_the_same_bits(void **state)
{
    struct job one = run(1, 0, 0, 0.4);
    (void)state;
    for (int stage = 0; stage <= 3; stage++)
        for (int ranks = 2; ranks <= 4; ranks += 2) {
            struct job many = run(ranks, stage, 0, 0.4);
            assert_memory_equal(&many.square, &one.square, sizeof one.square);
            assert_memory_equal(&many.trace, &one.trace, sizeof one.trace);
        }
}

/* Workers that sum their own micro-batches measure the same, up to rounding. */
static void test_local_sums_measure_the_same(void **state)
{
    struct job one = run(1, 0, 0, 0.4), local = run(3, 2, 1, 0.4), other = run(3, 0, 1, 0.4);
    (void)state;
    assert_true(fabs(local.square / one.square - 1) < 1e-5);
    assert_true(fabs(local.trace / one.trace - 1) < 1e-5);
    assert_memory_equal(&local.trace, &other.trace, sizeof other.trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_answer_is_found),
        cmocka_unit_test(test_layouts_have_the_same_bits),
        cmocka_unit_test(test_local_sums_measure_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
