/* zero -- the store: parameters, gradients and optimizer state of a model, sharded over ranks.
 *
 * Before a pass the engine acquires the params of a unit, and after it releases them. It hands over
 * the gradients that a pass has written, and asks for the update when all micro-batches of a step
 * are in. Only the store knows which rank holds what. zero_create allocates all memory; a step
 * allocates nothing.
 *
 * The ZeRO stage says what is sharded: 0 nothing (every rank is a replica), 1 the optimizer state,
 * 2 also the gradients, 3 also the parameters. It decides who holds what and never changes a bit of
 * the result.
 *
 * A step's gradient is the sum of its micro-batches in their order: the first is stored, the others
 * are added one after the other in fp32. A param that several units use has one sum for each use;
 * the uses are added once per step, in unit order.
 *
 * With a 16-bit `type`, parameters and gradients are stored and sent in 2 bytes, and the owners
 * also hold fp32 masters. Frozen params, whose gradients no pass writes, have no masters, no
 * gradients and no moments: their 16-bit value is the only one. Where the ops compute in that type,
 * a pass reads params in place and writes gradients where they are sent from. Where the ops compute
 * in fp32, params are widened for each pass, but for those that it takes in bf16 (unit_type), and
 * each micro-batch's gradient is rounded once, on one rank as on many.
 */
#ifndef ZERO_ZERO_H
#define ZERO_ZERO_H
#include "base/options.h"
#include "comm/comm.h"
#include "comm/traffic.h"
#include "device/far.h"
#include "unit/unit_cut.h"
#include "unit/unit_merge.h"
#include "zero/optimizer.h"
#include "zero/roster.h"

struct zero_group {    /* optimizer.groups: the last group that matches a tensor's name applies */
    const char *match; /* glob */
    double lr_mul;
    double decay; /* instead of weight_decay */
    struct optimizer optimizer;
};

struct zero_chunk { /* units first .. end-1 */
    int first, end;
};

/* The pipeline, where the model is cut into PP stages: the cut, whose part for this rank is the
 * store's graph, and the ranks with the other PP stages of the same copy. Tensor indices in this
 * header are always those of the whole model.
 *
 * With tensor parallelism each rank has a store for its parts of the tensors; element indices in
 * this header are always those of whole tensors. Rank (d * pp + p) * tp + t of the job is rank d of
 * its store's communicator, has PP stage p, and is rank t of its TP group. */
struct zero_pipe {
    const struct unit_cut *cut; /* borrowed */
    struct comm *comm;          /* borrowed; rank p has PP stage p */
};

/* Elements of the summed gradient of a tensor, in the memory of the device. */
struct zero_gradient {
    int tensor;
    int64_t first, count; /* elements of the tensor */
    enum dtype type;
    void *values;
    double scale; /* factor of the loss */
};
/* Called by zero_judge before the norm is computed, for every element of every tensor exactly once
 * in a step, on the rank that has summed it. The values may be changed. */
typedef enum status zero_gradient_fn(void *user, const struct zero_gradient *gradient);

/* State in slower memory than the device's (zero_offload.c). It changes no bits. */
struct zero_offload {
    enum far_kind optimizer; /* masters and moments */
    enum far_kind grads;     /* summed gradients that only one rank holds */
    enum far_kind params;    /* parameters, sharded as in ZeRO stage 3 */
    double share;            /* of masters and moments that go there; the last pieces first */
    int64_t window;          /* bytes of device memory through which they pass; 0 = the least */
    const char *folder;      /* borrowed; FAR_DISK: where files without a name are made */
    bool on_host;            /* FAR_HOST: the CPU updates, where it can */
};

