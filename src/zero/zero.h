/* zero -- the store: parameters, gradients and optimizer state of a graph, cut among their
 * owners.
 *
 * The engine asks for the params of a unit before a pass and lets go of them after it, hands
 * gradients over when a pass has written them, and asks for the update when all micro-batches of
 * a step are in. Which rank holds what is decided here and seen nowhere else. All memory is
 * taken by zero_create; a step allocates nothing.
 *
 * `stage` says what is cut into slices: 0 nothing (replicas), 1 the optimizer state, 2 the
 * gradients too, 3 the parameters too. It changes who holds what and never a bit of the result.
 *
 * A step's gradient is the sum of its micro-batches in their order: the first is stored, the
 * others are added in fp32, one after the other. A param that several units use has one sum for
 * each use; the uses are added once, in unit order.
 *
 * With a 16-bit `type` parameters and gradients are stored and sent in 2 bytes, beside fp32 masters
 * at the owners. Where ops compute in that type, a pass reads params in place and writes gradients
 * where they are sent from. Where ops compute in fp32 all the same, params are widened for a pass,
 * and a micro-batch's gradient is rounded once, by one rank as by many.
 */
#ifndef ZERO_ZERO_H
#define ZERO_ZERO_H
#include "base/options.h"
#include "comm/comm.h"
#include "comm/traffic.h"
#include "unit/unit_cut.h"
#include "zero/roster.h"

struct zero_group {    /* optimizer.groups: the last that matches a tensor's name wins */
    const char *match; /* glob */
    double lr_mul, wd_mul;
};

struct zero_chunk { /* units first .. end-1 */
    int first, end;
};

/* Where the model is cut into pipeline stages: this one's part, which is the store's graph, and the
 * ranks that have the other stages of the same copy. Tensors are still those of the whole model,
 * everywhere below.
 *
 * Where ranks compute a model's layers together (tensor parallel), each has a store for its parts of
 * the tensors; elements below are still those of whole tensors. Rank (d * stages + p) * team + t of
 * the job is rank d of its store's communicator, has stage p, and is rank t of its team. */
struct zero_pipe {
    const struct unit_cut *cut; /* borrowed */
    struct comm *comm;          /* borrowed; ranks are stages */
};

struct zero_config {
    double beta1, beta2, eps, weight_decay;
    double clip;                     /* of the global gradient norm; 0 = off */
    const struct zero_group *groups; /* borrowed */
    int group_count;
    int64_t micro_batches; /* of a step, over all workers; 0 = the store only reads (evaluation,
                              sampling): no gradients, no optimizer */
    int stage;             /* 0 to 3 */
    int prefetch;          /* units whose gather is under way ahead of the one that computes */
    int servers;     /* the last so many ranks own everything and compute nothing; 0 = all own */
    int shard_group; /* so many neighbours hold one copy of the state, other groups another; 0 = all
                        ranks hold one */
    bool
        local; /* each worker adds its own micro-batches and sends their sum: other bits for another
                   number of workers */
    enum dtype type;     /* of parameters and gradients: f32, bf16 or f16; that of ops, or ops are
                            f32. A store that only reads has that of ops */
    enum dtype sum_type; /* of the summed gradient: f32, or bf16 (a round's sum formed in f32 and
                            rounded once; other bits for another number of workers) */
    bool stochastic; /* 16-bit params are their masters rounded at random, by bits that follow */
    uint64_t seed;   /* from this, name and element of the tensor, and the update's number */
    const struct zero_pipe *pipe; /* borrowed; NULL: the graph is the whole model */
    struct comm *tp_group;        /* borrowed: the tensor-parallel ranks, used by whoever computes
                                        too, who is done with it at the end of a pass; NULL: this one alone */
    const struct zero_chunk *chunks; /* borrowed: units that are walked there, and later back; */
    int chunk_count;                 /* 0 = all units at once, there and back */
    bool snapshot;                   /* room on the host for a copy of what this rank is to save */
};

struct zero;
/* `comm` is borrowed, NULL: one rank. Collective, as is everything below unless it says
 * otherwise. */
enum status zero_create(struct ops *ops, struct stream *stream, struct comm *comm,
                        const struct unit_graph *graph, const struct zero_config *config,
                        struct zero **zero);
void zero_destroy(struct zero *zero);
const struct roster *zero_roster(const struct zero *zero);
bool zero_held_once(const struct zero *zero); /* no other rank reads what this one does of a file */
/* Passes read params where they are for ever, whole and in the compute type: nothing is gathered,
 * widened or waited for between acquire and release, so that a pass may be recorded. */
bool zero_in_place(const struct zero *zero);
bool zero_wants_scaling(const struct zero *zero); /* small gradients would be lost: type f16 */
struct comm *
zero_comm(const struct zero *zero); /* for small exchanges of the host; NULL: one rank */

/* Wait until all that this rank has enqueued is done: an update's gathers go on after it. Not
 * collective. */
