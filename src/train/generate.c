#include "train/generate.h"
#include <string.h>
#include "base/clock.h"
#include "base/rng.h"
#include "engine/decoder.h"
#include "train/weights/model_file.h"
#include "train/models/model_weights.h"
#include "train/models/model_source.h"

/* --- one text ------------------------------------------------------------------------------- */

struct generate_parts {      /* borrowed */
    struct decoder *decoder; /* reset by each call */
    const struct tokenizer *tokenizer;
    int64_t vocab, context; /* of the model; the decoder has room for `context` positions */
    int32_t *order;         /* room for vocab */
};

/* Allocates nothing. */
static enum status generate_tokens(struct env *env, const struct generate_parts *parts,
                                   const int32_t *prompt, int64_t prompt_count,
                                   const struct generate_config *config, generate_token_fn *emit,
                                   void *user, struct generate_result *result)
{
    const struct sampling sampling = {config->temperature, config->top_p, config->top_k};
    const struct rng rng = rng_stream((uint64_t)config->seed, "sample");
    int64_t left = parts->context - prompt_count + 1; /* the last token is not fed to the model */
    int64_t most = config->tokens > 0 && config->tokens < left ? config->tokens : left;
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

/* The position of the token that could not be chosen, from 1, the prompt included; 0 = none. */
static int64_t stopped_at(const struct generate_result *result)
{
    return result->not_finite ? result->prompt_tokens + result->tokens + 1 : 0;
}

/* The ids of a prompt, freed with token_list_free. An empty prompt is the end-of-text token, as at the
 * beginning of a text in the training data. */
static enum status encode_prompt(struct env *env, const struct tokenizer *tokenizer,
                                 const char *prompt, struct token_list *ids)
{
    struct encoder *encoder;
    *ids = (struct token_list){0};
    TRY(encoder_create(env, tokenizer, &encoder));
    enum status st = tokenizer_encode(encoder, prompt, strlen(prompt), true, ids);
    encoder_destroy(encoder);
    if (st == STATUS_OK && ids->count == 0) {
        if (tokenizer_eot(tokenizer) < 0)
            st = FAIL(env, CONFIG,
                      "the tokenizer has no end-of-text token to begin with; give a prompt");
        else
            st = mem_grow_array(env, MEM_OTHER, "prompt", 1, sizeof *ids->ids, &ids->ids);
        if (st == STATUS_OK) {
            ids->ids[0] = tokenizer_eot(tokenizer);
            ids->count = ids->room = 1;
        }
    }
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

static enum status load(struct generator *g, struct compute_config compute,
                        const struct model_source *source, const char *tokenizer)
{
    struct model_config sizes = {.path = ""};
    struct zero_config reads_only = {0};
    const char *path = *tokenizer ? tokenizer : source->folder;
    TRY(model_file_config(g->env, source->folder, &sizes));
    TRY(model_check(g->env, &sizes));
    TRY(session_create(g->env, compute, &sizes, &reads_only, &g->session));
    TRY(tokenizer_load(g->env, path, &g->tokenizer));
    if (tokenizer_vocab(g->tokenizer) > sizes.vocab)
        return FAIL(g->env, CONFIG, "the tokenizer at '%s' has %d tokens, but the model only %lld",
                    path, tokenizer_vocab(g->tokenizer), (long long)sizes.vocab);
    if (*tokenizer)
        TRY(model_tokenizer_compare(g->env, source, sizes.vocab, g->tokenizer, tokenizer));
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
    TRY(encode_prompt(g->env, g->tokenizer, config->prompt, &prompt));
    enum status st =
        generate_tokens(g->env, &parts, prompt.ids, prompt.count, config, emit, user, result);
    token_list_free(g->env, &prompt);
    TRY(st);
    if (result->not_finite)
        return FAIL(g->env, DIVERGED,
                    "the logits of token %lld of the text are not finite; check the weights of the "
                    "model: " MODEL_BAD_WEIGHTS,
                    (long long)stopped_at(result));
    return STATUS_OK;
}

/* --- samples of a training run -------------------------------------------------------------- */

enum { TOKEN_BYTES = 16 }; /* reserved for the text of a token; the mean is about 4 */

struct text_sampler {
    struct env *env; /* borrowed */
    struct generate_config settings;
    struct generate_parts parts; /* decoder and order are owned here */
    struct token_list prompt;
    struct text text;
};

static enum status create_parts(struct text_sampler *s, const struct run_config *config,
                                const struct session *session)
{
    const struct model_config *model = &config->model;
    TRY(encode_prompt(s->env, config->tokenizer, s->settings.prompt, &s->prompt));
    if (s->prompt.count > model->context)
        return FAIL(
            s->env, CONFIG,
            "train.sample_prompt has %lld tokens and model.context is %lld; shorten the prompt",
            (long long)s->prompt.count, (long long)model->context);
    int64_t room = s->prompt.count + s->settings.tokens;
    room = room < model->context ? room : model->context;
    s->parts = (struct generate_parts){
        .tokenizer = config->tokenizer, .vocab = model->vocab, .context = room};
    TRY(mem_alloc_array(s->env, MEM_OTHER, "order of tokens", (size_t)model->vocab,
                        sizeof *s->parts.order, &s->parts.order));
    text_printf(&s->text, "%*s", (int)text_sampler_bytes(s), ""); /* reserve a sample */
    TRY(s->text.status);
    const struct decoder_config decoder = {.pipe = spread_pipe(&session->spread),
                                           .group = spread_tp_group(&session->spread),
                                           .tokens = room,
                                           .chunk = room < GENERATE_CHUNK ? room : GENERATE_CHUNK};
    return decoder_create(session->ops, session->stream, session->spread.graph, session->zero,
                          &decoder, &s->parts.decoder);
}

enum status text_sampler_create(struct env *env, const struct run_config *config,
                                const struct session *session, struct text_sampler **sampler)
{
    const struct train_config *train = &config->train;
    struct text_sampler *s;
    TRY(mem_alloc(env, MEM_OTHER, "sampler", sizeof *s, &s));
    s->env = env;
    s->settings = (struct generate_config){.prompt = train->sample_prompt,
                                           .tokens = train->sample_tokens,
                                           .temperature = train->sample_temperature,
                                           .top_k = train->sample_top_k,
                                           .top_p = train->sample_top_p,
                                           .seed = train->seed};
    text_init(&s->text, env);
    enum status st = create_parts(s, config, session);
    if (st == STATUS_OK)
        *sampler = s;
    else
        text_sampler_destroy(s);
    return st;
}

void text_sampler_destroy(struct text_sampler *s)
{
    if (s == NULL)
        return;
    decoder_destroy(s->parts.decoder);
    mem_free(s->env, s->parts.order);
    token_list_free(s->env, &s->prompt);
    text_free(&s->text);
    mem_free(s->env, s);
}

size_t text_sampler_bytes(const struct text_sampler *s)
{
    return s == NULL ? 0 : (size_t)s->settings.tokens * TOKEN_BYTES;
}

static bool collect(void *user, int32_t token, const void *bytes, size_t byte_count)
{
    struct text *text = user;
    (void)token;
    text_add_bytes(text, bytes, byte_count);
    return text->status == STATUS_OK;
}

enum status text_sampler_run(struct text_sampler *s, int64_t step, struct trainer_sample *sample,
                             int64_t *stopped)
{
    struct generate_result result;
    text_clear(&s->text);
    TRY(generate_tokens(s->env, &s->parts, s->prompt.ids, s->prompt.count, &s->settings, collect,
                        &s->text, &result));
    *stopped = stopped_at(&result);
    *sample = (struct trainer_sample){.step = step,
                                      .prompt = s->settings.prompt,
                                      .text = text_string(&s->text),
                                      .text_bytes = s->text.bytes};
    return s->text.status;
}
