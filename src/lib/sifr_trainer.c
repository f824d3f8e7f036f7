/* sifr_trainer -- the public trainer: a program's model with a store and an engine. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/timetable.h"
#include "lib/lib_impl.h"

/* --- options -------------------------------------------------------------------------------- */

enum {
    OPTIONS_LEAST = offsetof(struct sifr_options, checked) + sizeof(int),
    GROUP_LEAST = offsetof(struct sifr_group, wd_mul) + sizeof(double),
    BATCH_LEAST = offsetof(struct sifr_batch, own) + sizeof(int),
    OFFLOAD_LEAST = offsetof(struct sifr_offload, update) + sizeof(enum sifr_update),
    DEFAULT_WINDOW = 512000000,
};

void sifr_options_default(struct sifr_options *options, size_t size)
{
    const struct sifr_options defaults = {.size = size,
                                          .batch = 1,
                                          .tokens = 1,
                                          .micro_batches = 1,
                                          .prefetch = 1,
                                          .beta1 = 0.9,
                                          .beta2 = 0.95,
                                          .eps = 1e-8,
                                          .weight_decay = 0.1,
                                          .clip = 1.0};
    memset(options, 0, size);
    memcpy(options, &defaults, size < sizeof defaults ? size : sizeof defaults);
}

static enum dtype type_of(enum sifr_type type)
{
    return type == SIFR_BF16 ? DTYPE_BF16 : type == SIFR_F16 ? DTYPE_F16 : DTYPE_F32;
}

enum dtype trainer_type(const struct sifr_trainer *t)
{
    return type_of(t->options.precision);
}

static enum status check_sizes(struct env *env, const struct sifr_options *o)
{
    if (o->batch < 1 || o->tokens < 1 || o->micro_batches < 1)
        return FAIL(env, CONFIG, "options: batch, tokens and micro_batches must be at least 1");
    if (o->stage < 0 || o->stage > 3)
        return FAIL(env, CONFIG, "options: stage is %d; ZeRO stages are 0 to 3", o->stage);
    if (o->checkpoint_keep < 0 || o->prefetch < 0 || o->servers < 0 || o->shard_group < 0 ||
        o->pipeline < 0 || o->chunks < 0)
        return FAIL(env, CONFIG,
                    "options: checkpoint_keep, prefetch, servers, shard_group, pipeline and chunks "
                    "must be at least 0");
    return STATUS_OK;
}

static enum status check_arithmetic(struct env *env, const struct sifr_options *o)
{
    if (!(o->beta1 >= 0 && o->beta1 < 1 && o->beta2 >= 0 && o->beta2 < 1 && o->eps > 0))
        return FAIL(env, CONFIG,
                    "options: beta1 and beta2 must be in [0, 1) and eps above 0; start from "
                    "sifr_options_init");
    if (!(o->clip >= 0) || !isfinite(o->weight_decay))
        return FAIL(env, CONFIG, "options: clip must be at least 0, weight_decay finite");
    if (o->precision != SIFR_F32 && o->precision != SIFR_BF16 && o->precision != SIFR_F16)
        return FAIL(env, CONFIG, "options: precision must be SIFR_F32, SIFR_BF16 or SIFR_F16");
    if (o->sum != SIFR_F32 && o->sum != SIFR_BF16)
        return FAIL(env, CONFIG, "options: sum must be SIFR_F32 or SIFR_BF16");
    if (o->stochastic && o->precision != SIFR_BF16)
        return FAIL(env, CONFIG, "options: stochastic needs precision SIFR_BF16");
    if (o->recompute != SIFR_KEEP_ALL && o->recompute != SIFR_RECOMPUTE_ALL)
        return FAIL(env, CONFIG, "options: recompute is %d", (int)o->recompute);
    return STATUS_OK;
}

