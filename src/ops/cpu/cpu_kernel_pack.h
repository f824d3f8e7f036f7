/* cpu_kernel_pack -- packing for the kernel that includes this file, which first defines
 * KERNEL_ROWS and KERNEL_COLS.
 *
 * Transposing works on 4 x 4 values in registers. All values of a line of the source are used while
 * the line is in cache: a source whose rows are a power of two apart has few places there.
 */
#ifndef OPS_CPU_CPU_KERNEL_PACK_H
#define OPS_CPU_CPU_KERNEL_PACK_H
#include "ops/cpu/cpu_kernel.h"
#include "ops/cpu/cpu_kernel_ahead.h"
#include "ops/cpu/cpu_kernel_turn.h"

/* Four steps of four values: to[k * width + i] = from[i * stride + k] */
static inline __attribute__((always_inline)) void pack_transpose(const float *from, int64_t stride,
                                                                 float *to, int64_t width)
{
    turn_words step[4];
    turn_four(from, from + stride, from + 2 * stride, from + 3 * stride, step);
    for (int k = 0; k < 4; k++)
        memcpy(to + k * width, &step[k], sizeof step[k]);
}

/* Steps first .. end - 1, value by value */
static inline void pack_slowly(const struct cpu_panel *p, int64_t width, int64_t first, int64_t end,
                               int64_t to_step, int64_t to_value, float *to)
{
    for (int64_t k = first; k < end; k++)
        for (int64_t i = 0; i < width; i++)
            to[k * width + i] = i < p->valid ? p->from[k * to_step + i * to_value] : 0.0f;
}

static inline __attribute__((always_inline)) void pack_along(const struct cpu_panel *p,
                                                             int64_t width, float *to)
{
    if (p->valid < width) {
        pack_slowly(p, width, 0, p->depth, p->stride, 1, to);
        return;
    }
    for (int64_t k = 0; k < p->depth; k++) {
        const float *from = p->from + k * p->stride;
        ahead(from + AHEAD_ROWS * p->stride, width * (int64_t)sizeof *from);
        memcpy(to + k * width, from, (size_t)width * sizeof(float));
    }
}

static inline __attribute__((always_inline)) void pack_across(const struct cpu_panel *p,
                                                              int64_t width, float *to)
{
    enum { LINE = AHEAD_LINE / sizeof *p->from };
    int64_t done = 0, whole = p->valid < width ? 0 : p->depth / 4 * 4;
    for (; done < whole; done += LINE) {
        int64_t end = done + LINE < whole ? done + LINE : whole;
        int64_t i = 0;
        for (; i < width; i++)
            ahead(p->from + i * p->stride + done + AHEAD_VALUES, LINE * (int64_t)sizeof *p->from);
        for (i = 0; i + 4 <= width; i += 4)
            for (int64_t k = done; k < end; k += 4)
                pack_transpose(p->from + i * p->stride + k, p->stride, to + k * width + i, width);
        if (i < width)
            for (int64_t k = done; k < end; k++)
                for (int64_t r = i; r < width; r++)
                    to[k * width + r] = p->from[r * p->stride + k];
    }
    pack_slowly(p, width, whole, p->depth, 1, p->stride, to);
}

static void pack_a_along(const struct cpu_panel *p, void *to)
{
    pack_along(p, KERNEL_ROWS, to);
}

static void pack_a_across(const struct cpu_panel *p, void *to)
{
    pack_across(p, KERNEL_ROWS, to);
}

static void pack_b_along(const struct cpu_panel *p, void *to)
{
    pack_along(p, KERNEL_COLS, to);
}

static void pack_b_across(const struct cpu_panel *p, void *to)
{
    pack_across(p, KERNEL_COLS, to);
}

/* Between a kernel's prefetches of the rows of c and its stores: makes the compiler compute the
 * addresses again, instead of holding them in registers that the sums need. */
#define KERNEL_FORGET(c, stride) __asm__("" : "+r"(c), "+r"(stride))

/* Fields of the kernel's struct */
#define KERNEL_SHAPE \
    .rows = KERNEL_ROWS, .cols = KERNEL_COLS, .depth_unit = 1, .packed_bytes = sizeof(float)
#define KERNEL_PACK                                                                             \
    .pack_a_along = pack_a_along, .pack_a_across = pack_a_across, .pack_b_along = pack_b_along, \
    .pack_b_across = pack_b_across

#endif
