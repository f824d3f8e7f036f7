/* cuda_cached_one -- attention of one new position over a cache of keys and values, as in
 * decoding.
 *
 * Only the length of the chain of waits matters here. A warp holds all keys and values of a round
 * of 32 positions in registers, 16 bytes of a row per lane: in a recording (follow.cuh) those of
 * the past are loaded while the previous kernel is still running, and q is the only thing to wait
 * for. The warps of a block combine their results in shared memory. The parts of a long past are
 * spread over several blocks, which combine them in device memory (cuda_cached.cuh).
 *
 * The new position's key and value come from qkv. The first head of a group writes them to the
 * cache, where nothing reads them before the next launch.
 */
#include "ops/cuda/attention/cuda_cached.cuh"

namespace
{

using namespace cached;

/* A row is LANES_A_ROW units of 16 bytes; the keys and values of a round take eight times as many
 * registers per thread. */
template <int LANES_A_ROW> constexpr int WARPS = LANES_A_ROW <= 8 ? 16 : 8;

/* What a warp has accumulated of a query's past, acc in units of exp(largest). */
template <typename T> struct found {
    float largest = -INFINITY, sum = 0, acc[PACK<T>] = {};
};

/* A round's keys and values: a lane holds its 16 bytes of every ROWS-th of 32 rows. */
template <typename T, int LANES_A_ROW> struct held {
    static constexpr int N = PACK<T>, ROWS = WARP / LANES_A_ROW, TIMES = LANES_A_ROW;
    pack<T> keys[TIMES], values[TIMES];

    /* Loads rows from `first` on that are before `end`, bypassing L1, which may be stale. */
    __device__ inline void load(const T *key, const T *value, int64_t stride, int first, int end,
                                int lane)
    {
#pragma unroll
        for (int k = 0; k < TIMES; k++) {
            int row = first + k * ROWS + lane / LANES_A_ROW;
            uint4 a = {}, b = {};
            if (row < end) {
                a = __ldcg(reinterpret_cast<const uint4 *>(key + row * stride));
                b = __ldcg(reinterpret_cast<const uint4 *>(value + row * stride));
            }
            keys[k] = {{a.x, a.y, a.z, a.w}};
            values[k] = {{b.x, b.y, b.z, b.w}};
        }
    }

    __device__ inline void put(int first, int row, const pack<T> &key, const pack<T> &value,
                               int lane)
    {
#pragma unroll
        for (int k = 0; k < TIMES; k++) {
            if (first + k * ROWS + lane / LANES_A_ROW != row)
                continue;
            keys[k] = key;
            values[k] = value;
        }
    }

    /* Accumulates the rows before `end`, at least one. */
    __device__ inline void meet(const float (&q)[N], attend::scoring how, int first, int end,
                                int lane, found<T> &f)
    {
        float scores[TIMES], largest = f.largest;
#pragma unroll
        for (int k = 0; k < TIMES; k++) {
            float x[N], sum = 0;
            widen(keys[k], x);
#pragma unroll
            for (int i = 0; i < N; i++)
                sum = fma_(q[i], x[i], sum);
#pragma unroll
            for (int apart = 1; apart < LANES_A_ROW; apart *= 2)
                sum = add(sum, __shfl_xor_sync(ALL_LANES, sum, apart));
            scores[k] = first + k * ROWS + lane / LANES_A_ROW < end ? attend::score_of(how, sum)
                                                                    : -INFINITY;
            largest = fmaxf(largest, scores[k]);
        }
#pragma unroll
        for (int apart = LANES_A_ROW; apart < WARP; apart *= 2)
            largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, apart));
        float fade = expf(sub(f.largest, largest));
        f.largest = largest;
        f.sum = mul(f.sum, fade);
#pragma unroll
        for (int i = 0; i < N; i++)
            f.acc[i] = mul(f.acc[i], fade);
#pragma unroll
        for (int k = 0; k < TIMES; k++) {
            float x[N], weight = expf(sub(scores[k], largest));
            widen(values[k], x);
            f.sum = add(f.sum, weight);
#pragma unroll
            for (int i = 0; i < N; i++)
                f.acc[i] = fma_(weight, x[i], f.acc[i]);
        }
    }
};

/* Adds over the lanes that hold the same columns of other rows; each then has the total. */
template <typename T, int LANES_A_ROW> __device__ inline void join_lanes(found<T> &f)
{
#pragma unroll
    for (int apart = LANES_A_ROW; apart < WARP; apart *= 2) {
        f.sum = add(f.sum, __shfl_xor_sync(ALL_LANES, f.sum, apart));
#pragma unroll
        for (int i = 0; i < PACK<T>; i++)
            f.acc[i] = add(f.acc[i], __shfl_xor_sync(ALL_LANES, f.acc[i], apart));
    }
}

