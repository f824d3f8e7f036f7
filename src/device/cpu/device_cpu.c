/* device_cpu -- the CPU device: host memory, inline and worker streams, events, copies and sums.
 *
 * Everything enqueued is a task. An inline stream runs it immediately on the caller's OpenMP
 * threads, and so does a worker's own thread (a task may use its own stream); from elsewhere it
 * goes into the worker's ring and runs on its one thread. An event is its tickets, recorded on one
 * stream at a time.
 *
 * Work on long ranges is cut into chunks of a fixed size, whole blocks of 64 elements, and threads
 * take whole chunks. All work is element by element, so bits do not depend on the number of
 * threads.
 */
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif
#include "base/clock.h"
#include "device/device_impl.h"

enum {
    CHUNK = 64 * 1024,         /* elements that one thread takes at a time */
    CHUNK_BYTES = 1024 * 1024, /* the same for copies */
    TOUCH_BYTES = 2048 * 1024, /* the same for new memory: a huge page */
    LARGE_BYTES = 16 * TOUCH_BYTES,
    PAGE_BYTES = 4096,
};

struct cpu_stream {
    struct stream base;
    struct worker *worker; /* NULL on an inline stream */
};

struct cpu_event {
    struct event base;
    struct tickets tickets;
};

/* --- chunks --------------------------------------------------------------------------------- */

/* Runs the chunk that starts at `at` (in bytes or elements). */
typedef void chunk_fn(const void *args, size_t at);

/* Runs every chunk of `total`; a thread takes chunks that follow each other. A single thread starts
 * no parallel region: a worker's thread never uses OpenMP. */
static void for_chunks(int threads, chunk_fn *run, const void *args, size_t total, size_t chunk)
{
    if (threads == 1 || total <= chunk) {
        for (size_t at = 0; at < total; at += chunk)
            run(args, at);
    } else {
#pragma omp parallel for num_threads(threads) schedule(static)
        for (size_t at = 0; at < total; at += chunk)
            run(args, at);
    }
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static int threads_of(const struct stream *stream)
{
    return stream->worker ? 1 : stream->device->env->threads;
}

/* --- memory --------------------------------------------------------------------------------- */

/* The system places a page on the NUMA node of the thread that touches it first. Left to the first
 * use, that may be one thread for a whole model (a file that is read, a worker that receives). So
 * the threads of the rank touch a large block when it is allocated, each its part: the pages are
 * spread over the nodes on which the rank runs. The pages are zero before and after. Small blocks
 * stay in caches, and some are allocated before the threads may be started (cpu_blas_open). */
static void touch_chunk(const void *args, size_t at)
{
    const struct device_block *block = args;
    volatile char *start = block->address;
    size_t end = smaller(at + TOUCH_BYTES, block->bytes);
    for (; at < end; at += PAGE_BYTES)
        start[at] = 0;
}

static enum status cpu_alloc(struct device *device, struct device_block *block)
{
    TRY(mem_alloc(device->env, block->category, block->name, block->bytes, &block->address));
    if (device->env->threads > 1 && block->bytes >= LARGE_BYTES)
        for_chunks(device->env->threads, touch_chunk, block, block->bytes, TOUCH_BYTES);
    return STATUS_OK;
}

static void cpu_free(struct device *device, const struct device_block *block)
{
    mem_free(device->env, block->address);
}

/* --- streams -------------------------------------------------------------------------------- */

static enum status cpu_stream_open(struct stream *stream, const char *name)
{
    struct cpu_stream *cpu = (struct cpu_stream *)stream;
    return stream->worker ? worker_create(stream->device->env, name, stream, &cpu->worker)
                          : STATUS_OK;
}

static void cpu_stream_close(struct stream *stream)
{
    if (stream->worker)
        worker_destroy(((struct cpu_stream *)stream)->worker);
}

static enum status cpu_stream_sync(struct stream *stream)
{
    if (stream->worker)
        worker_drain(((struct cpu_stream *)stream)->worker);
    return STATUS_OK;
}

static void cpu_enqueue(struct stream *stream, stream_task_fn *task, const void *args, size_t bytes)
{
    struct cpu_stream *cpu = (struct cpu_stream *)stream;
    if (!stream->worker || worker_is_me(cpu->worker))
        task(stream, args);
    else
        worker_add(cpu->worker, task, args, bytes);
}

/* --- events --------------------------------------------------------------------------------- */

static struct tickets *tickets_of(struct event *event)
{
    return &((struct cpu_event *)event)->tickets;
}

static enum status cpu_event_open(struct event *event)
{
    tickets_open(tickets_of(event));
    return STATUS_OK;
}

static void cpu_event_close(struct event *event)
{
    tickets_close(tickets_of(event));
}

/* The arguments of a record or a wait. */
struct point {
    struct tickets *tickets; /* borrowed */
    int64_t ticket;
};

static void pass(struct stream *stream, const void *args)
{
    const struct point *point = args;
    (void)stream;
    tickets_pass(point->tickets, point->ticket);
}

static void await(struct stream *stream, const void *args)
{
    const struct point *point = args;
    tickets_await(point->tickets, point->ticket, stream);
    tickets_leave(point->tickets);
}

static void cpu_record(struct event *event, struct stream *stream)
{
    struct point point = {tickets_of(event), tickets_record(tickets_of(event))};
    cpu_enqueue(stream, pass, &point, sizeof point);
}

static void cpu_wait(struct stream *stream, struct event *event)
{
    struct point point = {tickets_of(event), tickets_newest(tickets_of(event))};
    cpu_enqueue(stream, await, &point, sizeof point);
}

/* --- spans ---------------------------------------------------------------------------------- */

/* A mark is the trace's claim. */
static int64_t cpu_span_claim(struct stream *stream, const struct trace_span *span)
{
    return trace_claim(stream->device->env->trace, span);
}

static void note_time(struct stream *stream, int64_t mark, bool end)
{
    if (mark >= 0)
        (end ? trace_set_end : trace_set_start)(stream->device->env->trace, mark, clock_seconds());
}

struct mark_args {
    int64_t mark;
    bool end;
};

static void mark_task(struct stream *stream, const void *args)
{
    const struct mark_args *a = args;
    note_time(stream, a->mark, a->end);
}

static void cpu_span_mark(struct stream *stream, int64_t mark, bool end)
{
    struct mark_args args = {mark, end};
    cpu_enqueue(stream, mark_task, &args, sizeof args);
}

/* --- long copies ---------------------------------------------------------------------------- */

/* copy_far copies ranges that no cache would keep. On x86-64 it uses stores that bypass the
 * caches: an ordinary store first reads what it overwrites, so a copy moves three bytes for one.
 * memcpy does the same, but only for single calls of many MiB, and threads copy in chunks.
 * Elsewhere it is memcpy. */
#define COPY_FAR_FROM ((size_t)4 << 20) /* bytes of a whole copy from which it pays off */

#ifdef __SSE2__

enum { LINE = 64 };

static void copy_lines(char *dst, const char *src, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += LINE) {
        const __m128i *from = (const __m128i *)(const void *)(src + at);
        __m128i *to = (__m128i *)(void *)(dst + at);
        __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
        __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
        _mm_stream_si128(to, a);
        _mm_stream_si128(to + 1, b);
        _mm_stream_si128(to + 2, c);
        _mm_stream_si128(to + 3, d);
    }
    _mm_sfence(); /* streaming stores are not ordered with others */
}

