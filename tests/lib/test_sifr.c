/* The public library: errors and their messages, tied parameters, saving. examples/ngram.c shows
 * training. */
#include "testing.h"
#include <sys/stat.h>
#include <unistd.h>

#include "sifr.h"

enum { WIDTH = 6, VOCAB = 11, TOKENS = 5 };

static void pass_forward(void *user, const struct sifr_run *run)
{
    (void)user;
    for (int64_t i = 0; i < run->rows * WIDTH; i++)
        run->output[i] = run->params[0][run->ids[i / WIDTH] * WIDTH + i % WIDTH];
}

static void pass_backward(void *user, const struct sifr_run *run)
{
    (void)user;
    memset(run->grads[0], 0, VOCAB * WIDTH * sizeof(float));
    for (int64_t i = 0; i < run->rows * WIDTH; i++)
        run->grads[0][run->ids[i / WIDTH] * WIDTH + i % WIDTH] += run->gradient[i];
}

static void head_loss(void *user, const struct sifr_run *run)
{
    sifr_linear(run, run->rows, WIDTH, VOCAB, run->input, run->params[0], NULL, run->kept[0]);
    sifr_cross_entropy(run, VOCAB, run->kept[0], user);
    if (run->gradient)
        sifr_linear_backward(run, run->rows, WIDTH, VOCAB, run->input, run->params[0], run->kept[0],
                             run->gradient, run->grads[0], NULL);
}

/* Embedding and head share one table, tied by its name. */
static const struct sifr_param table[] = {{.name = "table",
                                           .dims = 2,
                                           .shape = {VOCAB, WIDTH},
                                           .init = SIFR_NORMAL,
                                           .scale = 0.3,
                                           .decay = 1}};
static double losses[TOKENS];

static struct sifr_unit good_units[] = {
    {.name = "embed",
     .params = table,
     .param_count = 1,
     .forward = pass_forward,
     .backward = pass_backward},
    {.name = "head",
     .user = losses,
     .params = table,
     .param_count = 1,
     .kept = {VOCAB},
     .loss = head_loss},
};
static const struct sifr_model good = {good_units, 2, WIDTH, VOCAB};

static struct sifr_options small(void)
{
    struct sifr_options options = sifr_options_default();
    options.tokens = TOKENS;
    return options;
}

static struct sifr_context *open_context(void)
{
    struct sifr_context *context;
    assert_int_equal(sifr_context_create(1, NULL, NULL, &context), 0);
    return context;
}

/* One table for embedding and head: both uses contribute to the gradient, otherwise the loss would
 * not halve so fast. */
static void test_tied_parameters_learn(void **state)
{
    (void)state;
    struct sifr_context *context = open_context();
    struct sifr_trainer *trainer;
    struct sifr_options options = small();
    struct sifr_result result;
    const int32_t ids[TOKENS] = {1, 2, 3, 4, 5}, labels[TOKENS] = {2, 3, 4, 5, -1};
    double before, after;
    assert_int_equal(sifr_trainer_create(context, &good, &options, &trainer), 0);
    assert_int_equal(sifr_param_count(trainer), VOCAB * WIDTH);
    assert_int_equal(sifr_eval(trainer, ids, labels, &before), 0);
    for (int i = 0; i < 30; i++)
        assert_int_equal(sifr_step(trainer, ids, labels, 3e-2, &result), 0);
    assert_int_equal(sifr_eval(trainer, ids, labels, &after), 0);
    assert_true(after < 0.5 * before);
    assert_true(sifr_memory(trainer, "optimizer") >= 2 * VOCAB * WIDTH * sizeof(float));
    assert_int_equal(sifr_memory(trainer, "nonsense"), 0);
    sifr_trainer_destroy(trainer);
    sifr_context_destroy(context);
}

