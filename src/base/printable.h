/* printable -- any bytes as a line that a terminal or a log can show.
 *
 * Names, values and texts come from files and from other people. Control characters (an escape sequence moves the
 * cursor, sets a title, clears the screen), bytes that are not UTF-8, and marks that turn or hide text are written
 * as what they are: \n, \x1b, \u202e. A backslash is left alone: this is for people, not to be read back.
 * log.c and the console pass everything through here, so no caller has to.
 */
#ifndef BASE_PRINTABLE_H
#define BASE_PRINTABLE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A code point that must not reach a terminal; newline and tab are such, too. */
bool printable_refuses(uint32_t code);

/* Bytes at the front of `data` that are shown as they are. */
size_t printable_span(const char *data, size_t bytes);

/* What stands at the front of `data` and is not: in `out` how it is written, NUL-terminated; returns the bytes it has in
 * `data`. `bytes` is at least 1. */
enum { PRINTABLE_ESCAPE = 12 };
size_t printable_escape(const char *data, size_t bytes, char out[PRINTABLE_ESCAPE]);

/* A whole string into `out` of `room` bytes (at least 16), NUL-terminated; what does not fit is cut and ends in "...".
 * Returns the bytes written. */
size_t printable_copy(char *out, size_t room, const char *data, size_t bytes);

#endif
