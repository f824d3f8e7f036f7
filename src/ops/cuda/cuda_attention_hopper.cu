/* cuda_attention_hopper -- attention's backward pass for cards of compute capability 9.0: heads of
 * width 64, 16-bit types, lengths that 128 divides. The same bits in every run, without atomics whose
 * order is open and without the T x T matrix in memory.
 *
 * Three launches: statistics of the rows (dout . out, and lse in powers of two); the pass itself, a
 * block a processor (hopper_attend.cuh, in the order of hopper_tiles.cuh); and, when some items were
 * cut, their dq from its parts.
 *
 * What is cut depends on the shape alone, as if every card had 132 processors: so do the bits. On
 * another number the work is only less even.
 *
 * This file is compiled for sm_90a alone (cmake/cuda.cmake): wgmma and setmaxnreg are nowhere else.
 */
#include <math.h>
#include "base/dtype.h"
#include "ops/cuda/cuda_attention.h"
#include "ops/cuda/hopper_attend.cuh"

namespace
{

using namespace hopper;

/* --- before and after ----------------------------------------------------------------------- */

/* A block for a tile of a head, eight lanes a row. */
template <typename T>
__global__ void __launch_bounds__(256) statistics(int tiles, int heads, const T *out, const T *dout,
                                                  const float *lse, float *sums, float *powers)
{
    const int tile = blockIdx.x % tiles, head = blockIdx.x / tiles % heads;
    const int64_t batch = blockIdx.x / tiles / heads, tokens = (int64_t)tiles * TILE;
    const int64_t first = (batch * heads + head) * tokens + tile * TILE;
    const int lane = threadIdx.x % 8;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = i * 32 + threadIdx.x / 8;
        const int64_t at = ((batch * tokens + tile * TILE + row) * heads + head) * WIDTH + lane * 8;
        const uint4 a = *reinterpret_cast<const uint4 *>(out + at);
        const uint4 b = *reinterpret_cast<const uint4 *>(dout + at);
        const uint32_t x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
        float sum = 0;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float2 u = unpacked<T>(x[j]), v = unpacked<T>(y[j]);
            sum = __fmaf_rn(u.y, v.y, __fmaf_rn(u.x, v.x, sum));
        }
        for (int step = 4; step; step /= 2)
            sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, step));
        if (lane == 0) {
            sums[first + stat_place(row)] = -sum;
            powers[first + stat_place(row)] = __fmul_rn(lse[first + row], LOG2_E);
        }
    }
}

/* dq of a cut item: a block adds the parts of a tile, in the order of the keys. */
template <typename T>
__global__ void __launch_bounds__(CONSUMERS)
    gather_parts(const __grid_constant__ problem p, T *dqkv)
{
    __shared__ __align__(128) char stage[CONSUMERS / 32][16 * 128];
    const int tile = blockIdx.x, head = blockIdx.y, rest = blockIdx.z;
    const int batch = (p.whole + rest) / p.kv_heads, kv_head = (p.whole + rest) % p.kv_heads;
    const place me = place_of(threadIdx.x);
    float dq[32], part[32];
    for (int key = 0; key <= tile; key++) {
        int64_t at = p.slots + (int64_t)key * p.rest + rest;
        at = ((at * p.group + head) * p.tiles + tile) * (TILE * WIDTH);
        take_sum(part, p.dq + at + sum_offset(me));
#pragma unroll
        for (int i = 0; i < 32; i++)
            dq[i] = key ? __fadd_rn(dq[i], part[i]) : part[i];
    }
    const int64_t width = (int64_t)(p.heads + 2 * p.kv_heads) * WIDTH;
    T *to = dqkv + ((int64_t)batch * p.tiles + tile) * TILE * width +
            (kv_head * p.group + head) * WIDTH;
    write_rows(to, width, dq, p.scale, stage[threadIdx.x / 32], me);
}

/* --- who does what -------------------------------------------------------------------------- */

const int64_t PROCESSORS = 132; /* of an H100 or H200 */

struct shares {
    int64_t tiles, group;
    int64_t items, whole, rest; /* items = whole + rest, the rest cut */
    int64_t place_bytes;        /* of a place for dq */
};

/* Tiles of the busiest block when `rest` items are cut: a tile of keys a job, the longest first. */
int64_t longest_cut(int64_t rest, int64_t tiles)
{
    int64_t sum = 0;
    for (int64_t job = 0; job < rest * tiles; job += PROCESSORS)
        sum += tiles - job / rest;
    return sum;
}

/* The last round is cut when that saves a quarter of it or more, and takes no more memory than so. */
shares shares_of(struct cuda_heads a)
{
    const int64_t MOST = (int64_t)256 << 20;
    shares s = {a.tokens / TILE, a.heads / a.kv_heads, a.batch * a.kv_heads};
    s.place_bytes = s.group * a.tokens * WIDTH * (int64_t)sizeof(float);
    s.rest = s.items % PROCESSORS;
    if (4 * longest_cut(s.rest, s.tiles) > 3 * s.tiles * (s.tiles + 1) / 2 ||
        s.rest * s.tiles * s.place_bytes > MOST)
        s.rest = 0;
    s.whole = s.items - s.rest;
    return s;
}

