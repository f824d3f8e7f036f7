/* tree -- a folder removed with what is in it, by open descriptors: no symbolic link is ever
 * followed, at the top or below, and nothing on another file system is touched.
 *
 * A name does not tell who made a file. The caller proves first that the folder is ours; `member`
 * then says which of the entries are, by their names inside the folder ("optimizer/master.x").
 */
#ifndef BASE_TREE_H
#define BASE_TREE_H
#include <stdbool.h>
#include "base/env.h"

typedef bool tree_member_fn(const char *name, bool is_folder);

/* *stranger = path of the first entry that is no member, "" if there is none. Anything but a plain
 * file or a folder is none: a link, say. */
enum { TREE_PATH_BYTES = 4096 };
enum status tree_find_stranger(struct env *env, const char *path, tree_member_fn *member,
                               char stranger[TREE_PATH_BYTES]);

/* Remove the members (NULL: everything, links as links), then the entry `last` of the folder itself
 * (NULL: none), then the folder. So what proves that it is ours is there until all else is gone.
 * Fails, and leaves them, if there are other entries. Fine when there is no such folder. */
enum status tree_remove(struct env *env, const char *path, tree_member_fn *member,
                        const char *last);

#endif
