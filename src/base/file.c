/* file -- whole files, folders and globs over POSIX calls.
 *
 * Short transfers and EINTR are dealt with here, so callers see a whole file or an error that names
 * it. An atomic write makes a temporary file beside its goal (`.NAME.PID-N.tmp`) and removes it
 * when anything fails: the goal is the old file or the new one, never a piece.
 */
#include "base/file.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file_guard.h"
#include "base/output.h"
#include "base/text.h"

static int open_again(const char *path, int flags, mode_t mode)
{
    int fd;
    do
        fd = open(path, flags | O_CLOEXEC, mode);
    while (fd < 0 && errno == EINTR);
    return fd;
}

/* --- reading -------------------------------------------------------------------------------- */

static enum status open_for_reading(struct env *env, const char *path, int flags, int *fd,
                                    struct stat *info)
{
    *fd = open_again(path, O_RDONLY | flags, 0);
    if (*fd < 0)
        return FAIL(env, IO, "cannot open '%s': %s", path, strerror(errno));
    if (fstat(*fd, info) == 0 && !S_ISDIR(info->st_mode))
        return STATUS_OK;
    const char *reason = S_ISDIR(info->st_mode) ? "it is a folder" : strerror(errno);
    close(*fd);
    return FAIL(env, IO, "cannot read '%s': %s", path, reason);
}

