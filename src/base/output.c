/* output -- each system call with an injected fault, retries of EINTR, and a note of a full
 * disk. */
#include "base/output.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include "base/progress.h"

/* --- faults --------------------------------------------------------------------------------- */

/* Whether the injected fault hits this call. */
static bool is_struck(const struct env *env)
{
    return env->faults && atomic_fetch_sub(&env->faults->left, 1) == 1;
}

/* For calls that cannot be short. */
static bool is_failed(const struct env *env)
{
    if (!is_struck(env) || env->faults->error == 0)
        return false;
    errno = env->faults->error;
    return true;
}

/* --- space ---------------------------------------------------------------------------------- */

static _Thread_local bool ran_out;

/* Remember lack of space; returns `done` unchanged. */
static bool noted(bool done)
{
    if (!done && (errno == ENOSPC || errno == EDQUOT))
        ran_out = true;
    return done;
}

bool output_ran_out(void)
{
    return ran_out;
}

void output_forget(void)
{
    ran_out = false;
}

/* Replace the path by its parent; false = it has none. */
static bool go_up(char *path)
{
    char *slash = strrchr(path, '/');
    if (strcmp(path, "/") == 0 || strcmp(path, ".") == 0)
        return false;
    if (slash == NULL)
        strcpy(path, ".");
    else
        slash[slash == path ? 1 : 0] = '\0';
    return true;
}

bool output_free(struct env *env, const char *path, uint64_t *bytes)
{
    struct statvfs disk;
    char folder[PATH_MAX];
    if (env->faults && env->faults->free_bytes)
        return env->faults->free_bytes(env->faults->user, path, bytes);
    if (*path == '\0' || strlen(path) >= sizeof folder)
        return false;
    strcpy(folder, path);
    while (statvfs(folder, &disk) != 0)
        if (errno != ENOENT || !go_up(folder))
            return false;
    *bytes = (uint64_t)disk.f_bavail * disk.f_frsize;
    return disk.f_blocks > 0; /* some file systems report no figures */
}

/* --- calls ---------------------------------------------------------------------------------- */

bool output_open(struct env *env, const char *path, int flags, int *fd)
{
    *fd = -1;
    if (is_failed(env))
        return noted(false);
    do
        *fd = open(path, flags | O_CLOEXEC, 0666);
    while (*fd < 0 && errno == EINTR);
    return noted(*fd >= 0);
}

/* at < 0: write at the current position. */
static bool write_all(struct env *env, int fd, int64_t at, const void *data, size_t bytes)
{
    const char *from = data;
    size_t most = bytes;
    if (is_struck(env)) {
        most = (bytes + 1) / 2;
        errno = env->faults->error;
        if (errno != 0)
            return false;
    }
    while (bytes > 0) {
        size_t part = bytes < most ? bytes : most;
        ssize_t done = at < 0 ? write(fd, from, part) : pwrite(fd, from, part, at);
        if (done < 0 && errno == EINTR)
            continue;
        if (done == 0)
            errno = EIO; /* avoid an endless loop */
        if (done <= 0)
            return false;
        progress_add(env);
        from += done;
        at += at < 0 ? 0 : done;
        bytes -= (size_t)done;
    }
    return true;
}

bool output_append(int fd, const void *data, size_t bytes)
{
    struct env calm = {0}; /* without faults */
    struct stat before;
    bool known = fstat(fd, &before) == 0 && S_ISREG(before.st_mode);
    if (write_all(&calm, fd, -1, data, bytes))
        return true;
    int error = errno;
    known = known && ftruncate(fd, before.st_size) == 0;
    errno = error; /* report the original error */
    return false;
}

bool output_write_at(struct env *env, int fd, uint64_t at, const void *data, size_t bytes)
{
    return noted(write_all(env, fd, (int64_t)at, data, bytes));
}

bool output_reserve(struct env *env, int fd, uint64_t bytes)
{
    int result;
    if (is_failed(env))
        return noted(false);
    if (bytes == 0)
        return true;
    do
        result = fallocate(fd, 0, 0, (off_t)bytes);
    while (result != 0 && errno == EINTR);
    if (result == 0)
        return true;
    return noted((errno == EOPNOTSUPP || errno == ENOSYS) && ftruncate(fd, (off_t)bytes) == 0);
}

bool output_sync(struct env *env, int fd)
{
    int result;
    if (is_failed(env))
        return noted(false);
    do
        result = fsync(fd);
    while (result < 0 && errno == EINTR);
    progress_add(env);
    return noted(result == 0 || errno == EINVAL); /* EINVAL: cannot be synced here */
}

bool output_close(struct env *env, int fd)
{
    bool failed = is_failed(env);
    int reason = errno;
    bool closed = close(fd) == 0 || errno == EINTR; /* closed even after EINTR */
    if (failed)
        errno = reason;
    return noted(closed && !failed);
}

bool output_rename(struct env *env, const char *from, const char *to)
{
    return noted(!is_failed(env) && rename(from, to) == 0);
}

bool output_rename_new(struct env *env, const char *from, const char *to)
{
    struct stat info;
    if (is_failed(env))
        return noted(false);
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0)
        return true;
    if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP)
        return noted(false);
    if (lstat(to, &info) == 0)
        errno = EEXIST;
    return noted(errno == ENOENT && rename(from, to) == 0);
}

bool output_mkdir(struct env *env, const char *path)
{
    return noted(!is_failed(env) && mkdir(path, 0777) == 0);
}

bool output_remove_at(struct env *env, int folder, const char *name, bool is_folder)
{
    return noted(!is_failed(env) && unlinkat(folder, name, is_folder ? AT_REMOVEDIR : 0) == 0);
}
