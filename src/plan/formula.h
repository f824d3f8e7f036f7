/* formula -- what the literature predicts for one rank in closed form: model state and traffic by
 * ZeRO stage, traffic of TP groups, activations of a layer.
 *
 * Psi parameters, no padding, no buffers: a plan's exact figures are compared with these. A worker
 * holds whatever its ZeRO stage does not shard; an owner holds its shard of the rest.
 */
#ifndef PLAN_FORMULA_H
#define PLAN_FORMULA_H
#include "engine/spread.h"
#include "zero/partition.h"
#include "zero/roster.h"

/* Bytes per parameter. */
struct state_widths {
    double param, grad, optimizer;
    double local; /* of a worker's own sum of gradients, with zero.accumulate: local; 0 without */
};
extern const struct state_widths state_fp32;  /* 4, 4 and 8 (momentum and variance) */
extern const struct state_widths state_mixed; /* 2, 2 and 12 (also a master copy): the paper's K */

/* Bytes of params, gradients and optimizer state of the roster's rank. A worker that sums its own
 * micro-batches has all gradients in every ZeRO stage, and the owner's sum is a part of these. */
double formula_state(const struct roster *roster, struct sharding cut, double parameters,
                     struct state_widths widths);

struct volume {
    double parameters;
    double frozen;       /* of these: no gradients, no updates */
    double once;         /* of these: read in forward passes only */
    int64_t rounds;      /* micro-batches per worker and step */
    int64_t reductions;  /* how often it sends gradients: after each micro-batch, or once */
    double value, total; /* bytes of a param or gradient, and of a summed gradient, on the wire */
    struct muon_counts muon; /* of the rank */
    double direction;        /* bytes of an element of these on the wire */
    double borrowed, lent;   /* params that another PP stage owns; params that another PP stage also
                              uses */
    double messages, message_bytes; /* to other PP stages, per micro-batch */
    int tp;                         /* TP ranks; 0 or 1: none */
    double meetings, stream_bytes;  /* calls per micro-batch, each of which sends (tp-1)/tp of the
                                       stream */
    double loss_rows;               /* rows for which it sends its part of the loss */
    double partial;                 /* elements of partial gradients that it sends, once per step */
    bool norms; /* it adds the norms of the TP ranks: one rank of a store does */
};
/* Bytes that the rank sends in a step. Params are gathered once, if they were updated, or twice per
 * micro-batch where they are sharded. Replicas of a shard (in ZeRO stage 0: all ranks) exchange
 * what each has summed of it. A shard of a lent piece is sent to the other PP stage once, and its
 * summed gradient comes back. The owners of a copy send the directions that Muon orthogonalizes to
 * the rank that does it, which sends the results to all owners: held - kept + copies * given -
 * kept. With C copies of G shards, N = C G, this is (C + 1 - 2/G)/N of the matrices on average: 2
 * (N-1)/N^2 with one copy, (N-1)/N in ZeRO stage 0. TP ranks communicate in every layer
 * (formula_meetings), exchange three numbers per row for the loss and one for the norm. Exact where
 * shards are whole blocks of 64 and backward passes read all params. There is no formula for
 * control: 0. */
double formula_sent(const struct roster *roster, struct sharding cut, const struct volume *volume,
                    enum traffic_purpose purpose);

/* --- TP groups ------------------------------------------------------------------------------ */
/* What a rank has of the model, and how it computes it. */
struct layers {
    int blocks;
    int forward; /* of these: without a backward pass */
    bool embedding, head;
    int recompute; /* enum recompute */
    bool sequence, regather;
};
struct layers formula_layers(const struct spread_counts *part,
                             const struct parallel_config *parallel, int recompute);
/* How often a rank sends (tp-1)/tp of the whole stream per micro-batch: 8 times per block, forward
 * and backward, as four all-reduces or, with sequence parallelism, as four gathers and four
 * reduce-scatters; 10 times with regather. Recomputation adds one all-reduce (2), or with sequence
 * parallelism two gathers (selective) or three calls (full). Embedding and head: 2 each. A block
 * without a backward pass: 4. */
double formula_meetings(const struct layers *layers);

/* --- activations ---------------------------------------------------------------------------- */
struct activation_shape {
    double tokens, batch, width, heads; /* s, b, h, a */
    double value;                       /* bytes of an activation */
    int tp;                             /* t */
    bool sequence;
};
/* Bytes that a layer keeps of a micro-batch from forward to backward, as Korthikanti et al. (2022)
 * count them for a GPT layer (feed-forward width 4 h, dropout, softmax kept, inputs of matrices
 * gathered again), here for 2-byte values:
 *
 *                none                            selective           full
 *     t = 1      s b h (34 + 5 a s / h)          s b h 34            s b h 2
 *     tp         s b h (10 + 24/t + 5 a s/(h t)) s b h (10 + 24/t)   s b h 2
 *     sequence   s b h (34/t + 5 a s/(h t))      s b h 34/t          s b h 2
 *
 * Of the 34, 32 are 16 values and 2 are dropout masks of one byte each; of the 10, 8 are 4 values;
 * of the 5, 4 are 2 values. Values grow with their type, masks do not: in fp32 the numbers are 66,
 * 18, 48, 9 and 4. Their `selective` drops the inside of attention. Our attention never keeps that;
 * our `selective` drops the outputs of norms and activation functions. */
double formula_activations(const struct activation_shape *shape, int recompute);

/* What the process of a rank holds outside the memory account: MPI, BLAS, the C library. They
 * cannot be asked before they have started, so this is an estimate for `local` ranks on one
 * machine; a run measures it. */
double formula_runtime(int local);
/* The same on a GPU, where only the driver knows: by library, and in total. Measured on an H200; a
 * GPU with fewer multiprocessors needs less. */
struct gpu_part {
    const char *library; /* NULL ends the list */
    double bytes;
};
extern const struct gpu_part formula_gpu_parts[];
double formula_gpu_runtime(void);

#endif