int64_t statistic_count(struct cuda_heads a)
{
    return a.batch * a.heads * a.tokens;
}

/* --- launching ------------------------------------------------------------------------------ */

typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                              const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                              const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                              CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* The driver's maker of tensor maps, without linking to the driver. */
cudaError_t find_encode(encode_fn *encode)
{
    void *entry = nullptr;
    cudaDriverEntryPointQueryResult found;
    cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                                         cudaEnableDefault, &found);
    *encode = (encode_fn)entry;
    return error != cudaSuccess || found == cudaDriverEntryPointSuccess ? error
                                                                        : cudaErrorSymbolNotFound;
}

/* (rows, width), to be read in tiles of 128 rows and 64 columns. */
template <typename T>
cudaError_t map_tiles(encode_fn encode, const void *base, int64_t rows, int64_t width,
                      CUtensorMap *map)
{
    const cuuint64_t sizes[2] = {(cuuint64_t)width, (cuuint64_t)rows};
    const cuuint64_t strides[1] = {(cuuint64_t)width * sizeof(T)};
    const cuuint32_t box[2] = {WIDTH, TILE}, steps[2] = {1, 1};
    CUresult result =
        encode(map, is_bf16<T> ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
               2, const_cast<void *>(base), sizes, strides, box, steps,
               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

template <typename T>
cudaError_t run(struct cuda_heads a, const void *qkv, const void *out, const float *lse,
                const void *dout, void *dqkv, float *scratch, int processors, cudaStream_t stream)
{
    const shares s = shares_of(a);
    const int64_t rows = a.batch * a.tokens, jobs = s.whole + s.rest * s.tiles;
    const int64_t most = processors < PROCESSORS ? processors : PROCESSORS;
    const unsigned blocks = (unsigned)(jobs < most ? jobs : most);
    float *sums = scratch, *powers = sums + statistic_count(a);
    problem p = {};
    p.tiles = (int)s.tiles;
    p.heads = (int)a.heads;
    p.kv_heads = (int)a.kv_heads;
    p.group = (int)s.group;
    p.whole = (int)s.whole;
    p.rest = (int)s.rest;
    p.jobs = (int)jobs;
    p.slots = (int)(s.whole < most ? s.whole : most);
    p.scale = (float)(1 / sqrt((double)WIDTH));
    p.lse = powers;
    p.sums = sums;
    p.dq = powers + statistic_count(a);

    encode_fn encode;
    CUtensorMap qkv_map, dout_map;
    cudaError_t error = find_encode(&encode);
    if (error == cudaSuccess)
        error = map_tiles<T>(encode, qkv, rows, (a.heads + 2 * a.kv_heads) * WIDTH, &qkv_map);
    if (error == cudaSuccess)
        error = map_tiles<T>(encode, dout, rows, a.heads * WIDTH, &dout_map);
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(
            attend_backward<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(memory));
    if (error != cudaSuccess)
        return error;
    statistics<T><<<(unsigned)(a.batch * a.heads * s.tiles), 256, 0, stream>>>(
        p.tiles, p.heads, (const T *)out, (const T *)dout, lse, sums, powers);
    attend_backward<T>
        <<<blocks, THREADS, sizeof(memory), stream>>>(qkv_map, dout_map, p, (T *)dqkv);
    if (s.rest)
        gather_parts<T><<<dim3((unsigned)s.tiles, (unsigned)s.group, (unsigned)s.rest), CONSUMERS,
                          0, stream>>>(p, (T *)dqkv);
    return cudaGetLastError();
}

} // namespace

/* Few long items that are not cut leave so much of the card idle that cuDNN is faster. */
bool cuda_attend_hopper_takes(int type, struct cuda_heads a)
{
    if ((type != DTYPE_BF16 && type != DTYPE_F16) || a.width != WIDTH || a.tokens % TILE ||
        statistic_count(a) > INT32_MAX)
        return false;
    const shares s = shares_of(a);
    return s.rest > 0 || s.items >= PROCESSORS * 2 / 3 || s.tiles <= 2;
}

size_t cuda_attend_hopper_scratch(struct cuda_heads a)
{
    const shares s = shares_of(a);
    const int64_t slots = s.whole < PROCESSORS ? s.whole : PROCESSORS;
    return (size_t)(2 * statistic_count(a)) * sizeof(float) +
           (size_t)((slots + s.rest * s.tiles) * s.place_bytes);
}

cudaError_t cuda_attend_backward_hopper(int type, struct cuda_heads a, const void *qkv,
                                        const void *out, const float *lse, const void *dout,
                                        void *dqkv, float *scratch, int processors,
                                        cudaStream_t stream)
{
    return type == DTYPE_BF16
               ? run<__nv_bfloat16>(a, qkv, out, lse, dout, dqkv, scratch, processors, stream)
               : run<__half>(a, qkv, out, lse, dout, dqkv, scratch, processors, stream);
}
