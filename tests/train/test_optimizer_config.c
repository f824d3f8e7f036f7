/* Optimizers in a configuration: keys and defaults, what groups inherit, the printed form, refusals
 * and warnings. */
#include "run_rig.h"

#include <math.h>

#include "train/run_plan.h"

static void test_words_and_defaults(void **state)
{
    (void)state;
    static const struct {
        const char *word;
        double momentum;
        bool nesterov;
    } kinds[] = {[OPTIMIZER_ADAMW] = {"adamw", 0.9, false},
                 [OPTIMIZER_ADAMW8BIT] = {"adamw8bit", 0.9, false},
                 [OPTIMIZER_SGD] = {"sgd", 0.9, false},
                 [OPTIMIZER_MUON] = {"muon", 0.95, true}};
    struct run_rig rig;
    rig_open(&rig);
    rig_config(&rig, "");
    assert_int_equal(run_optimizer(&rig.config).kind, OPTIMIZER_ADAMW);
    for (int kind = 0; kind < OPTIMIZER_KINDS; kind++) {
        char setting[64];
        snprintf(setting, sizeof setting, "optimizer.kind=%s", kinds[kind].word);
        rig_config(&rig, setting);
        struct optimizer o = run_optimizer(&rig.config);
        assert_int_equal(o.kind, kind);
        assert_string_equal(optimizer_word(o.kind), kinds[kind].word);
        assert_true(o.beta1 == 0.9 && o.beta2 == 0.95 && o.eps == 1e-8);
        assert_true(o.momentum == kinds[kind].momentum && o.nesterov == kinds[kind].nesterov);
    }
    rig_close(&rig);
}

static void test_keys_replace_the_defaults(void **state)
{
    (void)state;
    struct run_rig rig;
    rig_open(&rig);
    rig_config(&rig, "optimizer.kind=muon optimizer.momentum=0.8 optimizer.nesterov=no "
                     "train.beta1=0.5 train.beta2=0.6 train.eps=1e-6");
    struct optimizer o = run_optimizer(&rig.config);
    assert_true(o.momentum == 0.8 && !o.nesterov);
    assert_true(o.beta1 == 0.5 && o.beta2 == 0.6 && o.eps == 1e-6);
    rig_config(&rig, "optimizer.kind=sgd optimizer.nesterov=true");
    assert_true(run_optimizer(&rig.config).nesterov);
    rig_config(&rig, "optimizer.kind=muon optimizer.momentum=auto optimizer.nesterov=auto");
    o = run_optimizer(&rig.config);
    assert_true(o.momentum == 0.95 && o.nesterov);
    /* Nobody asked for Nesterov here, so a momentum of 0 is fine. */
    rig_config(&rig, "optimizer.kind=muon optimizer.momentum=0");
    o = run_optimizer(&rig.config);
    assert_true(o.momentum == 0 && !o.nesterov);
    rig_close(&rig);
}

