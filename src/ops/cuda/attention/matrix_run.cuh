/* matrix_run -- the launchers of matrix_launch.cuh, included by the file of each type. */
#ifndef OPS_CUDA_MATRIX_RUN_CUH
#define OPS_CUDA_MATRIX_RUN_CUH
#include "ops/cuda/attention/matrix_backward.cuh"
#include "ops/cuda/attention/matrix_forward.cuh"
#include "ops/cuda/attention/matrix_launch.cuh"

namespace matrix
{

inline problem problem_of(struct cuda_heads a, bool chunks)
{
    problem p = {};
    p.tokens = (int)a.tokens;
    p.heads = (int)a.heads;
    p.kv_heads = (int)a.kv_heads;
    p.group = (int)(a.heads / a.kv_heads);
    p.width = (int)a.width;
    p.sequences = (int)a.batch;
    p.row = (a.heads + 2 * a.kv_heads) * a.width;
    p.out_row = a.heads * a.width;
    p.window = (int)a.window;
    p.scale = a.scale;
    p.from_cap = a.cap > 0 ? a.scale / a.cap : 0;
    p.to_cap = a.cap / a.scale;
    p.chunks = chunks;
    return p;
}

/* One block for each tile of each of `heads` heads. */
template <class W, typename... P, typename... A>
cudaError_t launch(void (*kernel)(P...), const problem &p, int heads, cudaStream_t stream,
                   A... arguments)
{
    static_assert(sizeof(memory<W>) <= 99 * 1024, "more than a block can have on every GPU");
    const unsigned blocks = (unsigned)(tiles_of(p.tokens, W::ROWS) * heads * p.sequences);
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             (int)sizeof(memory<W>));
    if (error != cudaSuccess)
        return error;
    kernel<<<blocks, W::THREADS, sizeof(memory<W>), stream>>>(p, arguments...);
    return cudaGetLastError();
}

template <typename T, int WIDTH, bool CAPPED>
cudaError_t forward_at(const problem &p, const void *qkv, void *out, float *lse,
                       cudaStream_t stream)
{
    using W = way<T, WIDTH, false, CAPPED>;
    return launch<W>(attend_forward<W>, p, p.heads, stream, (const T *)qkv, (T *)out, lse);
}

template <typename T, int WIDTH, bool CAPPED>
cudaError_t backward_at(const problem &p, const void *qkv, statistics stats, const void *dout,
                        void *dqkv, cudaStream_t stream)
{
    using W = way<T, WIDTH, true, CAPPED>;
    const T *x = (const T *)qkv, *dy = (const T *)dout;
    T *dx = (T *)dqkv;
    cudaError_t error = launch<W>(query_gradients<W>, p, p.heads, stream, x, dy, stats, dx);
    if (error != cudaSuccess)
        return error;
    if constexpr (WIDTH <= 128) {
        return launch<W>(key_gradients<W, true, true>, p, p.kv_heads, stream, x, dy, stats, dx);
    } else {
        error = launch<W>(key_gradients<W, true, false>, p, p.kv_heads, stream, x, dy, stats, dx);
        return error != cudaSuccess ? error
                                    : launch<W>(key_gradients<W, false, true>, p, p.kv_heads,
                                                stream, x, dy, stats, dx);
    }
}

/* Calls CALL(WIDTH, CAPPED) with the smallest width that is large enough. Capped scores are rare:
 * they have fewer widths, which saves compilation. */
#define MATRIX_BY_WIDTH(width, capped, CALL)                 \
    ((capped)         ? ((width) <= 64    ? CALL(64, true)   \
                         : (width) <= 128 ? CALL(128, true)  \
                                          : CALL(256, true)) \
     : (width) <= 32  ? CALL(32, false)                      \
     : (width) <= 64  ? CALL(64, false)                      \
     : (width) <= 128 ? CALL(128, false)                     \
     : (width) <= 192 ? CALL(192, false)                     \
                      : CALL(256, false))

template <typename T>
cudaError_t run_forward(struct cuda_heads a, bool chunks, const void *qkv, void *out, float *lse,
                        cudaStream_t stream)
{
    const problem p = problem_of(a, chunks);
#define CALL(WIDTH, CAPPED) forward_at<T, WIDTH, CAPPED>(p, qkv, out, lse, stream)
    return MATRIX_BY_WIDTH(a.width, a.cap > 0, CALL);
#undef CALL
}

template <typename T>
cudaError_t run_backward(struct cuda_heads a, bool chunks, const void *qkv, const float *lse,
                         const void *dout, void *dqkv, const float *sums, cudaStream_t stream)
{
    const problem p = problem_of(a, chunks);
    const statistics stats = {lse, sums};
#define CALL(WIDTH, CAPPED) backward_at<T, WIDTH, CAPPED>(p, qkv, stats, dout, dqkv, stream)
    return MATRIX_BY_WIDTH(a.width, a.cap > 0, CALL);
#undef CALL
}

#define MATRIX_INSTANCES(T)                                                                     \
    template cudaError_t run_forward<T>(struct cuda_heads, bool, const void *, void *, float *, \
                                        cudaStream_t);                                          \
    template cudaError_t run_backward<T>(struct cuda_heads, bool, const void *, const float *,  \
                                         const void *, void *, const float *, cudaStream_t);

} // namespace matrix

#endif
