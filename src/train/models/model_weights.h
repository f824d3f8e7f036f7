/* model_weights -- the weights of a model directory, a checkpoint or a run, read into the store. */
#ifndef TRAIN_MODEL_WEIGHTS_H
#define TRAIN_MODEL_WEIGHTS_H
#include "model/model.h"
#include "train/models/model_source.h"
#include "zero/zero.h"

/* The end of a message about weights that make a model produce NaN or infinity. */
#define MODEL_BAD_WEIGHTS "some are NaN, infinite or far too large"

/* Read every tensor of the graph from the source into the store. What is missing, unexpected
 * or of another shape is an error that lists it. Names may lack "transformer." or "model."; a tied
 * lm_head may be absent or must be equal; mask buffers are ignored. F32, BF16 and F16; one file,
 * or several by an index. */
enum status model_weights_load(struct env *env, const struct model_source *source,
                               const struct model *model, struct zero *zero);

/* A fingerprint of what model_weights_load would read: config.json, and of every tensor its name, its
 * shape and up to 16 windows of its elements. */
enum status model_weights_fingerprint(struct env *env, const struct model_source *source,
                                      uint64_t *print);

#endif
