/* test_cpu_kernel -- every kernel that runs on this machine has the bits of its model in plain C,
 * with any number of threads: odd shapes, every layout of the operands, and what is added to the
 * product. A product of many blocks has the bits of its parts. And every model is right. */
#include <math.h>
#include <string.h>
#include "ops/cpu/cpu_gemm.h"
#include "testing.h"

enum { STRIDE_MORE = 5, LAYOUTS = 4, WAYS = 4 };

/* Rows, columns and depth that end inside a panel, a tile, a part of k, and a block in fp32 */
static const int64_t shapes[][3] = {
    {1, 1, 1},     {2, 3, 5},      {7, 31, 4},     {13, 33, 9},    {61, 70, 400},
    {30, 34, 900}, {30, 34, 1700}, {61, 70, 3200}, {2060, 40, 17}, {37, 3090, 11},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static float *numbers(int64_t count, uint32_t seed)
{
    float *x = malloc((size_t)count * sizeof(float));
    assert_non_null(x);
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits = ((uint32_t)i + seed) * 2654435761u;
        bits ^= bits >> 15;
        bits *= 2246822519u;
        x[i] = ldexpf((float)(bits >> 8) * 0x1p-24f - 0.5f, -(int)(bits % 13));
    }
    return x;
}

/* Operands with padded rows; `layout` says which of them are transposed. */
struct operands {
    struct cpu_product p;
    float *a, *b, *start, *first; /* first: c before the product */
    int64_t c_count;
};

static struct operands operands_of(const int64_t *shape, int layout, int way)
{
    struct operands o = {.p = {.m = shape[0],
                               .n = shape[1],
                               .k = shape[2],
                               .a_transposed = layout & 1,
                               .b_transposed = layout & 2}};
    struct cpu_product *p = &o.p;
    p->a_stride = cpu_product_lda(p) + STRIDE_MORE;
    p->b_stride = cpu_product_ldb(p) + STRIDE_MORE;
    p->c_stride = p->n + STRIDE_MORE;
    o.c_count = p->m * p->c_stride;
    o.a = numbers((p->a_transposed ? p->k : p->m) * p->a_stride, 1);
    o.b = numbers((p->b_transposed ? p->n : p->k) * p->b_stride, 2);
    o.start = numbers(p->m * p->n, 3);
    o.first = numbers(o.c_count, 4);
    p->a = o.a;
    p->b = o.b;
    p->add = way == 1;
    p->bias = way == 2 ? o.start : NULL;
    p->start = way == 3 ? o.start : NULL;
    p->times = 0.7f;
    p->start_times = -1.3f;
    return o;
}

static void operands_free(struct operands *o)
{
    free(o->a);
    free(o->b);
    free(o->start);
    free(o->first);
}

static float *product(const struct operands *o, const struct cpu_kernel *kernel, int threads)
{
    void *workspace = malloc(cpu_gemm_bytes());
    struct cpu_product p = o->p;
    p.c = malloc((size_t)o->c_count * sizeof(float));
    assert_true(workspace && p.c);
    memcpy(p.c, o->first, (size_t)o->c_count * sizeof(float));
    memset(workspace, 0xff, cpu_gemm_bytes()); /* NaN */
    struct cpu_gemm g = cpu_gemm_plan(&p, kernel, threads, workspace);
    IN_THREADS(threads, cpu_gemm_thread(&g, NULL));
    free(workspace);
    return p.c;
}

static void compare(const struct operands *o, const struct cpu_kernel *kernel, int threads)
{
    float *plain = product(o, kernel->model, 1), *c = product(o, kernel, threads);
    if (memcmp(plain, c, (size_t)o->c_count * sizeof(float)) != 0)
        fail_msg("%s, %d threads: other bits at %d x %d x %d, a%s, b%s, %s", kernel->name, threads,
                 (int)o->p.m, (int)o->p.n, (int)o->p.k, o->p.a_transposed ? "^T" : "",
                 o->p.b_transposed ? "^T" : "",
                 o->p.add     ? "added"
                 : o->p.bias  ? "with a bias"
                 : o->p.start ? "with a start"
                              : "overwritten");
    free(plain);
    free(c);
}

static void test_bits(void **state)
{
    (void)state;
    static const int threads[] = {1, 2, 3, 8, CPU_GEMM_RUNS + 1}; /* the last: two share a run */
    int ran = 0;
    for (int i = 0; cpu_kernels[i] != NULL; i++) {
        if (!cpu_kernels[i]->model || !cpu_kernel_runs(cpu_kernels[i]))
            continue;
        for (int s = 0; s < SHAPES; s++)
            for (int layout = 0; layout < LAYOUTS; layout++)
                for (int way = 0; way < WAYS; way++) {
                    if ((layout > 0 || way > 0) && !testing_sampled())
                        continue;
                    struct operands o = operands_of(shapes[s], layout, way);
                    compare(&o, cpu_kernels[i], threads[(s + layout + way) % 5]);
                    operands_free(&o);
                }
        ran++;
    }
    assert_true(ran >= 1);
}

/* Several blocks of c in one direction, or in both, with one part of k and with several, in fp32
 * and, where blocks have twice the size, in 16 bits. The last column: layout */
static const int64_t blocked[][4] = {
    {2200, 3200, 800, 0}, {4100, 40, 800, 2}, {8200, 40, 800, 0},  {40, 13000, 800, 3},
    {9000, 70, 60, 1},    {70, 6400, 60, 1},  {4200, 6400, 20, 2}, {4200, 6600, 400, 3},
};
enum { BLOCKED = sizeof blocked / sizeof blocked[0], LAYOUT = 3 };

