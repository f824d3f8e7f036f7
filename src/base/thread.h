/* thread -- threads that work for another, which is the one that hears signals.
 *
 * A fault is not for another thread to hear: one that is blocked where it is raised ends the process,
 * and the handler of file_guard.h would never run.
 */
#ifndef BASE_THREAD_H
#define BASE_THREAD_H
#include <pthread.h>

/* pthread_create, with every signal blocked but those of faults; 0, or an error number. */
int thread_start(pthread_t *thread, void *(*run)(void *), void *user);

#endif
