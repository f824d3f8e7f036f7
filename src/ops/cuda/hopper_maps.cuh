/* hopper_maps -- tensor maps, which tell the copy engine of Hopper where tiles lie, made on the host. */
#ifndef OPS_CUDA_HOPPER_MAPS_CUH
#define OPS_CUDA_HOPPER_MAPS_CUH
#include <cuda_runtime_api.h>
#include "ops/cuda/hopper.cuh"

namespace hopper
{

typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                              const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                              const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                              CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* The driver's maker of tensor maps, without linking to the driver. */
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

/* (rows, width), to be read in boxes of 64 columns and so many rows; what is behind the last row is
 * read as zeros. */
template <typename T>
cudaError_t map_tiles(encode_fn encode, const void *base, int64_t rows, int64_t width, int box_rows,
                      CUtensorMap *map)
{
    const cuuint64_t sizes[2] = {(cuuint64_t)width, (cuuint64_t)rows};
    const cuuint64_t strides[1] = {(cuuint64_t)width * sizeof(T)};
    const cuuint32_t box[2] = {64, (cuuint32_t)box_rows}, steps[2] = {1, 1};
    CUresult result =
        encode(map, is_bf16<T> ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
               2, const_cast<void *>(base), sizes, strides, box, steps,
               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

} // namespace hopper

#endif
