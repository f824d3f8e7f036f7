/* cpu_attention_panel -- between rows of tokens, which are far apart, and the panels of a kernel.
 *
 * A stride of many rows maps them to few places of the first-level cache, so all of a few rows is
 * used before the next ones.
 */
#include "ops/cpu/cpu_attention.h"
#include "ops/cpu/cpu_vector.h"

typedef float four __attribute__((vector_size(16)));

static inline four load_four(const float *from)
{
    four v;
    memcpy(&v, from, sizeof v);
    return v;
}

static struct cpu_rows some_rows(const struct cpu_rows *r, int64_t from, int64_t count)
{
    return (struct cpu_rows){max64(min64(count, r->count - from), 0), r->width,
                             r->x + from * r->stride, r->stride};
}

void cpu_attention_pack_across(void (*pack)(const struct cpu_panel *, void *), int64_t panel,
                               const struct cpu_rows *r, float *to)
{
    for (int64_t i = 0; i < r->count; i += panel) {
        cpu_fetch_rows(some_rows(r, i + 2 * panel, panel));
        pack(&(struct cpu_panel){.depth = r->width,
                                 .valid = min64(panel, r->count - i),
                                 .from = r->x + i * r->stride,
                                 .stride = r->stride},
             to + i * r->width);
    }
}

void cpu_attention_pack_along(const struct cpu_kernel *kernel, const struct cpu_rows *r,
                              int64_t room, float *to)
{
    enum { FEW = 16 };
    for (int64_t i = 0; i < r->count; i += FEW) {
        cpu_fetch_rows(some_rows(r, i + FEW, FEW));
        for (int64_t d = 0; d < r->width; d += kernel->rows)
            kernel->pack_a_along(&(struct cpu_panel){.depth = min64(FEW, r->count - i),
                                                     .valid = min64(kernel->rows, r->width - d),
                                                     .from = r->x + i * r->stride + d,
                                                     .stride = r->stride},
                                 to + d * room + i * kernel->rows);
    }
}

static void put(float *to, float x, bool add)
{
    *to = add ? *to + x : x;
}

static void turn_four(const float *from, int64_t cols, four times, bool add, float *to,
                      int64_t stride)
{
    four a = load_four(from) * times, b = load_four(from + cols) * times;
    four c = load_four(from + 2 * cols) * times, d = load_four(from + 3 * cols) * times;
    four ab = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    four cd = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    four ef = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    four gh = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    four row[4] = {
        __builtin_shufflevector(ab, cd, 0, 1, 4, 5), __builtin_shufflevector(ab, cd, 2, 3, 6, 7),
        __builtin_shufflevector(ef, gh, 0, 1, 4, 5), __builtin_shufflevector(ef, gh, 2, 3, 6, 7)};
    for (int i = 0; i < 4; i++) {
        four sum = add ? load_four(to + i * stride) + row[i] : row[i];
        memcpy(to + i * stride, &sum, sizeof sum);
    }
}

void cpu_attention_turn(const struct cpu_turn *t, float *to, int64_t stride)
{
    const four one = {1, 1, 1, 1};
    int64_t whole = t->count / 4 * 4, depth = t->depth / 4 * 4;
    for (int64_t i = 0; i < whole; i += 4) {
        four times = t->times ? load_four(t->times + i) : one;
        for (int64_t d = 0; d < depth; d += 4)
            turn_four(t->panel + d * t->cols + i, t->cols, times, t->add, to + i * stride + d,
                      stride);
    }
    for (int64_t i = 0; i < t->count; i++)
        for (int64_t d = i < whole ? depth : 0; d < t->depth; d++)
            put(to + i * stride + d, t->panel[d * t->cols + i] * (t->times ? t->times[i] : 1),
                t->add);
}
