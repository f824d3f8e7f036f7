/* console -- output for people: permanent lines, one live line that is rewritten, errors in red.
 *
 * Data and progress go to stdout, errors and warnings to stderr. Colours and the live line exist on
 * terminals only; a file never receives an escape sequence or a carriage return. All output is
 * filtered by base/printable.h, so a name from a file cannot control the terminal. NO_COLOR and
 * TERM=dumb turn colours off. With a locale other than UTF-8, pictures are ASCII.
 *
 * In a job of several ranks only rank 0 prints; --verbose also shows the lines of the others, with
 * their rank. A supervisor passes on the output of its ranks: CONSOLE_VARIABLE tells a rank the
 * properties of the supervisor's output.
 */
#ifndef CLI_CONSOLE_H
#define CLI_CONSOLE_H
#include <stdbool.h>
#include <stdio.h>
#include "base/log.h"
#include "base/progress.h"
#include "base/text.h"

enum console_style {
    STYLE_PLAIN,
    STYLE_BOLD,
    STYLE_DIM,
    STYLE_RED,
    STYLE_YELLOW,
    STYLE_CYAN,
    STYLE_GREEN,
    STYLE_MAGENTA,
    STYLE_BLUE,
    STYLE_COUNT
};

#define CONSOLE_VARIABLE \
    "SIFR_LAUNCH_CONSOLE" /* four numbers: OUT_TERMINAL OUT_COLOUR ERR_COLOUR WIDTH */

struct console {
    int rank; /* of this process */
    bool verbose;
    bool quiet; /* only errors, warnings and notices */
    bool out_terminal, err_terminal;
    bool out_colour, err_colour;
    bool ascii;       /* pictures without UTF-8 */
    int width;        /* columns of the terminal; 80 without a terminal */
    bool fixed_width; /* the terminal is a supervisor's: its width cannot be read again */
    FILE *live;       /* stream that shows a live line; NULL = none */
    int write_error;  /* errno of the first failed write to stdout */
    char marks[STYLE_COUNT][24]; /* for console_style; "" without colour */
};

/* `launched`: started by mpirun, which may give a rank a terminal that it made itself. */
void console_open(struct console *console, int rank, bool launched, bool verbose);

/* A mark that console_line and console_write replace with the escape sequence of the style; ""
 * without colour. It contains a random number of this process, so that no foreign text can contain
 * one. STYLE_PLAIN ends the style before it. */
const char *console_style(const struct console *console, enum console_style style);

/* Print a line to stdout and flush it; clears a live line first. The final newline is added. More
 * newlines may stand at both ends of `format`; those within values are escaped. */
void console_line(struct console *console, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Print "  name      value"; a narrow terminal wraps the value in its column. */
void console_fact(struct console *console, const char *name, const char *value);
/* Print our own text to stdout: keeps newlines and tabs. */
void console_write(struct console *console, const char *data, size_t bytes);
/* The same for a text, which is freed. Prints nothing and returns its status if it is incomplete. */
enum status console_print(struct console *console, struct text *text);
/* Print text of a model, in complete characters: keeps newlines and tabs, prints U+FFFD where
 * console_line would escape. */
void console_text(struct console *console, const char *data, size_t bytes);
/* As console_text to a terminal; byte for byte to a file or pipe. */
void console_data(struct console *console, const char *data, size_t bytes);
/* Pass the output of a rank to stdout unchanged; it may end within a line. */
void console_pass(struct console *console, const char *data, size_t bytes);
/* Pass lines from the stderr of a rank or a launcher to stderr; keeps our styles. */
void console_pass_errors(const struct console *console, const char *lines);
/* Flush at the end. Returns the errno of the first failed write, 0 = none. A closed pipe (EPIPE)
 * does not count as a failure. */
int console_finish(struct console *console);

/* Rewrite the live line on `stream` (stdout or stderr), cut to the width. Does nothing when the
 * stream is not a terminal. */
void console_live(struct console *console, FILE *stream, const char *line);
void console_live_clear(struct console *console);

void console_flush(struct console *console);

/* A log_sink_fn; `user` is the struct console. */
void console_log(void *user, enum log_level level, const char *line);
/* The same for signal handlers: async-signal-safe, and on a terminal on a new line, after ^C. */
void console_signal_line(const struct console *console, enum log_level level, const char *line);
/* Print an error of a rank other than 0, unless --verbose has shown it already. */
void console_rank_error(struct console *console, const char *line);

/* The functions of a progress_view; `user` is the struct console. A terminal gets a bar on the live
 * line after the first second, ten times a second at most. A file or pipe gets a line on stderr
 * every ten seconds. Nothing with --quiet, and nothing from ranks other than 0. */
void console_show_task(void *user, struct progress_task *task, double now);
void console_clear_task(void *user);

/* A bar of `width` cells filled to `share` (0 .. 1), for live lines. `out` has 3 * width + 1
 * bytes. */
char *console_bar(const struct console *console, char *out, int width, double share);

#endif
