/* plan -- the memory and traffic of a run before it starts: memory by category and bytes sent by
 * purpose, for every ZeRO stage.
 *
 * There is no second copy of the arithmetic. The run's own store and engine are built on a dry
 * device, which only counts memory, with a dry communicator, which only counts bytes, and one step
 * is run. So a plan cannot drift from what runs. The closed-form formulas (formula.h) are for
 * comparison.
 */
#ifndef PLAN_PLAN_H
#define PLAN_PLAN_H
#include "engine/spread.h"
#include "model/model.h"
#include "plan/formula.h"

enum { PLAN_ZERO_STAGES = 4, PLAN_RECOMPUTES = RECOMPUTE_COUNT };

struct plan_request {
    struct model_config model;   /* resolved */
    struct engine_config engine; /* micro_batches holds for the store, too */
    struct zero_config zero;     /* with the chosen ZeRO stage */
    struct parallel_config parallel;
    const char *ops;     /* the back end whose buffers are counted, and which prices calls: "cpu" */
    enum dtype compute;  /* the compute type */
    enum dtype products; /* that operands of products are rounded to: ops_multiply_in */
    bool staged;         /* messages go through host memory: see comm_create_dry */
    int ranks, threads;
    int64_t decode_tokens, decode_chunk; /* of text samples during training; 0 = none */
    int decode_rows;                     /* texts at once; 0 = 1 */
    bool decode_only;                    /* only text is generated: there is no engine */
    bool gpu;                            /* ranks compute on GPUs; device and host memory are
                                            separate */
    int capability;                      /* of the GPUs, as device_capability */
    bool saves_apart;                    /* checkpoints are saved in the background, which needs
                                            comm_dup "save" */
    int loop_votes;                      /* engine_vote calls per step of the training loop */
};

/* Refuse a layout that does not divide the ranks or the model. Every number that the message
 * suggests passes all checks. */
enum status plan_check_parallel(struct env *env, const struct model_config *model, int ranks,
                                const struct parallel_config *parallel);

/* One rank of a run. */
struct plan_rank {
    int rank;
    struct roster roster; /* among the ranks with the same PP stage */
    int p;                /* its PP stage */
    struct spread_counts part;
    size_t bytes[MEM_CATEGORY_COUNT], total_bytes; /* where the rank computes */
    size_t host_bytes;                             /* on the host, if the rank computes on a GPU;
                                                      otherwise 0 */
    size_t disk_bytes;                             /* of files that stand for memory */
    size_t state_bytes[MEM_LOCATION_COUNT];        /* params, gradients, optimizer state */
    size_t runtime_bytes; /* of a GPU: formula_gpu_runtime; 0 on a CPU, where it is small */
    int64_t sent[TRAFFIC_PURPOSE_COUNT];  /* bytes per step, to other ranks */
    int64_t calls[TRAFFIC_PURPOSE_COUNT]; /* that it takes part in, per step */
    int64_t moved[TRAFFIC_WAY_COUNT];     /* bytes of offloaded state per step */
};

/* Build one rank of the request and run a step. */
enum status plan_rank(struct env *env, const struct plan_request *request, int rank,
                      struct plan_rank *result);
/* Only build the rank: nothing is sent. `visit` (may be NULL) is called for every line of its
 * memory account. */
enum status plan_rank_memory(struct env *env, const struct plan_request *request, int rank,
                             mem_visit_fn *visit, void *user, struct plan_rank *result);

/* Only build the rank, and pass its part of the model to `look`. */
typedef enum status plan_graph_fn(void *user, struct env *env, const struct plan_rank *rank,
                                  const struct unit_graph *graph);
enum status plan_rank_graph(struct env *env, const struct plan_request *request, int rank,
                            plan_graph_fn *look, void *user);

