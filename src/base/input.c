/* input -- every system call in a loop that injects faults and retries transient errors. */
#include "base/input.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/clock.h"

enum { INTERRUPTS = 100 }; /* per call: EINTR is not an error, but a call must not loop forever */

struct tries {
    int failed, interrupted;
};

/* --- faults --------------------------------------------------------------------------------- */

static bool is_failed(struct env *env)
{
    struct input_faults *faults = env ? env->input_faults : NULL;
    if (!faults)
        return false;
    long long left = atomic_fetch_sub(&faults->left, 1);
    if (left > 1 || left <= 1 - faults->times)
        return false;
    errno = faults->error;
    return true;
}

/* --- retries -------------------------------------------------------------------------------- */

bool input_may_pass(int error)
{
    static const int passing[] = {EIO,       EREMOTEIO,    ETIMEDOUT,   ESTALE,       EAGAIN,
                                  EBUSY,     EINTR,        EMFILE,      ENFILE,       ENOMEM,
                                  ENOBUFS,   ECONNREFUSED, ECONNRESET,  ECONNABORTED, ENOTCONN,
                                  ENETDOWN,  ENETRESET,    ENETUNREACH, EHOSTDOWN,    EHOSTUNREACH,
                                  ESHUTDOWN, ECOMM,        ENOLINK};
    for (size_t i = 0; i < sizeof passing / sizeof *passing; i++)
        if (error == passing[i])
            return true;
    return false;
}

const char *input_reason(int error, char *out, size_t bytes)
{
    const char *words = strerror(error);
    if (input_may_pass(error))
        snprintf(out, bytes, "%s (tried %d times)", words, (int)INPUT_TRIES);
    else
        snprintf(out, bytes, "%s", words);
    return out;
}

/* After a failed call: pause, and return whether to retry it. Preserves errno. */
static bool again(const struct env *env, struct tries *tries)
{
    int error = errno;
    if (error == EINTR && tries->interrupted++ < INTERRUPTS)
        return true;
    if (!input_may_pass(error) || ++tries->failed >= INPUT_TRIES)
        return false;
    if (!env || !env->input_faults)
        clock_sleep(1e-3 * (INPUT_PAUSE_MS << 2 * (tries->failed - 1)));
    errno = error;
    return true;
}

/* --- calls ---------------------------------------------------------------------------------- */

bool input_stat(struct env *env, const char *path, struct stat *info)
{
    struct tries tries = {0};
    do {
        if (!is_failed(env) && stat(path, info) == 0)
            return true;
    } while (again(env, &tries));
    return false;
}

static bool open_once(struct env *env, const char *path, int *fd, struct stat *info)
{
    *fd = is_failed(env) ? -1 : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (*fd < 0)
        return false;
    int flags = fstat(*fd, info) == 0 ? fcntl(*fd, F_GETFL) : -1;
    if (flags >= 0 && fcntl(*fd, F_SETFL, flags & ~O_NONBLOCK) == 0)
        return true;
    int error = errno;
    close(*fd);
    *fd = -1;
    errno = error;
    return false;
}

bool input_open(struct env *env, const char *path, int *fd, struct stat *info)
{
    struct tries tries = {0};
    do {
        if (open_once(env, path, fd, info))
            return true;
    } while (again(env, &tries));
    return false;
}

ssize_t input_read(struct env *env, int fd, void *room, size_t bytes)
{
    struct tries tries = {0};
    ssize_t got;
    do
        got = is_failed(env) ? -1 : read(fd, room, bytes);
    while (got < 0 && again(env, &tries));
    return got;
}

ssize_t input_read_at(struct env *env, int fd, uint64_t at, void *room, size_t bytes)
{
    struct tries tries = {0};
    ssize_t got;
    do
        got = is_failed(env) ? -1 : pread(fd, room, bytes, (off_t)at);
    while (got < 0 && again(env, &tries));
    return got;
}

bool input_map(struct env *env, int fd, size_t bytes, void **data)
{
    struct tries tries = {0};
    do {
        *data = is_failed(env) ? MAP_FAILED : mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
        if (*data != MAP_FAILED)
            return true;
    } while (again(env, &tries));
    *data = NULL;
    return false;
}

static bool list_once(struct env *env, const char *folder, input_name_fn *name, void *user)
{
    DIR *dir = is_failed(env) ? NULL : opendir(folder);
    if (!dir)
        return false;
    for (;;) {
        errno = 0;
        const struct dirent *entry = is_failed(env) ? NULL : readdir(dir);
        if (!entry)
            break;
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            name(user, entry->d_name);
    }
    int error = errno;
    closedir(dir);
    errno = error;
    return error == 0;
}

bool input_list(struct env *env, const char *folder, input_name_fn *name, void *user)
{
    struct tries tries = {0};
    do {
        if (list_once(env, folder, name, user))
            return true;
    } while (again(env, &tries));
    return false;
}

/* --- globs ---------------------------------------------------------------------------------- */

static _Thread_local struct { /* glob's callbacks have no user argument */
    struct env *env;
    int error; /* the first error that hid names; 0 = none */
} globbing;

static void note_hidden(void)
{
    if (globbing.error == 0)
        globbing.error = errno;
}

static void *glob_open(const char *folder)
{
    DIR *dir = is_failed(globbing.env) ? NULL : opendir(folder);
    if (!dir && input_may_pass(errno))
        note_hidden();
    return dir;
}

static struct dirent *glob_read(void *dir)
{
    errno = 0;
    struct dirent *entry = is_failed(globbing.env) ? NULL : readdir(dir);
    if (!entry && errno != 0)
        note_hidden();
    return entry;
}

static void glob_close(void *dir)
{
    closedir(dir);
}

static int glob_stat(const char *path, struct stat *info)
{
    int result = is_failed(globbing.env) ? -1 : stat(path, info);
    if (result != 0 && input_may_pass(errno))
        note_hidden();
    return result;
}

static int glob_lstat(const char *path, struct stat *info)
{
    int result = is_failed(globbing.env) ? -1 : lstat(path, info);
    if (result != 0 && input_may_pass(errno))
        note_hidden();
    return result;
}

static bool glob_once(struct env *env, const char *pattern, glob_t *found)
{
    *found = (glob_t){.gl_opendir = glob_open,
                      .gl_readdir = glob_read,
                      .gl_closedir = glob_close,
                      .gl_stat = glob_stat,
                      .gl_lstat = glob_lstat};
    globbing.env = env;
    globbing.error = 0;
    int code = glob(pattern, GLOB_NOSORT | GLOB_ALTDIRFUNC, NULL, found);
    int error = code == GLOB_NOSPACE ? ENOMEM : globbing.error;
    if (error == 0 && (code == 0 || code == GLOB_NOMATCH))
        return true;
    globfree(found);
    errno = error != 0 ? error : EIO;
    return false;
}

bool input_glob(struct env *env, const char *pattern, glob_t *found)
{
    struct tries tries = {0};
    do {
        if (glob_once(env, pattern, found))
            return true;
    } while (again(env, &tries));
    return false;
}
