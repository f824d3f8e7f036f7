/* config_lines -- a resolved configuration as lines "section.key: value", and the changes between
 * two configurations. */
#ifndef TRAIN_CONFIG_LINES_H
#define TRAIN_CONFIG_LINES_H
#include <stdbool.h>
#include "base/text.h"

/* Flatten YAML: "train.lr: 0.001", "optimizer.groups: [{match: *wte*, lr_mul: 2}]". Only lines for
 * which `wanted` returns true are appended; NULL = all lines. */
typedef bool config_wanted_fn(const char *line);
void config_lines(const char *yaml, config_wanted_fn *wanted, struct text *out);

/* What a change of a key means for a resumed run. */
enum config_weight {
    CONFIG_FREE,   /* the same bits: ranks, threads, logging */
    CONFIG_BITS,   /* the run will differ from an uninterrupted one */
    CONFIG_DATA,   /* as CONFIG_BITS, unless the tokens are the same, for example in moved files */
    CONFIG_SHAPES, /* the state does not fit the model: refused */
    CONFIG_EVAL,   /* the same bits, and another held-out loss */
    CONFIG_WEIGHTS
};
enum config_weight config_weight_of(const char *line);

/* List the keys of one weight whose values differ, from the saved value `there` to the current one
 * `here`: "train.lr: 0.1 -> 0.2; ...". A key that only one of them has is ignored: it belongs to
 * another version of sifr. */
void config_changes(const char *there, const char *here, enum config_weight weight,
                    struct text *out);

#endif
