/* cpu_matmul -- linear layers: products with bias and GELU done while a tile is in cache.
 *
 * Products are our own kernel's (cpu_gemm.c). A machine that has none (cpu_kernel.c) uses OpenBLAS
 * on tiles: each tile is one single-threaded sgemm, and the shape alone decides the tiles, so the
 * bits depend neither on the number of threads nor on the threading of the BLAS library. A bias is
 * written into the tile before the product adds to it.
 *
 * OpenBLAS's tiles, measured on a Neoverse-V1 (2 threads, OpenBLAS 0.3.21): 512 and 256 rows reach
 * 96-101 % of the rate at 2048^3, 128 rows 92-98 %; full width is best, 384 columns cost 3-4 %. So
 * tiles start at 512 x 3072 and are halved while there are fewer than 16, down to about 256 x 384,
 * and further only to have two.
 */
#include <cblas.h>
#include "ops/cpu/cpu_gemm.h"
#include "ops/cpu/cpu_vector.h"

struct tiles {
    int64_t rows, cols; /* of one tile; the last ones may be smaller */
    int64_t row_count, col_count;
};

/* The size of `count` nearly equal parts of n, rounded up to a multiple of 32 */
static int64_t tile_size(int64_t n, int64_t count)
{
    return ceil_div(ceil_div(n, count), 32) * 32;
}

/* The tiles of an (m, n) output */
static struct tiles choose_tiles(int64_t m, int64_t n)
{
    int64_t rc = ceil_div(m, 512), cc = ceil_div(n, 3072);
    for (;;) {
        int64_t rows = ceil_div(m, rc), cols = ceil_div(n, cc);
        bool few = rc * cc < 16, one = rc * cc == 1;
        if (few && rows > 384)
            rc *= 2;
        else if (few && cols >= 768)
            cc *= 2;
        else if (one && rows >= 128 && rows >= cols / 2)
            rc *= 2;
        else if (one && cols >= 128)
            cc *= 2;
        else
            break;
    }
    struct tiles t = {.rows = tile_size(m, rc), .cols = tile_size(n, cc)};
    t.row_count = ceil_div(m, t.rows);
    t.col_count = ceil_div(n, t.cols);
    return t;
}

/* The tiles of a symmetric (n, n) output: square, and many, since those above the diagonal are
 * copies. Six by six leave 58 % of the product; eight by eight are no faster. */
static struct tiles choose_square_tiles(int64_t n)
{
    enum { SMALLEST = 64, LARGEST = 256 };
    int64_t size = tile_size(n, 6);
    size = size < SMALLEST ? SMALLEST : min64(size, LARGEST);
    return (struct tiles){size, size, ceil_div(n, size), ceil_div(n, size)};
}

static int64_t stride_or(int64_t stride, int64_t dense)
{
    return stride ? stride : dense;
}

int64_t cpu_product_lda(const struct cpu_product *p)
{
    return stride_or(p->a_stride, p->a_transposed ? p->m : p->k);
}

int64_t cpu_product_ldb(const struct cpu_product *p)
{
    return stride_or(p->b_stride, p->b_transposed ? p->k : p->n);
}

int64_t cpu_product_ldc(const struct cpu_product *p)
{
    return stride_or(p->c_stride, p->n);
}

/* Writes the part below the diagonal of a tile of a symmetric output to the other side. */
static void mirror_tile(const struct cpu_product *p, int64_t i, int64_t j, int64_t rows,
                        int64_t cols)
{
    enum { BLOCK = 16 }; /* a line of cache */
    int64_t ldc = cpu_product_ldc(p);
    for (int64_t r0 = i; r0 < i + rows; r0 += BLOCK)
        for (int64_t s = j; s < j + cols; s++)
            for (int64_t r = max64(r0, s + 1); r < min64(r0 + BLOCK, i + rows); r++)
                p->c[s * ldc + r] = p->c[r * ldc + s];
}

bool cpu_product_start(const struct cpu_product *p, int64_t i, int64_t j, int64_t rows,
                       int64_t cols)
{
    for (int64_t r = i; (p->bias || p->start) && r < i + rows; r++) {
        float *c = p->c + r * cpu_product_ldc(p) + j;
        if (p->bias)
            memcpy(c, p->bias + j, (size_t)cols * sizeof(float));
        else
            for (int64_t s = 0; s < cols; s++)
                c[s] = p->start_times * p->start[r * p->n + j + s];
    }
    return p->bias || p->start;
}

