/* hopper -- instructions of compute capability 9.0 that CUDA C++ does not expose.
 *
 * Copies. One thread requests a tile (through a tensor map made on the host) or a run of bytes;
 * the copy engine writes it to shared memory and reports its bytes to an mbarrier, a barrier in
 * shared memory whose phase completes after a number of arrivals and bytes. A waiting thread names
 * the parity of the phase. ring steps through a few buffers, each with a "full" and an "empty"
 * barrier.
 *
 * Products. A warpgroup (four warps) issues wgmma, which runs asynchronously: D (64, N) += A (64,
 * 16) B (16, N), D in registers, 16 rows per warp, A in registers or shared memory, B in shared
 * memory. Products are committed in groups; a wait names how many groups may still be running.
 * Until then their registers belong to the tensor cores.
 *
 *     A thread's part of D: for every 8 columns, four floats: columns 2 (lane % 4) and the next, of
 *     row lane / 4 of its warp's sixteen, then the same of row lane / 4 + 8. Two such fours in the
 *     compute type, two to a register, are its part of an A of 16 columns.
 *
 * Tiles in shared memory have rows of 128 bytes (64 elements), swizzled like those of tensor maps:
 * 16-byte unit c of row r is at unit c ^ (r % 8). They are aligned to 1024 bytes. The k dimension
 * of a product runs along the rows of a tile or down its columns:
 *     along:  A or B^T (64 or N rows) with k = 16 columns of the tile; the next k is 32 bytes on
 *     down:   B, or A^T, with k = 16 rows of the tile and N = 64 or 32 columns, or A's 64 rows; the
 *             next k is 2048 bytes on
 * The descriptor is the same for both: start, swizzle, and a stride of 1024 bytes for eight rows.
 * Rows of 128 elements are two such tiles, columns 0-63 and 64-127: along, the fifth k is the
 * first of the second tile; down with N = 128, the descriptor has the offset from the first tile
 * to the second. Rows of up to 32 elements lie in tiles whose last columns are zeros: a product
 * leaves these out by fewer k or N = 32.
 *
 * Shared memory is accessed through two proxies: ordinary loads and stores, and the copy engine
 * and tensor cores ("async"). Data that is stored and then read by a product needs async_fence()
 * by the storing threads, then a barrier. Include this only in files compiled for sm_90a
 * (cmake/cuda.cmake).
 */
#ifndef OPS_CUDA_HOPPER_CUH
#define OPS_CUDA_HOPPER_CUH
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>
#include "ops/cuda/common/hopper_descriptor.cuh"
#include "ops/cuda/common/powers.cuh"

namespace hopper
{

__device__ inline uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* --- mbarriers ------------------------------------------------------------------------------ */

/* A phase ends after `arrivals` arrivals and as many bytes as they announced. */
__device__ inline void barrier_init(uint32_t barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

/* Call after barrier_init, before a block barrier: makes the barriers visible to the copy engine.
 */
__device__ inline void barrier_init_done()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* Orders what this thread did before what waiting threads do next. Where all threads of a warp
 * read or wrote with ordinary instructions, each must arrive; for tiles that only products and
 * copies touch, one thread arrives for its warp. */
__device__ inline void barrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Arrives and announces the bytes that copies will bring. */
__device__ inline void barrier_expect(uint32_t barrier, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

/* Waits until the phase of this parity has ended (parity 1 has ended for a fresh barrier). */
__device__ inline void barrier_wait(uint32_t barrier, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* Steps through the buffers, with the parity of the current pass. */
template <int STAGES> struct ring {
    int stage = 0;
    uint32_t parity = 0;
    __device__ inline void step()
    {
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
};

/* --- copies --------------------------------------------------------------------------------- */

/* A position in (B, T, heads, D): a column of a head, a row of a sequence. */
struct spot {
    int column, head, row, sequence;
};

/* Loads a box of a matrix: 64 columns from `column` on, or 32 floats. Outside of the matrix are
 * zeros.
 */
__device__ inline void load_box(uint32_t to, const CUtensorMap *map, int column, int row,
                                uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(column), "r"(row)
                 : "memory");
}

/* The same, to both blocks of a cluster of two, and to the barriers of both. */
__device__ inline void load_box_for_both(uint32_t to, const CUtensorMap *map, int column, int row,
                                         uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(column), "r"(row), "h"((uint16_t)3)
                 : "memory");
}

/* Stores a box, in the calling thread's current group of stores. What is outside is left out. */
__device__ inline void store_box(const CUtensorMap *map, int column, int row, uint32_t from)
{
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], "
                 "[%1];" ::"l"(map),
                 "r"(from), "r"(column), "r"(row)
                 : "memory");
}

/* Loads the box of the tensor map that starts at `at`. Rows and columns outside the sequence or
 * the head are filled with zeros. */
__device__ inline void load_tile(uint32_t to, const CUtensorMap *map, const spot &at,
                                 uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(at.column), "r"(at.head), "r"(at.row), "r"(at.sequence)
                 : "memory");
}

/* bytes, from and to are multiples of 16. */
__device__ inline void load_bytes(uint32_t to, const void *from, int bytes, uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier)
                 : "memory");
}

