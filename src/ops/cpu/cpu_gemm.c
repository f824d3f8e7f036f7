/* cpu_gemm -- products by a kernel of our own (cpu_kernel.h) in any number of threads.
 *
 * A product is computed in phases. A phase is a block of c of at most BLOCK_ROWS x BLOCK_COLS and
 * a few parts of k of at most DEPTH: all threads together pack these parts of a and b, once,
 * and then multiply tiles of the block. There are two sets of packed panels. While some threads
 * multiply tiles of a phase, others pack the next phase, so a phase has one barrier:
 *
 *     | pack 0 | tiles 0, pack 1 | tiles 1, pack 2 | tiles 2 |
 *
 * Bits: the shape alone decides how k is cut, and the parts of a sum are added in order. Nothing
 * else changes an element of c (cpu_kernel.h), so tiles may have any size and any order.
 *
 * The tiles of a block are divided among the threads in adjacent runs, the same in all parts of k:
 * so a thread finds its part of c in its own cache. After every few tiles, a thread packs a chunk.
 * When its run is done, it packs what is left, and then computes tiles of other runs. Tiles are
 * small, so that all end a phase at nearly the same time. They are numbered row by row in strips,
 * as wide as their panels of b stay in the second-level cache: a is read once for each strip.
 *
 * With many threads, packing waits for memory. So blocks are large, and a kernel that can read a
 * in place (`multiply_rows`) then needs no packed a, except for the last rows if they fill no
 * panel. With few threads, a packed a is read faster.
 *
 * Usually all phases of a block come before the next block. Where a block has one phase, or where
 * only two blocks share panels of a or b, the blocks that share them take turns: then these panels
 * are packed once.
 *
 * DEPTH: a panel of b of this depth stays in the first-level cache. The sums of a tile are added to
 * c after each part of k. With two parts in a phase, c is still in that cache for the second. A
 * small block has few tiles for each thread, so with more parts threads wait less for each other.
 */
#include "ops/cpu/cpu_gemm.h"
#include <string.h>
#include <unistd.h>

enum {
    DEPTH = 384,
    DEPTH_UNIT = 32,   /* of every kernel, too: only the last part of k is filled with zeros */
    BLOCK_ROWS = 2048, /* packed as fp32; twice as many in 16 bits */
    BLOCK_COLS = 3072,
    MOST_PARTS = 2,       /* of k, in a phase */
    MOST_PARTS_SMALL = 4, /* of a block of c with at most so many elements: */
    SMALL_BLOCK = 1 << 20,
    TILE_ROWS = 48, /* about: whole panels */
    TILE_COLS = 64,
    MANY_THREADS = 8,  /* or more: a is read in place */
    PACK_PANELS = 4,   /* side by side, packed at once: long rows are read faster */
    PACK_SHARES = 4,   /* fewer at once, so that each thread gets about four turns in a phase */
    PACK_STEP = 32,    /* of the depth; a multiple of every kernel's unit */
    LARGEST_ROWS = 32, /* of a kernel; see `micro` */
    LARGEST_COLS = 32,
    ALIGNMENT = 64,
};

/* Panels of the last rows or columns of a block are filled up with zeros. */
enum {
    PACKED_A = (BLOCK_ROWS + LARGEST_ROWS) * DEPTH,
    PACKED_B = (BLOCK_COLS + LARGEST_COLS) * DEPTH,
};

size_t cpu_gemm_bytes(void)
{
    return 2 * (PACKED_A + PACKED_B) * sizeof(float) + ALIGNMENT;
}

static int64_t round_up(int64_t n, int64_t to)
{
    return ceil_div(n, to) * to;
}

/* The nearly equal parts of n, each at most `most` and a multiple of `unit` except the last */
static int64_t part_of(int64_t n, int64_t most, int64_t unit)
{
    int64_t count = ceil_div(n, most);
    return count == 0 ? unit : round_up(ceil_div(n, count), unit);
}