struct plan_zero_stage {
    bool possible;           /* ZeRO stage 0 has no servers and no shard groups */
    struct plan_rank worker; /* the worker that needs the most memory where it computes, with the
                                most bytes of any worker on the host and on disk, and the traffic of
                                the first worker of its PP stage: the most, except for control (see
                                zero_norm.c) and muon (zero_muon.c) */
    struct plan_rank server; /* the same for servers; all zero without servers */
};

/* The pipeline, in the chosen ZeRO stage. */
struct plan_pipe {
    int pp, chunks;            /* pp 1: no pipeline, and no other field is set */
    int *first;                /* (pp * chunks + 1) the first unit of each virtual stage */
    struct plan_rank *workers; /* (pp) the worker of each stage that needs the most memory */
    int *
        in_flight; /* (pp) micro-batches between forward and backward, of all its chunks, at most */
    double bubble; /* idle seconds per second in passes, simulated: passes take as long as their
                      arithmetic and messages take no time */
};

struct plan {
    int64_t parameters;
    double flops_per_token;
    struct state_widths widths;
    int64_t rounds;       /* micro-batches per worker and step */
    int64_t idle_workers; /* in the last round */
    struct plan_zero_stage stages[PLAN_ZERO_STAGES];
    struct plan_pipe pipe;
    size_t activation_bytes[PLAN_RECOMPUTES]; /* by enum recompute, of a worker. In a pipeline: of
                                                 the stage that keeps the most, for all
                                                 micro-batches in flight */
    size_t block_bytes[PLAN_RECOMPUTES];      /* of these, one block and one micro-batch */
    size_t unsharded_bytes;                   /* model state of a single rank */
};

/* The caller frees *plan. */
enum status plan_make(struct env *env, const struct plan_request *request, struct plan *plan);
void plan_free(struct env *env, struct plan *plan);
int plan_pp_stages(const struct plan_request *request); /* parallel.pp, at least 1 */
int plan_tp(const struct plan_request *request);        /* parallel.tp, at least 1 */

/* The worker with the largest account of all PP stages, and the server with the largest account.
 * Only built, as by plan_rank_memory. */
enum status plan_worst_memory(struct env *env, const struct plan_request *request,
                              struct plan_zero_stage *result);

/* --- formulas for comparison --------------------------------------------------------------- */
/* Bytes per step that the formulas predict for this rank, by purpose. */
double plan_sent_formula(const struct plan_request *request, int64_t rounds,
                         const struct plan_rank *rank, int stage, enum traffic_purpose purpose);
/* Bytes that a block keeps, by formula. */
double plan_block_formula(const struct plan_request *request, int recompute);

/* --- a pipeline: plan_pipe.c ---------------------------------------------------------------- */
/* Fill in everything but the workers. */
enum status plan_pipe_make(struct env *env, const struct plan_request *request, int64_t rounds,
                           struct plan_pipe *pipe);
void plan_pipe_free(struct env *env, struct plan_pipe *pipe);
/* Draw the mesh of ranks and, unless it is too long to read, what each PP stage does when. */
enum status plan_pipe_draw(struct env *env, const struct plan_request *request, int64_t rounds,
                           struct text *text);

/* Called for each action of a step: of PP stage p, from `begin` to `end`, shares of the step. */
struct timetable_action;
typedef void plan_pipe_fn(void *user, int p, const struct timetable_action *action, double begin,
                          double end);
/* Visit what each PP stage does, stage after stage, in order; passes take as long as their
 * arithmetic. */
enum status plan_pipe_visit(struct env *env, const struct plan_request *request, int64_t rounds,
                            plan_pipe_fn *visit, void *user);

/* Params, gradients and optimizer state, wherever they are. */
size_t plan_state_bytes(const struct plan_rank *rank);
/* All bytes that must fit where the rank computes. */
size_t plan_needed_bytes(const struct plan_rank *rank);

/* Bytes of a rank by location: what it needs, or what it has. */
struct plan_room {
    size_t memory; /* where it computes */
    size_t host;   /* 0 if it computes there */
    size_t disk;
};
/* The most that any rank needs, in each location. */
struct plan_room plan_needs(const struct plan_zero_stage *stage);
/* Whether that is there. 0 = unknown: yes. */
bool plan_fits(const struct plan_zero_stage *stage, const struct plan_room *room);

