/* threads -- some jobs at once, a thread each: ranks of one process, mostly. */
#ifndef TESTS_THREADS_H
#define TESTS_THREADS_H
#include <pthread.h>

#include "testing.h"

enum { THREADS_MOST = 64 };

/* body(&jobs[i]) for each of `count` jobs of `bytes` each; returns when all have ended. */
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

#endif
