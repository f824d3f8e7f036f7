#include "train/text_sampler.h"
#include "train/generate.h"

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
    TRY(generate_prompt(s->env, config->tokenizer, s->settings.prompt, &s->prompt));
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
    *stopped = generate_stopped(&result);
    *sample = (struct trainer_sample){.step = step,
                                      .prompt = s->settings.prompt,
                                      .text = text_string(&s->text),
                                      .text_bytes = s->text.bytes};
    return s->text.status;
}
