/* tokenizer_impl -- internals shared by tokenizer*.c.
 *
 *   raw text --added--> sections without added tokens --split--> pre-tokens --bpe--> ids
 *
 * Each of the three steps has an immutable part in struct tokenizer and, where it needs scratch
 * memory, a part in struct encoder.
 */
#ifndef TRAIN_TOKENIZER_IMPL_H
#define TRAIN_TOKENIZER_IMPL_H
#include <string.h>
#include "train/tokenizer/tokenizer.h"
#include "train/tokenizer/unicode.h"

#define TOKENIZER_FILE_LIMIT ((size_t)256 << 20)

/* --- vocabulary: the bytes of every id ------------------------------------------------------ */

enum {
    TOKEN_USED = 1,    /* the id has a token; otherwise it is a hole */
    TOKEN_WORD = 2,    /* in model.vocab, spelled in the byte alphabet */
    TOKEN_SPECIAL = 4, /* an added token marked special */
};

struct token {
    uint32_t at, bytes; /* range of `blob` */
    uint32_t flags;
};

struct vocab {
    struct token *tokens; /* [count] */
    int count;            /* largest id + 1 */
    uint8_t *blob;
};

static inline bool token_is(const struct vocab *vocab, const struct token *token, const void *data,
                            size_t bytes)
{
    return token->bytes == bytes && memcmp(vocab->blob + token->at, data, bytes) == 0;
}

/* --- added tokens (tokenizer_added.c): matched in the raw text, before splitting ------------ */

struct added {
    int32_t id;
    bool special, lstrip, rstrip;
    uint32_t at, bytes; /* what it matches: a range of the set's contents */
};

struct added_set {
    struct added *list; /* sorted by content */
    int count, ordinary_count;
    struct text contents; /* normalized, for tokens that are matched in normalized text */
    bool first[256];      /* at least one content starts with this byte */
};

struct added_match {
    const struct added *token;
    size_t start, end;
};

/* Sort set->list[0 .. count) and prepare the set for added_find. */
void added_set_finish(struct added_set *set);

/* Find the leftmost match at or after `from`; of those that start there, the longest. */
bool added_find(const struct added_set *set, const uint8_t *text, size_t bytes, size_t from,
                struct added_match *match);

/* Bytes of white space at the end, or at the start, of text[0 .. bytes). */
size_t added_space_before(const uint8_t *text, size_t bytes);
size_t added_space_after(const uint8_t *text, size_t bytes);

/* --- normalizer (tokenizer_normalize.c): changes the text before it is split ---------------- */

enum { NORMALIZER_STEPS_MAX = 16 };
enum normalizer_kind {
    NORMALIZER_FORM,
    NORMALIZER_LOWERCASE,
    NORMALIZER_PREPEND,
    NORMALIZER_REPLACE,
};

struct normalizer; /* immutable after the last step was added */
struct normalizer_work;

enum status normalizer_create(struct env *env, struct normalizer **normalizer);
void normalizer_destroy(struct normalizer *normalizer);
bool normalizer_is_empty(const struct normalizer *normalizer);
enum status normalizer_add_form(struct normalizer *normalizer, enum unicode_form form,
                                const char *origin);
enum status normalizer_add_lowercase(struct normalizer *normalizer, const char *origin);
/* Prepend `content` to text that is not empty, or replace each `pattern`, not empty, by it. */
enum status normalizer_add_text(struct normalizer *normalizer, enum normalizer_kind kind,
                                const char *pattern, size_t pattern_bytes, const char *content,
                                size_t content_bytes, const char *origin);

enum status normalizer_work_create(struct env *env, const struct normalizer *normalizer,
                                   struct normalizer_work **work);
void normalizer_work_destroy(struct normalizer_work *work);
/* Replace a text by the normalized one, which is valid until the next call. */
enum status normalizer_run(struct normalizer_work *work, const uint8_t **text, size_t *bytes);

/* --- symbols (tokenizer_symbols.c): one byte for each kind of character ---------------------- */

enum { SYMBOL_ITEMS_MAX = 64 };

/* What a regex may ask about a character; one of the members that are set must hold. */
struct symbol_item {
    uint32_t low, high; /* a range beyond ASCII; UNICODE_END for none */
    uint32_t categories;
    uint8_t flags, script;
    uint16_t zero; /* items are compared as bytes */
};

struct symbol_set {
    uint64_t bits[4];
};
static inline void symbol_set_add(struct symbol_set *set, int symbol)
{
    set->bits[symbol / 64] |= (uint64_t)1 << symbol % 64;
}
static inline bool symbol_set_has(const struct symbol_set *set, int symbol)
{
    return set->bits[symbol / 64] >> symbol % 64 & 1;
}