/* sum (+)= c, rounded, for `cols` elements of a row */
static void sum_row(const struct cpu_product *p, float *sum, const float *c, int64_t cols)
{
    enum { STRIP = 256 };
    uint16_t half[STRIP];
    float rounded[STRIP];
    for (int64_t s = 0; s < cols; s += STRIP) {
        int64_t n = min64(STRIP, cols - s);
        const float *r = c + s;
        if (p->sum_type != DTYPE_F32) {
            cpu_cast_chunk(half, p->sum_type, r, DTYPE_F32, n);
            cpu_cast_chunk(rounded, DTYPE_F32, half, p->sum_type, n);
            r = rounded;
        }
        if (!p->sum_adds)
            memcpy(sum + s, r, (size_t)n * sizeof(float));
        for (int64_t k = 0; p->sum_adds && k < n; k++)
            sum[s + k] += r[k];
    }
}

void cpu_product_finish(const struct cpu_product *p, int64_t i, int64_t j, int64_t rows,
                        int64_t cols)
{
    for (int64_t r = i; p->sum && r < i + rows; r++)
        sum_row(p, p->sum + r * p->n + j, p->c + r * cpu_product_ldc(p) + j, cols);
    for (int64_t r = i; (p->gelu || p->gelu_pre) && r < i + rows; r++) {
        int64_t at = r * p->n + j;
        float *c = p->c + r * cpu_product_ldc(p) + j;
        if (p->gelu)
            v_row_gelu(p->gelu + at, c, cols);
        if (p->gelu_pre)
            v_row_gelu_slope(c, c, p->gelu_pre + at, cols);
    }
}

static void multiply_tile(const struct cpu_product *p, int64_t i, int64_t j, int64_t rows,
                          int64_t cols)
{
    int64_t lda = cpu_product_lda(p), ldb = cpu_product_ldb(p), ldc = cpu_product_ldc(p);
    const float *a = p->a + (p->a_transposed ? i : i * lda);
    const float *b = p->b + (p->b_transposed ? j * ldb : j);
    bool started = cpu_product_start(p, i, j, rows, cols);
    cblas_sgemm(CblasRowMajor, p->a_transposed ? CblasTrans : CblasNoTrans,
                p->b_transposed ? CblasTrans : CblasNoTrans, (int)rows, (int)cols, (int)p->k,
                p->start ? p->times : 1, a, (int)lda, b, (int)ldb, started || p->add ? 1.0f : 0.0f,
                p->c + i * ldc + j, (int)ldc);
    cpu_product_finish(p, i, j, rows, cols);
    if (p->symmetric && i > j)
        mirror_tile(p, i, j, rows, cols);
}

/* sums[j] (+)= x[0][j] + x[1][j] + ... for columns j .. j + cols - 1 of x, whose rows are `stride`
 * apart: four rows at a time, in blocks of 64 rows, so that float sums over thousands of rows stay
 * accurate */
static void column_sums(int64_t rows, int64_t stride, const float *x, int64_t j, int64_t cols,
                        bool add, float *sums)
{
    enum { STRIP = 512, BLOCK = 64 };
    float block[STRIP], total[STRIP];
    for (int64_t c = j; c < j + cols; c += STRIP) {
        int64_t n = min64(STRIP, j + cols - c);
        memset(total, 0, sizeof total);
        for (int64_t r0 = 0; r0 < rows; r0 += BLOCK) {
            int64_t r = r0, end = min64(r0 + BLOCK, rows);
            memset(block, 0, sizeof block);
            for (; r + 4 <= end; r += 4) {
                const float *a = x + r * stride + c, *b = a + stride, *d = b + stride;
                const float *e = d + stride;
                for (int64_t k = 0; k < n; k++)
                    block[k] += (a[k] + b[k]) + (d[k] + e[k]);
            }
            for (; r < end; r++)
                for (int64_t k = 0; k < n; k++)
                    block[k] += x[r * stride + c + k];
            for (int64_t k = 0; k < n; k++)
                total[k] += block[k];
        }
        for (int64_t k = 0; k < n; k++)
            sums[c + k] = add ? sums[c + k] + total[k] : total[k];
    }
}

/* The sums of all columns; the bits of a column do not depend on the strips */
static void sums_thread(int64_t rows, int64_t width, const float *x, float *sums)
{
    enum { STRIP = 256 };
#pragma omp for schedule(static)
    for (int64_t j = 0; j < width; j += STRIP)
        column_sums(rows, width, x, j, min64(STRIP, width - j), false, sums);
}

void cpu_column_sums(struct ops *ops, int64_t rows, int64_t width, const float *x, float *sums)
{
    IN_THREADS(cpu_threads(ops, rows * width), sums_thread(rows, width, x, sums));
}

