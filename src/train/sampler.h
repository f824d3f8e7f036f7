/* sampler -- the text samples of a training run: same prompt, same random numbers, a better
 * model each time. */
#ifndef TRAIN_SAMPLER_H
#define TRAIN_SAMPLER_H
#include "train/config/config.h"
#include "train/session.h"
#include "train/trainer.h"

struct sampler;

/* Takes the decoder's memory now. The config's tokenizer and the session outlive the sampler. */
enum status sampler_create(struct env *env, const struct run_config *config,
                           const struct session *session, struct sampler **sampler);
void sampler_destroy(struct sampler *sampler); /* NULL is fine */

size_t sampler_text_bytes(
    const struct sampler *sampler); /* what a sample is expected to need; 0 for NULL */

/* Allocates nothing unless the text is longer than expected. The sample's texts live until the
 * next call. *stopped = the token of the text (generate_stopped) at which the model's numbers were
 * not finite: it ends before it, and is no sample of what was asked for; 0: it is whole. */
enum status sampler_run(struct sampler *sampler, int64_t step, struct trainer_sample *sample,
                        int64_t *stopped);

#endif
