/* Files: nested and dotted keys, lists in both styles, and the location in every error. */
#include <unistd.h>
#include "base/options_fixture.h"

static void test_nested_and_flat(void **state)
{
    struct options_fixture *o = *state;
    assert_int_equal(load(o, "# a comment\n"
                             "train:\n"
                             "  steps: 1_500\n"
                             "  lr: 1e-3        # after a value\n"
                             "  shuffle: no\n"
                             "train.seed: 9\n"
                             "optimizer:\n"
                             "data:\n"
                             "  path: \"a b\\u00e9\"\n"
                             "  note: 'single ''quoted'''\n"
                             "  cache:\n"
                             "    deep: 4\n"),
                     STATUS_OK);
    assert_int_equal(o->v.train.steps, 1500);
    assert_true(o->v.train.lr == 1e-3);
    assert_false(o->v.train.shuffle);
    assert_int_equal(o->v.train.seed, 9);
    assert_string_equal(o->v.train.data, "a b\xc3\xa9");
    assert_string_equal(o->v.train.note, "single 'quoted'");
    assert_int_equal(o->v.train.deep, 4);
    assert_true(options_is_set(o->options, "data.note"));
    assert_string_equal(options_origin(o->options, "train.lr"), "c.yaml:4");
    assert_int_equal(load(o, "data:\n  cache.deep: 5\n"), STATUS_OK);
    assert_int_equal(o->v.train.deep, 5);
}

static void test_empty_files(void **state)
{
    struct options_fixture *o = *state;
    static const char *const empty[] = {
        "",         "\n\n",       "# only a comment\n",    "---\n",        "~", "{}",
        "train:\n", "train: ~\n", "optimizer: {groups: }", "--- {}\n...\n"};
    for (size_t i = 0; i < sizeof empty / sizeof empty[0]; i++)
        assert_int_equal(load(o, empty[i]), STATUS_OK);
    assert_int_equal(o->v.train.steps, 1000);
    assert_int_equal(load(o, "data.note:"), STATUS_OK);
    assert_string_equal(o->v.train.note, "");
    assert_int_equal(load(o, "data.note: 'null'"), STATUS_OK);
    assert_string_equal(o->v.train.note, "null");
    assert_refused(o, load(o, "train:\n  steps:\n"), CONFIG,
                   "c.yaml:2: train.steps must be a whole number of at least 1, not nothing");
}

static void test_lists(void **state)
{
    struct options_fixture *o = *state;
    assert_int_equal(load(o, "optimizer.groups: [{match: \"*.bias\", lr_mul: 0}, {first: 1}]"),
                     STATUS_OK);
    const struct case_group *groups = o->v.train.groups.items;
    assert_int_equal(o->v.train.groups.count, 2);
    assert_string_equal(groups[0].match, "*.bias");
    assert_int_equal(groups[1].first, 1);
    assert_int_equal(load(o, "optimizer:\n"
                             "  groups:\n"
                             "    - match: wte.*\n"
                             "      mode: selective\n"
                             "    - lr_mul: 2.5\n"
                             "    - {}\n"),
                     STATUS_OK);
    groups = o->v.train.groups.items;
    assert_int_equal(o->v.train.groups.count, 3);
    assert_string_equal(groups[0].match, "wte.*");
    assert_int_equal(groups[0].mode, 1);
    assert_true(groups[1].lr_mul == 2.5 && groups[2].lr_mul == 1);
    assert_int_equal(load(o, "optimizer.groups: []"), STATUS_OK);
    assert_int_equal(o->v.train.groups.count, 0);
}

#define FIELDS "{match: GLOB, lr_mul: X, first: N, mode: NAME, frozen: BOOL}"

static void test_unknown(void **state)
{
    struct options_fixture *o = *state;
    assert_refused(o, load(o, "train:\n  seed: 1\n  stpes: 1\n"), CONFIG,
                   "c.yaml:3: unknown key 'train.stpes' (did you mean 'train.steps'?)");
    assert_refused(o, load(o, "steps: 1\n"), CONFIG,
                   "c.yaml:1: unknown key 'steps' (did you mean 'train.steps'?)");
    assert_refused(o, load(o, "\ntrian:\n  steps: 1\n"), CONFIG,
                   "c.yaml:2: unknown key 'trian' (did you mean 'train'?)");
    assert_refused(o, load(o, "zebra: [1, 2]\n"), CONFIG, "c.yaml:1: unknown key 'zebra'");
    assert_refused(o, load(o, "out: x\n"), CONFIG,
                   "c.yaml:1: out is a flag, not a key: give --out instead");
    assert_refused(o, load(o, "optimizer.groups:\n  - {}\n  - mach: x\n"), CONFIG,
                   "c.yaml:3: optimizer.groups has no field 'mach' (did you mean 'match'?)");
    assert_refused(o, load(o, "optimizer.groups: [{zzz: x}]"), CONFIG,
                   "c.yaml:1: optimizer.groups has no field 'zzz': an item is " FIELDS);
}