/* The same from shared memory, in the calling thread's current group of stores. */
__device__ inline void store_bytes(void *to, uint32_t from, int bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                     __cvta_generic_to_global(to)),
                 "r"(from), "r"(bytes)
                 : "memory");
}

__device__ inline void stores_commit()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Waits until at most N of this thread's groups of stores still read shared memory. */
template <int N> __device__ inline void stores_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}

/* Waits until all of them are in device memory. */
__device__ inline void stores_done()
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

__device__ inline void async_fence()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* Stores or adds two floats in device memory. Those of one thread take effect in program order. */
__device__ inline void put_pair(float *to, float x, float y)
{
    asm volatile("st.relaxed.gpu.global.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x), "f"(y)
                 : "memory");
}

__device__ inline void add_pair(float *to, float x, float y)
{
    asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x), "f"(y)
                 : "memory");
}

/* A word in device memory for signals between blocks. After the load, everything that the storing
 * thread did or had observed before its store is visible. */
__device__ inline uint32_t load_acquire(const uint32_t *from)
{
    uint32_t word;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
    return word;
}

__device__ inline void store_release(uint32_t *to, uint32_t word)
{
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(word) : "memory");
}

/* Stores four 8 x 8 matrices from registers (laid out like a product's D), each transposed:
 * columns become rows of 16 bytes, at the addresses of lanes 0-7, 8-15, 16-23 and 24-31. */
__device__ inline void store_turned(uint32_t row, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(a),
        "r"(b), "r"(c), "r"(d)
        : "memory");
}

/* The same, not transposed. */
__device__ inline void store_matrices(uint32_t row, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
                 "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
}

/* The inverse. */
__device__ inline void load_matrices(uint32_t row, uint32_t (&m)[4])
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(row)
                 : "memory");
}

/* Two floats, aligned to 8 bytes. */
__device__ inline float2 load_pair(uint32_t from)
{
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(from) : "memory");
    return x;
}

__device__ inline void store_pair(uint32_t to, float2 x)
{
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(x.x), "f"(x.y) : "memory");
}

/* --- clusters of blocks --------------------------------------------------------------------- */

