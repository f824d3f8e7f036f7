/* cpu_matmul -- linear layers: products by OpenBLAS on tiles, with bias and GELU done while a tile
 * is in cache.
 *
 * The shape of a product alone decides how its output is divided into tiles, and each tile is one
 * single-threaded sgemm: the bits depend neither on the number of threads nor on the threading of
 * the BLAS library. A bias is written into the tile before the product adds to it. This costs
 * nothing: BLAS would have cleared the tile.
 *
 * Tile sizes, measured on a Neoverse-V1 (2 threads, OpenBLAS 0.3.21) as a fraction of the rate at
 * 2048^3, over the shapes of GPT-2 at widths 384 and 768: 512 rows 97-101 %, 256 rows 96-101 %, 128
 * rows 92-98 %, 64 rows 84-95 %; full width is best, 768 columns cost 1-2 %, 384 columns 3-4 %, 256
 * columns 5-7 %. Many tiles occupy many threads, and an odd number of tiles leaves one of two
 * threads idle at the end. So tiles start at 512 x 3072 and are halved while there are fewer than
 * 16, down to about 256 x 384, and further only to have two.
 */
#include <cblas.h>
#include "ops/cpu/cpu_impl.h"
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

/* Writes the transpose of a tile of a symmetric output to the other side of the diagonal. */
static void mirror_tile(const struct cpu_product *p, int64_t i, int64_t j, int64_t rows,
                        int64_t cols)
{
    enum { BLOCK = 16 }; /* a line of cache */
    int64_t ldc = stride_or(p->c_stride, p->n);
    for (int64_t r0 = i; r0 < i + rows; r0 += BLOCK)
        for (int64_t s = j; s < j + cols; s++)
            for (int64_t r = r0; r < min64(r0 + BLOCK, i + rows); r++)
                p->c[s * ldc + r] = p->c[r * ldc + s];
}

static void finish_tile(const struct cpu_product *p, int64_t i, int64_t j, int64_t rows,
                        int64_t cols)
{
    for (int64_t r = i; r < i + rows; r++) {
        int64_t at = r * p->n + j;
        float *c = p->c + r * stride_or(p->c_stride, p->n) + j;
        if (p->gelu)
            v_row_gelu(p->gelu + at, c, cols);
        if (p->gelu_pre)
            v_row_gelu_slope(c, c, p->gelu_pre + at, cols);
    }
}

