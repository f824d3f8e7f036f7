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
 * bytes. */
enum status file_read(struct env *env, const char *path, size_t limit, char **text, size_t *bytes);

/* Write beside `path`, fsync, rename over it, fsync the folder: a reader sees the old file or the
 * new one. */
enum status file_write_atomic(struct env *env, const char *path, const void *data, size_t bytes);
/* The same for a text; one that could not grow is not written, and its status comes back. */
enum status file_write_text(struct env *env, const char *path, const struct text *text);

/* Whether file_write_atomic could write there: a file is made beside `path`, and removed. */
enum status file_check_place(struct env *env, const char *path);

enum status dir_create(struct env *env, const char *path); /* with parents; fine when it exists */
enum status dir_sync(struct env *env, const char *path);
bool file_exists(const char *path);  /* file or folder */
bool dir_exists(const char *path);   /* a folder */
bool dir_is_empty(const char *path); /* also true when it does not exist */
enum status path_join(struct env *env, const char *folder, const char *name,
                      char **path); /* mem_free it */

/* Paths that match a glob, sorted by bytes; a pattern without wildcard characters must exist. */
struct path_list {
    char **paths;
    int count;
};
enum status path_glob(struct env *env, const char *pattern,
                      struct path_list *list); /* none = STATUS_IO */
void path_list_free(struct env *env, struct path_list *list);

#endif
