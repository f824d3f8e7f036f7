#include "cli/page/line_tail.h"
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/file.h"
#include "base/input.h"

/* The lines in `block`; returns the bytes up to the last newline. */
static size_t pass_lines(struct line_tail *tail, char *block, size_t bytes, line_tail_fn *line,
                         void *user)
{
    size_t at = 0;
    char *newline;
    while ((newline = memchr(block + at, '\n', bytes - at)) != NULL) {
        size_t length = (size_t)(newline - (block + at));
        *newline = 0;
        if (!tail->skipping && length > 0)
            line(user, block + at, length);
        tail->skipping = false;
        at += length + 1;
    }
    return at;
}

static bool read_open(struct env *env, struct line_tail *tail, int fd, char *block,
                      line_tail_fn *line, void *user)
{
    off_t before = tail->done;
    ssize_t bytes;
    while ((bytes = input_read_at(env, fd, (uint64_t)tail->done, block, LINE_TAIL_BYTES)) > 0) {
        size_t used = pass_lines(tail, block, (size_t)bytes, line, user);
        if (used == 0 && bytes < LINE_TAIL_BYTES) /* still being written */
            break;
        tail->long_lines += used == 0 && !tail->skipping;
        tail->skipping = tail->skipping || used == 0;
        tail->done += used > 0 ? (off_t)used : bytes;
    }
    return tail->done != before;
}

static size_t read_last(struct env *env, const struct line_tail *tail, int fd,
                        char last[sizeof tail->last])
{
    off_t bytes = tail->done < (off_t)sizeof tail->last ? tail->done : (off_t)sizeof tail->last;
    ssize_t got = input_read_at(env, fd, (uint64_t)(tail->done - bytes), last, (size_t)bytes);
    return got > 0 ? (size_t)got : 0;
}

/* Whether the file still has, where it was read last, what was read. */
static bool continues(struct env *env, const struct line_tail *tail, int fd)
{
    char last[sizeof tail->last] = {0};
    size_t bytes = read_last(env, tail, fd, last);
    return memcmp(last, tail->last, bytes) == 0;
}

bool line_tail_read(struct env *env, struct line_tail *tail, line_tail_fn *line,
                    void (*restart)(void *user), void *user)
{
    struct stat info;
    uint64_t bytes;
    char *block;
    int fd;
    if (stat(tail->path, &info) != 0 || !S_ISREG(info.st_mode))
        return false;
    bool same = info.st_dev == tail->device && info.st_ino == tail->inode;
    if (same && info.st_size == tail->done)
        return false;
    if (mem_alloc(env, MEM_OTHER, "lines", LINE_TAIL_BYTES, &block) != STATUS_OK)
        return false;
    bool read = false;
    if (file_open(env, tail->path, &fd, &bytes) == STATUS_OK) {
        if (!same || info.st_size < tail->done || !continues(env, tail, fd)) {
            if (tail->done > 0)
                restart(user);
            tail->device = info.st_dev;
            tail->inode = info.st_ino;
            tail->done = 0;
            tail->skipping = false;
            tail->long_lines = 0;
        }
        read = read_open(env, tail, fd, block, line, user);
        memset(tail->last, 0, sizeof tail->last);
        read_last(env, tail, fd, tail->last);
        close(fd);
    }
    mem_free(env, block);
    return read;
}
