/* unit_freeze -- params that are not trained.
 *
 * No pass writes the gradient of a frozen param, so the store keeps no sums and no optimizer state
 * for it and never updates it. The store treats a piece as a whole, so pieces that mix frozen and
 * learned params are split:
 *
 *     piece    b0:  ln1  qkv  proj  ln2  fc  out        globs "*.ln_?.*"
 *     split    b0:  ln1 | qkv  proj | ln2 | fc  out     two frozen pieces, two learned ones
 *
 * Tensors and params stay as they are, so the learned params have the same blocks of 64 elements.
 */
#ifndef UNIT_UNIT_FREEZE_H
#define UNIT_UNIT_FREEZE_H
#include "unit/unit.h"

/* Freeze the params whose tensors match a glob of `globs`, which are separated by commas. Changes
 * the tables to which `graph` points: `pieces` needs room for as many pieces as params. A glob
 * without a match, params of which only some tensors match, and a model without any param to learn
 * are errors, which name the key `train.freeze`. */
enum status unit_freeze(struct env *env, const char *globs, struct unit_graph *graph,
                        struct unit_param *params, struct unit_piece *pieces, struct unit *units);

#endif
