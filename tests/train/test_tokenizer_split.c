/* Pre-tokens: concatenated they are the text; regexes match as in Oniguruma; every invalid byte is
 * a pre-token. */
#include "testing.h"
#include "base/rng.h"
#include "train/tokenizer/tokenizer_impl.h"

static enum status collect(void *user, const uint8_t *pretoken, size_t bytes)
{
    struct text *text = user;
    assert_true(bytes > 0);
    text_add_bytes(text, pretoken, bytes);
    text_add(text, "|");
    return text->status;
}

/* Apply one or two regexes, one after the other. */
static enum status split(struct env *env, const char *first, const char *second, const char *text,
                         size_t bytes, struct text *out)
{
    struct splitter *splitter;
    struct split_work *work = NULL;
    assert_ok(splitter_create(env, &splitter));
    enum status st = splitter_add(splitter, first, strlen(first), "test");
    if (st == STATUS_OK && second)
        st = splitter_add(splitter, second, strlen(second), "test");
    if (st == STATUS_OK)
        st = split_work_create(env, splitter, &work);
    if (st == STATUS_OK)
        st = split_text(work, (const uint8_t *)text, bytes, collect, out);
    split_work_destroy(work);
    splitter_destroy(splitter);
    return st;
}

static void check_split(const char *first, const char *second, const char *text,
                        const char *expected)
{
    struct env env = testing_env(1);
    struct text out;
    text_init(&out, &env);
    assert_ok(split(&env, first, second, text, strlen(text), &out));
    assert_string_equal(text_string(&out), expected);
    text_free(&out);
    env_destroy(&env);
}

static void test_gpt2_regex(void **state)
{
    (void)state;
    check_split(SPLIT_GPT2, NULL, "it's  12 o'clock,  ok\n\n x",
                "it|'s| | 12| o|'|clock|,| | ok|\n\n| x|");
    check_split(SPLIT_GPT2, NULL, "a\xe3\x80\x80\xe3\x80\x80z", "a|\xe3\x80\x80|\xe3\x80\x80|z|");
    check_split(SPLIT_GPT2, NULL, "", "");
}

static void test_white_space_is_that_of_oniguruma(void **state)
{
    (void)state;
    /* U+180E is not a space, U+0085 and U+2028 are; inside sets, outside, and negated */
    check_split("\\s+", NULL, "a\xe1\xa0\x8e b\xc2\x85\xe2\x80\xa8z",
                "a\xe1\xa0\x8e| |b|\xc2\x85\xe2\x80\xa8|z|");
    check_split("[\\s,]+", NULL, "a\xe1\xa0\x8e, b", "a\xe1\xa0\x8e|, |b|");
    check_split("[^\\s]+", NULL, "a\xe1\xa0\x8e b", "a\xe1\xa0\x8e| |b|");
    check_split("\\S+", NULL, "a\xe1\xa0\x8e b", "a\xe1\xa0\x8e| |b|");
    check_split("[\\S]+", NULL, "a\xe1\xa0\x8e b", "a\xe1\xa0\x8e| |b|");
    check_split("\\\\s", NULL, "a\\s b", "a|\\s| b|"); /* an escaped backslash, then the letter */
    check_split("[]\\s]+", NULL, "a] b", "a|] |b|");
    check_split("[^]\\s]+", NULL, "a] b", "a|] |b|");
    check_split("[[:digit:]x]+", NULL, "a1x b", "a|1x| b|");
}

static void test_words_and_scripts_are_those_of_oniguruma(void **state)
{
    (void)state;
    check_split("\\w+", NULL, "e\xcc\x81t\xc3\xa9-\xe2\x80\xbf!",
                "e\xcc\x81t\xc3\xa9|-|\xe2\x80\xbf|!|"); /* marks, Pc */
    check_split("[\\w!]+", NULL, "a! b", "a!| |b|");
    check_split("\\W+", NULL, "a! b", "a|! |b|");
    /* U+3001 is used by several scripts and belongs to none */
    check_split("\\p{Han}+", NULL, "\xe4\xb8\x80\xe3\x80\x81\xe4\xba\x8c",
                "\xe4\xb8\x80|\xe3\x80\x81|\xe4\xba\x8c|");
    check_split("\\P{Han}+", NULL, "a\xe4\xb8\x80\xe3\x80\x81", "a|\xe4\xb8\x80|\xe3\x80\x81|");
    check_split("\\w+", NULL, "x\xc2\xb2\xe2\x81\xb4",
                "x\xc2\xb2|\xe2\x81\xb4|");                  /* only the digits of Latin-1 */
    check_split("[\\w]+", NULL, "x\xc2\xb2", "x|\xc2\xb2|"); /* but not inside a set */
    check_split("\\b", NULL, "e\xcc\x81t b.", "e\xcc\x81t| |b|.|");
    check_split("\\B.", NULL, "ab", "a|b|");
    check_split("[x[yz]w]+[\\b]?", NULL, "axywz]", "a|xywz|]|"); /* a union */
    check_split(" ?[^(\\s|[.,])]+", NULL, "ab c, d|e", "ab| c|,| d|\x7c|e|");
    check_split("^a$", NULL, "a\na\nb", "a|\n|a|\nb|"); /* ^ and $ match at lines */
}

static void test_nothing_is_dropped(void **state)
{
    (void)state;
    check_split("b", NULL, "abcb", "a|b|c|b|");
    check_split("x*", NULL, "a\xc3\xa9xxb", "a|\xc3\xa9|xx|b|"); /* empty matches split, too */
    check_split("zzz", NULL, "abc", "abc|");
    check_split("\\p{N}{1,3}", "[a-z]+", "ab12345cd.e", "ab|123|45|cd|.|e|");
    check_split("b", "^c", "abc", "a|b|c|"); /* the second regex sees one part at a time */
}

