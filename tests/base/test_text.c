/* The growing string, JSON escapes, shortest numbers that read back exactly, human-readable
 * numbers. */
#include <float.h>
#include <math.h>
#include "base/fixture.h"
#include "base/rng.h"
#include "base/text.h"

static void test_growth(void **state)
{
    (void)state;
    struct fixture f;
    struct text text;
    text_init(&text, fixture_open(&f));
    assert_string_equal(text_string(&text), "");
    for (int i = 0; i < 1000; i++)
        text_printf(&text, "%03d,", i);
    assert_int_equal(text.bytes, 4000);
    assert_memory_equal(text_string(&text) + 3996, "999,", 5);
    text_clear(&text);
    assert_string_equal(text_string(&text), "");
    text_add(&text, "abc");
    text_add_bytes(&text, "defgh", 2);
    text_add(&text, "");
    assert_string_equal(text_string(&text), "abcde");
    /* Around the boundaries of the buffer. */
    for (size_t bytes = 250; bytes < 260; bytes++) {
        char block[300];
        memset(block, 'x', sizeof block);
        text_free(&text);
        text_add_bytes(&text, block, bytes);
        text_add(&text, "y");
        assert_int_equal(strlen(text_string(&text)), bytes + 1);
    }
    assert_int_equal(text.status, STATUS_OK);
    text_free(&text);
    fixture_close(&f);
}

static void test_failure_sticks(void **state)
{
    (void)state;
    struct fixture f;
    struct env *env = fixture_open(&f);
    struct text text;
    text_init(&text, env);
    mem_fail_at(env->mem, 1);
    text_add(&text, "lost");
    text_add(&text, "lost too");
    assert_int_equal(text.status, STATUS_MEMORY);
    assert_string_equal(text_string(&text), "");
    text_free(&text);
    fixture_close(&f);
}

static const char *json(struct text *text, const char *data, size_t bytes)
{
    text_clear(text);
    text_json_string(text, data, bytes);
    return text_string(text);
}

static void test_json_string(void **state)
{
    (void)state;
    struct fixture f;
    struct text text;
    text_init(&text, fixture_open(&f));
    assert_string_equal(json(&text, "plain", 5), "\"plain\"");
    assert_string_equal(json(&text, "", 0), "\"\"");
    assert_string_equal(json(&text, "a\"b\\c\n\t\r\b\f\x01", 11),
                        "\"a\\\"b\\\\c\\n\\t\\r\\b\\f\\u0001\"");
    assert_string_equal(json(&text, "\0x", 2), "\"\\u0000x\"");
    /* terminal control characters, also in their one-character form */
    assert_string_equal(json(&text, "\x1b[2J\x7f\xc2\x9b\xe2\x80\xae\xf3\xa0\x80\x81", 14),
                        "\"\\u001b[2J\\u007f\\u009b\\u202e\\udb40\\udc01\"");
    assert_string_equal(json(&text, "\xc3\xa9\xf0\x9f\x98\x80", 6), "\"\xc3\xa9\xf0\x9f\x98\x80\"");
    /* Stray, overlong, surrogate, beyond U+10FFFF, truncated: each bad byte becomes U+FFFD. */
#define BAD "\xef\xbf\xbd"
    assert_string_equal(json(&text, "a\x80z", 3), "\"a" BAD "z\"");
    assert_string_equal(json(&text, "\xc0\xaf", 2), "\"" BAD BAD "\"");
    assert_string_equal(json(&text, "\xe0\x80\xaf", 3), "\"" BAD BAD BAD "\"");
    assert_string_equal(json(&text, "\xed\xa0\x80", 3), "\"" BAD BAD BAD "\"");
    assert_string_equal(json(&text, "\xf4\x90\x80\x80", 4), "\"" BAD BAD BAD BAD "\"");
    assert_string_equal(json(&text, "\xe2\x82", 2), "\"" BAD BAD "\"");
    assert_string_equal(json(&text, "\xff", 1), "\"" BAD "\"");
    text_free(&text);
    fixture_close(&f);
}