/* --train is a flag here, and train: in a file is the section of train.steps. */
static void test_flag_named_as_section(void **state)
{
    static const struct option list[] = {{.key = "train", .type = OPTION_INT, .flag_only = true}};
    static const struct option_table table = {"flags", list, 1};
    struct options_fixture *o = *state;
    int64_t flag;
    assert_int_equal(options_bind(o->options, &table, &flag), STATUS_OK);
    assert_int_equal(load(o, "train:\n  steps: 7\n"), STATUS_OK);
    assert_int_equal(o->v.train.steps, 7);
    assert_int_equal(flag, 0);
    assert_int_equal(options_set(o->options, "train", "3", "--train"), STATUS_OK);
    assert_int_equal(flag, 3);
    assert_int_equal(o->v.train.steps, 7);
}

static void test_twice(void **state)
{
    struct options_fixture *o = *state;
    assert_refused(o, load(o, "train.steps: 1\ntrain:\n  steps: 2\n"), CONFIG,
                   "c.yaml:3: train.steps is given twice: first in line 1");
    assert_refused(o, load(o, "train: {seed: 1}\ntrain: {steps: 2}\n"), CONFIG,
                   "c.yaml:2: train is given twice in this file");
    assert_refused(o, load(o, "data: {cache: {deep: 1}}\ndata.cache: {}\n"), CONFIG,
                   "c.yaml:2: data.cache is given twice in this file");
    assert_refused(o, load(o, "optimizer.groups: [{first: 1, first: 2}]"), CONFIG,
                   "c.yaml:1: optimizer.groups[0].first is given twice");
    /* But a second file may set it again. */
    assert_int_equal(load(o, "train.seed: 4"), STATUS_OK);
    assert_int_equal(load(o, "train.seed: 5"), STATUS_OK);
    assert_int_equal(o->v.train.seed, 5);
}

static void test_wrong_shape(void **state)
{
    struct options_fixture *o = *state;
    assert_refused(o, load(o, "train.seed: [1]"), CONFIG,
                   "c.yaml:1: train.seed must be a whole number, not a list");
    assert_refused(
        o, load(o, "train.schedule: {a: b}"), CONFIG,
        "c.yaml:1: train.schedule must be one of constant, linear, cosine, wsd, not a mapping");
    assert_refused(
        o, load(o, "train: 5"), CONFIG,
        "c.yaml:1: train is a section: it holds keys such as train.steps, not a single value");
    assert_refused(o, load(o, "optimizer.groups: x"), CONFIG,
                   "c.yaml:1: optimizer.groups must be a list of " FIELDS ", not a single value");
    assert_refused(o, load(o, "optimizer.groups: [1, 2]"), CONFIG,
                   "c.yaml:1: optimizer.groups must be a list of " FIELDS
                   ", not a list of something else");
    assert_refused(o, load(o, "optimizer.groups:\n - match: [a]\n"), CONFIG,
                   "c.yaml:2: optimizer.groups[0].match must be a text, not a list");
    assert_refused(o, load(o, "- a\n- b\n"), CONFIG,
                   "c.yaml:1: a configuration is a mapping of keys to values, not a list");
    assert_refused(o, load(o, "? [a]\n: 1\n"), CONFIG,
                   "c.yaml:1: a key must be a word, not a list");
}

static void test_refused_features(void **state)
{
    struct options_fixture *o = *state;
    assert_refused(o, load(o, "train.seed: &a 1\ntrain.steps: *a\n"), CONFIG,
                   "c.yaml:1: an anchor is not allowed here: write the value out");
    assert_refused(o, load(o, "train: *a\n"), CONFIG,
                   "c.yaml:1: an alias is not allowed here: write the value out");
    assert_refused(o, load(o, "train.seed: !!int 1\n"), CONFIG,
                   "c.yaml:1: a tag is not allowed here: write the value out");
    assert_refused(o, load(o, "data.path: \"a\\0b\"\n"), CONFIG,
                   "c.yaml:1: a text may not hold a zero byte");
    assert_refused(o, load(o, "train.seed: 1\n---\ntrain.seed: 2\n"), CONFIG,
                   "c.yaml:2: a second document: one is read");
    assert_int_equal(load(o, "train: {steps: 1\n"), STATUS_CONFIG);
    assert_contains(log_first_error(o->env->log), "c.yaml:");
    log_error_clear(o->env->log);
    assert_int_equal(load(o, "data.note: b: c\n"), STATUS_CONFIG);
    assert_contains(log_first_error(o->env->log), "c.yaml:1: not valid YAML: ");
}

