/* model_file -- writes a model as a Hugging Face directory: config.json, model.safetensors, the
 * tokenizer.
 *
 * Weights are copied from the store to the file a few megabytes at a time: there is never a second
 * copy of the model in memory. A directory appears complete or not at all.
 */
#ifndef TRAIN_MODEL_FILE_H
#define TRAIN_MODEL_FILE_H
#include "model/model.h"
#include "train/tokenizer/tokenizer.h"
#include "zero/zero.h"

/* Write the model in fp32 as directory `path`, which must not exist. `tokenizer` may be NULL.
 * Collective; rank 0 writes. */
enum status model_file_save(struct env *env, const char *path, const struct model *model,
                            struct zero *zero, const struct tokenizer *tokenizer, int64_t step);

/* Write the files of a model directory other than the weights: config.json, with `type` as the type
 * of the weights, and the files of the tokenizer. */
enum status model_file_describe(struct env *env, const char *folder, const struct model *model,
                                enum dtype type, const struct tokenizer *tokenizer);

/* Read the model's sizes from config.json in `folder`. `path` and `preset` of *config are kept. */
enum status model_file_config(struct env *env, const char *folder, struct model_config *config);

#endif
