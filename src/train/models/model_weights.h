/* model_weights -- reads the weights of a model directory, a checkpoint or a run into the store. */
#ifndef TRAIN_MODEL_WEIGHTS_H
#define TRAIN_MODEL_WEIGHTS_H
#include "model/model.h"
#include "train/models/model_source.h"
#include "zero/zero.h"

/* The end of an error message about weights with which a model produces NaN or infinity. */
#define MODEL_BAD_WEIGHTS "some are NaN, infinite or far too large"

/* Read every tensor of the graph from the source into the store. Tensors that are missing,
 * unexpected or of another shape are an error that lists them. Names may lack "transformer." or
 * "model."; a tied lm_head may be absent, or must equal the embedding; mask buffers are ignored.
 * The weights are F32, BF16 or F16, in one file or in several files with an index. */
enum status model_weights_load(struct env *env, const struct model_source *source,
                               const struct model *model, struct zero *zero);

/* A fingerprint of what model_weights_load would read: config.json, and the name, type, shape and
 * about 16 windows of elements of every tensor. */
enum status model_weights_fingerprint(struct env *env, const struct model_source *source,
                                      uint64_t *print);

#endif
