/* cuda_gelu_hopper -- linear layers with a GELU, for compute capability 9.0 and 16-bit types:
 *
 *     pre = x W + bias, y = gelu(pre)         of the sums, before they are rounded
 *     dpre = (dy W^T) gelu'(pre)
 *
 * in the epilogues of hopper_product.cuh. One launch each, no scratch.
 *
 * This file is compiled for sm_90a only (cmake/cuda.cmake).
 */
#include "base/dtype.h"
#include "ops/cuda/common/vector.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/product/hopper_launch.cuh"

namespace
{

using namespace hopper;

/* e and s of gelu_slope_of_parts for eight values at once: a chain for each would be slow. */
template <typename T>
__device__ inline void gelu_parts(const float (&x)[8], float (&e)[8], float (&s)[8])
{
#pragma unroll
    for (int i = 0; i < 8; i++)
        e[i] = gelu_exp<T>(x[i]);
#pragma unroll
    for (int i = 0; i < 8; i++)
        s[i] = gelu_part<T>(e[i]);
}

template <typename T> struct gelu_forward {
    const T *bias; /* may be NULL */
    int columns;
    uint32_t words[8]; /* the bias of this thread's columns of a half tile */

    __device__ inline void fetch(const product::job &j, int h)
    {
        const int column = j.column + 64 * h + (int)threadIdx.x % 4 * 2;
#pragma unroll
        for (int i = 0; i < 8; i++)
            words[i] = bias && column + 8 * i < columns
                           ? *reinterpret_cast<const uint32_t *>(bias + column + 8 * i)
                           : 0;
    }

    __device__ inline void of(int sixteen, const float *sums, uint32_t (&pre)[4], uint32_t (&y)[4])
    {
        float x[8], e[8], s[8];
#pragma unroll
        for (int i = 0; i < 4; i++) { /* rows 0 and 8 of columns 0, then of columns 8 */
            const float2 b = unpacked<T>(words[2 * sixteen + i / 2]);
            const float u = add(sums[2 * i], b.x), v = add(sums[2 * i + 1], b.y);
            pre[i] = packed<T>(u, v);
            x[2 * i] = u, x[2 * i + 1] = v;
        }
        gelu_parts<T>(x, e, s);
#pragma unroll
        for (int i = 0; i < 4; i++)
            y[i] = packed<T>(mul(x[2 * i], s[2 * i]), mul(x[2 * i + 1], s[2 * i + 1]));
    }
};

template <typename T> struct gelu_backward {
    __device__ inline void fetch(const product::job &, int) {}

    __device__ inline void of(int, const float *sums, uint32_t (&pre)[4])
    {
        float x[8], e[8], s[8];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 both = unpacked<T>(pre[i]);
            x[2 * i] = both.x, x[2 * i + 1] = both.y;
        }
        gelu_parts<T>(x, e, s);
#pragma unroll
        for (int i = 0; i < 8; i++)
            x[i] = gelu_slope_of_parts(x[i], sums[i], e[i], s[i]);
#pragma unroll
        for (int i = 0; i < 4; i++)
            pre[i] = packed<T>(x[2 * i], x[2 * i + 1]);
    }
};

} // namespace

bool kernel_gelu_hopper_takes(enum dtype type, int64_t rows, int64_t in, int64_t out)
{
    return product::takes(type, rows, in, out);
}

cudaError_t launch_linear_gelu_hopper(cudaStream_t stream, enum dtype type, bool out_in,
                                      int64_t rows, int64_t in, int64_t out, const void *x,
                                      const void *w, const void *bias, void *pre, void *y,
                                      int processors)
{
    const product::request r = {
        .rows = rows,
        .columns = out,
        .depth = in,
        .a = x,
        .b = w,
        .out = {{pre, out}, {y, out}},
        .processors = processors,
    };
    if (type == DTYPE_BF16)
        return product::launch_turned<product::TWO, __nv_bfloat16>(
            !out_in, r, gelu_forward<__nv_bfloat16>{(const __nv_bfloat16 *)bias, (int)out, {}},
            stream);
    return product::launch_turned<product::TWO, __half>(
        !out_in, r, gelu_forward<__half>{(const __half *)bias, (int)out, {}}, stream);
}

cudaError_t launch_linear_dgelu_hopper(cudaStream_t stream, enum dtype type, bool out_in,
                                       int64_t rows, int64_t in, int64_t out, const void *dy,
                                       const void *w, const void *pre, void *dpre, int processors)
{
    const product::request r = {
        .rows = rows,
        .columns = in,
        .depth = out,
        .a = dy,
        .b = w,
        .side = {{const_cast<void *>(pre), in}},
        .out = {{dpre, in}},
        .processors = processors,
    };
    return type == DTYPE_BF16 ? product::launch_turned<product::OVER, __nv_bfloat16>(
                                    out_in, r, gelu_backward<__nv_bfloat16>{}, stream)
                              : product::launch_turned<product::OVER, __half>(
                                    out_in, r, gelu_backward<__half>{}, stream);
}
