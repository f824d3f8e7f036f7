/* ref_optimizer -- reference for the store's arithmetic on flat ranges. These ops have types of
 * their own, so one version serves every compute type. */
#include "base/rng.h"
#include "ops/ref/ref_impl.h"

/* The left subtree is the largest full tree (of 2^n values) that leaves at least one value. */
static double tree_sum(const double *values, int64_t count)
{
    int64_t left = 1;
    if (count == 1)
        return values[0];
    while (2 * left < count)
        left *= 2;
    return tree_sum(values, left) + tree_sum(values + left, count - left);
}

void ref_sum(struct ops *ops, struct stream *stream, int64_t count, const double *values,
             double *sum)
{
    *sum = count > 0 ? tree_sum(values, count) : 0;
}

void ref_tree_sums(struct ops *ops, struct stream *stream, int64_t count, int level,
                   const double *values, double *sums)
{
    for (int64_t i = 0; i < count >> level; i++)
        sums[i] = tree_sum(values + (i << level), (int64_t)1 << level);
}

void ref_cast(struct ops *ops, struct stream *stream, void *dst, enum dtype dst_type,
              const void *src, enum dtype src_type, int64_t count)
{
    dtype_convert(dst, dst_type, src, src_type, count);
}

static float element(const void *x, enum dtype type, int64_t i)
{
    float value;
    dtype_convert(&value, DTYPE_F32, (const char *)x + (size_t)i * dtype_bytes(type), type, 1);
    return value;
}

void ref_square_sums(struct ops *ops, struct stream *stream, enum dtype type,
                     const struct square_range *ranges, int range_count)
{
    for (const struct square_range *r = ranges; r < ranges + range_count; r++) {
        for (int64_t first = 0; first < r->count; first += OPS_BLOCK) {
            double sum = 0;
            for (int64_t i = first; i < r->count && i < first + OPS_BLOCK; i++) {
                double x = element(r->x, type, i);
                sum += x * x;
            }
            r->sums[first / OPS_BLOCK] = sum;
        }
    }
}

void ref_find_nonfinite(struct ops *ops, struct stream *stream, enum dtype type, const void *x,
                        int64_t count, int64_t *first)
{
    int64_t i = 0;
    while (i < count && isfinite(element(x, type, i)))
        i++;
    *first = i < count ? i : -1;
}

static void copy_at_random(const struct adamw_segment *s, const struct adamw_location *location,
                           int64_t update)
{
    uint16_t *copy = s->copy;
    for (int64_t i = 0; i < s->count; i++) {
        uint32_t random = rng_word((struct rng){location->key},
                                   (uint64_t)ops_whole_element(location, i), (uint64_t)update);
        copy[i] = s->copy_type == DTYPE_BF16 ? f32_to_bf16_random(s->param[i], random)
                                             : f32_to_f16_random(s->param[i], random);
    }
}

static void adamw_segment(struct adamw hyper, const struct step_scalars *scalars,
                          const struct adamw_segment *s)
{
    float lr = scalars->lr * s->lr_mul;
    float beta1 = (float)hyper.beta1, rest1 = (float)(1 - hyper.beta1);
    float beta2 = (float)hyper.beta2, rest2 = (float)(1 - hyper.beta2);
    for (int64_t i = 0; i < s->count; i++) {
        float g = element(s->grad, s->grad_type, i) * scalars->grad_scale;
        float m = beta1 * s->m[i] + rest1 * g;
        float v = beta2 * s->v[i] + rest2 * (g * g);
        float step =
            m / scalars->correction1 / (sqrtf(v / scalars->correction2) + (float)hyper.eps);
        s->m[i] = m;
        s->v[i] = v;
        s->param[i] -= lr * (step + s->decay * s->param[i]);
    }
}

void ref_adamw(struct ops *ops, struct stream *stream, struct adamw hyper,
               const struct step_scalars *scalars, const struct adamw_segment *segments,
               int segment_count)
{
    for (int i = 0; i < segment_count; i++) {
        ops_check_segment(&segments[i]);
        adamw_segment(hyper, scalars, &segments[i]);
        if (ops_rounds_at_random(&hyper, &segments[i]))
            copy_at_random(&segments[i], &hyper.locations[i], hyper.update);
        else if (segments[i].copy != NULL)
            dtype_convert(segments[i].copy, segments[i].copy_type, segments[i].param, DTYPE_F32,
                          segments[i].count);
    }
}
