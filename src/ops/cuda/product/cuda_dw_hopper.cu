/* cuda_dw_hopper -- weights' gradients, for compute capability 9.0 and 16-bit types:
 *
 *     dw = a^T b            rounded
 *     sum = or += a^T b     of the rounded numbers, in fp32
 *
 * in the epilogues of hopper_product.cuh, hidden behind the products of other tiles. One launch
 * each, no scratch. Tokens are the rows of both operands in memory, so both run down.
 *
 * This file is compiled for sm_90a only (cmake/cuda.cmake).
 */
#include "base/dtype.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/product/hopper_launch.cuh"

namespace
{

using namespace hopper;

/* Rows that a cluster computes one after another in tiles of ROWS, if all take as long as the one
 * with the most. */
template <int ROWS> int64_t rows_in_turn(const product::request &r)
{
    typedef product::way<ROWS, true, product::ONE, true> way;
    const product::problem p = product::problem_of<way>(r.rows, r.columns, r.depth);
    const int64_t clusters = r.processors / 2, jobs = (int64_t)p.pairs * p.downs;
    return (jobs + clusters - 1) / clusters * ROWS;
}

/* The choice may depend on the GPU's processors, because tiles of both sizes give the same bits:
 * one accumulator per element, over tokens in increasing order. */
template <product::scheme S, typename T>
cudaError_t launch_dw(const product::request &r, cudaStream_t stream)
{
    const product::rounding<T> e;
    return rows_in_turn<128>(r) < rows_in_turn<192>(r)
               ? product::launch<product::way<128, true, S, true>, T>(r, e, stream)
               : product::launch<product::way<192, true, S, true>, T>(r, e, stream);
}

template <typename T>
cudaError_t launch_dw_of(const struct kernel_dw &w, int processors, cudaStream_t stream)
{
    const product::matrix to = {w.sum ? w.sum : w.dw, w.across};
    product::request r = {
        .rows = w.down,
        .columns = w.across,
        .depth = w.tokens,
        .a = w.a,
        .b = w.b,
        .a_stride = w.a_stride,
        .b_stride = w.b_stride,
        .out = {to},
        .processors = processors,
    };
    if (!w.sum)
        return launch_dw<product::ONE, T>(r, stream);
    if (!w.add)
        return launch_dw<product::PUT, T>(r, stream);
    r.side[0] = to;
    return launch_dw<product::ADD, T>(r, stream);
}

bool is_stride(int64_t stride, int64_t columns)
{
    return stride == 0 || (stride >= columns && stride % 8 == 0 && stride <= INT32_MAX);
}

} // namespace

bool kernel_dw_hopper_takes(enum dtype type, struct kernel_dw w)
{
    return product::takes(type, w.tokens, w.down, w.across) && w.down > 0 && w.across > 0 &&
           is_stride(w.a_stride, w.down) && is_stride(w.b_stride, w.across);
}

cudaError_t launch_dw_hopper(cudaStream_t stream, enum dtype type, struct kernel_dw w,
                             int processors)
{
    return type == DTYPE_BF16 ? launch_dw_of<__nv_bfloat16>(w, processors, stream)
                              : launch_dw_of<__half>(w, processors, stream);
}
