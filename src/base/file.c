/* file -- whole files, folders and globs over POSIX calls.
 *
 * Short transfers and interrupted calls are handled here and in base/input.h and base/output.h, so
 * callers see a whole file or an error that names it.
 */
#include "base/file.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>
#include "base/file_guard.h"
#include "base/input.h"
#include "base/output.h"
#include "base/text.h"

/* --- reading -------------------------------------------------------------------------------- */

/* Paths of this process's open descriptors. A user who names one wants what it refers to. */
static bool is_descriptor(const char *path)
{
    return strcmp(path, "/dev/stdin") == 0 || strncmp(path, "/dev/fd/", 8) == 0 ||
           strncmp(path, "/proc/self/fd/", 14) == 0;
}

static const char *kind_of(const struct stat *info)
{
    switch (info->st_mode & S_IFMT) {
    case S_IFDIR: return "a folder";
    case S_IFIFO: return "a pipe";
    case S_IFSOCK: return "a socket";
    default: return "a device";
    }
}

static enum status fail_reading(struct env *env, const char *verb, const char *path)
{
    char reason[128];
    int error = errno;
    input_reason(error, reason, sizeof reason);
    if (error == ENOMEM)
        return FAIL(env, MEMORY, "cannot %s '%s': %s", verb, path, reason);
    return FAIL(env, IO, "cannot %s '%s': %s", verb, path, reason);
}

/* Regular files, and with `pipes` anything but a folder behind an open descriptor. */
static enum status check_kind(struct env *env, const char *path, bool pipes,
                              const struct stat *info)
{
    if (S_ISREG(info->st_mode) || (pipes && is_descriptor(path) && !S_ISDIR(info->st_mode)))
        return STATUS_OK;
    return FAIL(env, FORMAT, "cannot read '%s': it is %s, not a plain file", path, kind_of(info));
}

/* Checked before opening, since opening alone has effects on some devices; and after, since the
 * file may have been replaced. */
static enum status open_kind(struct env *env, const char *path, bool pipes, int *fd,
                             struct stat *info)
{
    *fd = -1;
    if (!input_stat(env, path, info))
        return fail_reading(env, "open", path);
    TRY(check_kind(env, path, pipes, info));
    if (!input_open(env, path, fd, info))
        return fail_reading(env, "open", path);
    enum status st = check_kind(env, path, pipes, info);
    if (st != STATUS_OK) {
        close(*fd);
        *fd = -1;
    }
    return st;
}

enum status file_open(struct env *env, const char *path, int *fd, uint64_t *bytes)
{
    struct stat info;
    TRY(open_kind(env, path, false, fd, &info));
    *bytes = (uint64_t)info.st_size;
    return STATUS_OK;
}

enum status file_map_open(struct env *env, const char *path, struct file_map *map)
{
    int fd;
    struct stat info;
    void *data = NULL;
    *map = (struct file_map){0};
    TRY(open_kind(env, path, false, &fd, &info));
    size_t bytes = (size_t)info.st_size;
    enum status st = STATUS_OK;
    if (bytes > 0 && !input_map(env, fd, bytes, &data))
        st = fail_reading(env, "map", path);
    close(fd);
    if (st != STATUS_OK || data == NULL)
        return st;
    *map = (struct file_map){.data = data, .bytes = bytes};
    if ((map->guard = file_guard_add(data, &info)) != NULL)
        return STATUS_OK;
    file_map_close(map);
    return FAIL(env, IO, "cannot map '%s': too many files are mapped", path);
}

enum status file_map_check(struct env *env, const char *path, const void *data)
{
    struct file_guard_news news;
    struct stat now;
    if (data == NULL || !file_guard_look(data, &news))
        return STATUS_OK;
    /* A truncated file reads as zeros up to the end of its last page without a signal, so compare
     * the size. A failed stat is not an error; env is NULL so that it does not consume an injected
     * fault. */
    bool known =
        input_stat(NULL, path, &now) && now.st_dev == news.device && now.st_ino == news.inode;
    if (known && (size_t)now.st_size < news.bytes)
        return FAIL(env, IO,
                    "cannot read '%s': it was truncated from %zu to %lld bytes while in use; "
                    "restore it and rerun the same command",
                    path, news.bytes, (long long)now.st_size);
    if (news.failed)
        return FAIL(env, IO,
                    "cannot read '%s' from byte %zu on: its device failed, or the file was "
                    "truncated, while in use; restore it and rerun the same command",
                    path, news.at);
    return STATUS_OK;
}

void file_map_close(struct file_map *map)
{
    file_guard_remove(map->guard);
    if (map->data)
        munmap((void *)map->data, map->bytes);
    *map = (struct file_map){0};
}

