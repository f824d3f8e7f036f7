/* model_file -- the files of a Hugging Face model directory other than the weights: config.json and
 * the tokenizer. */
#ifndef TRAIN_MODEL_FILE_H
#define TRAIN_MODEL_FILE_H
#include "model/model.h"
#include "train/tokenizer/tokenizer.h"

/* Write config.json, with `type` as the type of the weights, and the files of the tokenizer, which
 * may be NULL. */
enum status model_file_describe(struct env *env, const char *folder, const struct model *model,
                                enum dtype type, const struct tokenizer *tokenizer);

/* Read the model's sizes from config.json in `folder`. `path`, `preset` and how `sars` is trained
 * are kept in *config. */
enum status model_file_config(struct env *env, const char *folder, struct model_config *config);

/* Refuse a folder that has no safetensors files of a model but something else that people have: an
 * adapter, weights of another format. The message says how to convert it. */
enum status model_file_check_folder(struct env *env, const char *folder);
/* Refuse a folder without weights. */
enum status model_file_check_weights(struct env *env, const char *folder);

/* Where tokenizer.json is missing: "write one ..., or " if the files of an older tokenizer are
 * there, otherwise "". */
const char *model_file_convert(struct env *env, const char *folder);

#endif
