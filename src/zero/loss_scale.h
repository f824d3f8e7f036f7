/* loss_scale -- the factor of the loss that keeps fp16 gradients between underflow and overflow.
 *
 * The scale doubles after a window of steps without overflow. A step whose gradient is not finite
 * halves it, except for the first such step since the scale last grew: a single overflow may be an
 * accident. Pure arithmetic on a public struct, so a checkpoint can save it.
 */
#ifndef ZERO_LOSS_SCALE_H
#define ZERO_LOSS_SCALE_H
#include <stdbool.h>

struct loss_scale {
    double scale;
    int good_steps; /* finite steps since the scale last changed or a gradient last overflowed */
    int patience;   /* the scale is halved at overflow number `patience` from now */
};

enum { LOSS_SCALE_WINDOW = 1000, LOSS_SCALE_HYSTERESIS = 2 };
#define LOSS_SCALE_FIRST   65536.0
#define LOSS_SCALE_FLOOR   1.0
#define LOSS_SCALE_CEILING 0x1p60 /* the scale must fit a float even if nothing ever overflows */

struct loss_scale loss_scale_start(void);
/* Call after a step that used `scale`. Returns true when the scale explains a non-finite gradient,
 * because it was above the floor. */
bool loss_scale_update(struct loss_scale *s, bool overflow);

#endif