static void test_invalid_bytes_are_pretokens(void **state)
{
    (void)state;
    static const char *const bad[] = {"\x80",
                                      "\xc3",
                                      "\xc0\xaf",
                                      "\xe2\x82",
                                      "\xed\xa0\x80",
                                      "\xf0\x8f\xbf\xbf",
                                      "\xf4\x90\x80\x80",
                                      "\xf8\x88\x80\x80\x80",
                                      "\xff\xfe",
                                      "\xe0\x9f\xbf",
                                      "\xf5\x80"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[32], expected[64] = "word| a|";
        snprintf(text, sizeof text, "word a%sb c", bad[i]);
        for (const char *byte = bad[i]; *byte; byte++)
            strncat(strncat(expected, byte, 1), "|", 2);
        strcat(expected, "b| c|");
        check_split(SPLIT_GPT2, NULL, text, expected);
    }
}

/* Random text, part of it invalid UTF-8: the pre-tokens without the separators are the text. */
static void test_random_text_is_preserved(void **state)
{
    (void)state;
    static const char *const atoms[] = {
        " ", "a", "'s", "\n", "\xc3\xa9", "\xe3\x80\x80", "\xf0\x9f\x98\x80", "1", "\xff", "\xe2"};
    struct env env = testing_env(1);
    struct rng rng = rng_stream(7, "split");
    struct text text, out;
    text_init(&text, &env);
    text_init(&out, &env);
    for (uint64_t n = 0; n < 300; n++) {
        text_clear(&text);
        text_clear(&out);
        for (uint64_t i = 0; i < 1 + n % 60; i++)
            text_add(&text, atoms[rng_below(rng, n * 64 + i, sizeof atoms / sizeof *atoms)]);
        assert_ok(split(&env, SPLIT_GPT2, NULL, text_string(&text), text.bytes, &out));
        size_t kept = 0;
        for (size_t i = 0; i < out.bytes; i++)
            if (out.data[i] != '|')
                assert_int_equal(out.data[i], text.data[kept++]);
        assert_int_equal(kept, text.bytes);
    }
    text_free(&text);
    text_free(&out);
    env_destroy(&env);
}

static void test_unsupported_regexes_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *regex, *message;
        enum status status;
    } cases[] = {
        {"[a-z&&[^b]]", "set inside", STATUS_CONFIG},
        {"[a[^b]]", "set inside", STATUS_CONFIG},
        {"\\h", "'\\h'", STATUS_CONFIG},
        {"[\\W]", "'\\W' in a set", STATUS_CONFIG},
        {"\\C", "offset", STATUS_FORMAT},
        {"a\\", "'\\\\'", STATUS_CONFIG},
        {"a(", "'a('", STATUS_FORMAT},
        {"\\p{Nonsense}", "offset", STATUS_FORMAT},
    };
    struct env env = testing_env(1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct text out;
        text_init(&out, &env);
        log_error_clear(env.log);
        assert_int_equal(split(&env, cases[i].regex, NULL, "abc", 3, &out), cases[i].status);
        assert_non_null(strstr(log_first_error(env.log), cases[i].message));
        text_free(&out);
    }
    env_destroy(&env);
}

/* A regex that backtracks forever is stopped; one that exceeds the JIT's stack still runs. */
static void test_backtracking_is_limited(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    struct text text, out;
    text_init(&text, &env);
    text_init(&out, &env);
    for (int i = 0; i < 60; i++)
        text_add(&text, "a");
    assert_int_equal(split(&env, "(a+)+(a+)+(a+)+[bc]", NULL, text_string(&text), text.bytes, &out),
                     STATUS_FORMAT);
    assert_non_null(strstr(log_first_error(env.log), "failed on this text"));
    text_clear(&text);
    text_clear(&out);
    for (int i = 0; i < 50000; i++)
        text_add(&text, "ab");
    assert_ok(split(&env, "(?:(a)|(b))+", NULL, text_string(&text), text.bytes, &out));
    assert_int_equal(out.bytes, text.bytes + 1);
    text_free(&text);
    text_free(&out);
    env_destroy(&env);
}

/* Out of memory is reported as such: the regex is neither refused nor rewritten differently. */
static void test_every_allocation_may_fail(void **state)
{
    (void)state;
    struct env env = testing_env(1);
    enum status st = STATUS_MEMORY;
    int64_t n = 0;
    while (st != STATUS_OK) {
        struct splitter *splitter;
        assert_ok(splitter_create(&env, &splitter));
        mem_fail_at(env.mem, ++n);
        st = splitter_add(splitter, "\\p{Han}+|\\s+", 12, "test");
        mem_fail_at(env.mem, 0);
        assert_true(st == STATUS_OK || st == STATUS_MEMORY);
        splitter_destroy(splitter);
    }
    assert_true(n > 3);
    env_destroy(&env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2_regex),
        cmocka_unit_test(test_white_space_is_that_of_oniguruma),
        cmocka_unit_test(test_words_and_scripts_are_those_of_oniguruma),
        cmocka_unit_test(test_nothing_is_dropped),
        cmocka_unit_test(test_invalid_bytes_are_pretokens),
        cmocka_unit_test(test_random_text_is_preserved),
        cmocka_unit_test(test_unsupported_regexes_are_refused),
        cmocka_unit_test(test_backtracking_is_limited),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
