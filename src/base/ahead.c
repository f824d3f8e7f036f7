/* ahead -- a ring of ranges under one lock; each counter only grows. */
#include "base/ahead.h"
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include "base/direct.h"
#include "base/progress.h"
#include "base/thread.h"

struct range {
    int fd;
    uint64_t at;
    size_t bytes;
    void *room, *data;
    ssize_t got;
    int error;
};

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
