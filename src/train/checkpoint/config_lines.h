/* config_lines -- a resolved configuration as lines "section.key: value", and what has changed
 * between two of them. */
#ifndef TRAIN_CONFIG_LINES_H
#define TRAIN_CONFIG_LINES_H
#include <stdbool.h>
#include "base/text.h"

/* YAML's levels as lines of one: "train.lr: 0.001", "optimizer.groups: [{match: *wte*, lr_mul: 2}]";
 * only those for which `wanted` is true. It is given the whole line; NULL: all. */
typedef bool config_wanted_fn(const char *line);
void config_lines(const char *yaml, config_wanted_fn *wanted, struct text *out);

/* What a change of the configuration means for a run that goes on. */
enum config_weight {
    CONFIG_FREE,   /* the same bits: ranks, threads, what is printed */
    CONFIG_BITS,   /* the run will differ from one that was not interrupted */
    CONFIG_DATA,   /* so it will, unless the tokens are the same: files that were moved */
    CONFIG_SHAPES, /* the state does not fit: refused */
    CONFIG_WEIGHTS
};
enum config_weight config_weight_of(const char *line);

/* Keys that have other values `there` (kept) than `here`, of one weight: "train.lr: 0.1 there, 0.2
 * here; ...". A key that only one of them has is no difference: it came with another version. */
void config_changes(const char *there, const char *here, enum config_weight weight,
                    struct text *out);

#endif
