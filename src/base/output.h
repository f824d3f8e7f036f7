/* output -- the system's calls by which files are written and removed, each whole or failed, and each
 * of which can be made to fail.
 *
 * Short transfers and interrupted calls are dealt with here. All return false with errno set; who
 * calls says which file it was. For tests an env may carry faults: the n-th of these calls fails, or
 * takes half of what it is given at first, as a disk that fills up or a file system over a network
 * does.
 */
#ifndef BASE_OUTPUT_H
#define BASE_OUTPUT_H
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/env.h"

struct output_faults { /* open; borrowed by an env */
    atomic_llong left; /* calls up to and with the one that fails; 0 or less: none does */
    int error;         /* what it fails with; 0: it takes half at first, and all in the end */
    /* What output_free says; NULL: it asks the system. */
    bool (*free_bytes)(void *user, const char *path, uint64_t *bytes);
    void *user;
};

bool output_open(struct env *env, const char *path, int flags, int *fd); /* mode 0666 */
/* To the end of a file that only we write to: all of it, or nothing, what was written of it being taken
 * back. Not among the calls that faults are counted in. */
bool output_append(int fd, const void *data, size_t bytes);
bool output_write_at(struct env *env, int fd, uint64_t at, const void *data, size_t bytes);
/* Set the length and reserve the blocks, so that a full disk is known before the work; where blocks
 * cannot be reserved, only the length. */
bool output_reserve(struct env *env, int fd, uint64_t bytes);
bool output_sync(struct env *env, int fd); /* fine where nothing can be synced */
bool output_close(struct env *env, int fd);
bool output_rename(struct env *env, const char *from, const char *to);
/* The same to a name that is free: EEXIST where it is not. A file system that cannot do both at once is
 * asked first. */
bool output_rename_new(struct env *env, const char *from, const char *to);
bool output_mkdir(struct env *env, const char *path);
/* The entry `name` of an open folder (AT_FDCWD: a path): an empty folder, or anything else. A link is
 * removed, and not what it leads to. */
bool output_remove_at(struct env *env, int folder, const char *name, bool is_folder);

/* *bytes = what may still be written to the disk where `path` is, or will be; false: not known. */
bool output_free(struct env *env, const char *path, uint64_t *bytes);
/* Has one of these calls of this thread failed for want of space (ENOSPC, EDQUOT) since output_forget? */
bool output_ran_out(void);
void output_forget(void);

#endif
