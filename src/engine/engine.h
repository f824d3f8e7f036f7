/* engine -- runs the units of a model over micro-batches: forward, loss, backward, recomputation; a
 * step, an evaluation.
 *
 *     trainer    fills tokens and labels of each round, then calls engine_step
 *     engine     owns the activations and the order of passes
 *     store      (src/zero) lends params for each pass and takes gradients; sums, norm, update
 *
 * The engine knows no model types, shards or files. The result of a step is a function of the
 * parameters and the ordered list of micro-batches, and of nothing else: not of the number of
 * ranks, the ZeRO stage or the schedule.
 */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H
#include "engine/scope.h"
#include "zero/zero.h"

enum recompute { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL, RECOMPUTE_COUNT };
const char *recompute_word(int recompute); /* the value of engine.recompute: "selective" */
/* Buffers with a smaller `keep` live from forward to backward; the others are recomputed. */
enum keep recompute_keeps_below(int recompute);

/* The graph is one PP stage: its units are cut into chunks, whose passes follow a timetable. */
struct engine_pipe {
    struct comm *comm; /* borrowed: the PP stages of this copy of the model; rank = stage */
    int kind;          /* enum timetable_kind */
    bool eager;
    const struct zero_chunk *chunks; /* borrowed: the same chunks as in the store's configuration */
    int chunk_count;
};

struct engine_config {
    int recompute;                  /* enum recompute */
    double activations_share;       /* of the units that FAR_HOST applies to, evenly; 0 = all */
    enum far_kind activations;      /* where units keep what their backward passes need:
                                       FAR_NONE = on the device, or FAR_HOST */
    int64_t micro_batch;            /* B: sequences of a micro-batch */
    int64_t tokens;                 /* T */
    const struct engine_pipe *pipe; /* borrowed; NULL: the graph is the whole model */
    struct comm *group;             /* borrowed: the TP group; NULL: one rank */
    int64_t micro_batches; /* M of the largest step, over all workers; 0: evaluation only, no
                              backward passes */
    int64_t eval_rounds;   /* evaluation only, in a pipeline: rounds of one engine_eval; 0 = 1 */
};

extern const struct option_table engine_options; /* engine.* */

struct engine;
/* `graph` and `zero` are borrowed and outlive the engine. */
enum status engine_create(struct ops *ops, struct stream *stream, const struct unit_graph *graph,
                          struct zero *zero, const struct engine_config *config,
                          struct engine **engine);
void engine_destroy(struct engine *engine);

/* A step consists of rounds. In each round this rank computes micro-batch engine_micro_batch(round)
 * of the step, or is idle (-1). The tokens and labels of a round are in host memory, (B, T) each:
 * fill those of the rounds in which the rank is not idle, then call engine_step. */
const struct roster *engine_roster(const struct engine *engine);
int64_t engine_rounds(const struct engine *engine); /* those of engine_eval for evaluation only */
/* The number of micro-batches of the following steps, at most config.micro_batches, with which the
 * engine begins; memory is that of the largest number. Call it before the buffers of a step are
 * filled, with the same number on every rank. */
enum status engine_set_micro_batches(struct engine *engine, int64_t count);
int64_t engine_micro_batch(const struct engine *engine, int64_t round);
void engine_batch(struct engine *engine, int64_t round, int32_t **tokens, int32_t **labels);
/* The same for input i of any model: (B, bytes of the input). */
void *engine_input(struct engine *engine, int64_t round, int i);

/* What this rank is doing (scope.h). The training loop begins its phases here; a plan sets a
 * watcher. */
struct scopes *engine_scopes(struct engine *engine);

/* The parts of the gradient noise scale B = trace / square, as one step sees them: noisy, and
 * without bias. The square may come out negative: average both over steps, then divide. */
struct noise {
    bool known;    /* config.noise of the store, and at least two micro-batches with labels */
    double square; /* of the norm of the true gradient */
    double trace;  /* of the covariance of the gradient of one sequence */
};

