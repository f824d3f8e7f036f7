/* run_lock -- one run at a time in a folder: a lock on DIR/lock, held by the process that writes
 * there and gone with it, however it ends. The file holds that process's id and its host.
 *
 * It is flock's lock, which Linux makes a lock of the server where the folder is on NFS: another host
 * is refused too, unless the folder is mounted with local locks (nolock, local_lock=flock). A host
 * that dies loses its lock when the server notices: within its lease with NFS 4. */
#ifndef TRAIN_RUN_LOCK_H
#define TRAIN_RUN_LOCK_H
#include "base/env.h"

struct run_lock;

/* Refuse (STATUS_CONFIG) a folder that another run is writing to, or that has a DIR/lock which no run
 * wrote, as its content tells; makes nothing. */
enum status run_lock_check(struct env *env, const char *folder);

/* Lock the folder, which exists. STATUS_CONFIG where run_lock_check says so. A file system without locks
 * gives a warning and a lock that holds nothing. */
enum status run_lock_take(struct env *env, const char *folder, struct run_lock **lock);
void run_lock_release(struct run_lock *lock); /* the file goes too; NULL is fine */

#endif
