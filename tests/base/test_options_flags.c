/* All forms of the command line, and what it rejects. */
#include "base/options_fixture.h"

enum { WORDS = 16 };

struct line {
    const char *words[WORDS];
    int count;
};

/* Load the NULL-terminated arguments. */
static enum status flags(struct options_fixture *o, struct line *line, char *const *argv)
{
    int argc = 0;
    while (argv[argc])
        argc++;
    return options_load_flags(o->options, argc, argv, line->words, &line->count);
}
#define ARGS(...)         \
    (char *const[])       \
    {                     \
        __VA_ARGS__, NULL \
    }

static void test_forms(void **state)
{
    struct options_fixture *o = *state;
    struct line line;
    assert_int_equal(flags(o, &line,
                           ARGS("train", "--train.steps=5", "--train.lr", "0.5", "--train.dry",
                                "--no-train.shuffle", "more", "--json=no", "--out", "-", "-")),
                     STATUS_OK);
    assert_int_equal(line.count, 3);
    assert_string_equal(line.words[0], "train");
    assert_string_equal(line.words[1], "more");
    assert_string_equal(line.words[2], "-");
    assert_int_equal(o->v.train.steps, 5);
    assert_true(o->v.train.lr == 0.5);
    assert_true(o->v.train.dry);
    assert_false(o->v.train.shuffle);
    assert_false(o->v.command.json);
    assert_string_equal(o->v.command.out, "-");
    assert_string_equal(options_origin(o->options, "train.lr"), "--train.lr");
}

static void test_letters(void **state)
{
    struct options_fixture *o = *state;
    struct line line;
    assert_int_equal(flags(o, &line, ARGS("-n4", "-c", "-7", "-jq")), STATUS_OK);
    assert_int_equal(o->v.train.steps, 4);
    assert_int_equal(o->v.command.count, -7);
    assert_true(o->v.command.json && o->v.command.quiet);
    assert_int_equal(flags(o, &line, ARGS("-jn", "6", "x")), STATUS_OK);
    assert_int_equal(o->v.train.steps, 6);
    assert_int_equal(line.count, 1);
    assert_string_equal(options_origin(o->options, "train.steps"), "-n");
}

/* A key's short flag: the last of both flags wins, and both set the key. */
static void test_short_forms(void **state)
{
    struct options_fixture *o = *state;
    struct line line;
    static const char yaml[] = "seed: 3\n";
    assert_int_equal(flags(o, &line, ARGS("--seed=5", "word")), STATUS_OK);
    assert_int_equal(o->v.train.seed, 5);
    assert_int_equal(line.count, 1);
    assert_true(options_is_set(o->options, "train.seed"));
    assert_string_equal(options_origin(o->options, "train.seed"), "--seed");
    assert_int_equal(flags(o, &line, ARGS("--seed", "6", "--train.seed=7")), STATUS_OK);
    assert_int_equal(o->v.train.seed, 7);
    assert_int_equal(flags(o, &line, ARGS("--train.seed=7", "--seed=8")), STATUS_OK);
    assert_int_equal(o->v.train.seed, 8);
    assert_true(options_takes_next(o->options, "--seed"));
    assert_refused(o, flags(o, &line, ARGS("--seed")), USAGE, "--seed wants a value: --seed=N");
    assert_refused(o, flags(o, &line, ARGS("--seed=x")), USAGE,
                   "--seed must be a whole number, not 'x'");
    assert_refused(o, flags(o, &line, ARGS("--sead=1")), USAGE,
                   "unknown flag '--sead' (did you mean '--seed'?)");
    /* the short name is a flag, not a key */
    assert_int_equal(options_load_yaml_text(o->options, yaml, strlen(yaml), "t.yaml"),
                     STATUS_CONFIG);
}

