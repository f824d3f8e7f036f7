/* ref_flat -- reference for the store's arithmetic on flat ranges: casts, sums, the search for
 * non-finite values. These ops have types of their own, so one version serves every compute type.
 */
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

float ref_element(const void *x, enum dtype type, int64_t i)
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
            double fours[OPS_BLOCK / 4] = {0};
            for (int64_t i = first; i < r->count && i < first + OPS_BLOCK; i++) {
                double x = ref_element(r->x, type, i);
                fours[(i - first) / 4] += x * x;
            }
            r->sums[first / OPS_BLOCK] = tree_sum(fours, OPS_BLOCK / 4);
        }
    }
}

void ref_find_nonfinite(struct ops *ops, struct stream *stream, enum dtype type, const void *x,
                        int64_t count, int64_t *first)
{
    int64_t i = 0;
    while (i < count && isfinite(ref_element(x, type, i)))
        i++;
    *first = i < count ? i : -1;
}

void ref_gate_rows(struct ops *ops, struct stream *stream, enum dtype type,
                   const struct gate_rows *a)
{
    for (int64_t i = 0; i < a->count; i++) {
        float x = ref_element(a->x, type, i);
        bool kept = !a->goodness || a->goodness[(a->first + i) / a->columns] > 0;
        if (!isfinite(x))
            continue;
        x = kept ? fminf(fmaxf(x, -a->limit), a->limit) : 0;
        dtype_convert((char *)a->x + (size_t)i * dtype_bytes(type), type, &x, DTYPE_F32, 1);
    }
}
