/* Printed options read back to the same values: examples and random values. */
#include "base/options_fixture.h"
#include "base/rng.h"

static void test_layout(void **state)
{
    struct options_fixture *o = *state;
    struct text text;
    text_init(&text, o->env);
    assert_int_equal(
        load(o, "data.path: 'a: b'\noptimizer.groups: [{match: '*.bias'}, {lr_mul: 2}]"),
        STATUS_OK);
    options_print_yaml(o->options, &text);
    assert_string_equal(text_string(&text), "train:\n"
                                            "  steps: 1000\n"
                                            "  seed: 0\n"
                                            "  lr: 0.0003\n"
                                            "  ratio: 0\n"
                                            "  schedule: cosine\n"
                                            "  shuffle: true\n"
                                            "  dry: false\n"
                                            "data:\n"
                                            "  path: \"a: b\"\n"
                                            "  note: \"a note\"\n"
                                            "  cache.deep: 0\n"
                                            "optimizer:\n"
                                            "  groups:\n"
                                            "    - match: \"*.bias\"\n"
                                            "      lr_mul: 1\n"
                                            "      first: 0\n"
                                            "      mode: none\n"
                                            "      frozen: false\n"
                                            "    - match: \"*\"\n"
                                            "      lr_mul: 2\n"
                                            "      first: 0\n"
                                            "      mode: none\n"
                                            "      frozen: false\n");
    text_free(&text);
}

/* Print, read into fresh values, compare. */
static void assert_round_trip(struct options_fixture *o)
{
    struct text text;
    struct case_values v;
    struct options *again;
    text_init(&text, o->env);
    options_print_yaml(o->options, &text);
    assert_int_equal(text.status, STATUS_OK);
    assert_int_equal(case_bind(o->env, &v, &again), STATUS_OK);
    if (options_load_yaml_text(again, text_string(&text), text.bytes, "printed") != STATUS_OK)
        fail_msg("%s\n%s", log_first_error(o->env->log), text_string(&text));

    const struct case_train *a = &o->v.train, *b = &v.train;
    assert_true(a->steps == b->steps && a->seed == b->seed && a->deep == b->deep);
    assert_memory_equal(&a->lr, &b->lr, sizeof a->lr);
    assert_memory_equal(&a->ratio, &b->ratio, sizeof a->ratio);
    assert_string_equal(a->data, b->data);
    assert_string_equal(a->note, b->note);
    assert_true(a->schedule == b->schedule && a->shuffle == b->shuffle && a->dry == b->dry);
    assert_int_equal(a->groups.count, b->groups.count);
    const struct case_group *x = a->groups.items, *y = b->groups.items;
    for (int i = 0; i < a->groups.count; i++) {
        assert_string_equal(x[i].match, y[i].match);
        assert_memory_equal(&x[i].lr_mul, &y[i].lr_mul, sizeof x[i].lr_mul);
        assert_true(x[i].first == y[i].first && x[i].mode == y[i].mode &&
                    x[i].frozen == y[i].frozen);
    }
    options_destroy(again);
    text_free(&text);
}

static void test_strings(void **state)
{
    struct options_fixture *o = *state;
    static const char *const strings[] = {"",
                                          "plain",
                                          "a/b.c",
                                          "null",
                                          "Null",
                                          "~",
                                          "true",
                                          "1e5",
                                          "12:30",
                                          "- x",
                                          "-",
                                          "--x",
                                          "a b",
                                          " lead",
                                          "trail ",
                                          "a: b",
                                          "a #b",
                                          "#b",
                                          "'q'",
                                          "\"q\"",
                                          "\\n",
                                          "\n",
                                          "a\nb\n",
                                          "\t",
                                          "{a}",
                                          "[a]",
                                          "a,b",
                                          "&a",
                                          "*a",
                                          "!t",
                                          "%d",
                                          "@x",
                                          "`x`",
                                          "|",
                                          ">",
                                          "?",
                                          ":",
                                          "...",
                                          "---",
                                          "\x01\x1f\x7f",
                                          "\xc2\x85",
                                          "\xc2\xa0",
                                          "\xe2\x80\xa8",
                                          "\xef\xbb\xbf",
                                          "\xf0\x9f\x98\x80",
                                          "\xef\xbf\xbf",
                                          "\xc3\xa9t\xc3\xa9",
                                          "\xed\x9f\xbf",
                                          "\xee\x80\x80",
                                          "\xf4\x8f\xbf\xbf",
                                          "a\r\nb",
                                          "0x1f",
                                          "=",
                                          "<<"};
    for (size_t i = 0; i < sizeof strings / sizeof strings[0]; i++) {
        assert_int_equal(options_set(o->options, "data.path", strings[i], "-"), STATUS_OK);
        assert_round_trip(o);
    }
    /* Bytes that are not UTF-8 cannot be written as text; they are printed as YAML's !!binary. */
    static const char *const others[] = {"a\xff",        "\xe9",         "caf\xe9 \"x\".txt",
                                         "\x80\x81\x82", "\xed\xa0\x80", "/data/\xc3"};
    struct text text;
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        assert_int_equal(options_set(o->options, "data.path", others[i], "-"), STATUS_OK);
        assert_round_trip(o);
    }
    text_init(&text, o->env);
    options_print_yaml(o->options, &text);
    assert_contains(text_string(&text), "path: !!binary \"L2RhdGEvww==\"");
    text_free(&text);
}

/* A random string of up to 12 characters: all kinds of ASCII, some non-ASCII. */
static void random_string(struct rng rng, uint64_t index, char *out)
{
    static const char *const beyond[] = {"\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80",
                                         "\xc2\x85"};
    uint64_t length = rng_below(rng, index, 13);
    for (uint64_t i = 0; i < length; i++) {
        uint64_t pick = rng_below(rng, index * 100 + i + 1, 140);
        if (pick >= 127)
            out = stpcpy(out, beyond[pick % 4]);
        else
            *out++ = (char)(pick ? pick : 'a');
    }
    *out = 0;
}

static double random_real(struct rng rng, uint64_t index)
{
    uint64_t bits = rng_bits(rng, index);
    double value;
    memcpy(&value, &bits, sizeof value);
    return isnan(value) ? INFINITY : value;
}

static void test_random(void **state)
{
    struct options_fixture *o = *state;
    struct rng rng = rng_stream(7, "options"), reals = rng_stream(8, "options");
    for (uint64_t round = 0; round < 300; round++) {
        uint64_t i = round * 1000;
        char a[64], b[64], c[64];
        random_string(rng, i, a);
        random_string(rng, i + 1, b);
        random_string(rng, i + 2, c);
        struct case_group groups[2] = {
            {.match = b,
             .lr_mul = random_real(reals, i),
             .first = (int64_t)(round % 11),
             .mode = 2},
            {.match = c, .lr_mul = rng_uniform(reals, i + 1), .frozen = true}};
        o->v.train = (struct case_train){
            .steps = (int64_t)(rng_bits(rng, i) >> 1) | 1,
            .seed = (int64_t)rng_bits(rng, i + 1),
            .lr = rng_uniform(rng, i),
            .ratio = random_real(reals, i + 2),
            .data = a,
            .note = "x",
            .schedule = (int)rng_below(rng, i, 4),
            .shuffle = round % 2,
            .groups = {groups, (int)(round % 3)},
        };
        assert_round_trip(o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        OPTIONS_TEST(test_layout),
        OPTIONS_TEST(test_strings),
        OPTIONS_TEST(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
