/* hf_rope -- the rotary positions in a config.json, in the forms of transformers 4 (rope_theta,
 * rope_scaling, rope_local_base_freq, partial_rotary_factor) and 5 (rope_parameters, also one for
 * each type of layer). Both are written. */
#ifndef TRAIN_HF_ROPE_H
#define TRAIN_HF_ROPE_H
#include "base/json_doc.h"
#include "train/weights/hf_config.h"

/* Fill in the rope fields of `config`, whose context is set. `theta`: where the file has none. Errors
 * name `origin` and the key. */
enum status hf_rope_read(struct env *env, const char *origin, const json_t *root, double theta,
                         struct hf_config *config);
/* Append a number, always with a decimal point or an exponent: transformers reads 8 as an int, and
 * rejects an int where it expects a float. */
void hf_real_print(struct text *text, double value);
/* Append the keys, each after a comma. */
void hf_rope_print(const struct hf_config *config, struct text *text);

#endif