static enum status fail_too_large(struct env *env, const char *path, size_t limit)
{
    char human[32];
    return FAIL(env, FORMAT, "'%s' is too large: more than %s", path,
                text_human_bytes(human, (double)limit));
}

/* Read `fd` to its end into *text, which has `room` bytes and grows: a file may be longer than its
 * stat said. */
static enum status read_to_end(struct env *env, int fd, const char *path, size_t limit, size_t room,
                               char **text, size_t *bytes)
{
    for (*bytes = 0;;) {
        if (*bytes + 1 >= room)
            TRY(mem_resize(env, text, room *= 2));
        ssize_t got = input_read(env, fd, *text + *bytes, room - *bytes - 1);
        if (got < 0)
            return fail_reading(env, "read", path);
        if (got == 0)
            break;
        *bytes += (size_t)got;
        if (*bytes > limit)
            return fail_too_large(env, path, limit);
    }
    (*text)[*bytes] = 0;
    return STATUS_OK;
}

enum status file_read(struct env *env, const char *path, size_t limit, char **text, size_t *bytes)
{
    enum status st;
    int fd;
    struct stat info = {0};
    *text = NULL;
    TRY(open_kind(env, path, true, &fd, &info));
    size_t expected = S_ISREG(info.st_mode) ? (size_t)info.st_size : 0, room = expected + 4096;
    if (expected > limit) {
        st = fail_too_large(env, path, limit);
        goto undo_open;
    }
    TRY_OR(undo_open, mem_alloc(env, MEM_OTHER, "file", room, text));
    TRY_OR(undo_text, read_to_end(env, fd, path, limit, room, text, bytes));
    close(fd);
    return STATUS_OK;
undo_text:
    mem_free(env, *text);
    *text = NULL;
undo_open:
    close(fd);
    return st;
}

/* --- folders and paths ---------------------------------------------------------------------- */

bool dir_exists(const char *path)
{
    struct stat info;
    return input_stat(NULL, path, &info) && S_ISDIR(info.st_mode);
}

bool dir_is_memory(const char *path)
{
    struct statfs info;
    return statfs(path, &info) == 0 && (info.f_type == TMPFS_MAGIC || info.f_type == RAMFS_MAGIC);
}

/* *made = it did not exist before. */
static enum status make_folder(struct env *env, const char *path, bool *made)
{
    struct stat info;
    *made = false;
    if (input_stat(env, path, &info) && S_ISDIR(info.st_mode))
        return STATUS_OK;
    *made = output_mkdir(env, path);
    if (*made)
        return dir_sync_parent(env, path);
    int reason = errno;
    bool known = input_stat(env, path, &info);
    if (known && S_ISDIR(info.st_mode))
        return STATUS_OK;
    if (!known && reason == EEXIST && errno != ENOENT) /* it exists and cannot be checked */
        reason = errno;
    return FAIL(env, IO, "cannot create folder '%s': %s", path, strerror(reason));
}

enum status dir_make(struct env *env, const char *path, struct dir_made *made)
{
    char *part;
    size_t bytes = strlen(path);
    enum status st = STATUS_OK;
    *made = (struct dir_made){0};
    TRY(mem_strdup(env, path, &part));
    for (size_t i = 1; i <= bytes && st == STATUS_OK; i++) {
        bool is_new;
        if (path[i] != '/' && path[i] != '\0')
            continue;
        part[i] = '\0';
        st = make_folder(env, part, &is_new);
        part[i] = path[i];
        if (is_new && made->first == 0)
            made->first = i;
        if (is_new)
            made->last = i;
    }
    mem_free(env, part);
    if (bytes == 0)
        return FAIL(env, IO, "cannot create a folder without a name");
    return st;
}

void dir_unmake(struct env *env, const char *path, const struct dir_made *made)
{
    char *part;
    if (made->first == 0 || mem_strdup(env, path, &part) != STATUS_OK)
        return;
    for (size_t i = made->last; i >= made->first; i--) {
        if (path[i] != '/' && path[i] != '\0')
            continue;
        part[i] = '\0';
        if (!output_remove_at(env, AT_FDCWD, part, true))
            break;
    }
    mem_free(env, part);
}

enum status dir_create(struct env *env, const char *path)
{
    struct dir_made made;
    return dir_make(env, path, &made);
}

enum status dir_sync(struct env *env, const char *path)
{
    int fd;
    bool synced = output_open(env, path, O_RDONLY | O_DIRECTORY, &fd) && output_sync(env, fd);
    int reason = errno;
    if (fd >= 0)
        close(fd);
    if (synced || reason == EACCES) /* a folder without read permission cannot be synced */
        return STATUS_OK;
    return FAIL(env, IO, "cannot sync folder '%s': %s", path, strerror(reason));
}

enum status dir_sync_parent(struct env *env, const char *path)
{
    char *folder;
    TRY(path_parent(env, path, &folder));
    enum status st = dir_sync(env, folder);
    mem_free(env, folder);
    return st;
}

