/* optimizer_config -- which optimizer updates which tensor: optimizer.* and the keys of train.*
 * that belong to it.
 *
 * A run has one setting for all tensors. A group replaces parts of it for the tensors that it
 * matches; what it leaves unset it takes from the run. Momentum and Nesterov may be unset in the
 * run, too: then each optimizer has its own default. So a group of another kind than the run's gets
 * the default of its own kind.
 */
#include "train/config/optimizer_config.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>

#define COUNT(array)     ((int)(sizeof(array) / sizeof *(array)))
#define RANGE(low, high) .ranged = true, .min = (low), .max = (high)
#define BELOW_ONE        RANGE(0, 0.9999999)

/* --- the keys ------------------------------------------------------------------------------- */

static const char *const kind_words[] = {[OPTIMIZER_ADAMW] = "adamw",
                                         [OPTIMIZER_ADAMW8BIT] = "adamw8bit",
                                         [OPTIMIZER_SGD] = "sgd",
                                         [OPTIMIZER_MUON] = "muon",
                                         [OPTIMIZER_KINDS] = NULL};
static const char *const rounding_words[] = {"nearest", "stochastic", NULL};

#define MOST_LR_MUL 1e9
#define GROUP(name, kind) \
    .key = #name, .type = OPTION_##kind, .offset = offsetof(struct optimizer_group, name)
#define OWN(name, kind) GROUP(name, kind), .unset = "inherit"
static const struct option group_fields[] = {
    {GROUP(match, STRING), .value_name = "GLOB", .help = "tensor names"},
    {GROUP(lr_mul, REAL), .fallback = "1", RANGE(0, MOST_LR_MUL),
     .help = "factor for the learning rate"},
    {GROUP(wd_mul, REAL), .fallback = "1", RANGE(0, 1e9), .help = "factor for the weight decay"},
    {OWN(kind, CHOICE), .choices = kind_words, .help = "optimizer"},
    {OWN(lr, REAL), RANGE(0, 1e3), .help = "peak learning rate"},
    {OWN(beta1, REAL), BELOW_ONE, .help = "AdamW's beta1"},
    {OWN(beta2, REAL), BELOW_ONE, .help = "AdamW's beta2"},
    {OWN(eps, REAL), RANGE(1e-30, 1), .help = "AdamW's epsilon"},
    {OWN(weight_decay, REAL), RANGE(0, 1e3), .help = "weight decay"},
    {OWN(momentum, REAL), BELOW_ONE, .help = "momentum of sgd and muon"},
    {OWN(nesterov, BOOL), .help = "Nesterov momentum"},
};

#define OPTIMIZER(name, kind)                         \
    .key = "optimizer." #name, .type = OPTION_##kind, \
    .offset = offsetof(struct optimizer_config, name)
static const struct option optimizer_list[] = {
    {OPTIMIZER(kind, CHOICE), .fallback = "adamw", .choices = kind_words,
     .help = "optimizer; adamw8bit = AdamW with a quarter of the state; muon = for matrices of "
             "hidden layers, with adamw for all other tensors"},
    {OPTIMIZER(momentum, REAL), .unset = "auto", BELOW_ONE,
     .help = "momentum of sgd and muon; auto = 0.9 for sgd, 0.95 for muon"},
    {OPTIMIZER(nesterov, BOOL), .unset = "auto",
     .help = "Nesterov momentum of sgd and muon; auto = yes for muon, no for sgd"},
    {OPTIMIZER(rounding, CHOICE), .fallback = "nearest", .choices = rounding_words,
     .help = "rounding of fp32 masters to 16-bit parameters; stochastic = up or down at random, "
             "the nearer value with the higher probability"},
    {OPTIMIZER(groups, LIST),
     .help = "settings for tensors by name; the last match wins; a field that is left out is that "
             "of the run",
     .fields = group_fields, .field_count = COUNT(group_fields),
     .element_bytes = sizeof(struct optimizer_group)},
};
const struct option_table optimizer_options = {
    .title = "optimizer", .options = optimizer_list, .count = COUNT(optimizer_list)};

/* --- one setting ---------------------------------------------------------------------------- */