struct zero_config {
    struct optimizer optimizer; /* of tensors that no group matches */
    double weight_decay;
    double clip;                     /* of the global gradient norm; 0 = off */
    double meta_clip;                /* the same for the tensors of PHASE_META */
    const struct zero_group *groups; /* borrowed */
    int group_count;
    int64_t micro_batches; /* per step at most, over all workers; 0 = a read-only store (evaluation,
                              sampling): no gradients, no optimizer */
    int stage;             /* ZeRO stage, 0 to 3 */
    int prefetch;          /* how many units ahead of compute params are gathered */
    int servers;           /* the last `servers` ranks own all shards and compute nothing; 0 = all
                              ranks own shards */
    int64_t bucket;  /* bytes of a message: larger pieces are sent in several, and smaller ones are
                       merged (zero_merge); 0 = a piece is a message */
    int unit_layers; /* units whose pieces are merged; 0 = 1 */
    int shard_group; /* ranks that together hold one copy of the state; 0 = all ranks */
    bool local; /* each worker sums its own micro-batches in sum_type and sends the sum once per
                   step: the bits then depend on the number of workers */
    enum dtype type;     /* of parameters and gradients: f32, bf16 or f16. Ops have the same type or
                            f32. A read-only store has the type of the ops */
    enum dtype sum_type; /* of the summed gradient: f32, or bf16 (each round's sum is formed in f32
                            and rounded once: the bits depend on the number of workers) */
    bool stochastic;     /* round masters to 16-bit params at random; the random bits follow from */
    uint64_t seed;       /* this seed, tensor name, element, and number of the update */
    const struct zero_pipe *pipe; /* borrowed; NULL: the graph is the whole model */
    struct comm *tp_group;        /* borrowed; NULL: no tensor parallelism. Passes use it, too, but
                                     not beyond their end */
    const struct zero_chunk *chunks; /* borrowed; units that are walked forward and, later, back */
    int chunk_count;                 /* 0 = all units are walked forward and back at once */
    struct zero_offload offload;
    bool snapshot; /* allocate host memory for zero_snapshot */
    bool noise;    /* add up squares for the noise scale; needs at least two micro-batches a step */
    zero_gradient_fn *gradient; /* NULL: none; not with tensor parallelism */
    void *gradient_user;
};

/* What applies to a tensor: of the last group that matches it, or of the run. */
struct optimizer zero_optimizer_of(const struct zero_config *config,
                                   const struct unit_tensor *tensor);

/* Which pieces the creator of the graph should merge. */
struct unit_merge zero_merge(const struct zero_config *config);

struct zero;
/* `comm` is borrowed; NULL: one rank. Collective, as is everything below unless stated
 * otherwise. */
enum status zero_create(struct ops *ops, struct stream *stream, struct comm *comm,
                        const struct unit_graph *graph, const struct zero_config *config,
                        struct zero **zero);
void zero_destroy(struct zero *zero);
const struct roster *zero_roster(const struct zero *zero);
/* No other rank holds, and so reads from a file, what this one does. */
bool zero_held_once(const struct zero *zero);
/* Passes read params from where they always are, complete and in the compute type: nothing is
 * gathered, widened or waited for between acquire and release, so a pass may be recorded. */
bool zero_in_place(const struct zero *zero);
bool zero_wants_scaling(const struct zero *zero); /* type f16: small gradients would underflow */
/* For small exchanges on the host; NULL: one rank. */
struct comm *zero_comm(const struct zero *zero);
/* Wait for everything this rank has enqueued, including the gathers that follow an update. Not
 * collective. But it runs pending updates first, and their gathers wait for the other ranks: these
 * must also settle, or begin the next step. */
enum status zero_settle(struct zero *zero);
/* Have the copies from far memory that passes needed succeeded? Waits for those of params. A pass
 * does not stop where a disk fails, so ask before its results are used. */
enum status zero_check(struct zero *zero);

/* --- reading and writing parameters: element ranges of one tensor, in fp32 on the host. Where
 * there are masters, these are meant; 16-bit params without masters (of a read-only store, and
 * frozen ones) round what is written to nearest --------- */
enum status zero_init(struct zero *zero, uint64_t seed); /* value = f(seed, tensor name, element) */
enum status zero_read(struct zero *zero, int tensor, int64_t first, int64_t count, float *out);
/* Each rank stores the part that it holds; call zero_publish afterwards to update everything that
 * is derived from it. `updates` is the number of updates so far: randomly rounded params get the
 * bits that the last update gave them. */
enum status zero_write(struct zero *zero, int tensor, int64_t first, int64_t count,
                       const float *values);
enum status zero_publish(struct zero *zero, int64_t updates);

