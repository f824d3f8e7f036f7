/* cuda_flat -- arithmetic on flat ranges: casts, sums of squares, the search for non-finite
 * values. Updates are in cuda_update.cu.
 *
 * All are memory-bound. Bytes per element: cast both sizes, square_sums and find_nonfinite one. An
 * element's bits do not depend on its position or on the grid: partial packs use the same
 * arithmetic.
 */
#include <float.h>
#include <type_traits>
#include "ops/cuda/common/vector.cuh"

enum { THREADS = 256 };

/* --- cast: rounded to nearest even, once; a NaN becomes the GPU's NaN ------------------------- */

/* f64 to 16 bits goes through f32 rounded to odd, so that the second rounding still sees on which
 * side of a tie the value was. */
static __device__ inline float narrow_odd(double x)
{
    float toward_zero = __double2float_rz(x);
    if ((double)toward_zero == x)
        return toward_zero;
    return __uint_as_float(__float_as_uint(toward_zero) | 1u);
}

template <typename To, typename From> static __device__ inline void convert(From x, To *to)
{
    narrow(widen(x), to);
}
template <typename From> static __device__ inline void convert(From x, double *to)
{
    *to = widen(x);
}
template <typename To> static __device__ inline void convert(double x, To *to)
{
    narrow(narrow_odd(x), to);
}
static __device__ inline void convert(double x, float *to)
{
    *to = __double2float_rn(x);
}

/* Values per access: 16 bytes of the larger type; and how many accesses a thread has in flight. */
template <typename To, typename From>
constexpr int LUMP = 16 / (int)(sizeof(To) > sizeof(From) ? sizeof(To) : sizeof(From));
template <typename To, typename From> constexpr int CAST_DEPTH = LUMP<To, From> > 2 ? 4 : 2;

template <typename To, typename From>
__global__ void __launch_bounds__(THREADS, 4)
    cast(int64_t count, bool wide, const From *__restrict__ src, To *__restrict__ dst)
{
    constexpr int N = LUMP<To, From>, DEPTH = CAST_DEPTH<To, From>;
    int64_t first = ((int64_t)blockIdx.x * DEPTH * THREADS + threadIdx.x) * N;
    lump<From, N> from[DEPTH];
#pragma unroll
    for (int k = 0; k < DEPTH; k++) {
        int64_t i = first + (int64_t)k * THREADS * N;
        if (wide && i + N <= count)
            from[k] = *reinterpret_cast<const lump<From, N> *>(src + i);
    }
#pragma unroll
    for (int k = 0; k < DEPTH; k++) {
        int64_t i = first + (int64_t)k * THREADS * N;
        if (wide && i + N <= count) {
            lump<To, N> to;
#pragma unroll
            for (int j = 0; j < N; j++)
                convert(from[k].v[j], &to.v[j]);
            *reinterpret_cast<lump<To, N> *>(dst + i) = to;
        } else {
            for (int64_t j = i; j < min(i + N, count); j++)
                convert(src[j], &dst[j]);
        }
    }
}

template <typename To, typename From>
static cudaError_t cast_in(cudaStream_t stream, const void *src, void *dst, int64_t count)
{
    if constexpr (std::is_same_v<To, From>) {
        return cudaMemcpyAsync(dst, src, (size_t)count * sizeof(To), cudaMemcpyDeviceToDevice,
                               stream);
    } else {
        int64_t per_block = (int64_t)CAST_DEPTH<To, From> * THREADS * LUMP<To, From>;
        unsigned blocks = (unsigned)div_up(count, per_block);
        bool wide = is_wide(src) && is_wide(dst);
        cast<To, From><<<blocks, THREADS, 0, stream>>>(count, wide, (const From *)src, (To *)dst);
        return cudaGetLastError();
    }
}

template <typename From>
static cudaError_t cast_from(cudaStream_t stream, void *dst, enum dtype dst_type, const void *src,
                             int64_t count)
{
    switch (dst_type) {
    case DTYPE_F32: return cast_in<float, From>(stream, src, dst, count);
    case DTYPE_BF16: return cast_in<__nv_bfloat16, From>(stream, src, dst, count);
    case DTYPE_F16: return cast_in<__half, From>(stream, src, dst, count);
    case DTYPE_F64: return cast_in<double, From>(stream, src, dst, count);
    default: return cudaErrorInvalidValue;
    }
}

cudaError_t launch_cast(cudaStream_t stream, void *dst, enum dtype dst_type, const void *src,
                        enum dtype src_type, int64_t count)
{
    switch (src_type) {
    case DTYPE_F32: return cast_from<float>(stream, dst, dst_type, src, count);
    case DTYPE_BF16: return cast_from<__nv_bfloat16>(stream, dst, dst_type, src, count);
    case DTYPE_F16: return cast_from<__half>(stream, dst, dst_type, src, count);
    case DTYPE_F64: return cast_from<double>(stream, dst, dst_type, src, count);
    default: return cudaErrorInvalidValue;
    }
}

/* --- sums of squares ---
 *
 * One launch covers up to RANGES ranges, whose table is a kernel argument. Four elements are
 * summed in order, then sixteen such sums as a tree, within a thread as far as its pack reaches,
 * so that the bits do not depend on the type. */

