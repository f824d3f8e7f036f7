/* named -- checks of files and folders that the user names: do they exist, and are they of the
 * right kind?
 *
 * A wrong name is a usage error (STATUS_CONFIG, exit code 2), found before any work starts. Errors
 * in a file's content are reported by its reader. `key` is the option that gave the name
 * ("data.path", "--out"); "" for an argument.
 */
#ifndef BASE_NAMED_H
#define BASE_NAMED_H
#include <stddef.h>
#include "base/env.h"

/* A folder must also be one that we may look into (otherwise STATUS_IO). */
enum status path_exists(struct env *env, const char *key, const char *path);
/* The same for a model; the message about "organization/model" says that nothing is downloaded. */
enum status named_model(struct env *env, const char *key, const char *path);
/* A file, or a glob with at least one match. Folders, pipes and dangling links are errors. */
enum status named_files(struct env *env, const char *key, const char *pattern);
/* 'bytes', a file, or a folder with tokenizer.json. */
enum status named_tokenizer(struct env *env, const char *key, const char *name);
/* A folder to write to: it, or its nearest existing parent, must be neither a file nor a dangling
 * link. */
enum status named_out(struct env *env, const char *key, const char *path);

/* Files that are often mistaken for model files, such as a saved HTML page or a Git LFS pointer:
 * "an HTML page; ...", with what to do; NULL when the bytes are not recognized. */
const char *mistaken_for(const void *data, size_t bytes);

#endif
