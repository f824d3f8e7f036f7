/* token_cache_impl -- names and magic bytes of token caches. For token_cache*.c only. */
#ifndef TRAIN_TOKEN_CACHE_IMPL_H
#define TRAIN_TOKEN_CACHE_IMPL_H
#include <inttypes.h>
#include "base/env.h"

#define TOKEN_CACHE_MAGIC "sifrtok\n"
#define TOKEN_CACHE_NAME  "tokens-%016" PRIx64 "-%016" PRIx64 ".bin"

/* Copy `env` with a log that prints nothing: a failure of the cache is not an error of the run,
 * because the cache is rebuilt or not used. The caller destroys quiet->log. */
enum status token_cache_quiet(struct env *env, struct env *quiet);
/* Repeat an out-of-memory error of `quiet` in the log of `env`: it is not a failure of the cache.
 * Returns `st`. */
enum status token_cache_blame(struct env *env, const struct env *quiet, enum status st);

#endif
