/* cuda_loss -- softmax cross-entropy over rows of logits with its gradient in place, and sums of
 * doubles whose order is part of the contract.
 *
 * One block per row. Its logits are read once, 16 bytes at a time, and kept in shared memory if
 * they fit (50304 of 2 bytes: 98 KB, two blocks per multiprocessor); otherwise they are read a
 * second time for the gradient, mostly from L2. Both use the arithmetic of cuda_loss.cuh, so a GPU
 * with less shared memory gives the same bits; so does cuda_loss_hopper.cu.
 *
 * With a cap (CAP, in instances of their own), logits are capped each time they are read.
 *
 * Bytes: R V read, and R V written with the gradient.
 */
#include "ops/cuda/cuda_loss.cuh"

enum { THREADS = LOSS_THREADS, DEPTH = 4 /* packs in flight per thread */ };

/* A row in packs that start at 16-byte boundaries, wherever the row starts. Pack i has the elements
 * from start(i) on. The first and the last may be partial: they are read and written one element at
 * a time, and the elements they lack are minus infinity. */
template <typename T> struct row_packs {
    T *x;
    int64_t vocab;
    int lead; /* elements that the first pack lacks */
    int count;

    __device__ row_packs(T *row, int64_t row_vocab) : x(row), vocab(row_vocab)
    {
        lead = (int)((uintptr_t)x % 16 / sizeof(T));
        count = (int)((lead + vocab + PACK<T> - 1) / PACK<T>);
    }
    __device__ int64_t start(int i) const
    {
        return (int64_t)i * PACK<T> - lead;
    }
    __device__ bool has(int64_t element) const
    {
        return element >= 0 && element < vocab;
    }
    __device__ bool is_full(int64_t first) const
    {
        return first >= 0 && first + PACK<T> <= vocab;
    }
    __device__ pack<T> read(int i) const
    {
        int64_t first = start(i);
        float f[PACK<T>];
        if (is_full(first))
            return load(x + first);
#pragma unroll
        for (int j = 0; j < PACK<T>; j++)
            f[j] = has(first + j) ? widen(x[first + j]) : -INFINITY;
        return narrow<T>(f);
    }
    __device__ void write(int i, const float (&f)[PACK<T>]) const
    {
        int64_t first = start(i);
        if (is_full(first)) {
            store(x + first, narrow<T>(f));
            return;
        }
#pragma unroll
        for (int j = 0; j < PACK<T>; j++)
            if (has(first + j))
                narrow(f[j], &x[first + j]);
    }
};

template <typename T> static __device__ void clear_row(const row_packs<T> &row)
{
    const float zeros[PACK<T>] = {};
    for (int i = threadIdx.x; i < row.count; i += THREADS)
        row.write(i, zeros);
}

template <int N> static __device__ void cap_all(float (&x)[N], float cap)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = capped(x[i], cap);
}

/* What this thread meets in its packs of the row. CACHED: `cache` receives them. */
template <typename T, bool CACHED, bool CAP>
static __device__ running meet_row(const row_packs<T> &row, uint4 *cache, float cap)
{
    running mine = nothing_met();
    for (int first = threadIdx.x; first < row.count; first += DEPTH * THREADS) {
        pack<T> p[DEPTH];
#pragma unroll
        for (int k = 0; k < DEPTH; k++)
            if (first + k * THREADS < row.count)
                p[k] = row.read(first + k * THREADS);
#pragma unroll
        for (int k = 0; k < DEPTH; k++) {
            if (first + k * THREADS >= row.count)
                continue;
            float f[PACK<T>];
            if (CACHED)
                store((T *)(cache + first + k * THREADS), p[k]);
            widen(p[k], f);
            if constexpr (CAP)
                cap_all(f, cap);
            meet<T>(mine, f);
        }
    }
    return mine;
}

/* Replaces this thread's packs of the row by their gradients. */
template <typename T, bool CACHED, bool CAP>
static __device__ void turn_row(const row_packs<T> &row, const uint4 *cache, float cap, float max,
                                float factor, float loss_scale, int64_t label)
{
#pragma unroll DEPTH
    for (int i = threadIdx.x; i < row.count; i += THREADS) {
        float f[PACK<T>];
        widen(CACHED ? load((const T *)(cache + i)) : row.read(i), f);
        if constexpr (CAP) {
            float slope[PACK<T>];
            cap_all(f, cap);
#pragma unroll
            for (int j = 0; j < PACK<T>; j++)
                slope[j] = cap_slope(f[j], cap);
            turn<T>(f, max, factor, loss_scale, label - row.start(i));
#pragma unroll
            for (int j = 0; j < PACK<T>; j++)
                f[j] = mul(f[j], slope[j]);
        } else {
            turn<T>(f, max, factor, loss_scale, label - row.start(i));
        }
        row.write(i, f);
    }
}

