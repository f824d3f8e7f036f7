/* tokenizer -- text to token ids and back: BPE over bytes or characters, as in a Hugging Face
 * tokenizer.json.
 *
 * A tokenizer is defined by the text of its tokenizer.json. Tokenizers built here (plain bytes, or
 * a learnt vocabulary) write such a text in memory and parse it, so there is only one way to create
 * a tokenizer, and tokenizer_save writes exactly what was parsed.
 *
 * A tokenizer is immutable and may be shared by any number of threads. Each thread needs its own
 * encoder, which holds the cache and the scratch memory.
 *
 * With byte-level BPE, decode(encode(x)) == x for any bytes x, valid UTF-8 or not. Some settings of
 * tokenizer.json break the round trip: a normalizer changes the text, `add_prefix_space` and
 * Metaspace insert a prefix, a Split may remove its matches, an added token with `lstrip` or
 * `rstrip` absorbs the white space next to it, and BPE over characters without byte_fallback has no
 * token for some. The ids of the file's post_processor are not added: see
 * tokenizer_template and struct tokenizer_special.
 */
#ifndef TRAIN_TOKENIZER_H
#define TRAIN_TOKENIZER_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/env.h"
#include "base/text.h"

struct tokenizer; /* opaque, immutable; the caller destroys it */
struct encoder;   /* opaque; one per thread */

/* --- creating ------------------------------------------------------------------------------- */

/* Plain bytes: token b is byte b, token 256 is <|endoftext|>. */
enum status tokenizer_bytes(struct env *env, struct tokenizer **tokenizer);

/* `path` is "bytes", a tokenizer.json, or a folder that contains one. Special tokens also come from
 * the files in the same folder (tokenizer_special.c). */
enum status tokenizer_load(struct env *env, const char *path, struct tokenizer **tokenizer);

/* Parse a tokenizer.json in memory; `origin` names it in messages. */
enum status tokenizer_parse(struct env *env, const char *json, size_t bytes, const char *origin,
                            struct tokenizer **tokenizer);

void tokenizer_destroy(struct tokenizer *tokenizer); /* NULL is fine; after its encoders */

/* --- learning a vocabulary ------------------------------------------------------------------ */

/* A learner counts the pre-tokens ("words") of a text that arrives in parts, then learns byte-level
 * BPE with GPT-2's split: ids 0..255 are the bytes, then come the merges, and the last id is
 * <|endoftext|>. The most frequent pair is merged first; among equals, the one with the lowest ids.
 *
 * The parts are concatenated; where they are cut makes no difference. No text is kept, only the
 * table of distinct words, whose size is limited: when it is full, the rarest words are dropped. */
struct tokenizer_learner;

struct tokenizer_limits {
    size_t words, word_bytes; /* distinct words, and their bytes together */
};
struct tokenizer_dropped {
    int64_t words; /* a word that was dropped twice counts twice */
    int64_t most;  /* the highest count of any dropped word */
};

/* Called regularly while learning: `done` of `total` tokens are known. Returning false ends the
 * learning with STATUS_STOPPED. The learner shows its progress itself (base/progress.h). */
typedef bool tokenizer_progress_fn(void *user, int done, int total);

/* `vocab` is the number of tokens to learn, at least 257. `limits` may be NULL: 4M words of 64 MiB
 * together, which need about 1 GiB while the tokens are learnt. `progress` may be NULL. */
enum status tokenizer_learner_create(struct env *env, int vocab,
                                     const struct tokenizer_limits *limits,
                                     tokenizer_progress_fn *progress, void *user,
                                     struct tokenizer_learner **learner);
void tokenizer_learner_destroy(struct tokenizer_learner *learner); /* NULL is fine */
enum status tokenizer_learner_add(struct tokenizer_learner *learner, const void *text,
                                  size_t bytes);
/* Learn the merges. A small text may give fewer tokens than asked for: see tokenizer_vocab.
 * Afterwards the learner can only be destroyed. */
