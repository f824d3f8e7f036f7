/* Optimizers through the public library: the same bits on one rank and on two, groups with their
 * own, and refusals. */
#include "lib_rig.h"
#include <math.h>

enum { STEPS = 2, HIDDEN_COUNT = HIDDEN * WIDTH, TABLE_COUNT = VOCAB * WIDTH };

struct outcome {
    float table[TABLE_COUNT], in[HIDDEN_COUNT], out[HIDDEN_COUNT];
    double losses[STEPS];
};

struct run {
    struct sifr_options options;
    struct sifr_options others; /* of ranks other than 0, if `differ` */
    bool differ;
    struct outcome outcome;
    char error[256];
};

static int rank_main(struct sifr_context *context, void *user)
{
    struct run *run = user;
    struct sifr_model model = model_of(good_units);
    struct sifr_trainer *trainer;
    struct sifr_result result = {.size = sizeof result};
    struct outcome o = {0};
    int32_t ids[STEP_ROWS], labels[STEP_ROWS];
    bool first = sifr_rank(context) == 0;
    int status = sifr_trainer_create(
        context, &model, run->differ && !first ? &run->others : &run->options, &trainer);
    for (int64_t step = 0; status == 0 && step < STEPS; step++) {
        fill_step(step, ids, labels);
        status = sifr_step_tokens(trainer, ids, labels, 1e-2, &result);
        o.losses[step] = result.loss;
    }
    if (status == 0)
        status = sifr_read(trainer, "table", o.table, TABLE_COUNT);
    if (status == 0)
        status = sifr_read(trainer, "a.in", o.in, HIDDEN_COUNT);
    if (status == 0)
        status = sifr_read(trainer, "b.out", o.out, HIDDEN_COUNT);
    if (first) {
        run->outcome = o;
        snprintf(run->error, sizeof run->error, "%s", sifr_error(context));
    }
    sifr_trainer_destroy(trainer);
    return status;
}

static int start(struct run *run, int ranks)
{
    struct sifr_job job = {.size = sizeof job, .ranks = ranks, .threads = 1, .timeout = 60};
    return sifr_run(&job, rank_main, run);
}

static struct outcome outcome_of(struct sifr_options options, int ranks)
{
    struct run run = {.options = options};
    if (start(&run, ranks) != 0)
        fail_msg("%d ranks, stage %d: %s", ranks, options.stage, run.error);
    return run.outcome;
}

static struct sifr_options options_of(enum sifr_optimizer optimizer)
{
    struct sifr_options options = small_options();
    options.optimizer = optimizer;
    return options;
}

static bool same(const float *a, const float *b, int count)
{
    return memcmp(a, b, (size_t)count * sizeof *a) == 0;
}

static const enum sifr_optimizer kinds[] = {SIFR_ADAMW, SIFR_SGD};
enum { KINDS = sizeof kinds / sizeof *kinds };

static void test_each_kind_has_the_same_bits_on_two_ranks(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        struct sifr_options options = options_of(kinds[k]);
        struct outcome alone = outcome_of(options, 1);
        for (int stage = 0; stage <= 3; stage++) {
            options.stage = stage;
            struct outcome two = outcome_of(options, 2);
            assert_memory_equal(&alone, &two, sizeof two);
        }
    }
}

static void test_each_kind_moves_the_weights_its_own_way(void **state)
{
    (void)state;
    struct outcome by_default = outcome_of(options_of(SIFR_INHERIT), 1);
    struct outcome adamw = outcome_of(options_of(SIFR_ADAMW), 1);
    struct outcome sgd = outcome_of(options_of(SIFR_SGD), 1);
    assert_memory_equal(&by_default, &adamw, sizeof adamw);
    assert_false(same(adamw.in, sgd.in, HIDDEN_COUNT));
    struct sifr_options options = options_of(SIFR_SGD);
    options.momentum = 0.9; /* the default */
    options.nesterov = -1;
    struct outcome other = outcome_of(options, 1);
    assert_memory_equal(&other, &sgd, sizeof sgd);
    options.nesterov = 1;
    other = outcome_of(options, 1);
    assert_false(same(other.in, sgd.in, HIDDEN_COUNT));
    options.nesterov = 0;
    options.momentum = -1;
    other = outcome_of(options, 1);
    assert_false(same(other.in, sgd.in, HIDDEN_COUNT));
}

