/* hopper_launch -- starts products of hopper_product.cuh: kernels, and maps of their matrices. */
#ifndef OPS_CUDA_HOPPER_LAUNCH_CUH
#define OPS_CUDA_HOPPER_LAUNCH_CUH
#include <type_traits>
#include "base/dtype.h"
#include "ops/cuda/common/hopper_maps.cuh"
#include "ops/cuda/product/hopper_product.cuh"

namespace hopper::product
{

struct matrix {
    void *at;       /* NULL: there is none */
    int64_t stride; /* elements from one row to the next */
};

/* A is (R, K), TURNED: (K, R); side and out are (R, N), of floats for PUT and ADD. GATE: B has 2 N
 * columns, gate's, then up's. */
struct request {
    int64_t rows, columns, depth; /* R, N, K */
    const void *a, *b;
    int64_t a_stride, b_stride; /* 0: dense */
    matrix side[2], out[3];     /* as in struct maps */
    int processors;             /* of the GPU */
};

inline bool takes(enum dtype type, int64_t rows, int64_t in, int64_t out)
{
    const int64_t most = INT32_MAX / 2; /* so that a tile may begin behind the end */
    return (type == DTYPE_BF16 || type == DTYPE_F16) && in % 8 == 0 && out % 8 == 0 && rows > 0 &&
           rows <= most && in <= most && out <= most;
}

template <class W, typename T, class E>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(THREADS, 1)
    multiply(const __grid_constant__ maps of, const problem p, const E e)
{
    extern __shared__ __align__(1024) char raw[];
    if (threadIdx.x == 0 && shared_address(raw) % 1024) /* the layout of tiles relies on this */
        __trap();
    run_block<W, T>(*reinterpret_cast<memory<W> *>(raw), p, of, e);
}

/* In boxes of 128 bytes of columns and `box_rows` rows. */
template <typename T>
cudaError_t map_matrix(encode_fn encode, matrix m, int64_t rows, int64_t columns, int box_rows,
                       CUtensorMap *map)
{
    const cuuint64_t sizes[2] = {(cuuint64_t)columns, (cuuint64_t)rows};
    const cuuint64_t strides[1] = {(cuuint64_t)m.stride * sizeof(T)};
    const cuuint32_t box[2] = {128 / sizeof(T), (cuuint32_t)box_rows};
    return m.at ? make_map<T>(encode, m.at, 2, sizes, strides, box, map) : cudaSuccess;
}

template <class W, typename T> cudaError_t map_all(encode_fn encode, const request &r, maps *of)
{
    typedef std::conditional_t<W::FLOATS, float, T> result;
    const int halves = W::SCHEME == GATE ? 2 : 1;
    const int64_t a_rows = W::TURNED ? r.depth : r.rows, a_columns = W::TURNED ? r.rows : r.depth;
    const int64_t b_wide = r.b_stride ? r.b_stride : W::DOWN ? halves * r.columns : r.depth;
    T *const b = static_cast<T *>(const_cast<void *>(r.b));
    cudaError_t error =
        map_matrix<T>(encode, {const_cast<void *>(r.a), r.a_stride ? r.a_stride : a_columns},
                      a_rows, a_columns, A_ROWS<W>, &of->a);
    for (int i = 0; i < halves && error == cudaSuccess; i++)
        error = W::DOWN ? map_matrix<T>(encode, {b + i * r.columns, b_wide}, r.depth, r.columns,
                                        DEPTH, &of->b[i])
                        : map_matrix<T>(encode, {b + i * r.columns * b_wide, b_wide}, r.columns,
                                        r.depth, COLUMNS / halves, &of->b[i]);
    for (int i = 0; i < 2 && error == cudaSuccess; i++)
        error =
            map_matrix<result>(encode, r.side[i], r.rows, r.columns, SIDE_ROWS<W>, &of->side[i]);
    for (int i = 0; i < 3 && error == cudaSuccess; i++)
        error = map_matrix<result>(encode, r.out[i], r.rows, r.columns, STRIP, &of->out[i]);
    return error;
}

template <class W, typename T, class E>
cudaError_t launch(const request &r, const E &e, cudaStream_t stream)
{
    static_assert(sizeof(memory<W>) <= 227 * 1024, "too much");
    const problem p = problem_of<W>(r.rows, r.columns, r.depth);
    const int64_t jobs = (int64_t)p.pairs * p.downs;
    const int64_t clusters = jobs < r.processors / 2 ? jobs : r.processors / 2;
    encode_fn encode;
    maps of = {};
    cudaError_t error = find_encode(&encode);
    if (error == cudaSuccess)
        error = map_all<W, T>(encode, r, &of);
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(multiply<W, T, E>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     (int)sizeof(memory<W>));
    if (error != cudaSuccess)
        return error;
    multiply<W, T, E><<<(unsigned)(2 * clusters), THREADS, sizeof(memory<W>), stream>>>(of, p, e);
    return cudaGetLastError();
}

/* `down`: B is [K][N]. */
template <scheme S, typename T, class E>
cudaError_t launch_turned(bool down, const request &r, const E &e, cudaStream_t stream)
{
    return down ? launch<way<192, true, S>, T>(r, e, stream)
                : launch<way<192, false, S>, T>(r, e, stream);
}

} // namespace hopper::product

#endif
