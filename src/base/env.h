/* env -- the log, memory account, trace and thread count of a rank.
 *
 * There is no process-wide mutable state: everything that allocates, logs or fails gets the env of
 * its rank, so several ranks (or engines) can live in one process. The threads of a rank share an
 * env; log and mem lock internally.
 */
#ifndef BASE_ENV_H
#define BASE_ENV_H
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"

struct progress;
struct progress_view;
struct trace;
struct output_faults;
struct input_faults;

struct env {
    struct log *log;
    struct mem *mem;
    int threads;                       /* OpenMP threads of this rank, at least 1 */
    struct trace *trace;               /* borrowed; NULL = no tracing */
    struct progress *progress;         /* borrowed; NULL = no watcher */
    const struct progress_view *view;  /* borrowed; NULL = nobody waits for this rank's tasks */
    struct output_faults *faults;      /* borrowed; for tests of writes (base/output.h); or NULL */
    struct input_faults *input_faults; /* the same for reads (base/input.h) */
};

/* Create the log (to `sink`, from `level` up) and the account. STATUS_MEMORY or STATUS_OK. */
enum status env_create(struct env *env, log_sink_fn *sink, void *user, enum log_level level,
                       int threads);
void env_destroy(struct env *env);

/* The function that first detects a failure reports it: `return FAIL(env, IO, "cannot open '%s':
 * %s", path, strerror(errno));` A message says what happened, where, and what to do; it starts
 * in lower case and has no full stop or newline at its end. */
#define FAIL(env, code, ...) log_fail((env)->log, STATUS_##code, __FILE__, __LINE__, __VA_ARGS__)

#endif