/* --- reading and writing the whole state of a store that trains, on the host. Not collective.
 *
 * A state of a tensor is an array as it is saved: the masters in fp32, one value per element, and
 * for frozen tensors the params as fp32 (a checkpoint has them as params only); each moment as its
 * optimizer keeps it, in fp32, or as one code per element with one scale per block (ops_code8.h);
 * or nothing. With tensor parallelism, blocks are those of a rank's part of the tensor, so codes
 * are saved as fp32. Indices are elements, and blocks in arrays of scales ---- */
enum zero_state {
    ZERO_MASTER,
    ZERO_MOMENTUM,
    ZERO_VARIANCE,
    ZERO_MOMENTUM_SCALES,
    ZERO_VARIANCE_SCALES,
    ZERO_STATES
};
struct zero_array {
    enum dtype type; /* f32, or u8: codes or scales */
    int64_t count;   /* of the whole tensor; 0: nothing is saved */
};
struct zero_array zero_state_array(const struct zero *zero, enum zero_state state, int tensor);
struct zero_range { /* of an array; an empty range is {0, 0} */
    int64_t first, count;
};
enum { ZERO_RANGES = 3 };
struct zero_ranges {
    struct zero_range at[ZERO_RANGES]; /* in ascending order, none of them empty */
    int count;
};
/* What `rank` of the job saves of an array. Everything is saved by exactly one rank. */
struct zero_ranges zero_state_to_save(const struct zero *zero, enum zero_state state, int tensor,
                                      int rank);
/* What this rank needs when the state is loaded: from the first to the last that it holds. In a
 * read-only store, ZERO_MASTER stands for the params. */
struct zero_range zero_state_held(const struct zero *zero, enum zero_state state, int tensor);
/* Read a range that this rank holds. */
enum status zero_state_read(struct zero *zero, enum zero_state state, int tensor, int64_t first,
                            int64_t count, void *out);
/* Write a range: the rank stores the part that it holds; call zero_publish afterwards. `type` is
 * that of the array, or f32 where the store has codes: it encodes to nearest, and the ranges must
 * come in ascending order, without gaps in what it holds. */
enum status zero_state_write(struct zero *zero, enum zero_state state, int tensor, int64_t first,
                             int64_t count, enum dtype type, const void *values);
/* Copy what this rank saves (needs config.snapshot) and wait for the copy. Far state is not copied:
 * updates of it wait until zero_snapshot_pass. Collective over the TP group, and there the only way
 * to read what each rank saves. */
enum status zero_snapshot(struct zero *zero);
/* An address in the copy; NULL: far state. Any thread may read it until the next snapshot. */
const void *zero_snapshot_at(const struct zero *zero, enum zero_state state, int tensor,
                             int64_t first);
/* *data = that address; of far state `room`, to which `count` elements or scales are copied. Any
 * thread may call it, and the following. */
enum status zero_snapshot_read(struct zero *zero, enum zero_state state, int tensor, int64_t first,
                               int64_t count, void *room, const void **data);
/* What this rank saves of the tensors before `tensor` has been read; or of all of them. */
void zero_snapshot_pass(struct zero *zero, int tensor);
void zero_snapshot_end(struct zero *zero);

/* No pass writes the tensor's gradient: it is never updated. */
bool zero_tensor_is_frozen(const struct zero *zero, int tensor);
/* The optimizer of a tensor that is not frozen. */
const struct optimizer *zero_optimizer(const struct zero *zero, int tensor);
/* Bytes of moments that a rank of the job with the same PP stage has, and whether that depends on
 * the rank: where tensors of a piece have different forms, or blocks that end inside another's. */
size_t zero_moments_of(const struct zero *zero, int rank);
bool zero_moments_vary(const struct zero *zero);

/* Blocks of codes, as they are saved: block b of a tensor has its elements from 64 b - skip on. */
int zero_code_skip(const struct unit_graph *graph, int tensor);
struct zero_range zero_code_blocks(int skip, struct zero_range elements);
/* out = codes of ZERO_MOMENTUM or ZERO_VARIANCE as fp32. Element i has scales[(skip + i) / 64]. */
void zero_decode(enum zero_state state, const uint8_t *codes, const uint8_t *scales, int64_t skip,
                 int64_t count, int threads, float *out);

