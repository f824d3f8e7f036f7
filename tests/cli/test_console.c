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

/* --- tasks ---------------------------------------------------------------------------------- */

/* What show_task writes to stderr at these times after the start, with half of the task done. */
static const char *shown_at(struct console *console, struct progress_task *task,
                            const double *seconds, int count)
{
    static char got[4096];
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(stderr);
    int before = dup(STDERR_FILENO);
    dup2(fileno(file), STDERR_FILENO);
    for (int i = 0; i < count; i++)
        console_show_task(console, task, task->begin + seconds[i]);
    fflush(stderr);
    dup2(before, STDERR_FILENO);
    close(before);
    rewind(file);
    got[fread(got, 1, sizeof got - 1, file)] = 0;
    fclose(file);
    return got;
}

static void files_get_a_line_every_ten_seconds(void **state)
{
    (void)state;
    static const double times[] = {1, 9.9, 10, 11, 19, 20, 29.9};
    struct console console = {.width = 80};
    struct progress_task task;
    progress_begin(&task, "saving", NULL, (uint64_t)4 << 30);
    task.done = (uint64_t)1 << 30;
    assert_string_equal(shown_at(&console, &task, times, 7),
                        "sifr: saving:  25% | eta 30.0s | 1.0 GiB of 4.0 GiB | 102.4 MiB/s\n"
                        "sifr: saving:  25% | eta 1m00s | 1.0 GiB of 4.0 GiB | 51.2 MiB/s\n");
    progress_begin(&task, "searching", "layouts", 0);
    task.done = 7;
    strcpy(task.figure, "pp 4");
    assert_string_equal(shown_at(&console, &task, times, 4),
                        "sifr: searching: | 7 layouts | pp 4\n");
    progress_begin(&task, "evaluating", "batches", 10);
    task.done = 12; /* an estimate may be wrong */
    assert_string_equal(shown_at(&console, &task, times, 4),
                        "sifr: evaluating: 100% | eta 0ms | 10 of 10 batches\n");
}

static void quiet_and_other_ranks_show_nothing(void **state)
{
    (void)state;
    static const double times[] = {1, 10, 20};
    struct console quiet = {.width = 80, .quiet = true}, other = {.width = 80, .rank = 1},
                   terminal = {.width = 80, .quiet = true, .err_terminal = true};
    struct progress_task task;
    progress_begin(&task, "saving", NULL, 100);
    assert_string_equal(shown_at(&quiet, &task, times, 3), "");
    assert_string_equal(shown_at(&other, &task, times, 3), "");
    assert_string_equal(shown_at(&terminal, &task, times, 3), "");
}

static void terminals_get_a_bar_after_a_second(void **state)
{
    (void)state;
    static const double times[] = {0.1, 0.9, 1.0, 1.05, 1.2};
    struct console console = {
        .width = 80, .fixed_width = true, .err_terminal = true, .ascii = true};
    struct progress_task task;
    progress_begin(&task, "loading", "", 4);
    task.done = 1;
    assert_string_equal(shown_at(&console, &task, times, 5),
                        "loading ####              25% | eta 3.0s"
                        "\r\033[K"
                        "loading ####              25% | eta 3.6s");
    console_live_clear(&console);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bars_have_their_width),
        cmocka_unit_test(lines_keep_styles_and_no_other_escapes),
        cmocka_unit_test(texts_are_escaped_on_terminals_and_exact_in_files),
        cmocka_unit_test(files_get_a_line_every_ten_seconds),
        cmocka_unit_test(quiet_and_other_ranks_show_nothing),
        cmocka_unit_test(terminals_get_a_bar_after_a_second),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
