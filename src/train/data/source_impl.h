/* source_impl -- what the loaders of the three kinds fill. For source*.c and data_size.c only. */
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
    struct token_stream train, held_out; /* over what is below */

    struct token_cache *cache; /* text and JSONL: their tokens, as one piece */
    struct token_cache_key key;
    struct token_span span;
    struct data_digest digest; /* of the text */

    struct shard **shards; /* tokens */
    struct token_span *spans;
    int shard_count;
    int token_bytes;
    uint64_t fingerprint;
};

enum status source_load_shards(struct source *source, const struct source_spec *spec,
                               enum shard_format format);
/* Text and JSONL: from the cache of spec->cache, else encoded and, where that can be, kept there. */
enum status source_load_encoded(struct source *source, const struct source_spec *spec, bool jsonl);

struct token_cache_key source_text_key(const struct source_spec *spec, bool jsonl,
                                       const struct text_files *files);

/* What turns files into tokens, and where these go. */
struct source_encoding {
    struct env *env;
    const struct source_spec *spec;
    struct encoder *encoder;
    struct token_cache_writer *writer;
    const struct text_file *file; /* the one that is being read */
};
enum status source_encode_text(struct source_encoding *encoding, const struct text_files *files);
enum status source_encode_jsonl(struct source_encoding *encoding, const struct text_files *files);

/* The first token of a stream and the last of a document; nothing when the tokenizer has none. */
enum status source_encode_end(struct source_encoding *encoding);
/* A document begins in the training part (0) or in the one held out (1). */
enum status source_encode_begin(struct source_encoding *encoding, int part);
/* Tokens of a text, to be predicted or not. */
enum status source_encode_tokens(struct source_encoding *encoding, const void *text, size_t bytes,
                                 bool masked);

#endif
