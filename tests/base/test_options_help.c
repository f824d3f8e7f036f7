/* The exact help page, its width, the man page and the words for completion. */
#include "base/options_fixture.h"

static void test_page(void **state)
{
    struct options_fixture *o = *state;
    struct text text;
    text_init(&text, o->env);
    options_print_help(o->options, &text, 80);
    assert_string_equal(
        text_string(&text),
        "Training:\n"
        "  -n, --train.steps=N          optimizer steps to take [1000]\n"
        "      --seed, --train.seed=N   where randomness begins\n"
        "      --train.lr=X             peak learning rate [3e-4]\n"
        "      --data.path=FILES        text to learn from\n"
        "      --data.note=TEXT         [a note]\n"
        "      --train.schedule=NAME    how the learning rate moves after the warm-up;\n"
        "                               one of constant, linear, cosine, wsd [cosine]\n"
        "      --[no-]train.shuffle     take samples in random order [true]\n"
        "      --train.dry              only look\n"
        "      --optimizer.groups=LIST  rates by parameter name; the last match wins; a\n"
        "                               list of {match: GLOB, lr_mul: X, first: N,\n"
        "                               mode: NAME, frozen: BOOL}\n"
        "      --data.cache.deep=N      a key of three parts\n"
        "\n"
        "This command:\n"
        "      --out=DIR                run folder\n"
        "  -j, --json                   print JSON\n"
        "  -q, --quiet                  print less\n"
        "  -c, --count=N                how many\n");
    text_free(&text);
}

static void test_narrow(void **state)
{
    struct options_fixture *o = *state;
    struct text text;
    text_init(&text, o->env);
    options_print_help(o->options, &text, 40);
    assert_contains(text_string(&text), "  -j, --json        print JSON\n");
    assert_contains(text_string(&text), "      --data.path=FILES\n"
                                        "                    text to learn from\n");
    text_free(&text);
}

static void test_width(void **state)
{
    struct options_fixture *o = *state;
    for (int width = 40; width <= 200; width += 20) {
        struct text text;
        text_init(&text, o->env);
        options_print_help(o->options, &text, width);
        for (const char *line = text_string(&text), *end; *line; line = end + 1) {
            end = strchr(line, '\n');
            assert_true(end - line <= width);
            assert_true(end == line || end[-1] != ' ');
        }
        text_free(&text);
    }
}

static void test_hidden_and_grouped(void **state)
{
    (void)state;
    static const struct option first[] = {{.key = "a.x", .type = OPTION_BOOL, .hidden = true}};
    static const struct option second[] = {{.key = "b.x", .type = OPTION_BOOL, .help = "one"}};
    static const struct option third[] = {{.key = "c.x", .type = OPTION_BOOL, .help = "two"}};
    static const struct option_table tables[] = {
        {"hidden", first, 1}, {"seen", second, 1}, {"seen", third, 1}};
    struct fixture f;
    struct env *env = fixture_open(&f);
    struct options *options;
    struct text text;
    bool targets[3];
    text_init(&text, env);
    assert_int_equal(options_create(env, &options), STATUS_OK);
    options_print_help(options, &text, 80);
    assert_string_equal(text_string(&text), "");
    for (int i = 0; i < 3; i++)
        assert_int_equal(options_bind(options, &tables[i], &targets[i]), STATUS_OK);
    options_print_help(options, &text, 80);
    assert_string_equal(text_string(&text), "Seen:\n  --b.x  one\n  --c.x  two\n");
    text_free(&text);
    options_destroy(options);
    fixture_close(&f);
}

static void test_man(void **state)
{
    struct options_fixture *o = *state;
    struct text text;
    text_init(&text, o->env);
    options_print_man(o->options, &text);
    const char *page = text_string(&text);
    assert_memory_equal(page, ".SH OPTIONS\n.SS Training\n.TP\n", 29);
    assert_contains(page, "\\fB\\-n\\fR, \\fB\\-\\-train.steps\\fR=\\fIN\\fR\n"
                          "optimizer steps to take [1000]\n");
    assert_contains(page, "\\fB\\-\\-seed\\fR, \\fB\\-\\-train.seed\\fR=\\fIN\\fR\n");
    assert_contains(page, "\\fB\\-\\-[no\\-]train.shuffle\\fR\n");
    assert_contains(page, "after the warm\\-up; one of constant, linear, cosine, wsd [cosine]\n");
    assert_null(strstr(page, "ratio"));
    text_free(&text);
}

static void test_flags(void **state)
{
    struct options_fixture *o = *state;
    struct text text;
    text_init(&text, o->env);
    options_print_flags(o->options, &text);
    assert_string_equal(text_string(&text),
                        "--train.steps=\n--train.seed=\n--seed=\n--train.lr=\n--data.path=\n"
                        "--data.note=\n--train.schedule=\n--train.shuffle\n"
                        "--train.dry\n--optimizer.groups=\n--data.cache.deep=\n"
                        "--out=\n--json\n--quiet\n--count=\n");
    text_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        OPTIONS_TEST(test_page),
        OPTIONS_TEST(test_width),
        cmocka_unit_test(test_hidden_and_grouped),
        OPTIONS_TEST(test_man),
        OPTIONS_TEST(test_flags),
        OPTIONS_TEST(test_narrow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
