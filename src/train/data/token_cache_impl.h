/* token_cache_impl -- how the files of a cache are recognised. For token_cache*.c only. */
#ifndef TRAIN_TOKEN_CACHE_IMPL_H
#define TRAIN_TOKEN_CACHE_IMPL_H
#include <inttypes.h>
#include "base/env.h"

#define TOKEN_CACHE_MAGIC "sifrtok\n"
#define TOKEN_CACHE_NAME  "tokens-%016" PRIx64 "-%016" PRIx64 ".bin"

/* The same env with a log that nobody sees: a cache that fails is made again, or done without.
 * log_destroy its log. */
enum status token_cache_quiet(struct env *env, struct env *quiet);
/* Say an error of memory aloud: a cache is not to blame for it. `st` comes back. */
enum status token_cache_blame(struct env *env, const struct env *quiet, enum status st);

#endif