static bool has_betas(enum optimizer_kind kind)
{
    return kind != OPTIMIZER_SGD; /* muon has them for tensors that are no hidden matrices */
}

static bool has_momentum(enum optimizer_kind kind)
{
    return kind == OPTIMIZER_SGD || kind == OPTIMIZER_MUON;
}

static double or_real(double value, double inherited)
{
    return isnan(value) ? inherited : value;
}

static int or_int(int value, int inherited)
{
    return value < 0 ? inherited : value;
}

/* A group that leaves everything to the run. */
static const struct optimizer_group bare = {.lr_mul = 1,
                                            .wd_mul = 1,
                                            .kind = -1,
                                            .lr = NAN,
                                            .beta1 = NAN,
                                            .beta2 = NAN,
                                            .eps = NAN,
                                            .weight_decay = NAN,
                                            .momentum = NAN,
                                            .nesterov = -1};

static struct optimizer optimizer_of(const struct run_config *config,
                                     const struct optimizer_group *group)
{
    const struct train_config *train = &config->train;
    enum optimizer_kind kind = (enum optimizer_kind)or_int(group->kind, config->optimizer.kind);
    struct optimizer optimizer = {.kind = kind,
                                  .beta1 = or_real(group->beta1, train->beta1),
                                  .beta2 = or_real(group->beta2, train->beta2),
                                  .eps = or_real(group->eps, train->eps)};
    optimizer_set_momentum(&optimizer, or_real(group->momentum, config->optimizer.momentum),
                           or_int(group->nesterov, config->optimizer.nesterov));
    return optimizer;
}

struct optimizer run_optimizer(const struct run_config *config)
{
    return optimizer_of(config, &bare);
}

static struct zero_group resolve_group(const struct run_config *config,
                                       const struct optimizer_group *group)
{
    double lr = isnan(group->lr) ? group->lr_mul : group->lr / config->train.lr * group->lr_mul;
    double decay = or_real(group->weight_decay, config->train.weight_decay);
    return (struct zero_group){.match = group->match,
                               .lr_mul = lr,
                               .decay = decay * group->wd_mul,
                               .optimizer = optimizer_of(config, group)};
}

/* --- checks --------------------------------------------------------------------------------- */

/* Which key chose this: "optimizer.groups entry 2", or for number 0 the run's key. */
struct place {
    char text[64];
};

static struct place place_of(int number, const char *key)
{
    struct place place;
    if (number > 0)
        snprintf(place.text, sizeof place.text, "optimizer.groups entry %d", number);
    else
        snprintf(place.text, sizeof place.text, "optimizer.%s", key);
    return place;
}

static enum status check_optimizer(struct env *env, const struct run_config *config,
                                   const struct optimizer *optimizer, int number)
{
    if (optimizer_lacks_momentum(optimizer))
        return FAIL(env, CONFIG,
                    "%s: Nesterov momentum needs a momentum above 0; set one, or nesterov: false",
                    place_of(number, "nesterov").text);
    if (optimizer->kind == OPTIMIZER_MUON && config->precision == RUN_PRECISION_FP16 &&
        config->machine.device == RUN_DEVICE_CUDA)
        return FAIL(env, CONFIG,
                    "%s: muon does not compute in fp16 on a GPU; set precision.mode to bf16",
                    place_of(number, "kind").text);
    return STATUS_OK;
}

static enum status check_group(struct env *env, const struct run_config *config,
                               const struct optimizer_group *group, int number)
{
    if (*group->match == '\0')
        return FAIL(env, CONFIG, "optimizer.groups: entry %d has no `match`", number);
    if (!isnan(group->lr) && config->train.lr == 0)
        return FAIL(env, CONFIG,
                    "optimizer.groups entry %d: lr follows the schedule as a multiple of train.lr, "
                    "which is 0; set train.lr above 0",
                    number);
    if (!isnan(group->lr) && group->lr / config->train.lr > MOST_LR_MUL)
        return FAIL(env, CONFIG,
                    "optimizer.groups entry %d: lr is more than %g times train.lr %g; raise "
                    "train.lr",
                    number, MOST_LR_MUL, config->train.lr);
    return STATUS_OK;
}