struct symbols;
enum status symbols_create(struct env *env, struct symbols **symbols);
void symbols_destroy(struct symbols *symbols);
int symbols_add(struct symbols *symbols, struct symbol_item item); /* its index; -1: too many */
/* Assign the symbols, after all items were added. */
enum status symbols_finish(struct symbols *symbols, const char *origin);
struct symbol_set symbols_having(const struct symbols *symbols, int item);
/* Write one symbol for each character of valid UTF-8; returns how many. */
size_t symbols_map(const struct symbols *symbols, const uint8_t *text, size_t bytes, uint8_t *out);

/* Translate a regex (tokenizer_regex.c). While `collecting` it only adds its items; afterwards
 * `out` is the regex over symbols. */
enum status regex_translate(struct env *env, struct symbols *symbols, bool collecting,
                            const char *regex, size_t bytes, const char *origin, struct text *out);

/* --- split (tokenizer_split.c): a section to pre-tokens, by the file's regexes -------------- */

#define SPLIT_GPT2 \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
/* Properties for the pre-tokenizers Digits and Punctuation, whose Unicode versions are others. */
#define SPLIT_DIGITS      "tokenizers:Digits"
#define SPLIT_PUNCTUATION "tokenizers:Punctuation"

/* What becomes of the matches of a regex. The text between two matches is a part, too. */
enum split_behavior {
    SPLIT_ISOLATED,      /* a part each */
    SPLIT_REMOVED,       /* dropped */
    SPLIT_CONTIGUOUS,    /* matches that follow each other are one part */
    SPLIT_WITH_PREVIOUS, /* joined with the text before */
    SPLIT_WITH_NEXT,     /* joined with the text after */
};

struct splitter; /* compiled, immutable after splitter_finish */
struct split_work;

/* A splitter without a regex returns its text as one pre-token. */
enum status splitter_create(struct env *env, struct splitter **splitter);
void splitter_destroy(struct splitter *splitter);
/* Add a regex, to be applied inside each part that the earlier regexes produce. `invert`: what does
 * not match is treated as the matches. */
enum status splitter_add(struct splitter *splitter, const char *regex, size_t bytes,
                         enum split_behavior behavior, bool invert, const char *origin);
enum status splitter_finish(struct splitter *splitter, const char *origin);

enum status split_work_create(struct env *env, const struct splitter *splitter,
                              struct split_work **work);
void split_work_destroy(struct split_work *work);

typedef enum status split_pretoken_fn(void *user, const uint8_t *pretoken, size_t bytes);

/* Call `each` for every pre-token in order. None is empty; concatenated they are the text, unless a
 * step removes its matches. */
enum status split_text(struct split_work *work, const uint8_t *text, size_t bytes,
                       split_pretoken_fn *each, void *user);

/* --- bpe (tokenizer_bpe.c): a pre-token to ids ---------------------------------------------- */

struct merge {
    int32_t left, right, result; /* the bytes of `result` are those of `left`, then `right` */
};

struct bpe_rules {
    bool byte_level;    /* starts from bytes; else from characters */
    bool whole_words;   /* ignore_merges: a pre-token that is itself a token becomes that token */
    bool byte_fallback; /* a character without a token becomes the tokens <0x00> .. of its bytes */
    int32_t unknown;    /* the token of other characters; -1: they are dropped */
    bool fuse_unknown;  /* unknown characters that follow each other are one token */
};

struct bpe; /* immutable */
struct bpe_work;

/* The rank of a merge is its index in `merges`. */
enum status bpe_create(struct env *env, const struct vocab *vocab, const struct merge *merges,
                       int64_t merge_count, const struct bpe_rules *rules, struct bpe **bpe);
void bpe_destroy(struct bpe *bpe);

/* True if there are no merges. Splitting then makes no difference, and bpe_encode_plain encodes
 * whole sections. */
bool bpe_is_plain(const struct bpe *bpe);
enum status bpe_encode_plain(struct env *env, const struct bpe *bpe, const uint8_t *text,
                             size_t bytes, struct token_list *out);

enum status bpe_work_create(struct env *env, const struct bpe *bpe, struct bpe_work **work);
void bpe_work_destroy(struct bpe_work *work);
enum status bpe_encode(struct bpe_work *work, const uint8_t *pretoken, size_t bytes,
                       struct token_list *out);

/* --- the tokenizer -------------------------------------------------------------------------- */

/* How Metaspace and ByteLevel change a section before it is split. */
enum prefix_scheme { PREFIX_NEVER, PREFIX_FIRST, PREFIX_ALWAYS };
struct sectioning {
    enum prefix_scheme scheme; /* sections that get a marker in front, unless they start with it */
    char marker[5];            /* the prefix; of Metaspace also what replaces spaces */
    bool replaces_spaces;
};

/* What is removed from a decoded text. */
struct decoding {
    char strip[5]; /* a character, removed up to `start` times from the start, `end` from the end */
    int64_t start, end;
    char first_drops[5]; /* a character that is removed from all of the first token; "": none */
};