enum status zero_settle(struct zero *zero);

/* --- parameters from and to outside: element ranges of one tensor, in fp32 on the host; where
 * there are masters, these; a 16-bit store that only reads rounds what is written ------------- */
enum status zero_init(struct zero *zero, uint64_t seed); /* value = f(seed, tensor name, element) */
enum status zero_read(struct zero *zero, int tensor, int64_t first, int64_t count, float *out);
/* Each rank takes what it holds of it; zero_publish afterwards brings all that is made of it up to
 * date. `updates` is how many there have been: what is rounded at random has the bits that the last
 * of them gave it. */
enum status zero_write(struct zero *zero, int tensor, int64_t first, int64_t count,
                       const float *values);
enum status zero_publish(struct zero *zero, int64_t updates);

/* --- the whole state from and to outside, in fp32 on the host; a store that learns. Not
 * collective ---------------------------------------------------------------------------------- */
enum zero_state { ZERO_MASTER, ZERO_MOMENTUM, ZERO_VARIANCE, ZERO_STATES };
struct zero_range { /* elements of a tensor; count 0: none, and first is 0 */
    int64_t first, count;
};
enum { ZERO_RANGES = 3 };
struct zero_ranges {
    struct zero_range at[ZERO_RANGES]; /* in ascending order, none of them empty */
    int count;
};
/* What `rank` of the job is to save of a tensor: every element is one rank's. */
struct zero_ranges zero_state_to_save(const struct zero *zero, int tensor, int rank);
/* What this rank must be given when the state is loaded: from the first to the last element that it
 * holds. */
struct zero_range zero_state_held(const struct zero *zero, int tensor);
/* Read a range that this rank holds; give it one, of which it takes what it holds. After writing,
 * zero_publish. */
enum status zero_state_read(struct zero *zero, enum zero_state state, int tensor, int64_t first,
                            int64_t count, float *out);
enum status zero_state_write(struct zero *zero, enum zero_state state, int tensor, int64_t first,
                             int64_t count, const float *values);
/* Copy what this rank is to save (config.snapshot) and wait for it; then the address of an element
 * in the copy, which may be read by any thread until the next one is made. Tensor-parallel ranks
 * make it together, and it is the only way to what they are to save. */
enum status zero_snapshot(struct zero *zero);
const float *zero_snapshot_at(const struct zero *zero, enum zero_state state, int tensor,
                              int64_t first);

/* --- inside a step, called by the engine ---------------------------------------------------- */
/* A walk of one micro-batch over units first .. end-1 begins: those of a chunk there or back, or all
 * of them both ways where there are no chunks. There, it may end before the last of them. */
void zero_walk(struct zero *zero, int first, int end, enum walk_way way);
/* Pointers to the params that `pass` of unit `u` reads, valid until the release. A rank that is
 * idle or a server makes the same calls; it gets no pointers it may use. */
void zero_acquire(struct zero *zero, int u, enum pass pass, struct unit_run *run);
void zero_release(struct zero *zero, int u, enum pass pass);
/* Places for the gradients that `pass` of unit `u` writes (not called by idle ranks); then, when
 * the pass is enqueued, hand them over (called by all) as part of `round` of the step. */
void zero_grads(struct zero *zero, int u, enum pass pass, int64_t round, struct unit_run *run);
void zero_reduce(struct zero *zero, int u, enum pass pass, int64_t round);

/* --- the end of a step ---------------------------------------------------------------------- */
struct zero_verdict {
    double grad_norm;  /* of the whole gradient, unscaled, before clipping; not finite when a
                          gradient is not */
    int bad_tensor;    /* first tensor with a non-finite gradient, -1: none */
    int64_t bad_index; /* and the element in it */
};
/* Sum the uses, form the norm, find what is not finite. `scale` is what the loss was multiplied
 * with. */
enum status zero_judge(struct zero *zero, double scale, struct zero_verdict *verdict);
/* AdamW with clipping, for step t = 1, 2, ... (bias correction) and learning rate lr. Only after a
 * finite verdict. */
enum status zero_update(struct zero *zero, int64_t t, double lr, double scale,
                        const struct zero_verdict *verdict);

/* The step's scalars in device memory; zero_loss_scale sets the factor of the loss gradient for the
 * coming passes. */
const struct step_scalars *zero_scalars(const struct zero *zero);
void zero_loss_scale(struct zero *zero, double scale, int64_t label_count);

/* For tests and tools: the summed gradient of one tensor, as scaled (valid between zero_judge
 * and the next step). */
enum status zero_read_gradient(struct zero *zero, int tensor, int64_t first, int64_t count,
                               float *out);

/* What this store has sent to other ranks since it was created; sent[TRAFFIC_PIPE] and `stalled`
 * are the engine's. Not collective. */
struct traffic zero_traffic(const struct zero *zero);

/* For tests: every gather of parameters takes so much longer. Only where there are any. */
void zero_slow_gathers(struct zero *zero, double seconds);

#endif
