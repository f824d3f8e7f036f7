/* cuda_pointwise -- element-wise ops: sums, activations, rotary embedding.
 *
 * All are memory-bound: every input byte is read once and every output byte written once (add: 3
 * tensors; gelu 2, its gradient 3; swiglu 3/2 of gate_up, its gradient 5/2, or 6/2 when it
 * recomputes y; rope twice the query and key columns). A thread has several packs in flight before
 * it uses the first. A partial pack uses the same arithmetic and skips its missing elements on
 * load and store, so an element's bits do not depend on its position.
 */
#include "ops/cuda/common/follow.cuh"
#include "ops/cuda/common/vector.cuh"

enum { THREADS = 256 };

/* --- flat: out[i] = f(a[i], b[i]) ------------------------------------------------------------- */

struct sum_of_two {
    template <typename T> static __device__ float of(float a, float b)
    {
        return add(a, b);
    }
};

struct gelu_of {
    template <typename T> static __device__ float of(float x, float)
    {
        return gelu_value<T>(x);
    }
};

struct gelu_slope_of {
    template <typename T> static __device__ float of(float x, float dy)
    {
        return gelu_slope<T>(x, dy);
    }
};

/* The exact form: x Phi(x), and its slope Phi(x) + x phi(x) */
static __device__ inline float normal_share(float x)
{
    return mul(0.5f, add(1.0f, erff(mul(x, 0.70710678118654752440f))));
}

struct gelu_exact_of {
    template <typename T> static __device__ float of(float x, float)
    {
        return mul(x, normal_share(x));
    }
};

struct gelu_exact_slope_of {
    template <typename T> static __device__ float of(float x, float dy)
    {
        float bell = mul(expf(mul(mul(-0.5f, x), x)), 0.39894228040143267794f);
        return mul(dy, fma_(x, bell, normal_share(x)));
    }
};

template <typename Op, int INPUTS, typename T>
__global__ void __launch_bounds__(THREADS)
    map(int64_t count, bool wide, const T *a, const T *b, T *out)
{
    constexpr int N = PACK<T>, DEPTH = INPUTS == 1 ? 4 : 2;
    int64_t first = ((int64_t)blockIdx.x * DEPTH * THREADS + threadIdx.x) * N;
    pack<T> pa[DEPTH], pb[DEPTH];
#pragma unroll
    for (int k = 0; k < DEPTH; k++) {
        int64_t i = first + (int64_t)k * THREADS * N;
        pa[k] = load_some(a + i, count - i, wide);
        if constexpr (INPUTS == 2)
            pb[k] = load_some(b + i, count - i, wide);
    }
#pragma unroll
    for (int k = 0; k < DEPTH; k++) {
        int64_t i = first + (int64_t)k * THREADS * N;
        float fa[N], fb[N], fo[N];
        widen(pa[k], fa);
        if constexpr (INPUTS == 2)
            widen(pb[k], fb);
#pragma unroll
        for (int j = 0; j < N; j++)
            fo[j] = Op::template of<T>(fa[j], INPUTS == 2 ? fb[j] : 0.0f);
        store_some(out + i, narrow<T>(fo), count - i, wide);
    }
}

template <typename Op, int INPUTS>
static cudaError_t launch_map(cudaStream_t stream, enum dtype type, int64_t count, const void *a,
                              const void *b, void *out)
{
    return with_type(type, [=](auto zero) {
        using T = decltype(zero);
        int64_t per_block = (INPUTS == 1 ? 4 : 2) * THREADS * PACK<T>;
        unsigned blocks = (unsigned)div_up(count, per_block);
        bool wide = is_wide(a) && is_wide(b) && is_wide(out);
        map<Op, INPUTS, T>
            <<<blocks, THREADS, 0, stream>>>(count, wide, (const T *)a, (const T *)b, (T *)out);
        return cudaGetLastError();
    });
}

cudaError_t launch_add(cudaStream_t stream, enum dtype type, int64_t count, const void *a,
                       const void *b, void *sum)
{
    return launch_map<sum_of_two, 2>(stream, type, count, a, b, sum);
}