static enum status check_layout(struct env *env, const struct sifr_options *o, int ranks)
{
    int pp = o->pipeline > 1 ? o->pipeline : 1, copies = ranks / pp;
    if (ranks % pp != 0)
        return FAIL(env, CONFIG, "options: pipeline is %d, which does not divide %d ranks", pp,
                    ranks);
    if (o->servers > 0 && o->servers >= copies)
        return FAIL(env, CONFIG, "options: %d servers leave no worker of %d ranks", o->servers,
                    copies);
    if ((o->servers > 0 || o->shard_group > 0) && o->stage == 0)
        return FAIL(env, CONFIG, "options: servers and shard_group need stage 1, 2 or 3");
    if (o->servers > 0 && o->shard_group > 0)
        return FAIL(env, CONFIG, "options: servers and shard_group exclude each other");
    if (o->shard_group > 0 && copies % o->shard_group != 0)
        return FAIL(env, CONFIG, "options: shard_group is %d, which does not divide %d ranks",
                    o->shard_group, copies);
    if (o->schedule < SIFR_1F1B || o->schedule > SIFR_ZERO_BUBBLE)
        return FAIL(env, CONFIG, "options: schedule is %d", (int)o->schedule);
    return STATUS_OK;
}

static struct sifr_group group_at(const struct sifr_options *o, int g)
{
    struct sifr_group group;
    copy_entry(&group, sizeof group, o->groups, o->group_size, g);
    return group;
}

/* 0: `inherited`; negative: 0. */
static double own_or(double own, double inherited)
{
    return own == 0 ? inherited : own < 0 ? 0 : own;
}

/* Of a group; one of zeros stands for the options alone. */
static struct optimizer optimizer_of(const struct sifr_options *o, const struct sifr_group *group)
{
    static const enum optimizer_kind kinds[] = {[SIFR_INHERIT] = OPTIMIZER_ADAMW,
                                                [SIFR_ADAMW] = OPTIMIZER_ADAMW,
                                                [SIFR_ADAMW8BIT] = OPTIMIZER_ADAMW8BIT,
                                                [SIFR_SGD] = OPTIMIZER_SGD,
                                                [SIFR_MUON] = OPTIMIZER_MUON};
    int nesterov = group->nesterov ? group->nesterov : o->nesterov;
    struct optimizer optimizer = {.kind = kinds[group->optimizer ? group->optimizer : o->optimizer],
                                  .beta1 = own_or(group->beta1, o->beta1),
                                  .beta2 = own_or(group->beta2, o->beta2),
                                  .eps = own_or(group->eps, o->eps)};
    optimizer_set_momentum(&optimizer, own_or(group->momentum, own_or(o->momentum, NAN)),
                           nesterov == 0 ? -1 : nesterov > 0);
    return optimizer;
}

/* A setting for which 0 is the default and -1 stands for 0, below `limit`. */
static bool is_own(double value, double limit)
{
    return value == -1 || (value >= 0 && value < limit);
}

/* Settings that options and groups have in common. */
static enum status check_optimizer(struct env *env, const char *where, enum sifr_optimizer kind,
                                   int nesterov, double momentum)
{
    if (kind < SIFR_INHERIT || kind > SIFR_MUON)
        return FAIL(env, CONFIG,
                    "%s: optimizer is %d; use SIFR_ADAMW, SIFR_ADAMW8BIT, SIFR_SGD or SIFR_MUON",
                    where, (int)kind);
    if (nesterov < -1 || nesterov > 1)
        return FAIL(env, CONFIG, "%s: nesterov is %d; 1 is yes, -1 no, 0 the default", where,
                    nesterov);
    if (!is_own(momentum, 1))
        return FAIL(
            env, CONFIG,
            "%s: momentum is %g; it must be below 1. Set -1 for no momentum, 0 for the default",
            where, momentum);
    return STATUS_OK;
}

static enum status check_momentum(struct env *env, const char *where,
                                  const struct optimizer *optimizer)
{
    if (optimizer_lacks_momentum(optimizer))
        return FAIL(env, CONFIG,
                    "%s: Nesterov momentum needs a momentum above 0; set one, or nesterov to -1",
                    where);
    return STATUS_OK;
}