static void test_groups_inherit_what_they_leave_out(void **state)
{
    (void)state;
    struct run_rig rig;
    rig_open(&rig);
    rig_config(
        &rig,
        "optimizer.kind=sgd train.beta2=0.6 train.weight_decay=0.2 train.eps=1e-7 "
        "optimizer.groups=[{'match':'*norm*'},"
        "{'match':'*proj*','kind':muon,'lr':2e-2,'lr_mul':3,'weight_decay':0.5,'wd_mul':2},"
        "{'match':'*embed*','kind':adamw8bit,'beta1':0.7,'beta2':0.8,'eps':1e-5,'wd_mul':0.5},"
        "{'match':'*bias*','momentum':0.3,'nesterov':yes,'lr':0,'weight_decay':0}]");
    const struct zero_group *g = rig.config.groups;
    struct zero_config store = trainer_store_config(&rig.config);
    assert_int_equal(store.group_count, 4);
    assert_ptr_equal(store.groups, g);
    assert_string_equal(g[0].match, "*norm*");
    assert_int_equal(g[0].optimizer.kind, OPTIMIZER_SGD);
    assert_true(g[0].optimizer.momentum == 0.9 && !g[0].optimizer.nesterov);
    assert_true(g[0].lr_mul == 1 && g[0].decay == 0.2);

    assert_int_equal(g[1].optimizer.kind, OPTIMIZER_MUON);
    assert_true(g[1].optimizer.momentum == 0.95 && g[1].optimizer.nesterov);
    assert_true(g[1].optimizer.beta1 == 0.9 && g[1].optimizer.beta2 == 0.6);
    assert_true(g[1].lr_mul == 2e-2 / 1e-2 * 3 && g[1].decay == 1);

    assert_int_equal(g[2].optimizer.kind, OPTIMIZER_ADAMW8BIT);
    assert_true(g[2].optimizer.beta1 == 0.7 && g[2].optimizer.beta2 == 0.8);
    assert_true(g[2].optimizer.eps == 1e-5 && g[0].optimizer.eps == 1e-7);
    assert_true(g[2].decay == 0.2 * 0.5);

    assert_int_equal(g[3].optimizer.kind, OPTIMIZER_SGD);
    assert_true(g[3].optimizer.momentum == 0.3 && g[3].optimizer.nesterov);
    assert_true(g[3].lr_mul == 0 && g[3].decay == 0);

    /* A momentum that the run sets holds for groups of every kind. */
    rig_config(&rig, "optimizer.momentum=0.4 optimizer.nesterov=false "
                     "optimizer.groups=[{'match':'*proj*','kind':muon}]");
    assert_true(rig.config.groups[0].optimizer.momentum == 0.4);
    assert_false(rig.config.groups[0].optimizer.nesterov);
    rig_close(&rig);
}

static void test_the_printed_form_parses_to_the_same(void **state)
{
    (void)state;
    static const char *const settings[] = {
        "", "optimizer.kind=muon",
        "optimizer.kind=sgd optimizer.momentum=0.125 optimizer.nesterov=true",
        "optimizer.groups=[{'match':'*norm*','kind':sgd,'lr':1e-3,'momentum':0.5,'nesterov':true},"
        "{'match':'*proj*','beta1':0.1,'beta2':0.2,'eps':1e-4,'weight_decay':0.3,'lr_mul':2,'wd_"
        "mul':3}]"};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        struct run_rig rig, again;
        rig_open(&rig);
        rig_config(&rig, settings[i]);
        rig_open(&again);
        rig_bind(&again);
        assert_int_equal(options_load_yaml_text(again.options, text_string(&rig.yaml),
                                                rig.yaml.bytes, "printed"),
                         STATUS_OK);
        assert_int_equal(rig_resolve(&again, ""), STATUS_OK);
        options_print_yaml(again.options, &again.yaml);
        assert_string_equal(text_string(&rig.yaml), text_string(&again.yaml));
        struct optimizer a = run_optimizer(&rig.config), b = run_optimizer(&again.config);
        assert_true(a.kind == b.kind && optimizer_same(&a, &b));
        for (int g = 0; g < rig.config.optimizer.groups.count; g++) {
            const struct zero_group *x = &rig.config.groups[g], *y = &again.config.groups[g];
            assert_string_equal(x->match, y->match);
            assert_true(x->lr_mul == y->lr_mul && x->decay == y->decay);
            assert_true(x->optimizer.kind == y->optimizer.kind &&
                        optimizer_same(&x->optimizer, &y->optimizer));
        }
        rig_close(&again);
        rig_close(&rig);
    }
}

