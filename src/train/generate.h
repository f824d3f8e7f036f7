/* generate -- text from a model, token after token.
 *
 * Token i of a text is chosen with the random number f(seed, "sample", i), so a text depends on
 * the model, the prompt, the settings and the seed alone.
 */
#ifndef TRAIN_GENERATE_H
#define TRAIN_GENERATE_H
#include "engine/decoder.h"
#include "model/model.h"
#include "train/models/model_source.h"
#include "train/session.h"
#include "train/tokenizer/tokenizer.h"

struct generate_config {
    const char *prompt;        /* text; "" = the tokenizer's end-of-text token */
    int64_t tokens;            /* how many to make at most; 0 = what the context leaves */
    double temperature, top_p; /* temperature 0 = greedy; top_p 1 = off */
    int64_t top_k;             /* 0 = off */
    int64_t seed;
    bool ignore_eot; /* go on after the end-of-text token */
};

struct generate_result {
    int64_t prompt_tokens, tokens;
    double prefill_seconds; /* the prompt, up to the first token's choice */
    double decode_seconds;  /* all tokens after the first are fed in it */
    bool ended;             /* by the end-of-text token */
    bool not_finite;        /* the model's numbers are not: it stopped there */
};

/* Called for each token: its bytes (a character may be cut between two tokens); false stops, in
 * good order. */
typedef bool generate_token_fn(void *user, int32_t token, const void *bytes, size_t byte_count);

/* --- with parts that somebody else owns: the trainer's samples ------------------------------ */

#define GENERATE_CHUNK 64 /* tokens of a prompt that a decoder takes at once */

struct generate_parts {
    struct decoder *decoder; /* is reset first */
    const struct tokenizer *tokenizer;
    int64_t vocab, context; /* of the model; the decoder has room for `context` positions */
    int32_t *order;         /* room for vocab */
};

/* The ids a prompt begins with: its own, or the end-of-text token for "". token_list_free it. */
enum status generate_prompt(struct env *env, const struct tokenizer *tokenizer, const char *prompt,
                            struct token_list *ids);
/* Allocates nothing. */
enum status generate_tokens(struct env *env, const struct generate_parts *parts,
                            const int32_t *prompt, int64_t prompt_count,
                            const struct generate_config *config, generate_token_fn *emit,
                            void *user, struct generate_result *result);

/* The token of the text, from 1 and with the prompt's, that could not be chosen; 0: none. */
int64_t generate_stopped(const struct generate_result *result);

/* --- a model of its own, for `sifr sample` -------------------------------------------------- */
struct generator;

/* `tokenizer`: "" = the one beside the model. Uses env->threads. */
enum status generator_create(struct env *env, struct compute_config place,
                             const struct model_source *source, const char *tokenizer,
                             struct generator **generator);
void generator_destroy(struct generator *generator); /* NULL is fine */
const struct model *generator_model(const struct generator *generator);
const struct tokenizer *generator_tokenizer(const struct generator *generator);

enum status generator_run(struct generator *generator, const struct generate_config *config,
                          generate_token_fn *emit, void *user, struct generate_result *result);

#endif
