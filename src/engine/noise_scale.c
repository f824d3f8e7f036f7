#include "engine/noise_scale.h"
#include <math.h>

void noise_scale_add(struct noise_scale *scale, const struct noise *step)
{
    if (!step->known)
        return;
    scale->steps += scale->steps < NOISE_SCALE_STEPS;
    scale->square += (step->square - scale->square) / (double)scale->steps;
    scale->trace += (step->trace - scale->trace) / (double)scale->steps;
}

double noise_scale_value(const struct noise_scale *scale)
{
    return scale->steps > 0 && scale->square > 0 && scale->trace > 0 ? scale->trace / scale->square
                                                                     : NAN;
}
