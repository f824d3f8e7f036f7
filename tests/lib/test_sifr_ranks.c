/* The public library under ranks: the same bits in every layout, hooks and statistics, plans that
 * agree with what is allocated, failures that reach all ranks. */
#include "lib_rig.h"
#include <pthread.h>

enum {
    STEPS = 3,
    PARAMS_TOTAL = VOCAB * WIDTH + 4 * HIDDEN * WIDTH,
    STATISTICS = 2 * (HIDDEN + 1)
};
static const char *const names[] = {"table", "a.in", "a.out", "b.in", "b.out"};
static const int64_t counts[] = {VOCAB * WIDTH, HIDDEN *WIDTH, HIDDEN *WIDTH, HIDDEN *WIDTH,
                                 HIDDEN *WIDTH};

/* What a run ends with. */
struct outcome {
    float params[PARAMS_TOTAL];
    float statistics[STATISTICS];
    double losses[STEPS], norms[STEPS];
};

struct run {
    struct sifr_options options;
    int ranks, own; /* own: each rank passes only its own micro-batches */
    bool planned;   /* compare memory with the plan */
    struct outcome outcome;
    pthread_mutex_t lock;
    int64_t seen; /* elements that the gradient hook has seen, on all ranks */
    int fail_rank;
    char error[256]; /* of rank 0 */
};

static void read_outcome(struct sifr_trainer *trainer, struct outcome *outcome)
{
    float *to = outcome->params;
    for (int i = 0; i < 5; to += counts[i], i++)
        assert_int_equal(sifr_read(trainer, names[i], to, counts[i]), 0);
    assert_int_equal(sifr_statistic(trainer, "a", outcome->statistics, HIDDEN + 1), 0);
    assert_int_equal(sifr_statistic(trainer, "b", outcome->statistics + HIDDEN + 1, HIDDEN + 1), 0);
}

static int one_step(struct sifr_trainer *trainer, const struct run *run, int64_t step,
                    struct sifr_result *result)
{
    int32_t ids[STEP_ROWS], labels[STEP_ROWS];
    const void *inputs[] = {ids, labels};
    const struct sifr_batch batch = {.size = sizeof batch, .inputs = inputs, .own = 1};
    int64_t own = 0;
    fill_step(step, ids, labels);
    if (!run->own)
        return sifr_step_tokens(trainer, ids, labels, 1e-2, result);
    for (int64_t m = 0; m < MICRO_BATCHES; m++)
        if (sifr_is_mine(trainer, m)) {
            memmove(ids + own * ROWS, ids + m * ROWS, ROWS * sizeof *ids);
            memmove(labels + own * ROWS, labels + m * ROWS, ROWS * sizeof *labels);
            own++;
        }
    return sifr_step(trainer, &batch, 1e-2, result);
}

static void expect_plan(struct sifr_context *context, struct sifr_trainer *trainer,
                        const struct run *run)
{
    struct sifr_model model = model_of(good_units);
    struct sifr_plan plan = {.size = sizeof plan};
    assert_int_equal(
        sifr_plan(context, &model, &run->options, run->ranks, sifr_rank(context), &plan), 0);
    for (int kind = 0; kind < SIFR_MEMORY_KINDS; kind++)
        if (kind != SIFR_OTHER && plan.bytes[kind] != sifr_memory(trainer, kind))
            fail_msg("rank %d, kind %d: planned %zu, allocated %zu", sifr_rank(context), kind,
                     plan.bytes[kind], sifr_memory(trainer, kind));
    assert_true(run->ranks == 1 || plan.sent > 0);
}