/* Column sums that are formed along with a product */
struct sums {
    int64_t rows, width, stride;
    const float *x;
    bool add;
    float *out; /* or NULL */
};
enum { SUMS_STRIP = 64 }; /* columns that a thread takes */

static int64_t sums_chunks(const struct sums *s)
{
    return s && s->out ? ceil_div(s->width, SUMS_STRIP) : 0;
}

static void sums_chunk(const void *sums, int64_t chunk)
{
    const struct sums *s = sums;
    int64_t j = chunk * SUMS_STRIP;
    column_sums(s->rows, s->stride, s->x, j, min64(SUMS_STRIP, s->width - j), s->add, s->out);
}

/* By OpenBLAS */
static void blas_thread(const struct cpu_product *p, const struct sums *s, struct tiles t,
                        int64_t *next)
{
    int64_t sums = sums_chunks(s), count = sums + (p->c ? t.row_count * t.col_count : 0);
    bool rows_first = p->n >= p->m; /* consecutive tiles use the same part of the larger operand */
    for (int64_t chunk; (chunk = next_chunk(next)) < count;) {
        int64_t tile = chunk - sums;
        int64_t ti = rows_first ? tile % t.row_count : tile / t.col_count;
        int64_t tj = rows_first ? tile / t.row_count : tile % t.col_count;
        int64_t i = ti * t.rows, j = tj * t.cols;
        if (tile < 0)
            sums_chunk(s, chunk);
        else if (!p->symmetric || tj <= ti)
            multiply_tile(p, i, j, min64(t.rows, p->m - i), min64(t.cols, p->n - j));
    }
}

/* By a kernel of our own. A tile on the diagonal is computed whole, so the other half is copied
 * when all is computed. */
static void kernel_thread(struct cpu_gemm *g, const struct sums *s)
{
    enum { SQUARE = 64 };
    const struct cpu_product *p = g->p;
    cpu_gemm_thread(g, &(struct cpu_gemm_side){sums_chunk, s, sums_chunks(s)});
    if (!p->symmetric)
        return;
#pragma omp barrier
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < p->m; i += SQUARE)
        for (int64_t j = 0; j <= i; j += SQUARE)
            mirror_tile(p, i, j, min64(SQUARE, p->m - i), min64(SQUARE, p->n - j));
}

static void multiply_by(struct ops *ops, const struct cpu_kernel *kernel,
                        const struct cpu_product *p, const struct sums *s)
{
    int threads = cpu_threads(ops, p->m * p->n * p->k / 512); /* from about 50 us on one thread */
    if (kernel) {
        struct cpu_gemm g = cpu_gemm_plan(p, kernel, threads, ops->workspace);
        IN_THREADS(threads, kernel_thread(&g, s));
    } else {
        int64_t next = 0;
        struct tiles t = p->symmetric ? choose_square_tiles(p->n) : choose_tiles(p->m, p->n);
        IN_THREADS(threads, blas_thread(p, s, t, &next));
    }
}

/* The kernel that rounds operands to bf16, if the caller of the ops wants that and the machine has
 * instructions for it, or NULL */
static const struct cpu_kernel *rounding_kernel(const struct ops *ops)
{
    return ops->products == DTYPE_BF16 ? cpu_kernel_bf16() : NULL;
}

bool cpu_takes_bf16(const struct ops *ops)
{
    return rounding_kernel(ops) != NULL;
}

/* A product of a layer */
static void multiply(struct ops *ops, const struct cpu_product *p, const struct sums *s)
{
    const struct cpu_kernel *bf16 = rounding_kernel(ops);
    CHECK(bf16 || !p->b_bf16);
    multiply_by(ops, bf16 ? bf16 : cpu_kernel(), p, s);
}

/* W of a layer as the right operand */
static struct cpu_product times_w(struct linear l, const void *w)
{
    return l.w_bf16 ? (struct cpu_product){.b_bf16 = w} : (struct cpu_product){.b = w};
}

void cpu_multiply(struct ops *ops, const struct cpu_product *p)
{
    CHECK(!p->symmetric || p->m == p->n);
    CHECK(!p->start || !(p->bias || p->add));
    multiply_by(ops, cpu_kernel(), p, NULL);
}