/* A group of an older version, which has only factors, is printed as that version did. */
static void test_unset_fields_are_not_printed(void **state)
{
    (void)state;
    struct run_rig rig;
    rig_open(&rig);
    rig_config(&rig, "optimizer.groups=[{'match':'*norm*','lr_mul':2}]");
    assert_non_null(strstr(text_string(&rig.yaml), "optimizer:\n"
                                                   "  kind: adamw\n"
                                                   "  momentum: auto\n"
                                                   "  nesterov: auto\n"
                                                   "  rounding: nearest\n"
                                                   "  groups:\n"
                                                   "    - match: \"*norm*\"\n"
                                                   "      lr_mul: 2\n"
                                                   "      wd_mul: 1\n"
                                                   "engine:"));
    rig_close(&rig);
}

/* --- messages ------------------------------------------------------------------------------- */

static void listen(void *user, enum log_level level, const char *line)
{
    char *said = user;
    if (level == LOG_WARN || level == LOG_ERROR)
        snprintf(said + strlen(said), 2048 - strlen(said), "%s\n", line);
}

/* Resolve, as a plan, which needs no GPU; `said` receives errors and warnings. */
static void expect(const char *settings, enum status expected, const char *words)
{
    struct run_rig rig;
    char all[2048], said[2048] = "";
    rig_open(&rig);
    env_destroy(&rig.scratch.env);
    assert_int_equal(env_create(&rig.scratch.env, listen, said, LOG_WARN, 1), STATUS_OK);
    assert_int_equal(options_create(&rig.scratch.env, &rig.options), STATUS_OK);
    assert_int_equal(run_config_bind_planning(rig.options, &rig.config), STATUS_OK);
    snprintf(all, sizeof all, "%s model.vocab=300 %s", rig_small, settings);
    assert_int_equal(rig_resolve(&rig, all), expected);
    const char *found = words ? strstr(said, words) : NULL;
    if (words ? !found : *said)
        fail_msg("'%s' said: %s", settings, said);
    if (words && expected == STATUS_OK && strchr(said, '\n')[1])
        fail_msg("'%s' said more than once: %s", settings, said);
    text_init(&rig.yaml, &rig.scratch.env);
    rig_close(&rig);
}

static void test_wrong_values_are_refused(void **state)
{
    (void)state;
    expect("optimizer.kind=adam", STATUS_USAGE, "one of adamw, adamw8bit, sgd, muon");
    expect("optimizer.momentum=1", STATUS_USAGE, "auto or a number from 0 to 0.9999999, not '1'");
    expect("optimizer.momentum=-0.5", STATUS_USAGE, "optimizer.momentum");
    expect("optimizer.nesterov=maybe", STATUS_USAGE, "auto or true or false, not 'maybe'");
    expect("optimizer.groups=[{'match':'*','kind':lion}]", STATUS_USAGE,
           "[0].kind must be inherit or one of adamw, adamw8bit, sgd, muon, not 'lion'");
    expect("optimizer.groups=[{'match':'*','lr':-1}]", STATUS_USAGE, "[0].lr must be");
    expect("optimizer.groups=[{'match':'*','beta1':1}]", STATUS_USAGE, "[0].beta1 must be");
    expect("optimizer.groups=[{'match':'*','beta2':1}]", STATUS_USAGE, "[0].beta2 must be");
    expect("optimizer.groups=[{'match':'*','eps':0}]", STATUS_USAGE, "[0].eps must be");
    expect("optimizer.groups=[{'match':'*','weight_decay':-1}]", STATUS_USAGE,
           "[0].weight_decay must");
    expect("optimizer.groups=[{'match':'*','momentum':1}]", STATUS_USAGE, "[0].momentum must be");
    expect("optimizer.groups=[{'match':'*','nesterov':2}]", STATUS_USAGE, "[0].nesterov must be");
    expect("optimizer.groups=[{'lr_mul':2}]", STATUS_CONFIG, "entry 1 has no `match`");
    expect("train.lr=0 train.min_lr=0 optimizer.groups=[{'match':'*'},{'match':'*','lr':1}]",
           STATUS_CONFIG, "optimizer.groups entry 2: lr follows the schedule as a multiple of");
    expect("train.lr=1e-20 train.min_lr=0 optimizer.groups=[{'match':'*','lr':1e-3}]",
           STATUS_CONFIG, "optimizer.groups entry 1: lr is more than 1e+09 times train.lr 1e-20");
    expect("train.lr=0 train.min_lr=0 optimizer.groups=[{'match':'*','lr_mul':2}]", STATUS_OK,
           NULL);
}

