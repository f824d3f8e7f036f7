/* console -- what a person sees: kept lines, one live line that is rewritten, errors in red.
 *
 * Data and progress go to stdout, errors and warnings to stderr. Whether a stream is a terminal
 * decides: colours and the live line exist on terminals only, a file never gets an escape sequence
 * or a carriage return. What is printed passes base/printable.h on its way out: a name from a file
 * can't steer the terminal. NO_COLOR and TERM=dumb turn colours off. A locale that is set and is
 * not UTF-8 gets pictures in ASCII.
 *
 * In a job of several ranks only rank 0 is heard; the others' lines are shown with --verbose, each
 * with its rank. A supervisor passes on what a rank prints: CONSOLE_VARIABLE tells the rank where
 * that ends.
 */
#ifndef CLI_CONSOLE_H
#define CLI_CONSOLE_H
#include <stdbool.h>
#include <stdio.h>
#include "base/log.h"
#include "base/text.h"

enum console_style {
    STYLE_PLAIN,
    STYLE_BOLD,
    STYLE_DIM,
    STYLE_RED,
    STYLE_YELLOW,
    STYLE_CYAN,
    STYLE_COUNT
};

#define CONSOLE_VARIABLE \
    "SIFR_LAUNCH_CONSOLE" /* "OUT_TERMINAL OUT_COLOUR ERR_COLOUR WIDTH", numbers */

struct console {
    int rank; /* of this process */
    bool verbose;
    bool quiet; /* only errors, warnings and notices */
    bool out_terminal, err_terminal;
    bool out_colour, err_colour;
    bool ascii;                  /* pictures without UTF-8 */
    int width;                   /* columns of the terminal; 80 when there is none */
    bool fixed_width;            /* it is a supervisor's terminal, which can't be asked again */
    FILE *live;                  /* where a live line stands now; NULL: nowhere */
    int write_error;             /* errno of the first write to stdout that failed */
    char marks[STYLE_COUNT][24]; /* console_style's; "" without colour */
};

/* `launched`: by an mpirun, which may hand a rank a terminal of its own making. */
void console_open(struct console *console, int rank, bool launched, bool verbose);

/* A mark in what console_line and console_write print, which becomes the escape sequence of a style
 * on stdout; "" without colour. It holds a number of this process, so that no name can hold one.
 * STYLE_PLAIN ends what another began. */
const char *console_style(const struct console *console, enum console_style style);

/* A kept line to stdout (the newline is added; others may stand at both ends of `format`); a live
 * line is cleared first. Flushed when stdout is a terminal. */
void console_line(struct console *console, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* "  name      value": on a terminal that is too narrow the value goes on below itself. */
void console_fact(struct console *console, const char *name, const char *value);
/* Lines of ours to stdout: newlines and tabs stay. */
void console_write(struct console *console, const char *data, size_t bytes);
/* What a model writes, characters whole: newlines and tabs stay, all else that console_line would
 * escape is U+FFFD. */
void console_text(struct console *console, const char *data, size_t bytes);
/* The same to a terminal; byte for byte into a file or pipe. */
void console_data(struct console *console, const char *data, size_t bytes);
/* What a rank of ours has printed, to stdout as it is; a broken-off line may be continued. */
void console_pass(struct console *console, const char *data, size_t bytes);
/* Lines that came from a rank's or a launcher's stderr, to ours: our styles in them stay. */
void console_pass_errors(const struct console *console, const char *lines);
/* Flush at the end; the errno of the first write that failed, 0 = none did. A reader that has
 * left (EPIPE) is none. */
int console_finish(struct console *console);

/* Rewrite the live line on `stream` (stdout or stderr); nothing happens when that is no
 * terminal. Cut to the width. */
void console_live(struct console *console, FILE *stream, const char *line);
void console_live_clear(struct console *console);

void console_flush(struct console *console);

/* A log_sink_fn; `user` is the console. */
void console_log(void *user, enum log_level level, const char *line);
/* The same from a signal's handler: it only writes, and on a terminal behind what is shown there
 * (^C). */
void console_signal_line(const struct console *console, enum log_level level, const char *line);
/* An error that a rank other than 0 has to say itself; nothing when it has been shown. */
void console_rank_error(struct console *console, const char *line);

/* Bar of `width` cells filled to `share` (0 .. 1), for live lines. `out` holds 3 * width + 1
 * bytes. */
char *console_bar(const struct console *console, char *out, int width, double share);

#endif
