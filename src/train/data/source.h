/* source -- one source of tokens: text, JSONL or token shards, given by a path or glob.
 *
 * A source provides two token streams: one to train on and one held out (empty if `split` is 0).
 * How they are made depends on the kind of source:
 *
 *   text    Every file is a document. It is encoded, and the end-of-text token follows. The stream
 *           also begins with that token, so that the first word has a context.
 *           Held out: the end of the text, cut after a line.
 *   jsonl   Every line is a document, encoded in the same way. The tokens of a prompt are masked
 *           (never predicted); those of its completion and the end-of-text token after it are
 *           not. Lines without text are skipped. Held out: the last lines.
 *   tokens  The files are joined in the order of their names. A window may cross from one file into
 *           the next, as it may from one document into the next. Held out: the last tokens.
 */
#ifndef TRAIN_SOURCE_H
#define TRAIN_SOURCE_H
#include "base/env.h"
#include "train/data/data_digest.h"
#include "train/data/token_cache.h"
#include "train/data/token_stream.h"
#include "train/tokenizer/tokenizer.h"

enum data_format {
    DATA_AUTO, /* detect: tokens by their header, JSONL by its name (*.jsonl, *.ndjson), otherwise
                  text; *.bin without a header is an error */
    DATA_TEXT,
    DATA_TOKENS,
    DATA_JSONL,
    DATA_U16, /* raw token ids, as nanoGPT writes them */
    DATA_U32,
};

struct source_spec {
    const char *path; /* file or glob */
    enum data_format format;
    double split;                      /* fraction held out, 0 <= split < 1 */
    bool special;                      /* encode special tokens found in text */
    const struct tokenizer *tokenizer; /* needed for text and JSONL only */
    int64_t vocab;                     /* every token must be below it */
    const char *cache; /* folder for tokens of text and JSONL; NULL or "" = in memory */
};

struct source {      /* public fields; release with source_destroy */
    struct env *env; /* borrowed */
    char *path;
    enum data_format format;
    struct token_stream train, held_out; /* over the spans below; held_out.count 0 = none */

    struct token_cache *cache; /* text and JSONL: their tokens, as one span */
    struct token_cache_key key;
    struct token_span span;
    struct data_digest digest; /* of the text */

    struct shard **shards; /* token shards: one span for each */
    struct token_span *spans;
    int shard_count;
    int token_bytes;      /* of llm.c shards; 0 = other kinds */
    uint64_t fingerprint; /* of the tokenizer; 0 = unknown */
};

/* Detect what the files of `path` contain. Files of different kinds are an error. Any format other
 * than DATA_AUTO is returned unchanged, without reading a file. */
enum status source_detect(struct env *env, const char *path, enum data_format format,
                          enum data_format *found);

enum status source_create(struct env *env, const struct source_spec *spec, struct source **source);
void source_destroy(struct source *source); /* NULL is fine */

/* Bytes of mapped files, which the memory account does not include. */
uint64_t source_mapped_bytes(const struct source *source);

/* The digest of its files, and their kind. For token shards this reads the samples, or every byte
 * of a small source. */
enum status source_digest(const struct source *source, struct data_digest *digest, int *kind);

/* The key of its file in the token cache; false = it has none. */
bool source_cache_key(const struct source *source, struct token_cache_key *key);

/* A hash of all tokens, in order; never 0. */
uint64_t source_tokenizer_fingerprint(const struct tokenizer *tokenizer);

/* --- for source*.c and data_size.c only ----------------------------------------------------- */

/* Text and JSONL: load the tokens from the cache in spec->cache. If they are not there, encode the
 * text, and store the tokens in the cache if it is writable. */
enum status source_load_encoded(struct source *source, const struct source_spec *spec);

struct text_files;
struct token_cache_key source_text_key(const struct source_spec *spec, bool jsonl,
                                       const struct text_files *files);

#endif