/* --- offload: plan_offload.c ---------------------------------------------------------------- */
/* Keys that stay as the request has them. */
struct plan_offload_fixed {
    bool optimizer, grads, params, share;
};
/* Move state away from the device (offload.*), so that every rank fits: of all combinations of
 * places, the one whose bytes pass fastest, with the smallest share of the optimizer state that is
 * enough, in steps of 1/64. A location of which `room` has 0 bytes is not used, unless a fixed key
 * says so. If nothing fits, *fits is false, and *request and *stage are those of the attempt for
 * which the fewest bytes are missing. */
enum status plan_offload(struct env *env, const struct plan_room *room,
                         const struct plan_offload_fixed *fixed, struct plan_request *request,
                         struct plan_zero_stage *stage, bool *fits);
/* Whether any key is open, and there is room for what it would move. */
bool plan_may_offload(const struct plan_request *request, const struct plan_room *room,
                      const struct plan_offload_fixed *fixed);
/* Everything leaves that may leave. */
struct zero_offload plan_offload_most(const struct plan_request *request,
                                      const struct plan_room *room,
                                      const struct plan_offload_fixed *fixed);
/* Bytes by which the needs exceed the room, in all locations together. */
double plan_missing(const struct plan_zero_stage *stage, const struct plan_room *room);
/* Whether state, sums or params leave the device; and whether anything does. */
bool plan_is_offloaded(const struct plan_request *request);
bool plan_moves_anything(const struct plan_request *request);
/* The keys that would move more to disk: " offload.grads=disk offload.params=disk"; "" if nothing
 * is left. */
enum { PLAN_OFFLOAD_KEYS = 96 };
char *plan_offload_left(const struct zero_offload *offload, char out[PLAN_OFFLOAD_KEYS]);
/* Not on the device? Host memory is where ranks without a GPU compute. */
bool plan_is_far(const struct plan_request *request, enum far_kind kind);
/* What a ZeRO stage shards: also far params, which are gathered as in stage 3. */
struct sharding plan_sharding(const struct plan_request *request, int stage);

/* Build the model of the request on a dry device and pass its graph to `look`. */
typedef enum status plan_look_fn(void *user, struct env *env, const struct unit_graph *graph);
enum status plan_look(struct env *env, const struct plan_request *request, plan_look_fn *look,
                      void *user);

/* Bytes per parameter that is not frozen, with AdamW. */
struct state_widths plan_widths(const struct zero_config *store);

/* What the optimizers of the request make of the model: bytes per parameter on average, the bytes
 * of optimizer state of the tensor that has the least, and whether muon updates any. */
struct plan_optimizers {
    struct state_widths widths;
    double least;
    bool muon;
};
enum status plan_optimizers(struct env *env, const struct plan_request *request,
                            struct plan_optimizers *result);

/* Parameters, and floating-point operations per token. */
enum status plan_model(struct env *env, const struct plan_request *request, int64_t *parameters,
                       double *flops_per_token);

/* --- what would fit ------------------------------------------------------------------------- */
struct plan_advice {
    bool found;
    struct zero_offload offload;
    int stage, recompute;
    int prefetch, shard_group;
    int64_t micro_batch;
    int ranks; /* each has at least one micro-batch */
};
/* The smallest change with which every rank fits in the room: a lower ZeRO stage that fits, a
 * higher one, then larger shard groups, recomputation, smaller micro-batches, each on top of the
 * previous change. At any point prefetch is turned off if that is enough. Then the same again with
 * offload (plan_offload) of what the request leaves on the device, if the room has a host or a
 * disk; then more ranks of the same memory. */
enum status plan_advise(struct env *env, const struct plan_request *request,
                        const struct plan *plan, const struct plan_room *room,
                        struct plan_advice *advice);

#endif
