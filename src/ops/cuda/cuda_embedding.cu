/* cuda_embedding -- rows of the token and position tables, and their gradients.
 *
 * The gradient of a table row is the sum of the rows that used it, in row order, in float, rounded
 * once. Rows are first sorted by token (a stable radix sort of their numbers, 8 bits per pass,
 * with a fixed cut into tiles), so that each token has one run of rows:
 *
 *     order    rows, by token, then by row           tokens  7 7 7 9 9 ...
 *     starts   of each token's run in order          starts[v + 1] - starts[v] rows use v
 *
 * Then one block per token adds its run, or writes zeros. A run longer than CHUNK is cut into
 * chunks of CHUNK rows from its start; a block of its own sums each chunk into scratch, and the
 * token's block adds the chunks in order. So a token's bits depend only on its own rows, and a
 * token that fills half of the batch delays no other.
 *
 * A window is CHUNK consecutive entries of order. At most two chunks start in one: one that
 * continues a run from before the window, and the first of a long run, which then reaches beyond
 * the window's end. That gives each chunk a slot without counting: 2 w for the first kind, 2 w + 1
 * for the second.
 *
 * Where the table is part of a larger one, a token outside it gets number V, above all that are
 * inside: it is sorted to the end and ignored.
 *
 * Bytes: forward 2 R C elements; backward R C read for dwte and again for dwpe, V C + P C written.
 */
#include "ops/cuda/common/follow.cuh"
#include "ops/cuda/common/vector.cuh"

enum {
    THREADS = 256,
    DIGITS = 256, /* values of a digit: one for each thread */
    ROUNDS = 4,   /* of THREADS rows, in a tile of the sort */
    TILE = ROUNDS * THREADS,
    SCAN_THREADS = 1024,
    CHUNK = 128,
};

/* A row's token, counted from the table's first; V if the token is not in the table. */
static __device__ inline int32_t id_at(const kernel_ids &ids, int64_t row)
{
    int64_t id = ids.ids[row] - ids.first;
    return (int32_t)(ids.part && (id < 0 || id >= ids.vocab) ? ids.vocab : id);
}

/* --- forward: one block per row --------------------------------------------------------------- */

template <typename T>
__global__ void __launch_bounds__(THREADS)
    gather(int64_t tokens, int64_t width, bool wide, kernel_ids ids, const T *__restrict__ wte,
           const T *__restrict__ wpe, kernel_past past, T *__restrict__ out)
{
    constexpr int N = PACK<T>;
    int64_t row = blockIdx.x, id = id_at(ids, row);
    bool here = id < ids.vocab;
    const T *token = wte + id * width, *position = wpe + (past_of(past) + row % tokens) * width;
    for (int64_t c = (int64_t)threadIdx.x * N; c < width; c += (int64_t)blockDim.x * N) {
        pack<T> x = {};
        if (here)
            x = load_some(token + c, width - c, wide);
        if (wpe) {
            float a[N], b[N];
            widen(x, a);
            widen(load_some(position + c, width - c, wide), b);
#pragma unroll
            for (int j = 0; j < N; j++)
                a[j] = add(a[j], b[j]);
            x = narrow<T>(a);
        }
        store_some(out + row * width + c, x, width - c, wide);
    }
}

cudaError_t launch_embedding(cudaStream_t stream, enum dtype type, int64_t rows, int64_t tokens,
                             int64_t width, struct kernel_ids ids, const void *wte, const void *wpe,
                             struct kernel_past past, void *out)
{
    return with_type(type, [=](auto zero) {
        using T = decltype(zero);
        bool wide = width % PACK<T> == 0 && is_wide(wte) && is_wide(wpe) && is_wide(out);
        unsigned blocks = (unsigned)rows, threads = row_threads(div_up(width, PACK<T>));
        gather<T><<<blocks, threads, 0, stream>>>(tokens, width, wide, ids, (const T *)wte,
                                                  (const T *)wpe, past, (T *)out);
        return cudaGetLastError();
    });
}

/* --- the sort: each pass counts digits by tile, sums the counts, scatters the rows ------------ */

/* Row number i of the input order; the first pass reads 0, 1, 2, ... */
static __device__ inline int32_t row_at(const int32_t *from, int i)
{
    return from ? from[i] : i;
}