static enum status check_group(struct env *env, const struct sifr_options *o, int g)
{
    const struct sifr_group group = group_at(o, g);
    char where[64];
    snprintf(where, sizeof where, "options: group %d", g);
    if (!group.match || !isfinite(group.lr_mul) || !isfinite(group.wd_mul))
        return FAIL(env, CONFIG, "%s needs a match and finite lr_mul and wd_mul", where);
    if (!is_own(group.beta1, 1) || !is_own(group.beta2, 1) ||
        !is_own(group.weight_decay, INFINITY) || !(group.eps >= 0 && isfinite(group.eps)))
        return FAIL(env, CONFIG,
                    "%s: beta1 and beta2 must be in [0, 1) or -1, weight_decay at least 0 or -1, "
                    "eps at least 0",
                    where);
    TRY(check_optimizer(env, where, group.optimizer, group.nesterov, group.momentum));
    struct optimizer optimizer = optimizer_of(o, &group);
    return check_momentum(env, where, &optimizer);
}

static enum status check_groups(struct env *env, const struct sifr_options *o)
{
    if (o->group_count < 0 || (o->group_count > 0 && (!o->groups || o->group_size < GROUP_LEAST)))
        return FAIL(env, CONFIG, "options: set groups with SIFR_TABLE");
    for (int g = 0; g < o->group_count; g++)
        TRY(check_group(env, o, g));
    return STATUS_OK;
}

static enum status check_optimizers(struct env *env, const struct sifr_options *o)
{
    const struct sifr_group none = {0};
    TRY(check_optimizer(env, "options", o->optimizer, o->nesterov, o->momentum));
    struct optimizer optimizer = optimizer_of(o, &none);
    TRY(check_momentum(env, "options", &optimizer));
    return check_groups(env, o);
}

static bool is_place(enum sifr_place place)
{
    return place >= SIFR_ON_DEVICE && place <= SIFR_ON_DISK;
}

static enum status check_offload(struct env *env, const struct sifr_options *o)
{
    struct sifr_offload offload;
    if (!o->offload)
        return STATUS_OK;
    if (!copy_sized(&offload, sizeof offload, o->offload, OFFLOAD_LEAST))
        return FAIL(env, CONFIG,
                    "sifr_offload: wrong size, or a field that this version does not know; set "
                    ".size = sizeof(struct sifr_offload)");
    if (!is_place(offload.optimizer) || !is_place(offload.grads) || !is_place(offload.params))
        return FAIL(env, CONFIG,
                    "options: offload.optimizer is %d, offload.grads %d and offload.params %d; use "
                    "SIFR_ON_DEVICE, SIFR_ON_HOST or SIFR_ON_DISK",
                    (int)offload.optimizer, (int)offload.grads, (int)offload.params);
    if (offload.activations < SIFR_ON_DEVICE || offload.activations > SIFR_ON_HOST)
        return FAIL(env, CONFIG,
                    "options: offload.activations is %d; use SIFR_ON_DEVICE or SIFR_ON_HOST",
                    (int)offload.activations);
    if (!(offload.share >= 0 && offload.share <= 1) || offload.window < 0)
        return FAIL(env, CONFIG,
                    "options: offload.share must be 0 to 1, where 0 means all, and offload.window "
                    "at least 0");
    if (offload.update < SIFR_UPDATE_AUTO || offload.update > SIFR_UPDATE_ON_HOST)
        return FAIL(env, CONFIG,
                    "options: offload.update is %d; use SIFR_UPDATE_AUTO, SIFR_UPDATE_ON_DEVICE or "
                    "SIFR_UPDATE_ON_HOST",
                    (int)offload.update);
    return STATUS_OK;
}

static const enum far_kind kinds[] = {
    [SIFR_ON_DEVICE] = FAR_NONE, [SIFR_ON_HOST] = FAR_HOST, [SIFR_ON_DISK] = FAR_DISK};

/* After check_offload. */
static struct sifr_offload read_offload(const struct sifr_options *o)
{
    struct sifr_offload offload = {0};
    if (o->offload)
        copy_sized(&offload, sizeof offload, o->offload, OFFLOAD_LEAST);
    return offload;
}

