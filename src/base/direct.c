/* direct -- a buffer in front of two descriptors of the same file. */
#include "base/direct.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/input.h"
#include "base/output.h"

enum { PROBES = 64 }; /* pages of a file that are checked for being cached */

static uint64_t block_at(uint64_t at)
{
    return at / DIRECT_BLOCK * DIRECT_BLOCK;
}

void *direct_align(void *memory)
{
    uintptr_t at = (uintptr_t)memory;
    return (char *)memory + (block_at(at + DIRECT_BLOCK - 1) - at);
}

/* --- writing -------------------------------------------------------------------------------- */

bool direct_open(struct env *env, const char *path, bool past_cache, void *room, size_t room_bytes,
                 struct direct *file)
{
    *file = (struct direct){
        .env = env, .cached = -1, .whole = -1, .room = room, .room_bytes = room_bytes};
    CHECK((uintptr_t)room % DIRECT_BLOCK == 0 && room_bytes % DIRECT_BLOCK == 0 && room_bytes > 0);
    if (!output_open(env, path, O_WRONLY, &file->cached))
        return false;
    if (!past_cache || output_open(env, path, O_WRONLY | O_DIRECT, &file->whole))
        return true;
    if (errno == EINVAL) /* no O_DIRECT here */
        return true;
    int reason = errno;
    direct_close(file);
    errno = reason;
    return false;
}

/* Write bytes begin .. end of the file from the buffer. */
static bool put(struct direct *file, int fd, uint64_t begin, uint64_t end)
{
    const char *from = file->room + (begin - block_at(file->begin));
    return begin >= end || output_write_at(file->env, fd, begin, from, (size_t)(end - begin));
}

static bool put_whole(struct direct *file, uint64_t begin, uint64_t end)
{
    if (file->whole >= 0 && put(file, file->whole, begin, end))
        return true;
    /* Some file systems refuse O_DIRECT only now. */
    return (file->whole < 0 || errno == EINVAL) && put(file, file->cached, begin, end);
}

/* Write the buffer out. */
static bool flush(struct direct *file)
{
    uint64_t begin = file->begin, end = file->end;
    uint64_t first = block_at(begin + DIRECT_BLOCK - 1), last = block_at(end);
    first = first < end ? first : end; /* the range may be in one block */
    last = last > first ? last : first;
    bool done = put(file, file->cached, begin, first) && put_whole(file, first, last) &&
                put(file, file->cached, last, end);
    file->begin = end;
    return done;
}

bool direct_write(struct direct *file, uint64_t at, const void *data, size_t bytes)
{
    const char *from = data;
    if (at != file->end) {
        if (!flush(file))
            return false;
        file->begin = file->end = at;
    }
    while (bytes > 0) {
        size_t used = (size_t)(file->end - block_at(file->begin)), left = file->room_bytes - used;
        size_t part = bytes < left ? bytes : left;
        memcpy(file->room + used, from, part);
        from += part;
        bytes -= part;
        file->end += part;
        if (part == left && !flush(file))
            return false;
    }
    return true;
}

bool direct_sync(struct direct *file)
{
    return flush(file) && output_sync(file->env, file->cached);
}

bool direct_close(struct direct *file)
{
    bool closed = true;
    int reason = 0;
    const int fds[] = {file->whole, file->cached};
    for (int i = 0; i < 2; i++)
        if (fds[i] >= 0 && !output_close(file->env, fds[i])) {
            closed = false;
            reason = errno;
        }
    file->cached = file->whole = -1;
    if (!closed)
        errno = reason;
    return closed;
}

/* --- reading -------------------------------------------------------------------------------- */

/* Whether more than half of the file is cached. For a file of another user mincore always says
 * yes. */
static bool is_cached(int fd)
{
    struct stat info;
    unsigned char there;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    int found = 0;
    if (fstat(fd, &info) != 0 || info.st_size <= 0)
        return true;
    char *map = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return true;
    for (uint64_t i = 0; i < PROBES; i++) {
        uint64_t at = (uint64_t)info.st_size / PROBES * i / page * page;
        found += mincore(map + at, page, &there) != 0 || (there & 1);
    }
    munmap(map, (size_t)info.st_size);
    return found > PROBES / 2;
}

void direct_past_cache(int fd)
{
    if (!is_cached(fd))
        fcntl(fd, F_SETFL, O_DIRECT); /* no effect where O_DIRECT is not supported */
}

ssize_t direct_read(struct env *env, int fd, uint64_t at, size_t bytes, void *room, void **data)
{
    uint64_t begin = block_at(at), end = block_at(at + bytes + DIRECT_BLOCK - 1);
    uint64_t before = at - begin, got = 0;
    while (got < before + bytes) {
        ssize_t more =
            input_read_at(env, fd, begin + got, (char *)room + got, (size_t)(end - begin - got));
        if (more < 0 && errno == EINVAL && (fcntl(fd, F_GETFL) & O_DIRECT)) {
            fcntl(fd, F_SETFL, 0); /* refused only now, or after a short read */
            continue;
        }
        if (more < 0)
            return -1;
        if (more == 0)
            break;
        got += (uint64_t)more;
    }
    *data = (char *)room + before;
    got = got > before ? got - before : 0;
    return (ssize_t)(got < bytes ? got : bytes);
}
