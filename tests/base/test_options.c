/* Defaults, values and their checks, precedence of sources, the environment, "did you mean", and
 * failure of every allocation. */
#include "base/options_fixture.h"

static enum status set(struct options_fixture *o, const char *key, const char *value)
{
    return options_set(o->options, key, value, "the test");
}

static void test_defaults(void **state)
{
    struct options_fixture *o = *state;
    assert_int_equal(o->v.train.steps, 1000);
    assert_int_equal(o->v.train.seed, 0);
    assert_true(o->v.train.lr == 3e-4);
    assert_string_equal(o->v.train.data, "");
    assert_string_equal(o->v.train.note, "a note");
    assert_int_equal(o->v.train.schedule, 2);
    assert_true(o->v.train.shuffle);
    assert_int_equal(o->v.train.groups.count, 0);
    assert_string_equal(o->v.command.out, "");
    assert_false(options_is_set(o->options, "train.steps"));
    assert_string_equal(options_origin(o->options, "train.steps"), "default");
}

static void test_integers(void **state)
{
    struct options_fixture *o = *state;
    static const struct {
        const char *text;
        int64_t value;
    } good[] = {{"0", 0},
                {"-7", -7},
                {"+7", 7},
                {"1_000", 1000},
                {"2k", 2000},
                {"4M", 4000000},
                {"-2G", -2000000000},
                {"007", 7},
                {"1e9", 1000000000},
                {"-2.5E+4", -25000},
                {"1.5M", 1500000},
                {"0e99", 0},
                {"9223372036854775807", INT64_MAX},
                {"-9223372036854775808", INT64_MIN}};
    static const char *const bad[] = {"",
                                      "x",
                                      "1x",
                                      "1.5",
                                      "1__0",
                                      "_1",
                                      "1_",
                                      "0x10",
                                      "1kk",
                                      "1 ",
                                      " 1",
                                      "--1",
                                      "9223372036854775808",
                                      "9999999999G",
                                      "1e",
                                      "1e-1",
                                      "1e19",
                                      "1.5e0",
                                      "1.k",
                                      ".5k",
                                      "1.5.5M",
                                      "1.0001k",
                                      "1.5_0k",
                                      "1e3k"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_int_equal(set(o, "train.seed", good[i].text), STATUS_OK);
        assert_int_equal(o->v.train.seed, good[i].value);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(set(o, "train.seed", bad[i]), STATUS_USAGE);
    assert_int_equal(o->v.train.seed, INT64_MIN);
    assert_refused(o, set(o, "train.seed", "ten"), USAGE,
                   "the test: train.seed must be a whole number, not 'ten'");
    assert_refused(o, set(o, "train.steps", "0"), USAGE,
                   "the test: train.steps must be a whole number of at least 1, not '0'");
}

static void test_reals(void **state)
{
    struct options_fixture *o = *state;
    static const struct {
        const char *text;
        double value;
    } good[] = {{"1", 1},          {"-2.5e-3", -2.5e-3}, {".5", 0.5},
                {"inf", INFINITY}, {"-.inf", -INFINITY}, {"5e-324", 5e-324},
                {"1E3", 1000},     {"1k", 1000},         {"1.5k", 1500}};
    static const char *const bad[] = {"",      "x",  "1x",  "1kk", "nan",
                                      "0x1p3", " 1", "1,5", "e",   "1e400"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_int_equal(set(o, "train.ratio", good[i].text), STATUS_OK);
        assert_true(o->v.train.ratio == good[i].value);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(set(o, "train.ratio", bad[i]), STATUS_USAGE);
    assert_refused(o, set(o, "train.lr", "11"), USAGE,
                   "the test: train.lr must be a number from 0 to 10, not '11'");
}

static void test_booleans(void **state)
{
    struct options_fixture *o = *state;
    static const char *const words[] = {"false", "true", "no", "yes",   "off",
                                        "on",    "0",    "1",  "False", "TRUE"};
    for (int i = 0; i < 10; i++) {
        assert_int_equal(set(o, "train.dry", words[i]), STATUS_OK);
        assert_int_equal(o->v.train.dry, i % 2);
    }
    assert_refused(o, set(o, "train.dry", "maybe"), USAGE,
                   "the test: train.dry must be true or false, not 'maybe'");
}

static void test_choices(void **state)
{
    struct options_fixture *o = *state;
    assert_int_equal(set(o, "train.schedule", "wsd"), STATUS_OK);
    assert_int_equal(o->v.train.schedule, 3);
    assert_refused(o, set(o, "train.schedule", "cosin"), USAGE,
                   "the test: train.schedule must be one of constant, linear, cosine, wsd, "
                   "not 'cosin' (did you mean 'cosine'?)");
    assert_refused(
        o, set(o, "train.schedule", "a\nb"), USAGE,
        "the test: train.schedule must be one of constant, linear, cosine, wsd, not 'a\\nb'");
}

static void test_strings_are_copied(void **state)
{
    struct options_fixture *o = *state;
    char value[] = "first";
    assert_int_equal(set(o, "data.path", value), STATUS_OK);
    value[0] = 'X';
    const char *first = o->v.train.data;
    assert_string_equal(first, "first");
    for (int i = 0; i < 200; i++)
        assert_int_equal(set(o, "data.path", "again"), STATUS_OK);
    assert_string_equal(first, "first");
    assert_string_equal(o->v.train.data, "again");
    assert_string_equal(options_origin(o->options, "data.path"), "the test");
}

static void test_lists(void **state)
{
    struct options_fixture *o = *state;
    assert_int_equal(
        set(o, "optimizer.groups",
            "[{match: '*.bias', lr_mul: 0.5}, {}, {first: 3, mode: full, frozen: yes}]"),
        STATUS_OK);
    assert_int_equal(o->v.train.groups.count, 3);
    const struct case_group *groups = o->v.train.groups.items;
    assert_string_equal(groups[0].match, "*.bias");
    assert_true(groups[0].lr_mul == 0.5);
    assert_string_equal(groups[1].match, "*");
    assert_true(groups[1].lr_mul == 1);
    assert_int_equal(groups[2].first, 3);
    assert_int_equal(groups[2].mode, 2);
    assert_true(groups[2].frozen);
    assert_int_equal(set(o, "optimizer.groups", ""), STATUS_OK);
    assert_int_equal(o->v.train.groups.count, 0);
    assert_string_equal(groups[0].match, "*.bias");
    assert_refused(
        o, options_set(o->options, "optimizer.groups", "[{}, {first: 11}]", "--optimizer.groups"),
        USAGE, "--optimizer.groups[1].first must be a whole number from 0 to 10, not '11'");
    assert_refused(o, options_set(o->options, "optimizer.groups", "7", "--optimizer.groups"), USAGE,
                   "--optimizer.groups must be a list of {match: GLOB, lr_mul: X, first: N, "
                   "mode: NAME, frozen: BOOL}, not a single value");
    assert_int_equal(options_set(o->options, "optimizer.groups", "[{]", "--optimizer.groups"),
                     STATUS_USAGE);
    assert_contains(o->f.heard.line, "--optimizer.groups: not valid YAML: ");
}

static void test_precedence(void **state)
{
    struct options_fixture *o = *state;
    char *flags[] = {"--train.steps=3"};
    const char *words[1];
    int word_count;
    assert_int_equal(options_load_flags(o->options, 1, flags, words, &word_count), STATUS_OK);
    setenv("SIFR_TRAIN_STEPS", "2", 1);
    setenv("SIFR_TRAIN_SEED", "2", 1);
    setenv("SIFR_DATA_CACHE_DEEP", "", 1);
    setenv("SIFR_OUT", "flag only", 1);
    assert_int_equal(options_load_environment(o->options), STATUS_OK);
    assert_int_equal(load(o, "train: {steps: 1, seed: 1}\ndata.cache.deep: 1\n"), STATUS_OK);
    assert_int_equal(o->v.train.steps, 3);
    assert_int_equal(o->v.train.seed, 2);
    assert_int_equal(o->v.train.deep, 1);
    assert_string_equal(o->v.command.out, "");
    assert_string_equal(options_origin(o->options, "train.steps"), "--train.steps");
    assert_string_equal(options_origin(o->options, "train.seed"), "SIFR_TRAIN_SEED");
    assert_string_equal(options_origin(o->options, "data.cache.deep"), "c.yaml:2");
    const char *text; /* the only variable that was not overridden */
    int next = 0;
    assert_string_equal(options_next_variable(o->options, &next, &text), "train.seed");
    assert_string_equal(text, "2");
    assert_null(options_next_variable(o->options, &next, &text));
    /* Overridden values are checked, too. */
    assert_int_equal(load(o, "train.steps: x"), STATUS_CONFIG);
    setenv("SIFR_TRAIN_SEED", "x", 1);
    assert_refused(o, options_load_environment(o->options), CONFIG,
                   "SIFR_TRAIN_SEED must be a whole number, not 'x'");
    unsetenv("SIFR_TRAIN_STEPS");
    unsetenv("SIFR_TRAIN_SEED");
    unsetenv("SIFR_DATA_CACHE_DEEP");
    unsetenv("SIFR_OUT");
}

static void test_unknown_variables(void **state)
{
    struct options_fixture *o = *state;
    static const struct {
        const char *variable, *line; /* NULL = no warning */
    } cases[] = {
        {"SIFR_TRAIN_STPES",
         "environment variable SIFR_TRAIN_STPES matches no key (did you mean SIFR_TRAIN_STEPS?)"},
        {"SIFR_TRIAN_STEPS",
         "environment variable SIFR_TRIAN_STEPS matches no key (did you mean SIFR_TRAIN_STEPS?)"},
        {"SIFR_TRAIN_WINTERBOTTOM", "environment variable SIFR_TRAIN_WINTERBOTTOM matches no key"},
        {"SIFR_TRAIN_STEPS", NULL},
        {"SIFR_ELSEWHERE_KEY", NULL},
        {"SIFR_", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        snprintf(o->f.heard.line, sizeof o->f.heard.line, "nothing");
        setenv(cases[i].variable, "3", 1);
        options_warn_environment(o->options);
        unsetenv(cases[i].variable);
        assert_string_equal(o->f.heard.line, cases[i].line ? cases[i].line : "nothing");
    }
}

static void test_nearest(void **state)
{
    struct options_fixture *o = *state;
    static const char *const keys[] = {"train.steps", "train.seed", "model.width", "out"};
    assert_string_equal(options_nearest("train.stpes", keys, 4), "train.steps");
    assert_string_equal(options_nearest("train.sed", keys, 4), "train.seed");
    assert_string_equal(options_nearest("steps", keys, 4), "train.steps");
    assert_string_equal(options_nearest("data.width", keys, 4), "model.width");
    assert_string_equal(options_nearest("oot", keys, 4), "out");
    assert_null(options_nearest("zebra", keys, 4));
    assert_null(options_nearest("", keys, 4));
    assert_null(options_nearest("x", keys, 0));
    char *longest = malloc(5001);
    memset(longest, 'x', 5000);
    longest[5000] = 0;
    assert_null(options_nearest(longest, keys, 4));
    free(longest);
    assert_refused(o, set(o, "train.step", "1"), USAGE,
                   "the test: unknown key 'train.step' (did you mean 'train.steps'?)");
    assert_refused(o, set(o, "zebra", "1"), USAGE, "the test: unknown key 'zebra'");
}

static enum status bind_and_load(struct env *env, struct case_values *values)
{
    static const char yaml[] = "train: {steps: 5, schedule: wsd}\ndata.path: a/b\n"
                               "optimizer.groups: [{match: a}, {match: b}, {}, {}, {match: e}]\n";
    struct options *options;
    struct text text;
    TRY(case_bind(env, values, &options));
    text_init(&text, env);
    enum status st = options_load_yaml_text(options, yaml, strlen(yaml), "c.yaml");
    if (st == STATUS_OK) {
        options_print_yaml(options, &text);
        options_print_help(options, &text, 80);
        options_print_man(options, &text);
        st = text.status;
    }
    text_free(&text);
    options_destroy(options);
    return st;
}

static void test_every_allocation_fails(void **state)
{
    (void)state;
    struct fixture f;
    struct env *env = fixture_open(&f);
    struct case_values values;
    enum status st = STATUS_MEMORY;
    int n = 0;
    while (st != STATUS_OK) {
        mem_fail_at(env->mem, ++n);
        st = bind_and_load(env, &values);
        assert_true(st == STATUS_OK || st == STATUS_MEMORY);
        assert_int_equal(mem_total(env->mem), 0);
        assert_true(n < 1000);
    }
    assert_true(n > 15);
    mem_fail_at(env->mem, 0);
    fixture_close(&f);
}

/* Keys of earlier versions are accepted from every source and have no effect. */
static void test_removed_keys(void **state)
{
    static const struct option list[] = {
        {.key = "engine.now", .type = OPTION_INT, .fallback = "3"},
        {.key = "engine.old", .type = OPTION_BOOL, .removed = "it is always on"},
    };
    static const struct option_table table = {"engine", list, 2};
    static const char yaml[] = "engine: {now: 4, old: true}\n";
    struct options_fixture *o = *state;
    struct options *options;
    struct text text;
    int64_t now = 0;
    assert_int_equal(options_create(o->env, &options), STATUS_OK);
    assert_int_equal(options_bind(options, &table, &now), STATUS_OK);
    assert_int_equal(now, 3);
    assert_int_equal(options_load_yaml_text(options, yaml, strlen(yaml), "c.yaml"), STATUS_OK);
    assert_int_equal(options_set(options, "engine.old", "false", "--engine.old"), STATUS_OK);
    assert_int_equal(now, 4);
    assert_refused(o, options_set(options, "engine.old", "x", "the test"), USAGE,
                   "the test: engine.old must be true or false, not 'x'");
    options_warn_removed(options);
    text_init(&text, o->env);
    options_print_yaml(options, &text);
    options_print_help(options, &text, 80);
    options_print_flags(options, &text);
    assert_null(strstr(text_string(&text), "old"));
    text_free(&text);
    options_destroy(options);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        OPTIONS_TEST(test_defaults),     OPTIONS_TEST(test_integers),
        OPTIONS_TEST(test_reals),        OPTIONS_TEST(test_booleans),
        OPTIONS_TEST(test_choices),      OPTIONS_TEST(test_strings_are_copied),
        OPTIONS_TEST(test_lists),        OPTIONS_TEST(test_precedence),
        OPTIONS_TEST(test_nearest),      OPTIONS_TEST(test_unknown_variables),
        OPTIONS_TEST(test_removed_keys), cmocka_unit_test(test_every_allocation_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
