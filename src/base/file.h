/* file -- whole files: mapped reads, atomic writes, writes in parts, folders, globs. Errors name
 * the path and the system's reason. */
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

/* Write a temporary file (part_file), fsync, rename it to `path`, fsync the folder: a reader sees
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
/* Is there a file or folder, following links? STATUS_IO when the file system cannot tell. */
enum status file_find(struct env *env, const char *path, bool *found);
/* The same for files that are opened next: also true when an error of the file system prevents
 * the check, since opening the file will report it. */
bool file_exists(const char *path);
/* Whether `name` ("a" or "a/b") is certainly missing: the folder was listed and does not contain
 * it. */
bool file_is_missing(struct env *env, const char *folder, const char *name);
bool path_is_free(const char *path); /* no entry of that name, not even a dangling link */
bool path_is_link(const char *path); /* a symbolic link */
/* Whether `name` in the open folder (AT_FDCWD: a path) is still the open file itself, not a link to
 * it. */
bool file_is_at(int fd, int folder, const char *name);
bool dir_exists(const char *path);    /* follows links */
bool dir_is_memory(const char *path); /* its files are in memory: tmpfs, ramfs */
/* Also true when it does not exist. When false, errno is 0 if the folder has entries, else the
 * reason why it could not be listed. */
bool dir_is_empty(struct env *env, const char *path);
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

/* --- files written in parts ----------------------------------------------------------------- */

/* A file that is written in parts and appears complete or not at all. Bytes go to a temporary file
 * in the same folder, at any offset and in any order; commit syncs and renames it. An existing
 * file, which another process may have mapped, is never truncated. If the target path is a symbolic
 * link, the rename replaces the link and does not touch its target.
 *
 * The temporary file `.NAME.PID-N.tmp` is always new (O_EXCL), so two writers never share one, and
 * it is locked (flock) while its writer lives. An unlocked one was left by a killed process; the
 * next writer of the same path removes it. On a file system without locks it stays. */
struct part_file;

enum status part_file_create(struct env *env, const char *path, struct part_file **file);
void part_file_destroy(struct part_file *file); /* NULL is fine; removes an uncommitted file */

/* Set the length and reserve the blocks, so that a full disk is found before the work starts.
 * Optional. */
enum status part_file_reserve(struct part_file *file, uint64_t bytes);
enum status part_file_write(struct part_file *file, uint64_t at, const void *data, size_t bytes);
/* Sync, rename, sync the folder. Only destroy may follow. */
enum status part_file_commit(struct part_file *file);

/* --- removing folders ----------------------------------------------------------------------- */

/* Removes a folder with its content through open descriptors: never follows a symbolic link, at the
 * top or below, and never touches another file system. A name does not prove who created a file.
 * The caller first proves that the folder is ours; `member` then decides which entries are, by
 * their names inside the folder ("optimizer/master.x"). */
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
