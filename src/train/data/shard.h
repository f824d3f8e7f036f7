/* shard -- files of token numbers: llm.c's two kinds with a header, and bare 16- or 32-bit numbers.
 *
 * A shard is mapped read-only. llm.c's files say what they are; a bare file (nanoGPT's train.bin)
 * is read only when the caller says its width, because a guess would be wrong silently. Our writer
 * leaves two things in header words that other readers skip: the size of the vocabulary and a
 * fingerprint of the tokenizer, so that shards of different tokenizers can be told apart.
 */
#ifndef TRAIN_SHARD_H
#define TRAIN_SHARD_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/env.h"

enum shard_format {
    SHARD_LLMC, /* by its header: 16 or 32 bits a token */
    SHARD_U16,  /* no header */
    SHARD_U32,
};

struct shard;

enum status shard_open(struct env *env, const char *path, enum shard_format format,
                       struct shard **shard);
/* The same over a block that outlives it; `origin` stands for the path in messages. */
enum status shard_open_memory(struct env *env, const void *data, size_t bytes, const char *origin,
                              enum shard_format format, struct shard **shard);
void shard_close(struct shard *shard); /* NULL is fine */

int64_t shard_count(const struct shard *shard);      /* tokens, at least 1 */
const void *shard_tokens(const struct shard *shard); /* little-endian, perhaps unaligned */
int shard_token_bytes(const struct shard *shard);    /* 2 or 4 */
uint64_t shard_bytes(const struct shard *shard);     /* of the file */
const char *shard_path(const struct shard *shard);
int64_t shard_vocab(const struct shard *shard);        /* as its header says; 0 = it does not */
uint64_t shard_fingerprint(const struct shard *shard); /* of the tokenizer; 0 = unknown */

/* Read every token: the first one beyond `vocab` is an error with its place and value. */
enum status shard_check(const struct shard *shard, int64_t vocab);

/* Is this the beginning of an llm.c file? (At least 4 bytes are looked at.) */
bool shard_is_llmc(const void *data, size_t bytes);

/* --- writing: llm.c's 16-bit kind for vocabularies up to 65536, else its 32-bit kind. */

struct shard_writer;

enum status shard_writer_create(struct env *env, const char *path, int64_t vocab,
                                uint64_t fingerprint, struct shard_writer **writer);
void shard_writer_destroy(struct shard_writer *writer); /* NULL is fine; an unfinished file goes */
enum status shard_writer_add(struct shard_writer *writer, const int32_t *tokens, int64_t count);
int64_t shard_writer_count(const struct shard_writer *writer);
enum status shard_writer_finish(struct shard_writer *writer); /* the file appears; then destroy */

#define SHARD_COUNT_MAX INT32_MAX /* tokens in one file: the header has 31 bits for it */

#endif
