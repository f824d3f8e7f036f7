/* model_tokenizer -- whether a tokenizer that was named is the one that a model was trained with. */
#ifndef TRAIN_MODEL_TOKENIZER_H
#define TRAIN_MODEL_TOKENIZER_H
#include "train/models/model_source.h"
#include "train/tokenizer/tokenizer.h"

/* A warning where it is not, so far as can be told: by the tokens of the tokenizer.json beside the model; where there is
 * none, by the size of the model's vocabulary. `name` is the tokenizer's, for the message. */
enum status model_tokenizer_compare(struct env *env, const struct model_source *source,
                                    int64_t model_vocab, const struct tokenizer *tokenizer,
                                    const char *name);

#endif
