/* hopper_maps -- tensor maps, which describe tiles to Hopper's copy engine; made on the host. */
#ifndef OPS_CUDA_HOPPER_MAPS_CUH
#define OPS_CUDA_HOPPER_MAPS_CUH
#include <cuda_runtime_api.h>
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

/* As bits: floats keep subnormals. */
template <typename T>
constexpr CUtensorMapDataType MAP_TYPE = sizeof(T) == 4 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                                         : is_bf16<T>   ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                        : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;

/* An array of T, to be read or written in boxes whose rows are 128 bytes, with the swizzle of
 * hopper.cuh. Dimensions begin with the columns; `strides` are bytes, of all others. What a box has
 * beyond the ends is read as zeros. */
template <typename T>
cudaError_t make_map(encode_fn encode, const void *base, int dimensions, const cuuint64_t *sizes,
                     const cuuint64_t *strides, const cuuint32_t *box, CUtensorMap *map)
{
    const cuuint32_t steps[4] = {1, 1, 1, 1};
    CUresult result =
        encode(map, MAP_TYPE<T>, (cuuint32_t)dimensions, const_cast<void *>(base), sizes, strides,
               box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

} // namespace hopper

#endif