static struct zero_offload offload_of(const struct sifr_options *o)
{
    struct sifr_offload from = read_offload(o);
    return (struct zero_offload){.optimizer = kinds[from.optimizer],
                                 .grads = kinds[from.grads],
                                 .params = kinds[from.params],
                                 .share = from.share > 0 ? from.share : 1,
                                 .window = from.window > 0 ? from.window : DEFAULT_WINDOW,
                                 .folder = run_offload_folder(from.folder ? from.folder : ""),
                                 .on_host = from.update == SIFR_UPDATE_ON_HOST};
}

static enum status read_options(struct sifr_context *context, const struct sifr_options *options,
                                struct sifr_options *copy)
{
    struct env *env = &context->env;
    const char *checked = getenv("SIFR_CHECKED");
    if (!options || !copy_sized(copy, sizeof *copy, options, OPTIONS_LEAST))
        return FAIL(env, CONFIG,
                    "sifr_options: wrong size, or a field that this version does not know; start "
                    "from sifr_options_init");
    copy->checked |= checked && *checked && strcmp(checked, "0") != 0;
    TRY(check_sizes(env, copy));
    TRY(check_arithmetic(env, copy));
    TRY(check_optimizers(env, copy));
    TRY(check_offload(env, copy));
    return check_layout(env, copy, context->ranks);
}

/* --- the gradient hook ---------------------------------------------------------------------- */

static enum status show_gradient(void *user, const struct zero_gradient *gradient)
{
    struct sifr_trainer *t = user;
    const struct sifr_gradient view = {.size = sizeof view,
                                       .name = t->model.tensors[gradient->tensor].name,
                                       .offset = gradient->first,
                                       .count = gradient->count,
                                       .type = gradient->type == DTYPE_F32    ? SIFR_F32
                                               : gradient->type == DTYPE_BF16 ? SIFR_BF16
                                                                              : SIFR_F16,
                                       .values = gradient->values,
                                       .scale = gradient->scale,
                                       .step = t->steps + 1,
                                       .trainer = t};
    int answer = t->options.gradient(t->options.user, &view);
    return answer == 0
               ? STATUS_OK
               : FAIL(&t->context->env, STOPPED,
                      "the gradient function returned %d for parameter '%s'", answer, view.name);
}

/* --- creation ------------------------------------------------------------------------------- */

static enum status open_store(struct sifr_trainer *t, struct zero_group *groups)
{
    const struct sifr_options *o = &t->options;
    struct session *s = &t->context->session;
    const struct sifr_group none = {0};
    for (int g = 0; g < o->group_count; g++) {
        const struct sifr_group from = group_at(o, g);
        groups[g] =
            (struct zero_group){.match = from.match,
                                .lr_mul = from.lr_mul,
                                .decay = own_or(from.weight_decay, o->weight_decay) * from.wd_mul,
                                .optimizer = optimizer_of(o, &from)};
    }
    struct zero_config zero = {.optimizer = optimizer_of(o, &none),
                               .weight_decay = o->weight_decay,
                               .clip = o->clip,
                               .groups = groups,
                               .group_count = o->group_count,
                               .micro_batches = o->micro_batches,
                               .stage = o->stage,
                               .prefetch = o->prefetch,
                               .servers = o->servers,
                               .shard_group = o->shard_group,
                               .local = o->sum_locally != 0,
                               .type = trainer_type(t),
                               .sum_type = type_of(o->sum),
                               .stochastic = o->stochastic != 0,
                               .seed = o->seed,
                               .noise = o->noise_scale != 0,
                               .offload = offload_of(o),
                               .snapshot = o->checkpoint_async != 0,
                               .gradient = o->gradient ? show_gradient : NULL,
                               .gradient_user = t};
    spread_configure_store(&t->spread, &zero);
    return zero_create(s->ops, s->stream, t->spread.copies, t->spread.graph, &zero, &t->zero);
}