struct engine_result {
    double loss;                 /* mean over the step's valid labels */
    double grad_norm, meta_norm; /* zero_verdict */
    double count;                /* valid labels, or what the graph counts instead */
    bool
        skipped; /* the count is 0, or the loss or a gradient was not finite: nothing was updated */
    int bad_tensor; /* first tensor with a non-finite gradient; -1: only the loss is not finite */
    int64_t bad_index;
    int64_t bad_micro_batch; /* first one whose loss is not finite; -1: none */
    double loss_scale;       /* factor of the loss gradient; 1 unless fp16 */
    double next_loss_scale;  /* the factor of the next step */
    struct noise noise;
    bool overflow; /* skipped, probably because the scale was too large: not a fault yet
                                */
};
/* One optimizer step over the filled micro-batches; t counts updates from 1. */
enum status engine_step(struct engine *engine, int64_t t, double lr, struct engine_result *result);

/* The factor of the loss that keeps fp16 gradients between underflow and overflow. It doubles after
 * a window of steps without overflow. A step whose gradient is not finite halves it, except for the
 * first such step since the scale last grew: a single overflow may be an accident. */
struct loss_scale {
    double scale;
    int good_steps; /* finite steps since the scale last changed or a gradient last overflowed */
    int patience;   /* the scale is halved at overflow number `patience` from now */
};
enum { LOSS_SCALE_WINDOW = 1000, LOSS_SCALE_HYSTERESIS = 2 };
#define LOSS_SCALE_FIRST   65536.0
#define LOSS_SCALE_FLOOR   1.0
#define LOSS_SCALE_CEILING 0x1p60 /* the scale must fit a float even if nothing ever overflows */
struct loss_scale loss_scale_start(void);
/* Call after a step that used `scale`. Returns true when the scale explains a non-finite gradient,
 * because it was above the floor. */
bool loss_scale_update(struct loss_scale *s, bool overflow);

/* The loss scale of the next step, which a checkpoint keeps. Setting it has no effect unless
 * gradients are scaled (fp16). */
struct loss_scale engine_loss_scale(const struct engine *engine);
void engine_set_loss_scale(struct engine *engine, struct loss_scale scale);

/* Evaluate `count` micro-batches. They are dealt to the workers in rounds like those of a step:
 * this rank fills the buffers of round r unless it is idle in it. Adds the sum of the losses and
 * the number of valid labels, in the order of the micro-batches. At most engine_eval_rounds rounds.
 * Collective. */
enum status engine_eval(struct engine *engine, int64_t count, double *loss_sum, double *labels);
/* Rounds to evaluate in one call: what a pipeline has buffers for, otherwise 1. */
int64_t engine_eval_rounds(const struct engine *engine);

/* The statistic of the model, summed over the micro-batches of the last step in their order. The
 * same on every rank, and known before the gradients are judged. */
const float *engine_statistics(const struct engine *engine);

/* Compute the gradients of the filled micro-batches without an update; read them with
 * zero_read_gradient. For tests and tools. */
enum status engine_gradients(struct engine *engine, struct engine_result *result);

/* Logits of the last `count` positions of each sequence in the buffers of round 0, without a cache,
 * to the host: (B, count, V) fp32. Allocates them on the device. For tests. */
enum status engine_logits(struct engine *engine, int64_t count, float *logits);

/* *sum = the sum over the copies of the model, each counted once however many ranks compute it: for
 * counts of data. Collective. */
enum status engine_sum(struct engine *engine, int64_t mine, int64_t *sum);
/* *sum = the sum over all ranks of the job: for votes of the training loop. Collective. */
enum status engine_vote(struct engine *engine, int64_t mine, int64_t *sum);

/* What this rank has sent to others since the start. Not collective. */
struct traffic engine_traffic(const struct engine *engine);

#endif