enum status tokenizer_learner_finish(struct tokenizer_learner *learner,
                                     struct tokenizer **tokenizer);
struct tokenizer_dropped tokenizer_learner_dropped(const struct tokenizer_learner *learner);

/* --- using ---------------------------------------------------------------------------------- */

/* Write tokenizer.json atomically. A tokenizer that was loaded is written back byte for byte. */
enum status tokenizer_save(const struct tokenizer *tokenizer, const char *path);

int tokenizer_vocab(const struct tokenizer *tokenizer);          /* largest id + 1 */
bool tokenizer_is_byte_level(const struct tokenizer *tokenizer); /* else BPE over characters */
int tokenizer_eot(const struct tokenizer *tokenizer); /* end-of-text id; -1 if there is none */
uint64_t tokenizer_hash(const struct tokenizer *tokenizer); /* of the text of tokenizer.json */

enum { TOKENIZER_IDS = 16 };
struct tokenizer_ids {
    int32_t ids[TOKENIZER_IDS];
    int count;
};
struct tokenizer_special {      /* ids; -1 = none */
    bool told;                  /* there is a config.json next to the tokenizer, */
    int32_t bos, pad;           /* which says this, to be written again, */
    struct tokenizer_ids eos;   /* and this */
    int32_t begin;              /* the token before every text, if the files ask for one */
    struct tokenizer_ids stops; /* each of them ends a generated text */
};
const struct tokenizer_special *tokenizer_special(const struct tokenizer *tokenizer);
bool tokenizer_stops(const struct tokenizer *tokenizer, int32_t id);
/* "texts begin with <s> (1) and end with </s> (2)" */
void tokenizer_describe_special(const struct tokenizer *tokenizer, struct text *text);
/* Files that were next to tokenizer.json: chat template, generation config, ... They are written
 * byte for byte. */
bool tokenizer_has_file(const struct tokenizer *tokenizer, const char *name);
enum status tokenizer_save_files(const struct tokenizer *tokenizer, const char *folder);

/* The ids that the file's post_processor puts before a text, or after it (`end`), such as <s>. */
const int32_t *tokenizer_template(const struct tokenizer *tokenizer, bool end, int64_t *count);

/* The decoded bytes of one token, owned by the tokenizer; NULL if no token has this id. */
const void *tokenizer_token(const struct tokenizer *tokenizer, int32_t id, size_t *bytes);

/* Append the text of `count` tokens to `out`: their bytes, less what the file's decoder strips from
 * the start and the end of a text. An id without a token is an error. */
enum status tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, int64_t count,
                             struct text *out);

/* The same for a part of a text: nothing is stripped. */
enum status tokenizer_decode_part(const struct tokenizer *tokenizer, const int32_t *ids,
                                  int64_t count, struct text *out);

/* A growing list of ids. Initialize with { 0 }; set `count` to 0 to reuse the memory. */
struct token_list {
    int32_t *ids;
    int64_t count, room;
};
void token_list_free(struct env *env, struct token_list *list);

/* The encoder borrows the tokenizer. `env` belongs to the calling thread. */
enum status encoder_create(struct env *env, const struct tokenizer *tokenizer,
                           struct encoder **encoder);
void encoder_destroy(struct encoder *encoder); /* NULL is fine */

/* Append the ids of a text to `out`. With `special` false, text that looks like a special token is
 * encoded as ordinary text, which is right for training data. After a failure `out` holds the ids
 * of some prefix of the text. */
enum status tokenizer_encode(struct encoder *encoder, const void *text, size_t bytes, bool special,
                             struct token_list *out);

/* Pass the same ids to `each`, in order and in batches, so that the ids of a long text are never in
 * memory together. The encoder's memory grows with the longest pre-token and, with a normalizer or
 * a prefix or beyond ASCII, with the text. */
typedef enum status tokenizer_ids_fn(void *user, const int32_t *ids, int64_t count);
enum status tokenizer_encode_each(struct encoder *encoder, const void *text, size_t bytes,
                                  bool special, tokenizer_ids_fn *each, void *user);

#endif
