/* trace -- what a rank did when: spans on a few lanes, written as a Chrome/Perfetto file.
 *
 * A rank has one process in the picture and in it a lane for compute, gathers, reductions and the
 * host, and more of them in a pipeline and with tensor-parallel ranks. Spans are recorded while the trace is open, by any thread, into room taken at the start:
 * recording allocates nothing, and without a trace (NULL) or outside its window it costs a branch.
 *
 *     double start = trace_begin(env->trace);
 *     ... the work ...
 *     trace_end(env->trace, start, &(struct trace_span){.lane = TRACE_COMPUTE, .name = "judge"});
 */
#ifndef BASE_TRACE_H
#define BASE_TRACE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/env.h"

enum trace_lane {
    TRACE_COMPUTE,
    TRACE_GATHER,
    TRACE_REDUCE,
    TRACE_HOST,
    TRACE_PP_STAGE, /* from here on only where there is a pipeline: passes of its timetable, */
    TRACE_ACTS_IN,
    TRACE_ACTS_OUT,
    TRACE_GRADS_IN,
    TRACE_GRADS_OUT, /* and what goes between neighbours */
    TRACE_TENSOR,    /* only where there are tensor-parallel ranks */
    TRACE_LANE_COUNT
};
const char *trace_lane_word(enum trace_lane lane); /* "compute" */

/* Shown as "name object": the strings are borrowed until the trace is written. */
struct trace_span {
    enum trace_lane lane;
    const char *category; /* NULL: the lane's word */
    const char *name;
    const char *object; /* NULL: none */
    int64_t number;     /* of a collective, or of a step; 0: none */
    int64_t bytes;      /* sent; shown where there is a number on a lane of collectives */
};

struct trace;

/* Room for `spans` spans; what comes after them is counted and left out. Closed at first. */
enum status trace_create(struct env *env, int64_t spans, struct trace **trace);
void trace_destroy(struct trace *trace); /* NULL is fine */

/* Times are counted from this reading of clock_seconds: the same moment on every rank. */
void trace_set_origin(struct trace *trace, double seconds);
void trace_open(struct trace *trace, bool open); /* spans that begin now are kept, or not */

double trace_clock(const struct trace *trace); /* now; negative when the trace is closed */
static inline double trace_begin(const struct trace *trace)
{
    return trace ? trace_clock(trace) : -1.0;
}
/* A span from `start`, which trace_begin gave, until now. */
void trace_end(struct trace *trace, double start, const struct trace_span *span);

int64_t trace_left_out(const struct trace *trace); /* spans for which there was no room */
/* The spans that have ended, as JSON: one event a line, so that files are merged by lines. */
enum status trace_write(const struct trace *trace, int rank, const char *process, const char *path);

#endif
