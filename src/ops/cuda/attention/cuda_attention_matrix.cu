/* cuda_attention_matrix -- attention on tensor cores by mma.sync, for shapes that neither the
 * Hopper kernels nor cuDNN support: f32 (in TF32), heads of up to 256 columns, any length, compute
 * capability 8.0 and later. The kernels are in matrix_attend.cuh, compiled by type in
 * cuda_attention_matrix_*.cu.
 */
#include "base/dtype.h"
#include "ops/cuda/attention/cuda_attend.cuh"
#include "ops/cuda/attention/matrix_launch.cuh"

static const int64_t widths[] = {32, 64, 128, 192, 256}; /* as in MATRIX_BY_WIDTH */
static const int64_t LEAST_ROWS = 32;                    /* per block */

int64_t cuda_attend_matrix_width(int64_t width)
{
    for (int64_t w : widths)
        if (width <= w)
            return w;
    return width;
}

bool cuda_attend_matrix_takes(struct cuda_heads a)
{
    const int64_t tiles = (a.tokens + LEAST_ROWS - 1) / LEAST_ROWS;
    return a.width > 0 && a.width <= 256 && a.tokens > 0 && a.tokens <= INT32_MAX / 2 &&
           a.batch * a.heads * tiles <= INT32_MAX;
}

cudaError_t cuda_attend_matrix_forward(int type, struct cuda_heads a, const void *qkv, void *out,
                                       float *lse, cudaStream_t stream)
{
    const bool chunks = attend::units_of_16(type, a.width, qkv, out);
#define CALL(T) matrix::run_forward<T>(a, chunks, qkv, out, lse, stream)
    return type == DTYPE_F32    ? CALL(float)
           : type == DTYPE_BF16 ? CALL(__nv_bfloat16)
                                : CALL(__half);
#undef CALL
}

cudaError_t cuda_attend_matrix_backward(int type, struct cuda_heads a, const void *qkv,
                                        const void *out, const float *lse, const void *dout,
                                        void *dqkv, float *sums, cudaStream_t stream)
{
    const bool chunks = attend::units_of_16(type, a.width, qkv, dout) &&
                        attend::units_of_16(type, a.width, dqkv, dqkv);
    const cudaError_t error = cuda_attend_sums(type, a, out, dout, sums, stream);
    if (error != cudaSuccess)
        return error;
#define CALL(T) matrix::run_backward<T>(a, chunks, qkv, lse, dout, dqkv, sums, stream)
    return type == DTYPE_F32    ? CALL(float)
           : type == DTYPE_BF16 ? CALL(__nv_bfloat16)
                                : CALL(__half);
#undef CALL
}
