/* cuda_loss_hopper -- cross-entropy with its gradient for compute capability 9.0: logits go
 * through shared memory, moved by the copy engine. 16-bit types, rows that start at multiples of
 * 16 bytes, no cap; the copy engine also loads what follows a row in its last pack, and nobody uses it. The
 * arithmetic is that of cuda_loss.cuh, so the bits are those of cuda_loss.cu.
 *
 * Two blocks per multiprocessor, each looping over rows. A row is cut into chunks of 16 KB, of
 * which a block has a ring of 7, enough for a row of 50304 logits: while its gradients are formed,
 * chunks of the next row replace them, so that memory does not wait for the arithmetic.
 *
 *     chunk n:  loaded -> full -> summed -> replaced by its gradient, which is stored
 *               -> block barrier -> its buffer is loaded with chunk n + 7
 *
 * Bytes: R V read and written once. This file is compiled for sm_90a only (cmake/cuda.cmake).
 */
#include "ops/cuda/cuda_loss.cuh"
#include "ops/cuda/common/hopper.cuh"

namespace
{

using namespace hopper;

enum {
    N = 8,                        /* elements of a pack */
    DEPTH = 2,                    /* packs of a chunk per thread */
    CHUNK = DEPTH * LOSS_THREADS, /* packs */
    CHUNKS = 7,                   /* in the ring */
    BLOCKS = 2                    /* per multiprocessor */
};

template <typename T> struct loss_args {
    int64_t rows, stride;
    int vocab, packs, chunks; /* of a row */
    const int32_t *labels;
    const kernel_scalars *scalars;
    T *logits;
    double *losses;
};

using place = ring<CHUNKS>;

/* What thread 0 loads next. */
template <typename T> struct asker {
    int64_t row;
    int chunk; /* of the row */
    place to;
    __device__ inline void ask(const loss_args<T> &a, uint4 *memory, uint64_t *full)
    {
        if (row >= a.rows)
            return;
        int first = chunk * CHUNK, bytes = min(a.packs - first, (int)CHUNK) * (int)sizeof(uint4);
        uint32_t barrier = shared_address(&full[to.stage]);
        barrier_expect(barrier, bytes);
        load_bytes(shared_address(memory + to.stage * CHUNK),
                   a.logits + row * a.stride + (int64_t)first * N, bytes, barrier);
        to.step();
        if (++chunk == a.chunks) {
            chunk = 0;
            row += gridDim.x;
        }
    }
};

/* A logit of the row whose first chunk is at `from`. */
template <typename T>
__device__ inline float logit_at(const uint4 *memory, const place &from, int64_t i)
{
    int chunk = (from.stage + (int)(i / N / CHUNK)) % CHUNKS;
    return widen(reinterpret_cast<const T *>(memory + chunk * CHUNK)[i % (CHUNK * N)]);
}

template <typename T>
__global__ void __launch_bounds__(LOSS_THREADS, BLOCKS)
    cross_entropy_rows(const __grid_constant__ loss_args<T> a)
{
    extern __shared__ __align__(128) uint4 memory[];
    __shared__ uint64_t full[CHUNKS];
    asker<T> next = {blockIdx.x, 0, {}};
    if (threadIdx.x == 0) {
        for (int i = 0; i < CHUNKS; i++)
            barrier_init(shared_address(&full[i]), 1);
        barrier_init_done();
        for (int i = 0; i < CHUNKS; i++)
            next.ask(a, memory, full);
    }
    __syncthreads();

    float loss_scale = a.scalars->loss_scale;
    int64_t r = blockIdx.x;
    int label = a.labels[r], next_label = 0;
    for (place at; r < a.rows; r += gridDim.x, label = next_label) {
        place from = at;
        running mine = nothing_met();
        if (r + gridDim.x < a.rows)
            next_label = a.labels[r + gridDim.x];
        for (int c = 0; c < a.chunks; c++, at.step()) {
            barrier_wait(shared_address(&full[at.stage]), at.parity);
#pragma unroll
            for (int k = 0; k < DEPTH; k++) {
                int i = k * LOSS_THREADS + threadIdx.x;
                float f[N];
                if (c * CHUNK + i >= a.packs)
                    continue;
                widen(load((const T *)(memory + at.stage * CHUNK + i)), f);
                drop_rest(f, a.vocab - (c * CHUNK + i) * N);
                meet<T>(mine, f);
            }
        }
        float max;
        double sum = combine<T>(mine, &max);
        if (threadIdx.x == 0)
            a.losses[r] =
                label < 0 ? 0 : log(sum) + (double)max - (double)logit_at<T>(memory, from, label);

        float factor = (float)((double)loss_scale / sum);
        T *x = a.logits + r * a.stride;
        for (int c = 0; c < a.chunks; c++, from.step()) {
#pragma unroll
            for (int k = 0; k < DEPTH; k++) {
                int in_chunk = k * LOSS_THREADS + threadIdx.x, i = c * CHUNK + in_chunk;
                float f[N];
                if (i >= a.packs)
                    continue;
                widen(load((const T *)(memory + from.stage * CHUNK + in_chunk)), f);
                turn<T>(f, max, factor, loss_scale, label - i * N);
                pack<T> out = narrow<T>(f);
                if (label < 0)
                    out = {};
                store_some(x + (int64_t)i * N, out, a.vocab - i * N, true);
            }
            __syncthreads(); /* the chunk has been read */
            if (threadIdx.x == 0)
                next.ask(a, memory, full);
        }
    }
}

template <typename T> cudaError_t launch(cudaStream_t stream, const loss_args<T> &a)
{
    size_t bytes = (size_t)CHUNKS * CHUNK * sizeof(uint4);
    auto *kernel = cross_entropy_rows<T>;
    int device, processors;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    if (error == cudaSuccess)
        error =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (error == cudaSuccess) /* prefer shared memory: L1 has no other use here */
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                     cudaSharedmemCarveoutMaxShared);
    if (error != cudaSuccess)
        return error;
    int64_t blocks = a.rows < BLOCKS * processors ? a.rows : BLOCKS * processors;
    kernel<<<(unsigned)blocks, LOSS_THREADS, bytes, stream>>>(a);
    return cudaGetLastError();
}

} // namespace

bool kernel_loss_hopper_takes(enum dtype type, struct kernel_logits l, const void *logits)
{
    return type != DTYPE_F32 && !(l.cap > 0) && l.stride % N == 0 &&
           l.vocab <= CHUNKS * CHUNK * N && is_wide(logits);
}

cudaError_t launch_cross_entropy_hopper(cudaStream_t stream, enum dtype type,
                                        struct kernel_logits l, int64_t rows, const int32_t *labels,
                                        const struct kernel_scalars *scalars, void *logits,
                                        double *losses)
{
    return with_type(type, [=](auto zero) {
        using T = decltype(zero);
        if constexpr (sizeof(T) == 2) {
            int packs = (int)div_up(l.vocab, N);
            return launch<T>(stream,
                             {rows, l.stride, (int)l.vocab, packs, (int)div_up(packs, CHUNK),
                              labels, scalars, (T *)logits, losses});
        }
        return cudaErrorInvalidValue;
    });
}
