#include "train/generate.h"
#include <string.h>
#include "base/clock.h"
#include "base/rng.h"
#include "engine/decoder.h"
#include "train/weights/model_file.h"
#include "train/models/model_weights.h"
#include "train/models/model_source.h"

/* --- texts ---------------------------------------------------------------------------------- */

/* A text while it is generated. */
struct generating {
    struct generate_text *text; /* borrowed */
    struct token_list prompt;
    int64_t most;        /* tokens to generate */
    int32_t token;       /* the one that is fed next */
    const float *logits; /* from which the next one is chosen */
    bool active;
};

struct generate_parts {      /* borrowed */
    struct decoder *decoder; /* reset by each call */
    const struct tokenizer *tokenizer;
    int64_t vocab, context;       /* of the model; the decoder has room for `context` positions */
    int32_t *order;               /* room for vocab */
    struct decoder_input *inputs; /* (rows) */
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

/* Whether the context has room for the prompt; then `most` is set. */
static bool prompt_fits(const struct generate_parts *parts, struct generating *g)
{
    int64_t count = g->prompt.count, wanted = g->text->config.tokens;
    int64_t left = parts->context - count + 1; /* the last token is not fed to the model */
    g->most = wanted > 0 && wanted < left ? wanted : left;
    return count >= 1 && count <= parts->context;
}

static enum status refuse_prompt(struct env *env, const struct generate_parts *parts,
                                 const struct generating *g)
{
    return FAIL(env, CONFIG,
                "a prompt of %lld tokens does not fit the context of %lld; shorten it, or train a "
                "model with a larger model.context",
                (long long)g->prompt.count, (long long)parts->context);
}

/* Choose the next token of a text. If all ranks go on (*agreed), emit it. *goes_on: this rank wants
 * to go on. */
static enum status next_token(const struct generate_parts *parts, struct generating *g,
                              generate_token_fn *emit, bool *agreed, bool *goes_on)
{
    const struct generate_config *config = &g->text->config;
    struct generate_result *result = &g->text->result;
    const struct sampling sampling = {config->temperature, config->top_p, config->top_k};
    const struct rng rng = rng_stream((uint64_t)config->seed, "sample");
    double random = rng_uniform(rng, (uint64_t)(result->prompt_tokens + result->tokens));
    g->token = sampling_pick(&sampling, g->logits, parts->vocab, random, parts->order);
    TRY(agree(parts, &g->token, goes_on));
    *agreed = *goes_on;
    if (!*agreed)
        return STATUS_OK;
    result->not_finite = g->token < 0;
    result->ended =
        g->token >= 0 && tokenizer_stops(parts->tokenizer, g->token) && !config->ignore_eot;
    g->active = !result->not_finite && !result->ended;
    if (!g->active)
        return STATUS_OK;
    size_t bytes = 0;
    const void *text = tokenizer_token(parts->tokenizer, g->token, &bytes);
    result->tokens++;
    *goes_on = emit(g->text->user, g->token, text ? text : "", text ? bytes : 0);
    g->active = result->tokens < g->most;
    return STATUS_OK;
}

/* Feed the active texts: their prompts, or their next tokens. */
static enum status feed(const struct generate_parts *parts, struct generating *all, int count,
                        bool prompts)
{
    int fed = 0;
    for (int i = 0; i < count; i++)
        if (all[i].active)
            parts->inputs[fed++] =
                (struct decoder_input){.row = i,
                                       .tokens = prompts ? all[i].prompt.ids : &all[i].token,
                                       .count = prompts ? all[i].prompt.count : 1};
    TRY(decoder_feed_rows(parts->decoder, parts->inputs, fed));
    for (int i = 0; i < fed; i++)
        all[parts->inputs[i].row].logits = parts->inputs[i].logits;
    return STATUS_OK;
}

/* One token of every active text. *active = how many are still active. */
static enum status next_tokens(const struct generate_parts *parts, struct generating *all,
                               int count, generate_token_fn *emit, double begin, bool *goes_on,
                               int *active)
{
    bool agreed = true;
    *active = 0;
    for (int i = 0; agreed && i < count; i++) {
        if (!all[i].active)
            continue;
        TRY(next_token(parts, &all[i], emit, &agreed, goes_on));
        all[i].text->result.decode_seconds = clock_seconds() - begin;
        *active += all[i].active;
    }
    /* With other ranks, which do not know yet that this one stops, the next token decides. */
    if (agreed && (*goes_on || parts->comm))
        return STATUS_OK;
    for (int i = 0; i < count; i++)
        all[i].text->result.stopped = all[i].active;
    *active = 0;
    return STATUS_OK;
}

/* Prompts are encoded and checked. Allocates nothing. */
static enum status generate_tokens(const struct generate_parts *parts, struct generating *all,
                                   int count, generate_token_fn *emit)
{
    double start = clock_seconds();
    bool goes_on = true;
    int active = count;
    for (int i = 0; i < count; i++)
        all[i].active = true;
    decoder_reset(parts->decoder);
    TRY(feed(parts, all, count, true));
    double prefilled = clock_seconds();
    for (int i = 0; i < count; i++)
        all[i].text->result = (struct generate_result){.prompt_tokens = all[i].prompt.count,
                                                       .prefill_seconds = prefilled - start};
    for (;;) {
        TRY(next_tokens(parts, all, count, emit, prefilled, &goes_on, &active));
        if (active == 0)
            return STATUS_OK;
        TRY(feed(parts, all, count, false));
    }
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
    int rows;
    struct generating *texts;     /* (rows) */
    struct decoder_input *inputs; /* (rows) */
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
    TRY(mem_alloc_array(g->env, MEM_OTHER, "texts", (size_t)g->rows, sizeof *g->texts, &g->texts));
    TRY(mem_alloc_array(g->env, MEM_OTHER, "texts", (size_t)g->rows, sizeof *g->inputs,
                        &g->inputs));
    const struct decoder_config decoder = {.pipe = spread_pipe(&session->spread),
                                           .group = spread_tp_group(&session->spread),
                                           .tokens = sizes->context,
                                           .chunk = reading.shape.tokens,
                                           .rows = g->rows};
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
    g->rows = config->rows > 0 ? config->rows : 1;
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
    mem_free(g->env, g->inputs);
    mem_free(g->env, g->texts);
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

/* Reduce *count to the texts before the first whose prompt cannot be fed. Fails if that is the first
 * of all. */
static enum status encode_prompts(struct generator *g, const struct generate_parts *parts,
                                  struct generate_text *texts, int *count)
{
    int wanted = *count;
    for (*count = 0; *count < wanted; ++*count) {
        struct generating *text = &g->texts[*count];
        bool nothing = !*texts[*count].config.prompt && tokenizer_eot(g->tokenizer) < 0;
        if (*count > 0 && nothing)
            return STATUS_OK;
        text->text = &texts[*count];
        TRY(encode_prompt(g->env, g->tokenizer, text->text->config.prompt, &text->prompt));
        if (!prompt_fits(parts, text))
            return *count > 0 ? STATUS_OK : refuse_prompt(g->env, parts, text);
    }
    return STATUS_OK;
}

enum status generator_run_all(struct generator *g, struct generate_text *texts, int *count,
                              generate_token_fn *emit)
{
    const struct model_config *sizes = model_config(g->session.model);
    struct generate_parts parts = {.decoder = g->decoder,
                                   .tokenizer = g->tokenizer,
                                   .vocab = sizes->vocab,
                                   .context = sizes->context,
                                   .order = g->order,
                                   .inputs = g->inputs,
                                   .comm = g->session.comm,
                                   .choices = g->choices};
    CHECK(*count >= 1 && *count <= g->rows);
    enum status st = encode_prompts(g, &parts, texts, count);
    if (st == STATUS_OK)
        st = generate_tokens(&parts, g->texts, *count, emit);
    for (int i = 0; i < g->rows; i++)
        token_list_free(g->env, &g->texts[i].prompt);
    if (st == STATUS_CONFIG &&
        g->session.comm) { /* all ranks refuse the prompt: none leaves early */
        comm_barrier(g->session.comm);
        return st;
    }
    TRY(told(g, st));
    for (int i = 0; i < *count; i++)
        if (texts[i].result.not_finite)
            *count = i;
    if (*count > 0)
        return STATUS_OK;
    return FAIL(g->env, DIVERGED,
                "the logits of token %lld of the text are not finite; check the weights of the "
                "model: " MODEL_BAD_WEIGHTS,
                (long long)stopped_at(&texts[0].result));
}

enum status generator_run(struct generator *g, const struct generate_config *config,
                          generate_token_fn *emit, void *user, struct generate_result *result)
{
    struct generate_text text = {.config = *config, .user = user};
    int count = 1;
    enum status st = generator_run_all(g, &text, &count, emit);
    *result = text.result;
    return st;
}

/* --- samples of a training run -------------------------------------------------------------- */

enum { TOKEN_BYTES = 16 }; /* reserved for the text of a token; the mean is about 4 */

struct text_sampler {
    struct env *env; /* borrowed */
    struct generate_text job;
    struct generating state;     /* of the job; its prompt is owned here */
    struct generate_parts parts; /* decoder and order are owned here */
    struct decoder_input input;
    struct text text;
};

static enum status create_parts(struct text_sampler *s, const struct run_config *config,
                                const struct session *session)
{
    const struct model_config *model = &config->model;
    const struct generate_config *settings = &s->job.config;
    struct token_list *prompt = &s->state.prompt;
    TRY(encode_prompt(s->env, config->tokenizer, settings->prompt, prompt));
    if (prompt->count > model->context)
        return FAIL(
            s->env, CONFIG,
            "train.sample_prompt has %lld tokens and model.context is %lld; shorten the prompt",
            (long long)prompt->count, (long long)model->context);
    int64_t room = prompt->count + settings->tokens;
    room = room < model->context ? room : model->context;
    s->parts = (struct generate_parts){.tokenizer = config->tokenizer,
                                       .vocab = model->vocab,
                                       .context = room,
                                       .inputs = &s->input};
    s->state.text = &s->job;
    CHECK(prompt_fits(&s->parts, &s->state));
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
    s->job = (struct generate_text){.config = {.prompt = train->sample_prompt,
                                               .tokens = train->sample_tokens,
                                               .temperature = train->sample_temperature,
                                               .top_k = train->sample_top_k,
                                               .top_p = train->sample_top_p,
                                               .seed = train->seed},
                                    .user = &s->text};
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
    token_list_free(s->env, &s->state.prompt);
    text_free(&s->text);
    mem_free(s->env, s);
}

size_t text_sampler_bytes(const struct text_sampler *s)
{
    return s == NULL ? 0 : (size_t)s->job.config.tokens * TOKEN_BYTES;
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
    text_clear(&s->text);
    TRY(generate_tokens(&s->parts, &s->state, 1, collect));
    *stopped = stopped_at(&s->job.result);
    *sample = (struct trainer_sample){.step = step,
                                      .prompt = s->job.config.prompt,
                                      .text = text_string(&s->text),
                                      .text_bytes = s->text.bytes};
    return s->text.status;
}
