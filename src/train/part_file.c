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
#include "base/output.h"

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
    if (!output_open(env, f->partial, O_WRONLY | O_CREAT | O_TRUNC, &f->fd)) {
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
    if (output_reserve(file->env, file->fd, bytes))
        return STATUS_OK;
    return FAIL(file->env, IO, "cannot reserve %llu bytes for '%s': %s", (unsigned long long)bytes,
                file->path, strerror(errno));
}

enum status part_file_write(struct part_file *file, uint64_t at, const void *data, size_t bytes)
{
    if (output_write_at(file->env, file->fd, at, data, bytes))
        return STATUS_OK;
    return FAIL(file->env, IO, "cannot write '%s': %s", file->partial, strerror(errno));
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
    if (!output_sync(env, file->fd))
        return FAIL(env, IO, "cannot write '%s': %s", file->partial, strerror(errno));
    bool closed = output_close(env, file->fd);
    file->fd = -1;
    if (!closed)
        return FAIL(env, IO, "cannot write '%s': %s", file->partial, strerror(errno));
    if (!output_rename(env, file->partial, file->path))
        return FAIL(env, IO, "cannot rename '%s' to '%s': %s", file->partial, file->path,
                    strerror(errno));
    file->committed = true;
    return folder_sync(env, file->path);
}
