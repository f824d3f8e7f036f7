/* lock_file -- one writer at a time for an output: a lock on a file, held by the process that
 * writes and gone with it, however it ends. The file holds that process's id and its host.
 *
 * It is flock's lock, which Linux makes a lock of the server where the file is on NFS: another host
 * is refused too, unless the folder is mounted with local locks (nolock, local_lock=flock). A host
 * that dies loses its lock when the server notices: within its lease with NFS 4.
 *
 * A file is taken for a lock file by its content, never by its name alone: any other file, a link
 * or a folder of that name is neither written nor removed.
 */
#ifndef BASE_LOCK_FILE_H
#define BASE_LOCK_FILE_H
#include <stdbool.h>
#include "base/env.h"

struct lock_file;

struct lock_words {     /* of the messages */
    const char *writer; /* "another WRITER is writing to 'OUTPUT'" */
    const char *output;
    const char *advice; /* what to do instead */
    bool quiet;         /* no warning where there are no locks */
};

/* Refuse (STATUS_CONFIG) where another process holds the lock, or where `path` is no lock file;
 * makes nothing. */
enum status lock_file_check(struct env *env, const char *path, const struct lock_words *words);

/* Make the file in a folder that exists, or take over one that was left. STATUS_CONFIG where
 * lock_file_check says so. A file system without locks gives a warning and a lock that holds
 * nothing. */
enum status lock_file_take(struct env *env, const char *path, const struct lock_words *words,
                           struct lock_file **lock);
/* Is it the lock file of a process that is gone? Not where the file system has no locks: nobody
 * knows there. */
bool lock_file_is_left(const char *path);

/* The folder that the file is in was renamed: it is now at `path`. */
enum status lock_file_moved(struct lock_file *lock, const char *path);
void lock_file_release(struct lock_file *lock); /* the file goes too; NULL is fine */
void lock_file_leave(struct lock_file *lock);   /* the file stays, for nobody; NULL is fine */

#endif