template <typename T, bool CACHED, bool CAP>
__global__ void __launch_bounds__(THREADS, 2)
    cross_entropy(kernel_logits l, const int32_t *labels, bool gradient,
                  const kernel_scalars *scalars, T *logits, double *losses)
{
    extern __shared__ uint4 cache[];
    int64_t r = blockIdx.x, label = labels[r];
    const row_packs<T> row(logits + r * l.stride, l.vocab);
    if (label < 0) {
        if (threadIdx.x == 0)
            losses[r] = 0;
        if (gradient)
            clear_row(row);
        return;
    }
    float wanted = widen(row.x[label]), max;
    if (CAP)
        wanted = capped(wanted, l.cap);
    double sum = combine<T>(meet_row<T, CACHED, CAP>(row, cache, l.cap), &max);
    if (threadIdx.x == 0)
        losses[r] = log(sum) + (double)max - (double)wanted;
    if (!gradient)
        return;
    float loss_scale = scalars->loss_scale, factor = (float)((double)loss_scale / sum);
    turn_row<T, CACHED, CAP>(row, cache, l.cap, max, factor, loss_scale, label);
}

/* Shared memory available to a block on the current GPU. */
static size_t shared_limit(void)
{
    int device, limit;
    if (cudaGetDevice(&device) != cudaSuccess ||
        cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) !=
            cudaSuccess)
        return 0;
    return (size_t)limit;
}

/* Shared memory for a row's packs. */
template <typename T> static size_t cache_bytes(int64_t vocab)
{
    return (size_t)div_up(vocab + PACK<T> - 1, PACK<T>) * sizeof(uint4);
}

template <typename T, bool CACHED, bool CAP>
static cudaError_t cross_entropy_in(cudaStream_t stream, kernel_logits l, int64_t rows,
                                    const int32_t *labels, bool gradient,
                                    const kernel_scalars *scalars, T *logits, double *losses)
{
    size_t shared = CACHED ? cache_bytes<T>(l.vocab) : 0;
    unsigned blocks = (unsigned)rows;
    if (CACHED) {
        auto kernel = cross_entropy<T, CACHED, CAP>;
        cudaError_t error =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
        if (error == cudaSuccess) /* prefer shared memory: L1 has no other use here */
            error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                         cudaSharedmemCarveoutMaxShared);
        if (error != cudaSuccess)
            return error;
    }
    cross_entropy<T, CACHED, CAP>
        <<<blocks, THREADS, shared, stream>>>(l, labels, gradient, scalars, logits, losses);
    return cudaGetLastError();
}

cudaError_t launch_cross_entropy(cudaStream_t stream, enum dtype type, struct kernel_logits l,
                                 int64_t rows, const int32_t *labels, bool gradient,
                                 const struct kernel_scalars *scalars, void *logits, double *losses)
{
    return with_type(type, [=](auto zero) {
        using T = decltype(zero);
        size_t fixed = 1024; /* upper bound of the static shared memory */
        const bool cached = gradient && cache_bytes<T>(l.vocab) + fixed <= shared_limit();
        const auto run =
            l.cap > 0
                ? (cached ? cross_entropy_in<T, true, true> : cross_entropy_in<T, false, true>)
            : cached ? cross_entropy_in<T, true, false>
                     : cross_entropy_in<T, false, false>;
        return run(stream, l, rows, labels, gradient, scalars, (T *)logits, losses);
    });
}

/* --- columns spread over ranks: a plain pass per half, each row read from memory -------------- */

template <typename T, bool CAP>
__global__ void __launch_bounds__(THREADS)
    cross_entropy_part(kernel_logits l, const int32_t *labels, T *logits /* only read */,
                       double *parts)
{
    const row_packs<T> row(logits + blockIdx.x * l.stride, l.vocab);
    int64_t label = labels[blockIdx.x] - l.first_id;
    float max;
    double sum = combine<T>(meet_row<T, false, CAP>(row, NULL, l.cap), &max);
    if (threadIdx.x == 0) {
        double *part = parts + (int64_t)blockIdx.x * KERNEL_LOSS_PART;
        part[0] = max;
        part[1] = sum;
        part[2] = !row.has(label) ? 0
                  : CAP           ? (double)capped(widen(row.x[label]), l.cap)
                                  : (double)widen(row.x[label]);
    }
}