/* counts (DIGITS, tiles) */
__global__ void __launch_bounds__(THREADS)
    count_digits(int rows, int shift, kernel_ids ids, const int32_t *from, int32_t *counts)
{
    __shared__ int32_t seen[DIGITS];
    seen[threadIdx.x] = 0;
    __syncthreads();
    for (int k = 0; k < ROUNDS; k++) {
        int i = blockIdx.x * TILE + k * THREADS + threadIdx.x;
        if (i < rows)
            atomicAdd(&seen[id_at(ids, row_at(from, i)) >> shift & (DIGITS - 1)], 1);
    }
    __syncthreads();
    counts[threadIdx.x * gridDim.x + blockIdx.x] = seen[threadIdx.x];
}

/* Replaces counts by exclusive prefix sums; one block. */
__global__ void __launch_bounds__(SCAN_THREADS) sum_counts(int count, int32_t *counts)
{
    __shared__ int32_t warps[SCAN_THREADS / WARP];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int32_t before = 0;
    for (int first = 0; first < count; first += SCAN_THREADS) {
        int i = first + threadIdx.x;
        int32_t own = i < count ? counts[i] : 0, sum = own, all = 0, ahead = 0;
#pragma unroll
        for (int apart = 1; apart < WARP; apart *= 2) {
            int32_t left = __shfl_up_sync(ALL_LANES, sum, apart);
            sum += lane >= apart ? left : 0;
        }
        if (lane == WARP - 1)
            warps[warp] = sum;
        __syncthreads();
        for (int w = 0; w < SCAN_THREADS / WARP; w++) {
            ahead += w < warp ? warps[w] : 0;
            all += warps[w];
        }
        if (i < count)
            counts[i] = before + ahead + sum - own;
        before += all;
        __syncthreads();
    }
}

/* Moves each row to its sorted position. Within a tile: rounds in order, warps in order, lanes in
 * order. `keys` (last pass only) receives the tokens. */
__global__ void __launch_bounds__(THREADS)
    scatter_rows(int rows, int shift, kernel_ids ids, const int32_t *from, const int32_t *counts,
                 int32_t *to, int32_t *keys)
{
    constexpr int WARPS = THREADS / WARP;
    __shared__ int32_t place[DIGITS], in_warp[WARPS][DIGITS];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    place[threadIdx.x] = counts[threadIdx.x * gridDim.x + blockIdx.x];
    for (int k = 0; k < ROUNDS; k++) {
        int i = blockIdx.x * TILE + k * THREADS + threadIdx.x;
        int32_t row = i < rows ? row_at(from, i) : 0, id = i < rows ? id_at(ids, row) : 0;
        int digit =
            i < rows ? id >> shift & (DIGITS - 1) : DIGITS; /* past the end: a digit of its own */
        for (int w = 0; w < WARPS; w++)
            in_warp[w][threadIdx.x] = 0;
        __syncthreads();

        unsigned same = __match_any_sync(ALL_LANES, digit);
        int rank = __popc(same & ((1u << lane) - 1));
        if (rank == 0 && i < rows)
            in_warp[warp][digit] = __popc(same);
        __syncthreads();

        /* one thread per digit: where each warp's rows of this digit begin */
        int32_t next = place[threadIdx.x];
        for (int w = 0; w < WARPS; w++) {
            int32_t mine = in_warp[w][threadIdx.x];
            in_warp[w][threadIdx.x] = next;
            next += mine;
        }
        place[threadIdx.x] = next;
        __syncthreads();

        if (i < rows) {
            int32_t at = in_warp[warp][digit] + rank;
            to[at] = row;
            if (keys)
                keys[at] = id;
        }
        __syncthreads();
    }
}

/* starts[v]: the first index in keys (sorted) whose token is not below v, v = 0 .. vocab. */
__global__ void __launch_bounds__(THREADS)
    find_starts(int rows, int64_t vocab, const int32_t *keys, int32_t *starts)
{
    int64_t v = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int low = 0, high = rows;
    if (v > vocab)
        return;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (keys[middle] < v)
            low = middle + 1;
        else
            high = middle;
    }
    starts[v] = low;
}

/* --- the sums --------------------------------------------------------------------------------- */

