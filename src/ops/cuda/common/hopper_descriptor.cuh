/* hopper_descriptor -- descriptors of tiles in shared memory for products on Hopper: start,
 * swizzle, and a stride of 1024 bytes for eight rows (see hopper.cuh). */
#ifndef OPS_CUDA_HOPPER_DESCRIPTOR_CUH
#define OPS_CUDA_HOPPER_DESCRIPTOR_CUH
#include <stdint.h>

namespace hopper
{

/* Descriptor of two tiles for B down with N = 128, the second `bytes` after the first. In a
 * cluster, the upper bits of an address are the number of the block: they have no place here. */
__device__ inline uint64_t tiles_at(uint32_t address, int bytes)
{
    const uint64_t swizzle_128 = 1, eight_rows = 1024 >> 4;
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(bytes >> 4) << 16 | eight_rows << 32 |
           swizzle_128 << 62;
}

/* Descriptor of a tile with swizzled rows of 128 bytes. */
__device__ inline uint64_t tile_at(uint32_t address)
{
    const int unused = 16;
    return tiles_at(address, unused);
}

/* The same descriptor, `bytes` later. */
__device__ inline uint64_t further(uint64_t tile, int bytes)
{
    return tile + (uint64_t)(bytes >> 4);
}

} // namespace hopper

#endif
