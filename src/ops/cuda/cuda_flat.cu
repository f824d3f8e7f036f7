/* cuda_flat -- arithmetic on flat ranges: casts, sums of squares, the search for what is not
 * finite, AdamW.
 *
 * All of it is bound by memory. Bytes an element: cast the two sizes, square_sums and
 * find_nonfinite one, AdamW 24 and the sizes of gradient and copy. An element's bits do not depend
 * on where it lies or on the grid: a part that is not whole goes through the same arithmetic.
 */
#include <float.h>
#include <type_traits>
#include "ops/cuda/vector.cuh"

enum { THREADS = 256 };

/* --- cast: rounded to nearest even, once; a NaN becomes the card's NaN ------------------------ */

/* From f64 to 16 bits through f32 rounded to odd, so that the second rounding sees on which side of
 * a tie the value was. */
static __device__ inline float narrow_odd(double x)
{
    float toward_zero = __double2float_rz(x);
    if ((double)toward_zero == x)
        return toward_zero;
    return __uint_as_float(__float_as_uint(toward_zero) | 1u);
}

template <typename To, typename From> static __device__ inline void convert(From x, To *to)
{
    narrow(widen(x), to);
}
template <typename From> static __device__ inline void convert(From x, double *to)
{
    *to = widen(x);
}
template <typename To> static __device__ inline void convert(double x, To *to)
{
    narrow(narrow_odd(x), to);
}
static __device__ inline void convert(double x, float *to)
{
    *to = __double2float_rn(x);
}

/* N values of T, read and written at once. */
template <typename T, int N> struct alignas(sizeof(T) * N) lump {
    T v[N];
};

/* Values at once: 16 bytes of the larger type; and how many times that a thread has in flight. */
template <typename To, typename From>
constexpr int LUMP = 16 / (int)(sizeof(To) > sizeof(From) ? sizeof(To) : sizeof(From));
template <typename To, typename From> constexpr int CAST_DEPTH = LUMP<To, From> > 2 ? 4 : 2;

template <typename To, typename From>
__global__ void __launch_bounds__(THREADS, 4)
    cast(int64_t count, bool wide, const From *__restrict__ src, To *__restrict__ dst)
{
    constexpr int N = LUMP<To, From>, DEPTH = CAST_DEPTH<To, From>;
    int64_t first = ((int64_t)blockIdx.x * DEPTH * THREADS + threadIdx.x) * N;
    lump<From, N> from[DEPTH];
#pragma unroll
    for (int k = 0; k < DEPTH; k++) {
        int64_t i = first + (int64_t)k * THREADS * N;
        if (wide && i + N <= count)
            from[k] = *reinterpret_cast<const lump<From, N> *>(src + i);
    }
#pragma unroll
    for (int k = 0; k < DEPTH; k++) {
        int64_t i = first + (int64_t)k * THREADS * N;
        if (wide && i + N <= count) {
            lump<To, N> to;
#pragma unroll
            for (int j = 0; j < N; j++)
                convert(from[k].v[j], &to.v[j]);
            *reinterpret_cast<lump<To, N> *>(dst + i) = to;
        } else {
            for (int64_t j = i; j < min(i + N, count); j++)
                convert(src[j], &dst[j]);
        }
    }
}

template <typename To, typename From>
static cudaError_t cast_in(cudaStream_t stream, const void *src, void *dst, int64_t count)
{
    if constexpr (std::is_same_v<To, From>) {
        return cudaMemcpyAsync(dst, src, (size_t)count * sizeof(To), cudaMemcpyDeviceToDevice,
                               stream);
    } else {
        int64_t per_block = (int64_t)CAST_DEPTH<To, From> * THREADS * LUMP<To, From>;
        unsigned blocks = (unsigned)div_up(count, per_block);
        bool wide = is_wide(src) && is_wide(dst);
        cast<To, From><<<blocks, THREADS, 0, stream>>>(count, wide, (const From *)src, (To *)dst);
        return cudaGetLastError();
    }
}

template <typename From>
static cudaError_t cast_from(cudaStream_t stream, void *dst, enum dtype dst_type, const void *src,
                             int64_t count)
{
    switch (dst_type) {
    case DTYPE_F32: return cast_in<float, From>(stream, src, dst, count);
    case DTYPE_BF16: return cast_in<__nv_bfloat16, From>(stream, src, dst, count);
    case DTYPE_F16: return cast_in<__half, From>(stream, src, dst, count);
    case DTYPE_F64: return cast_in<double, From>(stream, src, dst, count);
    default: return cudaErrorInvalidValue;
    }
}

