/* data_config -- the data.* keys: the sources that they describe, and the files that they name. */
#ifndef TRAIN_DATA_CONFIG_H
#define TRAIN_DATA_CONFIG_H
#include <stdbool.h>
#include <stdint.h>
#include "base/env.h"
#include "base/options.h"

struct data_config {
    const char *path; /* file or glob; "" if mix is used */
    const char *val;  /* file or glob of held-out data, or a fraction such as 0.1; "" = split */
    const char *tokenizer;  /* tokenizer.json, its folder, "bytes", "train:4096"; "" = not set */
    int format;             /* enum data_format, of path and val */
    int64_t max_text;       /* maximum bytes of text to train a tokenizer on; 0 = all */
    double split;           /* fraction of every source to hold out if val is "" */
    bool special;           /* encode special tokens found in text */
    struct option_list mix; /* of struct data_mix_item */
    const char *cache; /* folder for the tokens of text; "": a run uses its own, others memory */
};

struct data_mix_item {
    const char *path;
    double weight; /* fraction of the samples, relative to the other weights */
    int format;
};

extern const struct option_table data_options; /* data.*, for struct data_config */

/* --- the sources that all keys together describe -------------------------------------------- */

struct data_plan {
    int count;       /* training sources */
    double split;    /* fraction of each source that is held out */
    const char *val; /* path of held-out data; NULL = none */
};

enum status data_plan_make(struct env *env, const struct data_config *config,
                           struct data_plan *plan);
struct data_mix_item data_plan_item(const struct data_config *config, int i);

/* --- the files ------------------------------------------------------------------------------ */

/* Fail with STATUS_CONFIG, naming the key, if data.path, data.val, data.mix or data.tokenizer
 * matches no file. */
enum status data_paths_check(struct env *env, const struct data_config *config);
/* Check data.tokenizer only, for commands that do not read the data. */
enum status data_paths_check_tokenizer(struct env *env, const struct data_config *config);

/* Evaluation needs no training data if data.val names held-out files: clear data.path and data.mix
 * in that case. */
enum status data_paths_held_out(struct env *env, struct data_config *config);

/* Make every relative path absolute, from the current folder. `options` owns the new strings. */
enum status data_paths_make_absolute(struct env *env, struct options *options,
                                     struct data_config *config);
/* The same for one path; "" stays "". */
enum status path_make_absolute(struct env *env, struct options *options, const char **path);

#endif
