/* cpu_adamw -- AdamW's arithmetic on floats: single operations rounded to nearest, divisions and
 * the root included. They take most of the time. Dividing by 1 changes nothing, and a correction is
 * 1 once beta^t is less than half a unit of it (beta 0.9: after 165 steps), so such divisions are
 * left out.
 */
#include <math.h>
#include "ops/cpu/cpu_impl.h"

/* LOOP(m / correction1, v / correction2); each `m` and `v` is the updated one. */
#define LOOP(first, second)                               \
    for (int64_t i = 0; i < n; i++) {                     \
        float g = grad[i] * f.grad_scale;                 \
        float m = f.beta1 * old_m[i] + f.rest1 * g;       \
        float v = f.beta2 * old_v[i] + f.rest2 * (g * g); \
        float step = (first) / (sqrtf(second) + f.eps);   \
        old_m[i] = m;                                     \
        old_v[i] = v;                                     \
        param[i] -= f.rate * (step + f.decay * param[i]); \
    }

static void adamw(struct cpu_factors f, int64_t n, const float *restrict grad,
                  float *restrict old_m, float *restrict old_v, float *restrict param)
{
    if (f.correction1 == 1 && f.correction2 == 1)
        LOOP(m, v)
    else if (f.correction1 == 1)
        LOOP(m, v / f.correction2)
    else
        LOOP(m / f.correction1, v / f.correction2)
}

void cpu_adamw(const struct cpu_factors *f, int64_t n, const float *grad, float *m, float *v,
               float *param)
{
    adamw(*f, n, grad, m, v, param);
}
