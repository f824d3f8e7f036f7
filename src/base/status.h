/* status -- one enum for all failures that are not bugs, with text and exit code.
 *
 * There are four kinds of failure. The environment failed: return enum status; the function that
 * detects it reports it with FAIL (base/env.h). Enqueued work failed: the error stays with the
 * stream and is checked once per step. A bug: CHECK prints and aborts. An unsupported request:
 * STATUS_CONFIG at start-up.
 */
#ifndef BASE_STATUS_H
#define BASE_STATUS_H

/*    name       exit  text */
#define STATUS_CODES(X)                                             \
    X(OK, 0, "done")                                                \
    X(IO, 1, "a file or folder could not be read or written")       \
    X(FORMAT, 1, "a file does not hold what it should")             \
    X(MEMORY, 4, "out of memory")                                   \
    X(DEVICE, 1, "the device failed")                               \
    X(COMM, 1, "another rank failed or did not answer")             \
    X(STOPPED, 1, "stopped by a signal")                            \
    X(SAVED, 75, "stopped early: rerun the same command to resume") \
    X(INTERNAL, 1, "internal error")                                \
    X(USAGE, 2, "wrong use of the command")                         \
    X(CONFIG, 2, "wrong configuration")                             \
    X(DIVERGED, 3, "training diverged")                             \
    X(STALLED, 4, "no progress after it was asked to stop")         \
    X(FIT, 4, "does not fit in memory")

enum status {
#define X(name, exit_code, text) STATUS_##name,
    STATUS_CODES(X)
#undef X
};

const char *status_name(enum status st); /* "IO" */
const char *status_text(enum status st); /* "a file or folder could not be read or written" */
int status_exit_code(enum status st);    /* of the command */

/* Return a failure to the caller. It has been reported where it was detected. */
#define TRY(call)                     \
    do {                              \
        enum status try_st_ = (call); \
        if (try_st_ != STATUS_OK)     \
            return try_st_;           \
    } while (0)

/* The same in a constructor: sets the local `enum status st` and jumps to the label that undoes
 * what was done. */
#define TRY_OR(label, call)             \
    do {                                \
        if ((st = (call)) != STATUS_OK) \
            goto label;                 \
    } while (0)

/* Broken invariants: both values are printed and the process aborts, in release builds too. */
#define CHECK(condition) ((condition) ? (void)0 : check_failed(#condition, __FILE__, __LINE__))
#define CHECK_EQ(a, b)   CHECK_OP(a, ==, b)
#define CHECK_LE(a, b)   CHECK_OP(a, <=, b)
#define CHECK_LT(a, b)   CHECK_OP(a, <, b)
#define CHECK_OP(a, op, b)                                                              \
    do {                                                                                \
        long long check_a_ = (long long)(a), check_b_ = (long long)(b);                 \
        if (!(check_a_ op check_b_))                                                    \
            check_op_failed(#a " " #op " " #b, check_a_, check_b_, __FILE__, __LINE__); \
    } while (0)

_Noreturn void check_failed(const char *what, const char *file, int line);
_Noreturn void check_op_failed(const char *what, long long a, long long b, const char *file,
                               int line);

#endif