__device__ inline uint32_t rank_in_cluster()
{
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ inline void cluster_meet()
{
    __syncwarp();
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

/* Arrives at the barrier of this address in block `rank` of the cluster. */
__device__ inline void barrier_arrive_at(uint32_t barrier, uint32_t rank)
{
    asm volatile("{\n"
                 ".reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
                 "}" ::"r"(barrier),
                 "r"(rank)
                 : "memory");
}

/* --- a block's warpgroups ------------------------------------------------------------------- */

/* Releases registers, or claims them, to have N per thread. Must be the first thing a warpgroup's
 * branch does. */
template <int N> __device__ inline void fewer_registers()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> __device__ inline void more_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

/* A barrier of the two warpgroups that compute. */
__device__ inline void consumers_meet()
{
    asm volatile("bar.sync 1, 256;" ::: "memory");
}

/* A barrier of one warp. */
__device__ inline void warp_meet()
{
    __syncwarp();
}

/* Warpgroups take turns. A turn, one of the barriers 2 .. 5, begins when the 128 threads of
 * another warpgroup have passed it on. */
__device__ inline void turn_wait(int turn)
{
    asm volatile("bar.sync %0, 256;" ::"r"(turn) : "memory");
}

__device__ inline void turn_pass(int turn)
{
    asm volatile("bar.arrive %0, 256;" ::"r"(turn) : "memory");
}

/* A value that is equal in all lanes, where the compiler cannot see it: descriptors made of it
 * need no per-lane registers. */
__device__ inline int uniform(int x)
{
    return __shfl_sync(0xffffffffu, x, 0);
}

/* --- products ------------------------------------------------------------------------------- */

/* Call before the first product after ordinary code has written registers that it uses. */
__device__ inline void products_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ inline void products_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until at most N of the committed groups are still running. */
template <int N> __device__ inline void products_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* A compiler barrier for these registers. */
template <int N> __device__ inline void hold(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

template <int N> __device__ inline void hold(uint32_t (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+r"(d[i])::"memory");
}

#define HOPPER_8(d, i)                                                                          \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define HOPPER_16(d, i)     HOPPER_8(d, i), HOPPER_8(d, i + 8)
#define HOPPER_32(d, i)     HOPPER_16(d, i), HOPPER_16(d, i + 16)
#define HOPPER_REGISTERS_16 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}"
#define HOPPER_REGISTERS_32                                                                   \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23," \
    "%24,%25,%26,%27,%28,%29,%30,%31}"
#define HOPPER_REGISTERS_64                                                                    \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"  \
    "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45," \
    "%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}"

template <typename T> constexpr bool is_bf16 = false;
template <> constexpr bool is_bf16<__nv_bfloat16> = true;

/* A product of T with 64 rows and `columns` columns. `d`, `ab` and `add` are its operand numbers;
 * `turned` says which of a and b run down (b alone where a is in registers); the rest lists the
 * operands. */
#define HOPPER_PRODUCT_OF(type, columns, d, ab, add, turned, ...)                               \
    asm volatile("{\n"                                                                          \
                 ".reg .pred add;\n"                                                            \
                 "setp.ne.b32 add, " add ", 0;\n"                                               \
                 "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type " " d "," \
                 " " ab ", add, 1, 1, " turned ";\n"                                            \
                 "}"                                                                            \
                 : __VA_ARGS__)
#define HOPPER_PRODUCT(...)                     \
    if constexpr (is_bf16<T>)                   \
        HOPPER_PRODUCT_OF("bf16", __VA_ARGS__); \
    else                                        \
        HOPPER_PRODUCT_OF("f16", __VA_ARGS__)
#define HOPPER_FOUR(a) "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])

/* d (64, 128) = a b^T, or += with `add`: both tiles along. */
template <typename T>
__device__ inline void product_along(float (&d)[64], uint64_t a, uint64_t b, int add)
{
    HOPPER_PRODUCT("128", HOPPER_REGISTERS_64, "%64, %65", "%66", "0, 0", HOPPER_32(d, 0),
                   HOPPER_32(d, 32)
                   : "l"(a), "l"(b), "r"(add));
}

/* d (64, 64) = a b^T, or +=: both tiles along. */
template <typename T>
__device__ inline void product_along(float (&d)[32], uint64_t a, uint64_t b, int add)
{
    HOPPER_PRODUCT("64", HOPPER_REGISTERS_32, "%32, %33", "%34", "0, 0", HOPPER_32(d, 0)
                   : "l"(a), "l"(b), "r"(add));
}

/* d (64, 64) = a b, or +=: a along, b down. */
template <typename T>
__device__ inline void product_down(float (&d)[32], uint64_t a, uint64_t b, int add)
{
    HOPPER_PRODUCT("64", HOPPER_REGISTERS_32, "%32, %33", "%34", "0, 1", HOPPER_32(d, 0)
                   : "l"(a), "l"(b), "r"(add));
}

/* d (64, 32) = a b, or +=: a along, b down. */
template <typename T>
__device__ inline void product_down(float (&d)[16], uint64_t a, uint64_t b, int add)
{
    HOPPER_PRODUCT("32", HOPPER_REGISTERS_16, "%16, %17", "%18", "0, 1", HOPPER_16(d, 0)
                   : "l"(a), "l"(b), "r"(add));
}

/* d (64, 32) = a b, or +=: a in registers, b down. */
template <typename T>
__device__ inline void product_down(float (&d)[16], const uint32_t *a, uint64_t b, int add)
{
    HOPPER_PRODUCT("32", HOPPER_REGISTERS_16, "{%16, %17, %18, %19}, %20", "%21", "1",
                   HOPPER_16(d, 0)
                   : HOPPER_FOUR(a), "l"(b), "r"(add));
}

/* d (64, 64) = a b, or +=: a in registers, b down. */
template <typename T>
__device__ inline void product_down(float (&d)[32], const uint32_t *a, uint64_t b, int add)
{
    HOPPER_PRODUCT("64", HOPPER_REGISTERS_32, "{%32, %33, %34, %35}, %36", "%37", "1",
                   HOPPER_32(d, 0)
                   : HOPPER_FOUR(a), "l"(b), "r"(add));
}

/* d (64, 128) = a b, or +=: a in registers, b down, two tiles. */
template <typename T>
__device__ inline void product_down(float (&d)[64], const uint32_t *a, uint64_t b, int add)
{
    HOPPER_PRODUCT("128", HOPPER_REGISTERS_64, "{%64, %65, %66, %67}, %68", "%69", "1",
                   HOPPER_32(d, 0), HOPPER_32(d, 32)
                   : HOPPER_FOUR(a), "l"(b), "r"(add));
}

/* d (64, 128) = a b, or +=: a along, b down, two tiles. */
template <typename T>
__device__ inline void product_down(float (&d)[64], uint64_t a, uint64_t b, int add)
{
    HOPPER_PRODUCT("128", HOPPER_REGISTERS_64, "%64, %65", "%66", "0, 1", HOPPER_32(d, 0),
                   HOPPER_32(d, 32)
                   : "l"(a), "l"(b), "r"(add));
}

/* d (64, 128) = a b, or +=: both down, a of one tile, b of two. */
template <typename T>
__device__ inline void product_turned(float (&d)[64], uint64_t a, uint64_t b, int add)
{
    HOPPER_PRODUCT("128", HOPPER_REGISTERS_64, "%64, %65", "%66", "1, 1", HOPPER_32(d, 0),
                   HOPPER_32(d, 32)
                   : "l"(a), "l"(b), "r"(add));
}

/* Two floats in a register, the first in the low half; and back. */
template <typename T> __device__ inline uint32_t packed(float low, float high)
{
    uint32_t both;
    if constexpr (is_bf16<T>)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

template <typename T> __device__ inline float2 unpacked(uint32_t both)
{
    if constexpr (is_bf16<T>)
        return {__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000u)};
    else
        return __half22float2(*reinterpret_cast<__half2 *>(&both));
}

} // namespace hopper

#endif