static void test_more_forms(void **state)
{
    struct options_fixture *o = *state;
    struct line line;
    assert_int_equal(flags(o, &line, ARGS("--out=a=b", "--", "--train.steps=9", "-n")), STATUS_OK);
    assert_string_equal(o->v.command.out, "a=b");
    assert_int_equal(line.count, 2);
    assert_string_equal(line.words[0], "--train.steps=9");
    assert_int_equal(o->v.train.steps, 1000);
    assert_int_equal(flags(o, &line, ARGS("--train.steps=1", "--train.steps=2")), STATUS_OK);
    assert_int_equal(o->v.train.steps, 2);
    assert_int_equal(flags(o, &line, ARGS("--optimizer.groups=[{lr-mul: 1}]")), STATUS_USAGE);
    assert_int_equal(flags(o, &line, ARGS("--optimizer.groups", "[{lr_mul: 3, match: x}]")),
                     STATUS_OK);
    assert_int_equal(o->v.train.groups.count, 1);
    assert_int_equal(flags(o, &line, ARGS("--out=")), STATUS_OK);
    assert_string_equal(o->v.command.out, "");
    assert_int_equal(options_load_flags(o->options, 0, NULL, NULL, &line.count), STATUS_OK);
}

static void test_refusals(void **state)
{
    struct options_fixture *o = *state;
    struct line line;
    assert_refused(o, flags(o, &line, ARGS("--train.stpes=1")), USAGE,
                   "unknown flag '--train.stpes' (did you mean '--train.steps'?)");
    assert_refused(o, flags(o, &line, ARGS("--no-such")), USAGE, "unknown flag '--no-such'");
    assert_refused(o, flags(o, &line, ARGS("-x")), USAGE,
                   "unknown flag '-x'; a text that begins with '-' goes after --");
    assert_refused(o, flags(o, &line, ARGS("--out")), USAGE, "--out wants a value: --out=DIR");
    assert_refused(o, flags(o, &line, ARGS("--out", "--json")), USAGE,
                   "--out wants a value: --out=DIR");
    assert_refused(o, flags(o, &line, ARGS("-n")), USAGE, "-n wants a value: -n N");
    assert_refused(o, flags(o, &line, ARGS("--train.steps=abc")), USAGE,
                   "--train.steps must be a whole number of at least 1, not 'abc'");
    assert_refused(o, flags(o, &line, ARGS("-nx")), USAGE,
                   "-n must be a whole number of at least 1, not 'x'");
    assert_refused(o, flags(o, &line, ARGS("--train.steps=16GB")), USAGE,
                   "--train.steps must be a whole number of at least 1, not '16GB' (did you mean "
                   "'16G'?)");
    assert_refused(o, flags(o, &line, ARGS("--no-out")), USAGE,
                   "only a bare boolean has a --no- form, not '--no-out'");
    assert_refused(o, flags(o, &line, ARGS("--no-json=1")), USAGE,
                   "only a bare boolean has a --no- form, not '--no-json=1'");
    char *longest = malloc(5001);
    memset(longest, '-', 5000);
    longest[5000] = 0;
    assert_int_equal(flags(o, &line, ARGS(longest)), STATUS_USAGE);
    free(longest);
}

/* A flag with an optional value: --page, --page=8080. */
static void test_optional_value(void **state)
{
    struct options_fixture *o = *state;
    static const struct option list[] = {{.key = "page",
                                          .type = OPTION_STRING,
                                          .flag_only = true,
                                          .bare = "0",
                                          .value_name = "PORT"}};
    static const struct option_table table = {"page", list, 1};
    const char *page = NULL;
    struct line line;
    struct text help;
    assert_int_equal(options_bind(o->options, &table, &page), STATUS_OK);
    assert_string_equal(page, "");
    assert_int_equal(flags(o, &line, ARGS("--page", "word")), STATUS_OK);
    assert_string_equal(page, "0");
    assert_int_equal(line.count, 1); /* the next argument is not its value */
    assert_string_equal(line.words[0], "word");
    assert_int_equal(flags(o, &line, ARGS("--page=8080")), STATUS_OK);
    assert_string_equal(page, "8080");
    assert_false(options_takes_next(o->options, "--page"));
    text_init(&help, o->env);
    options_print_help(o->options, &help, 100);
    assert_non_null(strstr(text_string(&help), "--page[=PORT]"));
    text_clear(&help);
    options_print_man(o->options, &help);
    assert_non_null(strstr(text_string(&help), "page\\fR[=\\fIPORT\\fR]"));
    text_free(&help);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        OPTIONS_TEST(test_forms),       OPTIONS_TEST(test_letters),
        OPTIONS_TEST(test_short_forms), OPTIONS_TEST(test_more_forms),
        OPTIONS_TEST(test_refusals),    OPTIONS_TEST(test_optional_value),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
