/* base64 -- see the header. */
#include "base/base64.h"
#include <string.h>

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void base64_add(struct text *text, const void *data, size_t bytes)
{
    const unsigned char *from = data;
    for (size_t i = 0; i < bytes; i += 3) {
        size_t count = bytes - i < 3 ? bytes - i : 3;
        uint32_t three = (uint32_t)from[i] << 16;
        three |= count > 1 ? (uint32_t)from[i + 1] << 8 : 0;
        three |= count > 2 ? from[i + 2] : 0;
        char four[4] = {digits[three >> 18], digits[three >> 12 & 63], '=', '='};
        if (count > 1)
            four[2] = digits[three >> 6 & 63];
        if (count > 2)
            four[3] = digits[three & 63];
        text_add_bytes(text, four, 4);
    }
}

bool base64_decode(const char *code, struct text *text)
{
    uint32_t bits = 0;
    int count = 0, ends = 0;
    for (; *code; code++) {
        if (strchr(" \t\r\n", *code))
            continue;
        const char *digit = strchr(digits, *code);
        ends += *code == '=';
        if (*code != '=' && (!digit || ends > 0))
            return false;
        bits = bits << 6 | (digit ? (uint32_t)(digit - digits) : 0);
        if (++count % 4 != 0)
            continue;
        const char three[3] = {(char)(bits >> 16), (char)(bits >> 8), (char)bits};
        if (ends > 2)
            return false;
        text_add_bytes(text, three, 3 - (size_t)ends);
    }
    return count % 4 == 0;
}