template <typename T, int LANES_A_ROW>
__global__ void __launch_bounds__(WARPS<LANES_A_ROW> *WARP)
    one(place p, kernel_past past_, const T *qkv, T *cache_k, T *cache_v, T *out, float *scratch,
        unsigned *arrived)
{
    constexpr int N = PACK<T>, WIDTH = LANES_A_ROW * N, COUNT = WARPS<LANES_A_ROW>;
    __shared__ float tops[COUNT], sums[COUNT], accs[COUNT][WIDTH];
    follow_let();
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, chunk = lane % LANES_A_ROW * N;
    const int query = blockIdx.x / p.blocks, block = blockIdx.x % p.blocks;
    const int h = query % p.heads, b = query / p.heads, past = (int)past_of(past_);
    const int base = first_seen(p, past);
    const cut cut = cut_of(p, past + 1 - base, COUNT);
    const int mine = block * COUNT + warp, first = base + min(mine, cut.parts) * cut.part;
    const int last = min(first + cut.part, past + 1), known = min(last, past);

    const int64_t at = b * p.room * p.kv_row + h / p.group * WIDTH + chunk;
    held<T, LANES_A_ROW> held;
    held.load(cache_k + at, cache_v + at, p.kv_row, first, known, lane);
    follow_wait();
    if (block >= cut.blocks)
        return;
    if (mine < cut.parts) {
        const T *from = qkv + b * p.row + chunk, *key = from + (p.heads + h / p.group) * WIDTH;
        found<T> f;
        pack<T> new_key = {}, new_value = {};
        float q[N];
        widen(load(from + h * WIDTH), q);
        if (known < last) {
            new_key = load(key);
            new_value = load(key + p.kv_row);
            if (h % p.group == 0 && lane < LANES_A_ROW) {
                store(cache_k + at + past * p.kv_row, new_key);
                store(cache_v + at + past * p.kv_row, new_value);
            }
        }
        for (int row = first; row < last; row += WARP) {
            if (row > first)
                held.load(cache_k + at, cache_v + at, p.kv_row, row, known, lane);
            if (known < last)
                held.put(row, past, new_key, new_value, lane);
            held.meet(q, p.how, row, last, lane, f);
        }
        join_lanes<T, LANES_A_ROW>(f);
        if (lane == 0) {
            tops[warp] = f.largest;
            sums[warp] = f.sum;
        }
        if (lane < LANES_A_ROW) {
#pragma unroll
            for (int i = 0; i < N; i++)
                accs[warp][chunk + i] = f.acc[i];
        }
    }
    __syncthreads();

    const int parts = min(COUNT, cut.parts - block * COUNT);
    float *to = scratch + (query * p.blocks + block) * (WIDTH + 2);
    if (threadIdx.x < WIDTH) {
        float largest = tops[0], sum = 0, acc = 0;
        for (int i = 1; i < parts; i++)
            largest = fmaxf(largest, tops[i]);
        for (int i = 0; i < parts; i++) {
            float factor = expf(sub(tops[i], largest));
            sum = fma_(sums[i], factor, sum);
            acc = fma_(accs[i][threadIdx.x], factor, acc);
        }
        if (cut.blocks == 1)
            narrow(__fdiv_rn(acc, sum), out + query * WIDTH + threadIdx.x);
        else
            to[2 + threadIdx.x] = acc;
        if (threadIdx.x == 0 && cut.blocks > 1) {
            to[0] = largest;
            to[1] = sum;
        }
    }
    if (cut.blocks > 1 && comes_last(arrived + query, cut.blocks))
        put_together(scratch + query * p.blocks * (WIDTH + 2), cut.blocks, WIDTH,
                     out + query * WIDTH);
}

template <typename T, int LANES_A_ROW, typename... R>
cudaError_t run(struct cuda_heads a, kernel_past past, int64_t room, cudaStream_t stream, R... rest)
{
    const int warps = WARPS<LANES_A_ROW>;
    place p = place_of(a, room, warps);
    if (room > INT32_MAX)
        return cudaErrorInvalidConfiguration;
    return follow(one<T, LANES_A_ROW>, a.batch * a.heads * p.blocks, warps * WARP, 0, stream, p,
                  past, rest...);
}

int lanes_a_row(int type, int64_t width)
{
    return (int)(width * (type == DTYPE_F32 ? 4 : 2) / 16);
}

} // namespace

bool cached::takes_one(int type, struct cuda_heads a, bool wide)
{
    int lanes = lanes_a_row(type, a.width);
    return a.tokens == 1 && wide && (lanes == 4 || lanes == 8 || lanes == 16) &&
           a.batch * a.heads <= PARTS / 2;
}

cudaError_t cached::attend_one(int type, struct cuda_heads a, kernel_past past, int64_t room,
                               const void *qkv, void *cache_k, void *cache_v, void *out,
                               float *scratch, unsigned *arrived, cudaStream_t stream)
{
    return with_type((enum dtype)type, [=](auto zero) {
        using T = decltype(zero);
        int lanes = lanes_a_row(type, a.width);
#define RUN(count) \
    run<T, count>(a, past, room, stream, qkv, cache_k, cache_v, out, scratch, arrived)
        return lanes == 4 ? RUN(4) : lanes == 8 ? RUN(8) : RUN(16);
#undef RUN
    });
}
