/* tree -- removes a folder with its content through open descriptors: never follows a symbolic
 * link, at the top or below, and never touches another file system.
 *
 * A name does not prove who created a file. The caller first proves that the folder is ours;
 * `member` then decides which entries are, by their names inside the folder ("optimizer/master.x").
 */
#ifndef BASE_TREE_H
#define BASE_TREE_H
#include <stdbool.h>
#include "base/env.h"

typedef bool tree_member_fn(const char *name, bool is_folder);

/* *stranger = path of the first entry that is not a member, "" when all are. Only regular files and
 * folders can be members; a link, for example, is not. */
enum { TREE_PATH_BYTES = 4096 };
enum status tree_find_stranger(struct env *env, const char *path, tree_member_fn *member,
                               char stranger[TREE_PATH_BYTES]);

/* Remove the members (NULL: everything; links themselves, not their targets), then the entry `last`
 * directly inside the folder (NULL: none), then the folder. So the entry that proves the folder to
 * be ours exists until everything else is gone. Other entries are kept and make it fail. A missing
 * folder is fine. */
enum status tree_remove(struct env *env, const char *path, tree_member_fn *member,
                        const char *last);

#endif
