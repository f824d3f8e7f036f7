/* text -- the growing string, JSON and base64. The block is always NUL-terminated and doubles. */
#include "base/text.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* Ensure room for `more` bytes and the final NUL; false after any failure. */
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

void text_printf(struct text *text, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, args);
    if (length > 0 && reserve(text, (size_t)length)) {
        vsnprintf(text->data + text->bytes, (size_t)length + 1, format, again);
        text->bytes += (size_t)length;
    }
    va_end(again);
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

bool text_ends_with(const char *string, const char *end)
{
    size_t bytes = strlen(string), tail = strlen(end);
    return bytes >= tail && strcmp(string + bytes - tail, end) == 0;
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

/* Normalize what printf wrote: a locale's decimal comma, and exponents such as "e+05". */
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

void text_json_real(struct text *text, double value)
{
    char number[40];
    if (!isfinite(value)) {
        text_add(text, "null");
        return;
    }
    if (value == floor(value) && fabs(value) < 1e15) {
        text_printf(text, "%.0f", value);
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(number, sizeof number, "%.*g", digits, value);
        if (strtod(number, NULL) == value)
            break;
    }
    tidy_number(number);
    text_add(text, number);
}

/* --- base64 --------------------------------------------------------------------------------- */

static const char base64_digits[] =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void text_base64(struct text *text, const void *data, size_t bytes)
{
    const unsigned char *from = data;
    for (size_t i = 0; i < bytes; i += 3) {
        size_t count = bytes - i < 3 ? bytes - i : 3;
        uint32_t three = (uint32_t)from[i] << 16;
        three |= count > 1 ? (uint32_t)from[i + 1] << 8 : 0;
        three |= count > 2 ? from[i + 2] : 0;
        char four[4] = {base64_digits[three >> 18], base64_digits[three >> 12 & 63], '=', '='};
        if (count > 1)
            four[2] = base64_digits[three >> 6 & 63];
        if (count > 2)
            four[3] = base64_digits[three & 63];
        text_add_bytes(text, four, 4);
    }
}

bool text_base64_decode(struct text *text, const char *code)
{
    uint32_t bits = 0;
    int count = 0, ends = 0;
    for (; *code; code++) {
        if (strchr(" \t\r\n", *code))
            continue;
        const char *digit = strchr(base64_digits, *code);
        ends += *code == '=';
        if (*code != '=' && (!digit || ends > 0))
            return false;
        bits = bits << 6 | (digit ? (uint32_t)(digit - base64_digits) : 0);
        if (++count % 4 != 0)
            continue;
        const char three[3] = {(char)(bits >> 16), (char)(bits >> 8), (char)bits};
        if (ends > 2)
            return false;
        text_add_bytes(text, three, 3 - (size_t)ends);
    }
    return count % 4 == 0;
}
