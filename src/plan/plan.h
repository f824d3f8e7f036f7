/* plan -- what a run takes and sends, before it: memory by category and volume by way, for every
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

enum { PLAN_STAGES = 4, PLAN_RECOMPUTES = 3 };

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
    bool card;                           /* it computes on a card, whose memory is not the host's */
    int loop_sums;                       /* engine_sum calls that the loop around a step makes */
};

/* One rank of a run. */
struct plan_rank {
    struct roster roster;
    size_t bytes[MEM_CATEGORY_COUNT], total_bytes; /* where it computes */
    size_t host_bytes;                             /* on the host beside a card; 0 = no card */
    size_t runtime_bytes; /* of a card: formula_card_runtime; 0 on the host, where it is small */
    int64_t sent[ZERO_WAY_COUNT]; /* bytes of a step, to other ranks */
};

/* Build one rank of the request as it is, and walk a step. */
enum status plan_rank(struct env *env, const struct plan_request *request, int rank,
                      struct plan_rank *result);
/* Only build it: nothing is sent. `visit` (NULL: none) is shown every line of its memory. */
enum status plan_rank_memory(struct env *env, const struct plan_request *request, int rank,
                             mem_visit_fn *visit, void *user, struct plan_rank *result);

struct plan_stage {
    bool possible;           /* servers and groups are not in stage 0 */
    struct plan_rank worker; /* memory of the one that takes the most; what the first sends: the
                                most, but for control (see zero_norm.c) */
    struct plan_rank server; /* without servers: all zero */
};

struct plan {
    int64_t parameters;
    double flops_per_token;
    int64_t rounds;       /* micro-batches of a worker in a step */
    int64_t idle_workers; /* in the last round */
    struct plan_stage stages[PLAN_STAGES];
    size_t activation_bytes[PLAN_RECOMPUTES]; /* by enum recompute, of a worker */
    size_t unsharded_bytes;                   /* model state of one rank alone */
};

enum status plan_make(struct env *env, const struct plan_request *request, struct plan *plan);

size_t plan_state_bytes(const struct plan_rank *rank); /* params, gradients, optimizer state */
/* All that must fit where it computes. */
size_t plan_needed_bytes(const struct plan_rank *rank);
/* Does every rank of the stage fit in `memory` bytes? 0 = not known: yes. */
bool plan_fits(const struct plan_stage *stage, size_t memory);

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