static void warn_unused(struct env *env, const struct place *place, const char *key,
                        enum optimizer_kind kind)
{
    log_warn(env, "%s: %s has no effect with %s", place->text, key, optimizer_word(kind));
}

/* What a group sets but its optimizer does not have. */
static void warn_group(struct env *env, const struct optimizer_group *group,
                       enum optimizer_kind kind, int number)
{
    const struct {
        const char *key;
        bool set, used;
    } fields[] = {{"beta1", !isnan(group->beta1), has_betas(kind)},
                  {"beta2", !isnan(group->beta2), has_betas(kind)},
                  {"eps", !isnan(group->eps), has_betas(kind)},
                  {"momentum", !isnan(group->momentum), has_momentum(kind)},
                  {"nesterov", group->nesterov >= 0, has_momentum(kind)}};
    struct place place = place_of(number, "");
    for (int i = 0; i < COUNT(fields); i++)
        if (fields[i].set && !fields[i].used)
            warn_unused(env, &place, fields[i].key, kind);
}

/* What the run sets but no optimizer of it has. A run's config.yaml lists all keys, so a default
 * value counts as not set. */
static void warn_run(struct env *env, struct options *options, const struct run_config *config)
{
    bool betas = has_betas((enum optimizer_kind)config->optimizer.kind);
    bool momentum = has_momentum((enum optimizer_kind)config->optimizer.kind);
    for (int i = 0; i < config->optimizer.groups.count; i++) {
        betas |= has_betas(config->groups[i].optimizer.kind);
        momentum |= has_momentum(config->groups[i].optimizer.kind);
    }
    const struct {
        const char *key;
        bool used;
    } keys[] = {{"train.beta1", betas},
                {"train.beta2", betas},
                {"train.eps", betas},
                {"optimizer.momentum", momentum},
                {"optimizer.nesterov", momentum}};
    for (int i = 0; i < COUNT(keys); i++)
        if (!keys[i].used && !options_is_default(options, keys[i].key))
            log_warn(env, "%s has no effect with optimizer.kind=%s", keys[i].key,
                     optimizer_word((enum optimizer_kind)config->optimizer.kind));
}

/* --- everything ----------------------------------------------------------------------------- */

enum status optimizer_resolve(struct env *env, struct options *options, struct run_config *config)
{
    const struct optimizer_group *from = config->optimizer.groups.items;
    int count = config->optimizer.groups.count;
    struct optimizer own = run_optimizer(config);
    struct zero_group *groups;
    TRY(check_optimizer(env, config, &own, 0));
    TRY(options_keep_memory(options, (size_t)count * sizeof *groups, &groups));
    for (int i = 0; i < count; i++) {
        TRY(check_group(env, config, &from[i], i + 1));
        groups[i] = resolve_group(config, &from[i]);
        TRY(check_optimizer(env, config, &groups[i].optimizer, i + 1));
        warn_group(env, &from[i], groups[i].optimizer.kind, i + 1);
    }
    config->groups = groups;
    warn_run(env, options, config);
    /* Only a warning: a configuration may be shared by runs in several precisions. */
    if (config->optimizer.rounding == RUN_ROUNDING_STOCHASTIC &&
        config->precision == RUN_PRECISION_FP32)
        log_warn(env, "optimizer.rounding=stochastic has no effect with precision.mode=fp32, whose "
                      "parameters are not rounded");
    return STATUS_OK;
}

void optimizer_describe(const struct run_config *config, struct text *text)
{
    struct optimizer o = run_optimizer(config);
    const struct train_config *train = &config->train;
    int groups = config->optimizer.groups.count;
    text_printf(text, "%s", optimizer_word(o.kind));
    if (has_momentum(o.kind))
        text_printf(text, ", %smomentum %g", o.nesterov ? "Nesterov " : "", o.momentum);
    if (o.kind == OPTIMIZER_MUON)
        text_add(text, "; adamw for all but hidden matrices");
    if (has_betas(o.kind))
        text_printf(text, ", betas %g and %g", o.beta1, o.beta2);
    text_printf(text, ", weight decay %g", train->weight_decay);
    if (groups > 0)
        text_printf(text, "; %d group%s with own settings", groups, groups == 1 ? "" : "s");
}
