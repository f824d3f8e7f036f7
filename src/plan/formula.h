/* formula -- what papers say of one rank in closed form: model state and volume by ZeRO stage, what
 * tensor-parallel ranks send each other, and activations of a layer.
 *
 * Psi parameters, no padding, no buffers: what a plan's exact figures are held against. A rank that
 * computes has whatever its stage does not cut; an owner has its share of what is cut.
 */
#ifndef PLAN_FORMULA_H
#define PLAN_FORMULA_H
#include "engine/spread.h"
#include "zero/roster.h"

/* Bytes of one parameter. */
struct state_widths {
    double param, grad, optimizer;
};
extern const struct state_widths state_fp32;  /* 4, 4 and 8: momentum and variance */
extern const struct state_widths state_mixed; /* 2, 2 and 12: a master copy too; the paper's K */

/* Bytes of params, gradients and optimizer state at `roster`'s rank. */
double formula_state(const struct roster *roster, int stage, double parameters,
                     struct state_widths widths);

struct volume {
    double parameters;
    int64_t rounds;        /* micro-batches of a worker in a step */
    int64_t reductions;    /* how often it sends gradients: after each, or once */
    double value, total;   /* bytes of a param or gradient, and of a summed gradient, on the wire */
    double borrowed, lent; /* of the params: another stage's, and used by another stage too */
    double messages, message_bytes; /* to other stages, for each micro-batch */
    int tp;                         /* ranks that compute a layer together; 0 or 1: one alone */
    double meetings, stream_bytes;  /* (tp-1)/tp of the whole stream, so often a micro-batch */
    double loss_rows;               /* rows of which it tells the others its part of the loss */
    double shares; /* summed gradients that it sends to add up what each has of them, once */
    bool norms;    /* it adds up the norms of the tensor-parallel ranks: one of a store does */
};
/* Bytes that the rank sends in a step. Params are gathered once, or twice a micro-batch where they
 * are cut; holders of one shard (in stage 0: all ranks) exchange what each has summed of it. Between
 * stages a shard of what is lent goes there once, and a share of its gradient's sum back.
 * Tensor-parallel ranks meet in every layer (formula_meetings), tell each other three numbers a row
 * for the loss and one for the norm; exact where a sum cuts into slices of whole blocks of 64. Of
 * control there is no formula: 0. */
double formula_sent(const struct roster *roster, int stage, const struct volume *volume,
                    enum traffic_purpose purpose);

/* --- ranks that compute a layer together ---------------------------------------------------- */
/* What a rank has of the model, and how it computes it. */
struct layers {
    int blocks;
    bool embedding, head;
    int recompute; /* enum recompute */
    bool sequence, regather;
};
struct layers formula_layers(const struct spread_counts *part,
                             const struct parallel_config *parallel, int recompute);
/* How often a rank sends (tp-1)/tp of the whole stream for a micro-batch: 8 times a block, forward and
 * backward, whether it is four all-reduces or, with sequence, four gathers and four reduce-scatters;
 * 10 with regather. What is recomputed meets again: plain once more (2), with sequence two gathers
 * (selective) or three meetings (full). Embedding and head 2 each. */
double formula_meetings(const struct layers *layers);

/* --- activations ---------------------------------------------------------------------------- */
struct activation_shape {
    double tokens, batch, width, heads; /* s, b, h, a */
    double value;                       /* bytes of an activation */
    int tp;                             /* t */
    bool sequence;
};
/* Bytes that a layer keeps for a micro-batch from forward to backward, as Korthikanti et al. (2022)
 * count them for a GPT layer (feed-forward width 4 h, dropout, all of softmax kept, inputs of
 * matrices gathered again), here for 2-byte values:
 *
 *                none                            selective           full
 *     t = 1      s b h (34 + 5 a s / h)          s b h 34            s b h 2
 *     tp         s b h (10 + 24/t + 5 a s/(h t)) s b h (10 + 24/t)   s b h 2
 *     sequence   s b h (34/t + 5 a s/(h t))      s b h 34/t          s b h 2
 *
 * Of the 34, 32 are 16 values and 2 are masks of dropout of a byte each; of the 10, 8 are 4 values; of
 * the 5, 4 are 2 values. Values grow with their type, masks do not: in fp32 66, 18, 48, 9 and 4. Their
 * `selective` drops the inside of attention; ours, whose attention never keeps it, drops what norms and
 * activation functions put out. */
double formula_activations(const struct activation_shape *shape, int recompute);

/* What the process of a rank holds beside the account: MPI, BLAS, the C library. It is not ours to
 * count before they have started, so this is an estimate for `local` ranks on one machine; a run
 * measures it. */
double formula_runtime(int local);
/* The same of a rank on its GPU, of which only the driver knows: by library, and all of it. Seen
 * on an H200; a GPU with fewer multiprocessors takes less. */
struct gpu_part {
    const char *library; /* NULL ends the list */
    double bytes;
};
extern const struct gpu_part formula_gpu_parts[];
double formula_gpu_runtime(void);

#endif
