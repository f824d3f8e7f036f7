/* json_doc -- counts a text in one pass, checks that the memory is available, then parses it with
 * jansson; and a validator of the grammar without recursion. */
#include "base/json_doc.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/printable.h"

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

/* Upper bound of the bytes that jansson allocates for the tree, including what it needs while
 * parsing (64-bit, with glibc's overhead). While an array grows its table, an object its buckets,
 * or the parser its string buffer, the old block still exists next to one of twice its size. */
static size_t tree_bytes_of(const struct json_count *count)
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

/* --- documents ------------------------------------------------------------------------------ */

static enum status refuse(struct json_doc *doc, int64_t count, const char *what, int64_t most)
{
    doc->error = (json_error_t){.line = 1};
    doc->too_large = true;
    snprintf(doc->error.text, sizeof doc->error.text - 1,
             "it has %" PRId64 " %s where at most %" PRId64 " are allowed", count, what, most);
    return STATUS_FORMAT;
}

static enum status fail_memory(struct env *env, size_t bytes, size_t tree_bytes)
{
    char human[2][32];
    return FAIL(env, MEMORY, "out of memory: JSON of %s may take %s",
                text_human_bytes(human[0], (double)bytes),
                text_human_bytes(human[1], (double)tree_bytes));
}

/* Whether jansson ran out of memory. It reports that, or nothing at all, or, where a string could
 * not be stored, a syntax error in a valid text. */
static bool is_out_of_memory(const struct json_doc *doc, const char *text, size_t bytes)
{
    switch (json_error_code(&doc->error)) {
    case json_error_out_of_memory: return true;
    case json_error_unknown:
    case json_error_invalid_syntax: return json_scan_is_valid(text, bytes);
    default: return false;
    }
}

/* JSON has no NUL bytes, but jansson accepts one after a number. */
static bool has_nul(struct json_doc *doc, const char *text, size_t bytes)
{
    const char *nul = bytes > 0 ? memchr(text, 0, bytes) : NULL;
    if (!nul)
        return false;
    doc->error = (json_error_t){.line = 1, .position = (int)(nul - text)};
    for (const char *at = text; at < nul; at++)
        doc->error.line += *at == '\n';
    snprintf(doc->error.text, sizeof doc->error.text - 1, "it has a NUL byte");
    return true;
}

enum status json_doc_open(struct env *env, const char *text, size_t bytes,
                          const struct json_rules *rules, struct json_doc *doc)
{
    struct json_count count = json_scan_count(text, bytes);
    *doc = (struct json_doc){.env = env};
    if (has_nul(doc, text, bytes))
        return STATUS_FORMAT;
    if (count.arrays + count.objects > rules->lists)
        return refuse(doc, count.arrays + count.objects, "lists and objects", rules->lists);
    if (count.values > rules->values)
        return refuse(doc, count.values, "values", rules->values);
    size_t tree_bytes = tree_bytes_of(&count);
    TRY(mem_count(env, MEM_HOST, MEM_OTHER, "json", tree_bytes));
    doc->counted = tree_bytes;
    /* jansson allocates small blocks and does not check one of them (the buffer of a growing
     * string), so a failure there would silently truncate the string. Therefore lack of memory must
     * be found before parsing. */
    void *volatile room = malloc(tree_bytes);
    free(room);
    if (room == NULL) {
        json_doc_close(doc);
        return fail_memory(env, bytes, tree_bytes);
    }
    doc->root = json_loadb(text, bytes, rules->flags, &doc->error);
    if (doc->root)
        return STATUS_OK;
    json_doc_close(doc);
    if (is_out_of_memory(doc, text, bytes))
        return fail_memory(env, bytes, tree_bytes);
    return STATUS_FORMAT;
}

const char *json_doc_fault(const struct json_doc *doc)
{
    return doc->too_large ? "too large" : "not valid JSON";
}

void json_doc_close(struct json_doc *doc)
{
    json_decref(doc->root);
    if (doc->counted > 0)
        mem_uncount(doc->env, MEM_HOST, MEM_OTHER, "json", doc->counted);
    doc->root = NULL;
    doc->counted = 0;
}