static int rank_main(struct sifr_context *context, void *user)
{
    struct run *run = user;
    struct sifr_model model = model_of(good_units);
    struct sifr_trainer *trainer;
    struct sifr_result result = {.size = sizeof result};
    struct outcome outcome;
    int status = sifr_trainer_create(context, &model, &run->options, &trainer);
    if (status != 0)
        return status;
    if (run->planned)
        expect_plan(context, trainer, run);
    for (int64_t step = 0; status == 0 && step < STEPS; step++) {
        if (run->fail_rank == sifr_rank(context) && step == 1)
            status = 42; /* it leaves without a word */
        else
            status = one_step(trainer, run, step, &result);
        outcome.losses[step] = result.loss;
        outcome.norms[step] = result.grad_norm;
    }
    if (status == 0)
        read_outcome(trainer, &outcome);
    if (status == 0 && sifr_rank(context) == 0)
        run->outcome = outcome;
    if (sifr_rank(context) == 0)
        snprintf(run->error, sizeof run->error, "%s", sifr_error(context));
    sifr_trainer_destroy(trainer);
    return status;
}

static int start(struct run *run)
{
    struct sifr_job job = {.size = sizeof job, .ranks = run->ranks, .threads = 1, .timeout = 60};
    pthread_mutex_init(&run->lock, NULL);
    int status = sifr_run(&job, rank_main, run);
    pthread_mutex_destroy(&run->lock);
    return status;
}

static struct run run_of(int ranks)
{
    return (struct run){.options = small_options(), .ranks = ranks, .fail_rank = -1};
}

/* --- bits ----------------------------------------------------------------------------------- */

static struct outcome reference(enum sifr_type precision)
{
    struct run alone = run_of(1);
    alone.options.precision = precision;
    assert_int_equal(start(&alone), 0);
    return alone.outcome;
}

static void expect_same(struct run run, const struct outcome *expected, const char *what)
{
    if (start(&run) != 0)
        fail_msg("%s, %d ranks: %s", what, run.ranks, run.error);
    if (memcmp(&run.outcome, expected, sizeof *expected) != 0)
        fail_msg("%s, %d ranks, stage %d: other bits", what, run.ranks, run.options.stage);
}

static void layouts(enum sifr_type precision)
{
    struct outcome expected = reference(precision);
    for (int ranks = 1; ranks <= 4; ranks++)
        for (int stage = 0; stage <= 3; stage++) {
            struct run run = run_of(ranks);
            run.options.precision = precision;
            run.options.stage = stage;
            run.options.prefetch = stage % 2;
            run.own = ranks % 2;
            run.planned = true;
            expect_same(run, &expected, "plain");
            run.options.recompute = SIFR_RECOMPUTE_ALL;
            expect_same(run, &expected, "recompute");
        }
}

static void test_same_bits_over_stages_and_ranks(void **state)
{
    (void)state;
    layouts(SIFR_F32);
    layouts(SIFR_BF16);
}

static void test_same_bits_with_servers_groups_and_pipelines(void **state)
{
    (void)state;
    struct outcome expected = reference(SIFR_F32);
    for (int stage = 1; stage <= 3; stage++) {
        struct run run = run_of(3);
        run.planned = true;
        run.options.stage = stage;
        run.options.servers = 1;
        expect_same(run, &expected, "servers");
        run = run_of(4);
        run.planned = true;
        run.options.stage = stage;
        run.options.shard_group = 2;
        expect_same(run, &expected, "shard group");
    }
    for (int schedule = SIFR_1F1B; schedule <= SIFR_ZERO_BUBBLE; schedule++)
        for (int ranks = 2; ranks <= 4; ranks += 2) {
            struct run run = run_of(ranks);
            run.options.pipeline = 2;
            run.options.schedule = schedule;
            run.options.stage = ranks == 4 ? 3 : 0;
            run.own = 1;
            run.planned = true;
            expect_same(run, &expected, "pipeline");
            run.options.recompute = SIFR_RECOMPUTE_ALL;
            expect_same(run, &expected, "pipeline with recomputation");
        }
}