static void copy_far(void *dst, const void *src, size_t bytes)
{
    size_t before = (LINE - (uintptr_t)dst % LINE) % LINE;
    if (bytes < before + LINE) {
        memcpy(dst, src, bytes);
        return;
    }
    size_t lines = (bytes - before) / LINE * LINE, done = before + lines;
    memcpy(dst, src, before);
    copy_lines((char *)dst + before, (const char *)src + before, lines);
    memcpy((char *)dst + done, (const char *)src + done, bytes - done);
}

#else

static void copy_far(void *dst, const void *src, size_t bytes)
{
    memcpy(dst, src, bytes);
}

#endif

/* --- copies --------------------------------------------------------------------------------- */

struct range {
    char *dst;
    const char *src; /* NULL: zeros */
    size_t bytes;
    int64_t mark; /* of a span, or -1 */
};

static void fill_chunk(const void *args, size_t at)
{
    const struct range *range = args;
    size_t bytes = smaller(CHUNK_BYTES, range->bytes - at);
    if (range->src == NULL)
        memset(range->dst + at, 0, bytes);
    else if (range->bytes < COPY_FAR_FROM)
        memcpy(range->dst + at, range->src + at, bytes);
    else
        copy_far(range->dst + at, range->src + at, bytes);
}

static void fill_task(struct stream *stream, const void *args)
{
    const struct range *range = args;
    if (stream_failed(stream))
        return;
    note_time(stream, range->mark, false);
    for_chunks(threads_of(stream), fill_chunk, range, range->bytes, CHUNK_BYTES);
    note_time(stream, range->mark, true);
}

static void cpu_copy(struct stream *stream, void *dst, const void *src, size_t bytes, int64_t mark)
{
    struct range range = {dst, src, bytes, mark};
    cpu_enqueue(stream, fill_task, &range, sizeof range);
}

