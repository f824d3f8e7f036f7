/* The public library on one rank: errors and their messages, tied parameters, files, structs of
 * other versions. */
#include "lib_rig.h"
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

static struct sifr_trainer *open_trainer(struct sifr_context *context)
{
    struct sifr_options options = small_options();
    struct sifr_model model = model_of(good_units);
    struct sifr_trainer *trainer;
    assert_int_equal(sifr_trainer_create(context, &model, &options, &trainer), 0);
    return trainer;
}

static void assert_error(const struct sifr_context *context, const char *message)
{
    if (!strstr(sifr_error(context), message))
        fail_msg("expected '%s' in '%s'", message, sifr_error(context));
}

/* One table for embedding and head: both uses contribute to the gradient, otherwise the loss would
 * not halve so fast. */
static void test_tied_parameters_learn(void **state)
{
    (void)state;
    struct sifr_context *context = join_alone();
    struct sifr_trainer *trainer = open_trainer(context);
    struct sifr_result before = {.size = sizeof before}, after = before, result = before;
    int32_t ids[STEP_ROWS], labels[STEP_ROWS];
    fill_step(0, ids, labels);
    assert_int_equal(sifr_param_count(trainer), VOCAB * WIDTH + 4 * HIDDEN * WIDTH);
    assert_int_equal(sifr_eval_tokens(trainer, ids, labels, MICRO_BATCHES, &before), 0);
    for (int i = 0; i < 40; i++)
        assert_int_equal(sifr_step_tokens(trainer, ids, labels, 3e-2, &result), 0);
    assert_int_equal(sifr_eval_tokens(trainer, ids, labels, MICRO_BATCHES, &after), 0);
    assert_true(after.loss < 0.5 * before.loss);
    assert_true(after.count == before.count && after.count == result.count);
    assert_true(sifr_memory(trainer, SIFR_OPTIMIZER) >= 2 * VOCAB * WIDTH * sizeof(float));
    assert_int_equal(sifr_memory(trainer, (enum sifr_memory_kind)99), 0);
    sifr_trainer_destroy(trainer);
    sifr_leave(context);
}

static void test_parameters_are_read_by_name_saved_and_loaded(void **state)
{
    (void)state;
    struct sifr_context *context = join_alone();
    struct sifr_trainer *trainer = open_trainer(context), *other;
    float values[VOCAB * WIDTH], back[VOCAB * WIDTH];
    char path[] = "/tmp/sifr-lib-XXXXXX";
    struct stat info;
    for (int i = 0; i < VOCAB * WIDTH; i++)
        values[i] = (float)i * 0.25f;
    assert_int_equal(sifr_write(trainer, "table", values, VOCAB * WIDTH), 0);
    assert_int_equal(sifr_read(trainer, "table", back, VOCAB * WIDTH), 0);
    assert_memory_equal(values, back, sizeof values);
    assert_int_equal(sifr_read(trainer, "tabel", back, VOCAB * WIDTH), SIFR_CONFIG);
    assert_error(context, "no parameter 'tabel'");
    assert_int_equal(sifr_read(trainer, "table", back, 3), SIFR_CONFIG);
    assert_error(context, "66 elements");
    close(mkstemp(path));
    assert_int_equal(sifr_save(trainer, path), 0);
    assert_string_equal(sifr_error(context), "");
    assert_int_equal(stat(path, &info), 0);
    assert_true(info.st_size > (off_t)sizeof values);
    other = open_trainer(context); /* two trainers of one context */
    assert_int_equal(sifr_load(other, path), 0);
    assert_int_equal(sifr_read(other, "table", back, VOCAB * WIDTH), 0);
    assert_memory_equal(values, back, sizeof values);
    unlink(path);
    assert_int_equal(sifr_save(trainer, "/nowhere/at/all"), SIFR_IO);
    assert_error(context, "/nowhere/at/all");
    assert_int_equal(sifr_load(trainer, "/nowhere/at/all"), SIFR_IO);
    sifr_trainer_destroy(trainer);
    sifr_trainer_destroy(other);
    sifr_leave(context);
}

static void assert_refused(struct sifr_context *context, const struct sifr_unit *units,
                           const char *message)
{
    struct sifr_options options = small_options();
    struct sifr_model model = model_of(units);
    struct sifr_trainer *trainer;
    assert_int_equal(sifr_trainer_create(context, &model, &options, &trainer), SIFR_CONFIG);
    assert_error(context, message);
}