static void test_statistics_count_every_row_once(void **state)
{
    (void)state;
    struct outcome outcome = reference(SIFR_F32);
    assert_true(outcome.statistics[HIDDEN] == STEP_ROWS);
    assert_true(outcome.statistics[2 * HIDDEN + 1] == STEP_ROWS);
    assert_true(outcome.statistics[0] >= 0);
}

/* --- the gradient hook ---------------------------------------------------------------------- */

/* Rows of "a.in" whose unit was never active keep their values. */
static int gate(void *user, const struct sifr_gradient *gradient)
{
    struct run *run = user;
    float active[HIDDEN + 1], *values = gradient->values;
    pthread_mutex_lock(&run->lock);
    run->seen += gradient->count;
    pthread_mutex_unlock(&run->lock);
    if (strcmp(gradient->name, "a.in") != 0)
        return 0;
    if (gradient->type != SIFR_F32 ||
        sifr_statistic(gradient->trainer, "a", active, HIDDEN + 1) != 0)
        return 1;
    for (int64_t i = 0; i < gradient->count; i++)
        if (active[(gradient->offset + i) / WIDTH] < 2.0f)
            values[i] = 0.0f;
    return 0;
}

static void test_the_hook_sees_every_element_once(void **state)
{
    (void)state;
    struct outcome expected = {0};
    for (int ranks = 1; ranks <= 4; ranks++)
        for (int stage = 0; stage <= 3; stage++) {
            struct run run = run_of(ranks);
            run.options.stage = stage;
            run.options.gradient = gate;
            run.options.user = &run;
            assert_int_equal(start(&run), 0);
            assert_int_equal(run.seen, STEPS * PARAMS_TOTAL);
            if (ranks == 1 && stage == 0)
                expected = run.outcome;
            assert_memory_equal(&run.outcome, &expected, sizeof expected);
        }
    struct outcome plain = reference(SIFR_F32);
    assert_true(memcmp(&plain, &expected, sizeof plain) != 0);
}

/* --- failures ------------------------------------------------------------------------------- */

static int refuse(void *user, const struct sifr_gradient *gradient)
{
    (void)user;
    return strcmp(gradient->name, "b.out") == 0 ? 5 : 0;
}

static void test_a_failing_hook_fails_all_ranks(void **state)
{
    (void)state;
    struct run run = run_of(3);
    run.options.stage = 2;
    run.options.gradient = refuse;
    assert_int_equal(start(&run), SIFR_CALLBACK);
    if (!strstr(run.error, "the gradient function returned 5 for parameter 'b.out'"))
        fail_msg("rank 0 says '%s'", run.error);
}

static void test_a_rank_that_leaves_fails_the_others(void **state)
{
    (void)state;
    for (int rank = 0; rank < 3; rank++) {
        struct run run = run_of(3);
        run.options.stage = 3;
        run.fail_rank = rank;
        assert_int_equal(start(&run), 42);
        if (rank > 0 && !strstr(run.error, "returned 42"))
            fail_msg("rank 0 says '%s'", run.error);
    }
}

/* Ranks that do not agree, or forget something. */
enum mistake {
    OTHER_STAGE,
    OTHER_RATE,
    OTHER_NAME,
    SWAPPED,
    FORGOTTEN,
    NESTED,
    AFTER_FAILURE,
    MISTAKES
};

struct trial {
    enum mistake mistake;
    _Atomic int inner; /* status of the call inside a hook */
    char error[512];   /* of rank 0 */
};

static int nested(void *user, const struct sifr_gradient *gradient)
{
    struct trial *trial = user;
    trial->inner = sifr_checkpoint_wait(gradient->trainer);
    return 0;
}

