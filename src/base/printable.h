/* printable -- bytes and figures in readable form: UTF-8, escapes, "12.3 MiB". Allocates nothing.
 *
 * Names, values and texts come from files and from other people. Control characters (an escape
 * sequence can move the cursor, set a title or clear the screen), bytes that are not UTF-8, and
 * marks that reverse or hide text are shown as escapes: \n, \x1b, \u202e. Backslashes are not
 * escaped: the result is for people and cannot be parsed back. The log and the console pass every
 * line through here, so no caller has to.
 */
#ifndef BASE_PRINTABLE_H
#define BASE_PRINTABLE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Length in bytes of the well-formed UTF-8 character at the start of `data`, and its code point;
 * 0 = not well-formed. */
size_t text_utf8(const char *data, size_t bytes, uint32_t *code);
/* Bytes at the end of `data` that start a UTF-8 character but do not complete it. */
size_t text_unfinished(const char *data, size_t bytes);

/* A code point that must not reach a terminal. Includes newline and tab. */
bool printable_refuses(uint32_t code);
/* Bytes at the start of `data` that can be shown unchanged. */
size_t printable_span(const char *data, size_t bytes);
/* The escape for the character (or invalid byte) at the start of `data`, NUL-terminated. Returns
 * the bytes of `data` that it replaces. `bytes` is at least 1. */
enum { PRINTABLE_ESCAPE = 12 };
size_t printable_escape(const char *data, size_t bytes, char out[PRINTABLE_ESCAPE]);
/* A whole string into `out` of `room` bytes (at least 16), NUL-terminated. A longer result is
 * truncated and ends in "...". Returns the bytes written. */
size_t printable_copy(char *out, size_t room, const char *data, size_t bytes);

/* "12.3 MiB", "79.5k", "12m54s". `out` holds at least 32 bytes and is returned. */
char *text_human_bytes(char *out, double bytes);
char *text_human_count(char *out, double count);
char *text_human_seconds(char *out, double seconds);

#endif