#define REFUSED(change, message)                   \
    do {                                           \
        memcpy(units, good_units, sizeof units);   \
        change;                                    \
        assert_refused(context, units, (message)); \
    } while (0)

static void test_wrong_models_are_refused(void **state)
{
    (void)state;
    struct sifr_context *context = join_alone();
    struct sifr_unit units[UNITS];
    struct sifr_param bad[] = {table_params[0]};
    struct sifr_buffer wrong[] = {{.name = "nothing", .per_row = -1}};
    REFUSED(units[3].loss = NULL, "unit 'head' is the last one and has no loss function");
    REFUSED(units[1].loss = head_loss, "unit 'a' has a loss function, but it is not the last one");
    REFUSED(units[0].backward = NULL, "unit 'embed' has no forward or no backward");
    REFUSED(units[0].name = NULL, "a unit needs a name");
    REFUSED(units[2].name = "a", "two units have the name 'a'");
    REFUSED(units[0].width = 0, "unit 'embed': width is 0");
    REFUSED(units[1].width = WIDTH + 1, "unit 'a' adds its input, so its width must be");
    REFUSED(units[1].residual = 9, "unit 'a': residual is 9; it has 4 buffers");
    REFUSED(units[1].residual = SIFR_ADD_BUFFER(0), "unit 'a' adds its buffer 'units'");
    REFUSED(units[0].adds = 1, "unit 'embed' is the first one");
    REFUSED(units[1].param_count = 99, "a: 99 entries");
    REFUSED(units[1].param_size = 4, "a: the size of an entry is too small");
    REFUSED(units[1].params = NULL, "a: there is no table");
    REFUSED((units[1].buffers = wrong, units[1].buffer_count = 1), "unit 'a', buffer 'nothing'");
    REFUSED((units[3].params = bad, bad[0].shape[0] = 7), "another shape in the unit that shares");
    REFUSED((units[3].params = bad, bad[0].shape[0] = -1), "parameter 'table': shape[0] is -1");
    REFUSED((units[3].params = bad, bad[0].dims = 9), "parameter 'table': dims is 9");
    bad[0] = table_params[0];
    REFUSED((units[3].params = bad, bad[0].name = "__metadata__"), "files cannot hold this name");
    REFUSED((units[3].params = bad, bad[0].name = "caf\xe9"), "files cannot hold this name");
    sifr_leave(context);
}

static void refuse_options(struct sifr_context *context, struct sifr_options options,
                           const char *message)
{
    struct sifr_model model = model_of(good_units);
    struct sifr_trainer *trainer;
    assert_int_equal(sifr_trainer_create(context, &model, &options, &trainer), SIFR_CONFIG);
    assert_error(context, message);
}

#define WITH(field, value) ((o = small_options()), (o.field = (value)), o)

static void test_wrong_options_are_refused(void **state)
{
    (void)state;
    struct sifr_context *context = join_alone();
    struct sifr_options o;
    refuse_options(context, WITH(batch, 0), "must be at least 1");
    refuse_options(context, WITH(stage, 4), "stage is 4; ZeRO stages are 0 to 3");
    refuse_options(context, WITH(eps, 0), "eps above 0");
    refuse_options(context, WITH(beta1, 1.5), "beta1");
    refuse_options(context, WITH(clip, NAN), "clip must be at least 0");
    refuse_options(context, WITH(precision, SIFR_I32), "precision must be");
    refuse_options(context, WITH(stochastic, 1), "stochastic needs precision");
    refuse_options(context, WITH(pipeline, 2), "pipeline is 2, which does not divide 1 ranks");
    refuse_options(context, WITH(servers, 1), "1 servers leave no worker of 1 ranks");
    refuse_options(context, WITH(size, 8), "sifr_options: wrong size");
    sifr_leave(context);
}

/* A program of a later version has longer structs: fields that are 0 are accepted, others are not.
 * A program of this version gets no more than it has room for. */
