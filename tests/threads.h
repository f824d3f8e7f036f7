/* threads -- run jobs concurrently, one thread each (mostly the ranks of one process), and find out
 * whether a thread sleeps, so that a test need not guess how long that takes. */
#ifndef TESTS_THREADS_H
#define TESTS_THREADS_H
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "testing.h"

enum { THREADS_MOST = 64 };

/* Run body(&jobs[i]) for each of `count` jobs of `bytes` bytes; returns when all have ended. */
static inline void threads_run(void *(*body)(void *), void *jobs, int count, size_t bytes)
{
    pthread_t threads[THREADS_MOST];
    assert_in_range(count, 1, THREADS_MOST);
    for (int i = 0; i < count; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, body, (char *)jobs + (size_t)i * bytes),
                         0);
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

static inline int threads_own_id(void)
{
    return (int)syscall(SYS_gettid);
}

static inline void threads_nap(double seconds)
{
    struct timespec span = {(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))};
    nanosleep(&span, NULL);
}

/* Whether the thread is blocked in the kernel. */
static inline bool threads_is_asleep(int id)
{
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", id);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    bool found = fscanf(file, "%*d (%*[^)]) %c", &state) == 1;
    fclose(file);
    return found && state == 'S';
}

static inline void threads_wait_until_asleep(int id)
{
    while (!threads_is_asleep(id))
        threads_nap(0.001);
}

#endif
