/* part_file.c -- pwrite to a name beside the real one, then rename.
 *
 * The invariant: until commit has renamed, `path` is untouched; after any failure nothing of ours
 * stays on the disk.
 */
#include "train/part_file.h"
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/file.h"

struct part_file {
    struct env *env; /* borrowed */
    char *path, *partial;
    int fd;
    bool committed;
};

static enum status names_create(struct env *env, const char *path, struct part_file *file)
{
    size_t bytes = strlen(path) + sizeof ".partial";
    TRY(mem_strdup(env, path, &file->path));
    TRY(mem_alloc(env, MEM_OTHER, "part file", bytes, &file->partial));
    snprintf(file->partial, bytes, "%s.partial", path);
    return STATUS_OK;
}

static void part_file_free(struct part_file *file)
{
    struct env *env = file->env;
    mem_free(env, file->partial);
    mem_free(env, file->path);
    mem_free(env, file);
}

enum status part_file_create(struct env *env, const char *path, struct part_file **file)
{
    struct part_file *f;
    enum status st;
    TRY(mem_alloc(env, MEM_OTHER, "part file", sizeof *f, &f));
    f->env = env;
    TRY_OR(undo_self, names_create(env, path, f));
    f->fd = open(f->partial, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (f->fd < 0) {
        st = FAIL(env, IO, "cannot create '%s': %s", f->partial, strerror(errno));
        goto undo_self;
    }
    *file = f;
    return STATUS_OK;
undo_self:
    part_file_free(f);
    return st;
}

void part_file_destroy(struct part_file *file)
{
    if (!file)
        return;
    if (file->fd >= 0)
        close(file->fd);
    if (!file->committed)
        unlink(file->partial);
    part_file_free(file);
}

enum status part_file_reserve(struct part_file *file, uint64_t bytes)
{
    if (bytes == 0 || fallocate(file->fd, 0, 0, (off_t)bytes) == 0)
        return STATUS_OK;
    /* Not every file system can reserve: then only the length is set. */
    if (errno == EOPNOTSUPP || errno == ENOSYS)
        if (ftruncate(file->fd, (off_t)bytes) == 0)
            return STATUS_OK;
    return FAIL(file->env, IO, "cannot reserve %llu bytes for '%s': %s", (unsigned long long)bytes,
                file->path, strerror(errno));
}

enum status part_file_write(struct part_file *file, uint64_t at, const void *data, size_t bytes)
{
    const char *from = data;
    while (bytes > 0) {
        ssize_t done = pwrite(file->fd, from, bytes, (off_t)at);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0) /* a disk that takes nothing would be asked for ever */
            return FAIL(file->env, IO, "cannot write '%s': %s", file->partial,
                        done < 0 ? strerror(errno) : "nothing was taken");
        from += done;
        at += (uint64_t)done;
        bytes -= (size_t)done;
    }
    return STATUS_OK;
}

static enum status folder_sync(struct env *env, char *path)
{
    char *slash = strrchr(path, '/');
    if (!slash)
        return dir_sync(env, ".");
    if (slash == path)
        return dir_sync(env, "/");
    *slash = 0;
    enum status st = dir_sync(env, path);
    *slash = '/';
    return st;
}

enum status part_file_commit(struct part_file *file)
{
    struct env *env = file->env;
    if (fsync(file->fd) != 0 && errno != EINVAL) /* EINVAL: a place that cannot be synced */
        return FAIL(env, IO, "cannot write '%s': %s", file->partial, strerror(errno));
    int closed = close(file->fd);
    file->fd = -1;
    if (closed != 0)
        return FAIL(env, IO, "cannot write '%s': %s", file->partial, strerror(errno));
    if (rename(file->partial, file->path) != 0)
        return FAIL(env, IO, "cannot rename '%s' to '%s': %s", file->partial, file->path,
                    strerror(errno));
    file->committed = true;
    return folder_sync(env, file->path);
}
