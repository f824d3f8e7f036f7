/* learn -- learns a vocabulary from one text in memory. */
#ifndef TEST_LEARN_H
#define TEST_LEARN_H
#include "train/tokenizer/tokenizer.h"

static inline enum status learn_text(struct env *env, const void *text, size_t bytes, int vocab,
                                     tokenizer_progress_fn *progress, void *user,
                                     struct tokenizer **tokenizer)
{
    struct tokenizer_learner *learner = NULL;
    TRY(tokenizer_learner_create(env, vocab, NULL, progress, user, &learner));
    enum status st = tokenizer_learner_add(learner, text, bytes);
    if (st == STATUS_OK)
        st = tokenizer_learner_finish(learner, tokenizer);
    tokenizer_learner_destroy(learner);
    return st;
}

#endif