enum { RANGES = 32, SQUARES_DEPTH = 4 };

struct range_table {
    kernel_range range[RANGES];
    unsigned end[RANGES]; /* blocks of ranges 0 .. i */
};

static __device__ inline double squares_of_four(const float *f)
{
    double sum = 0;
#pragma unroll
    for (int j = 0; j < 4; j++)
        sum = __fma_rn((double)f[j], (double)f[j], sum);
    return sum;
}

template <typename T>
__global__ void __launch_bounds__(THREADS) square_sums(const __grid_constant__ range_table table)
{
    constexpr int N = PACK<T>, PARTS = 64 / N, DEPTH = SQUARES_DEPTH;
    int i = 0;
    while (blockIdx.x >= table.end[i])
        i++;
    const T *x = (const T *)table.range[i].x;
    int64_t count = table.range[i].count;
    int64_t block = blockIdx.x - (i > 0 ? table.end[i - 1] : 0);
    int64_t first = (block * DEPTH * THREADS + threadIdx.x) * N;
    bool wide = (uintptr_t)x % 16 == 0;
    pack<T> p[DEPTH];
#pragma unroll
    for (int k = 0; k < DEPTH; k++) {
        int64_t at = first + (int64_t)k * THREADS * N;
        p[k] = load_some(x + at, count - at, wide);
    }
#pragma unroll
    for (int k = 0; k < DEPTH; k++) {
        int64_t at = first + (int64_t)k * THREADS * N;
        float f[N];
        widen(p[k], f);
        double sum = squares_of_four(f);
        if constexpr (N == 8)
            sum += squares_of_four(f + 4);
#pragma unroll
        for (int apart = 1; apart < PARTS; apart *= 2)
            sum += __shfl_xor_sync(ALL_LANES, sum, apart);
        if (threadIdx.x % PARTS == 0 && at < count)
            table.range[i].sums[at / 64] = sum;
    }
}

/* Fills the table with the non-empty ranges that one launch covers; returns how many ranges it
 * consumed. */
template <typename T>
static int fill_table(const struct kernel_range *ranges, int count, range_table *table,
                      unsigned *blocks)
{
    int seen = 0, taken = 0;
    *blocks = 0;
    for (; seen < count && taken < RANGES; seen++) {
        if (ranges[seen].count == 0)
            continue;
        *blocks += (unsigned)div_up(ranges[seen].count, (int64_t)SQUARES_DEPTH * THREADS * PACK<T>);
        table->range[taken] = ranges[seen];
        table->end[taken++] = *blocks;
    }
    return seen;
}

cudaError_t launch_square_sums(cudaStream_t stream, enum dtype type,
                               const struct kernel_range *ranges, int range_count)
{
    return with_type(type, [=](auto zero) {
        using T = decltype(zero);
        cudaError_t error = cudaSuccess;
        for (int done = 0; done < range_count && error == cudaSuccess;) {
            range_table table;
            unsigned blocks;
            done += fill_table<T>(ranges + done, range_count - done, &table, &blocks);
            if (blocks > 0)
                square_sums<T><<<blocks, THREADS, 0, stream>>>(table);
            error = cudaGetLastError();
        }
        return error;
    });
}

/* --- not finite ---
 *
 * -1 is the largest unsigned number: *first starts there and only decreases. */

template <typename T>
__global__ void __launch_bounds__(THREADS)
    find_nonfinite(int64_t count, bool wide, const T *x, unsigned long long *first)
{
    constexpr int N = PACK<T>, DEPTH = 4;
    int64_t begin = ((int64_t)blockIdx.x * DEPTH * THREADS + threadIdx.x) * N, found = count;
    pack<T> p[DEPTH];
#pragma unroll
    for (int k = 0; k < DEPTH; k++) {
        int64_t i = begin + (int64_t)k * THREADS * N;
        p[k] = load_some(x + i, count - i, wide);
    }
#pragma unroll
    for (int k = DEPTH - 1; k >= 0; k--) {
        float f[N];
        widen(p[k], f);
#pragma unroll
        for (int j = N - 1; j >= 0; j--)
            if (!(fabsf(f[j]) <= FLT_MAX))
                found = begin + (int64_t)k * THREADS * N + j;
    }
    if (found < count && (unsigned long long)found < *(volatile unsigned long long *)first)
        atomicMin(first, (unsigned long long)found);
}

cudaError_t launch_find_nonfinite(cudaStream_t stream, enum dtype type, const void *x,
                                  int64_t count, int64_t *first)
{
    cudaError_t error = cudaMemsetAsync(first, 0xff, sizeof *first, stream);
    if (error != cudaSuccess || count == 0)
        return error;
    return with_type(type, [=](auto zero) {
        using T = decltype(zero);
        unsigned blocks = (unsigned)div_up(count, 4 * THREADS * PACK<T>);
        find_nonfinite<T><<<blocks, THREADS, 0, stream>>>(count, is_wide(x), (const T *)x,
                                                          (unsigned long long *)first);
        return cudaGetLastError();
    });
}
