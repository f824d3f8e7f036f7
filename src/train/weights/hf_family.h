/* hf_family -- Llama and its relatives in config.json: their words, and what transformers assumes
 * where the file says nothing. */
#ifndef TRAIN_HF_FAMILY_H
#define TRAIN_HF_FAMILY_H
#include <stdbool.h>
#include <stdint.h>
#include "model/model.h"

/* A size of 0: from the other sizes. */
struct hf_family {
    enum model_arch arch;
    const char *type, *class_name; /* model_type and architectures */
    int64_t vocab, context, width, layers, heads, kv_heads, ff, head_dim;
    double eps, theta;
    bool tied;
    int64_t bos, eos, pad;
    bool window_switch; /* the window counts only if use_sliding_window is true */
    int64_t window;     /* sliding_window */
    int64_t full_every; /* without layer_types: the layers that have no window */
    int64_t query_scalar;
    double score_cap, logit_cap;
};
extern const struct hf_family hf_families[];
extern const int hf_family_count;

const struct hf_family *hf_family_of_type(const char *type); /* model_type; NULL: not one of them */
const struct hf_family *hf_family_of(enum model_arch arch);

/* Whether layer i, from 0, is one of every `every` layers. */
bool hf_is_every(int64_t i, int64_t every);

#endif