static void test_parameters_are_read_by_name_and_saved(void **state)
{
    (void)state;
    struct sifr_context *context = open_context();
    struct sifr_trainer *trainer;
    struct sifr_options options = small();
    float values[VOCAB * WIDTH], back[VOCAB * WIDTH];
    char path[] = "/tmp/sifr-lib-XXXXXX";
    struct stat info;
    for (int i = 0; i < VOCAB * WIDTH; i++)
        values[i] = (float)i * 0.25f;
    assert_int_equal(sifr_trainer_create(context, &good, &options, &trainer), 0);
    assert_int_equal(sifr_write(trainer, "table", values, VOCAB * WIDTH), 0);
    assert_int_equal(sifr_read(trainer, "table", back, VOCAB * WIDTH), 0);
    assert_memory_equal(values, back, sizeof values);
    assert_int_not_equal(sifr_read(trainer, "tabel", back, VOCAB * WIDTH), 0);
    assert_non_null(strstr(sifr_error(context), "no parameter 'tabel'"));
    assert_int_not_equal(sifr_read(trainer, "table", back, 3), 0);
    assert_non_null(strstr(sifr_error(context), "66 elements"));
    close(mkstemp(path));
    assert_int_equal(sifr_save(trainer, path), 0);
    assert_string_equal(sifr_error(context), "");
    assert_int_equal(stat(path, &info), 0);
    assert_true(info.st_size > (off_t)sizeof values);
    unlink(path);
    assert_int_not_equal(sifr_save(trainer, "/nowhere/at/all"), 0);
    assert_non_null(strstr(sifr_error(context), "/nowhere/at/all"));
    sifr_trainer_destroy(trainer);
    sifr_context_destroy(context);
}

static void assert_refused(struct sifr_context *context, const struct sifr_model *model,
                           const struct sifr_options *options, const char *message)
{
    struct sifr_trainer *trainer;
    assert_int_not_equal(sifr_trainer_create(context, model, options, &trainer), 0);
    if (!strstr(sifr_error(context), message))
        fail_msg("expected '%s' in '%s'", message, sifr_error(context));
}

static void test_wrong_models_are_refused(void **state)
{
    (void)state;
    struct sifr_context *context = open_context();
    struct sifr_options options = small();
    struct sifr_param bad[] = {table[0]};
    struct sifr_unit units[2];
    const struct sifr_model model = {units, 2, WIDTH, VOCAB};

    memcpy(units, good_units, sizeof units);
    units[1].loss = NULL;
    assert_refused(context, &model, &options, "no loss function");

    memcpy(units, good_units, sizeof units);
    units[0].backward = NULL;
    assert_refused(context, &model, &options, "no forward or no backward");

    memcpy(units, good_units, sizeof units);
    units[1].params = bad;
    bad[0].shape[0] = 7;
    assert_refused(context, &model, &options, "another shape");
    bad[0].shape[0] = -1;
    assert_refused(context, &model, &options, "shape[0] is -1");
    bad[0].dims = 9;
    assert_refused(context, &model, &options, "dims is 9");

    options.batch = 0;
    assert_refused(context, &good, &options, "at least 1");
    sifr_context_destroy(context);
}

static void test_ids_outside_the_vocabulary_are_refused(void **state)
{
    (void)state;
    struct sifr_context *context = open_context();
    struct sifr_trainer *trainer;
    struct sifr_options options = small();
    struct sifr_result result;
    int32_t ids[TOKENS] = {0, 1, 2, VOCAB, 0}, labels[TOKENS] = {0, 0, 0, 0, 0};
    assert_int_equal(sifr_trainer_create(context, &good, &options, &trainer), 0);
    assert_int_not_equal(sifr_step(trainer, ids, labels, 1e-3, &result), 0);
    assert_non_null(strstr(sifr_error(context), "id 11 at index 3"));
    ids[3] = 3;
    labels[1] = -2;
    assert_int_not_equal(sifr_step(trainer, ids, labels, 1e-3, &result), 0);
    assert_non_null(strstr(sifr_error(context), "label -2"));
    labels[1] = -1;
    assert_int_equal(sifr_step(trainer, ids, labels, 1e-3, &result), 0);
    sifr_trainer_destroy(trainer);
    sifr_context_destroy(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tied_parameters_learn),
        cmocka_unit_test(test_parameters_are_read_by_name_and_saved),
        cmocka_unit_test(test_wrong_models_are_refused),
        cmocka_unit_test(test_ids_outside_the_vocabulary_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
