/* tokenizer_added -- finds added tokens in raw text: the leftmost match and, of those that start
 * there, the longest.
 *
 * The contents are a sorted array. At a position, each byte of the text narrows the range of
 * contents that still match, by bisection. There is no automaton to build; a table of first bytes
 * skips most positions. The encoder decides whether a match counts (special or not) and what
 * happens to the white space around it.
 */
#include <stdlib.h>
#include "train/tokenizer/tokenizer_impl.h"

static int compare_contents(const void *a, const void *b, void *user)
{
    const char *contents = text_string(user);
    const struct added *x = a, *y = b;
    size_t common = x->bytes < y->bytes ? x->bytes : y->bytes;
    int order = memcmp(contents + x->at, contents + y->at, common);
    if (order || x->bytes != y->bytes)
        return order ? order : x->bytes < y->bytes ? -1 : 1;
    return (x->id > y->id) -
           (x->id < y->id); /* of two equal contents the lower id is found first */
}

void added_set_finish(struct added_set *set)
{
    if (set->count)
        qsort_r(set->list, (size_t)set->count, sizeof *set->list, compare_contents, &set->contents);
    for (int i = 0; i < set->count; i++) {
        set->first[(uint8_t)set->contents.data[set->list[i].at]] = true;
        set->ordinary_count += !set->list[i].special;
    }
}

/* Byte `depth` of a content; -1 beyond its end, so that a prefix sorts first. */
static int content_byte(const struct added_set *set, int index, size_t depth)
{
    const struct added *token = &set->list[index];
    return depth < token->bytes ? (uint8_t)set->contents.data[token->at + depth] : -1;
}

/* The first of list[low .. high) whose byte at `depth` is at least `byte`. */
static int lower_bound(const struct added_set *set, int low, int high, size_t depth, int byte)
{
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (content_byte(set, middle, depth) < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static const struct added *longest_at(const struct added_set *set, const uint8_t *text,
                                      size_t bytes)
{
    const struct added *longest = NULL;
    int low = 0, high = set->count;
    for (size_t depth = 0; depth < bytes && low < high; depth++) {
        low = lower_bound(set, low, high, depth, text[depth]);
        high = lower_bound(set, low, high, depth, text[depth] + 1);
        if (low < high && content_byte(set, low, depth + 1) < 0)
            longest = &set->list[low];
    }
    return longest;
}

bool added_find(const struct added_set *set, const uint8_t *text, size_t bytes, size_t from,
                struct added_match *match)
{
    for (size_t at = from; at < bytes; at++) {
        if (!set->first[text[at]])
            continue;
        const struct added *token = longest_at(set, text + at, bytes - at);
        if (token) {
            *match = (struct added_match){token, at, at + token->bytes};
            return true;
        }
    }
    return false;
}

/* The length of the white space character (Unicode White_Space) at `text`; 0 if there is none. */
static size_t space_at(const uint8_t *text, size_t bytes)
{
    if (bytes >= 1 && (text[0] == ' ' || (text[0] >= '\t' && text[0] <= '\r')))
        return 1;
    if (bytes >= 2 && text[0] == 0xc2 && (text[1] == 0x85 || text[1] == 0xa0))
        return 2;
    if (bytes < 3)
        return 0;
    unsigned code = (text[0] & 0xfu) << 12 | (text[1] & 0x3fu) << 6 | (text[2] & 0x3fu);
    bool whole = (text[0] & 0xf0) == 0xe0 && (text[1] & 0xc0) == 0x80 && (text[2] & 0xc0) == 0x80;
    bool space = code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
                 code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
    return whole && space ? 3 : 0;
}

size_t added_space_after(const uint8_t *text, size_t bytes)
{
    size_t at = 0, length;
    while ((length = space_at(text + at, bytes - at)) != 0)
        at += length;
    return at;
}

size_t added_space_before(const uint8_t *text, size_t bytes)
{
    size_t left = bytes;
    for (;;) {
        size_t length = 1;
        while (length <= 3 && length <= left && space_at(text + left - length, length) != length)
            length++;
        if (length > 3 || length > left)
            return bytes - left;
        left -= length;
    }
}
