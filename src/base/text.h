/* text -- a string that grows, for help pages, JSON lines and YAML. A failed allocation sticks;
 * text.status tells. */
#ifndef BASE_TEXT_H
#define BASE_TEXT_H
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include "base/env.h"

struct text {
    struct env *env; /* borrowed */
    char *data;      /* NUL-terminated; NULL before the first byte */
    size_t bytes, room;
    enum status status;
};

void text_init(struct text *text, struct env *env);
void text_free(struct text *text);
void text_add(struct text *text, const char *string);
void text_add_bytes(struct text *text, const void *data, size_t bytes);
void text_printf(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void text_vprintf(struct text *text, const char *format, va_list args);
void text_clear(struct text *text);               /* empty again; keeps its room */
const char *text_string(const struct text *text); /* "" when empty */

/* JSON pieces: a quoted and escaped string (invalid UTF-8 bytes become U+FFFD, what base/printable.h refuses
 * becomes \u001b and the like); the shortest
 * decimal that reads back to the same double, null when it is not finite; the same for a value that
 * is a float. */
void text_json_string(struct text *text, const char *data, size_t bytes);
void text_json_real(struct text *text, double value);
void text_json_float(struct text *text, float value);

#define TEXT_REPLACEMENT "\xef\xbf\xbd" /* U+FFFD: a character that is none */

/* Bytes of the well-formed UTF-8 character that `data` begins with, and its code point; 0 = there
 * is none. */
size_t text_utf8(const char *data, size_t bytes, uint32_t *code);

/* Bytes at the end of `data` that begin a UTF-8 character and do not finish it. */
size_t text_unfinished(const char *data, size_t bytes);

/* "12.3 MiB", "79.5k", "12m54s": for people. `out` holds at least 32 bytes; returns out. */
char *text_human_bytes(char *out, double bytes);
char *text_human_count(char *out, double count);
char *text_human_seconds(char *out, double seconds);

#endif
