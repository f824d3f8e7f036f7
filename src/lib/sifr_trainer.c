/* sifr_trainer -- the public trainer: a user's graph with a store and an engine, and access to
 * parameters by name. */
#include <string.h>

#include "lib/lib_impl.h"
#include "train/weights/safetensors_write.h"

struct sifr_trainer {
    struct sifr_context *context; /* borrowed */
    struct user_graph model;
    struct zero *zero;
    struct engine *engine;
    struct sifr_options options;
    int64_t updates; /* steps that were not skipped */
};

struct sifr_options sifr_options_default(void)
{
    return (struct sifr_options){.batch = 1,
                                 .tokens = 1,
                                 .micro_batches = 1,
                                 .beta1 = 0.9,
                                 .beta2 = 0.95,
                                 .eps = 1e-8,
                                 .weight_decay = 0.1,
                                 .clip = 1.0};
}

static enum status open_trainer(struct sifr_trainer *t, const struct sifr_model *model)
{
    struct sifr_context *c = t->context;
    const struct sifr_options *o = &t->options;
    struct zero_config zero = {.beta1 = o->beta1,
                               .beta2 = o->beta2,
                               .eps = o->eps,
                               .weight_decay = o->weight_decay,
                               .clip = o->clip,
                               .micro_batches = o->micro_batches};
    struct engine_config engine = {.recompute = o->recompute ? RECOMPUTE_FULL : RECOMPUTE_NONE,
                                   .micro_batch = o->batch,
                                   .tokens = o->tokens,
                                   .micro_batches = o->micro_batches};
    if (o->batch < 1 || o->tokens < 1 || o->micro_batches < 1)
        return FAIL(&c->env, CONFIG, "options: batch, tokens and micro_batches must be at least 1");
    if (!(o->beta1 >= 0 && o->beta1 < 1 && o->beta2 >= 0 && o->beta2 < 1 && o->eps > 0))
        return FAIL(&c->env, CONFIG,
                    "options: beta1 and beta2 must be in [0, 1) and eps above 0; start from "
                    "sifr_options_default()");
    TRY(user_graph_create(c, model, o->tokens, &t->model));
    TRY(zero_create(c->ops, c->stream, NULL, &t->model.graph, &zero, &t->zero));
    TRY(engine_create(c->ops, c->stream, &t->model.graph, t->zero, &engine, &t->engine));
    return zero_init(t->zero, o->seed);
}

int sifr_trainer_create(struct sifr_context *context, const struct sifr_model *model,
                        const struct sifr_options *options, struct sifr_trainer **trainer)
{
    struct sifr_trainer *t;
    log_error_clear(context->env.log);
    TRY(mem_alloc(&context->env, MEM_OTHER, "trainer", sizeof *t, &t));
    t->context = context;
    t->options = *options;
    enum status st = open_trainer(t, model);
    if (st != STATUS_OK) {
        sifr_trainer_destroy(t);
        return st;
    }
    *trainer = t;
    return STATUS_OK;
}

void sifr_trainer_destroy(struct sifr_trainer *t)
{
    if (!t)
        return;
    engine_destroy(t->engine);
    zero_destroy(t->zero);
    user_graph_free(t->context, &t->model);
    mem_free(&t->context->env, t);
}

/* --- steps ---------------------------------------------------------------------------------- */

/* Copy one micro-batch to the engine, refusing ids and labels outside the vocabulary. */
static enum status load_batch(struct sifr_trainer *t, int64_t m, const int32_t *ids,
                              const int32_t *labels)
{
    struct env *env = &t->context->env;
    int64_t rows = t->options.batch * t->options.tokens, vocab = t->model.graph.vocab;
    int32_t *to_ids, *to_labels;
    engine_batch(t->engine, m, &to_ids, &to_labels);
    for (int64_t i = 0; i < rows; i++) {
        if (ids[i] < 0 || ids[i] >= vocab)
            return FAIL(env, FORMAT, "id %d at index %lld is outside the vocabulary of %lld",
                        ids[i], (long long)i, (long long)vocab);
        if (labels[i] < -1 || labels[i] >= vocab)
            return FAIL(env, FORMAT, "label %d at index %lld is outside the vocabulary of %lld",
                        labels[i], (long long)i, (long long)vocab);
        to_ids[i] = ids[i];
        to_labels[i] = labels[i];
    }
    return STATUS_OK;
}

