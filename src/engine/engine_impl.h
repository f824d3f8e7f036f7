/* engine_impl -- what the engine's files share: its state, and one pass of one unit. */
#ifndef ENGINE_ENGINE_IMPL_H
#define ENGINE_ENGINE_IMPL_H
#include "engine/activations.h"
#include "engine/engine.h"

struct pipeline;

struct engine {
    struct ops *ops;                /* borrowed */
    struct stream *stream;          /* borrowed */
    const struct unit_graph *graph; /* borrowed */
    struct zero *zero;              /* borrowed */
    struct env *env;                /* borrowed */
    struct engine_config config;
    struct activations *activations;
    struct pipeline *pipeline;              /* NULL: all units are here */
    int32_t *tokens, *labels;               /* host: (rounds, B, T) */
    int32_t *device_tokens, *device_labels; /* (B, T) of the micro-batch that runs */
    double *losses, *losses_host;           /* (rounds) */
    double *all_losses;                     /* (ranks, rounds) */
    int64_t *votes;                         /* of the tensor-parallel ranks */
    struct unit_side_stream *side_stream;   /* for their calls under compute; NULL: none go there */
    void *gradient;                         /* (B, T, C); a pipeline has its own */
    struct loss_scale scale;
    char label[64];         /* "step 12" */
    engine_watch_fn *watch; /* NULL: nobody does */
    void *watch_user;       /* borrowed */
};

/* One walk over units. An idle rank only follows: it joins the store's exchanges. */
struct walk {
    struct unit_run run;
    int64_t round;
    bool idle;
    bool parts; /* backward is in two */
};

/* --- sizes of a micro-batch ----------------------------------------------------------------- */
static inline int64_t engine_batch_rows(const struct engine *engine)
{
    return engine->config.micro_batch * engine->config.tokens;
}

/* Without backward passes nothing is kept, so every rank may as well have all rows of the stream:
 * logits need them. */
static inline struct unit_shape engine_batch_shape(const struct engine *engine)
{
    const struct engine_config *c = &engine->config;
    return (struct unit_shape){.batch = c->micro_batch,
                               .tokens = c->tokens,
                               .sequence = c->micro_batches > 0 ? engine->graph->sequence : 0};
}

/* --- engine_make.c -------------------------------------------------------------------------- */
/* A communicator with others, if there are any: for what is said to all of the job. */
struct comm *engine_any_comm(const struct engine *engine);

/* --- engine_walk.c -------------------------------------------------------------------------- */
/* Bring the micro-batch in place `round` to the device and set up the run for its passes, of which
 * none reads params. */
struct walk engine_start_round(struct engine *engine, int64_t round, bool idle);
/* The same for passes of units first .. end-1 that may read them. */
struct walk engine_start_walk(struct engine *engine, int64_t round, bool idle, int first, int end,
                              enum walk_way way);
void engine_run_pass(struct engine *engine, int u, enum pass pass, struct walk *walk);
void engine_run_pass_with_gradients(struct engine *engine, int u, enum pass pass,
                                    struct walk *walk);
/* Forward of units first .. end-1; the output is then the input of what follows. */
void engine_forward(struct engine *engine, int first, int end, struct walk *walk);
/* Backward of units end-1 .. first, or its first part. */
void engine_backward(struct engine *engine, int first, int end, struct walk *walk);
/* The second part of it. */
void engine_backward_weight(struct engine *engine, int first, int end, struct walk *walk);
size_t engine_stream_bytes(const struct engine *engine); /* of (B, T, C) */
/* Tell the others where this rank is: "step 12, block 3 backward". */
void engine_note(struct engine *engine, const char *unit, const char *pass);
/* A span of compute in the trace, from `start` until now. */
void engine_draw(struct engine *engine, double start, const char *name, const char *object);

/* --- engine.c ------------------------------------------------------------------------------- */
void engine_tell(const struct engine *engine, enum engine_point point,
                 const struct timetable_action *pass);

/* --- pipeline*.c ---------------------------------------------------------------------------- */
enum status pipeline_create(struct engine *engine, const struct engine_pipe *config,
                            struct pipeline **pipeline);
void pipeline_destroy(struct pipeline *p);
bool pipeline_has_parts(const struct pipeline *p); /* backward passes are in two */
/* (units) micro-batches that each has at once at most. */
const struct unit_copies *pipeline_copies(const struct pipeline *p);
bool pipeline_has_loss(const struct pipeline *p); /* the last unit of the model is here */
void pipeline_step(struct pipeline *p);           /* all rounds, forward and backward */
/* The same without gradients; in each of `rounds` rounds this rank has one of `count`
 * micro-batches, or is idle. */
void pipeline_eval(struct pipeline *p, int64_t rounds, int64_t count);
/* What the stage with the loss has, at all stages. */
enum status pipeline_share(struct pipeline *p, double *value);
/* *sum = the stages' numbers added up. */
enum status pipeline_sum(struct pipeline *p, int64_t mine, int64_t *sum);
struct comm *pipeline_comm(const struct pipeline *p); /* of the stages, for small exchanges */
/* Messages to other stages, and seconds that calls took. */
struct comm_counter pipeline_counted(const struct pipeline *p);
double pipeline_stalled(const struct pipeline *p); /* seconds that compute waited for messages */
/* Wait for what is on its way, and for errors of it. */
enum status pipeline_settle(struct pipeline *p);

#endif
