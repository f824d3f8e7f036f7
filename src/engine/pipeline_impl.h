/* pipeline_impl -- one PP stage of a pipeline. Private to src/engine.
 *
 *     pipeline_make.c  the timetable, and as many buffers as it ever has in use
 *     pipeline.c       a step: carries out the timetable's actions, messages and passes; and an
 *                      evaluation: forward only
 */
#ifndef ENGINE_PIPELINE_IMPL_H
#define ENGINE_PIPELINE_IMPL_H
#include "engine/engine_impl.h"

/* --- for the engine ------------------------------------------------------------------------- */
enum status pipeline_create(struct engine *engine, const struct engine_pipe *config,
                            struct pipeline **pipeline);
void pipeline_destroy(struct pipeline *p);        /* NULL is fine */
bool pipeline_has_loss(const struct pipeline *p); /* this stage has the last unit of the model */
void pipeline_step(struct pipeline *p);           /* all rounds, forward and backward */
/* `rounds` rounds forward, over `count` micro-batches of all workers. */
void pipeline_eval(struct pipeline *p, int64_t rounds, int64_t count);
/* *value = the value of the stage that has the loss, on all stages. Collective. */
enum status pipeline_share(struct pipeline *p, double *value);
/* *sum = the sum over the stages. Collective. */
enum status pipeline_sum(struct pipeline *p, int64_t mine, int64_t *sum);
/* values (count) = the sum over the stages, in their order. all (stages, count). Collective. */
enum status pipeline_add(struct pipeline *p, float *values, int64_t count, float *all);
/* Messages to other stages, and how long the calls took. */
struct comm_counter pipeline_counted(const struct pipeline *p);
/* Wait for all messages; returns the first error of any of them. */
enum status pipeline_settle(struct pipeline *p);

/* --- its state ------------------------------------------------------------------------------ */
/* A ring of buffers of one kind. Buffer i may be read after ready[i] and written after spent[i]. */
struct ring {
    int count;
    void **at;
    struct event **ready, **spent;
};

struct chunk {
    int first, end; /* units first .. end-1 */
    bool has_input, has_output, has_loss;
    int64_t in_elements, out_elements; /* of its input, and of its output or what the loss reads */
    struct ring in, out, gradient;
};

enum { ACTS_IN, ACTS_OUT, GRADS_IN, GRADS_OUT, LINES };

/* Lanes of the trace: one for each line, then the passes of the timetable. */
enum { LANE_PASSES = LINES, LANES };
extern const struct trace_lane pipeline_lanes[LANES];

typedef char action_name[TIMETABLE_NAME_BYTES];

/* One direction of one kind of message, to or from a neighbour. */
struct line {
    struct comm *comm; /* of all stages; no two lines of a rank use the same one */
    struct stream *stream;
};

enum { COPIES = 6 }; /* of the communicator: three for activations, three for gradients */

struct pipeline {
    struct engine *engine; /* borrowed */
    struct comm *comm;     /* borrowed: the stages, for small exchanges */
    struct timetable table;
    int pp_stage; /* of this rank */
    struct chunk *chunks;
    struct unit_copies *unit_copies; /* (units) how many micro-batches of each unit have
                                        activations at the same time, at most */
    double *shared;                  /* (stages) scratch for pipeline_share and pipeline_sum */
    struct comm *copies[COPIES];
    struct line lines[LINES];
    double stalled;     /* seconds that compute has waited for messages */
    action_name *names; /* of this rank's actions, for the trace; NULL: no trace */
};

#endif