/* As many parts of k in a phase as there is memory for, up to a limit */
static void choose_depth(struct cpu_gemm *g, int64_t more)
{
    int64_t parts = max64(ceil_div(g->p->k, g->part), 1);
    int64_t room =
        min64(PACKED_A * more / (g->rows * g->part), PACKED_B * more / (g->cols * g->part));
    int64_t most = g->rows * g->cols <= SMALL_BLOCK ? MOST_PARTS_SMALL : MOST_PARTS;
    g->parts = max64(min64(min64(room, most), parts), 1);
    g->depth = g->parts * g->part;
    g->depth_count = ceil_div(parts, g->parts);
}

/* Rows that are a multiple of 4 KiB apart lie in the same few places of the first-level cache. If
 * there are fewer of these than a panel has rows, each read of a would miss it. */
static bool rows_fit(const struct cpu_gemm *g)
{
    enum { PLACES = 4096 / sizeof(float) };
    return cpu_product_lda(g->p) % PLACES != 0 ||
           sysconf(_SC_LEVEL1_DCACHE_ASSOC) >= g->kernel->rows;
}

/* Tiles side by side whose panels of b fill five eighths of the second-level cache. With 2 MiB that
 * is six tiles for 768 values of k in fp32, which was the best number there, and 13 in bf16. */
static int64_t choose_strip(const struct cpu_gemm *g)
{
    int64_t cache = sysconf(_SC_LEVEL2_CACHE_SIZE);
    if (cache <= 0)
        cache = 1 << 20;
    return max64(cache * 5 / 8 / (g->tile_cols * g->depth * g->kernel->packed_bytes), 1);
}

struct cpu_gemm cpu_gemm_plan(const struct cpu_product *p, const struct cpu_kernel *kernel,
                              int threads, void *workspace)
{
    struct cpu_gemm g = {.p = p, .kernel = kernel};
    g.packed = (char *)round_up((int64_t)(uintptr_t)workspace, ALIGNMENT);
    g.part = part_of(p->k, DEPTH, DEPTH_UNIT);
    int64_t more = (int64_t)sizeof(float) / kernel->packed_bytes;
    g.rows = part_of(p->m, BLOCK_ROWS * more, kernel->rows);
    g.cols = part_of(p->n, BLOCK_COLS * more, kernel->cols);
    choose_depth(&g, more);
    int64_t down = ceil_div(p->m, g.rows), across = ceil_div(p->n, g.cols);
    g.rows_first = down > across;
    g.inner_count = g.rows_first ? down : across;
    g.keeps = g.depth_count == 1 || g.inner_count <= 2;
    g.reads_rows = kernel->multiply_rows && threads >= MANY_THREADS && !p->a_transposed &&
                   p->k > 0 && rows_fit(&g);
    g.phases = p->c ? down * across * g.depth_count : 0;
    g.tile_rows = round_up(TILE_ROWS, kernel->rows);
    g.tile_cols = round_up(TILE_COLS, kernel->cols);
    g.strip = choose_strip(&g);
    g.runs = (int)min64(max64(threads, 1), CPU_GEMM_RUNS);
    return g;
}

/* A phase: rows i .., columns j .. of c, and k .. of the sums */
struct phase {
    int64_t i, rows, j, cols, k, depth;
    int64_t room;      /* of one row of a packed panel, bytes */
    char *a, *b;       /* packed */
    bool new_a, new_b; /* not packed for the phase before */
};

static struct phase phase_of(const struct cpu_gemm *g, int64_t number)
{
    int64_t inner, part, outer = number / (g->depth_count * g->inner_count), shared = number;
    if (g->keeps) {
        inner = number % g->inner_count;
        shared = number / g->inner_count; /* how often the shared panels were packed before */
        part = shared % g->depth_count;
    } else {
        inner = number / g->depth_count % g->inner_count;
        part = number % g->depth_count;
    }
    bool is_new = !g->keeps || inner == 0;
    struct phase f = {.i = (g->rows_first ? inner : outer) * g->rows,
                      .j = (g->rows_first ? outer : inner) * g->cols,
                      .k = part * g->depth,
                      .new_a = g->rows_first || is_new,
                      .new_b = !g->rows_first || is_new};
    f.rows = min64(g->rows, g->p->m - f.i);
    f.cols = min64(g->cols, g->p->n - f.j);
    f.depth = min64(g->depth, g->p->k - f.k);
    f.room = round_up(f.depth, g->kernel->depth_unit) * g->kernel->packed_bytes;
    f.a = g->packed + (g->rows_first ? number : shared) % 2 * PACKED_A * (int64_t)sizeof(float);
    f.b = g->packed + (2 * PACKED_A + (g->rows_first ? shared : number) % 2 * PACKED_B) *
                          (int64_t)sizeof(float);
    return f;
}

