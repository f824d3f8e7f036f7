/* Options that may have no value: how it is written, stored, printed and described. */
#include "base/options_fixture.h"

struct item {
    const char *name;
    double rate;
    int mode, on;
};
struct values {
    double rate;
    int mode, on;
    double preset;
    struct option_list items;
};

#define VALUE(f) .offset = offsetof(struct values, f)
#define ITEM(f)  .offset = offsetof(struct item, f)
static const struct option fields[] = {
    {.key = "name", .type = OPTION_STRING, ITEM(name)},
    {.key = "rate", .type = OPTION_REAL, ITEM(rate), .unset = "inherit"},
    {.key = "mode", .type = OPTION_CHOICE, ITEM(mode), .unset = "inherit", .choices = case_modes},
    {.key = "on", .type = OPTION_BOOL, ITEM(on), .unset = "inherit"},
};
static const struct option list[] = {
    {.key = "a.rate",
     .type = OPTION_REAL,
     VALUE(rate),
     .unset = "auto",
     .ranged = true,
     .max = 2,
     .help = "a rate"},
    {.key = "a.mode", .type = OPTION_CHOICE, VALUE(mode), .unset = "auto", .choices = case_modes},
    {.key = "a.on", .type = OPTION_BOOL, VALUE(on), .unset = "auto", .help = "a switch"},
    {.key = "a.preset", .type = OPTION_REAL, VALUE(preset), .unset = "auto", .fallback = "3"},
    {.key = "a.items",
     .type = OPTION_LIST,
     VALUE(items),
     .fields = fields,
     .field_count = 4,
     .element_bytes = sizeof(struct item)},
};
static const struct option_table table = {.title = "unset", .options = list, .count = 5};

struct unset {
    struct fixture f;
    struct env *env;
    struct options *options;
    struct values v;
};

static int setup(void **state)
{
    struct unset *u = calloc(1, sizeof *u);
    u->env = fixture_open(&u->f);
    *state = u;
    assert_int_equal(options_create(u->env, &u->options), STATUS_OK);
    return options_bind(u->options, &table, &u->v) == STATUS_OK ? 0 : -1;
}

static int teardown(void **state)
{
    struct unset *u = *state;
    options_destroy(u->options);
    fixture_close(&u->f);
    free(u);
    return 0;
}

static enum status yaml(struct unset *u, const char *text)
{
    return options_load_yaml_text(u->options, text, strlen(text), "c.yaml");
}

static void expect_print(struct unset *u, const char *expected)
{
    struct text text;
    text_init(&text, u->env);
    options_print_yaml(u->options, &text);
    assert_string_equal(text_string(&text), expected);
    text_free(&text);
}

static void test_default(void **state)
{
    struct unset *u = *state;
    assert_true(isnan(u->v.rate) && u->v.mode == -1 && u->v.on == -1 && u->v.preset == 3);
    assert_true(options_is_default(u->options, "a.rate"));
    assert_true(options_is_default(u->options, "a.on"));
    assert_true(options_is_default(u->options, "a.preset"));
    expect_print(u, "a:\n  rate: auto\n  mode: auto\n  on: auto\n  preset: 3\n  items: []\n");
}

static void test_values(void **state)
{
    struct unset *u = *state;
    assert_int_equal(yaml(u, "a: {rate: 0, mode: none, on: no, preset: auto}"), STATUS_OK);
    assert_true(u->v.rate == 0 && u->v.mode == 0 && u->v.on == 0 && isnan(u->v.preset));
    assert_false(options_is_default(u->options, "a.rate"));
    assert_false(options_is_default(u->options, "a.mode"));
    assert_false(options_is_default(u->options, "a.on"));
    assert_false(options_is_default(u->options, "a.preset"));
    expect_print(u, "a:\n  rate: 0\n  mode: none\n  on: false\n  preset: auto\n  items: []\n");
    assert_int_equal(yaml(u, "a: {rate: 0.5, mode: full, on: yes}"), STATUS_OK);
    assert_true(u->v.rate == 0.5 && u->v.mode == 2 && u->v.on == 1);
    assert_int_equal(yaml(u, "a: {rate: null, mode: ~, on: }"), STATUS_OK);
    assert_true(isnan(u->v.rate) && u->v.mode == -1 && u->v.on == -1);
    assert_int_equal(options_set(u->options, "a.preset", "3", "-"), STATUS_OK);
    assert_true(options_is_set(u->options, "a.preset"));
    assert_true(options_is_default(u->options, "a.preset")); /* set, but to the default */
}