static void test_nesterov_needs_a_momentum(void **state)
{
    (void)state;
    expect("optimizer.kind=sgd optimizer.momentum=0 optimizer.nesterov=true", STATUS_CONFIG,
           "optimizer.nesterov: Nesterov momentum needs a momentum above 0");
    expect(
        "optimizer.groups=[{'match':'*'},{'match':'*','kind':muon,'momentum':0,'nesterov':true}]",
        STATUS_CONFIG, "optimizer.groups entry 2: Nesterov momentum needs a momentum above 0");
    expect("optimizer.kind=sgd optimizer.momentum=0 optimizer.nesterov=false", STATUS_OK, NULL);
}

static void test_muon_in_fp16_is_refused_on_a_gpu(void **state)
{
    (void)state;
    expect("optimizer.kind=muon run.device=cuda precision.mode=fp16", STATUS_CONFIG,
           "optimizer.kind: muon does not compute in fp16 on a GPU; set precision.mode to bf16");
    expect("run.device=cuda precision.mode=fp16 optimizer.groups=[{'match':'*','kind':muon}]",
           STATUS_CONFIG, "optimizer.groups entry 1: muon does not compute in fp16");
    expect("optimizer.kind=muon run.device=cuda precision.mode=bf16", STATUS_OK, NULL);
    expect("optimizer.kind=muon run.device=cpu precision.mode=fp16", STATUS_OK, NULL);
    expect("optimizer.kind=sgd run.device=cuda precision.mode=fp16", STATUS_OK, NULL);
}

static void test_settings_without_effect_warn_once(void **state)
{
    (void)state;
    expect("optimizer.momentum=0.8", STATUS_OK,
           "optimizer.momentum has no effect with optimizer.kind=adamw");
    expect("optimizer.nesterov=false", STATUS_OK,
           "optimizer.nesterov has no effect with optimizer.kind=adamw");
    expect("optimizer.kind=sgd train.beta1=0.8", STATUS_OK,
           "train.beta1 has no effect with optimizer.kind=sgd");
    expect("optimizer.kind=sgd train.beta2=0.8", STATUS_OK, "train.beta2 has no effect");
    expect("optimizer.kind=sgd train.eps=1e-6", STATUS_OK, "train.eps has no effect");
    expect("optimizer.groups=[{'match':'*','momentum':0.5}]", STATUS_OK,
           "optimizer.groups entry 1: momentum has no effect with adamw");
    expect("optimizer.groups=[{'match':'*'},{'match':'*','kind':sgd,'beta2':0.5}]", STATUS_OK,
           "optimizer.groups entry 2: beta2 has no effect with sgd");
    expect("optimizer.groups=[{'match':'*','kind':sgd,'eps':0.5}]", STATUS_OK, "eps has no effect");
    expect("optimizer.groups=[{'match':'*','nesterov':true}]", STATUS_OK, "nesterov has no effect");
    expect("optimizer.rounding=stochastic", STATUS_OK, "optimizer.rounding=stochastic has no");
}

static void test_settings_with_effect_are_silent(void **state)
{
    (void)state;
    expect("optimizer.kind=sgd train.beta1=0.9 train.eps=1e-8", STATUS_OK, NULL); /* defaults */
    expect("optimizer.kind=muon train.beta1=0.8 train.eps=1e-6 optimizer.momentum=0.9", STATUS_OK,
           NULL);
    expect("optimizer.momentum=0.8 optimizer.groups=[{'match':'*','kind':sgd}]", STATUS_OK, NULL);
    expect("optimizer.kind=sgd train.beta1=0.8 optimizer.groups=[{'match':'*','kind':adamw8bit}]",
           STATUS_OK, NULL);
    expect("optimizer.groups=[{'match':'*','kind':muon,'beta1':0.1,'momentum':0.9}]", STATUS_OK,
           NULL);
}

