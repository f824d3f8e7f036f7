/* matrix_attend -- causal attention by products of one warp (matrix.cuh): tiles in shared memory,
 * and what a warp does with them. The kernels are in matrix_forward.cuh and matrix_backward.cuh.
 *
 * A block keeps some rows (queries or keys, 16 per warp) and streams the rows of the other side,
 * STEP at a time, while the next are being loaded. A warp has products (16, STEP) of its rows in
 * registers, turns them into powers or slopes there, and uses them in that layout as the first
 * factor of the next product:
 *
 *     along   c (16, STEP)  += rows (16, D) others^T     both factors from shared memory
 *     down    c (16, D)     += x (16, STEP) others       the first from registers
 *
 * Rows of a tile are WIDTH elements plus 16 bytes, so that eight rows that are read at once do not
 * share banks. Missing tokens and columns are zeros.
 *
 * Floats are rounded to TF32 once, in shared memory, by the thread that loaded them. In `down` a
 * lane reads four consecutive floats of a row, so the columns of its products have an order of
 * their own (column_of).
 *
 * Tiles, and so the order of every sum, depend only on the type and the head width.
 */
#ifndef OPS_CUDA_MATRIX_ATTEND_CUH
#define OPS_CUDA_MATRIX_ATTEND_CUH
#include <math.h>
#include "ops/cuda/attention/matrix.cuh"

