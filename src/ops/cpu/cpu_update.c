/* cpu_update -- updates of parameters: the rules of ops.h, with the bits of the reference.
 *
 * Every operation is exactly rounded and belongs to one element, so the compiler may vectorize the
 * plain loops. A segment is divided into chunks of whole blocks, counted from where its first block
 * would begin: a thread then has all of a block, which rule adamw8 needs. The arrays of a chunk
 * stay in the cache until its copy is made.
 */
#include "ops/cpu/cpu_impl.h"

enum { CHUNK = FLAT_CHUNK / 8 };

static struct cpu_factors factors_of(const struct update *update,
                                     const struct step_scalars *scalars,
                                     const struct update_segment *s)
{
    return (struct cpu_factors){.beta1 = (float)update->beta1,
                                .rest1 = (float)(1 - update->beta1),
                                .beta2 = (float)update->beta2,
                                .rest2 = (float)(1 - update->beta2),
                                .eps = (float)update->eps,
                                .grad_scale = scalars->grad_scale,
                                .inverse1 = 1 / (double)scalars->correction1,
                                .inverse2 = 1 / (double)scalars->correction2,
                                .rate = scalars->lr * s->lr_mul,
                                .decay = s->decay,
                                .scale = s->scale};
}

static void sgd(struct cpu_factors f, int64_t n, const float *restrict grad, float *restrict param)
{
    for (int64_t i = 0; i < n; i++)
        param[i] -= f.rate * (grad[i] * f.grad_scale + f.decay * param[i]);
}

static void sgd_momentum(struct cpu_factors f, bool nesterov, int64_t n, const float *restrict grad,
                         float *restrict m, float *restrict param)
{
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * f.grad_scale + f.decay * param[i];
        m[i] = f.beta1 * m[i] + g;
        param[i] -= f.rate * (nesterov ? g + f.beta1 * m[i] : m[i]);
    }
}

static void muon(struct cpu_factors f, bool nesterov, int64_t n, const float *restrict grad,
                 float *restrict m, float *restrict direction)
{
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * f.grad_scale;
        m[i] = f.beta1 * m[i] + f.rest1 * g;
        direction[i] = nesterov ? f.beta1 * m[i] + f.rest1 * g : m[i];
    }
}

static void apply(struct cpu_factors f, int64_t n, const float *restrict direction,
                  float *restrict param)
{
    for (int64_t i = 0; i < n; i++)
        param[i] -= f.rate * (f.scale * direction[i] + f.decay * param[i]);
}

/* Elements first .. first + n - 1 of a segment: its moments and its parameter. Returns what the
 * copy is made of: the parameter, or the direction of muon, in `room`. */
static const float *update_chunk(const struct update *update, const struct cpu_factors *f,
                                 const struct update_segment *s, int64_t first, int64_t n,
                                 float *room)
{
    float converted[CHUNK];
    float *param = s->param ? s->param + first : NULL; /* muon has none */
    float *m = s->m ? (float *)s->m + first : NULL;    /* sgd may have none */
    if (update->rule == UPDATE_ADAMW8) {
        cpu_adamw8(f, s, update->number, first, first + n);
        return param;
    }
    const float *grad = cpu_as_f32(s->grad, s->grad_type, first, n, converted);
    switch (update->rule) {
    case UPDATE_SGD:
        if (m)
            sgd_momentum(*f, update->nesterov, n, grad, m, param);
        else
            sgd(*f, n, grad, param);
        return param;
    case UPDATE_MUON: muon(*f, update->nesterov, n, grad, m, room); return room;
    case UPDATE_APPLY: apply(*f, n, grad, param); return param;
    default: cpu_adamw(f, n, grad, m, (float *)s->v + first, param); return param;
    }
}

/* `location` is NULL if the copy is rounded to nearest. */
static void segment_thread(const struct update *update, struct cpu_factors f,
                           const struct update_segment *s, const struct update_location *location)
{
    float room[CHUNK];
    size_t width = s->copy ? dtype_bytes(s->copy_type) : 0;
#pragma omp for schedule(static) nowait
    for (int64_t at = 0; at < s->count + s->skip; at += CHUNK) {
        int64_t first = at > 0 ? at - s->skip : 0;
        int64_t n = min64(at + CHUNK - s->skip, s->count) - first;
        const float *from = update_chunk(update, &f, s, first, n, room);
        if (location)
            cpu_round(location, update->number, first, n, from, s->copy_type,
                      (uint16_t *)s->copy + first);
        else if (s->copy)
            cpu_cast_chunk((char *)s->copy + (size_t)first * width, s->copy_type, from, DTYPE_F32,
                           n);
    }
}

static void update_thread(const struct update *update, const struct step_scalars *scalars,
                          const struct update_segment *segments, int segment_count)
{
    for (int i = 0; i < segment_count; i++) {
        const struct update_segment *s = &segments[i];
        bool random = ops_rounds_at_random(update, s);
        segment_thread(update, factors_of(update, scalars, s), s,
                       random ? &update->locations[i] : NULL);
    }
}

void cpu_update(struct ops *ops, struct stream *stream, const struct update *update,
                const struct step_scalars *scalars, const struct update_segment *segments,
                int segment_count)
{
    int64_t elements = 0;
    for (int i = 0; i < segment_count; i++) {
        ops_check_segment(update, &segments[i]);
        elements += segments[i].count;
    }
    IN_THREADS(cpu_threads(ops, elements), update_thread(update, scalars, segments, segment_count));
}
