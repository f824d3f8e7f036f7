/* model_weights -- the weights of a model directory, a checkpoint or a run: finds their tensors, in
 * one file or in several files with an index, and reads them into the store.
 *
 * A directory must have the same names and shapes as the model's graph, with three exceptions: the
 * prefix "transformer." (GPT-2) or "model." (Llama) may be missing, a tied head may be stored a
 * second time, and old files contain constant buffers. All differences are found before any element
 * is read, and reported in one message.
 */
#ifndef TRAIN_MODEL_WEIGHTS_H
#define TRAIN_MODEL_WEIGHTS_H
#include "model/model.h"
#include "train/models/model_source.h"
#include "train/weights/safetensors.h"
#include "zero/zero.h"

/* --- into the store ------------------------------------------------------------------------- */

/* The end of an error message about weights with which a model produces NaN or infinity. */
#define MODEL_BAD_WEIGHTS "some are NaN, infinite or far too large"

/* Read the tensors of the graph from the source into the store: of each, only what this rank holds.
 * Tensors that are missing,
 * unexpected or of another shape are an error that lists them. Names may lack "transformer." or
 * "model."; a tied lm_head may be absent, or must equal the embedding; mask buffers are ignored.
 * The weights are F32, BF16 or F16, in one file or in several files with an index. */
enum status model_weights_load(struct env *env, const struct model_source *source,
                               const struct model *model, struct zero *zero);

/* A fingerprint of what model_weights_load would read: config.json, and the name, type, shape and
 * about 16 windows of elements of every tensor. */
enum status model_weights_fingerprint(struct env *env, const struct model_source *source,
                                      uint64_t *print);

/* --- the files ------------------------------------------------------------------------------ */

struct weight_files { /* public fields; initialize with env set and the rest zero */
    struct env *env;  /* borrowed */
    struct safetensors **files;
    int count;
};

struct weight_found { /* a tensor and its file; both NULL = not found */
    const struct safetensors *file;
    const struct safetensor *tensor;
};

/* Open the weights of a source. Call weight_files_close after a failure, too. */
enum status weight_files_open(struct weight_files *weights, const struct model_source *source);
/* Open the files of a role. The source must be a checkpoint; it may have no such files. */
enum status weight_files_open_role(struct weight_files *weights, const struct model_source *source,
                                   enum checkpoint_role role);
void weight_files_close(struct weight_files *weights);

/* Find a tensor by its name in the model's graph. */
struct weight_found weight_files_find(const struct weight_files *weights, const char *name);
const char *weight_files_bare(const char *name); /* the name without "transformer." or "model." */

/* Fail unless these are the tensors of the graph. If a tied head is stored nevertheless, it must
 * equal the embedding. `path` is for the message. */
enum status weight_files_match(const struct weight_files *weights, const struct unit_graph *graph,
                               bool tied, const char *path);

#endif