/* sum += rows order[first .. end) of dout at column c, in order */
template <typename T>
static __device__ inline void add_rows(const T *dout, const int32_t *order, int first, int end,
                                       int64_t width, int64_t c, bool wide, float (&sum)[PACK<T>])
{
    constexpr int N = PACK<T>;
#pragma unroll 4
    for (int i = first; i < end; i++) {
        float f[N];
        widen(load_some(dout + order[i] * width + c, width - c, wide), f);
#pragma unroll
        for (int j = 0; j < N; j++)
            sum[j] = add(sum[j], f[j]);
    }
}

/* Block 2 w + kind sums the chunk of that kind that starts in window w, if there is one. */
template <typename T>
__global__ void __launch_bounds__(THREADS, 4)
    sum_chunks(int rows, int64_t width, int64_t vocab, bool wide, const T *__restrict__ dout,
               const int32_t *order, const int32_t *keys, const int32_t *starts, float *chunks)
{
    constexpr int N = PACK<T>;
    int window = blockIdx.x / 2 * CHUNK, window_end = min(window + CHUNK, rows);
    bool is_first = blockIdx.x % 2 == 1;
    int32_t id = keys[is_first ? window_end - 1 : window];
    if (id >= vocab)
        return;
    int start = starts[id], end = starts[id + 1];
    if (end - start <= CHUNK || (start >= window) != is_first)
        return;
    if (!is_first) /* the first chunk at or after the window's start */
        start += (window - start + CHUNK - 1) / CHUNK * CHUNK;
    if (start >= min(end, window_end))
        return;
    for (int64_t c = (int64_t)threadIdx.x * N; c < width; c += (int64_t)blockDim.x * N) {
        float sum[N] = {};
        add_rows(dout, order, start, min(start + CHUNK, end), width, c, wide, sum);
#pragma unroll
        for (int j = 0; j < N; j++)
            if (c + j < width)
                chunks[blockIdx.x * width + c + j] = sum[j];
    }
}

/* One block per token. */
template <typename T>
__global__ void __launch_bounds__(THREADS, 4)
    sum_tokens(int64_t width, bool wide, const T *__restrict__ dout, const int32_t *order,
               const int32_t *starts, const float *chunks, T *__restrict__ dwte)
{
    constexpr int N = PACK<T>;
    int64_t id = blockIdx.x;
    int start = starts[id], end = starts[id + 1];
    for (int64_t c = (int64_t)threadIdx.x * N; c < width; c += (int64_t)blockDim.x * N) {
        float sum[N] = {};
        if (end - start <= CHUNK) {
            add_rows(dout, order, start, end, width, c, wide, sum);
        } else {
#pragma unroll 4
            for (int at = start; at < end; at += CHUNK) {
                int64_t slot = 2 * (int64_t)(at / CHUNK) + (at == start);
                const float *chunk = chunks + slot * width + c;
#pragma unroll
                for (int j = 0; j < N; j++)
                    sum[j] = c + j < width ? add(sum[j], chunk[j]) : 0.0f;
            }
        }
        store_some(dwte + id * width + c, narrow<T>(sum), width - c, wide);
    }
}

/* One block per position: the sum over the batch, in order. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    sum_positions(int64_t batch, int64_t tokens, int64_t width, bool wide,
                  const T *__restrict__ dout, T *__restrict__ dwpe)
{
    constexpr int N = PACK<T>;
    int64_t t = blockIdx.x;
    for (int64_t c = (int64_t)threadIdx.x * N; c < width; c += (int64_t)blockDim.x * N) {
        float sum[N] = {};
#pragma unroll 8
        for (int64_t b = 0; b < (t < tokens ? batch : 0); b++) {
            float f[N];
            widen(load_some(dout + (b * tokens + t) * width + c, width - c, wide), f);
#pragma unroll
            for (int j = 0; j < N; j++)
                sum[j] = add(sum[j], f[j]);
        }
        store_some(dwpe + t * width + c, narrow<T>(sum), width - c, wide);
    }
}

/* --- scratch and launches --------------------------------------------------------------------- */

struct parts { /* offsets in scratch, in bytes, each a multiple of 256 */
    size_t order, other, keys, starts, counts, chunks, end;
};