static int make_mistake(struct sifr_context *context, void *user)
{
    struct trial *trial = user;
    struct sifr_unit units[UNITS];
    struct sifr_options options = small_options();
    struct sifr_model model = model_of(units);
    struct sifr_trainer *trainers[2] = {NULL, NULL};
    struct sifr_result result = {.size = sizeof result};
    bool other = sifr_rank(context) == 1;
    int32_t ids[STEP_ROWS], labels[STEP_ROWS];
    fill_step(0, ids, labels);
    memcpy(units, good_units, sizeof units);
    options.stage = other && trial->mistake == OTHER_STAGE ? 3 : 2;
    if (trial->mistake == NESTED) {
        options.gradient = nested;
        options.user = trial;
    }
    if (other && trial->mistake == OTHER_NAME)
        units[1].name = "aa";
    int status = sifr_trainer_create(context, &model, &options, &trainers[0]);
    if (status == 0)
        status = sifr_trainer_create(context, &model, &options, &trainers[1]);
    if (status == 0 && trial->mistake == AFTER_FAILURE) {
        labels[0] = VOCAB;
        sifr_step_tokens(trainers[0], ids, labels, 1e-3, &result);
        labels[0] = 0;
    }
    if (status == 0)
        status = sifr_step_tokens(trainers[other && trial->mistake == SWAPPED], ids, labels,
                                  other && trial->mistake == OTHER_RATE ? 2e-3 : 1e-3, &result);
    if (sifr_rank(context) == 0)
        snprintf(trial->error, sizeof trial->error, "%s", sifr_error(context));
    for (int i = 0; trial->mistake != FORGOTTEN && i < 2; i++)
        sifr_trainer_destroy(trainers[i]);
    return status;
}

static void test_mistakes_of_ranks_are_reported(void **state)
{
    (void)state;
    static const struct {
        int status;
        const char *error;
    } expected[MISTAKES] = {
        [OTHER_STAGE] = {SIFR_CONFIG, "calls create of trainer 1 with other values"},
        [OTHER_RATE] = {SIFR_CONFIG, "calls step of trainer 1 with other values"},
        [OTHER_NAME] = {SIFR_CONFIG, "calls create of trainer 1 with other values"},
        [SWAPPED] = {SIFR_CONFIG, "rank 1 calls step of trainer 2 with other values than rank 0"},
        [FORGOTTEN] = {SIFR_OK, ""},
        [NESTED] = {SIFR_OK, ""},
        [AFTER_FAILURE] = {SIFR_COMM, "has failed and cannot continue: "},
    };
    for (int m = 0; m < MISTAKES; m++) {
        struct sifr_job job = {.size = sizeof job, .ranks = 2, .threads = 1, .timeout = 60};
        struct trial trial = {.mistake = m};
        assert_int_equal(sifr_run(&job, make_mistake, &trial), expected[m].status);
        if (!strstr(trial.error, expected[m].error))
            fail_msg("mistake %d: expected '%s' in '%s'", m, expected[m].error, trial.error);
        if (m == NESTED)
            assert_int_equal(trial.inner, SIFR_CONFIG);
    }
}

static void test_wrong_layouts_are_refused(void **state)
{
    (void)state;
    struct run run = run_of(3);
    run.options.pipeline = 2;
    assert_int_equal(start(&run), SIFR_CONFIG);
    run = run_of(2);
    run.options.servers = 2;
    run.options.stage = 1;
    assert_int_equal(start(&run), SIFR_CONFIG);
    run = run_of(4);
    run.options.shard_group = 3;
    run.options.stage = 2;
    assert_int_equal(start(&run), SIFR_CONFIG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits_over_stages_and_ranks),
        cmocka_unit_test(test_same_bits_with_servers_groups_and_pipelines),
        cmocka_unit_test(test_statistics_count_every_row_once),
        cmocka_unit_test(test_the_hook_sees_every_element_once),
        cmocka_unit_test(test_a_failing_hook_fails_all_ranks),
        cmocka_unit_test(test_a_rank_that_leaves_fails_the_others),
        cmocka_unit_test(test_mistakes_of_ranks_are_reported),
        cmocka_unit_test(test_wrong_layouts_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
