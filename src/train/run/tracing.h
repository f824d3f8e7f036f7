/* tracing -- traces some steps of a run and writes the trace file.
 *
 * `--trace 5:8` records steps 5 to 8 on every rank, with their evaluations and samples. It writes
 * trace-rank-R.json into the run folder after step 9, so that work still in flight at the end of
 * step 8 is included, or at the end of the run. All ranks count time from the same barrier.
 */
#ifndef TRAIN_TRACING_H
#define TRAIN_TRACING_H
#include "base/trace.h"
#include "comm/comm.h"
#include "train/config/config.h"

struct tracing { /* open; zeroed = off */
    struct env *env;
    struct device *device; /* borrowed */
    struct trace *trace;
    int64_t first, last; /* steps */
    bool written;
};

/* `steps` is "A:B" or "A" with 1 <= A <= B and A <= train.steps, or "" or NULL for no trace;
 * otherwise STATUS_CONFIG. Sets env->trace, so call it before any thread uses the env. Spans of the
 * device's streams are traced, too. After a failure tracing_stop is still due. */
enum status tracing_start(struct env *env, const char *steps, const struct run_config *config,
                          struct device *device, struct tracing *tracing);
void tracing_stop(struct tracing *tracing); /* after the last use of env->trace */

/* Agree on time zero. Collective; `comm` is NULL for one rank. */
enum status tracing_align(struct tracing *tracing, struct comm *comm);

void tracing_step_begins(struct tracing *tracing, int64_t step);
void tracing_close(struct tracing *tracing); /* stop recording: no step follows */
/* Write the file when it is due. Also called at the end of the run, with `over` set. */
enum status tracing_step_ends(struct tracing *tracing, int64_t step, bool over, int rank,
                              const char *folder);

#endif