/* Every thread combines the few parts of its row. */
template <typename T, bool CAP>
__global__ void __launch_bounds__(THREADS)
    cross_entropy_join(kernel_logits l, const int32_t *labels, int ranks, const double *parts,
                       bool gradient, const kernel_scalars *scalars, T *logits, double *losses)
{
    const row_packs<T> row(logits + blockIdx.x * l.stride, l.vocab);
    int64_t stride = (int64_t)gridDim.x * KERNEL_LOSS_PART;
    bool valid = labels[blockIdx.x] >= 0;
    const double *part = parts + (int64_t)blockIdx.x * KERNEL_LOSS_PART;
    double max = part[0], sum = 0, wanted = 0;
    for (int k = 1; k < ranks; k++)
        max = fmax(max, part[k * stride]);
    for (int k = 0; k < ranks; k++) {
        sum += part[k * stride + 1] * exp(part[k * stride] - max);
        wanted += part[k * stride + 2];
    }
    if (threadIdx.x == 0)
        losses[blockIdx.x] = valid ? log(sum) + max - wanted : 0;
    if (!gradient)
        return;
    if (!valid) {
        clear_row(row);
        return;
    }
    float loss_scale = scalars->loss_scale, factor = (float)((double)loss_scale / sum);
    turn_row<T, false, CAP>(row, NULL, l.cap, (float)max, factor, loss_scale,
                            labels[blockIdx.x] - l.first_id);
}

cudaError_t launch_cross_entropy_part(cudaStream_t stream, enum dtype type, struct kernel_logits l,
                                      int64_t rows, const int32_t *labels, const void *logits,
                                      double *parts)
{
    return with_type(type, [=](auto zero) {
        using T = decltype(zero);
        const auto kernel = l.cap > 0 ? cross_entropy_part<T, true> : cross_entropy_part<T, false>;
        kernel<<<(unsigned)rows, THREADS, 0, stream>>>(l, labels, (T *)logits, parts);
        return cudaGetLastError();
    });
}

cudaError_t launch_cross_entropy_join(cudaStream_t stream, enum dtype type, struct kernel_logits l,
                                      int64_t rows, const int32_t *labels, int ranks,
                                      const double *parts, bool gradient,
                                      const struct kernel_scalars *scalars, void *logits,
                                      double *losses)
{
    return with_type(type, [=](auto zero) {
        using T = decltype(zero);
        const auto kernel = l.cap > 0 ? cross_entropy_join<T, true> : cross_entropy_join<T, false>;
        kernel<<<(unsigned)rows, THREADS, 0, stream>>>(l, labels, ranks, parts, gradient, scalars,
                                                       (T *)logits, losses);
        return cudaGetLastError();
    });
}

/* --- decoding: few rows, speed does not matter ------------------------------------------------ */

template <typename T>
__global__ void __launch_bounds__(THREADS) softcap(int64_t count, float cap, T *x)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < count)
        narrow(capped(widen(x[i]), cap), &x[i]);
}

cudaError_t launch_softcap(cudaStream_t stream, enum dtype type, int64_t count, float cap, void *x)
{
    return with_type(type, [=](auto zero) {
        using T = decltype(zero);
        softcap<T><<<(unsigned)div_up(count, THREADS), THREADS, 0, stream>>>(count, cap, (T *)x);
        return cudaGetLastError();
    });
}

/* --- sums of doubles ------------------------------------------------------------------------ */

enum { SUM_THREADS = 256 };

/* Sum of 1 << LEVEL values: neighbours first. */
template <int LEVEL> static __device__ inline double tree(const double *values)
{
    if constexpr (LEVEL == 0)
        return values[0];
    else
        return tree<LEVEL - 1>(values) + tree<LEVEL - 1>(values + (1 << (LEVEL - 1)));
}

/* One thread per sum. */
template <int LEVEL>
__global__ void __launch_bounds__(SUM_THREADS)
    low_trees(int64_t sum_count, const double *values, double *sums)
{
    int64_t i = (int64_t)blockIdx.x * SUM_THREADS + threadIdx.x;
    if (i < sum_count)
        sums[i] = tree<LEVEL>(values + (i << LEVEL));
}

