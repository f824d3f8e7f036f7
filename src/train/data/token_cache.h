/* token_cache -- the tokens of one text source, encoded once and kept in a file that all ranks map.
 *
 *     RUN/cache/tokens-TEXT-HOW.bin   TEXT = hash of the text, HOW = hash of how it was encoded
 *
 *     header     4096 bytes: sizes, the key, hashes of the tokens, of the mask and of the header
 *     tokens     2 or 4 bytes each: those to train on, then those held out
 *     mask       one bit per token, if any token is masked
 *
 * A file appears complete or not at all (base/file.h). Opening it compares every byte with the
 * hashes; a damaged file is rebuilt. A rank that has the file open keeps it mapped, so the file may
 * be deleted at any time. Its pages are in the system's page cache, once for all ranks of a host.
 *
 * Without a folder, the file is in memory and private to this process; the memory account counts it
 * under MEM_LOADER.
 */
#ifndef TRAIN_TOKEN_CACHE_H
#define TRAIN_TOKEN_CACHE_H
#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include "base/env.h"
#include "base/file.h"

struct token_cache_key {
    uint64_t text; /* hash of the text */
    uint64_t how;  /* hash of the tokenizer and of everything else that determines the tokens */
};

/* --- reading -------------------------------------------------------------------------------- */

struct token_cache { /* public fields; release with token_cache_close */
    struct env *env; /* borrowed */
    const void *tokens;
    int token_bytes;
    int64_t train, held_out; /* number of tokens in each part */
    const uint8_t *mask;     /* one bit per token of both parts; NULL = none is masked */
    bool masked[2];          /* does this part have masked tokens? */
    size_t bytes;            /* of the whole file */
    bool private;            /* in memory of this process, and in its memory account */
    struct file_map map;
    char *path; /* NULL = the file is in memory */
};

/* *cache = NULL if there is no such file, or if it is damaged, which also logs a warning. */
enum status token_cache_open(struct env *env, const char *folder, struct token_cache_key key,
                             struct token_cache **cache);
void token_cache_close(struct token_cache *cache); /* NULL is fine */

/* Read only the header, for plans. False if there is no valid file with this key. */
bool token_cache_peek(struct env *env, const char *folder, struct token_cache_key key,
                      int64_t *tokens, size_t *bytes);

/* --- writing -------------------------------------------------------------------------------- */

struct token_cache_writer;

/* `folder` is created if it does not exist; NULL = in memory. If the folder cannot be written to,
 * the next call fails instead of this one, and token_cache_writer_refusal gives the reason. */
enum status token_cache_writer_create(struct env *env, const char *folder,
                                      struct token_cache_key key, int64_t vocab,
                                      struct token_cache_writer **writer);
void token_cache_writer_destroy(struct token_cache_writer *writer); /* NULL is fine */
enum status token_cache_writer_add(struct token_cache_writer *writer, const int32_t *tokens,
                                   int64_t count, bool masked);
/* Tokens added from now on are held out. */
void token_cache_writer_hold_out(struct token_cache_writer *writer);
/* Number of tokens so far in the part that is being written. */
int64_t token_cache_writer_count(const struct token_cache_writer *writer);
int64_t token_cache_writer_total(const struct token_cache_writer *writer); /* in both parts */
/* Complete the file and open it. At least one token must have been added. */
enum status token_cache_writer_finish(struct token_cache_writer *writer,
                                      struct token_cache **cache);
/* Why the file could not be written. "" = writing has not failed: any failure has another cause,
 * which is already logged. */
const char *token_cache_writer_refusal(const struct token_cache_writer *writer);

/* --- the folder ----------------------------------------------------------------------------- */

/* Wait for an exclusive flock on FOLDER/lock, so that only one of the ranks that share the folder
 * encodes and the others find its file. If the lock file cannot be opened (*fd = -1) or the file
 * system has no locks, the caller continues without one. */
enum status token_cache_lock(struct env *env, const char *folder, int *fd);
void token_cache_unlock(int fd);

/* Remove all token caches, recognized by name and content, except those with one of the keys. */
void token_cache_prune(const char *folder, const struct token_cache_key *keys, int key_count);
/* Remove all token caches and the lock, and the folder if it is then empty. */
void token_cache_discard(const char *folder);
/* Move all token caches from one folder to another. Files that cannot be moved stay. */
void token_cache_move(struct env *env, const char *from, const char *to);
/* The number of token caches, and their total size. */
int token_cache_list(const char *folder, uint64_t *bytes);

/* --- for token_cache*.c only ---------------------------------------------------------------- */

#define TOKEN_CACHE_MAGIC "sifrtok\n"
#define TOKEN_CACHE_NAME  "tokens-%016" PRIx64 "-%016" PRIx64 ".bin"

/* Copy `env` with a log that prints nothing: a failure of the cache is not an error of the run,
 * because the cache is rebuilt or not used. The caller destroys quiet->log. */
enum status token_cache_quiet(struct env *env, struct env *quiet);
/* Repeat an out-of-memory error of `quiet` in the log of `env`: it is not a failure of the cache.
 * Returns `st`. */
enum status token_cache_blame(struct env *env, const struct env *quiet, enum status st);

#endif