/* --- packing -------------------------------------------------------------------------------- */

/* Part of a panel: `depth` values from k on */
static void pack_a(const struct cpu_gemm *g, const struct phase *f, int64_t panel, int64_t k,
                   int64_t depth)
{
    const struct cpu_product *p = g->p;
    int64_t at = panel * g->kernel->rows, lda = cpu_product_lda(p);
    struct cpu_panel from = {
        .depth = depth, .valid = min64(g->kernel->rows, f->rows - at), .stride = lda};
    void *to = f->a + at * f->room + k * g->kernel->rows * g->kernel->packed_bytes;
    if (p->a_transposed) {
        from.from = p->a + (f->k + k) * lda + f->i + at;
        g->kernel->pack_a_along(&from, to);
    } else {
        from.from = p->a + (f->i + at) * lda + f->k + k;
        g->kernel->pack_a_across(&from, to);
    }
}

static void pack_b(const struct cpu_gemm *g, const struct phase *f, int64_t panel, int64_t k,
                   int64_t depth)
{
    const struct cpu_product *p = g->p;
    int64_t at = panel * g->kernel->cols, ldb = cpu_product_ldb(p);
    struct cpu_panel from = {
        .depth = depth, .valid = min64(g->kernel->cols, f->cols - at), .stride = ldb};
    void *to = f->b + at * f->room + k * g->kernel->cols * g->kernel->packed_bytes;
    int64_t first = p->b_transposed ? (f->j + at) * ldb + f->k + k : (f->k + k) * ldb + f->j + at;
    if (p->b_bf16)
        from.from_bf16 = p->b_bf16 + first;
    else
        from.from = p->b + first;
    (p->b_transposed ? g->kernel->pack_b_across : g->kernel->pack_b_along)(&from, to);
}

/* The panels of one operand in a phase; chunks of packing are first those of a, then those of b. */
struct panels {
    int64_t first, end, at_once, chunks;
    int64_t step; /* of the depth, in all panels of a chunk, before the next step */
};

static struct panels panels_of(const struct cpu_gemm *g, int64_t first, int64_t end, bool along,
                               int64_t depth)
{
    struct panels n = {.first = first, .end = end, .step = along ? PACK_STEP : depth};
    n.at_once = max64(min64(PACK_PANELS, (end - first) / (PACK_SHARES * g->runs)), 1);
    n.chunks = ceil_div(end - first, n.at_once);
    return n;
}

static struct panels panels_of_a(const struct cpu_gemm *g, const struct phase *f)
{
    int64_t end = f->new_a ? ceil_div(f->rows, g->kernel->rows) : 0;
    int64_t first = g->reads_rows ? min64(f->rows / g->kernel->rows, end) : 0;
    return panels_of(g, first, end, g->p->a_transposed, f->depth);
}

static struct panels panels_of_b(const struct cpu_gemm *g, const struct phase *f)
{
    int64_t end = f->new_b ? ceil_div(f->cols, g->kernel->cols) : 0;
    return panels_of(g, 0, end, !g->p->b_transposed, f->depth);
}

static int64_t pack_chunks(const struct cpu_gemm *g, const struct phase *f)
{
    return panels_of_a(g, f).chunks + panels_of_b(g, f).chunks;
}