enum { LEAF = 3 /* levels in a thread */, WIDEST = 10 /* levels across a block's threads */ };

/* A thread's part of a tree of which `left` values remain. Missing values are -0, which changes no
 * sum, not even one of -0. */
static __device__ inline double leaf_tree(const double *values, int64_t left)
{
    double x[1 << LEAF];
    if (left >= 1 << LEAF)
        return tree<LEAF>(values);
#pragma unroll
    for (int i = 0; i < 1 << LEAF; i++)
        x[i] = i < left ? values[i] : -0.0;
    return tree<LEAF>(x);
}

/* One block per sum of 1 << level values, level > LEAF; the last may have fewer. Each thread joins
 * LEAF levels and the threads join `wide` levels; above that, parts are processed one after the
 * other and joined like carries of a binary counter. */
__global__ void __launch_bounds__(1 << WIDEST)
    high_trees(int64_t count, int level, int wide, const double *values, double *sums)
{
    __shared__ double warps[(1 << WIDEST) / WARP];
    __shared__ double nodes[62]; /* of thread 0: the sum waiting at each level above a part */
    int64_t parts = (int64_t)1 << (level - LEAF - wide);
    int64_t mine = ((int64_t)blockIdx.x << level) + ((int64_t)threadIdx.x << LEAF);
    double value = 0;
    for (int64_t part = 0; part < parts; part++, mine += (int64_t)1 << (LEAF + wide)) {
        value = threadIdx.x >> wide == 0 ? leaf_tree(values + mine, count - mine) : 0;
        for (int step = 0; step < wide && step < 5; step++)
            value += __shfl_xor_sync(ALL_LANES, value, 1 << step);
        if (wide > 5) {
            if (threadIdx.x % WARP == 0)
                warps[threadIdx.x / WARP] = value;
            __syncthreads();
            value = threadIdx.x >> (wide - 5) == 0 ? warps[threadIdx.x] : 0;
            for (int step = 0; threadIdx.x < WARP && step < wide - 5; step++)
                value += __shfl_xor_sync(ALL_LANES, value, 1 << step);
            __syncthreads();
        }
        if (threadIdx.x == 0) {
            int height = 0;
            for (; part >> height & 1; height++)
                value = nodes[height] + value;
            nodes[height] = value;
        }
    }
    if (threadIdx.x == 0)
        sums[blockIdx.x] = value; /* the last part completes the tree */
}

template <int LEVEL>
static void launch_low_trees(cudaStream_t stream, int64_t sum_count, const double *values,
                             double *sums)
{
    unsigned blocks = (unsigned)div_up(sum_count, SUM_THREADS);
    low_trees<LEVEL><<<blocks, SUM_THREADS, 0, stream>>>(sum_count, values, sums);
}

static void launch_high_trees(cudaStream_t stream, int64_t count, int level, const double *values,
                              double *sums)
{
    int wide = level - LEAF < WIDEST ? level - LEAF : WIDEST;
    unsigned threads = wide < 5 ? WARP : 1u << wide;
    unsigned blocks = (unsigned)div_up(count, (int64_t)1 << level);
    high_trees<<<blocks, threads, 0, stream>>>(count, level, wide, values, sums);
}

/* A single tree that is large enough. */
cudaError_t launch_sum(cudaStream_t stream, int64_t count, const double *values, double *sum)
{
    int level = LEAF + 1;
    if (count == 0)
        return cudaMemsetAsync(sum, 0, sizeof *sum, stream);
    while ((int64_t)1 << level < count)
        level++;
    launch_high_trees(stream, count, level, values, sum);
    return cudaGetLastError();
}

cudaError_t launch_tree_sums(cudaStream_t stream, int64_t count, int level, const double *values,
                             double *sums)
{
    int64_t sum_count = count >> level;
    switch (sum_count > 0 ? level : -1) {
    case -1: return cudaSuccess;
    case 0: launch_low_trees<0>(stream, sum_count, values, sums); break;
    case 1: launch_low_trees<1>(stream, sum_count, values, sums); break;
    case 2: launch_low_trees<2>(stream, sum_count, values, sums); break;
    case 3: launch_low_trees<3>(stream, sum_count, values, sums); break;
    case 4: launch_low_trees<4>(stream, sum_count, values, sums); break;
    default: launch_high_trees(stream, count, level, values, sums);
    }
    return cudaGetLastError();
}
