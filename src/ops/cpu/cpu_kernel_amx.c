/* cpu_kernel_amx -- AMX: 32 rows by 32 columns in four tiles of 16 x 16 sums. A step of 32 values
 * of the depth loads two tiles of a and two of b for four instructions of 8,192 multiply-adds each.
 */
#include <immintrin.h>
#define KERNEL_ROWS   32
#define KERNEL_COLS   32
#define KERNEL_STEP_A 32
#define KERNEL_STEP_B 2
#include "ops/cpu/cpu_kernel_pack16.h"

enum { TILE = 16, TILE_BYTES = 64 };

/* Each tile has 16 rows of 64 bytes. */
static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} config = {
    .palette = 1,
    .bytes = {64, 64, 64, 64, 64, 64, 64, 64},
    .rows = {16, 16, 16, 16, 16, 16, 16, 16},
};

static void begin(void)
{
    _tile_loadconfig(&config);
}

static void end(void)
{
    _tile_release();
}

static inline void store_tiles(float *to, int64_t stride)
{
    _tile_stored(0, to, stride * (int64_t)sizeof(float));
    _tile_stored(1, to + TILE, stride * (int64_t)sizeof(float));
    _tile_stored(2, to + TILE * stride, stride * (int64_t)sizeof(float));
    _tile_stored(3, to + TILE * stride + TILE, stride * (int64_t)sizeof(float));
}

static void multiply(int64_t depth, const void *packed_a, const void *packed_b, float times,
                     bool add, float *c, int64_t stride)
{
    enum { A_STEP = KERNEL_ROWS * 32, B_STEP = KERNEL_COLS * 32, B_STRIDE = KERNEL_COLS * 4 };
    const uint16_t *a = packed_a, *b = packed_b;
    float sum[KERNEL_ROWS][KERNEL_COLS] __attribute__((aligned(64)));
    __m512 all = _mm512_set1_ps(times);
    for (int i = 0; add && i < KERNEL_ROWS; i++) {
        __builtin_prefetch(c + i * stride, 1);
        __builtin_prefetch(c + i * stride + 16, 1);
    }
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t k = 0; k < depth; k += 32, a += A_STEP, b += B_STEP) {
        _tile_loadd(4, a, TILE_BYTES);
        _tile_loadd(6, b, B_STRIDE);
        _tile_loadd(5, a + TILE * 32, TILE_BYTES);
        _tile_loadd(7, b + TILE * 2, B_STRIDE);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    if (!add && times == 1) {
        store_tiles(c, stride);
        return;
    }
    store_tiles(sum[0], KERNEL_COLS);
    for (int i = 0; i < KERNEL_ROWS; i++)
        for (int j = 0; j < KERNEL_COLS; j += 16) {
            __m512 part = _mm512_load_ps(sum[i] + j);
            float *to = c + i * stride + j;
            _mm512_storeu_ps(to, add ? _mm512_fmadd_ps(all, part, _mm512_loadu_ps(to))
                                     : _mm512_mul_ps(all, part));
        }
}

const struct cpu_kernel cpu_kernel_amx = {.name = "AMX",
                                          .model = &cpu_kernel_amx_model,
                                          KERNEL_SHAPE,
                                          .multiply = multiply,
                                          KERNEL_PACK,
                                          .begin = begin,
                                          .end = end};
