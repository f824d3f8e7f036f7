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
#include "ops/cuda/common/hopper_maps.cuh"
#include "ops/cuda/common/vector.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/product/hopper_product.cuh"

namespace
{

using namespace hopper;

/* Of 16 columns a thread has 8 sums: two neighbouring columns and those 8 further on, in two rows. */
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
    enum { READS = 0 };
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
    enum { READS = 1 };

    __device__ inline void fetch(const product::job &, int) {}

    __device__ inline void of(int, const float *sums, uint32_t (&pre)[4], uint32_t (&)[4])
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

template <class W, typename T, class E>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(product::THREADS, 1)
    multiply(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
             const __grid_constant__ CUtensorMap out, const __grid_constant__ CUtensorMap other,
             const product::problem p, const E e)
{
    extern __shared__ __align__(1024) char raw[];
    if (threadIdx.x == 0 && shared_address(raw) % 1024) /* the layout of tiles relies on this */
        __trap();
    product::run_block<W, T>(*reinterpret_cast<product::memory<W> *>(raw), p, &a, &b, &out, &other,
                             e);
}

/* A dense matrix, in boxes of 64 columns and `box_rows` rows. */
template <typename T>
cudaError_t map_matrix(encode_fn encode, const void *base, int64_t rows, int64_t columns,
                       int box_rows, CUtensorMap *map)
{
    const cuuint64_t sizes[2] = {(cuuint64_t)columns, (cuuint64_t)rows};
    const cuuint64_t strides[1] = {(cuuint64_t)columns * sizeof(T)};
    const cuuint32_t box[2] = {64, (cuuint32_t)box_rows};
    return make_map<T>(encode, base, 2, sizes, strides, box, map);
}

struct request { /* A (R, K), B, results (R, N); other: the second result, or what is read */
    int64_t rows, columns, depth;
    const void *a, *b;
    void *out, *other;
    int processors;
};

template <class W, typename T, class E>
cudaError_t run(const struct request &s, const E &e, cudaStream_t stream)
{
    static_assert(sizeof(product::memory<W>) <= 227 * 1024, "too much");
    const product::problem p = product::problem_of<W>(s.rows, s.columns, s.depth);
    const int64_t jobs = (int64_t)p.pairs * p.downs;
    const int64_t clusters = jobs < s.processors / 2 ? jobs : s.processors / 2;
    encode_fn encode;
    CUtensorMap a, b, out, other;
    cudaError_t error = find_encode(&encode);
    if (error == cudaSuccess)
        error = map_matrix<T>(encode, s.a, p.rows, p.depth, W::ROWS / 2, &a);
    if (error == cudaSuccess)
        error = W::DOWN ? map_matrix<T>(encode, s.b, p.depth, p.columns, product::DEPTH, &b)
                        : map_matrix<T>(encode, s.b, p.columns, p.depth, product::COLUMNS, &b);
    if (error == cudaSuccess)
        error = map_matrix<T>(encode, s.out, p.rows, p.columns, product::STRIP, &out);
    if (error == cudaSuccess)
        error = map_matrix<T>(encode, s.other, p.rows, p.columns,
                              E::READS ? (int)W::ROWS : (int)product::STRIP, &other);
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(multiply<W, T, E>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     (int)sizeof(product::memory<W>));
    if (error != cudaSuccess)
        return error;
    multiply<W, T, E>
        <<<(unsigned)(2 * clusters), product::THREADS, sizeof(product::memory<W>), stream>>>(
            a, b, out, other, p, e);
    return cudaGetLastError();
}

template <typename T, class E>
cudaError_t run_way(bool down, const struct request &s, const E &e, cudaStream_t stream)
{
    return down ? run<product::way<192, true>, T>(s, e, stream)
                : run<product::way<192, false>, T>(s, e, stream);
}

} // namespace

bool kernel_gelu_hopper_takes(enum dtype type, int64_t rows, int64_t in, int64_t out)
{
    const int64_t most = INT32_MAX / 2; /* so that a tile may begin behind the end */
    return (type == DTYPE_BF16 || type == DTYPE_F16) && in % 8 == 0 && out % 8 == 0 && rows > 0 &&
           rows <= most && in <= most && out <= most;
}

cudaError_t launch_linear_gelu_hopper(cudaStream_t stream, enum dtype type, bool out_in,
                                      int64_t rows, int64_t in, int64_t out, const void *x,
                                      const void *w, const void *bias, void *pre, void *y,
                                      int processors)
{
    const struct request s = {rows, out, in, x, w, pre, y, processors};
    if (type == DTYPE_BF16)
        return run_way<__nv_bfloat16>(
            !out_in, s, gelu_forward<__nv_bfloat16>{(const __nv_bfloat16 *)bias, (int)out, {}},
            stream);
    return run_way<__half>(!out_in, s, gelu_forward<__half>{(const __half *)bias, (int)out, {}},
                           stream);
}

cudaError_t launch_linear_dgelu_hopper(cudaStream_t stream, enum dtype type, bool out_in,
                                       int64_t rows, int64_t in, int64_t out, const void *dy,
                                       const void *w, const void *pre, void *dpre, int processors)
{
    const struct request s = {rows, in, out, dy, w, dpre, const_cast<void *>(pre), processors};
    return type == DTYPE_BF16
               ? run_way<__nv_bfloat16>(out_in, s, gelu_backward<__nv_bfloat16>{}, stream)
               : run_way<__half>(out_in, s, gelu_backward<__half>{}, stream);
}
