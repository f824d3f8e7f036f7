/* blas -- in place of OpenBLAS, which is not installed for another kind of CPU: plain products, and
 * what sifr asks the library about itself. */
#include <cblas.h>

static float at(const float *x, int stride, CBLAS_TRANSPOSE turned, int i, int j)
{
    return turned == CblasNoTrans ? x[i * stride + j] : x[j * stride + i];
}

void cblas_sgemm(CBLAS_ORDER order, CBLAS_TRANSPOSE turn_a, CBLAS_TRANSPOSE turn_b, blasint m,
                 blasint n, blasint k, float alpha, const float *a, blasint lda, const float *b,
                 blasint ldb, float beta, float *c, blasint ldc)
{
    (void)order; /* rows */
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            float sum = 0;
            for (int l = 0; l < k; l++)
                sum += at(a, lda, turn_a, i, l) * at(b, ldb, turn_b, l, j);
            c[i * ldc + j] = alpha * sum + (beta == 0 ? 0 : beta * c[i * ldc + j]);
        }
}

void cblas_sgemv(CBLAS_ORDER order, CBLAS_TRANSPOSE turn, blasint m, blasint n, float alpha,
                 const float *a, blasint lda, const float *x, blasint incx, float beta, float *y,
                 blasint incy)
{
    (void)order; /* rows */
    int rows = turn == CblasNoTrans ? m : n, columns = turn == CblasNoTrans ? n : m;
    for (int i = 0; i < rows; i++) {
        float sum = 0;
        for (int j = 0; j < columns; j++)
            sum += at(a, lda, turn, i, j) * x[j * incx];
        y[i * incy] = alpha * sum + (beta == 0 ? 0 : beta * y[i * incy]);
    }
}

static int threads = 1;

void openblas_set_num_threads(int count)
{
    threads = count;
}

int openblas_get_num_threads(void)
{
    return threads;
}

int openblas_get_parallel(void)
{
    return OPENBLAS_SEQUENTIAL;
}

char *openblas_get_config(void)
{
    return "plain products";
}

char *openblas_get_corename(void)
{
    return "PLAIN";
}
