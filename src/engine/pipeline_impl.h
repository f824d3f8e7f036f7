/* pipeline_impl -- what the files of a pipeline share: its buffers and lines, and what is done in a
 * step and in an evaluation alike.
 *
 *     pipeline_make.c  how many buffers the list needs, and which line is whose
 *     pipeline.c       the list carried out: messages and passes of a step
 *     pipeline_eval.c  forward only
 */
#ifndef ENGINE_PIPELINE_IMPL_H
#define ENGINE_PIPELINE_IMPL_H
#include "engine/engine_impl.h"

/* Buffers of one kind, each with the event after which it may be written, and the one after which
 * it may be read. */
struct ring {
    int count;
    void **at;
    struct event **ready, **spent;
};

struct chunk {
    int first, end; /* units */
    bool has_input, has_output, has_loss;
    struct ring in, out, gradient;
};

enum { ACTS_IN, ACTS_OUT, GRADS_IN, GRADS_OUT, LINES };

/* Lanes of the trace: one for each line, then the passes of the timetable. */
enum { LANE_PASSES = LINES, LANES };
extern const struct trace_lane pipeline_lanes[LANES];

typedef char action_name[TIMETABLE_NAME_BYTES];

/* The way to or from a neighbour. */
struct line {
    struct comm *comm; /* of all stages; two lines of a rank never share one */
    struct stream *stream;
};

enum { COPIES = 6 }; /* of the communicator: three for each kind */

struct pipeline {
    struct engine *engine; /* borrowed */
    struct comm *comm;     /* borrowed */
    struct timetable table;
    int pp_stage; /* this rank's */
    struct chunk *chunks;
    struct unit_copies *unit_copies; /* (units) */
    double *shared;                  /* (stages) room for a number of each */
    struct comm *copies[COPIES];
    struct line lines[LINES];
    double stalled;     /* seconds that compute has waited for messages */
    action_name *names; /* of this rank's actions, for the trace; NULL: there is none */
    const struct timetable_action *pass; /* of the list, under way; NULL: none */
};

/* --- pipeline.c ----------------------------------------------------------------------------- */
/* A buffer is filled by the message, once it may be written. `name` (NULL: none) is for the trace. */
void pipeline_receive(struct pipeline *p, int line, int from, struct ring *ring, int i,
                      const char *name);
/* A buffer is sent, once compute has written it. */
void pipeline_send(struct pipeline *p, int line, int to, struct ring *ring, int i,
                   const char *name);
/* The units of a chunk but for the loss, from its input to its output. */
void pipeline_forward(struct pipeline *p, struct chunk *chunk, int64_t round, bool idle,
                      const char *name);

#endif
