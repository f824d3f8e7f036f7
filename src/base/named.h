/* named -- files and folders that a user names: are they there, and of the kind that is wanted?
 *
 * What is wrong with a name is wrong usage (STATUS_CONFIG, exit code 2), known before anything is
 * done; what is wrong with the content of a file is said by who reads it. `key` is what the name was
 * given as ("data.path", "--out"); "" for an argument.
 */
#ifndef BASE_NAMED_H
#define BASE_NAMED_H
#include "base/env.h"

enum status path_exists(struct env *env, const char *key, const char *path);
/* A file, or a glob that matches some: no folder, no pipe, no dead link. */
enum status named_files(struct env *env, const char *key, const char *pattern);
/* 'bytes', a file, or a folder with tokenizer.json. */
enum status named_tokenizer(struct env *env, const char *key, const char *name);
/* A folder to write to: it, or what of its parents is there, is no file and no dead link. */
enum status named_out(struct env *env, const char *key, const char *path);

#endif
