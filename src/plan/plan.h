/* plan -- what a run takes and sends, before it: memory by category and volume by purpose, for every
 * stage.
 *
 * There is no second copy of the arithmetic: the store and the engine of the run are built on the
 * dry device, where memory is only counted, with a dry communicator, where bytes are only counted,
 * and one step is walked. So a plan cannot drift from what runs. The closed formulas beside it
 * (formula.h) are for comparison.
 */
#ifndef PLAN_PLAN_H
#define PLAN_PLAN_H
#include "engine/spread.h"
#include "model/model.h"
#include "plan/formula.h"

enum { PLAN_ZERO_STAGES = 4, PLAN_RECOMPUTES = RECOMPUTE_COUNT };

struct plan_request {
    struct model_config model;   /* resolved */
    struct engine_config engine; /* micro_batches counts for the store too */
    struct zero_config zero;     /* with the stage that was chosen */
    struct parallel_config parallel;
    const char *ops;    /* the back end whose buffers are laid out: "cpu" */
    enum dtype compute; /* in which it computes */
    bool staged;        /* messages go through the host's memory: see comm_create_dry */
    int ranks, threads;
    int64_t decode_tokens, decode_chunk; /* of samples during training; 0 = none */
    bool gpu;                            /* it computes on a GPU, whose memory is not the host's */
    bool saves_apart;                    /* checkpoints in the background: see comm_dup "save" */
    int loop_votes;                      /* engine_vote calls that the loop around a step makes */
};

/* Refuse a layout that does not go with the ranks and the model; every number that the message suggests passes. */
enum status plan_check_parallel(struct env *env, const struct model_config *model, int ranks,
                                const struct parallel_config *parallel);

/* One rank of a run. */
struct plan_rank {
    int rank;
    struct roster roster; /* among those with the same stage of the pipeline */
    int p;                /* which that is */
    struct spread_counts part;
    size_t bytes[MEM_CATEGORY_COUNT], total_bytes; /* where it computes */
    size_t host_bytes;                             /* on the host beside a GPU; 0 = no GPU */
    size_t runtime_bytes; /* of a GPU: formula_gpu_runtime; 0 on the host, where it is small */
    int64_t sent[TRAFFIC_PURPOSE_COUNT]; /* bytes of a step, to other ranks */
};

/* Build one rank of the request as it is, and walk a step. */
enum status plan_rank(struct env *env, const struct plan_request *request, int rank,
                      struct plan_rank *result);
/* Only build it: nothing is sent. `visit` (NULL: none) is shown every line of its memory. */
enum status plan_rank_memory(struct env *env, const struct plan_request *request, int rank,
                             mem_visit_fn *visit, void *user, struct plan_rank *result);

struct plan_zero_stage {
    bool possible;           /* servers and groups are not in stage 0 */
    struct plan_rank worker; /* the one that takes the most memory, with what the first of its stage
                                of the pipeline sends: the most, but for control (see zero_norm.c) */
    struct plan_rank server; /* the same; without servers: all zero */
};

/* A pipeline, in the chosen ZeRO stage. */
struct plan_pipe {
    int pp, chunks;            /* pp 1: there is none, and nothing else is set */
    int *first;                /* (pp * chunks + 1) the first unit of each virtual stage */
    struct plan_rank *workers; /* (pp) the one of each stage that takes the most */
    int *
        in_flight; /* (pp) micro-batches between forward and backward, of all its chunks, at most */
    double bubble; /* idle seconds for each second in passes, if passes take as long as their
                       arithmetic and messages take none: simulated */
};

struct plan {
    int64_t parameters;
    double flops_per_token;
    int64_t rounds;       /* micro-batches of a worker in a step */
    int64_t idle_workers; /* in the last round */
    struct plan_zero_stage stages[PLAN_ZERO_STAGES];
    struct plan_pipe pipe;
    size_t activation_bytes[PLAN_RECOMPUTES]; /* by enum recompute, of a worker; in a pipeline of
                                                 the stage that keeps most, for all in flight */
    size_t block_bytes[PLAN_RECOMPUTES];      /* of these, for a micro-batch, those of one block */
    size_t unsharded_bytes;                   /* model state of one rank alone */
};

/* The caller frees *plan. */
enum status plan_make(struct env *env, const struct plan_request *request, struct plan *plan);
void plan_free(struct env *env, struct plan *plan);
int plan_pp_stages(const struct plan_request *request); /* parallel.pp, at least 1 */
int plan_tp(const struct plan_request *request);        /* parallel.tp, at least 1 */

/* The worker with the largest account over all stages of the pipeline, and such a server. Only
 * built, as by plan_rank_memory. */
enum status plan_worst_memory(struct env *env, const struct plan_request *request,
                              struct plan_zero_stage *result);

/* --- activations: plan_activations.c -------------------------------------------------------- */
/* Fills activation_bytes and block_bytes. */
enum status plan_activations_make(struct env *env, const struct plan_request *request,
                                  struct plan *plan);

/* --- beside the formulas: plan_formula.c ---------------------------------------------------- */
/* What the formulas say that this rank of the plan sends in a step, by purpose. */
double plan_sent_formula(const struct plan_request *request, int64_t rounds,
                         const struct plan_rank *rank, int stage, enum traffic_purpose purpose);
/* And that a block keeps. */
double plan_block_formula(const struct plan_request *request, int recompute);

/* --- a pipeline: plan_pipe.c ---------------------------------------------------------------- */
/* What plan_make says of it beside its ranks. */
enum status plan_pipe_make(struct env *env, const struct plan_request *request, int64_t rounds,
                           struct plan_pipe *pipe);
void plan_pipe_free(struct env *env, struct plan_pipe *pipe);
/* The map of the ranks and, unless it is too long to be read, what each stage does when. */
enum status plan_pipe_draw(struct env *env, const struct plan_request *request, int64_t rounds,
                           struct text *text);

size_t plan_state_bytes(const struct plan_rank *rank); /* params, gradients, optimizer state */
/* All that must fit where it computes. */
size_t plan_needed_bytes(const struct plan_rank *rank);
/* Does every rank of the stage fit in `memory` bytes? 0 = not known: yes. */
bool plan_fits(const struct plan_zero_stage *stage, size_t memory);

/* The model of the request, on nothing: `look` is shown its graph. */
typedef enum status plan_look_fn(void *user, struct env *env, const struct unit_graph *graph);
enum status plan_look(struct env *env, const struct plan_request *request, plan_look_fn *look,
                      void *user);

/* Parameters and floating-point operations of a token. */
enum status plan_model(struct env *env, const struct plan_request *request, int64_t *parameters,
                       double *flops_per_token);

/* --- what would fit ------------------------------------------------------------------------- */
struct plan_advice {
    bool found;
    int stage, recompute;
    int prefetch, shard_group;
    int64_t micro_batch;
    int ranks; /* each has a micro-batch */
};
/* The least change that fits every rank into `memory` bytes: a lower stage that does, a higher one,
 * then larger groups, recomputation, smaller micro-batches, more ranks of the same memory, each on
 * top of the one before; and at any point no prefetch, if that is enough. */
enum status plan_advise(struct env *env, const struct plan_request *request,
                        const struct plan *plan, size_t memory, struct plan_advice *advice);

#endif
