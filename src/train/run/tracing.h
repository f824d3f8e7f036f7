/* tracing -- the steps of a run that are traced, and the file that comes of them.
 *
 * `--trace 5:8` records steps 5 to 8 on every rank, with the evaluations and samples that belong
 * to them, and writes trace-rank-R.json into the run folder when step 9 is done (so that what step
 * 8 left under way is in it), or at the end of the run. Ranks count time from one barrier.
 */
#ifndef TRAIN_TRACING_H
#define TRAIN_TRACING_H
#include "base/trace.h"
#include "comm/comm.h"
#include "train/config/config.h"

struct tracing { /* open; zeroed = off */
    struct env *env;
    struct trace *trace;
    int64_t first, last; /* steps */
    bool written;
};

/* "A:B" or "A" with 1 <= A <= B and A <= train.steps; "" or NULL: off. Otherwise STATUS_CONFIG.
 * Sets env->trace: before anything that uses the env starts a thread. */
enum status tracing_start(struct env *env, const char *steps, const struct run_config *config,
                          struct tracing *tracing);
void tracing_stop(struct tracing *tracing); /* after the last user of the env's trace */

/* Agree on when time begins. Collective; comm NULL: one rank. */
enum status tracing_align(struct tracing *tracing, struct comm *comm);

void tracing_step_begins(struct tracing *tracing, int64_t step);
void tracing_close(struct tracing *tracing); /* no step follows: nothing more is recorded */
/* Also at the end of the run, with `over` set. */
enum status tracing_step_ends(struct tracing *tracing, int64_t step, bool over, int rank,
                              const char *folder);

#endif
