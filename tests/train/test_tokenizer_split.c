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
    enum status st = splitter_add(splitter, first, strlen(first), SPLIT_ISOLATED, false, "test");
    if (st == STATUS_OK && second)
        st = splitter_add(splitter, second, strlen(second), SPLIT_ISOLATED, false, "test");
    if (st == STATUS_OK)
        st = splitter_finish(splitter, "test");
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
    check_split("[\\W]+", NULL, "a!\xc2\xb2-", "a|!\xc2\xb2-|");
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

/* Sets nest, intersect and negate; repeats are read as in Oniguruma; case is ignored where asked. */
static void test_sets_repeats_and_case(void **state)
{
    (void)state;
    check_split("[a-z&&[^aeiou]]+", NULL, "hello", "h|e|ll|o|");
    check_split("[\\p{L}&&[^\\p{Han}]]+", NULL,
                "ab\xe6\xbc\xa2"
                "c",
                "ab|\xe6\xbc\xa2|c|");
    check_split("[a[^b]]+", NULL, "abc", "a|b|c|");
    check_split("\\p{N}{1,3}+", NULL, "1234567 8", "1234567| |8|"); /* repeats, is not possessive */
    check_split("\\p{N}{1,3}", NULL, "1234567", "123|456|7|");
    check_split("a{,2}", NULL, "aaaaa", "aa|aa|a|");
    check_split("a{x", NULL, "ba{x", "b|a{x|");
    check_split("(?i:'s|k)", NULL, "x'S y'\xc5\xbf \xe2\x84\xaa",
                "x|'S| y|'\xc5\xbf| |\xe2\x84\xaa|");
    check_split("(?i:[k-m]+)z", NULL, "KlMz klmZ", "KlMz| klmZ|");
    check_split("a(?i)b|c", NULL, "aB C aC", "aB| C |aC|");
    check_split("\\u0041|\\x{e9}|\\x42", NULL, "ABC\xc3\xa9", "A|B|C|\xc3\xa9|");
    check_split("[\xe4\xb8\x80-\xe9\xbe\xa5]+", NULL,
                "a\xe4\xb8\x80\xe4\xba\x8c"
                "b",
                "a|\xe4\xb8\x80\xe4\xba\x8c|b|");
}

/* Characters of Unicode 15 and 16 have their properties, whatever version PCRE2 has. */
static void test_new_characters_have_properties(void **state)
{
    (void)state;
    check_split("\\p{S}", NULL,
                "a\xf0\x9f\xa9\xb7"
                "b",
                "a|\xf0\x9f\xa9\xb7|b|");                                    /* U+1FA77 */
    check_split("\\p{S}", NULL, "a\xf0\x9f\xab\xa8", "a|\xf0\x9f\xab\xa8|"); /* U+1FAE8 */
    check_split("\\p{Lu}\\p{Ll}", NULL, "x\xf0\x90\xb5\x90\xf0\x90\xb5\xb0",
                "x|\xf0\x90\xb5\x90\xf0\x90\xb5\xb0|");                       /* U+10D50, U+10D70 */
    check_split("\\p{L}+", NULL, "1\xf0\x9e\x97\x90", "1|\xf0\x9e\x97\x90|"); /* U+1E5D0 */
}

static void check_behavior(enum split_behavior behavior, bool invert, const char *expected)
{
    struct env env = testing_env(1);
    struct splitter *splitter;
    struct split_work *work;
    struct text out;
    text_init(&out, &env);
    assert_ok(splitter_create(&env, &splitter));
    assert_ok(splitter_add(splitter, "-", 1, behavior, invert, "test"));
    assert_ok(splitter_finish(splitter, "test"));
    assert_ok(split_work_create(&env, splitter, &work));
    assert_ok(split_text(work, (const uint8_t *)"-the--end-x", 11, collect, &out));
    assert_string_equal(text_string(&out), expected);
    text_free(&out);
    split_work_destroy(work);
    splitter_destroy(splitter);
    env_destroy(&env);
}

static void test_matches_are_joined_or_removed(void **state)
{
    (void)state;
    check_behavior(SPLIT_ISOLATED, false, "-|the|-|-|end|-|x|");
    check_behavior(SPLIT_REMOVED, false, "the|end|x|");
    check_behavior(SPLIT_CONTIGUOUS, false, "-|the|--|end|-|x|");
    check_behavior(SPLIT_WITH_PREVIOUS, false, "-|the-|-|end-|x|");
    check_behavior(SPLIT_WITH_NEXT, false, "-the|-|-end|-x|");
    check_behavior(SPLIT_REMOVED, true, "-|-|-|-|");
    check_behavior(SPLIT_WITH_PREVIOUS, true, "-the|-|-end|-x|");
    check_behavior(SPLIT_WITH_NEXT, true, "-|the-|-|end-|x|");
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
        {"\\h", "'\\h'", STATUS_CONFIG},
        {"(a)\\1", "'\\1'", STATUS_CONFIG}, /* symbols are not characters */
        {"a\\Kb", "'\\K'", STATUS_CONFIG},
        {"(?i:[\\p{Lu}])", "one case", STATUS_CONFIG},
        {"\\C", "'\\C'", STATUS_CONFIG},
        {"\\R", "'\\R'", STATUS_CONFIG},
        {"\\X", "'\\X'", STATUS_CONFIG},
        {"a\\", "'\\'", STATUS_CONFIG},
        {"a(", "'a('", STATUS_FORMAT},
        {"a)", "'a)'", STATUS_FORMAT},
        {"[a", "'[a'", STATUS_FORMAT},
        {"[z-a]", "empty range", STATUS_FORMAT},
        {"\\p{L", "property", STATUS_FORMAT},
        {"\\p{Nonsense}", "'Nonsense'", STATUS_CONFIG},
        {"\\x{110000}", "code", STATUS_FORMAT},
        {"(?x)a b", "'(?x)'", STATUS_CONFIG},
        {"(?<name>a)", "'(?<n'", STATUS_CONFIG},
        {"(?i:\xc3\xa9)", "(?i)", STATUS_CONFIG},
        {"*a", "'*a'", STATUS_FORMAT},
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
    for (bool reached = true; reached;) {
        struct splitter *splitter;
        assert_ok(splitter_create(&env, &splitter));
        int64_t before = mem_allocation_count(env.mem);
        mem_fail_at(env.mem, ++n);
        st = splitter_add(splitter, "\\p{Han}+|\\s+", 12, SPLIT_ISOLATED, false, "test");
        if (st == STATUS_OK)
            st = splitter_finish(splitter, "test");
        bool failed = mem_allocation_count(env.mem) - before >= n;
        mem_fail_at(env.mem, 0);
        /* the JIT may fail: matching still works */
        assert_true(st == STATUS_OK || (failed && st == STATUS_MEMORY));
        reached = failed;
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
        cmocka_unit_test(test_sets_repeats_and_case),
        cmocka_unit_test(test_new_characters_have_properties),
        cmocka_unit_test(test_matches_are_joined_or_removed),
        cmocka_unit_test(test_nothing_is_dropped),
        cmocka_unit_test(test_invalid_bytes_are_pretokens),
        cmocka_unit_test(test_random_text_is_preserved),
        cmocka_unit_test(test_unsupported_regexes_are_refused),
        cmocka_unit_test(test_backtracking_is_limited),
        cmocka_unit_test(test_every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
