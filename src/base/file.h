/* file -- whole files: mapped reads, atomic writes, folders, globs. Errors name the path and the
 * system's reason. */
#ifndef BASE_FILE_H
#define BASE_FILE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/env.h"

struct file_guard;
struct text;

/* Opening for reading, here and in all that follows: only a plain file. A folder, pipe, socket or device is
 * STATUS_FORMAT and is not waited for; STATUS_IO: the system refused, which says nothing about what
 * the file holds (base/input.h has what is tried again); STATUS_MEMORY: the system had no memory. */
enum status file_open(struct env *env, const char *path, int *fd, uint64_t *bytes);

struct file_map {
    const uint8_t *data; /* NULL when the file is empty */
    size_t bytes;
    struct file_guard *guard; /* see base/file_guard.h */
};

enum status file_map_open(struct env *env, const char *path,
                          struct file_map *map); /* read-only, whole file */
void file_map_close(struct file_map *map);
/* Was all well with what has been read from the map that has `data` in it? To be asked after bytes are
 * copied out and before they are used: a file may become shorter while it is mapped, or its device
 * fail, and then reads give zeros. Fine where `data` is in no map, or NULL. Allocates nothing. */
enum status file_map_check(struct env *env, const char *path, const void *data);

/* The whole file as a NUL-terminated block (mem_free it); refused with a reason above `limit`
 * bytes. A pipe or device is read when the path names an open descriptor (/dev/stdin, /dev/fd/N, as
 * the shell's <(...) does). */
enum status file_read(struct env *env, const char *path, size_t limit, char **text, size_t *bytes);

/* Write a temporary file (part_file.h), fsync, rename it to `path`, fsync the folder: a reader sees
 * the old file or the new one. A symbolic link at `path` is replaced; what it leads to is not
 * touched. */
enum status file_write_atomic(struct env *env, const char *path, const void *data, size_t bytes);
/* The same for a text; one that could not grow is not written, and its status comes back. */
enum status file_write_text(struct env *env, const char *path, const struct text *text);

/* Whether file_write_atomic could write a few kilobytes there: a temporary file is written and
 * removed. */
enum status file_check_parent(struct env *env, const char *path);

/* With parents; fine when it exists. The name of each new folder is synced. */
enum status dir_create(struct env *env, const char *path);
/* The same, noting which folders it made; and the removal of those of them that are empty. */
struct dir_made {
    size_t first, last; /* bytes of the path of the first and the last; 0 = none */
};
enum status dir_make(struct env *env, const char *path, struct dir_made *made);
void dir_unmake(struct env *env, const char *path, const struct dir_made *made);
enum status dir_sync(struct env *env, const char *path);
enum status dir_sync_parent(struct env *env, const char *path); /* the folder that `path` is in */
/* A file or folder, a link counts for what it leads to; also one that cannot be looked at now: the
 * call that opens it says why. */
bool file_exists(const char *path);
/* Is it certain that there is no such file: can the folder be listed, and does it not have `name`
 * ("a" or "a/b")? */
bool file_is_missing(struct env *env, const char *folder, const char *name);
bool path_is_free(const char *path); /* nothing of that name is seen, not even a dangling link */
bool path_is_link(const char *path); /* a symbolic link */
/* Does `name` in the open folder (AT_FDCWD: a path) still stand for the open file itself, not for a
 * link to it? */
bool file_is_at(int fd, int folder, const char *name);
bool dir_exists(const char *path);   /* a folder */
bool dir_is_empty(const char *path); /* also true when it does not exist */
enum status path_join(struct env *env, const char *folder, const char *name,
                      char **path);                                        /* mem_free it */
enum status path_parent(struct env *env, const char *path, char **folder); /* or "."; mem_free it */

/* Paths that match a glob, sorted by bytes; a pattern without wildcard characters must exist. */
struct path_list {
    char **paths;
    int count;
};
enum status path_glob(struct env *env, const char *pattern,
                      struct path_list *list); /* none = STATUS_IO */
void path_list_free(struct env *env, struct path_list *list);

#endif
