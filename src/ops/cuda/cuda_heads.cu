/* cuda_heads -- RMS norms of the queries and keys in qkv, and their backward pass.
 *
 * A norm's sum is formed by one warp, which reads the columns of its group of one row. The rest is
 * element by element. The gradients of the weights are column sums: a block takes a run of rows and
 * a strip of columns of the weights, and cuda_columns.cu adds the blocks in order. All is
 * memory-bound; the sums read the tensors once more than one fused kernel would, but they may be
 * exchanged between ranks before they are used.
 */
#include "ops/cuda/common/vector.cuh"

enum { THREADS = 256, BLOCKS = 256 };

/* Columns of a group, and what its sum is divided by. */
struct span {
    bool key;
    int64_t first, count;
    float total;
};

static __host__ __device__ inline int64_t groups_of(const kernel_heads &n)
{
    return n.whole ? 2 : n.heads + n.kv_heads;
}

static __device__ inline span span_of(const kernel_heads &n, int64_t s)
{
    int64_t query = n.heads * n.head_width, key = n.kv_heads * n.head_width;
    if (!n.whole)
        return {s >= n.heads, s * n.head_width, n.head_width, (float)n.head_width};
    float ranks = (float)(n.whole / n.heads);
    return s == 0 ? span{false, 0, query, mul(ranks, (float)query)}
                  : span{true, query, key, mul(ranks, (float)key)};
}

static __host__ __device__ inline int64_t row_of(const kernel_heads &n)
{
    return (n.heads + 2 * n.kv_heads) * n.head_width;
}

static __host__ __device__ inline int64_t kept_of(const kernel_heads &n)
{
    return (n.heads + n.kv_heads) * n.head_width;
}

/* Elements of the weights of queries and of keys. */
static __host__ __device__ inline int64_t weight_of(const kernel_heads &n, bool key)
{
    return n.whole ? (key ? n.kv_heads : n.heads) * n.head_width : n.head_width;
}

