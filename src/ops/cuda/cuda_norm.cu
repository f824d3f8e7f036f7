/* cuda_norm -- LayerNorm and RMSNorm, fused with the residual add, and the norm applied again.
 *
 * A row is held in registers, in its own type (the norm is of the rounded sum, so nothing is
 * lost): by one warp if it is short, by one block if it is long or the only one. Mean and variance
 * are two sums over the registers. A row that does not fit, or does not consist of full packs,
 * takes the plain kernels, which read memory again for each sum.
 *
 * Bytes, of R C elements: add_norm 4 tensors (3 without a branch), apply 2. Backward is in
 * cuda_norm_backward.cu.
 */
#include "ops/cuda/common/follow.cuh"
#include "ops/cuda/common/vector.cuh"

enum { ANY_THREADS = 256 }; /* of the plain kernels */

/* The one expression for y, used by the first pass and by recomputation; `weight` is with its
 * offset. */
static __device__ inline float normalised(float x, float mean, float rstd, float weight, float bias)
{
    return fma_(mul(sub(x, mean), rstd), weight, bias);
}

static __device__ inline float rstd_of(float squares, int width, float eps)
{
    return __fdiv_rn(1.0f, __fsqrt_rn(add(__fdiv_rn(squares, (float)width), eps)));
}

/* --- forward ---------------------------------------------------------------------------------- */

template <typename T> struct add_norm_args {
    int64_t rows;
    int width;
    bool layer;
    float eps, offset;
    const T *residual, *branch, *weight, *bias;
    T *sum, *y;
    float *mean, *rstd;
};

template <typename T>
static __device__ inline void write_normalised(const pack<T> &x, float mean, float rstd,
                                               const T *weight, const T *bias, float offset,
                                               int64_t c, T *y)
{
    constexpr int N = PACK<T>;
    float f[N], w[N], b[N] = {};
    widen(x, f);
    widen(load(weight + c), w);
    if (bias)
        widen(load(bias + c), b);
#pragma unroll
    for (int i = 0; i < N; i++)
        f[i] = normalised(f[i], mean, rstd, add(w[i], offset), b[i]);
    store(y + c, narrow<T>(f));
}

/* GROUP threads per row (32, or the whole block), up to PACKS packs per thread. */
template <typename T, int GROUP, int PACKS>
__global__ void __launch_bounds__(GROUP == WARP ? 128 : GROUP) add_norm_rows(add_norm_args<T> a)
{
    constexpr int N = PACK<T>;
    __shared__ float room[GROUP / WARP];
    int at = threadIdx.x % GROUP, packs = a.width / N;
    int64_t r = (int64_t)blockIdx.x * (blockDim.x / GROUP) + threadIdx.x / GROUP;
    follow_let();
    for (int c = at * N; a.rows == 1 && c < a.width; c += GROUP * N) {
        fetch_ahead(a.weight + c);
        fetch_ahead((a.bias ? a.bias : a.weight) + c);
    }
    follow_wait();
    if (r >= a.rows)
        return;
    int64_t row = r * a.width;

    pack<T> x[PACKS];
#pragma unroll
    for (int k = 0; k < PACKS; k++)
        if (at + k * GROUP < packs)
            x[k] = load(a.residual + row + (at + k * GROUP) * N);
    if (a.branch) {
        pack<T> branch[PACKS];
#pragma unroll
        for (int k = 0; k < PACKS; k++)
            if (at + k * GROUP < packs)
                branch[k] = load(a.branch + row + (at + k * GROUP) * N);
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            float f[N], g[N];
            widen(x[k], f);
            widen(branch[k], g);
#pragma unroll
            for (int i = 0; i < N; i++)
                f[i] = add(f[i], g[i]);
            x[k] = narrow<T>(f);
        }
    }
    if (a.sum && (a.branch || a.sum != a.residual)) {
#pragma unroll
        for (int k = 0; k < PACKS; k++)
            if (at + k * GROUP < packs)
                store(a.sum + row + (at + k * GROUP) * N, x[k]);
    }

    float mean = 0;
    if (a.layer) {
        float total = 0;
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            float f[N];
            widen(x[k], f);
#pragma unroll
            for (int i = 0; i < N; i++)
                total = at + k * GROUP < packs ? add(total, f[i]) : total;
            keep_packed(x[k]);
        }
        mean = __fdiv_rn(group_sum<GROUP>(total, room), (float)a.width);
    }
    float squares = 0;
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
        float f[N];
        widen(x[k], f);
