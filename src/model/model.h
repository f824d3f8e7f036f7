/* model -- GPT-2 and Llama as units: sizes, presets, and the graph that store and engine work on.
 *
 * Tensors have the names and the orientation of Hugging Face files, so loading and saving need no
 * conversion: GPT-2's matrices are [in][out], Llama's [out][in].
 */
#ifndef MODEL_MODEL_H
#define MODEL_MODEL_H
#include "base/options.h"
#include "unit/unit.h"

enum model_arch { MODEL_GPT2, MODEL_LLAMA };
enum rope_scaling { ROPE_PLAIN, ROPE_LINEAR, ROPE_LLAMA3 };

/* Sizes. 0 (2 for tied) means: from the preset, or derived. model_resolve fills in every field. */
struct model_config {
    int preset; /* index into model_presets; 0 = none */
    int arch;   /* enum model_arch */
    int64_t layers, heads, kv_heads, width, ff, context, vocab;
    int64_t head_width; /* width / heads unless a file says otherwise */
    int tied;           /* 0 no, 1 yes, 2 from the preset or architecture (choices no|yes|auto) */
    double norm_eps;
    double init_std;
    double rope_theta;
    int rope_scaling; /* enum rope_scaling */
    double rope_factor, rope_low, rope_high;
    int64_t rope_original; /* original_max_position_embeddings */
    const char *path;      /* a Hugging Face directory to start from; "" = none */
};

extern const struct option_table model_options; /* model.* over struct model_config */

/* Fill in what the user did not set, from the preset or derived, and check. Errors name the key,
 * the problem and a fix ("model.heads: 6 does not divide model.width 128; try 4 or 8"). */
enum status model_resolve(struct env *env, const struct options *options,
                          struct model_config *config);
/* Check a complete configuration (as read from a file). */
enum status model_check(struct env *env, const struct model_config *config);

/* The part of a model that one rank computes. */
struct model_part {
    int tp, t;     /* rank t of the tp ranks that split the tensors of every layer */
    bool sequence; /* they also split the rows of the stream between the layers' regions */
    bool regather; /* sequence: gather the inputs of matrices again in the backward pass instead of
                      keeping them gathered: 10 instead of 8 activations on the wire, less memory */
};

/* The first key (without "model.") whose size tp ranks cannot split, with that size; NULL if they
 * can split all. */
const char *model_cannot_split(const struct model_config *config, int tp, int64_t *size);
bool model_can_split(const struct model_config *config, int tp);
/* Check a micro-batch: with `sequence` the ranks must divide its rows. The error suggests a fix. */
enum status model_part_check_rows(struct env *env, const struct model_part *part, int64_t batch,
                                  int64_t tokens);

struct model;
/* Build the graph and the rotary table on the device. `config` is copied. A dry device is not
 * written to. The caller destroys *model. */
enum status model_create(struct device *device, const struct model_config *config,
                         struct model **model);
/* The same for a part. Fails if tp does not divide the sizes, and suggests a tp that does. Runs of
 * its units need a group of tp ranks in which this is rank t. */
enum status model_create_part(struct device *device, const struct model_config *config,
                              const struct model_part *part, struct model **model);
void model_destroy(struct model *model);
const struct unit_graph *model_graph(const struct model *model);
const struct model_config *model_config(const struct model *model);

/* 6 N + 12 L C T: floating-point operations of one token, forward and backward. */
double model_flops_per_token(const struct model *model, int64_t tokens);

/* Rows of logits that are in memory at a time, out of R rows. */
int64_t head_chunk_rows(const struct ops *ops, int64_t rows, int64_t vocab);

#endif
