/* text -- a growing string for help pages, JSON and YAML. The first failed allocation is kept in
 * text.status; nothing is added after it. */
#ifndef BASE_TEXT_H
#define BASE_TEXT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/env.h"
#include "base/printable.h"

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
void text_clear(struct text *text);               /* makes it empty; keeps the allocation */
const char *text_string(const struct text *text); /* "" when empty */
bool text_ends_with(const char *string, const char *end);

/* A quoted JSON string. Invalid UTF-8 bytes become U+FFFD; code points that base/printable.h
 * refuses become escapes such as \u001b. */
void text_json_string(struct text *text, const char *data, size_t bytes);
/* The shortest decimal that parses back to the same double; null when not finite. */
void text_json_real(struct text *text, double value);

#define TEXT_REPLACEMENT "\xef\xbf\xbd" /* U+FFFD, shown for invalid UTF-8 */

/* Base64 of RFC 4648, as in YAML's !!binary. Decoding skips white space and appends the bytes;
 * false = `code` is not base64. */
void text_base64(struct text *text, const void *data, size_t bytes);
bool text_base64_decode(struct text *text, const char *code);

#endif
