/* source_impl -- struct source, and the loaders that fill it for the three kinds. For source*.c and
 * data_size.c only. */
#ifndef TRAIN_SOURCE_IMPL_H
#define TRAIN_SOURCE_IMPL_H
#include "train/data/shard.h"
#include "train/data/source.h"
#include "train/data/text_files.h"
#include "train/data/token_cache.h"

struct source {
    struct env *env; /* borrowed */
    char *path;
    enum data_format format;
    struct token_stream train, held_out; /* over the spans below */

    struct token_cache *cache; /* text and JSONL: their tokens, as one span */
    struct token_cache_key key;
    struct token_span span;
    struct data_digest digest; /* of the text */

    struct shard **shards; /* token shards: one span for each */
    struct token_span *spans;
    int shard_count;
    int token_bytes;
    uint64_t fingerprint;
};

enum status source_load_shards(struct source *source, const struct source_spec *spec,
                               enum shard_format format);
/* Text and JSONL: load the tokens from the cache in spec->cache. If they are not there, encode the
 * text, and store the tokens in the cache if it is writable. */
enum status source_load_encoded(struct source *source, const struct source_spec *spec, bool jsonl);

struct token_cache_key source_text_key(const struct source_spec *spec, bool jsonl,
                                       const struct text_files *files);

/* An encoder, and the writer that receives its tokens. */
struct source_encoding {
    struct env *env;
    const struct source_spec *spec;
    struct encoder *encoder;
    struct token_cache_writer *writer;
    const struct text_file *file; /* the file that is being read */
};
enum status source_encode_text(struct source_encoding *encoding, const struct text_files *files);
enum status source_encode_jsonl(struct source_encoding *encoding, const struct text_files *files);

/* Add the end-of-text token, if the tokenizer has one: it begins a stream and ends a document. */
enum status source_encode_end(struct source_encoding *encoding);
/* Begin a document in the training part (0) or in the held-out part (1). */
enum status source_encode_begin(struct source_encoding *encoding, int part);
/* Add the tokens of a text; masked tokens are never predicted. */
enum status source_encode_tokens(struct source_encoding *encoding, const void *text, size_t bytes,
                                 bool masked);

#endif
