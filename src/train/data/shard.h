/* shard -- files of token ids: the two llm.c formats, with a header, and raw 16- or 32-bit ids.
 *
 * A shard is mapped read-only. An llm.c file identifies itself; a raw file (nanoGPT's train.bin) is
 * read only if the caller states its width, because a wrong guess would go unnoticed. Our writer
 * stores two values in header words that other readers ignore: the size of the vocabulary and a
 * fingerprint of the tokenizer, so that shards of different tokenizers can be told apart.
 */
#ifndef TRAIN_SHARD_H
#define TRAIN_SHARD_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/env.h"

enum shard_format {
    SHARD_LLMC, /* 16 or 32 bits per token, as the header says */
    SHARD_U16,  /* no header */
    SHARD_U32,  /* no header */
};

struct shard;

enum status shard_open(struct env *env, const char *path, enum shard_format format,
                       struct shard **shard);
/* The same for a file in memory, which must outlive the shard; `origin` is its name in messages. */
enum status shard_open_memory(struct env *env, const void *data, size_t bytes, const char *origin,
                              enum shard_format format, struct shard **shard);
void shard_close(struct shard *shard); /* NULL is fine */

int64_t shard_count(const struct shard *shard);      /* tokens, at least 1 */
const void *shard_tokens(const struct shard *shard); /* little-endian, possibly unaligned */
int shard_token_bytes(const struct shard *shard);    /* 2 or 4 */
uint64_t shard_bytes(const struct shard *shard);     /* of the file */
const char *shard_path(const struct shard *shard);
int64_t shard_vocab(const struct shard *shard);        /* from the header; 0 = unknown */
uint64_t shard_fingerprint(const struct shard *shard); /* of the tokenizer; 0 = unknown */

/* Read all tokens. A token beyond `vocab` is an error that names its position and value. */
enum status shard_check(const struct shard *shard, int64_t vocab);

/* Is this the beginning of an llm.c file? Reads the first 4 bytes; false if there are fewer. */
bool shard_is_llmc(const void *data, size_t bytes);

/* --- writing -------------------------------------------------------------------------------- */

/* Writes llm.c's 16-bit format for vocabularies up to 65536, otherwise its 32-bit format. */

struct shard_writer;

enum status shard_writer_create(struct env *env, const char *path, int64_t vocab,
                                uint64_t fingerprint, struct shard_writer **writer);
/* NULL is fine; deletes an unfinished file. */
void shard_writer_destroy(struct shard_writer *writer);
enum status shard_writer_add(struct shard_writer *writer, const int32_t *tokens, int64_t count);
int64_t shard_writer_count(const struct shard_writer *writer);
/* Write the header and commit the file. No tokens may be added afterwards. */
enum status shard_writer_finish(struct shard_writer *writer);

#define SHARD_COUNT_MAX INT32_MAX /* tokens per file: the header stores an int32 */

#endif
