/* noise_scale -- the gradient noise scale of a run: how large a batch is worth having.
 *
 * B = trace / square, in sequences (struct noise): a batch of B sequences has as much noise as
 * gradient. Both parts are noisy, so each is averaged over steps, then they are divided. The
 * average is the mean of the first NOISE_SCALE_STEPS steps; after that, older steps fade.
 */
#ifndef ENGINE_NOISE_SCALE_H
#define ENGINE_NOISE_SCALE_H
#include "engine/engine.h"

enum { NOISE_SCALE_STEPS = 100 };

struct noise_scale { /* a checkpoint keeps it; zeroed: nothing is known */
    int64_t steps;   /* that were averaged, at most NOISE_SCALE_STEPS */
    double square, trace;
};

void noise_scale_add(struct noise_scale *scale, const struct noise *step);
/* NAN: not known, or the gradient is lost in its noise. */
double noise_scale_value(const struct noise_scale *scale);

#endif
