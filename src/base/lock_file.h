/* lock_file -- one writer at a time for an output: a lock on a file, held by the writing process
 * and released however it ends. The file contains the process id and the host.
 *
 * The lock is flock's. On NFS, Linux turns it into a lock on the server, so other hosts are
 * refused, too, unless the folder is mounted with local locks (nolock, local_lock=flock). The lock
 * of a host that dies is released when the server notices: with NFS 4, within its lease.
 *
 * A lock file is recognized by its content, never by its name alone: any other file, link or folder
 * of that name is neither written nor removed.
 */
#ifndef BASE_LOCK_FILE_H
#define BASE_LOCK_FILE_H
#include <stdbool.h>
#include "base/env.h"

struct lock_file;

struct lock_words {     /* for messages */
    const char *writer; /* "another WRITER is writing to 'OUTPUT'" */
    const char *output;
    const char *advice; /* what to do instead */
    bool quiet;         /* no warning on a file system without locks */
};

/* STATUS_CONFIG when another process holds the lock, or `path` is not a lock file. Creates
 * nothing. */
enum status lock_file_check(struct env *env, const char *path, const struct lock_words *words);

/* Create the file in an existing folder, or take over an abandoned one. STATUS_CONFIG as in
 * lock_file_check. On a file system without locks: a warning, and a lock without effect. */
enum status lock_file_take(struct env *env, const char *path, const struct lock_words *words,
                           struct lock_file **lock);
/* Whether it is the lock file of a process that has ended. Always false on a file system without
 * locks. */
bool lock_file_is_left(const char *path);

/* The folder of the file was renamed: the file is now at `path`. */
enum status lock_file_moved(struct lock_file *lock, const char *path);
void lock_file_release(struct lock_file *lock); /* also removes the file; NULL is fine */
void lock_file_leave(struct lock_file *lock);   /* leaves the file behind, unlocked; NULL is fine */

#endif
