/* loss_scale -- growing and shrinking the scale. */
#include "zero/loss_scale.h"

struct loss_scale loss_scale_start(void)
{
    return (struct loss_scale){.scale = LOSS_SCALE_FIRST, .patience = LOSS_SCALE_HYSTERESIS};
}

static void shrink(struct loss_scale *s)
{
    s->good_steps = 0;
    if (s->patience > 1) {
        s->patience--;
        return;
    }
    s->scale = s->scale / 2 > LOSS_SCALE_FLOOR ? s->scale / 2 : LOSS_SCALE_FLOOR;
}

static void grow(struct loss_scale *s)
{
    if (++s->good_steps < LOSS_SCALE_WINDOW)
        return;
    s->good_steps = 0;
    s->patience = LOSS_SCALE_HYSTERESIS;
    if (s->scale < LOSS_SCALE_CEILING)
        s->scale *= 2;
}

bool loss_scale_update(struct loss_scale *s, bool overflow)
{
    bool explained = overflow && s->scale > LOSS_SCALE_FLOOR;
    if (overflow)
        shrink(s);
    else
        grow(s);
    return explained;
}