enum status file_map_open(struct env *env, const char *path, struct file_map *map)
{
    int fd;
    struct stat info = {0};
    *map = (struct file_map){0};
    /* the opening of a pipe would wait for somebody who writes to it */
    TRY(open_for_reading(env, path, O_NONBLOCK, &fd, &info));
    if (!S_ISREG(info.st_mode)) {
        close(fd);
        return FAIL(env, IO, "cannot map '%s': it is not a plain file", path);
    }
    void *data = NULL;
    if (info.st_size > 0)
        data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, fd, 0);
    int reason = errno;
    close(fd);
    if (data == MAP_FAILED)
        return FAIL(env, IO, "cannot map '%s': %s", path, strerror(reason));
    *map = (struct file_map){.data = data, .bytes = (size_t)info.st_size};
    if (data == NULL || (map->guard = file_guard_add(data, &info)) != NULL)
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
    /* Up to the end of a page that is still there a file that was cut reads as zeros: ask. */
    bool known = stat(path, &now) == 0 && now.st_dev == news.device && now.st_ino == news.inode;
    if (known && (size_t)now.st_size < news.bytes)
        return FAIL(env, IO,
                    "cannot read '%s': it was cut from %zu to %lld bytes while it was in use; "
                    "restore it and run the same command again",
                    path, news.bytes, (long long)now.st_size);
    if (news.failed)
        return FAIL(env, IO,
                    "cannot read '%s' from byte %zu on: its device failed, or the file was cut, "
                    "while it was in use",
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

/* Read `fd` to its end into *text, which has `room` bytes and grows; a file may be longer than it
 * said. */
static enum status read_to_end(struct env *env, int fd, const char *path, size_t limit, size_t room,
                               char **text, size_t *bytes)
{
    for (*bytes = 0;;) {
        if (*bytes + 1 >= room)
            TRY(mem_resize(env, text, room *= 2));
        ssize_t got = read(fd, *text + *bytes, room - *bytes - 1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return FAIL(env, IO, "cannot read '%s': %s", path, strerror(errno));
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
    TRY(open_for_reading(env, path, 0, &fd, &info));
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

/* --- writing -------------------------------------------------------------------------------- */

bool dir_exists(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* The folder part of `path`, or "." */
static enum status folder_of(struct env *env, const char *path, char **folder)
{
    const char *slash = strrchr(path, '/');
    TRY(mem_strdup(env, slash ? path : ".", folder));
    if (slash)
        (*folder)[slash == path ? 1 : slash - path] = 0;
    return STATUS_OK;
}

/* Make a new file beside `path`; the name is ours alone (O_EXCL), whatever other ranks and threads
 * do. */
static enum status open_beside(struct env *env, const char *path, const char *folder,
                               struct text *name, int *fd)
{
    const char *slash = strrchr(path, '/');
    for (int attempt = 0; attempt < 1000; attempt++) {
        text_clear(name);
        text_printf(name, "%s/.%s.%ld-%d.tmp", folder, slash ? slash + 1 : path, (long)getpid(),
                    attempt);
        TRY(name->status);
        if (output_open(env, text_string(name), O_WRONLY | O_CREAT | O_EXCL, fd))
            return STATUS_OK;
        if (errno != EEXIST)
            break;
    }
    return FAIL(env, IO, "cannot write '%s': %s", path, strerror(errno));
}

/* Fill the temporary file and move it over `path`; false with errno, and the file is gone. */
static bool fill_and_rename(struct env *env, int fd, const char *name, const char *path,
                            const void *data, size_t bytes)
{
    bool written = output_write(env, fd, data, bytes) && output_sync(env, fd);
    int reason = errno;
    if (!output_close(env, fd) && written) {
        written = false;
        reason = errno;
    }
    if (written && output_rename(env, name, path))
        return true;
    if (written)
        reason = errno;
    unlink(name);
    errno = reason;
    return false;
}

enum status file_write_atomic(struct env *env, const char *path, const void *data, size_t bytes)
{
    enum status st;
    char *folder;
    struct text name;
    int fd;
    text_init(&name, env);
    TRY(folder_of(env, path, &folder));
    TRY_OR(undo_names, open_beside(env, path, folder, &name, &fd));
    if (!fill_and_rename(env, fd, text_string(&name), path, data, bytes)) {
        st = FAIL(env, IO, "cannot write '%s': %s", path, strerror(errno));
        goto undo_names;
    }
    st = dir_sync(env, folder);
undo_names:
    text_free(&name);
    mem_free(env, folder);
    return st;
}

enum status file_write_text(struct env *env, const char *path, const struct text *text)
{
    TRY(text->status);
    return file_write_atomic(env, path, text_string(text), text->bytes);
}

enum status file_check_place(struct env *env, const char *path)
{
    char *folder;
    struct text name;
    int fd;
    if (dir_exists(path))
        return FAIL(env, IO, "cannot write '%s': it is a folder", path);
    text_init(&name, env);
    TRY(folder_of(env, path, &folder));
    enum status st = open_beside(env, path, folder, &name, &fd);
    if (st == STATUS_OK) {
        output_close(env, fd);
        unlink(text_string(&name));
    }
    text_free(&name);
    mem_free(env, folder);
    return st;
}

/* --- folders and paths ---------------------------------------------------------------------- */

static enum status make_folder(struct env *env, const char *path)
{
    if (output_mkdir(env, path))
        return STATUS_OK;
    int reason = errno;
    if (dir_exists(path))
        return STATUS_OK;
    return FAIL(env, IO, "cannot create folder '%s': %s", path, strerror(reason));
}

enum status dir_create(struct env *env, const char *path)
{
    char *part;
    TRY(mem_strdup(env, path, &part));
    enum status st = STATUS_OK;
    for (size_t i = 1; path[0] && path[i] && st == STATUS_OK; i++) {
        if (path[i] != '/')
            continue;
        part[i] = 0;
        st = make_folder(env, part);
        part[i] = '/';
    }
    mem_free(env, part);
    return st == STATUS_OK ? make_folder(env, path) : st;
}

enum status dir_sync(struct env *env, const char *path)
{
    int fd;
    bool synced = output_open(env, path, O_RDONLY | O_DIRECTORY, &fd) && output_sync(env, fd);
    int reason = errno;
    if (fd >= 0)
        close(fd);
    return synced ? STATUS_OK
                  : FAIL(env, IO, "cannot sync folder '%s': %s", path, strerror(reason));
}

bool file_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

bool dir_is_empty(const char *path)
{
    DIR *dir = opendir(path);
    if (!dir)
        return errno == ENOENT;
    int entries = 0;
    for (const struct dirent *entry; (entry = readdir(dir));)
        entries += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(dir);
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
    if (file_exists(pattern)) /* a name that holds wildcard characters is still a name */
        return copy_paths(env, (char *const[]){(char *)pattern}, 1, list);
    glob_t found = {0};
    enum status st;
    switch (glob(pattern, GLOB_NOSORT, NULL, &found)) {
    case 0: st = copy_paths(env, found.gl_pathv, found.gl_pathc, list); break;
    case GLOB_NOMATCH: st = FAIL(env, IO, "no file matches '%s'", pattern); break;
    case GLOB_NOSPACE:
        st = FAIL(env, MEMORY, "out of memory for the files of '%s'", pattern);
        break;
    default: st = FAIL(env, IO, "cannot read the folders of '%s'", pattern); break;
    }
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
