/* source_impl -- what the loaders of the three kinds fill. For source*.c only. */
#ifndef TRAIN_SOURCE_IMPL_H
#define TRAIN_SOURCE_IMPL_H
#include "train/shard.h"
#include "train/source.h"

/* Tokens encoded here, as one piece. */
struct source_list {
    struct token_list tokens;
    struct token_piece piece;
    uint8_t *mask; /* NULL = nothing masked */
};

struct source {
    struct env *env; /* borrowed */
    char *path;
    struct token_stream train, held_out; /* over what is below */

    struct source_list lists[2]; /* text and JSONL: train, held out */

    struct shard **shards; /* tokens */
    struct token_piece *pieces;
    int shard_count;
    int token_bytes;
    uint64_t fingerprint;
};

enum status source_load_text(struct source *source, const struct source_spec *spec);
enum status source_load_jsonl(struct source *source, const struct source_spec *spec);
enum status source_load_shards(struct source *source, const struct source_spec *spec,
                               enum shard_format format);

/* End-of-text after a document, or at the head of a list; nothing when the tokenizer has none. */
enum status source_list_add_end(struct env *env, const struct tokenizer *tokenizer,
                                struct source_list *list);
/* The lists are complete: make them the streams. */
void source_lists_finish(struct source *source);

#endif
