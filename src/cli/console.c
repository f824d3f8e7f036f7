/* console -- output to terminals and files. Of the live line only its existence is stored: it is
 * cleared before anything else is written, and its owner writes it again with its next update. */
#include "cli/console.h"
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/printable.h"
#include "cli/rank_report.h"

enum { PLAIN_WIDTH = 80, LEAST_WIDTH = 40 };

static int terminal_width(void)
{
    struct winsize size;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 &&
        ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0)
        return PLAIN_WIDTH;
    return size.ws_col == 0 ? PLAIN_WIDTH : size.ws_col < LEAST_WIDTH ? LEAST_WIDTH : size.ws_col;
}

/* Use the properties of the supervisor's output; false = there is no supervisor. The launcher in
 * between gives this process a pipe or a terminal of its own, which says nothing about the real
 * output. */
static bool ask_supervisor(struct console *console)
{
    const char *text = getenv(CONSOLE_VARIABLE);
    int out_terminal, out_colour, err_colour, width;
    if (!text || sscanf(text, "%d %d %d %d", &out_terminal, &out_colour, &err_colour, &width) != 4)
        return false;
    console->out_terminal = out_terminal;
    console->out_colour = out_colour;
    console->err_terminal = false; /* the supervisor passes stderr on line by line */
    console->err_colour = err_colour;
    console->width = width < LEAST_WIDTH ? PLAIN_WIDTH : width;
    console->fixed_width = true;
    return true;
}

static bool colours_wanted(void)
{
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
    return !(no_color && *no_color) && term && strcmp(term, "dumb") != 0;
}

static bool is_ascii_locale(void)
{
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (int i = 0; i < 3; i++) {
        const char *locale = getenv(names[i]);
        if (locale && *locale)
            return !strcasestr(locale, "utf-8") && !strcasestr(locale, "utf8");
    }
    return false;
}

static const char *escape_of(enum console_style style)
{
    static const char *const escapes[] = {
        [STYLE_PLAIN] = "\033[0m",  [STYLE_BOLD] = "\033[1m",     [STYLE_DIM] = "\033[2m",
        [STYLE_RED] = "\033[1;31m", [STYLE_YELLOW] = "\033[33m",  [STYLE_CYAN] = "\033[36m",
        [STYLE_GREEN] = "\033[32m", [STYLE_MAGENTA] = "\033[35m", [STYLE_BLUE] = "\033[34m",
    };
    return escapes[style];
}

void console_open(struct console *console, int rank, bool launched, bool verbose)
{
    *console = (struct console){
        .rank = rank,
        .verbose = verbose,
        .out_terminal = !launched && isatty(STDOUT_FILENO),
        .err_terminal = !launched && isatty(STDERR_FILENO),
        .ascii = is_ascii_locale(),
    };
    if (!ask_supervisor(console)) {
        console->out_colour = console->out_terminal && colours_wanted();
        console->err_colour = console->err_terminal && colours_wanted();
        console->width = terminal_width();
    }
    if (!console->out_colour)
        return;
    uint32_t number;
    if (getrandom(&number, sizeof number, GRND_NONBLOCK) != sizeof number)
        number = (uint32_t)(uintptr_t)&number ^ (uint32_t)clock_seconds() ^ (uint32_t)getpid();
    for (int i = 0; i < STYLE_COUNT; i++) /* "\033[", a random number, ";", the style, "m" */
        snprintf(console->marks[i], sizeof console->marks[i], "\033[%08x;%dm", number, i);
}

const char *console_style(const struct console *console, enum console_style style)
{
    return console->marks[style];
}

/* --- filtered output -------------------------------------------------------------------------- */

/* Where to print, and what passes the filter. */
struct sink {
    const struct console *console;
    FILE *stream;
    bool lines;   /* keep newlines and tabs */
    bool passed;  /* from a rank: styles are escape sequences already */
    bool foreign; /* text of a model: no styles, and U+FFFD in place of an escaped byte */
};

