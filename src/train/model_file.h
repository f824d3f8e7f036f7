/* model_file -- a model as a Hugging Face directory: config.json, model.safetensors, the
 * tokenizer.
 *
 * Weights go between the file and the store a few megabytes at a time: there is never a second
 * copy of the model in memory. A directory appears whole or not at all.
 */
#ifndef TRAIN_MODEL_FILE_H
#define TRAIN_MODEL_FILE_H
#include "model/model.h"
#include "train/model_source.h"
#include "train/tokenizer.h"
#include "zero/zero.h"

/* What is to be said of weights with which a model gives no numbers. */
#define MODEL_BAD_WEIGHTS "some are NaN, infinite or far too large"

/* Write the model in fp32 as directory `path`, which must not exist. `tokenizer` may be NULL. */
enum status model_file_save(struct env *env, const char *path, const struct model *model,
                            struct zero *zero, const struct tokenizer *tokenizer, int64_t step);

/* What of such a directory is not weights: config.json, which says that weights are of `type`, and
 * the files of the tokenizer. */
enum status model_file_describe(struct env *env, const char *folder, const struct model *model,
                                enum dtype type, const struct tokenizer *tokenizer);

/* The sizes that config.json in `folder` tells. `path` and `preset` of *config are left as they
 * are. */
enum status model_file_config(struct env *env, const char *folder, struct model_config *config);

/* Read every tensor of the graph from the source into the store. What is missing, unexpected
 * or of another shape is an error that lists it. Names may lack "transformer." or "model."; a tied
 * lm_head may be absent or must be equal; mask buffers are ignored. F32, BF16 and F16; one file,
 * or several by an index. */
enum status model_file_load(struct env *env, const struct model_source *source,
                            const struct model *model, struct zero *zero);

/* A fingerprint of what model_file_load would read: config.json, and of every tensor its name, its
 * shape and up to 16 windows of its elements. */
enum status model_file_print(struct env *env, const struct model_source *source, uint64_t *print);

#endif
