#include "zero/optimizer.h"

#include <math.h>

static const struct {
    const char *word;
    enum update_rule rule;
    struct moment_forms moments;
} table[] = {
    [OPTIMIZER_ADAMW] = {"adamw", UPDATE_ADAMW, {MOMENT_F32, MOMENT_F32}},
    [OPTIMIZER_ADAMW8BIT] = {"adamw8bit", UPDATE_ADAMW8, {MOMENT_CODE8, MOMENT_CODE8}},
    [OPTIMIZER_SGD] = {"sgd", UPDATE_SGD, {MOMENT_F32, MOMENT_NONE}},
    [OPTIMIZER_MUON] = {"muon", UPDATE_MUON, {MOMENT_F32, MOMENT_NONE}},
};

const char *optimizer_word(enum optimizer_kind kind)
{
    return table[kind].word;
}

struct optimizer optimizer_for(struct optimizer optimizer, const struct unit_tensor *tensor)
{
    if (optimizer.kind == OPTIMIZER_MUON && tensor->matrices == 0)
        optimizer.kind = OPTIMIZER_ADAMW;
    return optimizer;
}

struct moment_forms optimizer_moments(const struct optimizer *optimizer)
{
    struct moment_forms moments = table[optimizer->kind].moments;
    if (optimizer->kind == OPTIMIZER_SGD && optimizer->momentum == 0)
        moments.m = MOMENT_NONE;
    return moments;
}

double optimizer_bytes(const struct optimizer *optimizer)
{
    static const double bytes[] = {[MOMENT_F32] = 4, [MOMENT_CODE8] = 1 + 1.0 / OPS_BLOCK};
    struct moment_forms moments = optimizer_moments(optimizer);
    return bytes[moments.m] + bytes[moments.v];
}

enum optimizer_state optimizer_state(const struct optimizer *optimizer)
{
    if (optimizer->kind == OPTIMIZER_SGD && optimizer_moments(optimizer).m != MOMENT_NONE)
        return OPTIMIZER_SGD_MOMENTUM;
    return (enum optimizer_state)optimizer->kind;
}

const char *optimizer_state_word(enum optimizer_state state)
{
    return state == OPTIMIZER_SGD_MOMENTUM ? "sgd with momentum"
                                           : optimizer_word((enum optimizer_kind)state);
}

static bool has_momentum(const struct optimizer *optimizer)
{
    return optimizer->kind == OPTIMIZER_SGD || optimizer->kind == OPTIMIZER_MUON;
}

struct update optimizer_update(const struct optimizer *optimizer)
{
    bool momentum = has_momentum(optimizer);
    return (struct update){.rule = table[optimizer->kind].rule,
                           .beta1 = momentum ? optimizer->momentum : optimizer->beta1,
                           .beta2 = momentum ? 0 : optimizer->beta2,
                           .eps = momentum ? 0 : optimizer->eps,
                           .nesterov = momentum && optimizer->nesterov};
}

bool optimizer_same(const struct optimizer *a, const struct optimizer *b)
{
    struct update x = optimizer_update(a), y = optimizer_update(b);
    return x.rule == y.rule && x.beta1 == y.beta1 && x.beta2 == y.beta2 && x.eps == y.eps &&
           x.nesterov == y.nesterov;
}

void optimizer_set_momentum(struct optimizer *optimizer, double momentum, int nesterov)
{
    bool muon = optimizer->kind == OPTIMIZER_MUON;
    if (isnan(momentum))
        momentum = muon ? 0.95 : 0.9;
    optimizer->momentum = momentum;
    optimizer->nesterov = nesterov < 0 ? muon && momentum > 0 : nesterov != 0;
}

bool optimizer_lacks_momentum(const struct optimizer *optimizer)
{
    return has_momentum(optimizer) && optimizer->nesterov && optimizer->momentum == 0;
}

double optimizer_muon_scale(int64_t rows, int64_t columns)
{
    return 0.2 * sqrt((double)(rows > columns ? rows : columns));
}