cudaError_t launch_gelu(cudaStream_t stream, enum dtype type, int64_t count, const void *pre,
                        void *y)
{
    return launch_map<gelu_of, 1>(stream, type, count, pre, NULL, y);
}

cudaError_t launch_gelu_backward(cudaStream_t stream, enum dtype type, int64_t count,
                                 const void *pre, const void *dy, void *dpre)
{
    return launch_map<gelu_slope_of, 2>(stream, type, count, pre, dy, dpre);
}

cudaError_t launch_gelu_exact(cudaStream_t stream, enum dtype type, int64_t count, const void *pre,
                              void *y)
{
    return launch_map<gelu_exact_of, 1>(stream, type, count, pre, NULL, y);
}

cudaError_t launch_gelu_exact_backward(cudaStream_t stream, enum dtype type, int64_t count,
                                       const void *pre, const void *dy, void *dpre)
{
    return launch_map<gelu_exact_slope_of, 2>(stream, type, count, pre, dy, dpre);
}

/* --- swiglu and geglu: one block per row ------------------------------------------------------ */

template <typename T, bool GELU>
__global__ void __launch_bounds__(THREADS)
    swiglu(int64_t ff, bool wide, const T *__restrict__ gate_up /* (R, 2F) */,
           T *__restrict__ y /* (R, F) */)
{
    constexpr int N = PACK<T>;
    const T *gate = gate_up + (int64_t)blockIdx.x * 2 * ff, *up = gate + ff;
    T *to = y + (int64_t)blockIdx.x * ff;
    follow_let();
    follow_wait();
#pragma unroll 4
    for (int64_t c = (int64_t)threadIdx.x * N; c < ff; c += (int64_t)blockDim.x * N) {
        float g[N], u[N];
        widen(load_some(gate + c, ff - c, wide), g);
        widen(load_some(up + c, ff - c, wide), u);
#pragma unroll
        for (int j = 0; j < N; j++)
            u[j] = GELU ? mul(gelu_value<T>(g[j]), u[j])
                        : swiglu_value(g[j], u[j], silu_parts_of<T>(g[j]));
        store_some(to + c, narrow<T>(u), ff - c, wide);
    }
}

template <typename T, bool GELU>
__global__ void __launch_bounds__(THREADS)
    swiglu_backward(int64_t ff, bool wide, const T *gate_up, const T *dy, T *dgate_up, T *act)
{
    constexpr int N = PACK<T>;
    int64_t row = (int64_t)blockIdx.x * 2 * ff;
    const T *gate = gate_up + row, *up = gate + ff, *from = dy + (int64_t)blockIdx.x * ff;
    T *dgate = dgate_up + row, *dup = dgate + ff;
    T *again = act ? act + (int64_t)blockIdx.x * ff : NULL;
#pragma unroll 2
    for (int64_t c = (int64_t)threadIdx.x * N; c < ff; c += (int64_t)blockDim.x * N) {
        float g[N], u[N], d[N];
        widen(load_some(gate + c, ff - c, wide), g);
        widen(load_some(up + c, ff - c, wide), u);
        widen(load_some(from + c, ff - c, wide), d);
#pragma unroll
        for (int j = 0; j < N; j++) {
            if constexpr (GELU) {
                float value = gelu_value<T>(g[j]), d_up = mul(d[j], value);
                g[j] = gelu_slope_of::of<T>(g[j], mul(d[j], u[j]));
                d[j] = mul(value, u[j]);
                u[j] = d_up;
                continue;
            }
            const silu_parts<T> parts = silu_parts_of<T>(g[j]);
            const float gate = g[j], up = u[j], dy = d[j];
            g[j] = swiglu_gate_slope(gate, up, dy, parts);
            u[j] = swiglu_up_slope(gate, dy, parts);
            d[j] = swiglu_value(gate, up, parts);
        }
        store_some(dgate + c, narrow<T>(g), ff - c, wide);
        store_some(dup + c, narrow<T>(u), ff - c, wide);
        if (again)
            store_some(again + c, narrow<T>(d), ff - c, wide);
    }
}