/* The style whose mark or escape sequence `data` begins with; STYLE_COUNT = none. */
static enum console_style style_at(const struct sink *sink, const char *data, size_t bytes,
                                   size_t *length)
{
    for (int i = 0; i < STYLE_COUNT && *data == '\033' && !sink->foreign; i++) {
        const char *mark =
            sink->passed ? escape_of((enum console_style)i) : sink->console->marks[i];
        *length = strlen(mark);
        if (*length > 0 && *length <= bytes && memcmp(data, mark, *length) == 0)
            return (enum console_style)i;
    }
    return STYLE_COUNT;
}

/* Print one character or mark that is not printable as it is; returns its length in bytes. */
static size_t put_special(const struct sink *sink, const char *data, size_t bytes)
{
    char escape[PRINTABLE_ESCAPE];
    size_t length;
    enum console_style style = style_at(sink, data, bytes, &length);
    if (style != STYLE_COUNT) {
        fputs(escape_of(style), sink->stream);
        return length;
    }
    if (sink->lines && (*data == '\n' || *data == '\t')) {
        putc(*data, sink->stream);
        return 1;
    }
    length = printable_escape(data, bytes, escape);
    fputs(sink->foreign ? TEXT_REPLACEMENT : escape, sink->stream);
    return length;
}

static void put(const struct sink *sink, const char *data, size_t bytes)
{
    while (bytes > 0) {
        size_t done = printable_span(data, bytes);
        if (done > 0)
            fwrite(data, 1, done, sink->stream);
        else
            done = put_special(sink, data, bytes);
        data += done;
        bytes -= done;
    }
}

void console_flush(struct console *console)
{
    if (fflush(stdout) != 0 && !console->write_error)
        console->write_error = errno;
}

int console_finish(struct console *console)
{
    console_live_clear(console);
    console_flush(console);
    return console->write_error == EPIPE ? 0 : console->write_error;
}

/* Newlines at both ends of `format` are printed; others come from a value and are escaped. */
static void put_line(struct console *console, const char *format, const char *line, size_t bytes)
{
    const struct sink sink = {.console = console, .stream = stdout};
    size_t front = strspn(format, "\n"), back = 0;
    while (front + back < strlen(format) && format[strlen(format) - 1 - back] == '\n')
        back++;
    fwrite(line, 1, front, stdout);
    put(&sink, line + front, bytes - front - back);
    fwrite(line + bytes - back, 1, back, stdout);
    putc('\n', stdout);
}

void console_line(struct console *console, const char *format, ...)
{
    char room[4096], *line = room; /* only long JSON needs more; a step must not allocate */
    va_list args;
    console_live_clear(console);
    va_start(args, format);
    int bytes = vsnprintf(room, sizeof room, format, args);
    va_end(args);
    if (bytes >= (int)sizeof room) {
        va_start(args, format);
        if (vasprintf(&line, format, args) < 0) {
            line = room;
            bytes = sizeof room - 1;
        }
        va_end(args);
    }
    if (bytes >= 0)
        put_line(console, format, line, (size_t)bytes);
    if (line != room)
        free(line);
    console_flush(console);
}

void console_write(struct console *console, const char *data, size_t bytes)
{
    const struct sink sink = {.console = console, .stream = stdout, .lines = true};
    console_live_clear(console);
    put(&sink, data, bytes);
    console_flush(console);
}

enum status console_print(struct console *console, struct text *text)
{
    enum status st = text->status;
    if (st == STATUS_OK)
        console_write(console, text_string(text), text->bytes);
    text_free(text);
    return st;
}

void console_pass(struct console *console, const char *data, size_t bytes)
{
    console_live_clear(console);
    fwrite(data, 1, bytes, stdout);
    console_flush(console);
}

void console_text(struct console *console, const char *data, size_t bytes)
{
    const struct sink sink = {.console = console, .stream = stdout, .lines = true, .foreign = true};
    console_live_clear(console);
    put(&sink, data, bytes);
    console_flush(console);
}

void console_data(struct console *console, const char *data, size_t bytes)
{
    if (console->out_terminal)
        console_text(console, data, bytes);
    else
        console_pass(console, data, bytes);
}

void console_pass_errors(const struct console *console, const char *lines)
{
    const struct sink sink = {
        .console = console, .stream = stderr, .lines = true, .passed = console->err_colour};
    put(&sink, lines, strlen(lines));
}

