/* progress -- how far a process is: for a watcher that wants to know whether it still moves, and for
 * a person who waits.
 *
 * Long operations increment a counter; a watcher that reads the same value twice knows that nothing
 * was done in between. There are no locks, so a signal handler may read it at any time.
 *
 * A task has a name and a size. Code that may run for more than two seconds begins one; env->view
 * draws it, on a terminal or in a log. Without a view a task costs one addition.
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

/* --- tasks that a person waits for ------------------------------------------------------------ */

struct progress_task {
    const char *what;          /* borrowed: "saving" */
    const char *noun;          /* of what is counted: "tokens"; NULL = bytes; "" = only the share */
    uint64_t total;            /* 0 = not known */
    atomic_uint_fast64_t done; /* any thread may add */
    double begin, shown;       /* times; shown is that of the last drawing */
    char figure[64];           /* more to print: "12.5 tok/s"; "" = nothing */
};

/* Draws tasks. `show` may be called often: it draws only when it is time to. */
struct progress_view {
    void (*show)(void *user, struct progress_task *task, double now);
    void (*clear)(void *user); /* remove what a task has left on a terminal */
    void *user;
};

void progress_begin(struct progress_task *task, const char *what, const char *noun, uint64_t total);
/* `amount` more is done. Counts for the watcher, too, and draws. */
void progress_advance(const struct env *env, struct progress_task *task, uint64_t amount);
/* So much of all is done, if it is more than before. */
void progress_reach(const struct env *env, struct progress_task *task, uint64_t done);
/* Draw it, if it is time. The thread that calls this must be free to print. */
void progress_show(const struct env *env, struct progress_task *task);
void progress_end(const struct env *env, const struct progress_task *task);

uint64_t progress_count(const struct progress *progress);
void progress_words(const struct progress *progress, char out[PROGRESS_BYTES]);

#endif