template <bool GELU>
static cudaError_t launch_gate(cudaStream_t stream, enum dtype type, int64_t rows, int64_t ff,
                               const void *gate_up, void *y)
{
    return with_type(type, [=](auto zero) {
        using T = decltype(zero);
        bool wide = ff % PACK<T> == 0 && is_wide(gate_up) && is_wide(y);
        return follow(swiglu<T, GELU>, rows, row_threads(div_up(ff, PACK<T>)), 0, stream, ff, wide,
                      gate_up, y);
    });
}

template <bool GELU>
static cudaError_t launch_gate_backward(cudaStream_t stream, enum dtype type, int64_t rows,
                                        int64_t ff, const void *gate_up, const void *dy,
                                        void *dgate_up, void *act)
{
    return with_type(type, [=](auto zero) {
        using T = decltype(zero);
        bool wide = ff % PACK<T> == 0 && is_wide(gate_up) && is_wide(dy) && is_wide(dgate_up) &&
                    is_wide(act);
        unsigned blocks = (unsigned)rows, threads = row_threads(div_up(ff, PACK<T>));
        swiglu_backward<T, GELU><<<blocks, threads, 0, stream>>>(
            ff, wide, (const T *)gate_up, (const T *)dy, (T *)dgate_up, (T *)act);
        return cudaGetLastError();
    });
}

cudaError_t launch_swiglu(cudaStream_t stream, enum dtype type, int64_t rows, int64_t ff,
                          const void *gate_up, void *y)
{
    return launch_gate<false>(stream, type, rows, ff, gate_up, y);
}

cudaError_t launch_swiglu_backward(cudaStream_t stream, enum dtype type, int64_t rows, int64_t ff,
                                   const void *gate_up, const void *dy, void *dgate_up, void *act)
{
    return launch_gate_backward<false>(stream, type, rows, ff, gate_up, dy, dgate_up, act);
}

cudaError_t launch_geglu(cudaStream_t stream, enum dtype type, int64_t rows, int64_t ff,
                         const void *gate_up, void *y)
{
    return launch_gate<true>(stream, type, rows, ff, gate_up, y);
}

cudaError_t launch_geglu_backward(cudaStream_t stream, enum dtype type, int64_t rows, int64_t ff,
                                  const void *gate_up, const void *dy, void *dgate_up, void *act)
{
    return launch_gate_backward<true>(stream, type, rows, ff, gate_up, dy, dgate_up, act);
}

/* --- scale ------------------------------------------------------------------------------------ */

template <typename T>
__global__ void __launch_bounds__(THREADS) scale_all(int64_t count, bool wide, float factor, T *x)
{
    constexpr int N = PACK<T>;
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * N;
    if (i >= count)
        return;
    float f[N];
    widen(load_some(x + i, count - i, wide), f);
#pragma unroll
    for (int j = 0; j < N; j++)
        f[j] = mul(f[j], factor);
    store_some(x + i, narrow<T>(f), count - i, wide);
}

cudaError_t launch_scale(cudaStream_t stream, enum dtype type, int64_t count, float factor, void *x)
{
    return with_type(type, [=](auto zero) {
        using T = decltype(zero);
        unsigned blocks = (unsigned)div_up(count, (int64_t)THREADS * PACK<T>);
        scale_all<T><<<blocks, THREADS, 0, stream>>>(count, is_wide(x), factor, (T *)x);
        return cudaGetLastError();
    });
}

/* --- rope: one block per row, one pack of both halves of a head per thread --------------------
 *
 * If half a head is an odd number of half packs (head width 40 in 16 bit), the second half starts
 * at a multiple of 8 bytes only, and packs are accessed as two halves; if it is an odd number of
 * pairs in 16 bit (head width 100), they are accessed as pairs. BYTES: of one access. */

