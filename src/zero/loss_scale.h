/* loss_scale -- the factor of the loss that keeps fp16 gradients between underflow and overflow.
 *
 * It doubles after a window of steps without overflow and is halved by steps whose gradient is not
 * finite, from the second on since it last grew: one alone is taken for an accident. Pure arithmetic
 * over an open struct, so that a checkpoint can keep it.
 */
#ifndef ZERO_LOSS_SCALE_H
#define ZERO_LOSS_SCALE_H
#include <stdbool.h>

struct loss_scale {
    double scale;
    int good_steps; /* without overflow, since the scale last changed or a gradient overflowed */
    int patience;   /* overflows to go until the scale is halved */
};

enum { LOSS_SCALE_WINDOW = 1000, LOSS_SCALE_HYSTERESIS = 2 };
#define LOSS_SCALE_FIRST   65536.0
#define LOSS_SCALE_FLOOR   1.0
#define LOSS_SCALE_CEILING 0x1p60 /* where nothing ever overflows it must stay a float */

struct loss_scale loss_scale_start(void);
/* After a step that used `scale`. True when a gradient that was not finite is explained by the scale:
 * it was above the floor. */
bool loss_scale_update(struct loss_scale *s, bool overflow);

#endif