static enum status open_engine(struct sifr_trainer *t)
{
    const struct sifr_options *o = &t->options;
    struct session *s = &t->context->session;
    struct engine_config engine = {.recompute = o->recompute == SIFR_RECOMPUTE_ALL ? RECOMPUTE_FULL
                                                                                   : RECOMPUTE_NONE,
                                   .activations = kinds[read_offload(o).activations],
                                   .micro_batch = o->batch,
                                   .tokens = o->tokens,
                                   .micro_batches = o->micro_batches};
    spread_configure_engine(&t->spread, &engine);
    return engine_create(s->ops, s->stream, t->spread.graph, t->zero, &engine, &t->engine);
}

/* FNV-1a, continued: a few hundred bytes once per trainer. */
static uint64_t mix(uint64_t hash, const void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ ((const unsigned char *)data)[i]) * 0x100000001b3;
    return hash;
}

/* What must be the same on all ranks; each may have its own offload.folder. Fields are hashed one by one, without padding. */
static uint64_t hash_options(const struct sifr_options *o)
{
    const struct zero_offload offload = offload_of(o);
    const double reals[] = {o->beta1, o->beta2,    o->eps,       o->weight_decay,
                            o->clip,  o->momentum, offload.share};
    const int64_t numbers[] = {o->batch,
                               o->tokens,
                               o->micro_batches,
                               o->recompute,
                               o->precision,
                               o->sum,
                               o->stochastic,
                               o->stage,
                               o->prefetch,
                               o->servers,
                               o->shard_group,
                               o->sum_locally,
                               o->pipeline,
                               o->schedule,
                               o->chunks,
                               o->eager,
                               (int64_t)o->seed,
                               o->gradient != NULL,
                               o->checkpoint_async,
                               o->optimizer,
                               o->nesterov,
                               o->noise_scale,
                               offload.optimizer,
                               offload.grads,
                               offload.params,
                               offload.window,
                               offload.on_host,
                               read_offload(o).activations};
    uint64_t hash = mix(mix(0xcbf29ce484222325, reals, sizeof reals), numbers, sizeof numbers);
    for (int g = 0; g < o->group_count; g++) {
        const struct sifr_group group = group_at(o, g);
        const double settings[] = {
            group.lr_mul, group.wd_mul,   group.momentum,          group.beta1,       group.beta2,
            group.eps,    group.nesterov, (double)group.optimizer, group.weight_decay};
        hash = mix(hash, group.match, strlen(group.match));
        hash = mix(hash, settings, sizeof settings);
    }
    return hash;
}

static uint64_t hash_model(const struct unit_graph *g, uint64_t hash)
{
    for (int t = 0; t < g->tensor_count; t++) {
        const struct unit_tensor *tensor = &g->tensors[t];
        const int64_t numbers[] = {tensor->dims, tensor->init, tensor->decay, tensor->matrices};
        hash = mix(hash, tensor->name, strlen(tensor->name));
        hash = mix(hash, tensor->shape, (size_t)tensor->dims * sizeof *tensor->shape);
        hash = mix(hash, numbers, sizeof numbers);
        hash = mix(hash, &tensor->init_scale, sizeof tensor->init_scale);
    }
    for (int u = 0; u < g->unit_count; u++) {
        const int64_t numbers[] = {g->units[u].out_width, g->units[u].statistic_count};
        hash = mix(hash, g->units[u].name, strlen(g->units[u].name));
        hash = mix(hash, numbers, sizeof numbers);
    }
    for (int i = 0; i < g->input_count; i++)
        hash = mix(hash, &g->inputs[i].bytes, sizeof g->inputs[i].bytes);
    return hash;
}