static void pack_chunk(const struct cpu_gemm *g, const struct phase *f, int64_t chunk)
{
    struct panels n = panels_of_a(g, f);
    void (*pack)(const struct cpu_gemm *, const struct phase *, int64_t, int64_t, int64_t) = pack_a;
    if (chunk >= n.chunks) {
        chunk -= n.chunks;
        n = panels_of_b(g, f);
        pack = pack_b;
    }
    int64_t first = n.first + chunk * n.at_once, end = min64(first + n.at_once, n.end);
    for (int64_t k = 0; k < f->depth; k += n.step)
        for (int64_t panel = first; panel < end; panel++)
            pack(g, f, panel, k, min64(n.step, f->depth - k));
}

/* --- tiles ---------------------------------------------------------------------------------- */

/* One call of the kernel: the part of k from `k` on, and rows and columns from (i, j) on */
static void multiply_panels(const struct cpu_gemm *g, const struct phase *f, int64_t k, int64_t i,
                            int64_t j, float times, bool add, float *c, int64_t ldc)
{
    const struct cpu_kernel *kernel = g->kernel;
    const char *a = f->a + i * f->room + k * kernel->rows * kernel->packed_bytes;
    const char *b = f->b + j * f->room + k * kernel->cols * kernel->packed_bytes;
    int64_t depth = round_up(min64(g->part, f->depth - k), kernel->depth_unit);
    int64_t lda = cpu_product_lda(g->p);
    if (g->reads_rows && f->rows - i >= kernel->rows)
        kernel->multiply_rows(depth, g->p->a + (f->i + i) * lda + f->k + k, lda, b, times, add, c,
                              ldc);
    else
        cpu_kernel_multiply(kernel, f->rows - i, depth, a, b, times, add, c, ldc);
}

/* The same for a part of c that may be smaller than the kernel's: then on a copy */
static void multiply_micro(const struct cpu_gemm *g, const struct phase *f, int64_t k, int64_t i,
                           int64_t j, float times, bool add)
{
    const struct cpu_kernel *kernel = g->kernel;
    int64_t ldc = cpu_product_ldc(g->p);
    float *c = g->p->c + (f->i + i) * ldc + f->j + j;
    int64_t rows = min64(kernel->rows, f->rows - i), cols = min64(kernel->cols, f->cols - j);
    if (rows == kernel->rows && cols == kernel->cols) {
        multiply_panels(g, f, k, i, j, times, add, c, ldc);
        return;
    }
    float micro[LARGEST_ROWS * LARGEST_COLS] = {0};
    for (int64_t r = 0; add && r < rows; r++)
        memcpy(micro + r * kernel->cols, c + r * ldc, (size_t)cols * sizeof(float));
    multiply_panels(g, f, k, i, j, times, add, micro, kernel->cols);
    for (int64_t r = 0; r < rows; r++)
        memcpy(c + r * ldc, micro + r * kernel->cols, (size_t)cols * sizeof(float));
}

static int64_t tile_count(const struct cpu_gemm *g, const struct phase *f)
{
    return ceil_div(f->rows, g->tile_rows) * ceil_div(f->cols, g->tile_cols);
}

static void multiply_tile(const struct cpu_gemm *g, const struct phase *f, int64_t tile)
{
    const struct cpu_product *p = g->p;
    int64_t of_strip = ceil_div(f->rows, g->tile_rows) * g->strip, strip = tile / of_strip;
    int64_t wide = min64(g->strip, ceil_div(f->cols, g->tile_cols) - strip * g->strip);
    int64_t i0 = tile % of_strip / wide * g->tile_rows;
    int64_t j0 = (strip * g->strip + tile % of_strip % wide) * g->tile_cols;
    int64_t rows = min64(g->tile_rows, f->rows - i0), cols = min64(g->tile_cols, f->cols - j0);
    if (p->symmetric && f->j + j0 > f->i + i0 + rows - 1) /* above the diagonal */
        return;
    bool started = f->k == 0 && cpu_product_start(p, f->i + i0, f->j + j0, rows, cols);
    bool add = started || f->k > 0 || p->add;
    for (int64_t j = j0; j < j0 + cols; j += g->kernel->cols) {
        int64_t k = 0;
        do {
            for (int64_t i = i0; i < i0 + rows; i += g->kernel->rows)
                multiply_micro(g, f, k, i, j, p->start ? p->times : 1, add || k > 0);
            k += g->part;
        } while (k < f->depth);
    }
    if (f->k + f->depth == p->k)
        cpu_product_finish(p, f->i + i0, f->j + j0, rows, cols);
}