template <int BYTES, typename T> static __device__ inline pack<T> load_by(const T *from, int n)
{
    if constexpr (BYTES == 8) {
        const uint2 *halves = reinterpret_cast<const uint2 *>(from);
        uint2 low = halves[0], high = n >= PACK<T> ? halves[1] : make_uint2(0, 0);
        return {{low.x, low.y, high.x, high.y}};
    } else if constexpr (BYTES == 4 && sizeof(T) == 2) {
        const uint32_t *pairs = reinterpret_cast<const uint32_t *>(from);
        pack<T> p;
#pragma unroll
        for (int i = 0; i < 4; i++)
            p.word[i] = 2 * i < n ? pairs[i] : 0;
        return p;
    } else {
        return load_some(from, n, BYTES == 16);
    }
}

template <int BYTES, typename T>
static __device__ inline void store_by(T *to, const pack<T> &p, int n)
{
    if constexpr (BYTES == 8) {
        uint2 *halves = reinterpret_cast<uint2 *>(to);
        halves[0] = make_uint2(p.word[0], p.word[1]);
        if (n >= PACK<T>)
            halves[1] = make_uint2(p.word[2], p.word[3]);
    } else if constexpr (BYTES == 4 && sizeof(T) == 2) {
        uint32_t *pairs = reinterpret_cast<uint32_t *>(to);
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (2 * i < n)
                pairs[i] = p.word[i];
    } else {
        store_some(to, p, n, BYTES == 16);
    }
}

template <typename T, int BYTES>
__global__ void __launch_bounds__(THREADS)
    rope(int64_t tokens, int heads, int head_width, int half, int64_t row_width, const float *table,
         kernel_past past, float sign, T *qkv)
{
    constexpr int N = PACK<T>;
    int packs = (half + N - 1) / N; /* of a half */
    follow_let();
    follow_wait();
    const float *turns = table + (past_of(past) + blockIdx.x % tokens) * half * 2; /* (N/2, 2) */
    T *row = qkv + (int64_t)blockIdx.x * row_width;
#pragma unroll 2
    for (int item = threadIdx.x; item < heads * packs; item += blockDim.x) {
        int head = item / packs, at = (item - head * packs) * N, n = half - at;
        T *x = row + (int64_t)head * head_width + at, *y = x + half;
        float a[N], b[N], turn[2 * N];
        widen(load_by<BYTES>(x, n), a);
        widen(load_by<BYTES>(y, n), b);
#pragma unroll
        for (int j = 0; j < 2 * N; j += 4) {
            float four[4];
            widen(load_some(turns + 2 * at + j, 2 * n - j, BYTES > sizeof(T)), four);
#pragma unroll
            for (int k = 0; k < 4; k++)
                turn[j + k] = four[k];
        }
#pragma unroll
        for (int j = 0; j < N; j++) {
            float c = turn[2 * j], s = mul(sign, turn[2 * j + 1]), xj = a[j];
            a[j] = fma_(xj, c, -mul(b[j], s));
            b[j] = fma_(b[j], c, mul(xj, s));
        }
        store_by<BYTES>(x, narrow<T>(a), n);
        store_by<BYTES>(y, narrow<T>(b), n);
    }
}

cudaError_t launch_rope(cudaStream_t stream, enum dtype type, int64_t rows, int64_t tokens,
                        int64_t heads, int64_t head_width, int64_t rotary, int64_t row_width,
                        const float *table, struct kernel_past past, bool inverse, void *qkv)
{
    return with_type(type, [=](auto zero) {
        using T = decltype(zero);
        int64_t half = rotary / 2;
        int64_t half_pack = PACK<T> / 2;
        bool wide = is_wide(table) && is_wide(qkv);
        bool aligned = wide && half % half_pack == 0 && head_width % PACK<T> == 0;
        bool pairs = wide && sizeof(T) == 2 && half % 2 == 0 && head_width % 2 == 0;
        auto *kernel = !aligned              ? pairs ? rope<T, 4> : rope<T, sizeof(T)>
                       : half % PACK<T> == 0 ? rope<T, 16>
                                             : rope<T, 8>;
        return follow(kernel, rows, row_threads(heads * div_up(half, PACK<T>)), 0, stream, tokens,
                      heads, head_width, half, row_width, table, past, inverse ? -1.0f : 1.0f, qkv);
    });
}