/* --- inside a step, called by the engine ---------------------------------------------------- */
/* The number of micro-batches of the following steps, at most config.micro_batches, with which the
 * store begins. Memory and types of sums follow from the largest number, and bits do not depend on
 * it. The same on every rank. */
enum status zero_set_micro_batches(struct zero *zero, int64_t count);
/* Begin a walk of one micro-batch over units first .. end-1: over a chunk, forward or backward, or,
 * without chunks, over all units in both directions. A forward walk may end before the last
 * unit. */
void zero_walk(struct zero *zero, int first, int end, enum walk_way way);
/* Set run->params for the params that `pass` of unit `u` reads; they are valid until the release.
 * An idle worker or a server makes the same calls and gets no usable pointers. */
void zero_acquire(struct zero *zero, int u, enum pass pass, struct unit_run *run);
void zero_release(struct zero *zero, int u, enum pass pass);
/* Set run->grads and run->sums for the gradients that `pass` of unit `u` writes (not called by idle
 * ranks). When the pass is enqueued, zero_reduce hands them over as part of `round` (called by all
 * ranks; added: run->sums.added, 0 on idle ranks). */
void zero_grads(struct zero *zero, int u, enum pass pass, int64_t round, struct unit_run *run);
void zero_reduce(struct zero *zero, int u, enum pass pass, int64_t round, uint32_t added);

/* --- the end of a step ---------------------------------------------------------------------- */
struct zero_verdict {
    double grad_norm;  /* of the gradient of PHASE_MAIN, unscaled and before clipping; not finite
                          when a gradient is not */
    double meta_norm;  /* the same for PHASE_META; 0 where the model has none */
    int bad_tensor;    /* first tensor with a non-finite gradient; -1: none */
    int64_t bad_index; /* the first such element in it */
    /* With config.noise: the weighted squares of the micro-batches' gradients, and the squares of
     * their sum, both unscaled (zero_noise.c). */
    double each_square, sum_square;
};
/* Sum the uses, apply the gates and limits of the tensors (unit.h), compute the norms, and find
 * non-finite gradients. `scale` is the factor of the loss. `statistics` is the model's summed
 * statistic in device memory; NULL where no tensor is gated. */
enum status zero_judge(struct zero *zero, double scale, const float *statistics,
                       struct zero_verdict *verdict);
/* Update with clipping, for step t = 1, 2, ... (bias correction) and learning rate lr. Only after a
 * finite verdict. Where every rank holds the whole state, a piece is updated when it is used next:
 * the sums of the other ranks arrive meanwhile (zero_sums.c). Nobody sees params from before. */
enum status zero_update(struct zero *zero, int64_t t, double lr, double scale,
                        const struct zero_verdict *verdict);

/* The step's scalars in device memory. zero_loss_scale sets the factor of the loss gradient for the
 * following passes: scale / count. */
const struct step_scalars *zero_scalars(const struct zero *zero);
void zero_loss_scale(struct zero *zero, double scale, double count);

/* With config.noise: the weight of each micro-batch's squares, (micro_batches), to be set before
 * the first pass of a step. NULL: they are not added. */
double *zero_weights(const struct zero *zero);

/* For tests and tools: the summed gradient of one tensor, still multiplied by the loss scale. Valid
 * between zero_judge and the next step. */
enum status zero_read_gradient(struct zero *zero, int tensor, int64_t first, int64_t count,
                               float *out);

/* What this store has sent to other ranks and moved to and from far memory since it was created;
 * sent[TRAFFIC_PIPE] and `stalled` are the engine's. Not collective. */
struct traffic zero_traffic(const struct zero *zero);

/* What this rank has of the tensors that Muon updates, in elements. Not collective. */
struct muon_counts {
    int64_t given; /* of the tensors that it orthogonalizes */
    int64_t held;  /* its part of the tensors that the owners of its copy orthogonalize */
    int64_t kept;  /* its part of those that it orthogonalizes itself */
};
struct muon_counts zero_muon_counts(const struct zero *zero);

/* For tests: every gather of params, and of sums between replicas, takes `seconds` longer.
 * Only with more than one rank. */
void zero_slow_gathers(struct zero *zero, double seconds);

#endif
