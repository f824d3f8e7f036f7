/* progress -- whether a process still moves, and what it does, for who watches it.
 *
 * What may take long adds to a count; who asks twice and finds the same knows that nothing was done in
 * between. A signal's handler may ask, whatever the threads hold then: there are no locks here.
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
    atomic_char doing[PROGRESS_BYTES]; /* the words of the last note, to the first NUL */
    atomic_llong expected_ms;          /* see progress_expect */
};

/* Something was done: a unit's pass, a piece of a file, a message to another rank. Nothing happens
 * where env->progress is NULL. */
void progress_add(const struct env *env);
/* The same, and this is what follows: "step 12, block 3 forward". */
void progress_note(const struct env *env, const char *what);
/* As long as this it may well take until something is done: the longest so far counts. */
void progress_expect(const struct env *env, double seconds);

uint64_t progress_count(const struct progress *progress);
void progress_words(const struct progress *progress, char out[PROGRESS_BYTES]);

#endif
