/* Counts are upper bounds of the real numbers, and the grammar accepted is jansson's. */
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "base/json_doc.h"
#include "base/rng.h"

static void expect_count(const char *text, int64_t values, int64_t lists, int64_t keys)
{
    struct json_count count = json_scan_count(text, strlen(text));
    if (count.values != values || count.arrays + count.objects != lists || count.keys != keys)
        fail_msg("%s: %lld values, %lld lists, %lld keys", text, (long long)count.values,
                 (long long)(count.arrays + count.objects), (long long)count.keys);
    assert_int_equal(count.bytes, strlen(text));
}

static void test_counts(void **state)
{
    (void)state;
    expect_count("[1, 2, 3]", 4, 1, 0);
    expect_count("[[1, 2], {\"a\": 1}]", 6, 3, 1);
    expect_count("[{}, {}, []]", 7, 4, 0); /* an empty list or object counts one extra value */
    expect_count("[\"{[,:\\\"{\"]", 2, 1, 0);
    expect_count("[\"\\\\\", {}]", 4, 2, 0);
    expect_count("", 1, 0, 0);
    expect_count("\"[[[", 1, 0, 0); /* not terminated */
    expect_count("\"\\", 1, 0, 0);
}

/* --- the grammar ---------------------------------------------------------------------------- */

static bool jansson_accepts(const char *text, size_t bytes)
{
    json_t *root = json_loadb(text, bytes, JSON_ALLOW_NUL, NULL);
    json_decref(root);
    return root != NULL;
}

static void test_grammar(void **state)
{
    static const char *const texts[] = {"{}",
                                        "[]",
                                        " [ ] ",
                                        "[1]",
                                        "[1,]",
                                        "[,1]",
                                        "[1 2]",
                                        "{\"a\":1}",
                                        "{\"a\" 1}",
                                        "{\"a\":}",
                                        "{a:1}",
                                        "{\"a\":1,}",
                                        "{\"a\":1,\"b\":[{}]}",
                                        "[}",
                                        "{]",
                                        "[[]",
                                        "[]]",
                                        "[] []",
                                        "1",
                                        "\"a\"",
                                        "null",
                                        "",
                                        " ",
                                        "[null,true,false]",
                                        "[nul]",
                                        "[nulls]",
                                        "[True]",
                                        "[0]",
                                        "[-0]",
                                        "[01]",
                                        "[-]",
                                        "[1.]",
                                        "[.5]",
                                        "[1.5e]",
                                        "[1e+5]",
                                        "[1E-5]",
                                        "[1e5.5]",
                                        "[+1]",
                                        "[--1]",
                                        "[1.5]",
                                        "[\"\\u0041\"]",
                                        "[\"\\ud800\"]",
                                        "[\"\\udc00\"]",
                                        "[\"\\uD83D\\uDE00\"]",
                                        "[\"\\uD83D\\u0041\"]",
                                        "[\"\\uD83Dx\"]",
                                        "[\"\\uD83D\\n\"]",
                                        "[\"\\uABCD\\uabcd\"]",
                                        "[\"\\uD83D\\uD83D\"]",
                                        "[\"\\u004\"]",
                                        "[\"\\x\"]",
                                        "[\"\\\\u00\"]",
                                        "[\"\\\"]",
                                        "[\"\t\"]",
                                        "[\"a",
                                        "[\"\\/\\b\\f\\n\\r\\t\"]",
                                        "[\"a\"\"b\"]",
                                        "{\"a\":\"b\":\"c\"}",
                                        "[1:2]",
                                        "{\"a\",1}",
                                        "[\v1]"};
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (json_scan_is_valid(texts[i], strlen(texts[i])) !=
            jansson_accepts(texts[i], strlen(texts[i])))
            fail_msg("'%s': jansson disagrees", texts[i]);
    assert_false(json_scan_is_valid("[1\0]", 4));
}

/* Random sequences of JSON fragments; some of them are valid JSON. */
static void test_random_texts(void **state)
{
    static const char *const parts[] = {"{",     "}", "[",    "]", ",",   ":",
                                        "\"a\"", "1", "null", " ", "-2.5"};
    int valid = 0;
    (void)state;
    for (uint64_t n = 0; n < 200000; n++) {
        char text[64] = "";
        uint64_t length = 1 + rng_below(rng_stream(1, "length"), n, 9);
        strcat(text, n % 2 ? "[" : "{\"a\":");
        for (uint64_t i = 0; i < length; i++)
            strcat(text, parts[rng_below(rng_stream(2, "part"), n * 16 + i, 11)]);
        strcat(text, n % 2 ? "]" : "}");
        bool is = json_scan_is_valid(text, strlen(text));
        if (is != jansson_accepts(text, strlen(text)))
            fail_msg("'%s': jansson disagrees", text);
        valid += is;
    }
    assert_true(valid > 1000);
}

static void test_deep(void **state)
{
    char *text = malloc(10000);
    (void)state;
    for (int depth = 1; depth <= 4000; depth += 37) {
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        assert_true(json_scan_is_valid(text, 2 * (size_t)depth) == (depth <= 2048));
        assert_false(json_scan_is_valid(text, 2 * (size_t)depth - 1));
    }
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts), cmocka_unit_test(test_grammar),
        cmocka_unit_test(test_random_texts), cmocka_unit_test(test_deep)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
