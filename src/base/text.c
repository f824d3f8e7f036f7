/* text -- the growing string, JSON pieces, and numbers for people.
 *
 * The block is always NUL-terminated and doubles as it grows. Once an allocation failed the text
 * keeps what it had and takes no more; text.status tells.
 */
#include "base/text.h"
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/printable.h"

enum { FIRST_ROOM = 256 };

void text_init(struct text *text, struct env *env)
{
    *text = (struct text){.env = env};
}

void text_free(struct text *text)
{
    mem_free(text->env, text->data);
    text_init(text, text->env);
}

/* Make place for `more` bytes and the final NUL; false once anything failed. */
static bool reserve(struct text *text, size_t more)
{
    if (text->status != STATUS_OK)
        return false;
    if (more < text->room && text->bytes < text->room - more)
        return true;
    size_t room = text->room ? text->room : FIRST_ROOM;
    while (room <= more || room - more <= text->bytes)
        room *= 2;
    text->status = mem_grow_array(text->env, MEM_OTHER, "text", room, 1, &text->data);
    if (text->status == STATUS_OK)
        text->room = room;
    return text->status == STATUS_OK;
}

void text_add_bytes(struct text *text, const void *data, size_t bytes)
{
    if (bytes == 0 || !reserve(text, bytes))
        return;
    memcpy(text->data + text->bytes, data, bytes);
    text->bytes += bytes;
    text->data[text->bytes] = 0;
}

void text_add(struct text *text, const char *string)
{
    text_add_bytes(text, string, strlen(string));
}

void text_vprintf(struct text *text, const char *format, va_list args)
{
    va_list again;
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    if (length > 0 && reserve(text, (size_t)length)) {
        vsnprintf(text->data + text->bytes, (size_t)length + 1, format, again);
        text->bytes += (size_t)length;
    }
    va_end(again);
}

void text_printf(struct text *text, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    text_vprintf(text, format, args);
    va_end(args);
}

void text_clear(struct text *text)
{
    text->bytes = 0;
    if (text->data)
        text->data[0] = 0;
}

const char *text_string(const struct text *text)
{
    return text->data ? text->data : "";
}

/* --- UTF-8 ---------------------------------------------------------------------------------- */

size_t text_utf8(const char *data, size_t bytes, uint32_t *code)
{
    static const uint32_t smallest[] = {0, 0, 0x80, 0x800,
                                        0x10000}; /* below it: an overlong form */
    const uint8_t *s = (const uint8_t *)data;
    if (bytes == 0 || (s[0] >= 0x80 && s[0] < 0xc2) || s[0] > 0xf4)
        return 0;
    size_t length = s[0] < 0x80 ? 1 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    if (length > bytes)
        return 0;
    *code = length == 1 ? s[0] : s[0] & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
        *code = *code << 6 | (s[i] & 0x3fu);
    }
    bool surrogate = *code >= 0xd800 && *code < 0xe000;
    return *code < smallest[length] || surrogate || *code > 0x10ffff ? 0 : length;
}

size_t text_unfinished(const char *data, size_t bytes)
{
    size_t back = 0;
    while (back < bytes && back < 3 && (data[bytes - 1 - back] & 0xc0) == 0x80)
        back++;
    if (back == bytes)
        return 0;
    unsigned char lead = (unsigned char)data[bytes - 1 - back];
    size_t wanted = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
    return back + 1 < wanted ? back + 1 : 0;
}

/* --- JSON ----------------------------------------------------------------------------------- */

static void json_escape(struct text *text, uint32_t code)
{
    static const char names[] = "\"\"\\\\\bb\ff\nn\rr\tt"; /* pairs: the byte, its letter */
    for (const char *pair = names; *pair; pair += 2) {
        if ((uint8_t)*pair == code) {
            text_add_bytes(text, (char[]){'\\', pair[1]}, 2);
            return;
        }
    }
    if (code > 0xffff) {
        text_printf(text, "\\u%04x", 0xd800 + ((code - 0x10000) >> 10));
        code = 0xdc00 + (code & 0x3ff);
    }
    text_printf(text, "\\u%04x", code);
}

