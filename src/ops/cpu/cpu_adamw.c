/* cpu_adamw -- AdamW's arithmetic on floats, with the bits of the reference: each operation is
 * rounded to nearest on its own, including divisions and the square root.
 *
 * What bounds it: memory moves 28 bytes per parameter. Two Neoverse V1 cores, whose memory is fast,
 * are bound by arithmetic instead: 13 multiplications and additions, and a root and a division that
 * share one unit (3.5 and 3 cycles for 4 lanes). Three things keep that short:
 *
 * - Dividing by 1 changes nothing, and a correction is 1 once beta^t is less than half a unit of it
 *   (beta 0.9: after 165 steps), so such a division is left out.
 * - The others by a correction are products in double with 1 / correction, rounded to float. The
 *   product is within 2^-51.9 of the quotient, relatively. A float divided by a float is either
 *   representable or at least 2^-49 away from the middle of two floats, so both round to the same
 *   float. A subnormal quotient could be the middle itself, but only if the divisor is 2 or more.
 * - Each stage of the chain from gradient to parameter is done for several vectors at once, so that
 *   a core finds operations that do not wait for each other.
 */
#include "ops/cpu/cpu_impl.h"
#include "ops/cpu/cpu_vector.h"

enum { VECTORS = 4, GROUP = VECTORS * LANES };
#define EACH for (int k = 0; k < VECTORS; k++)

/* The next GROUP elements. divide1 and divide2: whether the corrections are not 1. */
static inline __attribute__((always_inline)) void
update_group(const struct cpu_factors *f, bool divide1, bool divide2, const float *restrict grad,
             float *restrict old_m, float *restrict old_v, float *restrict param)
{
    vf g[VECTORS], m[VECTORS], v[VECTORS], p[VECTORS], decay[VECTORS], square[VECTORS];
    EACH g[k] = v_load(grad + k * LANES) * f->grad_scale;
    EACH m[k] = v_load(old_m + k * LANES) * f->beta1;
    EACH v[k] = v_load(old_v + k * LANES) * f->beta2;
    EACH square[k] = g[k] * g[k] * f->rest2;
    EACH m[k] += g[k] * f->rest1;
    EACH v[k] += square[k];
    EACH v_store(old_m + k * LANES, m[k]);
    EACH v_store(old_v + k * LANES, v[k]);
    if (divide2)
        EACH v[k] = v_mul_double(v[k], f->inverse2);
    if (divide1)
        EACH m[k] = v_mul_double(m[k], f->inverse1);
    EACH v[k] = v_sqrt(v[k]) + f->eps;
    EACH p[k] = v_load(param + k * LANES);
    EACH decay[k] = p[k] * f->decay;
    EACH m[k] /= v[k];
    EACH p[k] -= (m[k] + decay[k]) * f->rate;
    EACH v_store(param + k * LANES, p[k]);
}

/* The last n elements, fewer than GROUP */
static inline __attribute__((always_inline)) void update_rest(const struct cpu_factors *f,
                                                              bool divide1, bool divide2, int64_t n,
                                                              const float *grad, float *m, float *v,
                                                              float *param)
{
    float part[4][GROUP] = {{0}};
    size_t bytes = (size_t)n * sizeof(float);
    memcpy(part[0], grad, bytes);
    memcpy(part[1], m, bytes);
    memcpy(part[2], v, bytes);
    memcpy(part[3], param, bytes);
    update_group(f, divide1, divide2, part[0], part[1], part[2], part[3]);
    memcpy(m, part[1], bytes);
    memcpy(v, part[2], bytes);
    memcpy(param, part[3], bytes);
}

static inline __attribute__((always_inline)) void adamw(struct cpu_factors f, bool divide1,
                                                        bool divide2, int64_t n, const float *grad,
                                                        float *m, float *v, float *param)
{
    int64_t i = 0;
    for (; i + GROUP <= n; i += GROUP)
        update_group(&f, divide1, divide2, grad + i, m + i, v + i, param + i);
    if (i < n)
        update_rest(&f, divide1, divide2, n - i, grad + i, m + i, v + i, param + i);
}

void cpu_adamw(const struct cpu_factors *f, int64_t n, const float *grad, float *m, float *v,
               float *param)
{
    if (f->inverse1 == 1 && f->inverse2 == 1)
        adamw(*f, false, false, n, grad, m, v, param);
    else if (f->inverse1 == 1)
        adamw(*f, false, true, n, grad, m, v, param);
    else
        adamw(*f, true, true, n, grad, m, v, param);
}
