/* input -- the system's calls by which files are read: each is tried again when the error may pass, and
 * each can be made to fail.
 *
 * A disk over a network loses its server for a moment, a process runs out of descriptors while
 * another thread gives some back: such an error says nothing about the file. It is tried
 * INPUT_TRIES times in all, with pauses that grow (INPUT_PAUSE_MS, then four times as long each,
 * 1.7 seconds together); only then is it an error. Everything else (no such file, no permission) is
 * one at once. All calls return false or -1 with errno set; the caller says which file it was.
 *
 * For tests an env may carry faults: `times` calls from the n-th on fail, without pauses between
 * them. `env` may be NULL: no faults.
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
    atomic_llong left; /* calls up to and with the first that fails */
    long long times;   /* how many fail from there on, tries included; 0: none does */
    int error;         /* what they fail with */
};

/* May the same call succeed a moment later? */
bool input_may_pass(int error);
/* What to say of an error: the system's words, and that it was tried several times where it was. */
const char *input_reason(int error, char *out, size_t bytes);

bool input_stat(struct env *env, const char *path, struct stat *info);
/* For reading; never waits for the other end of a pipe. Reads of *fd wait, as usual. */
bool input_open(struct env *env, const char *path, int *fd, struct stat *info);
ssize_t input_read(struct env *env, int fd, void *room, size_t bytes); /* one read() */
ssize_t input_read_at(struct env *env, int fd, uint64_t at, void *room, size_t bytes);
bool input_map(struct env *env, int fd, size_t bytes, void **data); /* read-only, shared */

/* Every name in a folder but "." and "..", in any order. A listing that fails in the middle is begun
 * again, so a name may come twice. */
typedef void input_name_fn(void *user, const char *name);
bool input_list(struct env *env, const char *folder, input_name_fn *name, void *user);

/* The system's glob, unsorted; globfree *found when this is true, also where nothing matches. It knows
 * nothing of a folder that could not be read to its end: here that is an error, since files would be
 * missing. A folder that may not be read (EACCES) matches nothing. */
bool input_glob(struct env *env, const char *pattern, glob_t *found);

#endif
