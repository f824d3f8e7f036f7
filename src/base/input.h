/* input -- system calls that read files, with retries of transient errors and fault injection.
 *
 * A network file system may lose its server for a moment, or a process may run out of descriptors
 * until another thread closes some. Such errors are retried: INPUT_TRIES attempts in all, with
 * pauses of INPUT_PAUSE_MS at first and four times as long each time (1.7 seconds in total). Other
 * errors (no such file, no permission) fail immediately. All calls return false or -1 with errno
 * set; the caller reports which file it was.
 *
 * For tests an env may carry faults: `times` calls from the n-th on fail, without pauses. `env` may
 * be NULL: no faults.
 */
#ifndef BASE_INPUT_H
#define BASE_INPUT_H
#include <glob.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>
#include "base/env.h"

enum { INPUT_TRIES = 5, INPUT_PAUSE_MS = 20 };

struct input_faults {  /* open; borrowed by an env */
    atomic_llong left; /* calls up to and including the first that fails */
    long long times;   /* how many fail from there on, retries included; 0 = none */
    int error;         /* their errno */
};

/* Whether the error is transient: the same call may succeed a moment later. */
bool input_may_pass(int error);
/* The text of an error for a message, with the number of attempts where it was retried. */
const char *input_reason(int error, char *out, size_t bytes);

bool input_stat(struct env *env, const char *path, struct stat *info);
/* Open for reading without waiting for the other end of a pipe. Reads of *fd block as usual. */
bool input_open(struct env *env, const char *path, int *fd, struct stat *info);
ssize_t input_read(struct env *env, int fd, void *room, size_t bytes); /* one read() */
ssize_t input_read_at(struct env *env, int fd, uint64_t at, void *room, size_t bytes);
bool input_map(struct env *env, int fd, size_t bytes, void **data); /* read-only, shared */

/* Every name in a folder but "." and "..", in any order. A listing that fails in the middle starts
 * over, so a name may be reported twice. */
typedef void input_name_fn(void *user, const char *name);
bool input_list(struct env *env, const char *folder, input_name_fn *name, void *user);

/* glob(), unsorted. On success call globfree(found), also when nothing matches. Unlike glob(), a
 * folder that could not be read to its end is an error, since files would be missing. A folder
 * without read permission (EACCES) matches nothing. */
bool input_glob(struct env *env, const char *pattern, glob_t *found);

#endif