namespace matrix
{

struct problem { /* strides in elements */
    int tokens, heads, kv_heads, group;
    int width;       /* valid columns */
    int sequences;   /* of the batch */
    int64_t row;     /* of qkv: (H + 2G) D */
    int64_t out_row; /* H D */
    int window;      /* keys that a query sees, at most */
    float scale;
    float from_cap, to_cap; /* with a cap: scale / cap and its inverse */
    bool chunks;            /* all rows consist of 16-byte units */
};

const float LOG2_E = 1.44269504088896340736f, LN_2 = 0.693147180559945309417f;

/* --- sizes ---------------------------------------------------------------------------------- */

struct shape {
    int warps, step, stages;
};

/* Sizes that fit into the shared memory of every GPU: 99 KiB per block. */
constexpr shape forward_shape(int bytes, int width)
{
    if (bytes == 4)
        return width <= 64    ? shape{8, 32, 2}
               : width == 128 ? shape{4, 32, 2}
               : width == 192 ? shape{4, 16, 2}
                              : shape{4, 16, 1};
    return width <= 64 ? shape{8, 64, 2} : shape{4, 32, 2};
}

constexpr shape backward_shape(int bytes, int width)
{
    if (bytes == 4)
        return width <= 64    ? shape{4, 32, 2}
               : width == 128 ? shape{4, 32, 1}
               : width == 192 ? shape{2, 32, 1}
                              : shape{2, 16, 1};
    return width <= 128 ? shape{4, 32, 2} : shape{4, 32, 1};
}

/* CAPPED: scores are capped. */
template <typename T, int W, bool BACKWARD, bool CAPPED> struct way {
    using element = T;
    static const bool CAP = CAPPED;
    static constexpr shape SHAPE =
        BACKWARD ? backward_shape(sizeof(T), W) : forward_shape(sizeof(T), W);
    static const int WIDTH = W;
    static const int THREADS = 32 * SHAPE.warps;
    static const int ROWS = 16 * SHAPE.warps; /* rows that the block keeps */
    static const int STEP = SHAPE.step;       /* rows that are streamed at a time */
    static const int STAGES = SHAPE.stages;
    static const int BLOCKS =
        BACKWARD && W <= 64 ? 3 : 2;          /* blocks per multiprocessor, by registers */
    static const int KEPT = BACKWARD ? 2 : 1; /* matrices that the block keeps */
    static const int CHUNK = 16 / sizeof(T);  /* elements in 16 bytes */
    static const int STRIDE = W + CHUNK;
    static const int TILES = STEP / 8;        /* accumulators of (16, 8) in (16, STEP) */
    static const int COLUMNS = W / 8;         /* and in (16, D) */
    static const int ALONG = W / (2 * CHUNK); /* steps of the products */
    static const int DOWN = STEP / (2 * CHUNK);
};

template <class W> struct memory {
    typename W::element kept[W::KEPT][W::ROWS][W::STRIDE];
    typename W::element passing[W::STAGES][2][W::STEP][W::STRIDE];
};

/* --- tiles ---------------------------------------------------------------------------------- */

template <typename T> __device__ inline T zero_of()
{
    return T(0.0f);
}

/* Copies a tile, of which `rows` rows are valid, to shared memory. */
template <class W, int ROWS, typename T>
__device__ inline void bring(T (&to)[ROWS][W::STRIDE], const T *from, int64_t stride, int rows,
                             const problem &p)
{
    const int chunks = W::WIDTH / W::CHUNK;
    for (int i = threadIdx.x; i < ROWS * chunks; i += W::THREADS) {
        const int r = i / chunks, c = i % chunks * W::CHUNK;
        if (p.chunks) {
            const bool there = r < rows && c < p.width;
            copy_16(&to[r][c], there ? from + r * stride + c : from, there);
        } else {
            for (int k = 0; k < W::CHUNK; k++)
                to[r][c + k] =
                    r < rows && c + k < p.width ? from[r * stride + c + k] : zero_of<T>();
        }
    }
}

/* Rounds what the calling thread has loaded. */
template <class W, int ROWS, typename T> __device__ inline void settle(T (&x)[ROWS][W::STRIDE])
{
    if constexpr (sizeof(T) == 4) {
        const int chunks = W::WIDTH / W::CHUNK;
        for (int i = threadIdx.x; i < ROWS * chunks; i += W::THREADS) {
            float4 *at = reinterpret_cast<float4 *>(&x[i / chunks][i % chunks * W::CHUNK]);
            const float4 v = *at;
            *at = make_float4(rounded_tf32(v.x), rounded_tf32(v.y), rounded_tf32(v.z),
                              rounded_tf32(v.w));
        }
    }
}

/* Steps 0 .. steps - 1: bring_step(i, stage) starts loading one, settle_step(i, stage) rounds it
 * once it has arrived, work(i, stage) uses it in shared memory. */
template <class W, typename Bring, typename Settle, typename Work>
__device__ inline void pass_by(int steps, Bring bring_step, Settle settle_step, Work work)
{
    bring_step(0, 0);
    for (int i = 0; i < steps; i++) {
        const int stage = W::STAGES == 1 ? 0 : i % 2;
        copies_wait();
        settle_step(i, stage);
        __syncthreads();
        if (W::STAGES == 2 && i + 1 < steps)
            bring_step(i + 1, 1 - stage);
        work(i, stage);
        if (W::STAGES == 1 && i + 1 < steps) {
            __syncthreads();
            bring_step(i + 1, 0);
        }
    }
}

/* --- products ------------------------------------------------------------------------------- */

__device__ inline int lane_of()
{
    return threadIdx.x % 32;
}

/* One step of the 16 rows of a warp. */
template <class W, typename T>
__device__ inline void load_rows(uint32_t (&to)[4], const T *rows, int step)
{
    const int lane = lane_of();
    load_blocks(to, reinterpret_cast<const char *>(rows + lane % 16 * W::STRIDE) + lane / 16 * 16 +
                        32 * step);
}

/* c (16, 8 N) += rows others^T, one step. */
template <class W, int N, typename T>
__device__ inline void step_along(float (&c)[N][4], const uint32_t (&a)[4], const T *others,
                                  int step)
{
    const int lane = lane_of();
    const char *at =
        reinterpret_cast<const char *>(others + (lane / 16 * 8 + lane % 8) * W::STRIDE) +
        lane / 8 % 2 * 16 + 32 * step;
#pragma unroll
    for (int n = 0; n < N / 2; n++) {
        uint32_t b[4];
        load_blocks(b, at + n * 16 * W::STRIDE * sizeof(T));
        multiply<T>(c[2 * n], a, b[0], b[1]);
        multiply<T>(c[2 * n + 1], a, b[2], b[3]);
    }
}

template <class W, int N, typename T>
__device__ inline void along(float (&c)[N][4], const T *rows, const T *others)
{
#pragma unroll
    for (int k = 0; k < W::ALONG; k++) {
        uint32_t a[4];
        load_rows<W>(a, rows, k);
        step_along<W>(c, a, others, k);
    }
}

/* The second factors of 32 columns and one step of rows. For floats, rows 2 (l % 4) and the next
 * are what the lane has of its first factor, in this order. */
template <class W, typename T>
__device__ inline void load_down(uint32_t (&b)[4][2], const T *others, int lane)
{
    if constexpr (sizeof(T) == 4) {
        const T *at = others + lane % 4 * 2 * W::STRIDE + lane / 4 * 4;
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const uint4 v = *reinterpret_cast<const uint4 *>(at + k * W::STRIDE);
            b[0][k] = v.x;
            b[1][k] = v.y;
            b[2][k] = v.z;
            b[3][k] = v.w;
        }
    } else {
#pragma unroll
        for (int n = 0; n < 4; n += 2) {
            uint32_t x[4];
            load_blocks_turned(x, others + lane % 16 * W::STRIDE + lane / 16 * 8 + 8 * n);
            b[n][0] = x[0];
            b[n][1] = x[1];
            b[n + 1][0] = x[2];
            b[n + 1][1] = x[3];
        }
    }
}

