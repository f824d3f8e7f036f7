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
    int32_t id; /* the vocabulary has its bytes */
    bool special, lstrip, rstrip;
};

struct added_set {
    struct added *list; /* sorted by content */
    int count, ordinary_count;
    bool first[256]; /* at least one content starts with this byte */
};

struct added_match {
    const struct added *token;
    size_t start, end;
};

/* Sort set->list[0 .. count) and prepare the set for added_find. */
void added_set_finish(struct added_set *set, const struct vocab *vocab);

/* Find the leftmost match at or after `from`; of those that start there, the longest. */
bool added_find(const struct added_set *set, const struct vocab *vocab, const uint8_t *text,
                size_t bytes, size_t from, struct added_match *match);

/* Bytes of white space at the end, or at the start, of text[0 .. bytes). */
size_t added_space_before(const uint8_t *text, size_t bytes);
size_t added_space_after(const uint8_t *text, size_t bytes);

/* --- split (tokenizer_split.c): a section to pre-tokens, by the file's regexes -------------- */

#define SPLIT_GPT2 \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

struct splitter; /* compiled, immutable */
struct split_work;

/* A splitter without a regex returns its text as one pre-token. */
enum status splitter_create(struct env *env, struct splitter **splitter);
void splitter_destroy(struct splitter *splitter);
/* Add a regex, to be applied inside each part that the earlier regexes produce. */
enum status splitter_add(struct splitter *splitter, const char *regex, size_t bytes,
                         const char *origin);

enum status split_work_create(struct env *env, const struct splitter *splitter,
                              struct split_work **work);
void split_work_destroy(struct split_work *work);

typedef enum status split_pretoken_fn(void *user, const uint8_t *pretoken, size_t bytes);

/* Call `each` for every pre-token in order. None is empty; concatenated they are the text. */
enum status split_text(struct split_work *work, const uint8_t *text, size_t bytes,
                       split_pretoken_fn *each, void *user);

/* --- bpe (tokenizer_bpe.c): a pre-token to ids ---------------------------------------------- */

struct merge {
    int32_t left, right, result; /* the bytes of `result` are those of `left`, then `right` */
};

struct bpe; /* immutable */
struct bpe_work;

/* The rank of a merge is its index in `merges`. With `whole_words` (the file's ignore_merges) a
 * pre-token that is itself a token becomes that token. */
enum status bpe_create(struct env *env, const struct vocab *vocab, const struct merge *merges,
                       int64_t merge_count, bool whole_words, struct bpe **bpe);
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
    struct vocab vocab;
    struct added_set added[2]; /* in order of matching: [0] not normalized, [1] normalized */
    struct splitter *splitter;
    bool add_prefix_space;
    struct bpe *bpe;
    int eot;
    struct tokenizer_special special;
    struct tokenizer_file files[SPECIAL_FILES];
};

/* tokenizer_special.c. What tokenizer.json says, with its added tokens and t->eot set: */
struct json_t; /* jansson's */
void special_init(struct tokenizer *t, const struct json_t *root);
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