struct tokenizer_file {
    const char *name;
    char *data; /* NULL: the folder does not have it */
    size_t bytes;
};
enum { SPECIAL_FILES = 5 }; /* the first two: generation_config.json, tokenizer_config.json */

struct tokenizer {
    struct env *env; /* borrowed */
    char *source;    /* the tokenizer.json */
    size_t source_bytes;
    struct vocab vocab;   /* as it is matched and merged */
    struct vocab decoded; /* as it is decoded; no tokens: as in `vocab` */
    struct added_set
        added[2]; /* in order of matching: [0] in the raw text, [1] in normalized text */
    struct normalizer *normalizer;
    struct splitter *splitter;
    struct sectioning sectioning;
    struct decoding decoding;
    struct bpe *bpe;
    bool byte_level;
    struct token_list template[2]; /* the post-processor's ids before and after a text */
    int eot;
    struct tokenizer_special special;
    struct tokenizer_file files[SPECIAL_FILES];
};

/* tokenizer_special.c. What tokenizer.json says, once its added tokens, t->eot and t->template are
 * set: */
void special_init(struct tokenizer *t);
/* Then what t->files and a config.json (NULL: none) say. */
enum status special_read(struct tokenizer *t, const char *config, size_t config_bytes);
/* The same, with the files in the folder of the tokenizer.json at `path`. */
enum status special_load(struct tokenizer *t, const char *path);
void special_free(struct tokenizer *t);

/* Build a tokenizer from merges (tokenizer_write.c): id i < 256 is byte order[i], id 256 + i is the
 * result of merges[i], the last id is <|endoftext|>. */
enum status tokenizer_build(struct env *env, const uint8_t order[256], const struct merge *merges,
                            int merge_count, const char *origin, struct tokenizer **tokenizer);

enum status token_list_grow(struct env *env, struct token_list *list, int64_t more);

static inline enum status token_list_reserve(struct env *env, struct token_list *list, int64_t more)
{
    return list->room - list->count >= more ? STATUS_OK : token_list_grow(env, list, more);
}

/* --- the byte alphabet: a printable code point for every byte ------------------------------- */

/* Bytes 33..126, 161..172 and 174..255 map to the same code point. The other 68 bytes map, in
 * order, to U+0100 .. U+0143. */
static inline int alphabet_code(uint8_t byte)
{
    if (byte <= 0x20)
        return 0x100 + byte;
    if (byte >= 0x7f && byte <= 0xa0)
        return 0x121 + byte - 0x7f;
    return byte == 0xad ? 0x143 : byte;
}

static inline int alphabet_byte(int code) /* -1 if not in the alphabet */
{
    if (code >= 0x100)
        return code <= 0x120   ? code - 0x100
               : code <= 0x142 ? code - 0x121 + 0x7f
               : code == 0x143 ? 0xad
                               : -1;
    return alphabet_code((uint8_t)code) == code ? code : -1;
}

/* The byte of a token spelled <0x00> .. <0xFF>; -1 for other tokens. */
static inline int fallback_byte(const uint8_t *token, size_t bytes)
{
    int value = 0;
    if (bytes != 6 || memcmp(token, "<0x", 3) != 0 || token[5] != '>')
        return -1;
    for (int i = 3; i < 5; i++) {
        bool digit = token[i] >= '0' && token[i] <= '9',
             letter = token[i] >= 'A' && token[i] <= 'F';
        if (!digit && !letter)
            return -1;
        value = value * 16 + token[i] - (digit ? '0' : 'A' - 10);
    }
    return value;
}

/* --- hashing, for the tables of tokenizer_bpe.c and of the learner -------------------------- */

static inline uint64_t hash_mix(uint64_t a, uint64_t b)
{
    uint64_t x = (a ^ b) * 0x9e3779b97f4a7c15u;
    return x ^ (x >> 29);
}

static inline uint64_t hash_bytes(const uint8_t *data, size_t bytes)
{
    uint64_t hash = bytes * 0xd6e8feb86659fd93u, word;
    for (; bytes >= 8; bytes -= 8, data += 8) {
        memcpy(&word, data, 8);
        hash = hash_mix(hash, word);
    }
    word = 0;
    if (bytes >= 4) { /* 4..7: two words that overlap */
        uint32_t low, high;
        memcpy(&low, data, 4);
        memcpy(&high, data + bytes - 4, 4);
        word = (uint64_t)high << 32 | low;
    } else if (bytes) { /* 1..3 */
        word = (uint64_t)data[0] << 16 | (uint64_t)data[bytes / 2] << 8 | data[bytes - 1];
    }
    return hash_mix(hash_mix(hash, word), 0xa0761d6478bd642fu);
}

#endif