/* c (16, D) += x (16, STEP) others */
template <class W, typename T>
__device__ inline void down(float (&c)[W::COLUMNS][4], const uint32_t (&x)[W::DOWN][4],
                            const T *others)
{
    const int lane = lane_of();
#pragma unroll
    for (int k = 0; k < W::DOWN; k++)
#pragma unroll
        for (int n = 0; n < W::COLUMNS; n += 4) {
            uint32_t b[4][2];
            load_down<W>(b, others + k * 2 * W::CHUNK * W::STRIDE + 8 * n, lane);
#pragma unroll
            for (int j = 0; j < 4; j++)
                multiply<T>(c[n + j], x[k], b[j][0], b[j][1]);
        }
}

/* Rounds accumulators to a first factor of `down`. */
template <class W>
__device__ inline void as_factor(uint32_t (&x)[W::DOWN][4], const float (&c)[W::TILES][4])
{
    using T = typename W::element;
#pragma unroll
    for (int k = 0; k < W::DOWN; k++) {
        if constexpr (sizeof(T) == 4) {
            x[k][0] = __float_as_uint(rounded_tf32(c[k][0]));
            x[k][1] = __float_as_uint(rounded_tf32(c[k][2]));
            x[k][2] = __float_as_uint(rounded_tf32(c[k][1]));
            x[k][3] = __float_as_uint(rounded_tf32(c[k][3]));
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++)
                x[k][i] = packed<T>(c[2 * k + i / 2][i % 2 * 2], c[2 * k + i / 2][i % 2 * 2 + 1]);
        }
    }
}

/* --- accumulators --------------------------------------------------------------------------- */

template <int N> __device__ inline void clear(float (&c)[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            c[n][i] = 0;
}

/* The column of accumulator i of tile n of a result of `down`. */
template <typename T> __device__ inline int column_of(int n, int i, int lane)
{
    return sizeof(T) == 4 ? n / 4 * 32 + lane % 4 * 8 + i % 2 * 4 + n % 4
                          : n * 8 + lane % 4 * 2 + i % 2;
}

/* Writes the first `rows` rows of a result of `down`, each multiplied by a number. */
template <class W, typename T>
__device__ inline void leave(T *to, int64_t stride, int rows, const problem &p,
                             const float (&c)[W::COLUMNS][4], const float (&by)[2])
{
    const int lane = lane_of();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int r = lane / 4 + 8 * h;
        if (r >= rows)
            continue;
        T *row = to + r * stride;
        if (!p.chunks) {
#pragma unroll
            for (int n = 0; n < W::COLUMNS; n++)
#pragma unroll
                for (int i = 2 * h; i < 2 * h + 2; i++)
                    if (column_of<T>(n, i, lane) < p.width)
                        row[column_of<T>(n, i, lane)] = T(__fmul_rn(c[n][i], by[h]));
        } else if constexpr (sizeof(T) == 4) {
#pragma unroll
            for (int n = 0; n < W::COLUMNS; n += 4)
#pragma unroll
                for (int i = 2 * h; i < 2 * h + 2; i++)
                    if (column_of<T>(n, i, lane) < p.width)
                        *reinterpret_cast<float4 *>(row + column_of<T>(n, i, lane)) = make_float4(
                            __fmul_rn(c[n][i], by[h]), __fmul_rn(c[n + 1][i], by[h]),
                            __fmul_rn(c[n + 2][i], by[h]), __fmul_rn(c[n + 3][i], by[h]));
        } else {
#pragma unroll
            for (int n = 0; n < W::COLUMNS; n++)
                if (8 * n < p.width)
                    *reinterpret_cast<uint32_t *>(row + column_of<T>(n, 0, lane)) =
                        packed<T>(__fmul_rn(c[n][2 * h], by[h]), __fmul_rn(c[n][2 * h + 1], by[h]));
        }
    }
}

/* tanh(scale s / cap): the capped score as a fraction of the cap. Times to_cap it is again what is
 * to be scaled. */
__device__ inline float fraction_of_cap(const problem &p, float s)
{
    return tanhf(__fmul_rn(s, p.from_cap));
}

/* --- heads ---------------------------------------------------------------------------------- */

/* Which tile of which head a block has: the longest of all heads first. */
struct item {
    int tile, head, sequence;
};

__device__ inline item item_of(int tiles, int heads, int sequences, bool last_first)
{
    const int each = heads * sequences, at = (int)blockIdx.x % each;
    const int tile = (int)blockIdx.x / each;
    return {last_first ? tiles - 1 - tile : tile, at % heads, at / heads};
}

__host__ __device__ inline int tiles_of(int tokens, int rows)
{
    return (tokens + rows - 1) / rows;
}

/* The first key that a query sees. */
__device__ inline int first_key(const problem &p, int query)
{
    return query >= p.window ? query - p.window + 1 : 0;
}

} // namespace matrix

#endif
