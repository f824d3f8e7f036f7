/* model_tokenizer -- checks that a given tokenizer is the one that a model was trained with. */
#ifndef TRAIN_MODEL_TOKENIZER_H
#define TRAIN_MODEL_TOKENIZER_H
#include "train/models/model_source.h"
#include "train/tokenizer/tokenizer.h"

/* Warn if the tokenizer does not match the model. Its tokens are compared with those of
 * tokenizer.json in the model's folder or, if there is none, its size with the model's vocabulary.
 * `name` is the tokenizer's name in the message. */
enum status model_tokenizer_compare(struct env *env, const struct model_source *source,
                                    int64_t model_vocab, const struct tokenizer *tokenizer,
                                    const char *name);

#endif