static void cpu_zero(struct stream *stream, void *dst, size_t bytes)
{
    struct range range = {dst, NULL, bytes, .mark = -1};
    cpu_enqueue(stream, fill_task, &range, sizeof range);
}

/* --- accumulate ----------------------------------------------------------------------------- */

/* Exact, and without branches so that compilers vectorize loops over it. Multiplying by 2^112
 * moves the exponent from f16's bias to f32's and makes subnormal f16 numbers normal. */
static inline float widen_f16(uint16_t h)
{
    uint32_t magnitude = (uint32_t)(h & 0x7fffu) << 13, sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t endless = (h & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0; /* infinity or NaN */
    float f;
    memcpy(&f, &magnitude, sizeof f);
    f *= 0x1p112f;
    memcpy(&magnitude, &f, sizeof f);
    magnitude |= endless | sign;
    memcpy(&f, &magnitude, sizeof f);
    return f;
}

static inline float same(float f)
{
    return f;
}

static inline double same_f64(double d)
{
    return d;
}

typedef void accumulate_fn(void *dst, const void *src, int64_t count);

#define ACCUMULATE(dst_name, dst_c, sum_c, widen_dst, narrow, src_name, src_c, widen_src) \
    static void dst_name##_from_##src_name(void *dst, const void *src, int64_t count)     \
    {                                                                                     \
        dst_c *restrict d = dst;                                                          \
        const src_c *restrict s = src;                                                    \
        for (int64_t i = 0; i < count; i++)                                               \
            d[i] = narrow((sum_c)widen_dst(d[i]) + (sum_c)widen_src(s[i]));               \
    }
#define ACCUMULATE_ALL(...)                              \
    ACCUMULATE(__VA_ARGS__, f32, float, same)            \
    ACCUMULATE(__VA_ARGS__, bf16, uint16_t, bf16_to_f32) \
    ACCUMULATE(__VA_ARGS__, f16, uint16_t, widen_f16)

ACCUMULATE_ALL(f32, float, float, same, same)
ACCUMULATE_ALL(bf16, uint16_t, float, bf16_to_f32, f32_to_bf16)
ACCUMULATE_ALL(f16, uint16_t, float, widen_f16, f32_to_f16)
ACCUMULATE_ALL(f64, double, double, same_f64, same_f64)
ACCUMULATE(f64, double, double, same_f64, same_f64, f64, double, same_f64)

#define ROW(dst_name)                                                       \
    [DTYPE_F32] = dst_name##_from_f32, [DTYPE_BF16] = dst_name##_from_bf16, \
    [DTYPE_F16] = dst_name##_from_f16
static accumulate_fn *const accumulators[DTYPE_COUNT][DTYPE_COUNT] = {
    [DTYPE_F32] = {ROW(f32)},
    [DTYPE_BF16] = {ROW(bf16)},
    [DTYPE_F16] = {ROW(f16)},
    [DTYPE_F64] = {ROW(f64), [DTYPE_F64] = f64_from_f64},
};

/* dst[i] = src[i], for the first of several sources. */
#define STORE(src_name, src_c, widen_src)                                   \
    static void store_##src_name(void *dst, const void *src, int64_t count) \
    {                                                                       \
        float *restrict d = dst;                                            \
        const src_c *restrict s = src;                                      \
        for (int64_t i = 0; i < count; i++)                                 \
            d[i] = widen_src(s[i]);                                         \
    }

STORE(f32, float, same)
STORE(bf16, uint16_t, bf16_to_f32)
STORE(f16, uint16_t, widen_f16)

static accumulate_fn *const stores[DTYPE_COUNT] = {
    [DTYPE_F32] = store_f32, [DTYPE_BF16] = store_bf16, [DTYPE_F16] = store_f16};

struct sum {
    char *dst;
    const char *src;
    enum dtype dst_type, src_type;
    size_t count;
};

static void sum_chunk(const void *args, size_t at)
{
    const struct sum *sum = args;
    accumulators[sum->dst_type][sum->src_type](sum->dst + at * dtype_bytes(sum->dst_type),
                                               sum->src + at * dtype_bytes(sum->src_type),
                                               (int64_t)smaller(CHUNK, sum->count - at));
}

static void sum_task(struct stream *stream, const void *args)
{
    if (!stream_failed(stream))
        for_chunks(threads_of(stream), sum_chunk, args, ((const struct sum *)args)->count, CHUNK);
}

static void cpu_accumulate(struct stream *stream, void *dst, enum dtype dst_type, const void *src,
                           enum dtype src_type, int64_t count)
{
    struct sum sum = {dst, src, dst_type, src_type, (size_t)count};
    cpu_enqueue(stream, sum_task, &sum, sizeof sum);
}

/* --- squares -------------------------------------------------------------------------------- */

/* The sum of squares of at most one block, with the bits of ops_square_sums: four elements at a
 * time, one after the other, and the sums of fours in a tree. Lane k has elements k of all fours,
 * so that compilers vectorize the loops. */
enum { FOURS = DEVICE_SQUARES / 4 };
typedef double squares_fn(const void *src, int count);

static double add_fours(double *fours)
{
    for (int apart = 1; apart < FOURS; apart *= 2)
        for (int i = 0; i < FOURS; i += 2 * apart)
            fours[i] += fours[i + apart];
    return fours[0];
}

#define SQUARES(name, c, widen)                                                            \
    static double name(const void *src, int count)                                         \
    {                                                                                      \
        const c *s = src;                                                                  \
        double fours[FOURS] = {0};                                                         \
        if (count == DEVICE_SQUARES)                                                       \
            for (int k = 0; k < 4; k++)                                                    \
                for (int i = 0; i < FOURS; i++)                                            \
                    fours[i] += (double)widen(s[4 * i + k]) * (double)widen(s[4 * i + k]); \
        else                                                                               \
            for (int i = 0; i < count; i++)                                                \
                fours[i / 4] += (double)widen(s[i]) * (double)widen(s[i]);                 \
        return add_fours(fours);                                                           \
    }

SQUARES(squares_f32, float, same)
SQUARES(squares_bf16, uint16_t, bf16_to_f32)
SQUARES(squares_f16, uint16_t, widen_f16)

static squares_fn *const squares[DTYPE_COUNT] = {
    [DTYPE_F32] = squares_f32, [DTYPE_BF16] = squares_bf16, [DTYPE_F16] = squares_f16};

struct square_sums {
    float *dst; /* NULL: squares only */
    double *sums;
    const char *src;
    enum dtype type;
    size_t count;
    bool first;
    double weight;
};

/* Some blocks at a time, so that the second loop reads them from the cache. */
static void squares_chunk(const void *args, size_t at)
{
    enum { PART = 64 * DEVICE_SQUARES };
    const struct square_sums *s = args;
    squares_fn *block = squares[s->type];
    accumulate_fn *add = s->first ? stores[s->type] : accumulators[DTYPE_F32][s->type];
    size_t width = dtype_bytes(s->type), end = at + smaller(CHUNK, s->count - at);
    _Static_assert(CHUNK % DEVICE_SQUARES == 0, "chunks are complete blocks");
    while (at < end) {
        size_t stop = at + smaller(PART, end - at);
        if (s->dst != NULL)
            add(s->dst + at, s->src + at * width, (int64_t)(stop - at));
        for (; at < stop; at += DEVICE_SQUARES) {
            double *sum = &s->sums[at / DEVICE_SQUARES];
            *sum = (s->first ? 0 : *sum) +
                   s->weight * block(s->src + at * width, (int)smaller(DEVICE_SQUARES, stop - at));
        }
    }
}

static void squares_task(struct stream *stream, const void *args)
{
    if (!stream_failed(stream))
        for_chunks(threads_of(stream), squares_chunk, args,
                   ((const struct square_sums *)args)->count, CHUNK);
}

static void cpu_accumulate_squares(struct stream *stream, float *dst, const void *src,
                                   enum dtype src_type, int64_t count, bool first, double *sums,
                                   double weight)
{
    struct square_sums args = {dst, sums, src, src_type, (size_t)count, first, weight};
    cpu_enqueue(stream, squares_task, &args, sizeof args);
}

const struct device_backend device_cpu = {
    .name = "cpu",
    .on_host = true,
    .device_bytes = sizeof(struct device),
    .stream_bytes = sizeof(struct cpu_stream),
    .event_bytes = sizeof(struct cpu_event),
    .alloc = cpu_alloc,
    .free = cpu_free,
    .stream_open = cpu_stream_open,
    .stream_close = cpu_stream_close,
    .stream_sync = cpu_stream_sync,
    .event_open = cpu_event_open,
    .event_close = cpu_event_close,
    .enqueue = cpu_enqueue,
    .record = cpu_record,
    .wait = cpu_wait,
    .span_claim = cpu_span_claim,
    .span_mark = cpu_span_mark,
    .copy = cpu_copy,
    .zero = cpu_zero,
    .accumulate = cpu_accumulate,
    .accumulate_squares = cpu_accumulate_squares,
};