int sifr_step(struct sifr_trainer *t, const int32_t *ids, const int32_t *labels, double lr,
              struct sifr_result *result)
{
    int64_t rows = t->options.batch * t->options.tokens;
    struct engine_result r;
    log_error_clear(t->context->env.log);
    for (int64_t m = 0; m < t->options.micro_batches; m++)
        TRY(load_batch(t, m, ids + m * rows, labels + m * rows));
    TRY(engine_step(t->engine, t->updates + 1, lr, &r));
    t->updates += !r.skipped;
    *result = (struct sifr_result){r.loss, r.grad_norm, r.skipped};
    return STATUS_OK;
}

int sifr_eval(struct sifr_trainer *t, const int32_t *ids, const int32_t *labels, double *loss)
{
    double sum = 0.0;
    int64_t count = 0;
    log_error_clear(t->context->env.log);
    TRY(load_batch(t, 0, ids, labels));
    TRY(engine_eval(t->engine, engine_roster(t->engine)->workers, &sum, &count));
    if (count == 0)
        return FAIL(&t->context->env, FORMAT, "all labels of this batch are masked");
    *loss = sum / (double)count;
    return STATUS_OK;
}

/* --- parameters ----------------------------------------------------------------------------- */

static enum status find_param(struct sifr_trainer *t, const char *name, int64_t count, int *tensor)
{
    struct env *env = &t->context->env;
    const struct unit_graph *graph = &t->model.graph;
    log_error_clear(env->log);
    *tensor = user_graph_find(graph, name);
    if (*tensor < 0)
        return FAIL(env, CONFIG, "the model has no parameter '%s'", name);
    int64_t elements = unit_tensor_whole(&graph->tensors[*tensor]);
    if (elements != count)
        return FAIL(env, CONFIG, "parameter '%s' has %lld elements, not %lld", name,
                    (long long)elements, (long long)count);
    return STATUS_OK;
}

int sifr_read(struct sifr_trainer *t, const char *name, float *values, int64_t count)
{
    int tensor;
    TRY(find_param(t, name, count, &tensor));
    return zero_read(t->zero, tensor, 0, count, values);
}

int sifr_write(struct sifr_trainer *t, const char *name, const float *values, int64_t count)
{
    int tensor;
    TRY(find_param(t, name, count, &tensor));
    return zero_write(t->zero, tensor, 0, count, values);
}

static enum status fill_tensor(void *user, int i, int64_t first, int64_t count, void *out)
{
    struct sifr_trainer *t = user;
    return zero_read(t->zero, i, first, count, out);
}

int sifr_save(struct sifr_trainer *t, const char *path)
{
    struct env *env = &t->context->env;
    const struct unit_graph *graph = &t->model.graph;
    struct safetensors_layout *layout;
    struct safetensors_entry *entries;
    log_error_clear(env->log);
    TRY(mem_alloc_array(env, MEM_OTHER, "file", (size_t)graph->tensor_count, sizeof *entries,
                        &entries));
    for (int i = 0; i < graph->tensor_count; i++) {
        const struct unit_tensor *tensor = &graph->tensors[i];
        entries[i] = (struct safetensors_entry){
            .name = tensor->name, .type = DTYPE_F32, .rank = tensor->dims};
        memcpy(entries[i].shape, tensor->shape, sizeof tensor->shape);
    }
    enum status st = safetensors_layout_create(env, entries, graph->tensor_count, NULL, 0, &layout);
    if (st == STATUS_OK) {
        st = safetensors_write(env, path, layout, fill_tensor, t);
        safetensors_layout_destroy(layout);
    }
    mem_free(env, entries);
    return st;
}

/* --- figures -------------------------------------------------------------------------------- */

int64_t sifr_param_count(const struct sifr_trainer *t)
{
    return unit_graph_count(&t->model.graph);
}

size_t sifr_memory(const struct sifr_trainer *t, const char *category)
{
    for (int c = 0; c < MEM_CATEGORY_COUNT; c++)
        if (strcmp(mem_category_word(c), category) == 0)
            return mem_bytes(t->context->env.mem, c);
    return 0;
}
