/* text_sampler -- the text samples of a training run. Every sample has the same prompt and the same
 * random numbers, so that only the model differs. */
#ifndef TRAIN_TEXT_SAMPLER_H
#define TRAIN_TEXT_SAMPLER_H
#include "train/config/config.h"
#include "train/session.h"
#include "train/run/run_events.h"

struct text_sampler;

/* Allocates the decoder. The config's tokenizer and the session outlive the sampler. */
enum status text_sampler_create(struct env *env, const struct run_config *config,
                                const struct session *session, struct text_sampler **sampler);
void text_sampler_destroy(struct text_sampler *sampler); /* NULL is fine */

/* The expected size of a sample; 0 for NULL. */
size_t text_sampler_bytes(const struct text_sampler *sampler);

/* Allocates only if the text is longer than expected. The sample's strings are valid until the next
 * call. *stopped = the token (generate_stopped) at which the logits were not finite: the text ends
 * before it and is not a valid sample; 0 = the text is complete. */
enum status text_sampler_run(struct text_sampler *sampler, int64_t step,
                             struct trainer_sample *sample, int64_t *stopped);

#endif