static enum status open_parts(struct sifr_trainer *t, const struct sifr_model *model)
{
    static const int schedules[] = {[SIFR_1F1B] = TIMETABLE_1F1B,
                                    [SIFR_GPIPE] = TIMETABLE_GPIPE,
                                    [SIFR_INTERLEAVED] = TIMETABLE_INTERLEAVED,
                                    [SIFR_ZERO_BUBBLE] = TIMETABLE_ZERO_BUBBLE};
    struct sifr_context *c = t->context;
    struct env *env = &c->env;
    const struct sifr_options *o = &t->options;
    struct zero_group *groups;
    TRY(user_model_create(c, model, o, &t->model));
    unit_graph_check(&t->model.graph);
    if (!device_is_dry(c->session.device))
        TRY(call_agree(c, "create", t->number, hash_model(&t->model.graph, hash_options(o))));
    const struct parallel_config parallel = {.tp = 1,
                                             .pp = o->pipeline > 1 ? o->pipeline : 1,
                                             .schedule = schedules[o->schedule],
                                             .chunks = o->chunks,
                                             .eager = o->eager != 0};
    TRY(spread_create(env, c->session.comm, &t->model.graph,
                      (struct unit_shape){.batch = o->batch, .tokens = o->tokens}, &parallel,
                      &(const struct zero_config){0}, &t->spread));
    TRY(mem_alloc_array(env, MEM_OTHER, "groups", (size_t)o->group_count + 1, sizeof *groups,
                        &groups));
    enum status st = open_store(t, groups);
    mem_free(env, groups);
    if (st == STATUS_OK)
        st = open_engine(t);
    t->options.groups = NULL; /* what the program owns is not used after this */
    t->options.offload = NULL;
    return st;
}

static void close_trainer(struct sifr_trainer *t)
{
    struct sifr_context *context = t->context;
    for (struct sifr_trainer **at = &context->trainers; *at; at = &(*at)->next)
        if (*at == t) {
            *at = t->next;
            break;
        }
    saves_destroy(t);
    engine_destroy(t->engine);
    zero_destroy(t->zero);
    spread_free(&t->spread);
    user_model_free(context, &t->model);
    mem_free(&context->env, t);
    context_release(context);
}

enum status trainer_open(struct sifr_context *context, const struct sifr_model *model,
                         const struct sifr_options *options, struct sifr_trainer **trainer)
{
    struct sifr_options copy;
    struct sifr_trainer *t;
    TRY(read_options(context, options, &copy));
    TRY(mem_alloc(&context->env, MEM_OTHER, "trainer", sizeof *t, &t));
    t->context = context;
    t->options = copy;
    t->number = ++context->created;
    t->next = context->trainers;
    context->trainers = t;
    context_hold(context);
    enum status st = open_parts(t, model);
    if (st != STATUS_OK) {
        close_trainer(t);
        return st;
    }
    *trainer = t;
    return STATUS_OK;
}

int sifr_trainer_create(struct sifr_context *context, const struct sifr_model *model,
                        const struct sifr_options *options, struct sifr_trainer **trainer)
{
    struct sifr_trainer *t = NULL;
    *trainer = NULL;
    enum status st = call_begin(context);
    if (st == STATUS_OK)
        st = trainer_open(context, model, options, &t);
    if (st == STATUS_OK) /* a rank that failed has left its groups: its message comes here */
        st = call_agree(context, "created", t->number, 0);
    if (st == STATUS_OK)
        st = zero_init(t->zero, t->options.seed);
    if (st == STATUS_OK)
        *trainer = t;
    else if (t)
        close_trainer(t);
    return call_end_collective(context, st);
}

void sifr_trainer_destroy(struct sifr_trainer *trainer)
{
    if (trainer)
        close_trainer(trainer);
}

/* --- data ----------------------------------------------------------------------------------- */

/* Copy one input of a micro-batch, refusing ids outside their limit. */
static enum status load_input(struct sifr_trainer *t, int64_t round, int i, int64_t m,
                              const char *from)
{
    const struct sifr_input *spec = &t->model.input_specs[i];
    size_t bytes = (size_t)t->options.batch * t->model.inputs[i].bytes;
    void *to = engine_input(t->engine, round, i);
    memcpy(to, from, bytes);
    if (spec->type != SIFR_I32 || spec->limit == 0)
        return STATUS_OK;
    const int32_t *ids = to;
    for (int64_t e = 0; e < t->options.batch * spec->count; e++)
        if (ids[e] < (spec->masked ? -1 : 0) || ids[e] >= spec->limit)
            return FAIL(&t->context->env, FORMAT,
                        "input '%s', micro-batch %lld, index %lld: %d is not in %d .. %lld",
                        spec->name, (long long)m, (long long)e, ids[e], spec->masked ? -1 : 0,
                        (long long)(spec->limit - 1));
    return STATUS_OK;
}

