/* checkpoint_optimizers -- which optimizer made the state of each tensor of a checkpoint, and
 * whether a run with other optimizers can continue from it.
 *
 *     adamw <-> adamw8bit     converted: codes are decoded, fp32 is encoded to nearest
 *     everything else         refused: the moments of one mean nothing to the other
 */
#ifndef TRAIN_CHECKPOINT_OPTIMIZERS_H
#define TRAIN_CHECKPOINT_OPTIMIZERS_H
#include "zero/zero.h"

struct checkpoint_other {
    char *tensor;
    enum optimizer_state kind;
};

struct checkpoint_optimizers {       /* open; zeroed: adamw for all */
    enum optimizer_state kind;       /* of most tensors */
    struct checkpoint_other *others; /* tensors of other kinds, sorted by kind */
    int other_count;
};

/* Those of a store. Free them also after a failure. */
enum status checkpoint_optimizers_of(struct env *env, const struct unit_graph *graph,
                                     const struct zero *zero,
                                     struct checkpoint_optimizers *optimizers);
void checkpoint_optimizers_free(struct env *env, struct checkpoint_optimizers *optimizers);
bool checkpoint_optimizers_are_adamw(const struct checkpoint_optimizers *optimizers);

/* The differences between a checkpoint and a store: numbers of tensors. */
struct checkpoint_conversion {
    int64_t to_codes, from_codes; /* adamw -> adamw8bit, and back */
    int64_t codes;                /* 8 bits in both */
};
/* Fails with STATUS_CONFIG if a tensor's state cannot be converted. */
enum status checkpoint_optimizers_compare(struct env *env,
                                          const struct checkpoint_optimizers *there,
                                          const struct unit_graph *graph, const struct zero *zero,
                                          struct checkpoint_conversion *conversion);

#endif
