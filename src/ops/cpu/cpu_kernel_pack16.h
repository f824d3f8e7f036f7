/* cpu_kernel_pack16 -- packing in bf16 for the kernel that includes this file, which first defines
 * KERNEL_ROWS, KERNEL_COLS, KERNEL_STEP_A and KERNEL_STEP_B (the steps of cpu_kernel.h).
 *
 * Values are rounded to nearest even by integers: the instructions that convert differ in what they
 * do with denormals. A source in bf16 (cpu_panel.from_bf16) is only put in order.
 */
#ifndef OPS_CPU_CPU_KERNEL_PACK16_H
#define OPS_CPU_CPU_KERNEL_PACK16_H
#include "ops/cpu/cpu_kernel.h"
#include "ops/cpu/cpu_kernel_ahead.h"
#include "ops/cpu/cpu_kernel_turn.h"

static inline __attribute__((always_inline)) uint32_t pack_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, nan = bits >> 16 | 0x40;
    return (bits & 0x7fffffff) > 0x7f800000 ? nan : rounded;
}

/* Values of the depth from `first` on, one by one, up to the end of the last step */
static inline void pack_slowly(const struct cpu_panel *p, int64_t width, int64_t step,
                               int64_t first, int64_t from_step, int64_t from_row, uint16_t *to)
{
    int64_t unit = KERNEL_STEP_A > KERNEL_STEP_B ? KERNEL_STEP_A : KERNEL_STEP_B;
    for (int64_t k = first; k < (p->depth + unit - 1) / unit * unit; k++)
        for (int64_t i = 0; i < width; i++) {
            int64_t at = k * from_step + i * from_row;
            uint16_t *value = to + k / step * width * step + i * step + k % step;
            if (i >= p->valid || k >= p->depth)
                *value = 0;
            else
                *value = p->from_bf16 ? p->from_bf16[at] : (uint16_t)pack_bf16(p->from[at]);
        }
}

enum {
    PACK_LINE = 32, /* values of a row that are packed at a time: a multiple of every step */
    PACK_WIDEST = 64
};

/* The pairs of two rows of the source: the first in the lower halves */
static inline __attribute__((always_inline)) void
pack_two_rows(const struct cpu_panel *p, int64_t width, int64_t k, uint32_t *pairs)
{
    const float *even = p->from + k * p->stride, *odd = even + p->stride;
    ahead(even + AHEAD_ROWS * p->stride, width * (int64_t)sizeof *even);
    ahead(odd + AHEAD_ROWS * p->stride, width * (int64_t)sizeof *odd);
    for (int64_t i = 0; i < width; i++)
        pairs[i] = pack_bf16(even[i]) | pack_bf16(odd[i]) << 16;
}

static inline __attribute__((always_inline)) void
pack_two_rows_bf16(const struct cpu_panel *p, int64_t width, int64_t k, uint32_t *pairs)
{
    const uint16_t *even = p->from_bf16 + k * p->stride, *odd = even + p->stride;
    ahead(even + AHEAD_ROWS * p->stride, width * (int64_t)sizeof *even);
    ahead(odd + AHEAD_ROWS * p->stride, width * (int64_t)sizeof *odd);
    for (int64_t i = 0; i < width; i++)
        pairs[i] = even[i] | (uint32_t)odd[i] << 16;
}

/* A pair of values is one 32-bit store. */
static inline __attribute__((always_inline)) void
pack_along(const struct cpu_panel *p, int64_t width, int64_t step, uint16_t *to)
{
    int64_t whole = p->valid < width ? 0 : p->depth / step * step;
    for (int64_t k = 0; k < whole; k += 2) {
        uint16_t *at = to + k / step * width * step + k % step;
        uint32_t pairs[PACK_WIDEST];
        if (p->from_bf16)
            pack_two_rows_bf16(p, width, k, pairs);
        else
            pack_two_rows(p, width, k, pairs);
        for (int64_t i = 0; i < width; i++)
            memcpy(at + i * step, &pairs[i], sizeof pairs[i]);
    }
    pack_slowly(p, width, step, whole, p->stride, 1, to);
}

