/* generate -- text from a model, one token at a time.
 *
 * Token i is chosen with the random number f(seed, "sample", i), so a text depends only on the
 * model, the prompt, the settings and the seed. */
#ifndef TRAIN_GENERATE_H
#define TRAIN_GENERATE_H
#include "engine/decoder.h"
#include "model/model.h"
#include "train/models/model_source.h"
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
};

/* Called for each token with its bytes; a character may be split over two tokens. Return false to
 * stop. */
typedef bool generate_token_fn(void *user, int32_t token, const void *bytes, size_t byte_count);

/* --- with borrowed parts, for the samples of a trainer ------------------------------ */

#define GENERATE_CHUNK 64 /* tokens of a prompt that are fed at once */

struct generate_parts {
    struct decoder *decoder; /* reset by each call */
    const struct tokenizer *tokenizer;
    int64_t vocab, context; /* of the model; the decoder has room for `context` positions */
    int32_t *order;         /* room for vocab */
};

/* The ids of a prompt; the end-of-text token for "". Free them with token_list_free. */
enum status generate_prompt(struct env *env, const struct tokenizer *tokenizer, const char *prompt,
                            struct token_list *ids);
/* Allocates nothing. */
enum status generate_tokens(struct env *env, const struct generate_parts *parts,
                            const int32_t *prompt, int64_t prompt_count,
                            const struct generate_config *config, generate_token_fn *emit,
                            void *user, struct generate_result *result);

/* The position of the token that could not be chosen, from 1, the prompt included; 0 = none. */
int64_t generate_stopped(const struct generate_result *result);

/* --- with its own model, for `sifr sample` -------------------------------------------------- */
struct generator;

/* `tokenizer` "" = the one in the folder of the model. Uses env->threads. */
enum status generator_create(struct env *env, struct compute_config compute,
                             const struct model_source *source, const char *tokenizer,
                             struct generator **generator);
void generator_destroy(struct generator *generator); /* NULL is fine */
const struct model *generator_model(const struct generator *generator);
const struct tokenizer *generator_tokenizer(const struct generator *generator);

enum status generator_run(struct generator *generator, const struct generate_config *config,
                          generate_token_fn *emit, void *user, struct generate_result *result);

#endif
