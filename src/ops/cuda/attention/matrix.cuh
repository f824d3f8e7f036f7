/* matrix -- products of small matrices by one warp, available from compute capability 8.0 on
 * (mma.sync), and the loading of their factors: asynchronous copies to shared memory, ldmatrix.
 *
 * A step of a product takes 32 bytes of each row: 8 floats (rounded to TF32) or 16 elements of a
 * 16-bit type. Of the accumulators of a tile (16, 8) lane l has rows l / 4 and l / 4 + 8, columns
 * 2 (l % 4) and the next: c[0], c[1] of the first row, c[2], c[3] of the second.
 */
#ifndef OPS_CUDA_MATRIX_CUH
#define OPS_CUDA_MATRIX_CUH
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>
#include "ops/cuda/common/powers.cuh"

namespace matrix
{

/* --- copies --------------------------------------------------------------------------------- */

__device__ inline uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Copies 16 bytes, or zeros if not `there`. */
__device__ inline void copy_16(void *to, const void *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(there ? 16 : 0)
                 : "memory");
}

/* Waits for the calling thread's copies. */
__device__ inline void copies_wait()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

/* --- factors -------------------------------------------------------------------------------- */

/* Loads four blocks of 8 rows of 16 bytes; lane l gives the address of row l % 8 of block l / 8,
 * and receives the (l % 4)-th 4 bytes of row l / 4 of each. */
__device__ inline void load_blocks(uint32_t (&to)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/* The same for 16-bit elements, each block transposed. */
__device__ inline void load_blocks_turned(uint32_t (&to)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/* Rounds to nearest TF32, ties away from zero: products would truncate. */
__device__ inline float rounded_tf32(float x)
{
    uint32_t bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return __uint_as_float(bits);
}

template <typename T> __device__ inline uint32_t packed(float low, float high);

template <> __device__ inline uint32_t packed<__nv_bfloat16>(float low, float high)
{
    uint32_t both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

template <> __device__ inline uint32_t packed<__half>(float low, float high)
{
    uint32_t both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

/* --- products ------------------------------------------------------------------------------- */

/* c (16, 8) += a b, one step. */
template <typename T>
__device__ inline void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

#define MATRIX_MULTIPLY(T, shape, type)                                                     \
    template <>                                                                             \
    __device__ inline void multiply<T>(float(&c)[4], const uint32_t(&a)[4], uint32_t b0,    \
                                       uint32_t b1)                                         \
    {                                                                                       \
        asm volatile("mma.sync.aligned." shape ".row.col.f32." type "." type                \
                     ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                       \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));       \
    }

MATRIX_MULTIPLY(float, "m16n8k8", "tf32")
MATRIX_MULTIPLY(__nv_bfloat16, "m16n8k16", "bf16")
MATRIX_MULTIPLY(__half, "m16n8k16", "f16")

#undef MATRIX_MULTIPLY

/* --- arithmetic ----------------------------------------------------------------------------- */

} // namespace matrix

#endif
