/* unnamed_file -- O_TMPFILE, or a name that is removed at once; O_DIRECT, or the page cache. */
#include "base/unnamed_file.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/file.h"
#include "base/input.h"
#include "base/output.h"
#include "base/printable.h"

/* --- creating ------------------------------------------------------------------------------- */

/* For file systems without O_TMPFILE. */
static enum status open_and_unlink(struct env *env, const char *folder, int *fd)
{
    char *path;
    TRY(path_join(env, folder, ".sifr-XXXXXX", &path));
    *fd = mkostemp(path, O_CLOEXEC);
    int reason = errno;
    if (*fd >= 0 && !output_remove_at(env, AT_FDCWD, path, false)) {
        reason = errno;
        close(*fd);
        *fd = -1;
    }
    mem_free(env, path);
    errno = reason;
    return STATUS_OK;
}

static enum status open_in(struct env *env, const char *folder, const char *what, int *fd)
{
    bool opened = output_open(env, folder, O_TMPFILE | O_RDWR, fd);
    /* EISDIR: a kernel or file system that does not know O_TMPFILE. */
    if (!opened && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL))
        TRY(open_and_unlink(env, folder, fd));
    if (*fd >= 0)
        return STATUS_OK;
    return FAIL(env, IO,
                "cannot create a file in '%s' for %s: %s; name an existing folder on a local disk "
                "that you may write to",
                folder, what, strerror(errno));
}

/* Where blocks cannot be reserved, the free space is at least enough at first. */
static enum status reserve(struct env *env, const char *folder, const char *what, uint64_t bytes,
                           int fd)
{
    uint64_t left = 0;
    char needed[32], free_space[32];
    bool known = output_free(env, folder, &left);
    errno = ENOSPC;
    if ((!known || bytes <= left) && output_reserve(env, fd, bytes))
        return STATUS_OK;
    int reason = errno;
    return FAIL(env, IO,
                "cannot reserve %s in '%s' for %s: %s; %s is free there: %s, name a folder on "
                "another disk, or keep less on disk",
                text_human_bytes(needed, (double)bytes), folder, what, strerror(reason),
                known ? text_human_bytes(free_space, (double)left) : "an unknown amount",
                reason == EFBIG ? "raise the limit of file sizes (ulimit -f)" : "free some space");
}

enum status unnamed_file_open(struct env *env, const char *folder, const char *what, uint64_t bytes,
                              struct unnamed_file *file)
{
    enum status st;
    *file = (struct unnamed_file){env, -1};
    TRY(open_in(env, folder, what, &file->fd));
    TRY_OR(undo_file, reserve(env, folder, what, bytes, file->fd));
    fcntl(file->fd, F_SETFL, O_DIRECT); /* no effect where O_DIRECT is not supported */
    return STATUS_OK;
undo_file:
    unnamed_file_close(file);
    return st;
}

/* What closing cannot write back is lost anyway. */
void unnamed_file_close(struct unnamed_file *file)
{
    if (file->fd >= 0)
        close(file->fd);
    file->fd = -1;
}

/* --- reading and writing -------------------------------------------------------------------- */

/* After a failed call: true = try again through the page cache. Some file systems refuse O_DIRECT
 * only now, or the call continued a short one in the middle of a block. */
static bool leave_direct(const struct unnamed_file *file)
{
    return errno == EINVAL && (fcntl(file->fd, F_GETFL) & O_DIRECT) &&
           fcntl(file->fd, F_SETFL, 0) == 0;
}

static void check_range(uint64_t at, const void *memory, size_t bytes)
{
    CHECK((at | (uintptr_t)memory | bytes) % UNNAMED_FILE_BLOCK == 0);
}

bool unnamed_file_read(const struct unnamed_file *file, uint64_t at, void *room, size_t bytes)
{
    check_range(at, room, bytes);
    for (size_t got = 0; got < bytes;) {
        ssize_t more =
            input_read_at(file->env, file->fd, at + got, (char *)room + got, bytes - got);
        if (more < 0 && leave_direct(file))
            continue;
        if (more == 0)
            errno = EIO; /* the file is longer than that */
        if (more <= 0)
            return false;
        got += (size_t)more;
    }
    return true;
}

bool unnamed_file_write(const struct unnamed_file *file, uint64_t at, const void *data,
                        size_t bytes)
{
    check_range(at, data, bytes);
    return output_write_at(file->env, file->fd, at, data, bytes) ||
           (leave_direct(file) && output_write_at(file->env, file->fd, at, data, bytes));
}