static __device__ inline float rstd_of(const kernel_heads &n, const span &s, double squares)
{
    return __fdiv_rn(1.0f, __fsqrt_rn(add(__fdiv_rn((float)squares, s.total), n.eps)));
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    head_sums(kernel_heads n, const T *x, const T *dy, const T *q, const T *k, double *sums)
{
    int64_t groups = groups_of(n);
    int64_t at = (int64_t)blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP;
    if (at >= n.rows * groups)
        return;
    int64_t r = at / groups;
    span s = span_of(n, at % groups);
    const T *from = x + r * (dy ? kept_of(n) : row_of(n)) + s.first;
    const T *gradient = dy ? dy + r * row_of(n) + s.first : NULL, *weight = s.key ? k : q;
    float sum = 0;
    for (int64_t c = threadIdx.x % WARP; c < s.count; c += WARP) {
        float f = widen(from[c]), other = f;
        if (gradient)
            other = mul(widen(gradient[c]), add(widen(weight[c]), n.offset));
        sum = fma_(f, other, sum);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0)
        sums[at] = sum;
}

/* The group of column c, counted over q and k, and the column's place in the weight. */
static __device__ inline int64_t group_of(const kernel_heads &n, int64_t c)
{
    return n.whole ? c >= n.heads * n.head_width : c / n.head_width;
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    head_rms(kernel_heads n, const T *q, const T *k, const double *squares, T *kept, T *qkv)
{
    int64_t width = kept_of(n), i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n.rows * width)
        return;
    int64_t r = i / width, c = i % width, g = group_of(n, c);
    span s = span_of(n, g);
    T *x = qkv + r * row_of(n) + c;
    if (kept)
        kept[i] = *x;
    float rstd = rstd_of(n, s, squares[r * groups_of(n) + g]);
    float weight = add(widen((s.key ? k : q)[c - s.first]), n.offset);
    narrow(mul(mul(widen(*x), rstd), weight), x);
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    head_gradient(kernel_heads n, const T *q, const T *k, const double *squares, const double *dots,
                  const T *kept, T *dqkv)
{
    int64_t width = kept_of(n), i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n.rows * width)
        return;
    int64_t r = i / width, c = i % width, g = group_of(n, c), at = r * groups_of(n) + g;
    span s = span_of(n, g);
    T *d = dqkv + r * row_of(n) + c;
    float rstd = rstd_of(n, s, squares[at]);
    float mean = mul(__fdiv_rn((float)dots[at], s.total), rstd);
    float dhat = mul(widen(*d), add(widen((s.key ? k : q)[c - s.first]), n.offset));
    narrow(mul(rstd, fma_(-mul(widen(kept[i]), rstd), mean, dhat)), d);
}

/* partials (blocks, Q), then (blocks, K): a thread has one element of a weight, and sums over the
 * block's rows and the heads that share it. Before head_gradient, which overwrites dqkv. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    head_weights(kernel_heads n, int64_t block_rows, const double *squares, const T *kept,
                 const T *dqkv, float *partials)
{
    int64_t query = weight_of(n, false), columns = query + weight_of(n, true);
    int64_t c = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (c >= columns)
        return;
    bool key = c >= query;
    int64_t first = n.whole ? c : key ? n.heads * n.head_width + c - query : c;
    int64_t heads = n.whole ? 1 : key ? n.kv_heads : n.heads;
    int64_t end = (blockIdx.y + 1) * block_rows < n.rows ? (blockIdx.y + 1) * block_rows : n.rows;
    float sum = 0;
    for (int64_t r = blockIdx.y * block_rows; r < end; r++)
        for (int64_t h = 0; h < heads; h++) {
            int64_t at = first + h * n.head_width, g = group_of(n, at);
            float rstd = rstd_of(n, span_of(n, g), squares[r * groups_of(n) + g]);
            float xhat = mul(widen(kept[r * kept_of(n) + at]), rstd);
            sum = fma_(widen(dqkv[r * row_of(n) + at]), xhat, sum);
        }
    if (key)
        partials[gridDim.y * query + blockIdx.y * (columns - query) + c - query] = sum;
    else
        partials[blockIdx.y * query + c] = sum;
}

/* --- launches --------------------------------------------------------------------------------- */

static int64_t block_rows_of(const kernel_heads &n)
{
    return div_up(n.rows, BLOCKS);
}

size_t kernel_head_scratch(struct kernel_heads n)
{
    int64_t columns = weight_of(n, false) + weight_of(n, true);
    return (size_t)(div_up(n.rows, block_rows_of(n)) * columns) * sizeof(float);
}

cudaError_t launch_head_sums(cudaStream_t stream, enum dtype type, struct kernel_heads n,
                             const void *x, const void *dy, const void *q, const void *k,
                             double *sums)
{
    return with_type(type, [=](auto zero) {
        using T = decltype(zero);
        unsigned blocks = (unsigned)div_up(n.rows * groups_of(n), THREADS / WARP);
        head_sums<T><<<blocks, THREADS, 0, stream>>>(n, (const T *)x, (const T *)dy, (const T *)q,
                                                     (const T *)k, sums);
        return cudaGetLastError();
    });
}

cudaError_t launch_head_rms(cudaStream_t stream, enum dtype type, struct kernel_heads n,
                            const void *q, const void *k, const double *squares, void *kept,
                            void *qkv)
{
    return with_type(type, [=](auto zero) {
        using T = decltype(zero);
        unsigned blocks = (unsigned)div_up(n.rows * kept_of(n), (int64_t)THREADS);
        head_rms<T><<<blocks, THREADS, 0, stream>>>(n, (const T *)q, (const T *)k, squares,
                                                    (T *)kept, (T *)qkv);
        return cudaGetLastError();
    });
}

cudaError_t launch_head_rms_backward(cudaStream_t stream, enum dtype type, struct kernel_heads n,
                                     const void *q, const void *k, const double *squares,
                                     const double *dots, const void *kept, void *dqkv, void *dq,
                                     void *dk, float *scratch)
{
    return with_type(type, [=](auto zero) {
        using T = decltype(zero);
        int64_t query = weight_of(n, false), key = weight_of(n, true), rows = block_rows_of(n);
        int64_t runs = div_up(n.rows, rows);
        dim3 grid((unsigned)div_up(query + key, (int64_t)THREADS), (unsigned)runs);
        cudaError_t error = cudaSuccess;
        head_weights<T><<<grid, THREADS, 0, stream>>>(n, rows, squares, (const T *)kept,
                                                      (const T *)dqkv, scratch);
        if (dq)
            error = cuda_add_partials(type, (int)runs, scratch, false, {{{query, dq}}}, stream);
        if (dk && error == cudaSuccess)
            error = cuda_add_partials(type, (int)runs, scratch + runs * query, false, {{{key, dk}}},
                                      stream);
        unsigned blocks = (unsigned)div_up(n.rows * kept_of(n), (int64_t)THREADS);
        head_gradient<T><<<blocks, THREADS, 0, stream>>>(n, (const T *)q, (const T *)k, squares,
                                                         dots, (const T *)kept, (T *)dqkv);
        return error == cudaSuccess ? cudaGetLastError() : error;
    });
}
