/* cuda_swiglu_hopper -- linear layers with SwiGLU, for compute capability 9.0 and 16-bit types:
 *
 *     gate, up = x W;  act = swiglu(gate, up)       of the sums after they are rounded
 *     dact = dy W^T;   dgate, dup, and act again    dact is not rounded
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

/* Of 16 columns a thread has 8 numbers, in four registers. Their parts are computed side by side: a
 * chain for each would be slow. */
template <typename T> struct eight {
    float gate[8], up[8];
    silu_parts<T> parts[8];

    __device__ inline eight(const uint32_t *gates, const uint32_t *ups)
    {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 g = unpacked<T>(gates[i]), u = unpacked<T>(ups[i]);
            gate[2 * i] = g.x, gate[2 * i + 1] = g.y;
            up[2 * i] = u.x, up[2 * i + 1] = u.y;
        }
#pragma unroll
        for (int i = 0; i < 8; i++)
            parts[i] = silu_parts_of<T>(gate[i]);
    }

    __device__ inline float act(int i) const
    {
        return swiglu_value(gate[i], up[i], parts[i]);
    }
    __device__ inline float dgate(int i, float dact) const
    {
        return swiglu_gate_slope(gate[i], up[i], dact, parts[i]);
    }
    __device__ inline float dup(int i, float dact) const
    {
        return swiglu_up_slope(gate[i], dact, parts[i]);
    }
};

template <typename T> struct swiglu_forward {
    bool third; /* act is wanted */

    __device__ inline void fetch(const product::job &, int) {}

    __device__ inline void of(const uint32_t *gate, const uint32_t *up, uint32_t (&act)[4])
    {
        const eight<T> x(gate, up);
#pragma unroll
        for (int i = 0; i < 4; i++)
            act[i] = packed<T>(x.act(2 * i), x.act(2 * i + 1));
    }
};

template <typename T> struct swiglu_backward {
    __device__ inline void fetch(const product::job &, int) {}

    __device__ inline void of(const float *dact, uint32_t (&gate)[4], uint32_t (&up)[4],
                              uint32_t (&act)[4])
    {
        const eight<T> x(gate, up);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int a = 2 * i, b = a + 1;
            act[i] = packed<T>(x.act(a), x.act(b));
            gate[i] = packed<T>(x.dgate(a, dact[a]), x.dgate(b, dact[b]));
            up[i] = packed<T>(x.dup(a, dact[a]), x.dup(b, dact[b]));
        }
    }
};

/* Half `number` of a matrix (R, 2F) of 16-bit numbers */
product::matrix half_of(const void *both, int64_t ff, int number)
{
    return {static_cast<uint16_t *>(const_cast<void *>(both)) + number * ff, 2 * ff};
}

} // namespace

bool kernel_swiglu_hopper_takes(enum dtype type, int64_t rows, int64_t width, int64_t ff)
{
    return product::takes(type, rows, width, 2 * ff) && ff % 8 == 0;
}

cudaError_t launch_linear_swiglu_hopper(cudaStream_t stream, enum dtype type, bool out_in,
                                        int64_t rows, int64_t width, int64_t ff, const void *x,
                                        const void *w, void *gate_up, void *act, int processors)
{
    const product::request r = {
        .rows = rows,
        .columns = ff,
        .depth = width,
        .a = x,
        .b = w,
        .out = {half_of(gate_up, ff, 0), half_of(gate_up, ff, 1), {act, ff}},
        .processors = processors,
    };
    return type == DTYPE_BF16 ? product::launch_turned<product::GATE, __nv_bfloat16>(
                                    !out_in, r, swiglu_forward<__nv_bfloat16>{act != NULL}, stream)
                              : product::launch_turned<product::GATE, __half>(
                                    !out_in, r, swiglu_forward<__half>{act != NULL}, stream);
}

cudaError_t launch_linear_dswiglu_hopper(cudaStream_t stream, enum dtype type, bool out_in,
                                         int64_t rows, int64_t width, int64_t ff, const void *dy,
                                         const void *w, const void *gate_up, void *dgate_up,
                                         void *act, int processors)
{
    const product::request r = {
        .rows = rows,
        .columns = ff,
        .depth = width,
        .a = dy,
        .b = w,
        .side = {half_of(gate_up, ff, 0), half_of(gate_up, ff, 1)},
        .out = {half_of(dgate_up, ff, 0), half_of(dgate_up, ff, 1), {act, ff}},
        .processors = processors,
    };
    return type == DTYPE_BF16 ? product::launch_turned<product::SLOPES, __nv_bfloat16>(
                                    out_in, r, swiglu_backward<__nv_bfloat16>{}, stream)
                              : product::launch_turned<product::SLOPES, __half>(
                                    out_in, r, swiglu_backward<__half>{}, stream);
}
