/* direct -- a buffer in front of two descriptors of the same file. */
#include "base/direct.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/input.h"
#include "base/output.h"
#include "base/progress.h"
#include "base/thread.h"

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

/* --- reading ahead -------------------------------------------------------------------------- */

struct range {
    int fd;
    uint64_t at;
    size_t bytes;
    void *room, *data;
    ssize_t got;
    int error;
};

/* A ring of ranges under one lock; each counter only grows. */
struct ahead {
    struct env *env; /* borrowed */
    void *memory;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t moved; /* a counter has changed */
    bool ending;
    uint64_t asked, read, taken;
    struct range ring[AHEAD_RANGES];
};

static struct range *range_at(struct ahead *ahead, uint64_t number)
{
    return &ahead->ring[number % AHEAD_RANGES];
}

static void *read_main(void *arg)
{
    struct ahead *ahead = arg;
    pthread_mutex_lock(&ahead->lock);
    for (;;) {
        while (ahead->read == ahead->asked && !ahead->ending)
            pthread_cond_wait(&ahead->moved, &ahead->lock);
        if (ahead->ending)
            break;
        struct range *range = range_at(ahead, ahead->read);
        pthread_mutex_unlock(&ahead->lock);
        range->got =
            direct_read(ahead->env, range->fd, range->at, range->bytes, range->room, &range->data);
        range->error = errno;
        progress_add(ahead->env);
        pthread_mutex_lock(&ahead->lock);
        ahead->read++;
        pthread_cond_broadcast(&ahead->moved);
    }
    pthread_mutex_unlock(&ahead->lock);
    return NULL;
}

enum status ahead_create(struct env *env, size_t most_bytes, struct ahead **ahead)
{
    size_t room = (most_bytes + DIRECT_BLOCK - 1) / DIRECT_BLOCK * DIRECT_BLOCK + 2 * DIRECT_BLOCK;
    struct ahead *a;
    enum status st;
    TRY(mem_alloc(env, MEM_OTHER, "read ahead", sizeof *a, &a));
    a->env = env;
    TRY_OR(undo_self,
           mem_alloc(env, MEM_OTHER, "read ahead", AHEAD_RANGES * room + DIRECT_BLOCK, &a->memory));
    for (int i = 0; i < AHEAD_RANGES; i++)
        a->ring[i].room = (char *)direct_align(a->memory) + (size_t)i * room;
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->moved, NULL);
    int error = thread_start(&a->thread, read_main, a);
    if (error != 0) {
        st =
            FAIL(env, MEMORY, "cannot start a reader thread: %s; check ulimit -u", strerror(error));
        goto undo_lock;
    }
    *ahead = a;
    return STATUS_OK;
undo_lock:
    pthread_cond_destroy(&a->moved);
    pthread_mutex_destroy(&a->lock);
    mem_free(env, a->memory);
undo_self:
    mem_free(env, a);
    return st;
}

void ahead_destroy(struct ahead *ahead)
{
    if (!ahead)
        return;
    pthread_mutex_lock(&ahead->lock);
    ahead->ending = true;
    pthread_cond_broadcast(&ahead->moved);
    pthread_mutex_unlock(&ahead->lock);
    pthread_join(ahead->thread, NULL);
    pthread_cond_destroy(&ahead->moved);
    pthread_mutex_destroy(&ahead->lock);
    mem_free(ahead->env, ahead->memory);
    mem_free(ahead->env, ahead);
}

void ahead_ask(struct ahead *ahead, int fd, uint64_t at, size_t bytes)
{
    pthread_mutex_lock(&ahead->lock);
    CHECK(ahead->asked - ahead->taken < AHEAD_RANGES);
    struct range *range = range_at(ahead, ahead->asked++);
    range->fd = fd;
    range->at = at;
    range->bytes = bytes;
    pthread_cond_broadcast(&ahead->moved);
    pthread_mutex_unlock(&ahead->lock);
}

ssize_t ahead_take(struct ahead *ahead, void **data)
{
    pthread_mutex_lock(&ahead->lock);
    CHECK(ahead->taken < ahead->asked);
    while (ahead->read == ahead->taken)
        pthread_cond_wait(&ahead->moved, &ahead->lock);
    const struct range *range = range_at(ahead, ahead->taken++);
    pthread_mutex_unlock(&ahead->lock);
    *data = range->data;
    errno = range->error;
    return range->got;
}