/* Bytes of `line` that fit in `columns`, counting a UTF-8 character as one column. */
static size_t fitting_bytes(const char *line, int columns)
{
    const char *s = line;
    while (*s) {
        if (columns-- == 0)
            break;
        s++;
        while ((*s & 0xc0) == 0x80)
            s++;
    }
    return (size_t)(s - line);
}

void console_live(struct console *console, FILE *stream, const char *line)
{
    bool terminal = stream == stdout ? console->out_terminal : console->err_terminal;
    char shown[1024];
    if (!terminal)
        return;
    printable_copy(shown, sizeof shown, line, strlen(line));
    console_live_clear(console);
    if (!console->fixed_width)
        console->width = terminal_width();
    fprintf(stream, "%.*s", (int)fitting_bytes(shown, console->width - 1), shown);
    fflush(stream);
    console->live = stream;
}

void console_live_clear(struct console *console)
{
    if (!console->live)
        return;
    fputs("\r\033[K", console->live);
    fflush(console->live);
    console->live = NULL;
}

static const char *const level_words[] = {[LOG_ERROR] = "error: ",
                                          [LOG_WARN] = "warning: ",
                                          [LOG_NOTICE] = "",
                                          [LOG_INFO] = "",
                                          [LOG_DEBUG] = "debug: "};
static const enum console_style level_styles[] = {[LOG_ERROR] = STYLE_RED,
                                                  [LOG_WARN] = STYLE_YELLOW,
                                                  [LOG_NOTICE] = STYLE_PLAIN,
                                                  [LOG_INFO] = STYLE_PLAIN,
                                                  [LOG_DEBUG] = STYLE_DIM};

/* --verbose overrides --quiet. */
static bool is_suppressed(const struct console *console, enum log_level level)
{
    return console->quiet && !console->verbose && level > LOG_NOTICE;
}

void console_log(void *user, enum log_level level, const char *line)
{
    struct console *console = user;
    char rank[32] = "";
    if (level == LOG_ERROR)
        rank_report_error(console->rank);
    if ((console->rank > 0 && !console->verbose) || is_suppressed(console, level))
        return;
    if (console->rank > 0)
        snprintf(rank, sizeof rank, "rank %d: ", console->rank);
    console_live_clear(console);
    fflush(stdout);
    fprintf(stderr, "sifr: %s%s%s%s%s\n", console->err_colour ? escape_of(level_styles[level]) : "",
            level_words[level], console->err_colour ? escape_of(STYLE_PLAIN) : "", rank, line);
}

void console_signal_line(const struct console *console, enum log_level level, const char *line)
{
    char whole[1024], *to = whole;
    bool colour = console->err_colour && level_styles[level] != STYLE_PLAIN;
    if (console->rank > 0 || strlen(line) > sizeof whole / 2 || is_suppressed(console, level))
        return;
    to = stpcpy(to, console->err_terminal ? "\nsifr: " : "sifr: ");
    to = stpcpy(to, colour ? escape_of(level_styles[level]) : "");
    to = stpcpy(to, level_words[level]);
    to = stpcpy(to, colour ? escape_of(STYLE_PLAIN) : "");
    to = stpcpy(to, line);
    *to++ = '\n';
    struct pollfd err = {.fd = STDERR_FILENO, .events = POLLOUT};
    if (poll(&err, 1, 0) != 1 || !(err.revents & POLLOUT))
        return; /* a full pipe must not delay the exit */
    ssize_t said = write(STDERR_FILENO, whole, (size_t)(to - whole));
    (void)said; /* the reader may be gone */
}

void console_rank_error(struct console *console, const char *line)
{
    struct console heard = *console;
    heard.verbose = true;
    if (!console->verbose && *line)
        console_log(&heard, LOG_ERROR, line);
}

char *console_bar(const struct console *console, char *out, int width, double share)
{
    static const char *const eighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    share = share < 0 ? 0 : share > 1 ? 1 : share;
    int parts = (int)(share * width * 8), cells = parts / 8;
    char *to = out;
    for (int i = 0; i < cells; i++)
        to = stpcpy(to, console->ascii ? "#" : "█");
    if (parts % 8 && !console->ascii) {
        to = stpcpy(to, eighths[parts % 8]);
        cells++;
    }
    memset(to, ' ', (size_t)(width - cells));
    to[width - cells] = 0;
    return out;
}