static void test_utf8(void **state)
{
    (void)state;
    uint32_t code;
    assert_int_equal(text_utf8("A", 1, &code), 1);
    assert_int_equal(code, 'A');
    assert_int_equal(text_utf8("\xe2\x82\xac", 3, &code), 3);
    assert_int_equal(code, 0x20ac);
    assert_int_equal(text_utf8("\xf4\x8f\xbf\xbf", 4, &code), 4);
    assert_int_equal(code, 0x10ffff);
    assert_int_equal(text_utf8("\xe2\x82\xac", 2, &code), 0);
    assert_int_equal(text_utf8("", 0, &code), 0);
}

static const char *real(struct text *text, double value)
{
    text_clear(text);
    text_json_real(text, value);
    return text_string(text);
}

static void test_json_numbers(void **state)
{
    (void)state;
    struct fixture f;
    struct text text;
    text_init(&text, fixture_open(&f));
    assert_string_equal(real(&text, 0.1), "0.1");
    assert_string_equal(real(&text, 3e-4), "0.0003");
    assert_string_equal(real(&text, 1e-5), "1e-5");
    assert_string_equal(real(&text, 1.25e-10), "1.25e-10");
    assert_string_equal(real(&text, 1e100), "1e100");
    assert_string_equal(real(&text, 1000000), "1000000");
    assert_string_equal(real(&text, -0.0), "-0");
    assert_string_equal(real(&text, 0.1 + 0.2), "0.30000000000000004");
    assert_string_equal(real(&text, NAN), "null");
    assert_string_equal(real(&text, -INFINITY), "null");

    struct rng rng = rng_stream(1, "numbers");
    for (uint64_t i = 0; i < 100000; i++) {
        uint64_t bits = rng_bits(rng, i);
        double value;
        memcpy(&value, &bits, sizeof value);
        if (isfinite(value))
            assert_true(strtod(real(&text, value), NULL) == value);
    }
    assert_true(strtod(real(&text, DBL_MAX), NULL) == DBL_MAX);
    assert_true(strtod(real(&text, 5e-324), NULL) == 5e-324);
    text_free(&text);
    fixture_close(&f);
}

static void test_human(void **state)
{
    (void)state;
    char out[32];
    assert_string_equal(text_human_bytes(out, 0), "0 B");
    assert_string_equal(text_human_bytes(out, 1023), "1023 B");
    assert_string_equal(text_human_bytes(out, 1024), "1.0 KiB");
    assert_string_equal(text_human_bytes(out, 12.3 * 1048576), "12.3 MiB");
    assert_string_equal(text_human_bytes(out, 1048575), "1.0 MiB");
    assert_string_equal(text_human_bytes(out, 23.1 * 1073741824), "23.1 GiB");
    assert_string_equal(text_human_count(out, 999), "999");
    assert_string_equal(text_human_count(out, 79500), "79.5k");
    assert_string_equal(text_human_count(out, 124e6), "124.0M");
    assert_string_equal(text_human_count(out, 999999), "1.0M");
    assert_string_equal(text_human_seconds(out, 0.412), "412ms");
    assert_string_equal(text_human_seconds(out, 4.2), "4.2s");
    assert_string_equal(text_human_seconds(out, 59.96), "1m00s");
    assert_string_equal(text_human_seconds(out, 774), "12m54s");
    assert_string_equal(text_human_seconds(out, 3 * 3600 + 420), "3h07m");
    assert_string_equal(text_human_seconds(out, 86400 * 3 + 7200), "3d02h");
    assert_string_equal(text_human_seconds(out, NAN), "?");
    assert_true(strlen(text_human_bytes(out, DBL_MAX)) < 32);
    assert_true(strlen(text_human_count(out, -DBL_MAX)) < 32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_growth),      cmocka_unit_test(test_failure_sticks),
        cmocka_unit_test(test_json_string), cmocka_unit_test(test_json_numbers),
        cmocka_unit_test(test_utf8),        cmocka_unit_test(test_human),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
