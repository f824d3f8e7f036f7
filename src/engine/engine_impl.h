/* engine_impl -- the engine's state, and walks over units. Private to src/engine.
 *
 *     engine.c, engine_make.c   a step, an evaluation; create and destroy
 *     pipeline*.c               the same order of passes as a timetable
 *     engine_walk.c             passes over consecutive units
 *     activations.c, scope.c    buffers of the units; what the rank is doing
 *     kept.c                    buffers that are in host memory from forward to backward
 *
 * A file calls only files of its own line and of the lines below.
 */
#ifndef ENGINE_ENGINE_IMPL_H
#define ENGINE_ENGINE_IMPL_H
#include "engine/activations.h"
#include "engine/engine.h"

struct pipeline;

/* The data of a step. Input i of a micro-batch has `bytes[i]` bytes. */
struct engine_inputs {
    int count;
    size_t bytes[UNIT_MAX_INPUTS];
    char *host[UNIT_MAX_INPUTS];   /* (rounds, bytes) */
    void *device[UNIT_MAX_INPUTS]; /* (bytes) of the current micro-batch */
};
enum { INPUT_TOKENS, INPUT_LABELS }; /* of a language model */

struct engine {
    struct ops *ops;                /* borrowed */
    struct stream *stream;          /* borrowed */
    const struct unit_graph *graph; /* borrowed */
    struct zero *zero;              /* borrowed */
    struct env *env;                /* borrowed */
    struct engine_config config;
    int64_t micro_batches; /* of the current steps; config.micro_batches is the most */
    struct activations *activations;
    struct pipeline *pipeline; /* NULL: this rank has all units */
    struct engine_inputs inputs;
    double *losses, *losses_host; /* (rounds) */
    double *all_losses;           /* (ranks, rounds) */
    int64_t *votes;               /* (TP ranks) */
    bool in_step;                 /* the passes belong to a step, not to an evaluation */
    float *statistics;            /* device: (rounds, statistics of the model); NULL: it has none */
    float *statistics_host;       /* the same, and then the sum (statistics) */
    float *all_statistics;        /* (ranks or PP stages, rounds, statistics) */
    float *gates; /* device: (statistics) their sum; NULL: no gradient is gated by it */
    struct unit_side_stream
        *side_stream;     /* for TP collectives that overlap with compute; or NULL */
    void *gradient;       /* (B, T, C); NULL in a pipeline, which has its own */
    void *carry_gradient; /* (carry of the graph); NULL: it has none */
    struct loss_scale scale;
    struct scopes scopes;
};

/* One walk over units. An idle rank computes nothing but joins the store's collectives. */
struct walk {
    struct unit_run run;
    int64_t round;
    bool idle;
    bool parts; /* backward passes are split in two where a unit supports it */
};

/* --- sizes of a micro-batch ----------------------------------------------------------------- */
static inline int64_t engine_batch_rows(const struct engine *engine)
{
    return engine->config.micro_batch * engine->config.tokens;
}

/* Without backward passes no activations are kept, so sequence parallelism would save nothing:
 * every rank has all rows of the stream, which logits need. */
static inline struct unit_shape engine_batch_shape(const struct engine *engine)
{
    const struct engine_config *c = &engine->config;
    return (struct unit_shape){.batch = c->micro_batch,
                               .tokens = c->tokens,
                               .sequence = c->micro_batches > 0 ? engine->graph->sequence : 0};
}

static inline size_t engine_carry_bytes(const struct engine *engine)
{
    return (size_t)engine->graph->carry * dtype_bytes(engine->ops->type);
}

/* --- engine_walk.c -------------------------------------------------------------------------- */
int64_t engine_most_rounds(const struct engine *engine); /* of a step: buffers are made for them */
/* Copy the round's micro-batch to the device and set up the run for passes that read no params. */
struct walk engine_start_round(struct engine *engine, int64_t round, bool idle);
/* The same for passes of units first .. end-1 that may read params. */
struct walk engine_start_walk(struct engine *engine, int64_t round, bool idle, int first, int end,
                              enum walk_way way);
void engine_run_pass(struct engine *engine, int u, enum pass pass, struct walk *walk);
void engine_run_pass_with_gradients(struct engine *engine, int u, enum pass pass,
                                    struct walk *walk);
/* Forward passes of units first .. end-1. Afterwards walk->run has the last output as its input. */
void engine_forward(struct engine *engine, int first, int end, struct walk *walk);
/* Backward passes of units end-1 .. first; with walk->parts, backward-input where a unit has it. */
void engine_backward(struct engine *engine, int first, int end, struct walk *walk);
/* The backward-weight passes of these units. */
void engine_backward_weight(struct engine *engine, int first, int end, struct walk *walk);
size_t engine_stream_bytes(const struct engine *engine); /* of one tensor of the stream (N, C) */

#endif