static void test_structs_of_other_versions(void **state)
{
    (void)state;
    struct {
        struct sifr_options known;
        uint64_t later[4];
    } longer = {.known = small_options()};
    struct {
        struct sifr_result known;
        uint64_t guard;
    } result = {.known = {.size = offsetof(struct sifr_result, skipped)}, .guard = 42};
    struct {
        struct sifr_unit known;
        void *later;
    } units[UNITS];
    struct sifr_context *context = join_alone();
    struct sifr_model model = model_of(good_units);
    struct sifr_trainer *trainer;
    int32_t ids[STEP_ROWS], labels[STEP_ROWS];
    for (int u = 0; u < UNITS; u++)
        units[u].known = good_units[u];
    model.units = &units[0].known;
    model.unit_size = sizeof *units;
    longer.known.size = sizeof longer;
    assert_int_equal(sifr_trainer_create(context, &model, &longer.known, &trainer), 0);
    fill_step(0, ids, labels);
    result.known.skipped = 77;
    assert_int_equal(sifr_step_tokens(trainer, ids, labels, 1e-3, &result.known), 0);
    assert_true(result.known.loss > 0 && result.known.grad_norm > 0);
    assert_int_equal(result.known.skipped, 77);
    assert_int_equal(result.guard, 42);
    sifr_trainer_destroy(trainer);
    longer.later[2] = 1;
    assert_int_equal(sifr_trainer_create(context, &model, &longer.known, &trainer), SIFR_CONFIG);
    assert_error(context, "a field that this version does not know");
    sifr_leave(context);
}

static void test_wrong_data_is_refused(void **state)
{
    (void)state;
    struct sifr_context *context = join_alone();
    struct sifr_trainer *trainer = open_trainer(context);
    struct sifr_result result = {.size = sizeof result};
    struct sifr_batch batch = {.size = sizeof batch};
    int32_t ids[STEP_ROWS], labels[STEP_ROWS];
    fill_step(0, ids, labels);
    ids[ROWS + 3] = VOCAB;
    assert_int_equal(sifr_step_tokens(trainer, ids, labels, 1e-3, &result), SIFR_FORMAT);
    assert_error(context, "input 'ids', micro-batch 1, index 3: 11 is not in 0 .. 10");
    ids[ROWS + 3] = 3;
    labels[1] = -2;
    assert_int_equal(sifr_step_tokens(trainer, ids, labels, 1e-3, &result), SIFR_FORMAT);
    assert_error(context, "input 'labels', micro-batch 0, index 1: -2 is not in -1 .. 10");
    for (int i = 0; i < STEP_ROWS; i++)
        labels[i] = -1;
    assert_int_equal(sifr_step_tokens(trainer, ids, labels, 1e-3, &result), SIFR_FORMAT);
    assert_error(context, "all labels of this step are masked");
    assert_int_equal(sifr_step(trainer, &batch, 1e-3, &result), SIFR_CONFIG);
    assert_error(context, "there is no data for input 'ids'");
    fill_step(0, ids, labels);
    assert_int_equal(sifr_step_tokens(trainer, ids, labels, NAN, &result), SIFR_CONFIG);
    assert_error(context, "the learning rate is");
    assert_int_equal(sifr_eval_tokens(trainer, ids, labels, 0, &result), SIFR_CONFIG);
    assert_int_equal(sifr_step_tokens(trainer, ids, labels, 1e-3, &result), 0);
    sifr_trainer_destroy(trainer);
    sifr_leave(context);
}

/* A gradient that is not finite skips the update and is named. */
static void test_a_bad_gradient_is_named(void **state)
{
    (void)state;
    struct sifr_context *context = join_alone();
    struct sifr_trainer *trainer = open_trainer(context);
    struct sifr_result result = {.size = sizeof result};
    int32_t ids[STEP_ROWS], labels[STEP_ROWS];
    float values[HIDDEN * WIDTH], back[HIDDEN * WIDTH];
    fill_step(0, ids, labels);
    for (int i = 0; i < HIDDEN * WIDTH; i++)
        values[i] = i == 5 ? INFINITY : 0.1f;
    assert_int_equal(sifr_write(trainer, "b.out", values, HIDDEN * WIDTH), 0);
    assert_int_equal(sifr_step_tokens(trainer, ids, labels, 1e-3, &result), 0);
    assert_int_equal(result.skipped, 1);
    assert_int_equal(result.bad_micro_batch, 0);
    assert_true(*result.bad_param != '\0');
    assert_int_equal(sifr_read(trainer, "b.out", back, HIDDEN * WIDTH), 0);
    assert_memory_equal(values, back, sizeof values);
    sifr_trainer_destroy(trainer);
    sifr_leave(context);
}

