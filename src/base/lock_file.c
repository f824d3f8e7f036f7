/* lock_file -- flock on a file that its holder removes. So a lock is valid only if `path` still
 * names the locked file; otherwise locking is retried. */
#include "base/lock_file.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/input.h"

enum { HOST_BYTES = 65, OWNER_BYTES = HOST_BYTES + 32 }; /* the system's limit, and a NUL */
/* Each attempt lost to a holder that removed the file, or the file could not be checked. */
enum { ATTEMPTS = 1000 };

struct lock_file {
    struct env *env; /* borrowed */
    char *path;
    int fd; /* -1 = not open */
};

/* --- recognizing a lock file ---------------------------------------------------------------- */

/* The content is "12 host\n", "12\n" (first versions), empty, or zeros (after a machine crash). The
 * text is NUL-terminated. */
static bool is_owner(const char *text, size_t bytes)
{
    size_t end = strspn(text, "0123456789");
    if (end > 0 && text[end] == ' ')
        end += 1 + strcspn(text + end + 1, " \n");
    bool zeros = memcmp(text, text + 1, bytes) == 0;
    return zeros || (end > 0 && text[end] == '\n' && end + 1 == bytes);
}

/* *ours = it is a lock file. Returns false, with errno, when that cannot be determined. */
static bool look_at(struct env *env, int fd, bool *ours)
{
    struct stat info;
    char text[OWNER_BYTES] = "";
    *ours = false;
    if (fstat(fd, &info) != 0)
        return false;
    if (!S_ISREG(info.st_mode))
        return true;
    ssize_t bytes = input_read_at(env, fd, 0, text, sizeof text - 1);
    *ours = bytes >= 0 && is_owner(text, (size_t)bytes);
    return bytes >= 0;
}

static enum status refuse_other(struct env *env, const char *path, const struct lock_words *words)
{
    return FAIL(env, CONFIG, "'%s' is not a lock file of sifr, and nothing is overwritten; %s",
                path, words->advice);
}

/* Refuses an open file that is not a lock file. */
static enum status check_kind(struct env *env, const char *path, int fd,
                              const struct lock_words *words)
{
    char reason[128];
    bool ours;
    if (!look_at(env, fd, &ours))
        return FAIL(env, IO, "cannot read '%s': %s", path,
                    input_reason(errno, reason, sizeof reason));
    return ours ? STATUS_OK : refuse_other(env, path, words);
}

/* Process id and host are informational and may be missing. */
static enum status refuse(struct env *env, int fd, const struct lock_words *words)
{
    char text[OWNER_BYTES] = "", host[HOST_BYTES] = "", who[HOST_BYTES + 64] = "";
    int pid = 0;
    ssize_t bytes = input_read_at(env, fd, 0, text, sizeof text - 1);
    if (bytes > 0)
        sscanf(text, "%d %64s", &pid, host);
    if (pid > 0)
        snprintf(who, sizeof who, " (process %d%s%s)", pid, *host ? " on " : "", host);
    return FAIL(env, CONFIG, "another %s is writing to '%s'%s; %s, or stop that %s first",
                words->writer, words->output, who, words->advice, words->writer);
}

/* --- locking -------------------------------------------------------------------------------- */

enum status lock_file_check(struct env *env, const char *path, const struct lock_words *words)
{
    enum status st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (fd < 0)
        return errno == ELOOP ? refuse_other(env, path, words) : STATUS_OK;
    st = check_kind(env, path, fd, words);
    /* A shared lock is enough to detect a holder. On NFS, a file that is open read-only cannot be
     * locked exclusively; and two processes that check at the same time refuse neither. */
    if (st == STATUS_OK && flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        st = refuse(env, fd, words);
    close(fd);
    return st;
}

static enum status open_file(struct lock_file *lock, const struct lock_words *words)
{
    if (lock->fd >= 0)
        close(lock->fd);
    lock->fd = open(lock->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0666);
    if (lock->fd >= 0)
        return STATUS_OK;
    if (errno == ELOOP || errno == EISDIR || errno == ENXIO)
        return refuse_other(lock->env, lock->path, words);
    return FAIL(lock->env, IO, "cannot open '%s': %s", lock->path, strerror(errno));
}

static enum status hold(struct lock_file *lock, const struct lock_words *words)
{
    int reason = 0, attempt = 0; /* reason: errno when locks do not work here; 0 = locked */
    do {
        if (attempt++ == ATTEMPTS)
            return FAIL(lock->env, IO, "cannot lock '%s': cannot tell that it is still there",
                        lock->path);
        TRY(open_file(lock, words));
        reason = flock(lock->fd, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
        if (reason == EWOULDBLOCK)
            return refuse(lock->env, lock->fd, words);
    } while (!file_is_at(lock->fd, AT_FDCWD, lock->path));
    TRY(check_kind(lock->env, lock->path, lock->fd, words));
    if (reason != 0 && !words->quiet)
        log_warn(lock->env, "cannot lock '%s': %s; make sure that no other %s writes to '%s'",
                 lock->path, strerror(reason), words->writer, words->output);
    return STATUS_OK;
}

/* Informational; the lock is valid without it. */
static void write_owner(const struct lock_file *lock)
{
    char text[OWNER_BYTES], host[HOST_BYTES] = "";
    if (gethostname(host, sizeof host - 1) != 0)
        *host = '\0';
    int bytes = snprintf(text, sizeof text, "%d %s\n", (int)getpid(), host);
    if (ftruncate(lock->fd, 0) != 0 || pwrite(lock->fd, text, (size_t)bytes, 0) != bytes)
        log_debug(lock->env, "cannot write '%s': %s", lock->path, strerror(errno));
}

void lock_file_leave(struct lock_file *lock)
{
    if (!lock)
        return;
    if (lock->fd >= 0)
        close(lock->fd);
    mem_free(lock->env, lock->path);
    mem_free(lock->env, lock);
}

enum status lock_file_take(struct env *env, const char *path, const struct lock_words *words,
                           struct lock_file **lock)
{
    struct lock_file *l;
    enum status st;
    TRY(mem_alloc(env, MEM_OTHER, "lock file", sizeof *l, &l));
    *l = (struct lock_file){.env = env, .fd = -1};
    TRY_OR(undo_self, mem_strdup(env, path, &l->path));
    TRY_OR(undo_self, hold(l, words));
    write_owner(l);
    *lock = l;
    return STATUS_OK;
undo_self:
    lock_file_leave(l);
    return st;
}

bool lock_file_is_left(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (fd < 0)
        return false;
    bool ours, known = look_at(NULL, fd, &ours);
    bool left = known && ours && flock(fd, LOCK_SH | LOCK_NB) == 0;
    close(fd);
    return left;
}

enum status lock_file_moved(struct lock_file *lock, const char *path)
{
    char *copy;
    TRY(mem_strdup(lock->env, path, &copy));
    mem_free(lock->env, lock->path);
    lock->path = copy;
    return STATUS_OK;
}

void lock_file_release(struct lock_file *lock)
{
    if (lock && file_is_at(lock->fd, AT_FDCWD, lock->path))
        unlink(lock->path);
    lock_file_leave(lock);
}