static void test_flags(void **state)
{
    struct unset *u = *state;
    char *args[] = {"--a.on", "--a.rate=auto"}, *no[] = {"--no-a.on"},
         *automatic[] = {"--a.on=auto"};
    const char *words[2];
    int count;
    assert_int_equal(options_load_flags(u->options, 2, args, words, &count), STATUS_OK);
    assert_true(u->v.on == 1 && isnan(u->v.rate));
    assert_int_equal(options_load_flags(u->options, 1, no, words, &count), STATUS_OK);
    assert_int_equal(u->v.on, 0);
    assert_int_equal(options_load_flags(u->options, 1, automatic, words, &count), STATUS_OK);
    assert_int_equal(u->v.on, -1);
}

/* Fields without a value are left out, and reading the text gives the same list. */
static void test_lists(void **state)
{
    struct unset *u = *state;
    static const char printed[] = "a:\n  rate: auto\n  mode: auto\n  on: auto\n  preset: 3\n"
                                  "  items:\n"
                                  "    - name: p\n"
                                  "    - name: q\n      rate: 1\n      on: false\n"
                                  "    - name: r\n      mode: selective\n      on: true\n";
    assert_int_equal(yaml(u, "a.items: [{name: p, rate: inherit}, {name: q, rate: 1, on: no},"
                             " {name: r, mode: selective, on: yes, rate: null}]"),
                     STATUS_OK);
    expect_print(u, printed);
    assert_int_equal(yaml(u, "a.items: []"), STATUS_OK);
    assert_int_equal(yaml(u, printed), STATUS_OK);
    const struct item *items = u->v.items.items;
    assert_int_equal(u->v.items.count, 3);
    assert_true(isnan(items[0].rate) && items[0].mode == -1 && items[0].on == -1);
    assert_true(items[1].rate == 1 && items[1].mode == -1 && items[1].on == 0);
    assert_true(isnan(items[2].rate) && items[2].mode == 1 && items[2].on == 1);
    expect_print(u, printed);
}

static void test_refusals(void **state)
{
    struct unset *u = *state;
    assert_refused(u, yaml(u, "a.rate: 3"), CONFIG,
                   "c.yaml:1: a.rate must be auto or a number from 0 to 2, not '3'");
    assert_refused(u, yaml(u, "a.rate: nan"), CONFIG,
                   "c.yaml:1: a.rate must be auto or a number from 0 to 2, not 'nan'");
    assert_refused(u, yaml(u, "a.on: x"), CONFIG,
                   "c.yaml:1: a.on must be auto or true or false, not 'x'");
    assert_refused(u, yaml(u, "a.items: [{mode: auto}]"), CONFIG,
                   "c.yaml:1: a.items[0].mode must be inherit or one of none, selective, full, "
                   "not 'auto'");
}

static void test_help(void **state)
{
    struct unset *u = *state;
    struct text text;
    text_init(&text, u->env);
    options_print_help(u->options, &text, 80);
    assert_contains(text_string(&text), "--a.rate=X      a rate [auto]\n");
    assert_contains(text_string(&text), "--[no-]a.on     a switch [auto]\n");
    text_clear(&text);
    options_print_markdown(u->options, OPTIONS_KEYS, NULL, &text);
    assert_contains(text_string(&text), "| `a.rate` | number | `auto` | a rate |\n");
    text_clear(&text);
    options_print_man(u->options, &text);
    assert_contains(text_string(&text), "\\fB\\-\\-[no\\-]a.on\\fR\na switch [auto]\n");
    text_free(&text);
}

static void test_kept_memory(void **state)
{
    struct unset *u = *state;
    int *numbers;
    assert_int_equal(options_keep_memory(u->options, 3 * sizeof *numbers, &numbers), STATUS_OK);
    assert_true(numbers[0] == 0 && numbers[2] == 0);
}

int main(void)
{
#define UNSET(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        UNSET(test_default),  UNSET(test_values), UNSET(test_flags),       UNSET(test_lists),
        UNSET(test_refusals), UNSET(test_help),   UNSET(test_kept_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
