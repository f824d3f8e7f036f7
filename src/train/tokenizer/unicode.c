/* unicode -- UTF-8, lower case, decomposition and composition of single characters. */
#include "train/tokenizer/unicode.h"
#include <string.h>

/* --- UTF-8 ---------------------------------------------------------------------------------- */

size_t utf8_read(const uint8_t *text, size_t bytes, uint32_t *code)
{
    uint8_t c = text[0];
    /* Some first bytes narrow the range of the second: no overlong forms, no surrogates, nothing
     * above U+10FFFF. */
    uint8_t low = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
    uint8_t high = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
    size_t length = c < 0x80 ? 1 : c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;
    if (!length || length > bytes || (length > 1 && (text[1] < low || text[1] > high)))
        return 0;
    *code = length == 1 ? c : c & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
        *code = *code << 6 | (text[i] & 0x3f);
    }
    return length;
}

size_t utf8_write(uint32_t code, uint8_t out[4])
{
    size_t length = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const uint8_t first[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = length; i-- > 1; code >>= 6)
        out[i] = (uint8_t)(0x80 | (code & 0x3f));
    out[0] = (uint8_t)(first[length] | code);
    return length;
}

/* --- tables --------------------------------------------------------------------------------- */

/* The row of a sorted table that may hold `code`: the last whose first member, a uint32_t, is not
 * above it. NULL if there is none. */
static const void *row_of(const void *table, size_t count, size_t row_bytes, uint32_t code)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        uint32_t first;
        memcpy(&first, (const char *)table + middle * row_bytes, sizeof first);
        if (first <= code)
            low = middle + 1;
        else
            high = middle;
    }
    return low ? (const char *)table + (low - 1) * row_bytes : NULL;
}

uint32_t unicode_lower(uint32_t code)
{
    const struct unicode_lower *row =
        row_of(unicode_lowers, unicode_lowers_count, sizeof *row, code);
    if (row && code <= row->last && (code - row->first) % (uint32_t)row->step == 0)
        return (uint32_t)((int32_t)code + row->delta);
    return code;
}

int unicode_combining_class(uint32_t code)
{
    const struct unicode_combining *row =
        row_of(unicode_combinings, unicode_combinings_count, sizeof *row, code);
    return row && code <= row->last ? row->value : 0;
}

/* --- normal forms; Hangul syllables are computed -------------------------------------------- */

enum { HANGUL = 0xac00, LEADS = 0x1100, VOWELS = 0x1161, TAILS = 0x11a7 };
enum { LEAD_COUNT = 19, VOWEL_COUNT = 21, TAIL_COUNT = 28 };
enum { HANGUL_COUNT = LEAD_COUNT * VOWEL_COUNT * TAIL_COUNT };

int unicode_decompose(uint32_t code, bool compatible, uint32_t out[UNICODE_PARTS_MAX])
{
    uint32_t syllable = code - HANGUL;
    if (syllable < HANGUL_COUNT) {
        out[0] = LEADS + syllable / (VOWEL_COUNT * TAIL_COUNT);
        out[1] = VOWELS + syllable / TAIL_COUNT % VOWEL_COUNT;
        out[2] = TAILS + syllable % TAIL_COUNT;
        return out[2] == TAILS ? 2 : 3;
    }
    const struct unicode_parts *row =
        row_of(unicode_decompositions, unicode_decompositions_count, sizeof *row, code);
    out[0] = code;
    if (!row || row->code != code)
        return 1;
    bool use_compatible = compatible && row->compatible;
    int count = use_compatible ? row->compatible : row->canonical;
    if (!count)
        return 1;
    memcpy(out, unicode_pool + row->at + (use_compatible ? row->canonical : 0),
           (size_t)count * sizeof *out);
    return count;
}

uint32_t unicode_compose(uint32_t first, uint32_t second)
{
    uint32_t lead = first - LEADS, vowel = second - VOWELS, syllable = first - HANGUL;
    if (lead < LEAD_COUNT && vowel < VOWEL_COUNT)
        return HANGUL + (lead * VOWEL_COUNT + vowel) * TAIL_COUNT;
    if (syllable < HANGUL_COUNT && syllable % TAIL_COUNT == 0 && second > TAILS &&
        second < TAILS + TAIL_COUNT)
        return first + second - TAILS;
    const struct unicode_pair *row = row_of(unicode_pairs, unicode_pairs_count, sizeof *row, first);
    for (; row && row >= unicode_pairs && row->first == first; row--)
        if (row->second == second)
            return row->result;
    return 0;
}