static void multiply_tile(const struct cpu_product *p, int64_t i, int64_t j, int64_t rows,
                          int64_t cols)
{
    int64_t lda = stride_or(p->a_stride, p->a_transposed ? p->m : p->k);
    int64_t ldb = stride_or(p->b_stride, p->b_transposed ? p->k : p->n);
    int64_t ldc = stride_or(p->c_stride, p->n);
    const float *a = p->a + (p->a_transposed ? i : i * lda);
    const float *b = p->b + (p->b_transposed ? j * ldb : j);
    bool started = p->bias || p->start;
    float times = p->start ? p->times : 1, start_times = p->start ? p->start_times : 1;
    for (int64_t r = i; started && r < i + rows; r++)
        memcpy(p->c + r * ldc + j, p->bias ? p->bias + j : p->start + r * p->n + j,
               (size_t)cols * sizeof(float));
    cblas_sgemm(CblasRowMajor, p->a_transposed ? CblasTrans : CblasNoTrans,
                p->b_transposed ? CblasTrans : CblasNoTrans, (int)rows, (int)cols, (int)p->k, times,
                a, (int)lda, b, (int)ldb, started || p->add ? start_times : 0.0f,
                p->c + i * ldc + j, (int)ldc);
    if (p->gelu || p->gelu_pre)
        finish_tile(p, i, j, rows, cols);
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

/* Column sums that are formed along with a product that reads the same columns */
struct sums {
    const float *x; /* (k, n) of the product when over its columns, (k, m) when over its rows */
    int64_t stride; /* of its rows */
    bool over_rows;
    float *out; /* or NULL */
};

static void multiply_thread(const struct cpu_product *p, const struct sums *s, struct tiles t,
                            int64_t *next)
{
    int64_t count = t.row_count * t.col_count;
    bool rows_first = p->n >= p->m; /* consecutive tiles use the same part of the larger operand */
    for (int64_t tile; (tile = next_chunk(next)) < count;) {
        int64_t ti = rows_first ? tile % t.row_count : tile / t.col_count;
        int64_t tj = rows_first ? tile / t.row_count : tile % t.col_count;
        if (p->symmetric && tj > ti)
            continue;
        int64_t i = ti * t.rows, j = tj * t.cols;
        int64_t rows = min64(t.rows, p->m - i), cols = min64(t.cols, p->n - j);
        if (p->c) /* NULL: only the sums */
            multiply_tile(p, i, j, rows, cols);
        if (s && s->out && s->over_rows && tj == 0)
            column_sums(p->k, s->stride, s->x, i, rows, p->add, s->out);
        if (s && s->out && !s->over_rows && ti == 0)
            column_sums(p->k, s->stride, s->x, j, cols, p->add, s->out);
    }
}

static void multiply(struct ops *ops, const struct cpu_product *p, const struct sums *s)
{
    int64_t next = 0;
    struct tiles t = p->symmetric ? choose_square_tiles(p->n) : choose_tiles(p->m, p->n);
    int64_t work = t.row_count * t.col_count > 1 ? p->m * p->n * p->k / 64 : 0;
    IN_THREADS(cpu_threads(ops, work), multiply_thread(p, s, t, &next));
}

void cpu_multiply(struct ops *ops, const struct cpu_product *p)
{
    CHECK(!p->symmetric || p->m == p->n);
    CHECK(!p->start || !(p->bias || p->add));
    multiply(ops, p, NULL);
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

void cpu_linear(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                const void *x, const void *w, const void *bias, void *y)
{
    if (rows == 1) {
        multiply_vector(ops, l, x, w, bias, y);
        return;
    }
    multiply(ops,
             &(struct cpu_product){.m = rows,
                                   .n = l.out,
                                   .k = l.in,
                                   .a = x,
                                   .b = w,
                                   .b_transposed = l.out_in,
                                   .c = y,
                                   .c_stride = l.y_stride,
                                   .bias = bias},
             NULL);
}

void cpu_linear_gelu(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                     const struct linear_gelu *a)
{
    if (rows == 1) {
        multiply_vector(ops, l, a->x, a->w, a->bias, a->pre);
        cpu_gelu(ops, stream, l.out, a->pre, a->y);
        return;
    }
    multiply(ops,
             &(struct cpu_product){.m = rows,
                                   .n = l.out,
                                   .k = l.in,
                                   .a = a->x,
                                   .b = a->w,
                                   .b_transposed = l.out_in,
                                   .c = a->pre,
                                   .bias = a->bias,
                                   .gelu = a->y},
             NULL);
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
    multiply(ops,
             &(struct cpu_product){.m = rows,
                                   .n = l.in,
                                   .k = l.out,
                                   .a = a->dy,
                                   .a_stride = l.y_stride,
                                   .b = a->w,
                                   .b_transposed = !l.out_in,
                                   .c = a->dpre,
                                   .gelu_pre = a->pre},
             NULL);
    if (a->dbias)
        cpu_column_sums(ops, rows, l.in, a->dpre, a->dbias);
}

void cpu_linear_dw(struct ops *ops, struct stream *stream, struct linear l, int64_t rows,
                   const struct linear_dw *a)
{
    struct cpu_product p = {.k = rows, .a_transposed = true, .c = a->dw, .add = a->add};
    p.m = l.out_in ? l.out : l.in;
    p.n = l.out_in ? l.in : l.out;
    p.a = l.out_in ? a->dy : a->x;
    p.b = l.out_in ? a->x : a->dy;
    *(l.out_in ? &p.a_stride : &p.b_stride) = l.y_stride;
    multiply(
        ops, &p,
        &(struct sums){.x = a->dy, .stride = l.y_stride, .over_rows = l.out_in, .out = a->dbias});
}
