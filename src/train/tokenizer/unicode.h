/* unicode -- what the tokenizer knows about characters, independent of any library's Unicode version.
 *
 * The tables (unicode_data.c) hold what Hugging Face `tokenizers` does with each code point; its
 * steps have different Unicode versions, and so do the columns here. tools/unicode_tables.py writes
 * them.
 */
#ifndef TRAIN_UNICODE_H
#define TRAIN_UNICODE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UNICODE_END 0x110000u /* one past the last code point */

enum { UNICODE_CATEGORIES = 30, UNICODE_SCRIPTS = 40 };

enum {                         /* flags of a run */
       UNICODE_ALPHABETIC = 1, /* of regular expressions, like category and script: */
       UNICODE_WHITE_SPACE = 2,
       UNICODE_UPPERCASE = 4,
       UNICODE_LOWERCASE = 8,
       UNICODE_PUNCT = 16,
       UNICODE_DIGITS = 32,      /* of the pre-tokenizer Digits */
       UNICODE_PUNCTUATION = 64, /* of the pre-tokenizer Punctuation */
};

struct unicode_run { /* from `start` to the next run */
    uint32_t start;
    uint8_t category, script, flags; /* indices of the lists of names; script 0: another one */
};
struct unicode_lower { /* every `step`-th code point from `first` to `last` */
    uint32_t first, last;
    int32_t step, delta;
};
struct unicode_combining {
    uint32_t first, last;
    int32_t value;
};
struct unicode_parts { /* of the pool: `canonical` code points, then `compatible`, if not equal */
    uint32_t code;
    uint16_t at;
    uint8_t canonical, compatible;
};
struct unicode_pair { /* sorted; first + second compose to `result` */
    uint32_t first, second, result;
};

extern const char *const unicode_categories[UNICODE_CATEGORIES];
extern const char *const unicode_scripts[UNICODE_SCRIPTS];
extern const struct unicode_run unicode_runs[];
extern const struct unicode_lower unicode_lowers[];
extern const struct unicode_combining unicode_combinings[];
extern const struct unicode_parts unicode_decompositions[];
extern const struct unicode_pair unicode_pairs[];
extern const uint32_t unicode_pool[];
extern const size_t unicode_runs_count, unicode_lowers_count, unicode_combinings_count,
    unicode_decompositions_count, unicode_pairs_count;

/* --- UTF-8 ---------------------------------------------------------------------------------- */

/* The character at `text`, which is not empty, and its length. Length 0: not valid UTF-8. */
size_t utf8_read(const uint8_t *text, size_t bytes, uint32_t *code);
size_t utf8_write(uint32_t code, uint8_t out[4]); /* returns the length */

/* --- normal forms and lower case ------------------------------------------------------------ */

enum unicode_form { UNICODE_NFC, UNICODE_NFD, UNICODE_NFKC, UNICODE_NFKD };

uint32_t unicode_lower(uint32_t code); /* U+0130, which has two characters, is the caller's */

int unicode_combining_class(uint32_t code);
/* The decomposition of a code point (Hangul too): its length, at most UNICODE_PARTS_MAX. */
enum { UNICODE_PARTS_MAX = 18 };
int unicode_decompose(uint32_t code, bool compatible, uint32_t out[UNICODE_PARTS_MAX]);
uint32_t unicode_compose(uint32_t first, uint32_t second); /* 0 if they do not compose */

#endif
