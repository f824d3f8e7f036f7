#include "train/generate.h"
#include "train/sampling.h"
#include <string.h>
#include "base/clock.h"
#include "base/rng.h"
#include "train/weights/model_file.h"
#include "train/models/model_weights.h"
#include "train/models/model_tokenizer.h"

/* --- one text ------------------------------------------------------------------------------- */

/* The most tokens to generate after a prompt of `prompt` tokens. The last one is not fed to the
 * model. */
static int64_t most_tokens(const struct generate_parts *parts, int64_t prompt, int64_t asked)
{
    int64_t left = parts->context - prompt + 1;
    return asked > 0 && asked < left ? asked : left;
}

enum status generate_tokens(struct env *env, const struct generate_parts *parts,
                            const int32_t *prompt, int64_t prompt_count,
                            const struct generate_config *config, generate_token_fn *emit,
                            void *user, struct generate_result *result)
{
    const struct sampling sampling = {config->temperature, config->top_p, config->top_k};
    const struct rng rng = rng_stream((uint64_t)config->seed, "sample");
    int64_t most = most_tokens(parts, prompt_count, config->tokens);
    const float *logits;
    *result = (struct generate_result){.prompt_tokens = prompt_count};
    if (prompt_count < 1 || prompt_count > parts->context)
        return FAIL(env, CONFIG,
                    "a prompt of %lld tokens does not fit the context of %lld; shorten it, or "
                    "train a model "
                    "with a larger model.context",
                    (long long)prompt_count, (long long)parts->context);

    double start = clock_seconds();
    decoder_reset(parts->decoder);
    TRY(decoder_feed(parts->decoder, prompt, prompt_count, &logits));
    double prefilled = clock_seconds();
    while (result->tokens < most) {
        uint64_t position = (uint64_t)(prompt_count + result->tokens);
        int32_t token = sampling_pick(&sampling, logits, parts->vocab, rng_uniform(rng, position),
                                      parts->order);
        result->not_finite = token < 0;
        if (result->not_finite)
            break;
        result->ended = token == tokenizer_eot(parts->tokenizer) && !config->ignore_eot;
        if (result->ended)
            break;
        size_t bytes = 0;
        const void *text = tokenizer_token(parts->tokenizer, token, &bytes);
        result->tokens++;
        if (!emit(user, token, text != NULL ? text : "", text != NULL ? bytes : 0))
            break;
        if (result->tokens < most)
            TRY(decoder_feed(parts->decoder, &token, 1, &logits));
    }
    result->prefill_seconds = prefilled - start;
    result->decode_seconds = clock_seconds() - prefilled;
    return STATUS_OK;
}

int64_t generate_stopped(const struct generate_result *result)
{
    return result->not_finite ? result->prompt_tokens + result->tokens + 1 : 0;
}

/* An empty prompt: begin as a text in the training data does. */
static enum status begin_with_eot(struct env *env, const struct tokenizer *tokenizer,
                                  struct token_list *ids)
{
    int32_t eot = tokenizer_eot(tokenizer);
    if (eot < 0)
        return FAIL(env, CONFIG,
                    "the tokenizer has no end-of-text token to begin with; give a prompt");
    token_list_free(env, ids);
    TRY(mem_alloc(env, MEM_OTHER, "prompt", sizeof *ids->ids, &ids->ids));
    *ids = (struct token_list){.ids = ids->ids, .count = 1, .room = 1};
    ids->ids[0] = eot;
    return STATUS_OK;
}

enum status generate_prompt(struct env *env, const struct tokenizer *tokenizer, const char *prompt,
                            struct token_list *ids)
{
    struct encoder *encoder;
    *ids = (struct token_list){0};
    TRY(encoder_create(env, tokenizer, &encoder));
    enum status st = tokenizer_encode(encoder, prompt, strlen(prompt), true, ids);
    encoder_destroy(encoder);
    if (st == STATUS_OK && ids->count == 0)
        st = begin_with_eot(env, tokenizer, ids);
    if (st != STATUS_OK)
        token_list_free(env, ids);
    return st;
}

