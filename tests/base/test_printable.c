/* What reaches a terminal: text unchanged, and control characters as escapes. */
#include "base/printable.h"
#include <stdio.h>
#include <string.h>
#include "base/fixture.h"

static void assert_shown(const char *from, size_t bytes, const char *to)
{
    char out[256];
    size_t length = printable_copy(out, sizeof out, from, bytes);
    assert_string_equal(out, to);
    assert_int_equal(length, strlen(to));
}

#define SHOWN(from, to) assert_shown(from, sizeof(from) - 1, to)

static void test_text_is_unchanged(void **state)
{
    (void)state;
    SHOWN("", "");
    SHOWN("model.layers.0 'a b' \\n", "model.layers.0 'a b' \\n");
    SHOWN("\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82 \xd7\xa9",
          "\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82 \xd7\xa9");
    SHOWN("\xe2\x80\x8d", "\xe2\x80\x8d"); /* a joiner, needed for emoji */
}

static void test_control_characters(void **state)
{
    (void)state;
    SHOWN("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07");
    SHOWN("a\nb\rc\td", "a\\nb\\rc\\td");
    SHOWN("\0\x7f", "\\x00\\x7f");
    SHOWN("\xc2\x9b"
          "31m",
          "\\u009b31m"); /* the one-character form of ESC [ */
    SHOWN("\x9b"
          "31m\xff",
          "\\x9b31m\\xff");
    SHOWN("\xe2\x80\xae\xe2\x81\xa6\xe2\x80\x8f\xef\xbb\xbf", "\\u202e\\u2066\\u200f\\ufeff");
    SHOWN("\xf3\xa0\x80\x81", "\\U000e0001");
    SHOWN("x\xc3", "x\\xc3"); /* truncated */
}

/* No byte, and no pair of bytes after an ESC, passes through as a control character. */
static void test_every_byte(void **state)
{
    (void)state;
    for (int i = 0; i < 256 * 256; i++) {
        char from[] = {(char)(i >> 8), (char)i}, out[64];
        size_t length = printable_copy(out, sizeof out, from, sizeof from);
        assert_int_equal(printable_span(out, length), length);
    }
}

static void test_too_long(void **state)
{
    (void)state;
    char out[16];
    const char *cases[][2] = {{"123456789012345", "123456789012345"},
                              {"1234567890123456", "123456789012..."},
                              {"12345678901\xc3\xa9z\xc3\xa9z", "12345678901..."},
                              {"1234567890\x1b\x1b", "1234567890..."},
                              {"12345678901\x1b", "12345678901\\x1b"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t length = printable_copy(out, sizeof out, cases[i][0], strlen(cases[i][0]));
        assert_string_equal(out, cases[i][1]);
        assert_int_equal(length, strlen(out));
    }
}

static void test_messages(void **state)
{
    (void)state;
    struct fixture f;
    struct env *env = fixture_open(&f);
    log_warn(env, "a tensor '%s'", "\x1b[31mred\nsifr: error: not ours");
    assert_string_equal(f.heard.line, "a tensor '\\x1b[31mred\\nsifr: error: not ours'");
    FAIL(env, IO, "cannot open '%s'", "caf\xe9\x1b");
    assert_string_equal(f.heard.line, "cannot open 'caf\\xe9\\x1b'");
    assert_string_equal(log_first_error(env->log), "cannot open 'caf\\xe9\\x1b'");
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_is_unchanged), cmocka_unit_test(test_control_characters),
        cmocka_unit_test(test_every_byte),        cmocka_unit_test(test_too_long),
        cmocka_unit_test(test_messages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
