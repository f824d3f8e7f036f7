/* json_scan -- one pass that counts, and a validator of the grammar without recursion. */
#include "base/json_scan.h"
#include <string.h>

enum { DEPTH_MAX = 2048 }; /* same as jansson's limit */

/* --- counting ------------------------------------------------------------------------------- */

/* `at` is after the opening quote of a string; returns the position after its closing quote. */
static const char *string_end(const char *at, const char *end)
{
    for (; at < end && *at != '"'; at++)
        at += *at == '\\' && at + 1 < end;
    return at < end ? at + 1 : end;
}

struct json_count json_scan_count(const char *text, size_t bytes)
{
    struct json_count count = {.values = 1, .bytes = bytes};
    for (const char *at = text, *end = text + bytes, *begin; at < end;) {
        switch (*at++) {
        case '"':
            count.strings++;
            begin = at;
            at = string_end(at, end);
            count.longest =
                (size_t)(at - begin) > count.longest ? (size_t)(at - begin) : count.longest;
            break;
        case '{':
            count.objects++;
            count.values++; /* its first element; the others follow commas */
            break;
        case '[':
            count.arrays++;
            count.values++;
            break;
        case ',': count.values++; break;
        case ':': count.keys++; break;
        default: break;
        }
    }
    return count;
}

static int64_t at_least_none(int64_t n)
{
    return n > 0 ? n : 0;
}

/* All sizes include the allocator's overhead. While an array grows its table, an object its
 * buckets, or the parser its string buffer, the old block still exists next to one of twice its
 * size. */
size_t json_scan_tree_bytes(const struct json_count *count)
{
    int64_t words = at_least_none(count->strings - count->keys);
    int64_t numbers = at_least_none(count->values - count->arrays - count->objects - words);
    return (size_t)count->objects * (80 + 144) + (size_t)count->arrays * (48 + 80) +
           (size_t)count->values * 24 + (size_t)words * (48 + 32) + (size_t)numbers * 32 +
           (size_t)count->keys * (80 + 48) + count->bytes + 4 * count->longest;
}

/* --- the grammar ---------------------------------------------------------------------------- */

struct cursor {
    const char *at, *end;
    int depth;
    char close[DEPTH_MAX]; /* closing bracket of every open array and object: ']' or '}' */
};

/* The next character after white space, not consumed; 0 at the end. */
static char peek(struct cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\t' || *c->at == '\n' || *c->at == '\r'))
        c->at++;
    return c->at < c->end ? *c->at : 0;
}

static bool take(struct cursor *c, char wanted)
{
    bool there = peek(c) == wanted && c->at < c->end;
    c->at += there;
    return there;
}

static bool take_word(struct cursor *c, const char *word)
{
    size_t bytes = strlen(word);
    if ((size_t)(c->end - c->at) < bytes || memcmp(c->at, word, bytes) != 0)
        return false;
    c->at += bytes;
    return true;
}

/* The four hex digits of an escape; -1 = not four hex digits. */
static int take_code(struct cursor *c)
{
    static const char digits[] = "0123456789abcdefABCDEF";
    int code = 0;
    for (int i = 0; i < 4; i++, c->at++) {
        const char *digit = c->at < c->end ? memchr(digits, *c->at, 22) : NULL;
        if (!digit)
            return -1;
        code = 16 * code + (int)(digit - digits) - (digit - digits > 15 ? 6 : 0);
    }
    return code;
}

static bool is_half(int code, int first)
{
    return code >= first && code < first + 0x400;
}

/* The rest of an escape after the backslash. Surrogates must come in pairs. */
static bool take_escape(struct cursor *c)
{
    if (c->at == c->end || !memchr("\"\\/bfnrtu", *c->at, 9))
        return false;
    if (*c->at++ != 'u')
        return true;
    int code = take_code(c);
    if (code < 0 || is_half(code, 0xdc00) || !is_half(code, 0xd800))
        return code >= 0 && !is_half(code, 0xdc00);
    return take_word(c, "\\u") && is_half(take_code(c), 0xdc00);
}

static bool take_string(struct cursor *c)
{
    if (!take(c, '"'))
        return false;
    while (c->at < c->end && *c->at != '"') {
        char here = *c->at++;
        if ((unsigned char)here < 0x20 || (here == '\\' && !take_escape(c)))
            return false;
    }
    return take(c, '"');
}

static bool take_digits(struct cursor *c)
{
    const char *begin = c->at;
    while (c->at < c->end && *c->at >= '0' && *c->at <= '9')
        c->at++;
    return c->at > begin;
}

static bool take_number(struct cursor *c)
{
    c->at += *c->at == '-';
    const char *begin = c->at;
    if (!take_digits(c) || (*begin == '0' && c->at - begin > 1))
        return false;
    if (c->at < c->end && *c->at == '.') {
        c->at++;
        if (!take_digits(c))
            return false;
    }
    if (c->at < c->end && (*c->at == 'e' || *c->at == 'E')) {
        c->at++;
        c->at += c->at < c->end && (*c->at == '+' || *c->at == '-');
        return take_digits(c);
    }
    return true;
}

static bool take_scalar(struct cursor *c)
{
    switch (peek(c)) {
    case '"': return take_string(c);
    case 't': return take_word(c, "true");
    case 'f': return take_word(c, "false");
    case 'n': return take_word(c, "null");
    case 0: return false;
    default: return take_number(c);
    }
}

static bool take_key(struct cursor *c)
{
    return take_string(c) && take(c, ':');
}

/* A scalar, or the opening of an array or object (with the first key of an object). *open = a value
 * must follow. */
static bool take_value(struct cursor *c, bool *open)
{
    char first = peek(c);
    *open = false;
    if (first != '[' && first != '{')
        return c->depth > 0 && take_scalar(c);
    if (c->depth == DEPTH_MAX)
        return false;
    c->at++;
    c->close[c->depth++] = first == '[' ? ']' : '}';
    if (peek(c) == c->close[c->depth - 1])
        return true;
    *open = true;
    return first == '[' || take_key(c);
}

/* After a value: closing brackets, then a comma (with the next key of an object) or the end of the
 * text. *more = another value must follow. */
static bool take_rest(struct cursor *c, bool *more)
{
    while (c->depth > 0 && take(c, c->close[c->depth - 1]))
        c->depth--;
    *more = c->depth > 0;
    if (!*more)
        return peek(c) == 0 && c->at == c->end;
    return take(c, ',') && (c->close[c->depth - 1] == ']' || take_key(c));
}

bool json_scan_is_valid(const char *text, size_t bytes)
{
    struct cursor c = {.at = text, .end = text + bytes};
    for (bool more = true; more;) {
        bool open;
        if (!take_value(&c, &open))
            return false;
        if (!open && !take_rest(&c, &more))
            return false;
    }
    return true;
}