/* Fill the rounds of `count` micro-batches from m0 on that are this rank's. `own` counts those that
 * came before in the program's arrays. */
static enum status load_batches(struct sifr_trainer *t, const struct sifr_batch *batch, int64_t m0,
                                int64_t count, int64_t *own)
{
    const struct roster *roster = engine_roster(t->engine);
    int64_t rounds = roster_rounds(roster, count);
    for (int64_t round = 0; round < rounds; round++) {
        int64_t m = roster_micro_batch(roster, count, round);
        if (m < 0)
            continue;
        int64_t at = batch->own ? (*own)++ : m0 + m;
        for (int i = 0; i < t->model.graph.input_count; i++) {
            size_t bytes = (size_t)t->options.batch * t->model.inputs[i].bytes;
            if (!batch->inputs || !batch->inputs[i])
                return FAIL(&t->context->env, CONFIG, "there is no data for input '%s'",
                            t->model.input_names[i]);
            TRY(load_input(t, round, i, m0 + m,
                           (const char *)batch->inputs[i] + (size_t)at * bytes));
        }
    }
    return STATUS_OK;
}

static enum status read_batch(struct sifr_trainer *t, const struct sifr_batch *batch,
                              struct sifr_batch *copy)
{
    *copy = (struct sifr_batch){.size = sizeof *copy};
    if (!batch || copy_sized(copy, sizeof *copy, batch, BATCH_LEAST))
        return STATUS_OK;
    return FAIL(&t->context->env, CONFIG,
                "sifr_batch: wrong size, or a field that this version does not know");
}

int sifr_is_mine(const struct sifr_trainer *t, int64_t m)
{
    const struct roster *roster = engine_roster(t->engine);
    return m >= 0 && roster_is_worker(roster) && m % roster->workers == roster->rank;
}

/* --- steps ---------------------------------------------------------------------------------- */

static void give_result(struct sifr_trainer *t, struct sifr_result *to, struct sifr_result *from,
                        void (*hook)(void *user, const struct sifr_result *result))
{
    size_t size = to ? to->size : 0;
    from->size = sizeof *from;
    if (hook)
        hook(t->options.user, from);
    from->size = size;
    if (size >= sizeof size)
        memcpy(to, from, size < sizeof *from ? size : sizeof *from);
}

static enum status step(struct sifr_trainer *t, const struct sifr_batch *batch, double lr,
                        struct sifr_result *result)
{
    struct sifr_batch copy;
    struct engine_result r;
    int64_t own = 0;
    if (!isfinite(lr))
        return FAIL(&t->context->env, CONFIG, "sifr_step: the learning rate is %g", lr);
    uint64_t rate;
    memcpy(&rate, &lr, sizeof rate);
    TRY(call_agree(t->context, "step", t->number, rate));
    TRY(read_batch(t, batch, &copy));
    TRY(load_batches(t, &copy, 0, t->options.micro_batches, &own));
    TRY(engine_step(t->engine, t->updates + 1, lr, &r));
    if (r.count == 0)
        return FAIL(
            &t->context->env, FORMAT,
            "all labels of this step are masked; check the data, or give a step more sequences");
    t->steps++;
    t->updates += !r.skipped;
    struct sifr_result all = {.loss = r.loss,
                              .count = r.count,
                              .grad_norm = r.grad_norm,
                              .skipped = r.skipped,
                              .loss_scale = r.loss_scale,
                              .bad_element = r.bad_index,
                              .bad_micro_batch = r.bad_micro_batch,
                              .noise_square = r.noise.known ? r.noise.square : (double)NAN,
                              .noise_trace = r.noise.known ? r.noise.trace : (double)NAN};
    if (r.bad_tensor >= 0)
        snprintf(all.bad_param, sizeof all.bad_param, "%s", t->model.tensors[r.bad_tensor].name);
    give_result(t, result, &all, t->options.stepped);
    saves_poll(t);
    return STATUS_OK;
}

