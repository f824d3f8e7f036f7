/* tokenizer_impl -- what the tokenizer's files share. Included by tokenizer*.c only.
 *
 *   raw text --added--> sections without added tokens --split--> pieces --bpe--> ids
 *
 * Each of the three steps has an immutable part inside struct tokenizer and, where it needs
 * scratch, a part inside struct encoder.
 */
#ifndef TRAIN_TOKENIZER_IMPL_H
#define TRAIN_TOKENIZER_IMPL_H
#include <string.h>
#include "train/tokenizer/tokenizer.h"

#define TOKENIZER_FILE_LIMIT ((size_t)256 << 20)

/* --- vocabulary: the bytes of every id ------------------------------------------------------ */

enum {
    TOKEN_USED = 1,    /* the id has a token; without it the id is a hole */
    TOKEN_WORD = 2,    /* in model.vocab, spelt in the byte alphabet */
    TOKEN_SPECIAL = 4, /* an added token marked special */
};

struct token {
    uint32_t at, bytes; /* place in `blob` */
    uint32_t flags;
};

struct vocab {
    struct token *tokens; /* [count] */
    int count;            /* largest id + 1 */
    uint8_t *blob;
};

/* --- added tokens (tokenizer_added.c): found in the raw text before anything else ----------- */

struct added {
    int32_t id; /* its bytes are the vocabulary's */
    bool special, lstrip, rstrip;
};

struct added_set {
    struct added *list; /* sorted by content */
    int count, ordinary_count;
    bool first[256]; /* some content starts with this byte */
};

struct added_match {
    const struct added *token;
    size_t start, end;
};

/* `set->list[0 .. count)` is filled: sort it and make it ready for added_find. */
void added_set_finish(struct added_set *set, const struct vocab *vocab);

/* The leftmost match at or after `from`, the longest there. */
bool added_find(const struct added_set *set, const struct vocab *vocab, const uint8_t *text,
                size_t bytes, size_t from, struct added_match *match);

/* How many bytes of white space end, or start, text[0 .. bytes). */
size_t added_space_before(const uint8_t *text, size_t bytes);
size_t added_space_after(const uint8_t *text, size_t bytes);

/* --- split (tokenizer_split.c): a section to pieces, by the file's regexes ------------------ */

#define SPLIT_GPT2 \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

struct splitter; /* compiled, immutable */
struct split_work;

enum status splitter_create(struct env *env, struct splitter **splitter); /* no regex: one piece */
void splitter_destroy(struct splitter *splitter);
/* One more regex, applied inside each piece that the earlier ones left. */
enum status splitter_add(struct splitter *splitter, const char *regex, size_t bytes,
                         const char *origin);

enum status split_work_create(struct env *env, const struct splitter *splitter,
                              struct split_work **work);
void split_work_destroy(struct split_work *work);

typedef enum status split_pretoken_fn(void *user, const uint8_t *pretoken, size_t bytes);

/* Call `each` for every piece in order; none is empty, and put together they are the text. */
enum status split_text(struct split_work *work, const uint8_t *text, size_t bytes,
                       split_pretoken_fn *each, void *user);

/* --- bpe (tokenizer_bpe.c): a piece to ids -------------------------------------------------- */

struct merge {
    int32_t left, right, result; /* result's bytes are left's and right's put together */
};

struct bpe; /* immutable */
struct bpe_work;

/* Rank = position in `merges`. With `whole_words` a piece that is a token is not merged
 * (ignore_merges). */
enum status bpe_create(struct env *env, const struct vocab *vocab, const struct merge *merges,
                       int64_t merge_count, bool whole_words, struct bpe **bpe);
void bpe_destroy(struct bpe *bpe);

/* Nothing merges, so the cut into pieces does not matter: bpe_encode_plain takes whole sections. */
bool bpe_is_plain(const struct bpe *bpe);
enum status bpe_encode_plain(struct env *env, const struct bpe *bpe, const uint8_t *text,
                             size_t bytes, struct token_list *out);

enum status bpe_work_create(struct env *env, const struct bpe *bpe, struct bpe_work **work);
void bpe_work_destroy(struct bpe_work *work);
enum status bpe_encode(struct bpe_work *work, const uint8_t *pretoken, size_t bytes,
                       struct token_list *out);

/* --- the whole ------------------------------------------------------------------------------ */

struct tokenizer {
    struct env *env; /* borrowed */
    char *source;    /* the tokenizer.json */
    size_t source_bytes;
    struct vocab vocab;
    struct added_set added[2]; /* in the order they are looked for: not normalized, normalized */
    struct splitter *splitter;
    bool add_prefix_space;
    struct bpe *bpe;
    int eot;
};

/* A vocabulary made here: id i < 256 is byte order[i], 256 + i the result of merges[i], the last
 * <|endoftext|> (tokenizer_write.c). */
enum status tokenizer_build(struct env *env, const uint8_t order[256], const struct merge *merges,
                            int merge_count, const char *origin, struct tokenizer **tokenizer);

enum status token_list_grow(struct env *env, struct token_list *list, int64_t more);

static inline enum status token_list_reserve(struct env *env, struct token_list *list, int64_t more)
{
    return list->room - list->count >= more ? STATUS_OK : token_list_grow(env, list, more);
}

/* --- the byte alphabet: a printable code point for every byte ------------------------------- */

/* 33..126, 161..172 and 174..255 stand for themselves; the other 68 bytes, in order, are U+0100 ..
 * U+0143. */
static inline int alphabet_code(uint8_t byte)
{
    if (byte <= 0x20)
        return 0x100 + byte;
    if (byte >= 0x7f && byte <= 0xa0)
        return 0x121 + byte - 0x7f;
    return byte == 0xad ? 0x143 : byte;
}

static inline int alphabet_byte(int code) /* -1: not in the alphabet */
{
    if (code >= 0x100)
        return code <= 0x120   ? code - 0x100
               : code <= 0x142 ? code - 0x121 + 0x7f
               : code == 0x143 ? 0xad
                               : -1;
    return alphabet_code((uint8_t)code) == code ? code : -1;
}

/* --- hashing, for the tables of bpe and train ----------------------------------------------- */

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