#pragma unroll
        for (int i = 0; i < N; i++) {
            float d = sub(f[i], mean);
            squares = at + k * GROUP < packs ? fma_(d, d, squares) : squares;
        }
        keep_packed(x[k]);
    }
    float rstd = rstd_of(group_sum<GROUP>(squares, room), a.width, a.eps);

#pragma unroll
    for (int k = 0; k < PACKS; k++)
        if (at + k * GROUP < packs)
            write_normalised(x[k], mean, rstd, a.weight, a.bias, a.offset, (at + k * GROUP) * N,
                             a.y + row);
    if (at == 0) {
        a.rstd[r] = rstd;
        if (a.layer)
            a.mean[r] = mean;
    }
}

/* Any width: one block per row, one element per thread at a time. */
template <typename T>
__global__ void __launch_bounds__(ANY_THREADS) add_norm_any(add_norm_args<T> a)
{
    __shared__ float room[ANY_THREADS / WARP];
    int64_t r = blockIdx.x, row = r * a.width;
    float mean = 0, total = 0, squares = 0;
    for (int c = threadIdx.x; c < a.width; c += ANY_THREADS) {
        T x = a.residual[row + c];
        if (a.branch)
            narrow(add(widen(x), widen(a.branch[row + c])), &x);
        if (a.sum)
            a.sum[row + c] = x;
        total += widen(x);
    }
    const T *sum = (a.sum ? a.sum : a.residual) + row; /* a thread reads back what it wrote */
    if (a.layer)
        mean = __fdiv_rn(group_sum<ANY_THREADS>(total, room), (float)a.width);
    for (int c = threadIdx.x; c < a.width; c += ANY_THREADS) {
        float d = sub(widen(sum[c]), mean);
        squares = fma_(d, d, squares);
    }
    float rstd = rstd_of(group_sum<ANY_THREADS>(squares, room), a.width, a.eps);
    for (int c = threadIdx.x; c < a.width; c += ANY_THREADS)
        narrow(normalised(widen(sum[c]), mean, rstd, add(widen(a.weight[c]), a.offset),
                          a.bias ? widen(a.bias[c]) : 0.0f),
               &a.y[row + c]);
    if (threadIdx.x == 0) {
        a.rstd[r] = rstd;
        if (a.layer)
            a.mean[r] = mean;
    }
}

template <typename T, int GROUP, int PACKS>
static cudaError_t add_norm_in(cudaStream_t stream, const add_norm_args<T> &a)
{
    constexpr int THREADS = GROUP == WARP ? 128 : GROUP;
    return follow(add_norm_rows<T, GROUP, PACKS>, div_up(a.rows, THREADS / GROUP), THREADS, 0,
                  stream, a);
}

/* A single row, as in decoding: a thread's packs are consecutive, and the other multiprocessors
 * are idle anyway. False: the row is short or very long. */
template <typename T>
static bool add_norm_one(cudaStream_t stream, const add_norm_args<T> &a, int packs,
                         cudaError_t *error)
{
    if (a.rows != 1 || packs <= WARP || packs > 2 * 512)
        return false;
    *error = packs <= 128   ? add_norm_in<T, 128, 1>(stream, a)
             : packs <= 256 ? add_norm_in<T, 256, 1>(stream, a)
             : packs <= 512 ? add_norm_in<T, 512, 1>(stream, a)
                            : add_norm_in<T, 512, 2>(stream, a);
    return true;
}

