/* rope.c -- frequencies and tables. Angles are computed in double: fp32 is not precise enough at
 * large positions. What follows from the keys of a file is what transformers derives from them. */
#include "model/rope.h"
#include <math.h>
#include "model/model.h"

static const double two_pi = 6.283185307179586476925286766559;

static double or_else(double value, double usual)
{
    return value > 0 ? value : usual;
}

int64_t rope_width(const struct model_config *c)
{
    return (int64_t)((double)c->head_width * or_else(c->rope.part, 1));
}

bool rope_has(const struct model_config *c, enum rope_table which)
{
    switch (which) {
    case ROPE_LONGER: return c->rope_scaling == ROPE_LONGROPE && c->context > c->rope_original;
    case ROPE_LOCAL: return c->rope.local > 0;
    default: return true;
    }
}

/* --- frequencies ---------------------------------------------------------------------------- */

static double llama3_frequency(const struct model_config *c, double f)
{
    double turns = (double)c->rope_original * f / two_pi; /* over the original context */
    if (turns > c->rope_high)
        return f;
    if (turns < c->rope_low)
        return f / c->rope_factor;
    double blend = (turns - c->rope_low) / (c->rope_high - c->rope_low);
    return (1 - blend) * f / c->rope_factor + blend * f;
}

/* The pair, as a fraction, that makes so many turns over the original context. */
static double pair_of_turns(const struct model_config *c, double turns)
{
    return (double)rope_width(c) * log((double)c->rope_original / (turns * two_pi)) /
           (2 * log(c->rope_theta));
}

static double yarn_frequency(const struct model_config *c, int64_t i, double f)
{
    double low = pair_of_turns(c, or_else(c->rope.fast, 32));
    double high = pair_of_turns(c, or_else(c->rope.slow, 1));
    low = fmax(c->rope.exact ? low : floor(low), 0);
    high = fmin(c->rope.exact ? high : ceil(high), (double)rope_width(c) - 1);
    if (low == high)
        high += 0.001;
    double divided = fmin(fmax(((double)i - low) / (high - low), 0), 1);
    return f / c->rope_factor * divided + f * (1 - divided);
}

static double frequency(const struct model_config *c, enum rope_table which, int64_t i)
{
    double power = -2.0 * (double)i / (double)rope_width(c);
    double f = pow(which == ROPE_LOCAL ? c->rope.local : c->rope_theta, power);
    if (which == ROPE_LOCAL)
        return f;
    switch (c->rope_scaling) {
    case ROPE_LINEAR: return f / c->rope_factor;
    case ROPE_LLAMA3: return llama3_frequency(c, f);
    case ROPE_YARN: return yarn_frequency(c, i, f);
    case ROPE_LONGROPE:
        return f / (which == ROPE_LONGER ? c->rope.longer : c->rope.shorter).values[i];
    default: return f;
    }
}

/* --- the factor of cos and sin -------------------------------------------------------------- */

static double yarn_scale(double factor, double weight)
{
    return factor <= 1 ? 1 : 0.1 * weight * log(factor) + 1;
}

static double attention_factor(const struct model_config *c, enum rope_table which)
{
    bool scaled = c->rope_scaling == ROPE_YARN || c->rope_scaling == ROPE_LONGROPE;
    if (!scaled || which == ROPE_LOCAL)
        return 1;
    if (c->rope.attention > 0)
        return c->rope.attention;
    if (c->rope_scaling == ROPE_LONGROPE)
        return c->rope_factor <= 1 ? 1
                                   : sqrt(1 + log(c->rope_factor) / log((double)c->rope_original));
    if (c->rope.mscale > 0 && c->rope.mscale_all > 0)
        return yarn_scale(c->rope_factor, c->rope.mscale) /
               yarn_scale(c->rope_factor, c->rope.mscale_all);
    return yarn_scale(c->rope_factor, 1);
}

void rope_table_fill(const struct model_config *c, enum rope_table which, float *table)
{
    int64_t half = rope_width(c) / 2;
    double factor = attention_factor(c, which);
    for (int64_t i = 0; i < half; i++) {
        double f = frequency(c, which, i);
        for (int64_t t = 0; t < c->context; t++) {
            float *pair = table + 2 * (t * half + i);
            pair[0] = (float)(factor * cos((double)t * f));
            pair[1] = (float)(factor * sin((double)t * f));
        }
    }
}
