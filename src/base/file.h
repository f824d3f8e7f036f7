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

/* All functions here open only regular files for reading. STATUS_FORMAT: a folder, pipe, socket
 * or device; the call does not block on it. STATUS_IO: the system refused, which says nothing
 * about the content (base/input.h lists the errors that are retried). STATUS_MEMORY: the system
 * is out of memory. */
enum status file_open(struct env *env, const char *path, int *fd, uint64_t *bytes);

struct file_map {
    const uint8_t *data; /* NULL when the file is empty */
    size_t bytes;
    struct file_guard *guard;
};

/* Maps the whole file read-only. */
enum status file_map_open(struct env *env, const char *path, struct file_map *map);
void file_map_close(struct file_map *map);
/* Whether all reads from the map that contains `data` succeeded. Call it after copying bytes out
 * and before using them: if the file is truncated while it is mapped, or its device fails, reads
 * return zeros. STATUS_OK where `data` is in no map, or NULL. Allocates nothing. */
enum status file_map_check(struct env *env, const char *path, const void *data);

/* The whole file as a NUL-terminated block (mem_free it); an error above `limit` bytes. A pipe or
 * device is read when the path names an open descriptor (/dev/stdin, or /dev/fd/N as in the shell's
 * <(...)). */
enum status file_read(struct env *env, const char *path, size_t limit, char **text, size_t *bytes);

/* Write a temporary file (part_file.h), fsync, rename it to `path`, fsync the folder: a reader sees
 * the old file or the new one. A symbolic link at `path` is replaced; its target is not touched. */
enum status file_write_atomic(struct env *env, const char *path, const void *data, size_t bytes);
/* The same for a text. A text that failed to grow is not written; its status is returned. */
enum status file_write_text(struct env *env, const char *path, const struct text *text);

/* Check that file_write_atomic would work: writes a few kilobytes to a temporary file and removes
 * it. */
enum status file_check_parent(struct env *env, const char *path);

/* Create a folder and its parents, syncing each new name. Fine when it exists. */
enum status dir_create(struct env *env, const char *path);
/* The same, recording which folders were created; dir_unmake removes those that are empty. */
struct dir_made {
    size_t first, last; /* path lengths of the first and last new folder; 0 = none */
};
enum status dir_make(struct env *env, const char *path, struct dir_made *made);
void dir_unmake(struct env *env, const char *path, const struct dir_made *made);
enum status dir_sync(struct env *env, const char *path);
enum status dir_sync_parent(struct env *env, const char *path); /* the folder that `path` is in */
/* A file or folder, following links. Also true when a transient error prevents the check:
 * opening the file will report it. */
bool file_exists(const char *path);
/* Whether `name` ("a" or "a/b") is certainly missing: the folder was listed and does not contain
 * it. */
bool file_is_missing(struct env *env, const char *folder, const char *name);
bool path_is_free(const char *path); /* no entry of that name, not even a dangling link */
bool path_is_link(const char *path); /* a symbolic link */
/* Whether `name` in the open folder (AT_FDCWD: a path) is still the open file itself, not a link to
 * it. */
bool file_is_at(int fd, int folder, const char *name);
bool dir_exists(const char *path);   /* follows links */
bool dir_is_empty(const char *path); /* also when it does not exist */
/* Both results must be freed with mem_free; the parent of a plain name is ".". */
enum status path_join(struct env *env, const char *folder, const char *name, char **path);
enum status path_parent(struct env *env, const char *path, char **folder);

/* Paths that match a glob, sorted by bytes. STATUS_IO when nothing matches. */
struct path_list {
    char **paths;
    int count;
};
enum status path_glob(struct env *env, const char *pattern, struct path_list *list);
void path_list_free(struct env *env, struct path_list *list);

#endif