/* The same product in pieces of c that are smaller than a block */
static float *product_in_pieces(const struct operands *o, const struct cpu_kernel *kernel)
{
    enum { ROWS = 700, COLS = 1300 };
    struct operands piece = *o;
    float *c = malloc((size_t)o->c_count * sizeof(float));
    assert_non_null(c);
    memcpy(c, o->first, (size_t)o->c_count * sizeof(float));
    for (int64_t i = 0; i < o->p.m; i += ROWS)
        for (int64_t j = 0; j < o->p.n; j += COLS) {
            struct cpu_product *p = &piece.p;
            p->m = min64(ROWS, o->p.m - i);
            p->n = min64(COLS, o->p.n - j);
            p->bias = o->p.bias ? o->p.bias + j : NULL;
            piece.first = o->first + i * p->c_stride + j;
            piece.c_count = (p->m - 1) * p->c_stride + p->n;
            p->a = o->a + (p->a_transposed ? i : i * p->a_stride);
            p->b = o->b + (p->b_transposed ? j * p->b_stride : j);
            float *part = product(&piece, kernel, 1);
            for (int64_t r = 0; r < p->m; r++)
                memcpy(c + (i + r) * p->c_stride + j, part + r * p->c_stride,
                       (size_t)p->n * sizeof(float));
            free(part);
        }
    return c;
}

static void test_blocks(void **state)
{
    (void)state;
    const struct cpu_kernel *kernels[] = {cpu_kernel(), cpu_kernel_bf16()};
    static const int threads[] = {3, 9}; /* many may read a in place */
    for (int k = 0; k < 2; k++)
        for (int s = 0; kernels[k] && s < BLOCKED; s++) {
            if (s > 0 && !testing_sampled())
                continue;
            struct operands o = operands_of(blocked[s], (int)blocked[s][LAYOUT], s % 3);
            float *pieces = product_in_pieces(&o, kernels[k]);
            for (int t = 0; t < 2; t++) {
                float *whole = product(&o, kernels[k], threads[t]);
                if (memcmp(pieces, whole, (size_t)o.c_count * sizeof(float)) != 0)
                    fail_msg("%s: %d x %d x %d on %d threads has other bits than its parts",
                             kernels[k]->name, (int)o.p.m, (int)o.p.n, (int)o.p.k, threads[t]);
                free(whole);
            }
            free(pieces);
            operands_free(&o);
        }
}

/* b in bf16 has the bits of the same values in fp32. */
static void test_narrow(void **state)
{
    (void)state;
    for (int i = 0; cpu_kernels[i] != NULL; i++) {
        if (cpu_kernels[i]->packed_bytes != sizeof(uint16_t) || !cpu_kernel_runs(cpu_kernels[i]))
            continue;
        for (int s = 0; s < SHAPES; s++)
            for (int layout = 0; layout < LAYOUTS; layout++) {
                if (layout > 0 && !testing_sampled())
                    continue;
                struct operands o = operands_of(shapes[s], layout, 0);
                int64_t count = (o.p.b_transposed ? o.p.n : o.p.k) * o.p.b_stride;
                uint16_t *narrow = malloc((size_t)count * sizeof *narrow);
                assert_non_null(narrow);
                dtype_convert(narrow, DTYPE_BF16, o.b, DTYPE_F32, count);
                float *wide = product(&o, cpu_kernels[i], 2);
                o.p.b = NULL;
                o.p.b_bf16 = narrow;
                float *c = product(&o, cpu_kernels[i], 3);
                assert_memory_equal(wide, c, (size_t)o.c_count * sizeof(float));
                free(c);
                free(wide);
                free(narrow);
                operands_free(&o);
            }
    }
}

static double element(const float *x, int64_t stride, bool transposed, bool rounded, int64_t row,
                      int64_t col)
{
    float value = x[transposed ? col * stride + row : row * stride + col];
    uint16_t bf16;
    if (rounded) {
        dtype_convert(&bf16, DTYPE_BF16, &value, DTYPE_F32, 1);
        dtype_convert(&value, DTYPE_F32, &bf16, DTYPE_BF16, 1);
    }
    return (double)value;
}

/* A model against sums in double */
static void check_model(const struct cpu_kernel *model, int layout)
{
    struct operands o = operands_of((const int64_t[]){61, 70, 400}, layout, 3);
    const struct cpu_product *p = &o.p;
    float *c = product(&o, model, 1);
    bool rounded = model->packed_bytes == sizeof(uint16_t);
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t j = 0; j < p->n; j++) {
            double sum = 0;
            for (int64_t k = 0; k < p->k; k++)
                sum += element(p->a, p->a_stride, p->a_transposed, rounded, i, k) *
                       element(p->b, p->b_stride, p->b_transposed, rounded, k, j);
            double whole =
                (double)p->times * sum + (double)p->start_times * (double)p->start[i * p->n + j];
            assert_true(fabs((double)c[i * p->c_stride + j] - whole) < 1e-5);
        }
    free(c);
    operands_free(&o);
}

static void test_models_are_right(void **state)
{
    (void)state;
    for (int i = 0; cpu_kernels[i] != NULL; i++)
        for (int layout = 0; !cpu_kernels[i]->model && layout < LAYOUTS; layout++)
            check_model(cpu_kernels[i], layout);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_models_are_right),
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_narrow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