/* --- the header of a run -------------------------------------------------------------------- */

static void expect_line(const char *settings, const char *line)
{
    struct run_rig rig;
    struct text text;
    rig_open(&rig);
    rig_config(&rig, settings);
    text_init(&text, &rig.scratch.env);
    run_config_describe(&rig.config, &text);
    if (!strstr(text_string(&text), line))
        fail_msg("expected '%s' in\n%s", line, text_string(&text));
    text_free(&text);
    rig_close(&rig);
}

static void test_the_header_names_the_optimizer(void **state)
{
    (void)state;
    expect_line("", "update   adamw, betas 0.9 and 0.95, weight decay 0.1\n");
    expect_line("optimizer.kind=sgd", "update   sgd, momentum 0.9, weight decay 0.1\n");
    expect_line("optimizer.kind=muon",
                "update   muon, Nesterov momentum 0.95; adamw for all but hidden matrices, betas "
                "0.9 and 0.95, weight decay 0.1\n");
    expect_line("optimizer.groups=[{'match':'*norm*','kind':sgd}]",
                "; 1 group with own settings\n");
}

/* --- muon and tensor parallelism: a plan builds the run's store ------------------------------ */

static enum status plan_two_ranks(struct run_rig *rig, const char *settings)
{
    char all[1024];
    snprintf(all, sizeof all, "parallel.tp=2 zero.stage=1 %s", settings);
    rig_config(rig, all);
    struct plan_request request = run_plan_request(&rig->config, 2);
    struct plan_rank rank;
    return plan_rank_memory(&rig->scratch.env, &request, 0, NULL, NULL, &rank);
}

static void test_muon_needs_whole_matrices(void **state)
{
    (void)state;
    struct run_rig rig;
    rig_open(&rig);
    assert_int_equal(plan_two_ranks(&rig, "optimizer.kind=muon"), STATUS_CONFIG);
    scratch_expect(&rig.scratch,
                   "optimizer.kind: muon needs whole matrices: parallel.tp must be 1; ");
    assert_int_equal(plan_two_ranks(&rig, "optimizer.groups=[{'match':'*'},"
                                          "{'match':'*mlp*','kind':muon}]"),
                     STATUS_CONFIG);
    scratch_expect(&rig.scratch, "optimizer.groups entry 2: muon needs whole matrices");
    /* No tensor uses muon here: norms are no matrices, or another group takes all. */
    assert_int_equal(plan_two_ranks(&rig, "optimizer.groups=[{'match':'*norm*','kind':muon}]"),
                     STATUS_OK);
    assert_int_equal(plan_two_ranks(&rig, "optimizer.kind=muon "
                                          "optimizer.groups=[{'match':'*','kind':adamw}]"),
                     STATUS_OK);
    rig_close(&rig);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words_and_defaults),
        cmocka_unit_test(test_keys_replace_the_defaults),
        cmocka_unit_test(test_groups_inherit_what_they_leave_out),
        cmocka_unit_test(test_the_printed_form_parses_to_the_same),
        cmocka_unit_test(test_unset_fields_are_not_printed),
        cmocka_unit_test(test_wrong_values_are_refused),
        cmocka_unit_test(test_nesterov_needs_a_momentum),
        cmocka_unit_test(test_muon_in_fp16_is_refused_on_a_gpu),
        cmocka_unit_test(test_settings_without_effect_warn_once),
        cmocka_unit_test(test_settings_with_effect_are_silent),
        cmocka_unit_test(test_the_header_names_the_optimizer),
        cmocka_unit_test(test_muon_needs_whole_matrices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