/* Computes a tile of a run, unless all are taken. */
static bool multiply_next(struct cpu_gemm *g, const struct phase *f, int number, int set)
{
    int64_t tiles = tile_count(g, f), first = tiles * number / g->runs;
    int64_t count = tiles * (number + 1) / g->runs - first, *next = &g->run[number].next[set];
    if (__atomic_load_n(next, __ATOMIC_RELAXED) >= count)
        return false;
    int64_t tile = next_chunk(next);
    if (tile < count)
        multiply_tile(g, f, first + tile);
    return tile < count;
}

/* The other work of a phase: the caller's, and packing for the next phase */
struct other_work {
    const struct cpu_gemm_side *side; /* chunks before `others` */
    int64_t others, end;
    struct phase after;
};

static bool do_other_work(struct cpu_gemm *g, const struct other_work *b, int set)
{
    if (__atomic_load_n(&g->next[set], __ATOMIC_RELAXED) >= b->end)
        return false;
    int64_t chunk = next_chunk(&g->next[set]);
    if (chunk < b->others)
        b->side->run(b->side->context, chunk);
    else if (chunk < b->end)
        pack_chunk(g, &b->after, chunk - b->others);
    return chunk < b->end;
}

/* A thread's own tiles, and between them its share of the other work. Threads start that at
 * different times: if all packed at once, they would wait for memory. */
static void multiply_own(struct cpu_gemm *g, const struct phase *f, const struct other_work *b,
                         int own, int set)
{
    int64_t tiles = ceil_div(tile_count(g, f), g->runs), chunks = ceil_div(b->end, g->runs);
    int64_t every = max64(tiles / max64(chunks, 1), 1), left = 1 + every * own / g->runs;
    while (multiply_next(g, f, own, set))
        if (g->runs > 1 && --left == 0) {
            do_other_work(g, b, set);
            left = every;
        }
}

static void run_phase(struct cpu_gemm *g, int64_t number, const struct cpu_gemm_side *side)
{
    int set = number & 1, own = omp_get_thread_num() % g->runs;
    bool multiplies = number >= 0, packs = number + 1 < g->phases;
    struct phase f = {0};
    struct other_work b = {.side = side, .others = multiplies || !side ? 0 : side->chunks};
    if (packs)
        b.after = phase_of(g, number + 1);
    b.end = b.others + (packs ? pack_chunks(g, &b.after) : 0);
    if (multiplies) {
        f = phase_of(g, number);
        multiply_own(g, &f, &b, own, set);
    }
    while (do_other_work(g, &b, set))
        ;
    for (int i = 1; multiplies && i < g->runs; i++)
        while (multiply_next(g, &f, (own + i) % g->runs, set))
            ;
}

/* After a barrier: the counters of a phase, which are used again after the next barrier */
static void reset(struct cpu_gemm *g, int set)
{
    int thread = omp_get_thread_num();
    if (thread == 0)
        __atomic_store_n(&g->next[set], 0, __ATOMIC_RELAXED);
    for (int i = thread; i < g->runs; i += omp_get_num_threads())
        __atomic_store_n(&g->run[i].next[set], 0, __ATOMIC_RELAXED);
}

void cpu_gemm_thread(struct cpu_gemm *g, const struct cpu_gemm_side *side)
{
    if (g->kernel->begin)
        g->kernel->begin();
    for (int64_t number = -1; number < g->phases; number++) {
        run_phase(g, number, side);
        if (number + 1 == g->phases)
            break;
#pragma omp barrier
        reset(g, number & 1);
    }
    if (g->kernel->end)
        g->kernel->end();
}
