/* progress -- a counter and a note that show a watcher whether a process still makes progress.
 *
 * Long operations increment the counter; a watcher that reads the same value twice knows that
 * nothing was done in between. There are no locks, so a signal handler may read it at any time.
 */
#ifndef BASE_PROGRESS_H
#define BASE_PROGRESS_H
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

struct env;

enum { PROGRESS_BYTES = 96 };

struct progress {
    atomic_uint_fast64_t count;
    atomic_char doing[PROGRESS_BYTES]; /* the last note, up to the first NUL */
    atomic_llong expected_ms;          /* the longest expected silence */
};

/* Something was done: a unit's pass, a chunk of a file, a message. No effect when env->progress is
 * NULL. */
void progress_add(const struct env *env);
/* The same, with a note of what comes next: "step 12, block 3 forward". */
void progress_note(const struct env *env, const char *what);
/* Announce that up to `seconds` may pass without progress; the largest value counts. */
void progress_expect(const struct env *env, double seconds);

uint64_t progress_count(const struct progress *progress);
void progress_words(const struct progress *progress, char out[PROGRESS_BYTES]);

#endif