/* The smallest group that holds the row in eight packs per thread. */
template <typename T>
static cudaError_t add_norm_typed(cudaStream_t stream, const add_norm_args<T> &a)
{
    bool whole = a.width % PACK<T> == 0 && is_wide(a.residual) && is_wide(a.branch) &&
                 is_wide(a.weight) && is_wide(a.bias) && is_wide(a.sum) && is_wide(a.y);
    int packs = a.width / PACK<T>;
    if (!whole || packs > 8 * 512) {
        unsigned blocks = (unsigned)a.rows;
        add_norm_any<T><<<blocks, ANY_THREADS, 0, stream>>>(a);
        return cudaGetLastError();
    }
    cudaError_t error;
    if (add_norm_one(stream, a, packs, &error))
        return error;
    int group = packs <= 8 * WARP ? WARP : packs <= 8 * 128 ? 128 : 512;
    int each = (int)div_up(packs, group);
#define IN(threads, count)                 \
    if (group == threads && each <= count) \
    return add_norm_in<T, threads, count>(stream, a)
    IN(WARP, 1);
    IN(WARP, 2);
    IN(WARP, 3);
    IN(WARP, 4);
    IN(WARP, 6);
    IN(WARP, 8);
    IN(128, 3);
    IN(128, 4);
    IN(128, 6);
    IN(128, 8);
    IN(512, 4);
    IN(512, 8);
#undef IN
    return cudaErrorInvalidValue;
}

cudaError_t launch_add_norm(cudaStream_t stream, enum dtype type, bool layer, int64_t width,
                            double eps, double offset, int64_t rows, const void *residual,
                            const void *branch, const void *weight, const void *bias, void *sum,
                            void *y, float *mean, float *rstd)
{
    return with_type(type, [=](auto zero) {
        using T = decltype(zero);
        add_norm_args<T> a = {rows,
                              (int)width,
                              layer,
                              (float)eps,
                              (float)offset,
                              (const T *)residual,
                              (const T *)branch,
                              (const T *)weight,
                              (const T *)bias,
                              (T *)sum,
                              (T *)y,
                              mean,
                              rstd};
        return add_norm_typed<T>(stream, a);
    });
}

/* --- apply: one warp per row of full packs, else one block ------------------------------------ */

template <typename T>
__global__ void __launch_bounds__(128)
    apply_rows(int64_t rows, int width, bool layer, const T *__restrict__ sum,
               const T *__restrict__ weight, const T *__restrict__ bias, float offset,
               const float *mean, const float *rstd, T *__restrict__ y)
{
    int64_t r = (int64_t)blockIdx.x * (128 / WARP) + threadIdx.x / WARP;
    if (r >= rows)
        return;
    float center = layer ? mean[r] : 0.0f, scale = rstd[r];
#pragma unroll 4
    for (int c = threadIdx.x % WARP * PACK<T>; c < width; c += WARP * PACK<T>)
        write_normalised(load(sum + r * width + c), center, scale, weight, bias, offset, c,
                         y + r * width);
}

template <typename T>
__global__ void __launch_bounds__(ANY_THREADS)
    apply_any(int width, bool layer, const T *sum, const T *weight, const T *bias, float offset,
              const float *mean, const float *rstd, T *y)
{
    int64_t r = blockIdx.x, row = r * width;
    float center = layer ? mean[r] : 0.0f, scale = rstd[r];
    for (int c = threadIdx.x; c < width; c += ANY_THREADS)
        narrow(normalised(widen(sum[row + c]), center, scale, add(widen(weight[c]), offset),
                          bias ? widen(bias[c]) : 0.0f),
               &y[row + c]);
}

cudaError_t launch_norm_apply(cudaStream_t stream, enum dtype type, bool layer, int64_t width,
                              double offset, int64_t rows, const void *sum_, const void *weight_,
                              const void *bias_, const float *mean, const float *rstd, void *y_)
{
    return with_type(type, [=](auto zero) {
        using T = decltype(zero);
        const T *sum = (const T *)sum_, *weight = (const T *)weight_, *bias = (const T *)bias_;
        T *y = (T *)y_;
        if (width % PACK<T> == 0 && is_wide(sum) && is_wide(weight) && is_wide(bias) &&
            is_wide(y)) {
            unsigned blocks = (unsigned)div_up(rows, 128 / WARP);
            apply_rows<T><<<blocks, 128, 0, stream>>>(rows, (int)width, layer, sum, weight, bias,
                                                      (float)offset, mean, rstd, y);
        } else {
            unsigned blocks = (unsigned)rows;
            apply_any<T><<<blocks, ANY_THREADS, 0, stream>>>((int)width, layer, sum, weight, bias,
                                                             (float)offset, mean, rstd, y);
        }
        return cudaGetLastError();
    });
}
