/* console -- bars have the right width; control characters in names and texts are escaped, and our
 * own colours work. */
#include <unistd.h>
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

/* --- printing ------------------------------------------------------------------------------- */

/* `print` must write exactly `want` to stdout. */
static void assert_printed(struct console *console, void print(struct console *), const char *want)
{
    char got[4096] = "";
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(stdout);
    int before = dup(STDOUT_FILENO);
    dup2(fileno(file), STDOUT_FILENO);
    print(console);
    fflush(stdout);
    dup2(before, STDOUT_FILENO);
    close(before);
    rewind(file);
    got[fread(got, 1, sizeof got - 1, file)] = 0;
    fclose(file);
    assert_string_equal(got, want);
}

static void print_line(struct console *console)
{
    console_line(console, "\n%s%s%s %d\n", console_style(console, STYLE_BOLD),
                 "na\nme\x1b[1m\x1b[2J", console_style(console, STYLE_PLAIN), 3);
}

static void print_block(struct console *console)
{
    const char block[] = "a\tb\nc\x1b[0m\xc2\x9b\r";
    console_write(console, block, sizeof block - 1);
}

static void print_text(struct console *console)
{
    const char text[] = "a\tb\n\x1b[31m\xff\xc2\x9b\xe2\x80\xae!";
    console_text(console, text, sizeof text - 1);
}

static void print_data(struct console *console)
{
    const char data[] = "\x1b[31m\xff\xc2\x9b";
    console_data(console, data, sizeof data - 1);
}

static void print_long_line(struct console *console)
{
    char many[3000];
    memset(many, 'x', sizeof many);
    many[sizeof many - 1] = 0;
    console_line(console, "%s\x1b%s", many, many);
}

static void lines_keep_styles_and_no_other_escapes(void **state)
{
    (void)state;
    struct console plain, colour;
    char want[6100];
    setenv(CONSOLE_VARIABLE, "1 1 1 80", 1);
    console_open(&colour, 0, false, false);
    setenv(CONSOLE_VARIABLE, "0 0 0 80", 1);
    console_open(&plain, 0, false, false);
    unsetenv(CONSOLE_VARIABLE);
    assert_printed(&plain, print_line, "\nna\\nme\\x1b[1m\\x1b[2J 3\n\n");
    assert_printed(&colour, print_line, "\n\x1b[1mna\\nme\\x1b[1m\\x1b[2J\x1b[0m 3\n\n");
    assert_printed(&plain, print_block, "a\tb\nc\\x1b[0m\\u009b\\r");
    assert_printed(&colour, print_block, "a\tb\nc\\x1b[0m\\u009b\\r");
    memset(want, 'x', sizeof want);
    strcpy(want + 2999, "\\x1b");
    memset(want + 3003, 'x', 2999);
    strcpy(want + 6002, "\n");
    want[4095] = 0; /* assert_printed reads no more */
    assert_printed(&plain, print_long_line, want);
}

#define BAD "\xef\xbf\xbd"

static void texts_are_escaped_on_terminals_and_exact_in_files(void **state)
{
    (void)state;
    struct console file = {.width = 80}, terminal = {.width = 80, .out_terminal = true};
    assert_printed(&file, print_text, "a\tb\n" BAD "[31m" BAD BAD BAD "!");
    assert_printed(&terminal, print_text, "a\tb\n" BAD "[31m" BAD BAD BAD "!");
    assert_printed(&file, print_data, "\x1b[31m\xff\xc2\x9b");
    assert_printed(&terminal, print_data, BAD "[31m" BAD BAD);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bars_have_their_width),
        cmocka_unit_test(lines_keep_styles_and_no_other_escapes),
        cmocka_unit_test(texts_are_escaped_on_terminals_and_exact_in_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