/* One row, as in decoding: W is read once, so memory bandwidth limits the speed. */
static void vector_thread(struct linear l, const float *x, const float *w, const float *bias,
                          float *y)
{
    enum { STRIP = 256 };
    float beta = bias ? 1.0f : 0.0f;
#pragma omp for schedule(static)
    for (int64_t s = 0; s < ceil_div(l.out, STRIP); s++) {
        int64_t j = s * STRIP, n = min64(STRIP, l.out - j);
        if (bias)
            memcpy(y + j, bias + j, (size_t)n * sizeof(float));
        if (l.out_in)
            cblas_sgemv(CblasRowMajor, CblasNoTrans, (int)n, (int)l.in, 1.0f, w + j * l.in,
                        (int)l.in, x, 1, beta, y + j, 1);
        else
            cblas_sgemv(CblasRowMajor, CblasTrans, (int)l.in, (int)n, 1.0f, w + j, (int)l.out, x, 1,
                        beta, y + j, 1);
    }
}

static void multiply_vector(struct ops *ops, struct linear l, const float *x, const float *w,
                            const float *bias, float *y)
{
    IN_THREADS(cpu_threads_of_token(ops, l.in * l.out), vector_thread(l, x, w, bias, y));
}

/* y = x W + b */
static struct cpu_product forward_product(struct linear l, int64_t rows, const void *x,
                                          const void *w, const void *bias, void *y)
{
    struct cpu_product p = times_w(l, w);
    p.m = rows;
    p.n = l.out;
    p.k = l.in;
    p.a = x;
    p.b_transposed = l.out_in;
    p.c = y;
    p.c_stride = l.y_stride;
    p.bias = bias;
    return p;
}

void cpu_linear(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                const void *x, const void *w, const void *bias, void *y)
{
    if (rows == 1 && !l.w_bf16) {
        multiply_vector(ops, l, x, w, bias, y);
        return;
    }
    struct cpu_product p = forward_product(l, rows, x, w, bias, y);
    multiply(ops, &p, NULL);
}

void cpu_linear_gelu(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                     const struct linear_gelu *a)
{
    if (rows == 1 && !l.w_bf16) {
        multiply_vector(ops, l, a->x, a->w, a->bias, a->pre);
        cpu_gelu(ops, stream, l.out, a->pre, a->y);
        return;
    }
    struct cpu_product p = forward_product(l, rows, a->x, a->w, a->bias, a->pre);
    p.gelu = a->y;
    multiply(ops, &p, NULL);
}

void cpu_linear_dx(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                   const void *dy, const void *w, void *dx)
{
    cpu_linear_dx_dgelu(ops, stream, l, rows,
                        &(struct linear_dx_dgelu){.dy = dy, .w = w, .dpre = dx});
}

void cpu_linear_dx_dgelu(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                         const struct linear_dx_dgelu *a)
{
    struct cpu_product p = times_w(l, a->w);
    p.m = rows;
    p.n = l.in;
    p.k = l.out;
    p.a = a->dy;
    p.a_stride = l.y_stride;
    p.b_transposed = !l.out_in;
    p.c = a->dpre;
    p.gelu_pre = a->pre;
    multiply(ops, &p, NULL);
    if (a->dbias)
        cpu_column_sums(ops, rows, l.in, a->dpre, a->dbias);
}

/* dw = x^T dy */
static struct cpu_product dw_product(struct linear l, int64_t rows, const void *x, const void *dy,
                                     void *dw)
{
    struct cpu_product p = {.k = rows, .a_transposed = true, .c = dw};
    p.m = l.out_in ? l.out : l.in;
    p.n = l.out_in ? l.in : l.out;
    p.a = l.out_in ? dy : x;
    p.b = l.out_in ? x : dy;
    *(l.out_in ? &p.a_stride : &p.b_stride) = l.y_stride;
    return p;
}

static struct sums dbias_sums(struct linear l, int64_t rows, const void *dy, bool add, void *dbias)
{
    return (struct sums){
        .rows = rows, .width = l.out, .stride = l.y_stride, .x = dy, .add = add, .out = dbias};
}

void cpu_linear_dw(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                   const struct linear_dw *a)
{
    struct cpu_product p = dw_product(l, rows, a->x, a->dy, a->dw);
    struct sums s = dbias_sums(l, rows, a->dy, a->add, a->dbias);
    p.add = a->add;
    multiply(ops, &p, &s);
}

bool cpu_sums_dw(const struct ops *ops, struct linear l, int64_t rows, enum dtype type,
                 bool several)
{
    return type == DTYPE_F32 || type == DTYPE_BF16 || type == DTYPE_F16;
}

void cpu_linear_dw_sum(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                       const struct linear_dw_sum *a)
{
    struct cpu_product p = dw_product(l, rows, a->x, a->dy, a->dw);
    struct sums s = dbias_sums(l, rows, a->dy, false, a->dbias);
    p.sum = a->sum;
    p.sum_type = a->type;
    p.sum_adds = a->add;
    multiply(ops, &p, &s);
}