/* --- with its own model --------------------------------------------------------------------- */

struct generator {
    struct env *env; /* borrowed */
    struct session session;
    struct tokenizer *tokenizer;
    struct decoder *decoder;
    int32_t *order;
};

static enum status load_tokenizer(struct generator *g, const struct model_source *source,
                                  const char *named)
{
    const char *path = *named ? named : source->folder;
    TRY(tokenizer_load(g->env, path, &g->tokenizer));
    int64_t vocab = model_config(g->session.model)->vocab;
    if (tokenizer_vocab(g->tokenizer) > vocab)
        return FAIL(g->env, CONFIG, "the tokenizer at '%s' has %d tokens, but the model only %lld",
                    path, tokenizer_vocab(g->tokenizer), (long long)vocab);
    return *named ? model_tokenizer_compare(g->env, source, vocab, g->tokenizer, named) : STATUS_OK;
}

static enum status load(struct generator *g, struct compute_config compute,
                        const struct model_source *source, const char *tokenizer)
{
    struct model_config sizes = {.path = ""};
    struct zero_config reads_only = {0};
    TRY(model_file_config(g->env, source->folder, &sizes));
    TRY(model_check(g->env, &sizes));
    TRY(session_create(g->env, compute, &sizes, &reads_only, &g->session));
    TRY(load_tokenizer(g, source, tokenizer));
    TRY(model_weights_load(g->env, source, g->session.model, g->session.zero));
    TRY(mem_alloc_array(g->env, MEM_OTHER, "order of tokens", (size_t)sizes.vocab, sizeof *g->order,
                        &g->order));
    int64_t chunk = sizes.context < GENERATE_CHUNK ? sizes.context : GENERATE_CHUNK;
    return decoder_create(
        g->session.ops, g->session.stream, g->session.spread.graph, g->session.zero,
        &(struct decoder_config){.tokens = sizes.context, .chunk = chunk}, &g->decoder);
}

enum status generator_create(struct env *env, struct compute_config compute,
                             const struct model_source *source, const char *tokenizer,
                             struct generator **generator)
{
    struct generator *g;
    TRY(mem_alloc(env, MEM_OTHER, "generator", sizeof *g, &g));
    g->env = env;
    enum status st = load(g, compute, source, tokenizer);
    if (st == STATUS_OK)
        *generator = g;
    else
        generator_destroy(g);
    return st;
}

void generator_destroy(struct generator *g)
{
    if (g == NULL)
        return;
    decoder_destroy(g->decoder);
    mem_free(g->env, g->order);
    tokenizer_destroy(g->tokenizer);
    session_destroy(&g->session);
    mem_free(g->env, g);
}

const struct model *generator_model(const struct generator *g)
{
    return g->session.model;
}

const struct tokenizer *generator_tokenizer(const struct generator *g)
{
    return g->tokenizer;
}

enum status generator_run(struct generator *g, const struct generate_config *config,
                          generate_token_fn *emit, void *user, struct generate_result *result)
{
    const struct model_config *sizes = model_config(g->session.model);
    struct generate_parts parts = {.decoder = g->decoder,
                                   .tokenizer = g->tokenizer,
                                   .vocab = sizes->vocab,
                                   .context = sizes->context,
                                   .order = g->order};
    struct token_list prompt;
    TRY(generate_prompt(g->env, g->tokenizer, config->prompt, &prompt));
    enum status st =
        generate_tokens(g->env, &parts, prompt.ids, prompt.count, config, emit, user, result);
    token_list_free(g->env, &prompt);
    TRY(st);
    if (result->not_finite)
        return FAIL(g->env, DIVERGED,
                    "the logits of token %lld of the text are not finite; check the weights of the "
                    "model: " MODEL_BAD_WEIGHTS,
                    (long long)generate_stopped(result));
    return STATUS_OK;
}
