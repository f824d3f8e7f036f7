/* dataset -- the samples of a run: a weighted mix of sources, in an order that needs no state.
 *
 * Sample n is a pure function of (configuration, seed, n), which selects a source, an epoch of that
 * source, and a window of that epoch. Nothing has to be saved, and a run can resume at any sample
 * on any number of ranks. Every window of a source occurs once per epoch. Each epoch has its own
 * order and its own offset of the windows.
 *
 * Held-out data is read in order; every token is predicted exactly once.
 *
 * A dataset is immutable after creation: any number of threads may read samples, and reading
 * allocates nothing.
 */
#ifndef TRAIN_DATASET_H
#define TRAIN_DATASET_H
#include <stdbool.h>
#include <stdint.h>
#include "base/env.h"
#include "train/data/data_config.h"
#include "train/data/source.h"
#include "train/tokenizer/tokenizer.h"

/* --- before the model's size is known ------------------------------------------------------- */

/* Load the tokenizer that data.tokenizer names; "train:N" trains one of N tokens on the training
 * text, without the held-out text. *tokenizer = NULL if the key is "": the caller has its own
 * default. The caller destroys it. */
enum status data_tokenizer_create(struct env *env, const struct data_config *config,
                                  tokenizer_progress_fn *progress, void *user,
                                  struct tokenizer **tokenizer);

/* Limits of N in "train:N". The smallest vocabulary has the 256 bytes and the end-of-text token. */
enum { DATA_LEARNT_MIN = 257, DATA_LEARNT_MAX = 1000000 };

/* Is data.tokenizer "train:N"? The second call gives N, the maximum size of the vocabulary. */
bool data_tokenizer_is_learnt(const struct data_config *config);
enum status data_tokenizer_size(struct env *env, const struct data_config *config, int64_t *vocab);

bool data_is_given(const struct data_config *config); /* by data.path or data.mix */
/* Does any source contain text, which needs a tokenizer? */
enum status data_has_text(struct env *env, const struct data_config *config, bool *has_text);

/* --- the samples ---------------------------------------------------------------------------- */

struct dataset;

/* `tokenizer` is needed for text and JSONL, and to count bytes of text; otherwise NULL. It is
 * borrowed for the call. Every token must be below `vocab`, the model's; windows have `context`
 * tokens. Without data.path and data.mix there is held-out data only. It is an error if the data is
 * shorter than a window, a token is beyond the vocabulary, or sources were made with different
 * tokenizers. */
enum status dataset_create(struct env *env, const struct data_config *config,
                           const struct tokenizer *tokenizer, int64_t vocab, int64_t context,
                           uint64_t seed, struct dataset **dataset);
void dataset_destroy(struct dataset *dataset); /* NULL is fine */

int64_t dataset_train_tokens(const struct dataset *dataset); /* of all sources; 0 = held-out only */
int64_t dataset_train_windows(const struct dataset *dataset); /* of one epoch of all sources */

/* Bytes of mapped files, which the memory account does not include. */
uint64_t dataset_mapped_bytes(const struct dataset *dataset);

/* A digest of the files of all sources. */
enum status dataset_digest(const struct dataset *dataset, struct data_digest *digest);

/* Remove the token caches in `folder` that this dataset does not use. */
enum status dataset_prune_cache(const struct dataset *dataset, const char *folder);

/* Write tokens[0 .. context) and labels[0 .. context): labels[i] is the token after tokens[i], or
 * -1 if it is masked. A token beyond the vocabulary is an error that names file, position and
 * value. */
enum status dataset_sample(const struct dataset *dataset, uint64_t sample, int32_t *tokens,
                           int32_t *labels);

/* Held-out windows, in order. The last window of a source is padded with token 0 and label -1.
 * *bytes = bytes of text that the labels represent; 0 = unknown, without a tokenizer. */
int64_t dataset_eval_count(const struct dataset *dataset);  /* windows; 0 = nothing is held out */
int64_t dataset_eval_tokens(const struct dataset *dataset); /* unmasked labels in all windows */
int64_t dataset_eval_longest(
    const struct dataset *dataset); /* maximum tokens of a window without padding */
enum status dataset_eval_window(const struct dataset *dataset, int64_t i, int32_t *tokens,
                                int32_t *labels, int64_t *bytes);

#endif