/* One group changes its parameters after the first step and no others. */
static void test_groups_have_their_own_settings(void **state)
{
    (void)state;
    static const struct sifr_group groups[] = {
        {.match = "a.*", .lr_mul = 1, .wd_mul = 1, .optimizer = SIFR_SGD},
        {.match = "a.*", .lr_mul = 1, .wd_mul = 1, .beta1 = 0.5},
        {.match = "a.*", .lr_mul = 1, .wd_mul = 1, .beta2 = 0.5},
        {.match = "a.*", .lr_mul = 1, .wd_mul = 1, .eps = 1e-2},
        {.match = "a.*", .lr_mul = 1, .wd_mul = 1, .weight_decay = 0.5},
        {.match = "a.*", .lr_mul = 1, .wd_mul = 1, .weight_decay = -1},
    };
    struct sifr_options options = small_options();
    struct outcome plain = outcome_of(options, 1);
    options.group_size = sizeof *groups;
    options.group_count = 1;
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
        options.groups = &groups[g];
        struct outcome o = outcome_of(options, 1);
        if (same(o.in, plain.in, HIDDEN_COUNT))
            fail_msg("group %zu has no effect", g);
        assert_true(o.losses[0] == plain.losses[0]);
        struct outcome two = outcome_of(options, 2);
        assert_memory_equal(&o, &two, sizeof o);
    }
    /* Weight decay -1 turns decay off, as a factor of 0 does. A group of zeros changes nothing. */
    const struct sifr_group none[] = {{.match = "a.*", .lr_mul = 1, .wd_mul = 0}};
    const struct sifr_group same_as_before[] = {{.match = "a.*", .lr_mul = 1, .wd_mul = 1}};
    options.groups = &groups[5];
    struct outcome a = outcome_of(options, 1);
    options.groups = none;
    struct outcome b = outcome_of(options, 1);
    assert_memory_equal(&a, &b, sizeof a);
    options.groups = same_as_before;
    a = outcome_of(options, 1);
    assert_memory_equal(&a, &plain, sizeof a);
}

/* Momentum and Nesterov of a group, in a run with SGD. */
static void test_groups_have_their_own_momentum(void **state)
{
    (void)state;
    static const struct sifr_group groups[] = {
        {.match = "a.*", .lr_mul = 1, .wd_mul = 1, .momentum = 0.5},
        {.match = "a.*", .lr_mul = 1, .wd_mul = 1, .momentum = -1},
        {.match = "a.*", .lr_mul = 1, .wd_mul = 1, .nesterov = 1},
    };
    struct sifr_options options = options_of(SIFR_SGD);
    struct outcome plain = outcome_of(options, 1);
    options.group_size = sizeof *groups;
    options.group_count = 1;
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
        options.groups = &groups[g];
        struct outcome o = outcome_of(options, 1);
        assert_false(same(o.in, plain.in, HIDDEN_COUNT));
    }
}

/* A program of an earlier version has shorter groups and options. */
static void test_structs_of_an_earlier_version(void **state)
{
    (void)state;
    struct {
        const char *match;
        double lr_mul, wd_mul;
    } groups[] = {{"a.*", 2, 1}, {"b.*", 0.5, 0}};
    const struct sifr_group now[] = {{.match = "a.*", .lr_mul = 2, .wd_mul = 1},
                                     {.match = "b.*", .lr_mul = 0.5, .wd_mul = 0}};
    struct sifr_options options = small_options();
    options.group_count = 2;
    options.groups = now;
    options.group_size = sizeof *now;
    struct outcome expected = outcome_of(options, 1);
    options.groups = (const struct sifr_group *)(const void *)groups;
    options.group_size = sizeof *groups;
    options.size = offsetof(struct sifr_options, optimizer);
    options.optimizer = SIFR_SGD; /* beyond its size: not read */
    struct outcome found = outcome_of(options, 1);
    assert_memory_equal(&found, &expected, sizeof found);
}

/* --- refusals ------------------------------------------------------------------------------- */

static void refuse(struct sifr_options options, const char *message)
{
    struct run run = {.options = options};
    assert_int_equal(start(&run, 1), SIFR_CONFIG);
    if (!strstr(run.error, message))
        fail_msg("expected '%s' in '%s'", message, run.error);
}

#define WITH(field, value) ((o = options_of(SIFR_SGD)), (o.field = (value)), o)