/* Does the error of a system call mean that there is no such file? */
static bool means_missing(int error)
{
    return error == ENOENT || error == ENOTDIR || error == EACCES || error == ELOOP ||
           error == ENAMETOOLONG;
}

enum status file_find(struct env *env, const char *path, bool *found)
{
    struct stat info;
    char reason[128];
    *found = input_stat(env, path, &info);
    if (*found || means_missing(errno))
        return STATUS_OK;
    return FAIL(env, IO, "cannot look at '%s': %s", path,
                input_reason(errno, reason, sizeof reason));
}

bool file_exists(const char *path)
{
    struct stat info;
    return input_stat(NULL, path, &info) || !means_missing(errno);
}

struct search {
    const char *name;
    size_t bytes;
    bool found;
};

static void compare_name(void *user, const char *name)
{
    struct search *search = user;
    search->found |=
        strlen(name) == search->bytes && memcmp(name, search->name, search->bytes) == 0;
}

bool file_is_missing(struct env *env, const char *folder, const char *name)
{
    char inside[PATH_MAX];
    const char *slash = strchr(name, '/');
    struct search search = {.name = name, .bytes = slash ? (size_t)(slash - name) : strlen(name)};
    struct stat info;
    if (!input_list(env, folder, compare_name, &search))
        return false;
    if (!search.found || !slash)
        return !search.found;
    int bytes = snprintf(inside, sizeof inside, "%s/%.*s", folder, (int)search.bytes, name);
    if (bytes < 0 || (size_t)bytes >= sizeof inside || !input_stat(env, inside, &info))
        return false;
    return !S_ISDIR(info.st_mode) || file_is_missing(env, inside, slash + 1);
}

bool path_is_free(const char *path)
{
    struct stat info;
    return lstat(path, &info) != 0;
}

bool path_is_link(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0 && S_ISLNK(info.st_mode);
}

bool file_is_at(int fd, int folder, const char *name)
{
    struct stat named, open_file;
    return fstatat(folder, name, &named, AT_SYMLINK_NOFOLLOW) == 0 && fstat(fd, &open_file) == 0 &&
           named.st_ino == open_file.st_ino && named.st_dev == open_file.st_dev;
}

static void count_name(void *user, const char *name)
{
    (void)name;
    ++*(int *)user;
}

bool dir_is_empty(struct env *env, const char *path)
{
    int entries = 0;
    if (!input_list(env, path, count_name, &entries))
        return errno == ENOENT;
    errno = 0;
    return entries == 0;
}

enum status path_join(struct env *env, const char *folder, const char *name, char **path)
{
    size_t folder_bytes = strlen(folder), bytes = folder_bytes + strlen(name) + 2;
    bool bare = folder_bytes == 0 || folder[folder_bytes - 1] == '/';
    TRY(mem_alloc(env, MEM_OTHER, "path", bytes, path));
    snprintf(*path, bytes, "%s%s%s", folder, bare ? "" : "/", name);
    return STATUS_OK;
}

enum status path_parent(struct env *env, const char *path, char **folder)
{
    const char *slash = strrchr(path, '/');
    TRY(mem_strdup(env, slash ? path : ".", folder));
    if (slash)
        (*folder)[slash == path ? 1 : slash - path] = 0;
    return STATUS_OK;
}

static int compare_paths(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static enum status copy_paths(struct env *env, char *const *paths, size_t count,
                              struct path_list *list)
{
    enum status st;
    TRY(mem_alloc_array(env, MEM_OTHER, "path list", count, sizeof *list->paths, &list->paths));
    for (; (size_t)list->count < count; list->count++)
        TRY_OR(undo_list, mem_strdup(env, paths[list->count], &list->paths[list->count]));
    qsort(list->paths, count, sizeof *list->paths, compare_paths);
    return STATUS_OK;
undo_list:
    path_list_free(env, list);
    return st;
}

enum status path_glob(struct env *env, const char *pattern, struct path_list *list)
{
    *list = (struct path_list){0};
    if (file_exists(pattern)) /* a file name may contain wildcard characters */
        return copy_paths(env, (char *const[]){(char *)pattern}, 1, list);
    glob_t found;
    if (!input_glob(env, pattern, &found))
        return fail_reading(env, "read the folders of", pattern);
    enum status st = found.gl_pathc > 0 ? copy_paths(env, found.gl_pathv, found.gl_pathc, list)
                                        : FAIL(env, IO, "no file matches '%s'", pattern);
    globfree(&found);
    return st;
}

void path_list_free(struct env *env, struct path_list *list)
{
    for (int i = 0; i < list->count; i++)
        mem_free(env, list->paths[i]);
    mem_free(env, list->paths);
    *list = (struct path_list){0};
}
