/* part_file -- pwrite to a temporary file, then rename.
 *
 * Invariants: `path` is untouched until commit renames; after any failure no file of ours stays on
 * the disk; only a file that is proven to be ours is removed.
 *
 * A leftover is removed while holding its lock. So a new temporary file is valid only if its name
 * still refers to it once its writer has the lock; otherwise another process has removed it as a
 * leftover in between.
 */
#include "base/file.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/output.h"
#include "base/text.h"

enum { ATTEMPTS = 1000, NAME_BYTES = 200 }; /* bytes of the target's name in the temporary name */

struct part_file {
    struct env *env; /* borrowed */
    char *path;
    struct text partial; /* path of the temporary file */
    int fd;              /* -1 = closed */
    int hold;            /* a duplicate of fd that keeps the lock until the rename; -1 = none */
};

/* --- leftovers ------------------------------------------------------------------------------ */

/* ".NAME.PID-N.tmp" */
static bool is_temporary(const char *entry, const char *name)
{
    static const char digits[] = "0123456789";
    size_t bytes = strnlen(name, NAME_BYTES);
    if (entry[0] != '.' || strncmp(entry + 1, name, bytes) != 0 || entry[1 + bytes] != '.')
        return false;
    const char *pid = entry + 2 + bytes, *dash = pid + strspn(pid, digits);
    if (dash == pid || *dash != '-')
        return false;
    const char *end = dash + 1 + strspn(dash + 1, digits);
    return end > dash + 1 && strcmp(end, ".tmp") == 0;
}

static void remove_left(struct env *env, int folder, const char *entry)
{
    struct stat info;
    int fd = openat(folder, entry, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return;
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && flock(fd, LOCK_EX | LOCK_NB) == 0 &&
        file_is_at(fd, folder, entry) && !output_remove_at(env, folder, entry, false))
        log_debug(env, "cannot remove the leftover '%s': %s", entry, strerror(errno));
    close(fd);
}

static void clear_left(struct env *env, const char *folder, const char *name)
{
    DIR *dir = opendir(folder);
    if (!dir)
        return;
    for (const struct dirent *entry; (entry = readdir(dir));)
        if (is_temporary(entry->d_name, name))
            remove_left(env, dirfd(dir), entry->d_name);
    closedir(dir);
}

/* --- the file ------------------------------------------------------------------------------- */

static enum status open_new(struct part_file *file, const char *folder, const char *name)
{
    struct env *env = file->env;
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        text_clear(&file->partial);
        text_printf(&file->partial, "%s/.%.*s.%ld-%d.tmp", folder, NAME_BYTES, name, (long)getpid(),
                    attempt);
        TRY(file->partial.status);
        if (!output_open(env, text_string(&file->partial), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW,
                         &file->fd)) {
            if (errno == EEXIST)
                continue;
            break;
        }
        /* It may have been removed in between. On a file system without locks it is valid, too. */
        bool taken = flock(file->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
        if (!taken && file_is_at(file->fd, AT_FDCWD, text_string(&file->partial)))
            return STATUS_OK;
        close(file->fd);
        file->fd = -1;
    }
    return FAIL(env, IO, "cannot write '%s': %s", file->path, strerror(errno));
}

static enum status open_temporary(struct part_file *file)
{
    char *folder;
    const char *slash = strrchr(file->path, '/'), *name = slash ? slash + 1 : file->path;
    TRY(path_parent(file->env, file->path, &folder));
    clear_left(file->env, folder, name);
    enum status st = open_new(file, folder, name);
    mem_free(file->env, folder);
    return st;
}

enum status part_file_create(struct env *env, const char *path, struct part_file **file)
{
    struct part_file *f;
    enum status st;
    TRY(mem_alloc(env, MEM_OTHER, "part file", sizeof *f, &f));
    *f = (struct part_file){.env = env, .fd = -1, .hold = -1};
    text_init(&f->partial, env);
    TRY_OR(undo_self, mem_strdup(env, path, &f->path));
    TRY_OR(undo_self, open_temporary(f));
    f->hold = fcntl(f->fd, F_DUPFD_CLOEXEC, 0);
    if (f->hold < 0) {
        st = FAIL(env, IO, "cannot write '%s': %s", path, strerror(errno));
        goto undo_self;
    }
    *file = f;
    return STATUS_OK;
undo_self:
    part_file_destroy(f);
    return st;
}

void part_file_destroy(struct part_file *file)
{
    if (!file)
        return;
    struct env *env = file->env;
    int fd = file->hold >= 0 ? file->hold : file->fd;
    const char *partial = text_string(&file->partial);
    if (fd >= 0 && file_is_at(fd, AT_FDCWD, partial)) /* it still has its temporary name */
        output_remove_at(env, AT_FDCWD, partial, false);
    if (file->fd >= 0)
        close(file->fd);
    if (file->hold >= 0)
        close(file->hold);
    text_free(&file->partial);
    mem_free(env, file->path);
    mem_free(env, file);
}

/* --- writing -------------------------------------------------------------------------------- */

enum status part_file_reserve(struct part_file *file, uint64_t bytes)
{
    if (output_reserve(file->env, file->fd, bytes))
        return STATUS_OK;
    return FAIL(file->env, IO, "cannot reserve %llu bytes for '%s': %s", (unsigned long long)bytes,
                file->path, strerror(errno));
}

static enum status fail_write(struct part_file *file)
{
    return FAIL(file->env, IO, "cannot write '%s': %s", file->path, strerror(errno));
}

enum status part_file_write(struct part_file *file, uint64_t at, const void *data, size_t bytes)
{
    bool done = output_write_at(file->env, file->fd, at, data, bytes);
    return done ? STATUS_OK : fail_write(file);
}

static enum status sync_file(struct part_file *file)
{
    return output_sync(file->env, file->fd) ? STATUS_OK : fail_write(file);
}

enum status part_file_commit(struct part_file *file)
{
    TRY(sync_file(file));
    bool closed = output_close(file->env, file->fd);
    file->fd = -1;
    if (!closed || !output_rename(file->env, text_string(&file->partial), file->path))
        return fail_write(file);
    return dir_sync_parent(file->env, file->path);
}

/* --- whole files ---------------------------------------------------------------------------- */

enum status file_write_atomic(struct env *env, const char *path, const void *data, size_t bytes)
{
    struct part_file *file;
    TRY(part_file_create(env, path, &file));
    enum status st = part_file_write(file, 0, data, bytes);
    if (st == STATUS_OK)
        st = part_file_commit(file);
    part_file_destroy(file);
    return st;
}

enum status file_write_text(struct env *env, const char *path, const struct text *text)
{
    TRY(text->status);
    return file_write_atomic(env, path, text_string(text), text->bytes);
}

enum status file_check_parent(struct env *env, const char *path)
{
    static const char some[4096];
    struct part_file *file;
    if (dir_exists(path))
        return FAIL(env, IO, "cannot write '%s': it is a folder", path);
    TRY(part_file_create(env, path, &file));
    enum status st = part_file_write(file, 0, some, sizeof some);
    if (st == STATUS_OK)
        st = sync_file(file);
    part_file_destroy(file);
    return st;
}