static void test_wrong_options_are_refused(void **state)
{
    (void)state;
    struct sifr_options o;
    refuse(WITH(optimizer, (enum sifr_optimizer)5), "options: optimizer is 5; use SIFR_ADAMW");
    refuse(WITH(momentum, 1), "options: momentum is 1; it must be below 1");
    refuse(WITH(momentum, -0.5), "options: momentum is -0.5");
    refuse(WITH(momentum, NAN), "options: momentum is nan");
    refuse(WITH(nesterov, 2), "options: nesterov is 2");
    o = options_of(SIFR_SGD);
    o.momentum = -1;
    o.nesterov = 1;
    refuse(o, "options: Nesterov momentum needs a momentum above 0");
}

static void refuse_group(struct sifr_group group, const char *message)
{
    struct sifr_options options = options_of(SIFR_SGD);
    group.match = "a.*";
    options.groups = &group;
    options.group_count = 1;
    options.group_size = sizeof group;
    refuse(options, message);
}

static void test_wrong_groups_are_refused(void **state)
{
    (void)state;
    refuse_group((struct sifr_group){.optimizer = (enum sifr_optimizer)9},
                 "options: group 0: optimizer is 9");
    refuse_group((struct sifr_group){.momentum = 2}, "options: group 0: momentum is 2");
    refuse_group((struct sifr_group){.nesterov = -2}, "options: group 0: nesterov is -2");
    refuse_group((struct sifr_group){.nesterov = 1, .momentum = -1},
                 "options: group 0: Nesterov momentum needs");
    refuse_group((struct sifr_group){.beta1 = 1}, "options: group 0: beta1 and beta2 must be in");
    refuse_group((struct sifr_group){.beta2 = -2}, "options: group 0: beta1 and beta2 must be in");
    refuse_group((struct sifr_group){.eps = -1}, "eps at least 0");
    refuse_group((struct sifr_group){.weight_decay = INFINITY}, "weight_decay at least 0 or -1");
}

static void refuse_param(struct sifr_param param, const char *message)
{
    struct sifr_context *context = join_alone();
    struct sifr_options options = small_options();
    struct sifr_unit units[UNITS];
    struct sifr_param params[2];
    struct sifr_trainer *trainer;
    memcpy(units, good_units, sizeof units);
    memcpy(params, hidden_params[0], sizeof params);
    params[0] = param;
    units[1].params = params;
    struct sifr_model model = model_of(units);
    assert_int_equal(sifr_trainer_create(context, &model, &options, &trainer), SIFR_CONFIG);
    if (!strstr(sifr_error(context), message))
        fail_msg("expected '%s' in '%s'", message, sifr_error(context));
    sifr_leave(context);
}

static void test_wrong_matrices_are_refused(void **state)
{
    (void)state;
    struct sifr_param param = hidden_params[0][0];
    param.matrices = -1;
    refuse_param(param, "parameter 'a.in': matrices is -1");
    param.matrices = 4; /* of WIDTH 6 columns */
    refuse_param(param, "it needs 2 dims and must divide shape[1]");
    param.matrices = 1;
    param.dims = 1;
    refuse_param(param, "it needs 2 dims and must divide shape[1]");
}

/* Ranks whose settings differ get an error. */
static void test_ranks_must_agree(void **state)
{
    (void)state;
    static const struct sifr_group groups[2] = {
        {.match = "a.*", .lr_mul = 1, .wd_mul = 1},
        {.match = "a.*", .lr_mul = 1, .wd_mul = 1, .optimizer = SIFR_ADAMW}};
    for (int i = 0; i < 4; i++) {
        struct run run = {.options = options_of(SIFR_SGD), .differ = true};
        run.options.groups = &groups[0];
        run.options.group_count = 1;
        run.options.group_size = sizeof *groups;
        run.others = run.options;
        switch (i) {
        case 0: run.others.optimizer = SIFR_ADAMW; break;
        case 1: run.others.momentum = 0.5; break;
        case 2: run.others.nesterov = 1; break;
        default: run.others.groups = &groups[1]; break;
        }
        assert_int_equal(start(&run, 2), SIFR_CONFIG);
        assert_true(*run.error != '\0');
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_kind_has_the_same_bits_on_two_ranks),
        cmocka_unit_test(test_each_kind_moves_the_weights_its_own_way),
        cmocka_unit_test(test_groups_have_their_own_settings),
        cmocka_unit_test(test_groups_have_their_own_momentum),
        cmocka_unit_test(test_structs_of_an_earlier_version),
        cmocka_unit_test(test_wrong_options_are_refused),
        cmocka_unit_test(test_wrong_groups_are_refused),
        cmocka_unit_test(test_wrong_matrices_are_refused),
        cmocka_unit_test(test_ranks_must_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