cudaError_t launch_cast(cudaStream_t stream, void *dst, enum dtype dst_type, const void *src,
                        enum dtype src_type, int64_t count)
{
    switch (src_type) {
    case DTYPE_F32: return cast_from<float>(stream, dst, dst_type, src, count);
    case DTYPE_BF16: return cast_from<__nv_bfloat16>(stream, dst, dst_type, src, count);
    case DTYPE_F16: return cast_from<__half>(stream, dst, dst_type, src, count);
    case DTYPE_F64: return cast_from<double>(stream, dst, dst_type, src, count);
    default: return cudaErrorInvalidValue;
    }
}

/* --- sums of squares --------------------------------------------------------------------------
 *
 * One launch for up to RANGES ranges, whose table is an argument. Four elements are summed in
 * order, then sixteen such sums as a tree: in a thread as far as a pack goes, so that the bits do
 * not depend on the type. */

enum { RANGES = 32, SQUARES_DEPTH = 4 };

struct range_table {
    kernel_range range[RANGES];
    unsigned end[RANGES]; /* blocks of ranges 0 .. i */
};

static __device__ inline double squares_of_four(const float *f)
{
    double sum = 0;
#pragma unroll
    for (int j = 0; j < 4; j++)
        sum = __fma_rn((double)f[j], (double)f[j], sum);
    return sum;
}

template <typename T>
__global__ void __launch_bounds__(THREADS) square_sums(const __grid_constant__ range_table table)
{
    constexpr int N = PACK<T>, PARTS = 64 / N, DEPTH = SQUARES_DEPTH;
    int i = 0;
    while (blockIdx.x >= table.end[i])
        i++;
    const T *x = (const T *)table.range[i].x;
    int64_t count = table.range[i].count;
    int64_t block = blockIdx.x - (i > 0 ? table.end[i - 1] : 0);
    int64_t first = (block * DEPTH * THREADS + threadIdx.x) * N;
    bool wide = (uintptr_t)x % 16 == 0;
    pack<T> p[DEPTH];
#pragma unroll
    for (int k = 0; k < DEPTH; k++) {
        int64_t at = first + (int64_t)k * THREADS * N;
        p[k] = load_some(x + at, count - at, wide);
    }
#pragma unroll
    for (int k = 0; k < DEPTH; k++) {
        int64_t at = first + (int64_t)k * THREADS * N;
        float f[N];
        widen(p[k], f);
        double sum = squares_of_four(f);
        if constexpr (N == 8)
            sum += squares_of_four(f + 4);
#pragma unroll
        for (int apart = 1; apart < PARTS; apart *= 2)
            sum += __shfl_xor_sync(ALL_LANES, sum, apart);
        if (threadIdx.x % PARTS == 0 && at < count)
            table.range[i].sums[at / 64] = sum;
    }
}

/* The ranges from `from` on that one launch takes, empty ones left out; how many were seen. */
template <typename T>
static int fill_table(const struct kernel_range *ranges, int count, range_table *table,
                      unsigned *blocks)
{
    int seen = 0, taken = 0;
    *blocks = 0;
    for (; seen < count && taken < RANGES; seen++) {
        if (ranges[seen].count == 0)
            continue;
        *blocks += (unsigned)div_up(ranges[seen].count, (int64_t)SQUARES_DEPTH * THREADS * PACK<T>);
        table->range[taken] = ranges[seen];
        table->end[taken++] = *blocks;
    }
    return seen;
}

cudaError_t launch_square_sums(cudaStream_t stream, enum dtype type,
                               const struct kernel_range *ranges, int range_count)
{
    return with_type(type, [=](auto zero) {
        using T = decltype(zero);
        cudaError_t error = cudaSuccess;
        for (int done = 0; done < range_count && error == cudaSuccess;) {
            range_table table;
            unsigned blocks;
            done += fill_table<T>(ranges + done, range_count - done, &table, &blocks);
            if (blocks > 0)
                square_sums<T><<<blocks, THREADS, 0, stream>>>(table);
            error = cudaGetLastError();
        }
        return error;
    });
}

/* --- not finite ----------------------------------------------------------------------------------
 *
 * -1 is the largest unsigned number: *first starts there and only falls. */

