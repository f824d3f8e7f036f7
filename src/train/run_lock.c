/* run_lock -- see the header. The file is removed by who holds the lock; so a lock counts only when
 * the name still leads to the file that was locked, and is taken again otherwise. */
#include "train/run_lock.h"
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"

enum { HOST_BYTES = 65 }; /* the system's limit, and the end */

struct run_lock {
    struct env *env; /* borrowed */
    char *path;
    int fd; /* -1: not open */
};

/* "12 host\n", or "12\n" of the first versions, or nothing, or the zeros that a crash of the machine may
 * leave: another file of this name is somebody's. The text has a zero behind its bytes. */
static bool is_owner(const char *text, size_t bytes)
{
    size_t end = strspn(text, "0123456789");
    if (end > 0 && text[end] == ' ')
        end += 1 + strcspn(text + end + 1, " \n");
    bool zeros = memcmp(text, text + 1, bytes) == 0;
    return zeros || (end > 0 && text[end] == '\n' && end + 1 == bytes);
}

/* A run would write its owner into it, and remove it in the end. */
static enum status refuse_other(struct env *env, const char *folder, int fd)
{
    char text[HOST_BYTES + 32] = "";
    ssize_t bytes = pread(fd, text, sizeof text - 1, 0);
    if (bytes < 0 || is_owner(text, (size_t)bytes))
        return STATUS_OK;
    return FAIL(env, CONFIG,
                "there is a 'lock' in '%s' that is not of a run, and nothing is overwritten; "
                "choose another folder with --out",
                folder);
}

/* Who it is, is for people, and may be missing. */
static enum status refuse(struct env *env, const char *folder, int fd)
{
    char text[HOST_BYTES + 32] = "", host[HOST_BYTES] = "", who[HOST_BYTES + 64] = "";
    int pid = 0;
    ssize_t bytes = pread(fd, text, sizeof text - 1, 0);
    if (bytes > 0)
        sscanf(text, "%d %64s", &pid, host);
    if (pid > 0)
        snprintf(who, sizeof who, " (process %d%s%s)", pid, *host ? " on " : "", host);
    return FAIL(env, CONFIG,
                "another run is writing to '%s'%s; choose another folder with --out, or stop that "
                "run first",
                folder, who);
}

/* A shared lock is enough to see: over NFS a file that was opened for reading gets no other, and two
 * that look at the same time do not see each other. */
static bool is_taken(int fd)
{
    return flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

/* Does the name still lead to the open file? */
static bool is_current(const struct run_lock *lock)
{
    struct stat named, open_file;
    return stat(lock->path, &named) == 0 && fstat(lock->fd, &open_file) == 0 &&
           named.st_ino == open_file.st_ino && named.st_dev == open_file.st_dev;
}

enum status run_lock_check(struct env *env, const char *folder)
{
    char *path;
    enum status st = STATUS_OK;
    TRY(path_join(env, folder, "lock", &path));
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0)
        st = refuse_other(env, folder, fd);
    if (fd >= 0 && st == STATUS_OK && is_taken(fd))
        st = refuse(env, folder, fd);
    if (fd >= 0)
        close(fd);
    mem_free(env, path);
    return st;
}

static enum status lock_file(struct run_lock *lock, const char *folder)
{
    do {
        if (lock->fd >= 0)
            close(lock->fd);
        lock->fd = open(lock->path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (lock->fd < 0)
            return FAIL(lock->env, IO, "cannot open '%s': %s", lock->path, strerror(errno));
        if (flock(lock->fd, LOCK_EX | LOCK_NB) != 0) {
            if (errno == EWOULDBLOCK)
                return refuse(lock->env, folder, lock->fd);
            log_warn(lock->env, "cannot lock '%s': %s; see that no other run writes to this folder",
                     lock->path, strerror(errno));
        }
    } while (!is_current(lock));
    return refuse_other(lock->env, folder, lock->fd);
}

/* For people; the lock holds without it. */
static void write_owner(const struct run_lock *lock)
{
    char text[HOST_BYTES + 32], host[HOST_BYTES] = "";
    if (gethostname(host, sizeof host - 1) != 0)
        *host = '\0';
    int bytes = snprintf(text, sizeof text, "%d %s\n", (int)getpid(), host);
    if (ftruncate(lock->fd, 0) != 0 || pwrite(lock->fd, text, (size_t)bytes, 0) != bytes)
        log_debug(lock->env, "cannot write '%s': %s", lock->path, strerror(errno));
}

enum status run_lock_take(struct env *env, const char *folder, struct run_lock **lock)
{
    struct run_lock *l;
    enum status st;
    TRY(mem_alloc(env, MEM_OTHER, "run lock", sizeof *l, &l));
    *l = (struct run_lock){.env = env, .fd = -1};
    TRY_OR(undo_lock, path_join(env, folder, "lock", &l->path));
    TRY_OR(undo_file, lock_file(l, folder));
    write_owner(l);
    *lock = l;
    return STATUS_OK;
undo_file:
    if (l->fd >= 0)
        close(l->fd);
    mem_free(env, l->path);
undo_lock:
    mem_free(env, l);
    return st;
}

void run_lock_release(struct run_lock *lock)
{
    if (!lock)
        return;
    if (is_current(lock))
        unlink(lock->path);
    close(lock->fd);
    mem_free(lock->env, lock->path);
    mem_free(lock->env, lock);
}