/* The message gives the problem and its line. */
static void test_unreadable(void **state)
{
    struct options_fixture *o = *state;
    assert_refused(o, load(o, "train:\n\tsteps: 1\n"), CONFIG,
                   "c.yaml:2: a tab in column 1 indents this line: YAML takes spaces only; replace "
                   "it");
    assert_refused(o, load(o, "train:\n  steps: 1\n  \tseed: 1\n"), CONFIG,
                   "c.yaml:3: a tab in column 3 indents this line: YAML takes spaces only; replace "
                   "it");
    assert_refused(o, load(o, "train.steps: 1\n# one\ndata.path: caf\xe9\n"), CONFIG,
                   "c.yaml:3: not valid YAML: the byte 0xe9 is not UTF-8; save the file as UTF-8, "
                   "or write the value as !!binary and its bytes in base64");
    assert_refused(o, load(o, "train.steps: 1\ndata.path: a\x01\n"), CONFIG,
                   "c.yaml:2: not valid YAML: the control character 0x01; remove it");
}

static void test_binary(void **state)
{
    struct options_fixture *o = *state;
    assert_int_equal(load(o, "data.path: !!binary \"Y2Fm6Q==\"\n"), STATUS_OK);
    assert_string_equal(o->v.train.data, "caf\xe9");
    assert_int_equal(load(o, "data.path: !!binary |\n  Y2\n  Fm6Q==\n"), STATUS_OK);
    assert_string_equal(o->v.train.data, "caf\xe9");
    static const char *const wrong[] = {"Y2Fm6Q=", "Y2Fm6", "Y2=m", "====", "a!bc", "A==="};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char yaml[64];
        snprintf(yaml, sizeof yaml, "data.path: !!binary '%s'\n", wrong[i]);
        assert_refused(o, load(o, yaml), CONFIG,
                       "c.yaml:1: data.path has !!binary before what is not base64");
    }
    assert_refused(o, load(o, "data.path: !!binary AAAA\n"), CONFIG,
                   "c.yaml:1: data.path may not hold a zero byte");
    assert_refused(o, load(o, "train.steps: !!binary Y2Fm\n"), CONFIG,
                   "c.yaml:1: train.steps is no text: !!binary does not go with it");
}

/* `count` copies of `part` between `head` and `tail`; the caller frees the result. */
static char *repeat(const char *head, const char *part, int count, const char *tail)
{
    size_t bytes = strlen(part);
    char *text = malloc(strlen(head) + bytes * (size_t)count + strlen(tail) + 1), *end = text;
    end = stpcpy(end, head);
    for (int i = 0; i < count; i++)
        end = stpcpy(end, part);
    strcpy(end, tail);
    return text;
}

static void test_hostile_files(void **state)
{
    struct options_fixture *o = *state;
    char *deep = repeat("train.seed: ", "[", 500000, "");
    assert_int_equal(load(o, deep), STATUS_CONFIG);
    free(deep);
    deep = repeat("", "{train: ", 100000, "");
    assert_int_equal(load(o, deep), STATUS_CONFIG);
    free(deep);
    char *many = repeat("optimizer.groups: [", "{},", 100000, "]");
    assert_refused(o, load(o, many), CONFIG, "c.yaml:1: optimizer.groups has more than 4096 items");
    assert_true(mem_total_peak(o->env->mem) < 2 << 20);
    free(many);
    char *large = repeat("# ", "x", 1 << 20, "\n");
    assert_refused(o, load(o, large), CONFIG,
                   "c.yaml: too large: a configuration has at most 1 MiB");
    free(large);
    char *name = repeat("", "train.", 100000, ": 1\n");
    assert_int_equal(load(o, name), STATUS_CONFIG);
    free(name);
}

static void test_from_file(void **state)
{
    struct options_fixture *o = *state;
    char path[] = "/tmp/sifr-test-options-XXXXXX", origin[64];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "train:\n  steps: 12\n", 19), 19);
    close(fd);
    assert_int_equal(options_load_yaml(o->options, path), STATUS_OK);
    unlink(path);
    assert_int_equal(o->v.train.steps, 12);
    snprintf(origin, sizeof origin, "%s:2", path);
    assert_string_equal(options_origin(o->options, "train.steps"), origin);
    assert_int_equal(options_load_yaml(o->options, path), STATUS_CONFIG);
    assert_contains(o->f.heard.line, "No such file");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        OPTIONS_TEST(test_nested_and_flat),
        OPTIONS_TEST(test_empty_files),
        OPTIONS_TEST(test_lists),
        OPTIONS_TEST(test_unknown),
        OPTIONS_TEST(test_flag_named_as_section),
        OPTIONS_TEST(test_twice),
        OPTIONS_TEST(test_wrong_shape),
        OPTIONS_TEST(test_hostile_files),
        OPTIONS_TEST(test_refused_features),
        OPTIONS_TEST(test_unreadable),
        OPTIONS_TEST(test_binary),
        OPTIONS_TEST(test_from_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