void text_json_string(struct text *text, const char *data, size_t bytes)
{
    const char *end = data + bytes;
    text_add(text, "\"");
    while (data < end) {
        uint32_t code = 0;
        size_t length = text_utf8(data, (size_t)(end - data), &code);
        if (length == 0)
            text_add(text, TEXT_REPLACEMENT);
        else if (printable_refuses(code) || code == '"' || code == '\\')
            json_escape(text, code);
        else
            text_add_bytes(text, data, length);
        data += length ? length : 1;
    }
    text_add(text, "\"");
}

/* Undo what printf adds: a locale's decimal comma, and "e+05", "e-05" for e5, e-5. */
static void tidy_number(char *number)
{
    char *to = number;
    bool exponent = false;
    for (const char *from = number; *from; from++) {
        bool skip =
            exponent && (*from == '+' || (*from == '0' && (to[-1] == 'e' || to[-1] == '-')));
        exponent |= *from == 'e';
        if (!skip)
            *to++ = *from == ',' ? '.' : *from;
    }
    *to = 0;
}

/* With `low` to `high` significant digits, the fewest that read back equal. */
static void add_shortest(struct text *text, double value, int low, int high, bool single)
{
    char number[40];
    if (!isfinite(value)) {
        text_add(text, "null");
        return;
    }
    if (value == floor(value) && fabs(value) < (single ? 1e7 : 1e15)) {
        snprintf(number, sizeof number, "%.0f", value);
        text_add(text, number);
        return;
    }
    for (int digits = low; digits <= high; digits++) {
        snprintf(number, sizeof number, "%.*g", digits, value);
        if (single ? strtof(number, NULL) == (float)value : strtod(number, NULL) == value)
            break;
    }
    tidy_number(number);
    text_add(text, number);
}

void text_json_real(struct text *text, double value)
{
    add_shortest(text, value, 15, 17, false);
}

void text_json_float(struct text *text, float value)
{
    add_shortest(text, (double)value, 6, 9, true);
}

/* --- for people ----------------------------------------------------------------------------- */

enum { HUMAN_BYTES = 32 };

char *text_human_bytes(char *out, double bytes)
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (fabs(bytes) < 1023.5) {
        snprintf(out, HUMAN_BYTES, "%.0f B", bytes);
        return out;
    }
    int unit = 0;
    for (bytes /= 1024; fabs(bytes) >= 1023.95 && unit < 5; unit++)
        bytes /= 1024;
    snprintf(out, HUMAN_BYTES, "%.1f %s", bytes, units[unit]);
    return out;
}

char *text_human_count(char *out, double count)
{
    static const char units[] = "kMGTPE";
    if (fabs(count) < 999.5) {
        snprintf(out, HUMAN_BYTES, count == floor(count) ? "%.0f" : "%.1f", count);
        return out;
    }
    int unit = 0;
    for (count /= 1000; fabs(count) >= 999.95 && unit < 5; unit++)
        count /= 1000;
    snprintf(out, HUMAN_BYTES, "%.1f%c", count, units[unit]);
    return out;
}

char *text_human_seconds(char *out, double seconds)
{
    if (!(seconds >= 0) || seconds > 1e9) {
        snprintf(out, HUMAN_BYTES, "?");
    } else if (seconds < 0.9995) {
        snprintf(out, HUMAN_BYTES, "%.0fms", seconds * 1e3);
    } else if (seconds < 59.95) {
        snprintf(out, HUMAN_BYTES, "%.1fs", seconds);
    } else {
        long s = lround(seconds), m = s / 60, h = m / 60;
        if (m < 60)
            snprintf(out, HUMAN_BYTES, "%ldm%02lds", m, s % 60);
        else if (h < 48)
            snprintf(out, HUMAN_BYTES, "%ldh%02ldm", h, m % 60);
        else
            snprintf(out, HUMAN_BYTES, "%ldd%02ldh", h / 24, h % 24);
    }
    return out;
}
