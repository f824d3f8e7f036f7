/* hopper_heads -- tensor maps of (B, T, heads, D). */
#ifndef OPS_CUDA_HOPPER_HEADS_CUH
#define OPS_CUDA_HOPPER_HEADS_CUH
#include "ops/cuda/attention/cuda_attention.h"
#include "ops/cuda/common/hopper_maps.cuh"

namespace hopper
{

/* (B, T, heads, D), to be read in boxes of 64 columns of a head and `box_rows` rows of a sequence.
 * Each is a dimension of its own, so that the part of a box beyond the last row or column is read
 * as zeros. D is a multiple of 8. */
template <typename T>
cudaError_t map_tiles(encode_fn encode, const void *base, struct cuda_heads a, int64_t heads,
                      int box_rows, CUtensorMap *map)
{
    const cuuint64_t head = (cuuint64_t)a.width * sizeof(T), row = (cuuint64_t)heads * head;
    const cuuint64_t sizes[4] = {(cuuint64_t)a.width, (cuuint64_t)heads, (cuuint64_t)a.tokens,
                                 (cuuint64_t)a.batch};
    const cuuint64_t strides[3] = {head, row, (cuuint64_t)a.tokens * row};
    const cuuint32_t box[4] = {64, 1, (cuuint32_t)box_rows, 1};
    return make_map<T>(encode, base, 4, sizes, strides, box, map);
}

} // namespace hopper

#endif