/* --- name and value -------------------------------------------------------------------------- */

enum { FACT_INDENT = 12 };

/* Bytes of `value` up to the last space within `columns`; a longer word is not broken. */
static size_t fitting_words(const char *value, int columns)
{
    size_t bytes = strlen(value), cut = (size_t)columns;
    if (bytes <= cut)
        return bytes;
    while (cut > 0 && value[cut] != ' ')
        cut--;
    return cut ? cut : strcspn(value, " ");
}

void console_fact(struct console *console, const char *name, const char *value)
{
    do {
        size_t bytes = console->out_terminal ? fitting_words(value, console->width - FACT_INDENT)
                                             : strlen(value);
        console_line(console, "  %s%-9s%s %.*s", console_style(console, STYLE_DIM), name,
                     console_style(console, STYLE_PLAIN), (int)bytes, value);
        value += bytes;
        value += strspn(value, " ");
        name = "";
    } while (*value);
}

/* --- tasks ----------------------------------------------------------------------------------- */

#define BAR_AFTER  1.0 /* seconds: quicker tasks leave the screen alone */
#define BAR_EVERY  0.1
#define LINE_EVERY 10.0

/* Where a live line can be: stderr, so that it never mixes with data. Under a supervisor stderr is
 * passed on line by line, but its stdout may be a terminal. NULL = there is no terminal. */
static FILE *live_stream(const struct console *console)
{
    if (console->err_terminal)
        return stderr;
    return console->fixed_width && console->out_terminal ? stdout : NULL;
}

/* " | eta 9 s | 1.2 GiB of 4.0 GiB | 310 MiB/s": a narrow terminal cuts the end. */
static void add_figures(const struct progress_task *task, double done, double seconds, char *out,
                        size_t bytes)
{
    char a[32], b[32], c[32];
    double total = (double)task->total, rate = seconds > 0 ? done / seconds : 0;
    int n = 0;
    if (task->total > 0 && done > 0)
        n = snprintf(out, bytes, " | eta %s", text_human_seconds(a, seconds * (total / done - 1)));
    if (!task->noun && task->total > 0)
        n += snprintf(out + n, bytes - (size_t)n, " | %s of %s | %s/s", text_human_bytes(a, done),
                      text_human_bytes(b, total), text_human_bytes(c, rate));
    else if (!task->noun)
        n += snprintf(out + n, bytes - (size_t)n, " | %s | %s/s", text_human_bytes(a, done),
                      text_human_bytes(b, rate));
    else if (*task->noun && task->total > 0)
        n += snprintf(out + n, bytes - (size_t)n, " | %.0f of %.0f %s", done, total, task->noun);
    else if (*task->noun)
        n += snprintf(out + n, bytes - (size_t)n, " | %.0f %s", done, task->noun);
    if (*task->figure)
        snprintf(out + n, bytes - (size_t)n, " | %s", task->figure);
}

void console_show_task(void *user, struct progress_task *task, double now)
{
    enum { CELLS = 16 };
    struct console *console = user;
    FILE *stream = live_stream(console);
    char line[512], figures[256] = "", share[16] = "", bar[3 * CELLS + 1];
    double done = (double)atomic_load_explicit(&task->done, memory_order_relaxed);
    bool early = stream ? now - task->begin < BAR_AFTER || now - task->shown < BAR_EVERY
                        : now - task->shown < LINE_EVERY;
    if (early || console->rank > 0 || is_suppressed(console, LOG_INFO))
        return;
    task->shown = now;
    if (task->total > 0 && done > (double)task->total)
        done = (double)task->total;
    add_figures(task, done, now - task->begin, figures, sizeof figures);
    if (task->total > 0)
        snprintf(share, sizeof share, " %3.0f%%", 100 * done / (double)task->total);
    if (!stream) {
        snprintf(line, sizeof line, "%s:%s%s", task->what, share, figures);
        console_log(console, LOG_INFO, line);
        return;
    }
    snprintf(line, sizeof line, "%s%s%s%s%s", task->what, task->total > 0 ? " " : "",
             task->total > 0 ? console_bar(console, bar, CELLS, done / (double)task->total) : "",
             share, figures);
    console_live(console, stream, line);
}

void console_clear_task(void *user)
{
    console_live_clear(user);
}
