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
    struct comm *comm;      /* ranks that may be asked to stop; NULL: they cannot, or one rank */
    struct choice *choices; /* room for the ranks of comm */
};

/* What a rank knows before a token is taken. */
struct choice {
    int32_t token; /* -1: the logits are not finite */
    int32_t goes_on;
};

/* All ranks use the token of rank 0, and continue only if every rank wants to. Ranks with equal
 * logits choose equal tokens anyway; on different processors logits may differ. */
static enum status agree(const struct generate_parts *parts, int32_t *token, bool *goes_on)
{
    const struct choice mine = {*token, *goes_on};
    if (!parts->comm)
        return STATUS_OK;
    TRY(comm_exchange(parts->comm, &mine, sizeof mine, parts->choices));
    *token = parts->choices[0].token;
    for (int r = 0; r < comm_size(parts->comm); r++)
        *goes_on = *goes_on && parts->choices[r].goes_on;
    return STATUS_OK;
}

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
    for (bool goes_on = true; result->tokens < most;) {
        uint64_t position = (uint64_t)(prompt_count + result->tokens);
        int32_t token = sampling_pick(&sampling, logits, parts->vocab, rng_uniform(rng, position),
                                      parts->order);
        TRY(agree(parts, &token, &goes_on));
        result->stopped = !goes_on;
        result->not_finite = goes_on && token < 0;
        result->ended = goes_on && tokenizer_stops(parts->tokenizer, token) && !config->ignore_eot;
        if (result->stopped || result->not_finite || result->ended)
            break;
        size_t bytes = 0;
        const void *text = tokenizer_token(parts->tokenizer, token, &bytes);
        result->tokens++;
        goes_on = emit(user, token, text != NULL ? text : "", text != NULL ? bytes : 0);
        if (result->tokens == most)
            break;
        /* With other ranks, which do not know yet that this one stops, the next token decides. */
        result->stopped = !goes_on && !parts->comm;
        if (result->stopped)
            break;
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

static enum status prepend(struct env *env, int32_t id, struct token_list *ids)
{
    size_t count = (size_t)ids->count;
    TRY(mem_grow_array(env, MEM_OTHER, "prompt", count + 1, sizeof *ids->ids, &ids->ids));
    memmove(ids->ids + 1, ids->ids, count * sizeof *ids->ids);
    ids->ids[0] = id;
    ids->count = ids->room = ids->count + 1;
    return STATUS_OK;
}

/* The ids of a prompt, freed with token_list_free. It begins with the token that begins texts, if
 * the tokenizer has one and the prompt does not. An empty prompt is otherwise the end-of-text token,
 * as at the beginning of a text in the training data. */
static enum status encode_prompt(struct env *env, const struct tokenizer *tokenizer,
                                 const char *prompt, struct token_list *ids)
{
    int32_t begin = tokenizer_special(tokenizer)->begin, first = begin;
    struct encoder *encoder;
    *ids = (struct token_list){0};
    TRY(encoder_create(env, tokenizer, &encoder));
    enum status st = tokenizer_encode(encoder, prompt, strlen(prompt), true, ids);
    encoder_destroy(encoder);
    if (ids->count == 0 && begin < 0)
        first = tokenizer_eot(tokenizer);
    if (st == STATUS_OK && ids->count == 0 && first < 0)
        st = FAIL(env, CONFIG,
                  "the tokenizer has no end-of-text token to begin with; give a prompt");
    if (st == STATUS_OK && first >= 0 && (ids->count == 0 || ids->ids[0] != begin))
        st = prepend(env, first, ids);
    if (st != STATUS_OK)
        token_list_free(env, ids);
    return st;
}

/* --- with its own model --------------------------------------------------------------------- */

struct generator {
    struct env *env; /* borrowed */
    struct session session;
    const struct session_ranks *ranks; /* borrowed */
    struct tokenizer *tokenizer;
    struct decoder *decoder;
    int32_t *order;
    struct choice *choices;
};

struct unit_shape generate_shape(const struct model_config *model)
{
    int64_t tokens = model->context < GENERATE_CHUNK ? model->context : GENERATE_CHUNK;
    return (struct unit_shape){.batch = 1, .tokens = tokens};
}

static enum status load_tokenizer(struct generator *g, const struct generator_config *config,
                                  int64_t vocab)
{
    const char *named = config->tokenizer, *path = *named ? named : config->source->folder;
    TRY(tokenizer_load(g->env, path, &g->tokenizer));
    if (tokenizer_vocab(g->tokenizer) > vocab)
        return FAIL(g->env, CONFIG, "the tokenizer at '%s' has %d tokens, but the model only %lld",
                    path, tokenizer_vocab(g->tokenizer), (long long)vocab);
    return *named ? model_tokenizer_compare(g->env, config->source, vocab, g->tokenizer, named)
                  : STATUS_OK;
}

static enum status load(struct generator *g, const struct generator_config *config)
{
    struct session *session = &g->session;
    struct session_reading reading = {
        .model = {.path = ""}, .source = config->source, .layout = config->layout};
    struct model_config *sizes = &reading.model;
    const struct agreement_facts facts = {.config_yaml = "", .gpu = "", .model = config->source};
    TRY(model_file_config(g->env, config->source->folder, sizes));
    TRY(model_check(g->env, sizes));
    TRY(load_tokenizer(g, config, sizes->vocab));
    TRY(session_agree(g->env, &facts, session));
    reading.shape = generate_shape(sizes);
    TRY(session_read(g->env, &reading, session));
    TRY(mem_alloc_array(g->env, MEM_OTHER, "order of tokens", (size_t)sizes->vocab,
                        sizeof *g->order, &g->order));
    TRY(mem_alloc_array(g->env, MEM_OTHER, "choices of ranks",
                        session->comm ? (size_t)comm_size(session->comm) : 1, sizeof *g->choices,
                        &g->choices));
    const struct decoder_config decoder = {.pipe = spread_pipe(&session->spread),
                                           .group = spread_tp_group(&session->spread),
                                           .tokens = sizes->context,
                                           .chunk = reading.shape.tokens};
    return decoder_create(session->ops, session->stream, session->spread.graph, session->zero,
                          &decoder, &g->decoder);
}

/* Tell the other ranks of a failure. */
static enum status told(const struct generator *g, enum status st)
{
    session_fail(g->env, g->ranks, st, &g->session);
    return st;
}

enum status generator_create(struct env *env, const struct generator_config *config,
                             struct generator **generator)
{
    struct generator *g;
    TRY(mem_alloc(env, MEM_OTHER, "generator", sizeof *g, &g));
    g->env = env;
    g->ranks = config->ranks;
    enum status st = session_join(env, config->compute, config->ranks, &g->session);
    if (st == STATUS_OK)
        st = told(g, load(g, config));
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
    mem_free(g->env, g->choices);
    mem_free(g->env, g->order);
    tokenizer_destroy(g->tokenizer);
    session_destroy(&g->session);
    mem_free(g->env, g);
}

/* --- what the ranks of a generator tell each other ------------------------------------------- */

enum { SHARED = 1 << 16 }; /* bytes of a text that are exchanged at once */

static enum status share(struct generator *g, struct text *text)
{
    struct comm *comm = g->session.comm;
    struct text shared;
    char *mine = NULL, *all = NULL;
    uint64_t bytes = text->bytes;
    enum status st;
    text_init(&shared, g->env);
    TRY_OR(done, mem_alloc(g->env, MEM_OTHER, "shared text", SHARED, &mine));
    TRY_OR(done, mem_alloc_array(g->env, MEM_OTHER, "shared text", (size_t)comm_size(comm), SHARED,
                                 &all));
    TRY_OR(done, comm_exchange(comm, &bytes, sizeof bytes, all));
    memcpy(&bytes, all, sizeof bytes);
    for (size_t first = 0; first < bytes; first += SHARED) {
        size_t count = bytes - first < SHARED ? bytes - first : SHARED;
        if (comm_rank(comm) == 0)
            memcpy(mine, text->data + first, count);
        TRY_OR(done, comm_exchange(comm, mine, count, all));
        text_add_bytes(&shared, all, count);
    }
    st = shared.status;
done:
    mem_free(g->env, all);
    mem_free(g->env, mine);
    if (st == STATUS_OK) {
        struct text before = *text;
        *text = shared;
        shared = before;
    }
    text_free(&shared);
    return st;
}

enum status generator_share(struct generator *g, struct text *text)
{
    return g->session.comm ? told(g, share(g, text)) : STATUS_OK;
}

enum status generator_agree(struct generator *g, bool *goes_on)
{
    const struct generate_parts parts = {.comm = g->session.comm, .choices = g->choices};
    int32_t token = 0;
    return told(g, agree(&parts, &token, goes_on));
}

enum status generator_held(struct generator *g, struct footprint_worst *held)
{
    return told(g, footprint_compare(&(struct footprints){0}, false, g->session.device,
                                     g->session.comm, held));
}

enum status generator_run(struct generator *g, const struct generate_config *config,
                          generate_token_fn *emit, void *user, struct generate_result *result)
{
    const struct model_config *sizes = model_config(g->session.model);
    struct generate_parts parts = {.decoder = g->decoder,
                                   .tokenizer = g->tokenizer,
                                   .vocab = sizes->vocab,
                                   .context = sizes->context,
                                   .order = g->order,
                                   .comm = g->session.comm,
                                   .choices = g->choices};
    struct token_list prompt;
    enum status st = encode_prompt(g->env, g->tokenizer, config->prompt, &prompt);
    if (st == STATUS_OK)
        st = generate_tokens(g->env, &parts, prompt.ids, prompt.count, config, emit, user, result);
    token_list_free(g->env, &prompt);
    if (st == STATUS_CONFIG &&
        g->session.comm) { /* all ranks refuse the prompt: none leaves early */
        comm_barrier(g->session.comm);
        return st;
    }
    TRY(told(g, st));
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
