/* printable -- allocates and logs nothing: log.c and mem.c use it to report lack of memory. */
#include "base/printable.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

/* --- UTF-8 ---------------------------------------------------------------------------------- */

size_t text_utf8(const char *data, size_t bytes, uint32_t *code)
{
    /* By length; a smaller code point is an overlong form. */
    static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
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

/* --- escapes -------------------------------------------------------------------------------- */

/* Joiners (U+200C, U+200D) are allowed: words and emoji need them, and they hide nothing. */
bool printable_refuses(uint32_t code)
{
    static const uint32_t ranges[][2] = {
        {0x00, 0x1f},       /* C0 controls */
        {0x7f, 0x9f},       /* C1 controls */
        {0x61c, 0x61c},     /* text direction */
        {0x200b, 0x200b},   /* zero width */
        {0x200e, 0x200f},   /* text direction */
        {0x2028, 0x202e},   /* line ends, text direction */
        {0x2060, 0x206f},   /* zero width, text direction */
        {0xfeff, 0xfeff},   /* zero width */
        {0xfff9, 0xfffb},   /* interlinear annotations */
        {0xe0000, 0xe007f}, /* tags: invisible */
    };
    if (code >= 0x20 && code < 0x7f) /* the common case */
        return false;
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        if (code >= ranges[i][0] && code <= ranges[i][1])
            return true;
    }
    return false;
}

size_t printable_span(const char *data, size_t bytes)
{
    size_t at = 0;
    while (at < bytes) {
        uint32_t code = 0;
        size_t length = text_utf8(data + at, bytes - at, &code);
        if (length == 0 || printable_refuses(code))
            break;
        at += length;
    }
    return at;
}

size_t printable_escape(const char *data, size_t bytes, char out[PRINTABLE_ESCAPE])
{
    uint32_t code = 0;
    size_t length = text_utf8(data, bytes, &code);
    const char *letter = strchr("\nn\rr\tt", *data);
    if (length == 1 && *data != 0 && letter != NULL)
        snprintf(out, PRINTABLE_ESCAPE, "\\%c", letter[1]);
    else if (length <= 1)
        snprintf(out, PRINTABLE_ESCAPE, "\\x%02x", (unsigned char)*data);
    else
        snprintf(out, PRINTABLE_ESCAPE, code > 0xffff ? "\\U%08x" : "\\u%04x", code);
    return length ? length : 1;
}

/* Bytes of `chunk` that fit in `room` without splitting a character. */
static size_t fitting(const char *chunk, size_t bytes, size_t room)
{
    if (bytes <= room)
        return bytes;
    while (room > 0 && (chunk[room] & 0xc0) == 0x80)
        room--;
    return room;
}

size_t printable_copy(char *out, size_t room, const char *data, size_t bytes)
{
    static const char dots[] = "...";
    size_t used = 0, most = room - sizeof dots;
    while (bytes > 0) {
        char escape[PRINTABLE_ESCAPE];
        size_t taken = printable_span(data, bytes);
        size_t chunk = taken;
        const char *from = data;
        if (taken == 0) {
            taken = printable_escape(data, bytes, escape);
            chunk = strlen(escape);
            from = escape;
        }
        bool last = taken == bytes;
        size_t left = (last ? room - 1 : most) - used;
        if (chunk > left) { /* an escape is never split */
            chunk = from == escape ? 0 : fitting(from, chunk, most > used ? most - used : 0);
            memcpy(out + used, from, chunk);
            used += chunk;
            memcpy(out + used, dots, sizeof dots);
            return used + sizeof dots - 1;
        }
        memcpy(out + used, from, chunk);
        used += chunk;
        data += taken;
        bytes -= taken;
    }
    out[used] = 0;
    return used;
}

/* --- figures -------------------------------------------------------------------------------- */

enum { HUMAN_BYTES = 32 };

/* One decimal and a unit, for a value of at least one `base`. */
static char *scale(char *out, double value, double base, const char *const *units)
{
    int unit = 0;
    for (value /= base; fabs(value) >= base - 0.05 && unit < 5; unit++)
        value /= base;
    snprintf(out, HUMAN_BYTES, "%.1f%s", value, units[unit]);
    return out;
}

char *text_human_bytes(char *out, double bytes)
{
    static const char *const units[] = {" KiB", " MiB", " GiB", " TiB", " PiB", " EiB"};
    if (!(fabs(bytes) < 1023.5))
        return scale(out, bytes, 1024, units);
    snprintf(out, HUMAN_BYTES, "%.0f B", bytes);
    return out;
}

char *text_human_count(char *out, double count)
{
    static const char *const units[] = {"k", "M", "G", "T", "P", "E"};
    if (!(fabs(count) < 999.5))
        return scale(out, count, 1000, units);
    snprintf(out, HUMAN_BYTES, count == floor(count) ? "%.0f" : "%.1f", count);
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