/* A line of row i from value k on */
static inline __attribute__((always_inline)) void pack_line(const struct cpu_panel *p, int64_t i,
                                                            int64_t k, uint16_t *to)
{
    int64_t at = i * p->stride + k;
    if (p->from_bf16) {
        ahead(p->from_bf16 + at + AHEAD_VALUES, PACK_LINE * (int64_t)sizeof *to);
        memcpy(to, p->from_bf16 + at, PACK_LINE * sizeof *to);
        return;
    }
    ahead(p->from + at + AHEAD_VALUES, PACK_LINE * (int64_t)sizeof *p->from);
    for (int s = 0; s < PACK_LINE; s++)
        to[s] = (uint16_t)pack_bf16(p->from[at + s]);
}

/* A line of each row: steps of a whole line are packed in place, others are copied. */
static inline __attribute__((always_inline)) void
pack_lines(const struct cpu_panel *p, int64_t width, int64_t step, int64_t k, uint16_t *to)
{
    for (int64_t i = 0; i < width; i++) {
        uint16_t line[PACK_LINE], *at = step == PACK_LINE ? to + k * width + i * step : line;
        pack_line(p, i, k, at);
        for (int64_t s = 0; step < PACK_LINE && s < PACK_LINE; s += step)
            memcpy(to + (k + s) * width + i * step, line + s, (size_t)step * sizeof *to);
    }
}

/* Steps of two values, which are one word */
static inline __attribute__((always_inline)) void pack_pairs(const struct cpu_panel *p,
                                                             int64_t width, int64_t k, uint16_t *to)
{
    for (int64_t i = 0; i < width; i += 4) {
        uint16_t line[4][PACK_LINE];
        for (int r = 0; r < 4; r++)
            pack_line(p, i + r, k, line[r]);
        for (int s = 0; s < PACK_LINE / 8; s++) {
            turn_words pair[4];
            turn_four(line[0] + 8 * s, line[1] + 8 * s, line[2] + 8 * s, line[3] + 8 * s, pair);
            for (int n = 0; n < 4; n++)
                memcpy(to + (k + 8 * s + 2 * n) * width + 2 * i, &pair[n], sizeof pair[n]);
        }
    }
}

static inline __attribute__((always_inline)) void
pack_across(const struct cpu_panel *p, int64_t width, int64_t step, uint16_t *to)
{
    int64_t whole = p->valid < width ? 0 : p->depth / PACK_LINE * PACK_LINE;
    for (int64_t k = 0; k < whole; k += PACK_LINE)
        if (step == 2 && width % 4 == 0)
            pack_pairs(p, width, k, to);
        else
            pack_lines(p, width, step, k, to);
    pack_slowly(p, width, step, whole, 1, p->stride, to);
}

static void pack_a_along(const struct cpu_panel *p, void *to)
{
    pack_along(p, KERNEL_ROWS, KERNEL_STEP_A, to);
}

static void pack_a_across(const struct cpu_panel *p, void *to)
{
    pack_across(p, KERNEL_ROWS, KERNEL_STEP_A, to);
}

static void pack_b_along(const struct cpu_panel *p, void *to)
{
    pack_along(p, KERNEL_COLS, KERNEL_STEP_B, to);
}

static void pack_b_across(const struct cpu_panel *p, void *to)
{
    pack_across(p, KERNEL_COLS, KERNEL_STEP_B, to);
}

/* Fields of the kernel's struct */
#define KERNEL_SHAPE                                                             \
    .rows = KERNEL_ROWS, .cols = KERNEL_COLS,                                    \
    .depth_unit = KERNEL_STEP_A > KERNEL_STEP_B ? KERNEL_STEP_A : KERNEL_STEP_B, \
    .packed_bytes = sizeof(uint16_t)
#define KERNEL_PACK                                                                             \
    .pack_a_along = pack_a_along, .pack_a_across = pack_a_across, .pack_b_along = pack_b_along, \
    .pack_b_across = pack_b_across

#endif