int sifr_step(struct sifr_trainer *t, const struct sifr_batch *batch, double lr,
              struct sifr_result *result)
{
    enum status st = call_begin(t->context);
    return call_end_collective(t->context, st != STATUS_OK ? st : step(t, batch, lr, result));
}

static enum status evaluate(struct sifr_trainer *t, const struct sifr_batch *batch,
                            int64_t micro_batches, struct sifr_result *result)
{
    struct sifr_batch copy;
    int64_t own = 0, together = engine_eval_rounds(t->engine) * engine_roster(t->engine)->workers;
    double sum = 0.0, count = 0.0;
    TRY(call_agree(t->context, "eval", t->number, (uint64_t)micro_batches));
    TRY(read_batch(t, batch, &copy));
    if (micro_batches < 1)
        return FAIL(&t->context->env, CONFIG, "sifr_eval: %lld micro-batches",
                    (long long)micro_batches);
    for (int64_t first = 0; first < micro_batches; first += together) {
        int64_t some = micro_batches - first < together ? micro_batches - first : together;
        TRY(load_batches(t, &copy, first, some, &own));
        TRY(engine_eval(t->engine, some, &sum, &count));
    }
    if (!(count > 0))
        return FAIL(&t->context->env, FORMAT, "all labels of this evaluation are masked");
    struct sifr_result all = {.loss = sum / count,
                              .count = count,
                              .bad_micro_batch = -1,
                              .noise_square = (double)NAN,
                              .noise_trace = (double)NAN};
    give_result(t, result, &all, t->options.evaluated);
    return STATUS_OK;
}

int sifr_eval(struct sifr_trainer *t, const struct sifr_batch *batch, int64_t micro_batches,
              struct sifr_result *result)
{
    enum status st = call_begin(t->context);
    if (st == STATUS_OK)
        st = evaluate(t, batch, micro_batches, result);
    return call_end_collective(t->context, st);
}

/* The short way: the model's inputs are ids and labels. With other inputs there is no data, which
 * the call reports. */
static struct sifr_batch token_batch(const struct sifr_trainer *t, const int32_t *ids,
                                     const int32_t *labels, const void *inputs[2])
{
    const struct user_model *m = &t->model;
    struct sifr_batch batch = {.size = sizeof batch};
    if (m->graph.input_count != 2 || m->ids < 0 || m->labels < 0)
        return batch;
    inputs[m->ids] = ids;
    inputs[m->labels] = labels;
    batch.inputs = inputs;
    return batch;
}

int sifr_step_tokens(struct sifr_trainer *t, const int32_t *ids, const int32_t *labels, double lr,
                     struct sifr_result *result)
{
    const void *inputs[2];
    const struct sifr_batch batch = token_batch(t, ids, labels, inputs);
    return sifr_step(t, &batch, lr, result);
}

int sifr_eval_tokens(struct sifr_trainer *t, const int32_t *ids, const int32_t *labels,
                     int64_t micro_batches, struct sifr_result *result)
{
    const void *inputs[2];
    const struct sifr_batch batch = token_batch(t, ids, labels, inputs);
    return sifr_eval(t, &batch, micro_batches, result);
}

int sifr_statistic(struct sifr_trainer *t, const char *unit, float *values, int64_t count)
{
    const struct unit_graph *graph = &t->model.graph;
    struct env *env = &t->context->env;
    enum status st = STATUS_CONFIG;
    int u = 0;
    if (t->context->calls == 0)
        log_error_clear(env->log);
    while (unit && u < graph->unit_count && strcmp(graph->units[u].name, unit) != 0)
        u++;
    if (!unit || u == graph->unit_count)
        FAIL(env, CONFIG, "the model has no unit '%s'", unit ? unit : "");
    else if (graph->units[u].statistic_count != count || count < 1)
        FAIL(env, CONFIG, "unit '%s' has %lld statistics, not %lld", unit,
             (long long)graph->units[u].statistic_count, (long long)count);
    else {
        memcpy(values, engine_statistics(t->engine) + graph->units[u].first_statistic,
               (size_t)count * sizeof *values);
        st = STATUS_OK;
    }
    return st == STATUS_OK ? SIFR_OK : SIFR_CONFIG;
}
