/* env -- what a rank has from its process: a log, an account of memory, a number of threads.
 *
 * There is no process-wide mutable state: everything that allocates, logs or fails is handed its
 * rank's env, so that two ranks (or two engines) can live in one process. An env is shared by the
 * threads of one rank; log and mem lock inside.
 */
#ifndef BASE_ENV_H
#define BASE_ENV_H
#include "base/log.h"
#include "base/mem.h"
#include "base/status.h"

struct progress;
struct trace;
struct output_faults;
struct input_faults;

struct env {
    struct log *log;
    struct mem *mem;
    int threads;                  /* size of this rank's OpenMP team, at least 1 */
    struct trace *trace;          /* borrowed; NULL: nothing is traced. See base/trace.h */
    struct progress *progress;    /* borrowed; NULL: nobody watches. See base/progress.h */
    struct output_faults *faults; /* borrowed; NULL: no write is made to fail. See base/output.h */
    struct input_faults *input_faults; /* the same for reads. See base/input.h */
};

/* Fill `env` with a fresh log (to `sink`, from `level` up) and a fresh account. Returns
 * STATUS_MEMORY or STATUS_OK. */
enum status env_create(struct env *env, log_sink_fn *sink, void *user, enum log_level level,
                       int threads);
void env_destroy(struct env *env);

int env_available_threads(void); /* CPUs in this process's affinity mask, at least 1 */

/* Who first knows of a failure says so: `return FAIL(env, IO, "cannot open '%s': %s", path,
 * strerror(errno));` Messages say what, where and what to do; they start in lower case and end
 * without a full stop or newline. */
#define FAIL(env, code, ...) log_fail((env)->log, STATUS_##code, __FILE__, __LINE__, __VA_ARGS__)

#endif
