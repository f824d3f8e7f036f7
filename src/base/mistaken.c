/* mistaken -- compares the first bytes with a table of known beginnings. */
#include "base/mistaken.h"
#include <string.h>
#include <strings.h>

const char *mistaken_for(const void *data, size_t bytes)
{
    static const struct {
        const char *begin, *what;
    } kinds[] = {
#define PAGE                                                                             \
    "an HTML page, not the file itself; download that (on Hugging Face the address has " \
    "/resolve/, not /blob/)"
        {"<!doctype html", PAGE},
        {"<html", PAGE},
        {"<head", PAGE},
        {"<!--", PAGE},
        {"<?xml", "XML, not the file itself; download that"},
        {"version https://git-lfs", "a Git LFS pointer, not the file itself; run git lfs pull"},
#undef PAGE
    };
    const char *text = data, *end = text + bytes;
    if (bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        text += 3;
    while (text < end && memchr(" \t\r\n", *text, 4))
        text++;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        size_t length = strlen(kinds[i].begin);
        if ((size_t)(end - text) >= length && strncasecmp(text, kinds[i].begin, length) == 0)
            return kinds[i].what;
    }
    return NULL;
}