template <typename T>
__global__ void __launch_bounds__(THREADS)
    find_nonfinite(int64_t count, bool wide, const T *x, unsigned long long *first)
{
    constexpr int N = PACK<T>, DEPTH = 4;
    int64_t begin = ((int64_t)blockIdx.x * DEPTH * THREADS + threadIdx.x) * N, found = count;
    pack<T> p[DEPTH];
#pragma unroll
    for (int k = 0; k < DEPTH; k++) {
        int64_t i = begin + (int64_t)k * THREADS * N;
        p[k] = load_some(x + i, count - i, wide);
    }
#pragma unroll
    for (int k = DEPTH - 1; k >= 0; k--) {
        float f[N];
        widen(p[k], f);
#pragma unroll
        for (int j = N - 1; j >= 0; j--)
            if (!(fabsf(f[j]) <= FLT_MAX))
                found = begin + (int64_t)k * THREADS * N + j;
    }
    if (found < count && (unsigned long long)found < *(volatile unsigned long long *)first)
        atomicMin(first, (unsigned long long)found);
}

cudaError_t launch_find_nonfinite(cudaStream_t stream, enum dtype type, const void *x,
                                  int64_t count, int64_t *first)
{
    cudaError_t error = cudaMemsetAsync(first, 0xff, sizeof *first, stream);
    if (error != cudaSuccess || count == 0)
        return error;
    return with_type(type, [=](auto zero) {
        using T = decltype(zero);
        unsigned blocks = (unsigned)div_up(count, 4 * THREADS * PACK<T>);
        find_nonfinite<T><<<blocks, THREADS, 0, stream>>>(count, is_wide(x), (const T *)x,
                                                          (unsigned long long *)first);
        return cudaGetLastError();
    });
}

/* --- AdamW --------------------------------------------------------------------------------------
 *
 * One launch for all segments, whose counts only the device knows. Segments are cut into tiles; a
 * fixed number of blocks takes the tiles in turn, 1024 segments at a time. Each block sums the
 * segments' tiles in shared memory and finds the segment of a tile by bisection. */

enum {
    ADAMW_DEPTH = 2,
    ADAMW_TILE = ADAMW_DEPTH * THREADS * 4,
    ADAMW_BLOCKS = 132 * 8,
    SEGMENTS_EACH = 4, /* a thread */
    SEGMENTS = SEGMENTS_EACH * THREADS
};

/* What a step makes of hyper-parameters, scalars and one segment's factors. */
struct update {
    kernel_adamw hyper;
    float grad_scale, correction1, correction2, lr, decay;
};

static __device__ inline void step(const update &u, float grad, float *p, float *m, float *v)
{
    const kernel_adamw &h = u.hyper;
    float g = mul(grad, u.grad_scale);
    *m = add(mul(h.beta1, *m), mul(h.rest1, g));
    *v = add(mul(h.beta2, *v), mul(h.rest2, mul(g, g)));
    float root = __fsqrt_rn(__fdiv_rn(*v, u.correction2));
    float direction = __fdiv_rn(__fdiv_rn(*m, u.correction1), add(root, h.eps));
    *p = sub(*p, mul(u.lr, add(direction, mul(u.decay, *p))));
}

