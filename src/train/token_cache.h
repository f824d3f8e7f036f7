/* token_cache -- the tokens of one text source, made once and kept in a file that all ranks map.
 *
 *     RUN/cache/tokens-TEXT-HOW.bin      named by a hash of the text and one of what made tokens of it
 *
 *     header     4096 bytes: sizes, the key again, hashes of the two parts below and of itself
 *     tokens     2 or 4 bytes each: those to train on, then those held out
 *     mask       a bit for each token, when any is masked
 *
 * A file appears complete or not at all (part_file.h), and every byte is compared with its hash
 * when it is opened: one that is damaged is made again. Whoever has it open keeps it mapped, so it
 * may be deleted at any time. Its pages are the system's page cache, once for all ranks of a host.
 *
 * The same without a folder is a file in memory that only this process has; it is counted in the
 * account, as loader.
 */
#ifndef TRAIN_TOKEN_CACHE_H
#define TRAIN_TOKEN_CACHE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/env.h"
#include "base/file.h"

struct token_cache_key {
    uint64_t text; /* hash of the text */
    uint64_t how;  /* hash of the tokenizer and of all else that the tokens depend on */
};

/* --- reading -------------------------------------------------------------------------------- */

struct token_cache { /* open; token_cache_close it */
    struct env *env; /* borrowed */
    const void *tokens;
    int token_bytes;
    int64_t train, held_out; /* tokens of each */
    const uint8_t *mask;     /* a bit for each token of both; NULL = none is masked */
    bool masked[2];          /* are there any in this part? */
    size_t bytes;            /* of the whole file */
    bool private;            /* it is in this process's memory, and counted */
    struct file_map map;
};

/* *cache = NULL when there is no such file, or it is damaged: that gives a warning. */
enum status token_cache_open(struct env *env, const char *folder, struct token_cache_key key,
                             struct token_cache **cache);
void token_cache_close(struct token_cache *cache); /* NULL is fine */

/* What the header of a file says, for plans: false when there is none of this key. */
bool token_cache_peek(struct env *env, const char *folder, struct token_cache_key key,
                      int64_t *tokens, size_t *bytes);

/* --- writing -------------------------------------------------------------------------------- */

struct token_cache_writer;

/* `folder` is made when it is not there; NULL = in memory. A folder that cannot be written to does
 * not fail here: the next call does, and token_cache_writer_refusal has the reason. */
enum status token_cache_writer_create(struct env *env, const char *folder,
                                      struct token_cache_key key, int64_t vocab,
                                      struct token_cache_writer **writer);
void token_cache_writer_destroy(struct token_cache_writer *writer); /* NULL is fine */
enum status token_cache_writer_add(struct token_cache_writer *writer, const int32_t *tokens,
                                   int64_t count, bool masked);
void token_cache_writer_hold_out(struct token_cache_writer *writer); /* what follows is */
/* Tokens so far of the part that is being written. */
int64_t token_cache_writer_count(const struct token_cache_writer *writer);
int64_t token_cache_writer_total(const struct token_cache_writer *writer); /* of both parts */
/* Complete the file and open it. At least one token was added. */
enum status token_cache_writer_finish(struct token_cache_writer *writer,
                                      struct token_cache **cache);
/* Why the file could not be written, "" = it could: a failure has another cause, which was said. */
const char *token_cache_writer_refusal(const struct token_cache_writer *writer);

/* --- the folder ----------------------------------------------------------------------------- */

/* Wait until nobody else makes tokens in this folder, and keep others waiting: flock's lock on
 * FOLDER/lock, so one rank of all that see the folder works, the others find its file. *fd = -1
 * where there are no locks. */
enum status token_cache_lock(struct env *env, const char *folder, int *fd);
void token_cache_unlock(int fd);

/* Remove the files of this kind, by name and content, that have none of the keys. */
void token_cache_prune(const char *folder, const struct token_cache_key *keys, int key_count);
/* Remove all of them, the lock, and the folder when nothing else is in it. */
void token_cache_discard(const char *folder);
/* Move all files of this kind from one folder to another. Those that cannot be moved stay. */
void token_cache_move(struct env *env, const char *from, const char *to);
/* How many files of this kind there are, and their size. */
int token_cache_list(const char *folder, uint64_t *bytes);

#endif
