/* hopper_maps -- tensor maps, which describe tiles to Hopper's copy engine; made on the host. */
#ifndef OPS_CUDA_HOPPER_MAPS_CUH
#define OPS_CUDA_HOPPER_MAPS_CUH
#include <cuda_runtime_api.h>
#include "ops/cuda/attention/cuda_attention.h"
#include "ops/cuda/common/hopper.cuh"

namespace hopper
{

typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                              const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                              const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                              CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* Finds the driver's cuTensorMapEncodeTiled without linking to the driver. */
inline cudaError_t find_encode(encode_fn *encode)
{
    void *entry = nullptr;
    cudaDriverEntryPointQueryResult found;
    cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                                         cudaEnableDefault, &found);
    *encode = (encode_fn)entry;
    return error != cudaSuccess || found == cudaDriverEntryPointSuccess ? error
                                                                        : cudaErrorSymbolNotFound;
}

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
    const cuuint32_t box[4] = {64, 1, (cuuint32_t)box_rows, 1}, steps[4] = {1, 1, 1, 1};
    CUresult result =
        encode(map, is_bf16<T> ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
               4, const_cast<void *>(base), sizes, strides, box, steps,
               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

} // namespace hopper

#endif
