/* rope_table -- cosines and sines of the rotary embedding, with the two scalings of long contexts.
 *
 * Pair i of a head is rotated by position * f(i), f(i) = theta^(-2i/D). "linear" divides every
 * frequency by the factor; "llama3" keeps high frequencies, divides low ones and blends in between.
 * Angles are computed in double: fp32 is not precise enough at large positions.
 */
#include "model/model_impl.h"
#include <math.h>

static const double TWO_PI = 6.283185307179586476925286766559;

static double scaled(const struct model_config *c, double f)
{
    if (c->rope_scaling == ROPE_LINEAR)
        return f / c->rope_factor;
    if (c->rope_scaling != ROPE_LLAMA3)
        return f;
    double turns = (double)c->rope_original * f / TWO_PI; /* over the original context */
    if (turns > c->rope_high)
        return f;
    if (turns < c->rope_low)
        return f / c->rope_factor;
    double blend = (turns - c->rope_low) / (c->rope_high - c->rope_low);
    return (1 - blend) * f / c->rope_factor + blend * f;
}

void rope_table_fill(const struct model_config *c, float *table)
{
    int64_t half = c->head_width / 2;
    for (int64_t i = 0; i < half; i++) {
        double f = scaled(c, pow(c->rope_theta, -2.0 * (double)i / (double)c->head_width));
        for (int64_t t = 0; t < c->context; t++) {
            float *pair = table + 2 * (t * half + i);
            pair[0] = (float)cos((double)t * f);
            pair[1] = (float)sin((double)t * f);
        }
    }
}
