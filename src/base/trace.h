/* trace -- time spans of a rank's work, written as a Chrome/Perfetto file.
 *
 * A rank is a process in the picture, and its lanes are rows of it. Any thread records spans while
 * the trace is open, into memory that is allocated at the start: recording allocates nothing, and
 * without a trace (NULL) or outside its window it costs a branch.
 *
 *     double start = trace_begin(env->trace);
 *     ... the work ...
 *     trace_end(env->trace, start,
 *               &(struct trace_span){.lane = &trace_lane_compute, .name = "judge"});
 */
#ifndef BASE_TRACE_H
#define BASE_TRACE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/env.h"

/* A row of the picture. The file always names the four lanes below, and any other lane only when it
 * or another lane of its group has a span. Spans that overlap are drawn below each other. A layer
 * with lanes of its own defines them as constants, in rows that no other lane uses. */
enum { TRACE_ROWS = 16 };
struct trace_lane {
    int row; /* from the top, less than TRACE_ROWS */
    const char *word;
    bool collective; /* spans are collectives: they show their bytes and number ("seq") */
    const struct trace_lane *group; /* the first of group_count lanes; NULL = the lane alone */
    int group_count;
};
extern const struct trace_lane trace_lane_compute; /* row 0 */
extern const struct trace_lane trace_lane_gather;  /* row 1 */
extern const struct trace_lane trace_lane_reduce;  /* row 2 */
extern const struct trace_lane trace_lane_host;    /* row 3 */

/* Shown as "name object". All pointers are borrowed until the trace is written. */
struct trace_span {
    const struct trace_lane *lane;
    const char *category; /* NULL = the lane's word */
    const char *name;
    const char *object; /* or NULL */
    int64_t number;     /* of a collective or a step; 0 = none */
    int64_t bytes;      /* sent or copied; shown unless 0, and in every numbered collective */
};

struct trace;

/* Allocates `spans` spans; later ones are counted and dropped. The trace starts closed. */
enum status trace_create(struct env *env, int64_t spans, struct trace **trace);
void trace_destroy(struct trace *trace); /* NULL is fine */

/* Time 0 of the file as a clock_seconds value: the same moment on every rank. */
void trace_set_origin(struct trace *trace, double seconds);
void trace_open(struct trace *trace, bool open); /* whether spans that begin now are kept */

double trace_clock(const struct trace *trace); /* now; negative when the trace is closed */
static inline double trace_begin(const struct trace *trace)
{
    return trace ? trace_clock(trace) : -1.0;
}
/* Records a span from `start`, which trace_begin returned, until now. */
void trace_end(struct trace *trace, double start, const struct trace_span *span);

/* A span that is timed later, by any thread: when a stream reaches its work, say. Returns its
 * claim, or -1 when the trace is NULL, closed or full. A span without an end is not written. */
int64_t trace_claim(struct trace *trace, const struct trace_span *span);
void trace_set_start(struct trace *trace, int64_t claim, double seconds);
void trace_set_end(struct trace *trace, int64_t claim, double seconds); /* once, after the start */

int64_t trace_left_out(const struct trace *trace); /* spans dropped for lack of room */
void trace_leave_out(struct trace *trace);         /* count one that had no room elsewhere */
/* Writes the spans that have ended as JSON, one event per line, so files can be merged by lines. */
enum status trace_write(const struct trace *trace, int rank, const char *process, const char *path);

#endif
