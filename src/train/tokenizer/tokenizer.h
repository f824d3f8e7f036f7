/* tokenizer -- text to token ids and back: byte-level BPE as in Hugging Face's tokenizer.json.
 *
 * A tokenizer is exactly what its tokenizer.json says: plain bytes and trained vocabularies are
 * made by writing such a file in memory and reading it, so there is one way in, and saving gives
 * back the text that was read. It is immutable; any number of threads may share one, each with an
 * encoder of its own (the encoder holds the cache and scratch).
 *
 * decode(encode(x)) == x for any bytes x: bytes that are not UTF-8 stand for themselves. The
 * exceptions are in the file: `add_prefix_space` puts a space in front, and an added token with
 * `lstrip` or `rstrip` swallows the space beside it. No token is added at either end (the file's
 * post_processor is not applied).
 */
#ifndef TRAIN_TOKENIZER_H
#define TRAIN_TOKENIZER_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/env.h"
#include "base/text.h"

struct tokenizer; /* opaque, immutable, from one of the five calls below; the caller destroys it */
struct encoder;   /* opaque; one per thread */

/* Plain bytes: token b is byte b, 256 is <|endoftext|>. */
enum status tokenizer_bytes(struct env *env, struct tokenizer **tokenizer);

/* "bytes", a tokenizer.json, or a folder that holds one. */
enum status tokenizer_load(struct env *env, const char *path, struct tokenizer **tokenizer);

/* The same from memory; `origin` names it in messages. */
enum status tokenizer_parse(struct env *env, const char *json, size_t bytes, const char *origin,
                            struct tokenizer **tokenizer);

/* Called now and then while a vocabulary is learnt: `done` of `total` tokens are known. False ends
 * it with STATUS_STOPPED. */
typedef bool tokenizer_progress_fn(void *user, int done, int total);

/* Learn byte-level BPE with GPT-2's split: 256 bytes, merges, <|endoftext|> as the last id. The
 * most frequent pair is merged first, among equals the one with the lowest ids. Text too small for
 * `vocab` (at least 257) tokens gives fewer: ask tokenizer_vocab. `progress` may be NULL. */
enum status tokenizer_train(struct env *env, const void *text, size_t bytes, int vocab,
                            tokenizer_progress_fn *progress, void *user,
                            struct tokenizer **tokenizer);

/* The same from a text that comes in parts, which are put together; none is kept. The table of
 * different words has a limit: when it is full, those seen least so far are dropped. NULL = 4M words
 * and 64 MiB of them, which take about 1 GiB while the tokens are learnt. */
struct tokenizer_limits {
    size_t words, word_bytes;
};
struct tokenizer_dropped {
    int64_t words; /* dropped, one that came again counted again */
    int64_t most;  /* times that any of them had been seen */
};
struct tokenizer_learner;
enum status tokenizer_learner_create(struct env *env, int vocab,
                                     const struct tokenizer_limits *limits,
                                     tokenizer_progress_fn *progress, void *user,
                                     struct tokenizer_learner **learner);
void tokenizer_learner_destroy(struct tokenizer_learner *learner); /* NULL is fine */
enum status tokenizer_learner_add(struct tokenizer_learner *learner, const void *text,
                                  size_t bytes);
enum status tokenizer_learner_finish(struct tokenizer_learner *learner,
                                     struct tokenizer **tokenizer); /* then only destroy */
struct tokenizer_dropped tokenizer_learner_dropped(const struct tokenizer_learner *learner);

void tokenizer_destroy(struct tokenizer *tokenizer); /* NULL is fine; after its encoders */

/* Write tokenizer.json, atomically; what was loaded comes back byte for byte. */
enum status tokenizer_save(const struct tokenizer *tokenizer, const char *path);

int tokenizer_vocab(const struct tokenizer *tokenizer);     /* largest id + 1 */
int tokenizer_eot(const struct tokenizer *tokenizer);       /* id that ends a text, -1 if none */
uint64_t tokenizer_hash(const struct tokenizer *tokenizer); /* of its tokenizer.json */

/* The bytes of one token, owned by the tokenizer; NULL for an id that has none. */
const void *tokenizer_token(const struct tokenizer *tokenizer, int32_t id, size_t *bytes);

/* Append the bytes of `count` tokens to `out`. An id without a token is an error that names it. */
enum status tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, int64_t count,
                             struct text *out);

/* Ids that grow. Start from { 0 }; `count` may be set back to reuse the room. */
struct token_list {
    int32_t *ids;
    int64_t count, room;
};
void token_list_free(struct env *env, struct token_list *list);

/* The tokenizer is borrowed until encoder_destroy. `env` is the caller's own. */
enum status encoder_create(struct env *env, const struct tokenizer *tokenizer,
                           struct encoder **encoder);
void encoder_destroy(struct encoder *encoder); /* NULL is fine */

/* Append the ids of a text to `out`. With `special` false, text that looks like a special token is
 * ordinary text: the right choice for training data. On failure `out` holds part of the text's
 * ids. */
enum status tokenizer_encode(struct encoder *encoder, const void *text, size_t bytes, bool special,
                             struct token_list *out);

/* The same ids, given to `each` in order and in parts, so that those of a long text are never all
 * in memory. What the encoder keeps grows with the longest piece that the regexes leave whole, and
 * with `add_prefix_space` with the text. */
typedef enum status tokenizer_ids_fn(void *user, const int32_t *ids, int64_t count);
enum status tokenizer_encode_each(struct encoder *encoder, const void *text, size_t bytes,
                                  bool special, tokenizer_ids_fn *each, void *user);

#endif
