/* optimizer -- the table of optimizers: what each keeps per parameter and how it updates.
 *
 *     kind         rule     kept per parameter             for
 *     adamw        adamw    m, v: 8 bytes                  every tensor
 *     adamw8bit    adamw8   m, v: codes and scales, 2.03   every tensor
 *     sgd          sgd      m: 4 bytes; 0 without momentum every tensor
 *     muon         muon     m: 4 bytes                     matrices of hidden layers; adamw for
 *                                                          all other tensors
 *
 * Masters are not counted: every optimizer has them where parameters have 16 bits.
 */
#ifndef ZERO_OPTIMIZER_H
#define ZERO_OPTIMIZER_H
#include "ops/ops.h"
#include "unit/unit.h"

enum optimizer_kind {
    OPTIMIZER_ADAMW,
    OPTIMIZER_ADAMW8BIT,
    OPTIMIZER_SGD,
    OPTIMIZER_MUON,
    OPTIMIZER_KINDS
};
const char *optimizer_word(enum optimizer_kind kind); /* "adamw8bit" */

/* The settings of a tensor's update. */
struct optimizer {
    enum optimizer_kind kind;
    double beta1, beta2, eps; /* adamw, adamw8bit */
    double momentum;          /* sgd, muon */
    bool nesterov;            /* sgd, muon */
};

/* What is kept of one element's first and second moment. */
enum moment_form {
    MOMENT_NONE,
    MOMENT_F32,
    MOMENT_CODE8 /* a byte, and one more per block (ops_code8.h) */
};
struct moment_forms {
    enum moment_form m, v;
};

/* What really applies to a tensor: muon becomes adamw where the tensor is no hidden matrix. */
struct optimizer optimizer_for(struct optimizer optimizer, const struct unit_tensor *tensor);
/* Of a kind that applies to its tensor. */
struct moment_forms optimizer_moments(const struct optimizer *optimizer);
/* Bytes per parameter: 8 for adamw. */
double optimizer_bytes(const struct optimizer *optimizer);
/* What is kept of a tensor, for checkpoints: the kind of its optimizer, where sgd with momentum is a
 * kind of its own. */
enum optimizer_state { OPTIMIZER_SGD_MOMENTUM = OPTIMIZER_KINDS, OPTIMIZER_STATES };
enum optimizer_state optimizer_state(const struct optimizer *optimizer);
const char *optimizer_state_word(enum optimizer_state state); /* "sgd with momentum" */
/* The rule, with beta1, beta2, eps and nesterov; the caller sets locations and number. */
struct update optimizer_update(const struct optimizer *optimizer);
bool optimizer_same(const struct optimizer *a,
                    const struct optimizer *b); /* one call serves both */
/* Set momentum and nesterov. NaN and -1 stand for the defaults of the kind: 0.95 and yes for muon,
 * 0.9 and no for sgd. Nesterov is never the default where the momentum is 0. */
void optimizer_set_momentum(struct optimizer *optimizer, double momentum, int nesterov);
/* Nesterov momentum without a momentum, which is a mistake. */
bool optimizer_lacks_momentum(const struct optimizer *optimizer);
/* Muon's factor for a matrix: 0.2 sqrt(max(rows, columns)), which gives an update about the size of
 * AdamW's, so that both share learning rate and weight decay. */
double optimizer_muon_scale(int64_t rows, int64_t columns);

#endif
