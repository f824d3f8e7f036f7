/* printable -- see the header. Nothing here allocates: running out of memory is reported this way. */
#include "base/printable.h"
#include <stdio.h>
#include <string.h>
#include "base/text.h"

/* Joiners (U+200C, U+200D) stay: words and emoji are made of them, and they hide nothing. */
bool printable_refuses(uint32_t code)
{
    static const uint32_t ranges[][2] = {
        {0x00, 0x1f},       /* controls */
        {0x7f, 0x9f},       /* ... and the second set of them */
        {0x61c, 0x61c},     /* direction of text */
        {0x200b, 0x200b},   /* no width */
        {0x200e, 0x200f},   /* direction */
        {0x2028, 0x202e},   /* ends of lines, direction */
        {0x2060, 0x206f},   /* no width, direction */
        {0xfeff, 0xfeff},   /* no width */
        {0xfff9, 0xfffb},   /* text between lines */
        {0xe0000, 0xe007f}, /* tags: not shown at all */
    };
    if (code >= 0x20 && code < 0x7f) /* nearly all that is printed */
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

/* Whole characters of `chunk` that fit in `room`. */
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
        if (chunk > left) { /* an escape is not cut */
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
