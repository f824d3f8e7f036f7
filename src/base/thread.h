/* thread -- helper threads, which leave signals to the thread that started them.
 *
 * Fault signals stay unblocked: a fault whose signal is blocked in the faulting thread kills the
 * process, and the handler of file_guard.h would never run.
 */
#ifndef BASE_THREAD_H
#define BASE_THREAD_H
#include <pthread.h>

/* pthread_create with all signals blocked except faults; returns 0 or an error number. */
int thread_start(pthread_t *thread, void *(*run)(void *), void *user);

#endif