template <typename T>
static __device__ inline void store_four(T *copy, const lump<T, 4> &to, int64_t n, bool wide)
{
    if (wide && n >= 4) {
        *reinterpret_cast<lump<T, 4> *>(copy) = to;
        return;
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
        if (j < n)
            copy[j] = to.v[j];
}

template <typename T>
static __device__ inline void store_copy(T *copy, const float (&p)[4], int64_t n, bool wide)
{
    lump<T, 4> to;
#pragma unroll
    for (int j = 0; j < 4; j++)
        convert(p[j], &to.v[j]);
    store_four(copy, to, n, wide);
}

static __device__ inline void store_nearest(const kernel_segment &s, int64_t i, const float (&p)[4],
                                            int64_t n, bool wide)
{
    switch (s.copy_type) {
    case DTYPE_BF16: store_copy((__nv_bfloat16 *)s.copy + i, p, n, wide); break;
    case DTYPE_F16: store_copy((__half *)s.copy + i, p, n, wide); break;
    case DTYPE_F32: store_copy((float *)s.copy + i, p, n, wide); break;
    default: store_copy((double *)s.copy + i, p, n, false); break;
    }
}

/* The block of random words of base/rng.c. */
static __device__ inline uint4 random_block(uint64_t key, uint64_t block, uint64_t turn)
{
    uint4 x = {(unsigned)block, (unsigned)(block >> 32), (unsigned)turn, (unsigned)(turn >> 32)};
    unsigned k0 = (unsigned)key, k1 = (unsigned)(key >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xd2511f53u * x.x, p1 = (uint64_t)0xcd9e8d57u * x.z;
        x = {(unsigned)(p1 >> 32) ^ x.y ^ k0, (unsigned)p1, (unsigned)(p0 >> 32) ^ x.w ^ k1,
             (unsigned)p0};
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return x;
}

/* The words of elements i .. i + 3 of a segment. They are one block's where the elements follow each
 * other in the whole tensor from a multiple of four on; otherwise blocks are made as they come. */
static __device__ inline void random_four(const kernel_place &place, int64_t number, int64_t i,
                                          unsigned (&words)[4])
{
    int64_t in_run = place.first + i, start = place.start, at[4];
    if (in_run >= place.run) {
        start += in_run / place.run * place.apart;
        in_run %= place.run;
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
        at[j] = start + in_run;
        if (++in_run == place.run) {
            start += place.apart;
            in_run = 0;
        }
    }
    int64_t block = at[0] / 4, next;
    do {
        uint4 x = random_block(place.key, (uint64_t)block, (uint64_t)number);
        next = -1;
#pragma unroll
        for (int j = 3; j >= 0; j--) {
            unsigned low = at[j] & 1 ? x.y : x.x, high = at[j] & 1 ? x.w : x.z;
            if (at[j] / 4 == block)
                words[j] = at[j] & 2 ? high : low;
            if (at[j] / 4 > block)
                next = at[j] / 4;
        }
        block = next;
    } while (next >= 0);
}

/* f32_to_bf16_random and f32_to_f16_random of base/dtype.c */
static __device__ inline uint16_t round_bf16(float f, unsigned random)
{
    unsigned bits = __float_as_uint(f), a = bits & 0x7fffffffu;
    unsigned added = a >= 0x7f7f0000u ? 0x7fffu + (bits >> 16 & 1u) : random >> 16;
    return (uint16_t)(a > 0x7f800000u ? bits >> 16 | 0x0040u : (bits + added) >> 16);
}

static __device__ inline uint16_t round_f16(float f, unsigned random)
{
    unsigned bits = __float_as_uint(f), sign = bits >> 16 & 0x8000u, a = bits & 0x7fffffffu;
    unsigned added = a >= 0x477fe000u ? 0xfffu + (a >> 13 & 1u) : random >> 19;
    unsigned h = (a - 0x38000000u + added) >> 13;
    if (a < 0x38800000u)
        h = ((unsigned)mul(__uint_as_float(a), 0x1p44f) + (random >> 12)) >> 20;
    if (a >= 0x477ff000u)
        h = a > 0x7f800000u ? 0x7e00u | (a >> 13 & 0x3ffu) : 0x7c00u;
    return (uint16_t)(sign | h);
}

static __device__ inline void store_random(const kernel_segment &s, const kernel_place &place,
                                           int64_t number, int64_t i, const float (&p)[4],
                                           int64_t n, bool wide)
{
    unsigned words[4];
    lump<uint16_t, 4> to;
    random_four(place, number, i, words);
#pragma unroll
    for (int j = 0; j < 4; j++)
        to.v[j] =
            s.copy_type == DTYPE_BF16 ? round_bf16(p[j], words[j]) : round_f16(p[j], words[j]);
    store_four((uint16_t *)s.copy + i, to, n, wide);
}

/* The first n of four elements, zeros after them. */
template <typename T>
static __device__ inline lump<T, 4> load_four(const T *from, int64_t n, bool wide)
{
    if (wide && n >= 4)
        return *reinterpret_cast<const lump<T, 4> *>(from);
    lump<T, 4> four;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        if (j < n)
            four.v[j] = from[j];
        else
            narrow(0.0f, &four.v[j]);
    }
    return four;
}

/* Elements first .. first + ADAMW_TILE - 1 of a segment whose gradient is of G, as far as there are
 * so many. */
template <typename G, bool Random>
static __device__ inline void update_tile(const update &u, const kernel_segment &s,
                                          const kernel_place *place, int64_t tile)
{
    bool wide = ((uintptr_t)s.param | (uintptr_t)s.grad | (uintptr_t)s.m | (uintptr_t)s.v |
                 (uintptr_t)s.copy) %
                    16 ==
                0;
    int64_t first = tile * ADAMW_TILE + threadIdx.x * 4;
    pack<float> p[ADAMW_DEPTH], m[ADAMW_DEPTH], v[ADAMW_DEPTH];
    lump<G, 4> g[ADAMW_DEPTH];
#pragma unroll
    for (int k = 0; k < ADAMW_DEPTH; k++) {
        int64_t i = first + k * THREADS * 4, n = s.count - i;
        p[k] = load_some(s.param + i, n, wide);
        g[k] = load_four((const G *)s.grad + i, n, wide);
        m[k] = load_some(s.m + i, n, wide);
        v[k] = load_some(s.v + i, n, wide);
    }
#pragma unroll
    for (int k = 0; k < ADAMW_DEPTH; k++) {
        int64_t i = first + k * THREADS * 4, n = s.count - i;
        float fp[4], fm[4], fv[4];
        widen(p[k], fp);
        widen(m[k], fm);
        widen(v[k], fv);
#pragma unroll
        for (int j = 0; j < 4; j++)
            step(u, widen(g[k].v[j]), &fp[j], &fm[j], &fv[j]);
        store_some(s.param + i, narrow<float>(fp), n, wide);
        store_some(s.m + i, narrow<float>(fm), n, wide);
        store_some(s.v + i, narrow<float>(fv), n, wide);
        if (!s.copy)
            continue;
        if (Random && (s.copy_type == DTYPE_BF16 || s.copy_type == DTYPE_F16))
            store_random(s, *place, u.hyper.update, i, fp, n, wide);
        else
            store_nearest(s, i, fp, n, wide);
    }
}

/* ends[i] = tiles of segments 0 .. i; returns those of all `count`. */
static __device__ inline int64_t sum_tiles(const kernel_segment *segments, int count, int64_t *ends)
{
    __shared__ int64_t warps[THREADS / WARP];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int64_t mine[SEGMENTS_EACH], sum = 0, before = 0, all = 0;
#pragma unroll
    for (int k = 0; k < SEGMENTS_EACH; k++) {
        int i = threadIdx.x * SEGMENTS_EACH + k;
        sum += i < count ? (segments[i].count + ADAMW_TILE - 1) / ADAMW_TILE : 0;
        mine[k] = sum;
    }
#pragma unroll
    for (int apart = 1; apart < WARP; apart *= 2) {
        int64_t left = __shfl_up_sync(ALL_LANES, sum, apart);
        sum += lane >= apart ? left : 0;
    }
    if (lane == WARP - 1)
        warps[warp] = sum;
    __syncthreads();
    for (int w = 0; w < THREADS / WARP; w++) {
        before += w < warp ? warps[w] : 0;
        all += warps[w];
    }
    before += sum - mine[SEGMENTS_EACH - 1];
#pragma unroll
    for (int k = 0; k < SEGMENTS_EACH; k++)
        ends[threadIdx.x * SEGMENTS_EACH + k] = before + mine[k];
    __syncthreads();
    return all;
}

/* The first i with ends[i] > tile. */
static __device__ inline int find_segment(const int64_t *ends, int count, int64_t tile)
{
    int low = 0, high = count - 1;
    while (low < high) {
        int middle = (low + high) / 2;
        if (ends[middle] > tile)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Random: copies of 16 bits are rounded at random, by `places`; a kernel of its own, so that the
 * other has neither its registers nor its branches. */
template <bool Random>
__global__ void __launch_bounds__(THREADS)
    adamw(kernel_adamw hyper, const kernel_scalars *scalars, const kernel_segment *segments,
          const kernel_place *places, int segment_count)
{
    __shared__ int64_t ends[SEGMENTS];
    kernel_scalars now = *scalars;
    int64_t turn =
        blockIdx.x; /* this block's next tile, counted from the first of these segments */
    for (int first = 0; first < segment_count; first += SEGMENTS) {
        int count = min((int)SEGMENTS, segment_count - first);
        int64_t tiles = sum_tiles(segments + first, count, ends);
        for (; turn < tiles; turn += gridDim.x) {
            int i = find_segment(ends, count, turn);
            kernel_segment s = segments[first + i];
            update u = {hyper,           now.grad_scale,        now.correction1,
                        now.correction2, mul(now.lr, s.lr_mul), s.decay};
            int64_t tile = turn - (i > 0 ? ends[i - 1] : 0);
            const kernel_place *place = Random ? &places[first + i] : nullptr;
            switch (s.grad_type) {
            case DTYPE_BF16: update_tile<__nv_bfloat16, Random>(u, s, place, tile); break;
            case DTYPE_F16: update_tile<__half, Random>(u, s, place, tile); break;
            default: update_tile<float, Random>(u, s, place, tile); break;
            }
        }
        turn -= tiles;
        __syncthreads();
    }
}

cudaError_t launch_adamw(cudaStream_t stream, struct kernel_adamw hyper,
                         const struct kernel_scalars *scalars,
                         const struct kernel_segment *segments, const struct kernel_place *places,
                         int segment_count)
{
    auto kernel = places ? adamw<true> : adamw<false>;
    kernel<<<ADAMW_BLOCKS, THREADS, 0, stream>>>(hyper, scalars, segments, places, segment_count);
    return cudaGetLastError();
}
