/* output -- system calls that write and remove files, complete or failed, with fault injection.
 *
 * Short transfers and interrupted calls are handled here. All return false with errno set; the
 * caller reports which file it was. For tests an env may carry faults: the n-th of these calls
 * fails, or writes only half at first, as a full disk or a network file system does.
 */
#ifndef BASE_OUTPUT_H
#define BASE_OUTPUT_H
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/env.h"

struct output_faults { /* open; borrowed by an env */
    atomic_llong left; /* calls up to and including the one that fails; 0 or less = none */
    int error;         /* its errno; 0 = a short write that then completes */
    /* Replaces the answer of output_free; NULL = ask the system. */
    bool (*free_bytes)(void *user, const char *path, uint64_t *bytes);
    void *user;
};

bool output_open(struct env *env, const char *path, int flags, int *fd); /* mode 0666 */
/* Append to a file that has no other writer: all or nothing, since a partial write is truncated.
 * Injected faults do not apply. */
bool output_append(int fd, const void *data, size_t bytes);
bool output_write_at(struct env *env, int fd, uint64_t at, const void *data, size_t bytes);
/* Set the length and reserve the blocks, so that a full disk is found before the work starts. Where
 * blocks cannot be reserved, only the length is set. */
bool output_reserve(struct env *env, int fd, uint64_t bytes);
bool output_sync(struct env *env, int fd); /* succeeds where fsync is not supported */
bool output_close(struct env *env, int fd);
bool output_rename(struct env *env, const char *from, const char *to);
/* The same without replacing: EEXIST when `to` exists. Where the file system cannot do that
 * atomically, existence is checked first. */
bool output_rename_new(struct env *env, const char *from, const char *to);
bool output_mkdir(struct env *env, const char *path);
/* Remove the entry `name` of an open folder (AT_FDCWD: a path): an empty folder, or anything else.
 * A link is removed, not its target. */
bool output_remove_at(struct env *env, int folder, const char *name, bool is_folder);

/* *bytes = free space of the disk where `path` is or will be; false = unknown. */
bool output_free(struct env *env, const char *path, uint64_t *bytes);
/* Whether a call of this thread failed for lack of space (ENOSPC, EDQUOT) since output_forget. */
bool output_ran_out(void);
void output_forget(void);

#endif
