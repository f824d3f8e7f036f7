/* console -- bars of every length have the width they should have. */
#include "testing.h"
#include "cli/console.h"

static int columns(const char *utf8)
{
    int count = 0;
    for (; *utf8; utf8++)
        count += (*utf8 & 0xc0) != 0x80;
    return count;
}

static void bars_have_their_width(void **state)
{
    (void)state;
    char bar[3 * 20 + 1];
    const struct console utf8 = {0}, plain = {.ascii = true};
    for (int i = -10; i <= 210; i++)
        assert_int_equal(columns(console_bar(&utf8, bar, 20, i / 200.0)), 20);
    assert_string_equal(console_bar(&utf8, bar, 4, 0), "    ");
    assert_string_equal(console_bar(&utf8, bar, 4, 1), "████");
    assert_string_equal(console_bar(&utf8, bar, 4, 0.625), "██▌ ");
    assert_string_equal(console_bar(&plain, bar, 4, 0.625), "##  ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bars_have_their_width)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