static struct parts parts_of(int64_t rows, int64_t width, int64_t vocab)
{
    struct parts p = {};
    size_t sizes[] = {(size_t)rows * 4,
                      (size_t)rows * 4,
                      (size_t)rows * 4,
                      (size_t)(vocab + 1) * 4,
                      (size_t)(DIGITS * div_up(rows, TILE)) * 4,
                      (size_t)(2 * div_up(rows, CHUNK) * width) * 4};
    size_t *places[] = {&p.order, &p.other, &p.keys, &p.starts, &p.counts, &p.chunks};
    for (int i = 0; i < 6; i++) {
        *places[i] = p.end;
        p.end += (sizes[i] + 255) / 256 * 256;
    }
    return p;
}

size_t kernel_embedding_scratch(int64_t rows, int64_t width, int64_t vocab)
{
    return parts_of(rows, width, vocab).end;
}

/* Sorts the rows by token into `order` and their tokens into `keys`. */
static void sort_rows(cudaStream_t stream, int rows, struct kernel_ids ids, int32_t *order,
                      int32_t *other, int32_t *keys, int32_t *counts)
{
    unsigned tiles = (unsigned)div_up(rows, TILE);
    int bits = 1, cells = DIGITS * (int)tiles;
    int64_t most = ids.part ? ids.vocab : ids.vocab - 1;
    while (bits < 31 && most >> bits != 0)
        bits++;
    int passes = (bits + 7) / 8;
    const int32_t *from = NULL;
    for (int pass = 0; pass < passes; pass++) {
        bool last = pass == passes - 1;
        int32_t *to =
            (passes - 1 - pass) % 2 == 0 ? order : other; /* the last pass writes `order` */
        count_digits<<<tiles, THREADS, 0, stream>>>(rows, 8 * pass, ids, from, counts);
        sum_counts<<<1, SCAN_THREADS, 0, stream>>>(cells, counts);
        scatter_rows<<<tiles, THREADS, 0, stream>>>(rows, 8 * pass, ids, from, counts, to,
                                                    last ? keys : (int32_t *)NULL);
        from = to;
    }
}

cudaError_t launch_embedding_backward(cudaStream_t stream, enum dtype type, int64_t batch,
                                      int64_t tokens, int64_t width, int64_t positions,
                                      struct kernel_ids ids, const void *dout_, void *dwte,
                                      void *dwpe, void *scratch)
{
    int64_t vocab = ids.vocab;
    if (batch * tokens > INT32_MAX - TILE || vocab > INT32_MAX - THREADS)
        return cudaErrorInvalidValue;
    int rows = (int)(batch * tokens);
    struct parts p = parts_of(rows, width, vocab);
    char *at = (char *)scratch;
    int32_t *order = (int32_t *)(at + p.order), *keys = (int32_t *)(at + p.keys);
    int32_t *starts = (int32_t *)(at + p.starts);
    float *chunks = (float *)(at + p.chunks);
    unsigned start_blocks = (unsigned)div_up(vocab + 1, THREADS);
    if (dwte) {
        sort_rows(stream, rows, ids, order, (int32_t *)(at + p.other), keys,
                  (int32_t *)(at + p.counts));
        find_starts<<<start_blocks, THREADS, 0, stream>>>(rows, vocab, keys, starts);
    }
    return with_type(type, [=](auto zero) {
        using T = decltype(zero);
        const T *dout = (const T *)dout_;
        bool wide = width % PACK<T> == 0 && is_wide(dout) && is_wide(dwte) && is_wide(dwpe);
        unsigned threads = row_threads(div_up(width, PACK<T>));
        unsigned slots = (unsigned)(2 * div_up(rows, CHUNK)), words = (unsigned)vocab;
        if (dwte) {
            sum_chunks<T><<<slots, threads, 0, stream>>>(rows, width, vocab, wide, dout, order,
                                                         keys, starts, chunks);
            sum_tokens<T><<<words, threads, 0, stream>>>(width, wide, dout, order, starts, chunks,
                                                         (T *)dwte);
        }
        if (dwpe) {
            unsigned places = (unsigned)positions;
            sum_positions<T>
                <<<places, threads, 0, stream>>>(batch, tokens, width, wide, dout, (T *)dwpe);
        }
        return cudaGetLastError();
    });
}
