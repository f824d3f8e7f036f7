/* formula -- the ZeRO paper's arithmetic: model state and volume of one rank by stage, in closed
 * form.
 *
 * Psi parameters, no padding, no buffers: what a plan's exact figures are held against. A rank that
 * computes has whatever its stage does not cut; an owner has its share of what is cut.
 */
#ifndef PLAN_FORMULA_H
#define PLAN_FORMULA_H
#include "engine/engine.h"
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
};
/* Bytes that the rank sends in a step. Params are gathered once, or twice a micro-batch where they
 * are cut; holders of one shard (in stage 0: all ranks) exchange what each has summed of it. Between
 * stages a shard of what is lent goes there once, and a share of its gradient's sum back. Of control
 * there is no formula: 0. */
double formula_sent(const struct roster *roster, int stage, const struct volume *volume,
                    enum engine_way way);

/* What the process of a rank holds beside the account: MPI, BLAS, the C library. It is not ours to
 * count before they have started, so this is an estimate for `local` ranks on one machine; a run
 * measures it. */
double formula_runtime(int local);
/* The same of a rank on its card, of which only the driver knows: by library, and all of it. Seen
 * on an H200; a card with fewer multiprocessors takes less. */
struct card_part {
    const char *library; /* NULL ends the list */
    double bytes;
};
extern const struct card_part formula_card_parts[];
double formula_card_runtime(void);

#endif