static void test_missing_arguments_are_refused(void **state)
{
    (void)state;
    struct sifr_context *context = join_alone();
    struct sifr_trainer *trainer = open_trainer(context), *none;
    struct sifr_options options = small_options();
    struct sifr_model model = model_of(good_units);
    struct sifr_group group = {.lr_mul = 1, .wd_mul = 1};
    int32_t ids[STEP_ROWS], labels[STEP_ROWS];
    float values[VOCAB * WIDTH];
    fill_step(0, ids, labels);
    assert_int_equal(sifr_trainer_create(context, NULL, &options, &none), SIFR_CONFIG);
    assert_null(none);
    assert_int_equal(sifr_trainer_create(context, &model, NULL, &none), SIFR_CONFIG);
    options.group_count = 1;
    assert_int_equal(sifr_trainer_create(context, &model, &options, &none), SIFR_CONFIG);
    options.groups = &group;
    options.group_size = sizeof group;
    assert_int_equal(sifr_trainer_create(context, &model, &options, &none), SIFR_CONFIG);
    assert_error(context, "group 0 needs a match");
    assert_int_equal(sifr_save(trainer, NULL), SIFR_CONFIG);
    assert_int_equal(sifr_load(trainer, NULL), SIFR_CONFIG);
    assert_int_equal(sifr_read(trainer, NULL, values, 1), SIFR_CONFIG);
    assert_int_equal(sifr_read(trainer, "table", NULL, VOCAB * WIDTH), SIFR_CONFIG);
    assert_int_equal(sifr_checkpoint(trainer, NULL, NULL, 0), SIFR_CONFIG);
    assert_int_equal(sifr_checkpoint(trainer, "/tmp", NULL, 5), SIFR_CONFIG);
    assert_int_equal(sifr_resume(trainer, NULL, NULL, NULL, NULL), SIFR_CONFIG);
    assert_int_equal(sifr_statistic(trainer, "zz", values, 1), SIFR_CONFIG);
    assert_error(context, "no unit 'zz'");
    assert_int_equal(sifr_run(NULL, NULL, NULL), SIFR_CONFIG);
    assert_int_equal(sifr_step_tokens(trainer, ids, labels, 1e-3, NULL), 0);
    sifr_trainer_destroy(trainer);
    sifr_leave(context);
}

static int warnings;
static void count_warning(void *user, int rank, const char *line)
{
    (void)user;
    (void)rank;
    warnings += strstr(line, "sifr_leave was called before") != NULL;
}

/* Leaving before a trainer is destroyed is reported, and harmless. */
static void test_leaving_too_early_is_harmless(void **state)
{
    (void)state;
    struct sifr_job job = {.size = sizeof job, .threads = 1, .log = count_warning};
    struct sifr_context *context;
    struct sifr_result result = {.size = sizeof result};
    int32_t ids[STEP_ROWS], labels[STEP_ROWS];
    fill_step(0, ids, labels);
    assert_int_equal(sifr_join(&job, &context), 0);
    struct sifr_trainer *trainer = open_trainer(context);
    sifr_leave(context);
    assert_int_equal(warnings, 1);
    assert_int_equal(sifr_step_tokens(trainer, ids, labels, 1e-3, &result), 0);
    sifr_trainer_destroy(trainer);
}

static void test_wrong_jobs_are_refused(void **state)
{
    (void)state;
    struct sifr_job job = {.size = sizeof job, .ranks = 2};
    struct sifr_context *context;
    assert_int_equal(sifr_join(&job, &context), SIFR_CONFIG);
    job.ranks = -1;
    assert_int_equal(sifr_run(&job, NULL, NULL), SIFR_CONFIG);
    job.ranks = 0;
    job.size = 4;
    assert_int_equal(sifr_join(&job, &context), SIFR_CONFIG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tied_parameters_learn),
        cmocka_unit_test(test_parameters_are_read_by_name_saved_and_loaded),
        cmocka_unit_test(test_wrong_models_are_refused),
        cmocka_unit_test(test_wrong_options_are_refused),
        cmocka_unit_test(test_structs_of_other_versions),
        cmocka_unit_test(test_wrong_data_is_refused),
        cmocka_unit_test(test_a_bad_gradient_is_named),
        cmocka_unit_test(test_missing_arguments_are_refused),
        cmocka_unit_test(test_leaving_too_early_is_harmless),
        cmocka_unit_test(test_wrong_jobs_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
