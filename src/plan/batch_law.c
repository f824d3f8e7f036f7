#include "plan/batch_law.h"

#include <math.h>

#include "base/env.h"

struct batch_law batch_law_of(double noise_scale, int64_t batch, double steps)
{
    return (struct batch_law){.noise_scale = noise_scale,
                              .least_steps = steps / (1 + noise_scale / (double)batch)};
}

double batch_law_steps(const struct batch_law *law, double batch)
{
    return law->least_steps * (1 + law->noise_scale / batch);
}

double batch_law_samples(const struct batch_law *law, double batch)
{
    return 1 + batch / law->noise_scale;
}

/* Ask for the time of a batch, and keep the batch if it is better. */
static enum status ask_and_compare(const struct batch_law *law, int64_t batch,
                                   batch_seconds_fn *ask, void *user, double *step,
                                   struct batch_choice *best)
{
    TRY(ask(user, batch, step));
    double seconds = batch_law_steps(law, (double)batch) * *step;
    if (seconds < best->seconds)
        *best = (struct batch_choice){.batch = batch, .step = *step, .seconds = seconds};
    return STATUS_OK;
}

/* A step takes at least as long as that of any smaller batch. So a batch is left out if it would be
 * too slow even with the time of the batch before it, and the loop ends when that holds for a batch
 * without limit. */
enum status batch_law_best(const struct batch_law *law, int64_t given, int64_t unit,
                           batch_seconds_fn *ask, void *user, struct batch_choice *best)
{
    double step_of_given, step = 0; /* of the last batch of the loop that is known */
    *best = (struct batch_choice){.seconds = INFINITY};
    TRY(ask_and_compare(law, given, ask, user, &step_of_given, best));
    for (int64_t batch = unit; batch <= BATCH_LAW_MOST; batch *= 2) {
        if (law->least_steps * step >= best->seconds)
            break;
        if (batch == given)
            step = step_of_given;
        else if (batch_law_steps(law, (double)batch) * step < best->seconds)
            TRY(ask_and_compare(law, batch, ask, user, &step, best));
    }
    return STATUS_OK;
}
