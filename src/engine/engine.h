/* engine -- walks the units of a micro-batch: forward, loss, backward, recomputation; evaluation
 * and decoding.
 *
 * The engine owns the activations and the order of passes; it knows neither model types nor shards
 * nor files. A step's result is a function of the parameters and the ordered list of micro-batches.
 */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H
#include "engine/timetable.h"
#include "zero/loss_scale.h"
#include "zero/zero.h"

enum recompute { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL, RECOMPUTE_COUNT };
const char *recompute_word(int recompute); /* as engine.recompute has it: "selective" */
/* Buffers with a lesser `keep` live from forward to backward; the others are made again. */
enum keep recompute_keeps_below(int recompute);

/* The graph is one stage of a pipeline: its units are cut into chunks, which are walked in the order
 * of a timetable. */
struct engine_pipe {
    struct comm *comm; /* borrowed: the stages of this copy of the model, ranks are stages */
    int kind;          /* enum timetable_kind */
    bool eager;
    const struct zero_chunk *chunks; /* borrowed, as the store was told */
    int chunk_count;
};

struct engine_config {
    int recompute;                  /* enum recompute */
    bool keep_swiglu;               /* see model_part: whoever builds the model tells it so */
    int64_t micro_batch;            /* B: sequences of a micro-batch */
    int64_t tokens;                 /* T */
    const struct engine_pipe *pipe; /* borrowed; NULL: the graph is the whole model */
    struct comm *group;             /* borrowed: the tensor-parallel ranks; NULL: this one alone */
    int64_t micro_batches; /* M of a step, over all workers; 0 = evaluation only: no backward */
};

extern const struct option_table engine_options; /* engine.* */

struct engine;
/* `graph` and `zero` are borrowed and outlive the engine. */
enum status engine_create(struct ops *ops, struct stream *stream, const struct unit_graph *graph,
                          struct zero *zero, const struct engine_config *config,
                          struct engine **engine);
void engine_destroy(struct engine *engine);

/* A step is walked in rounds; in each, this rank computes micro-batch engine_micro_batch(round) of
 * the step, or is idle (-1). Tokens and labels of a round go to host memory, (B, T) each: fill
 * those that are not idle, then step. */
const struct roster *engine_roster(const struct engine *engine);
int64_t engine_rounds(const struct engine *engine); /* 1 for evaluation only */
int64_t engine_micro_batch(const struct engine *engine, int64_t round);
void engine_batch(struct engine *engine, int64_t round, int32_t **tokens, int32_t **labels);

/* What the passes from now on belong to, for who waits for this rank: "step 12". Copied. */
void engine_label(struct engine *engine, const char *what);

struct engine_result {
    double loss; /* mean over the step's valid labels */
    double grad_norm;
    int64_t label_count;
    bool skipped;   /* loss or a gradient was not finite: nothing was updated */
    int bad_tensor; /* first tensor with a non-finite gradient, -1: the loss itself */
    int64_t bad_index;
    int64_t bad_micro_batch; /* first one of the step whose loss is not finite, -1: none */
    double loss_scale;       /* what the loss gradient was multiplied with; 1 unless fp16 */
    double next_loss_scale;  /* and will be in the next step */
    bool overflow;           /* skipped because the scale may have been too large: no fault yet */
};
/* One optimizer step over the filled micro-batches; t counts updates from 1. */
enum status engine_step(struct engine *engine, int64_t t, double lr, struct engine_result *result);

/* The scale of the next step's loss, for who keeps and continues a run; to set it does nothing
 * unless gradients are scaled. */
struct loss_scale engine_loss_scale(const struct engine *engine);
void engine_set_loss_scale(struct engine *engine, struct loss_scale scale);

/* Evaluate `count` micro-batches, dealt to the workers in rounds as those of a step are: round r of
 * this rank is in place r, unless it is idle in it. Their loss sums and counts of valid labels are
 * added one after the other. At most engine_eval_rounds rounds at once. Collective. */
enum status engine_eval(struct engine *engine, int64_t count, double *loss_sum,
                        int64_t *label_count);
/* Rounds that go faster together: what a pipeline has room for, otherwise 1. */
int64_t engine_eval_rounds(const struct engine *engine);

/* Only the gradients of the filled micro-batches, no update: read them with zero_read_gradient. For
 * tests and tools. */
enum status engine_gradients(struct engine *engine, struct engine_result *result);

/* Logits of the last `count` positions of each sequence of the micro-batch in place 0 without a
 * cache, to the host: (B, count, V) fp32. Needs room for them on the device: for tests. */
enum status engine_logits(struct engine *engine, int64_t count, float *logits);

/* *sum = the numbers of the copies of the model added up, each counted once however many ranks it is
 * spread over: for counts of data. Collective. */
enum status engine_sum(struct engine *engine, int64_t mine, int64_t *sum);
/* *sum = the numbers of all ranks of the job: for votes of the training loop. Collective. */
enum status engine_vote(struct engine *engine, int64_t mine, int64_t *sum);

/* What this rank has sent to others since the start. Not collective. */
struct traffic engine_traffic(const struct engine *engine);

/* --- where a step is, for plans that time it ------------------------------------------------- */
enum engine_point {
    ENGINE_PASS_BEGIN, /* of a pipeline's list, when what it needs of other stages has come; without
                          a pipeline a whole round is one, and a forward */
    ENGINE_PASS_END,
    ENGINE_PASSES_DONE,
    ENGINE_JUDGED /* all ranks know the norm */
};
/* `pass`: of the first two. */
typedef void engine_watch_fn(void *user, enum engine_point point,
                             const struct timetable_action *pass);
/* Call it at these points of every step, on the thread that steps; NULL: nobody. */
void engine_watch(struct engine *engine, engine_watch_fn *watch, void *user);

#endif
