/* generate -- text from a model, one token at a time.
 *
 * Token i is chosen with the random number f(seed, "sample", i), so a text depends only on the
 * model, the prompt, the settings and the seed. */
#ifndef TRAIN_GENERATE_H
#define TRAIN_GENERATE_H
#include "model/model.h"
#include "train/models/model_source.h"
#include "train/run/footprint.h"
#include "train/run/run_events.h"
#include "train/session.h"
#include "train/tokenizer/tokenizer.h"

struct generate_config {
    const char *prompt;        /* text; "" = the tokenizer's end-of-text token */
    int64_t tokens;            /* maximum to generate; 0 = as many as the context has room for */
    double temperature, top_p; /* temperature 0 = greedy; top_p 1 = off */
    int64_t top_k;             /* 0 = off */
    int64_t seed;
    bool ignore_eot; /* continue after the end-of-text token */
};

struct generate_result {
    int64_t prompt_tokens, tokens;
    double prefill_seconds; /* for the prompt */
    double decode_seconds;  /* for choosing all tokens and feeding all but the last */
    bool ended;             /* by the end-of-text token */
    bool not_finite;        /* stopped because logits were not finite */
    bool stopped;           /* by a callback of some rank */
};

#define GENERATE_CHUNK 64 /* tokens of a prompt that are fed at once */
/* What a decoder is fed at most: the shape for which PP stages are balanced. */
struct unit_shape generate_shape(const struct model_config *model);

/* Called for each token with its bytes; a character may be split over two tokens. Return false to
 * stop. */
typedef bool generate_token_fn(void *user, int32_t token, const void *bytes, size_t byte_count);

/* --- with its own model, for `sifr sample` -------------------------------------------------- */
struct generator;

struct generator_config {
    struct compute_config compute;
    const struct model_source *source;
    const char *tokenizer; /* "" = the one in the folder of the model */
    const struct layout_config *layout;
    const struct session_ranks *ranks; /* NULL = one rank */
    int rows;                          /* texts that can be generated together; 0 = 1 */
};
/* Uses env->threads. Collective, as are the calls below except generator_destroy. If one
 * rank fails, all ranks fail with its message. */
enum status generator_create(struct env *env, const struct generator_config *config,
                             struct generator **generator);
void generator_destroy(struct generator *generator); /* NULL is fine */

/* Every rank gets the text of the first one, whatever it had. */
enum status generator_share(struct generator *generator, struct text *text);
/* *goes_on = whether every rank wants to continue. */
enum status generator_agree(struct generator *generator, bool *goes_on);
/* The memory of the worst rank. */
enum status generator_held(struct generator *generator, struct footprint_worst *held);

/* `emit` is called on every rank; the text ends on all of them if one returns false. All ranks give
 * the same prompt and settings. */
struct generate_text {
    struct generate_config config;
    void *user; /* for `emit` */
    struct generate_result result;
};
/* Generate *count texts together, at most as many as there are rows. Each is the same as alone. If
 * one cannot be generated, *count becomes the number of those before it, which are complete. If that
 * one is the first, the call fails. */
enum status generator_run_all(struct generator *generator, struct generate_text *texts, int *count,
                              generate_token_fn *emit);
/* One text. */
enum status generator_run(struct generator *generator, const struct generate_config *config,
                          generate_token_fn *emit, void *user, struct generate_result *result);

/* --- for the text samples of a training run -------------------------------------------------- */
/* Every sample has the same prompt and the same random numbers, so that only the model differs. */
struct text_sampler;

/* Allocates the decoder. The config's tokenizer and the session outlive the sampler. */
enum status text_sampler_create(struct env *env, const struct run_config *config,
                                const struct session *session, struct text_sampler **sampler);
void text_sampler_destroy(struct text_sampler *sampler); /* NULL is fine */

/* The expected size of a sample; 0 for NULL. */
size_t text_sampler_bytes(const struct text_sampler *sampler);

/* Allocates only if the text is longer than expected. The sample's strings are valid until the next
 * call. *stopped = the token, counted from 1 with the prompt, at which the logits were not finite:
 * the text ends before it and is not a valid sample; 0 = the text is complete. */
enum status text_sampler_run(struct text_sampler *sampler, int64_t step,
                             struct trainer_sample *sample, int64_t *stopped);

/* --- the next token (sampling.c): greedy, or by temperature, top-k and top-p ------------------- */

/* temperature 0 is greedy; top_k 0 and top_p 1 are off. `random` is in [0, 1). Ties go to the
 * lowest id. `order` has room for `vocab` ids. Returns -1 if a logit is NaN or the largest is not
 * finite. */
struct sampling {
    double temperature, top_p;
    int64_t top_k;
};
int32_t sampling_pick(const struct sampling *sampling, const float *logits, int64_t vocab,
                      double random, int32_t *order);

#endif
