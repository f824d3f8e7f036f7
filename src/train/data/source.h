/* source -- one origin of training tokens: text, token shards or JSONL, found by a path or glob.
 *
 * Whatever it is, it becomes two token streams: one to train on and one held out (empty when
 * `split` is 0). How the three kinds become streams:
 *
 *   text    every file is a document: encoded, and followed by the end-of-text token; the stream
 *           begins with that token too, so that the first word is predicted from something.
 *           Held out: the end of the text, cut after a line.
 *   jsonl   every line is a document, laid out in the same way; tokens of a prompt are masked
 *           (never predicted), those of its completion and the end-of-text token after it are
 *           not. Lines with nothing to encode are passed over. Held out: the last lines.
 *   tokens  the files in the order of their names, joined; a window may run from one file into
 *           the next as it may from one document into the next. Held out: the last tokens.
 */
#ifndef TRAIN_SOURCE_H
#define TRAIN_SOURCE_H
#include "base/env.h"
#include "train/data/data_digest.h"
#include "train/data/token_cache.h"
#include "train/data/token_stream.h"
#include "train/tokenizer/tokenizer.h"

enum data_format {
    DATA_AUTO, /* tokens by their header, JSONL by the name *.jsonl, *.bin not at all, else text */
    DATA_TEXT,
    DATA_TOKENS,
    DATA_JSONL,
    DATA_U16, /* bare numbers, as nanoGPT writes them */
    DATA_U32,
};

struct source_spec {
    const char *path; /* or glob */
    enum data_format format;
    double split;                      /* share held out, 0 <= split < 1 */
    bool special;                      /* encode special tokens found in text */
    const struct tokenizer *tokenizer; /* needed for text and JSONL only */
    int64_t vocab;                     /* every token must be below it */
    const char *cache; /* folder for tokens of text and JSONL; NULL or "" = in memory */
};

struct source;

/* Find out what the files of `path` hold; several kinds are an error. Any format but DATA_AUTO comes
 * back as it is, and no file is looked at. */
enum status source_detect(struct env *env, const char *path, enum data_format format,
                          enum data_format *found);

enum status source_create(struct env *env, const struct source_spec *spec, struct source **source);
void source_destroy(struct source *source); /* NULL is fine */

const struct token_stream *source_train(const struct source *source);
const struct token_stream *source_held_out(const struct source *source); /* count 0 = none */
const char *source_path(const struct source *source);
uint64_t source_fingerprint(const struct source *source); /* of the tokenizer; 0 = not known */
int source_token_bytes(const struct source *source);      /* of llm.c shards; 0 = not such */

uint64_t source_mapped_bytes(const struct source *source); /* of files, in no rank's account */

/* What its files hold, and as which kind of source. Reads what a source of tokens samples. */
enum status source_digest(const struct source *source, struct data_digest *digest, int *kind);

/* The key of its file in the cache; false = it has none. */
bool source_cache_key(const struct source *source, struct token_cache_key *key);

/* A number that two tokenizers share only when every token is the same; never 0. */
uint64_t source_tokenizer_fingerprint(const struct tokenizer *tokenizer);

#endif
