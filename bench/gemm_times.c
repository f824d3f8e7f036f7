/* gemm_times -- products of gpt2-124m at 4 x 256 tokens: our kernels for fp32 and bf16, and OpenBLAS
 * with its own threads.
 *
 *     gemm_times THREADS [SECONDS [SHAPE]]
 *
 * SECONDS for each shape, or for the one named; the median round counts. OpenBLAS is last, since its threads stay awake
 * after a call. Wall clock; with one thread the thread's CPU time, which a busy machine changes
 * less, or with GEMM_WALL=1 the wall clock, too.
 */
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "ops/cpu/cpu_gemm.h"
#include "times.h"

struct shape {
    const char *name;
    int64_t m, n, k;
    bool a_transposed, b_transposed;
};

static const struct shape shapes[] = {
    {"2048^3", 2048, 2048, 2048, false, false},
    {"attention out", 1024, 768, 768, false, false},
    {"attention out dx", 1024, 768, 768, false, true},
    {"attention out dw", 768, 768, 1024, true, false},
    {"qkv", 1024, 2304, 768, false, false},
    {"qkv dx", 1024, 768, 2304, false, true},
    {"qkv dw", 768, 2304, 1024, true, false},
    {"up", 1024, 3072, 768, false, false},
    {"up dx", 1024, 768, 3072, false, true},
    {"up dw", 768, 3072, 1024, true, false},
    {"down", 1024, 768, 3072, false, false},
    {"down dx", 1024, 3072, 768, false, true},
    {"down dw", 3072, 768, 1024, true, false},
    {"logits", 512, 50304, 768, false, true},
    {"logits dx", 512, 768, 50304, false, false},
    {"logits dw", 50304, 768, 512, true, false},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0], WAYS = 3, LEAST_ROUNDS = 3, MOST_ROUNDS = 999 };

static double now(int threads)
{
    struct timespec t;
    bool wall = threads > 1 || getenv("GEMM_WALL");
    clock_gettime(wall ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void ours(const struct cpu_product *p, const struct cpu_kernel *kernel, int threads,
                 void *workspace)
{
    struct cpu_gemm g = cpu_gemm_plan(p, kernel, threads, workspace);
    IN_THREADS(threads, cpu_gemm_thread(&g, NULL));
}

static void theirs(const struct cpu_product *p, int threads)
{
    openblas_set_num_threads(threads);
    cblas_sgemm(CblasRowMajor, p->a_transposed ? CblasTrans : CblasNoTrans,
                p->b_transposed ? CblasTrans : CblasNoTrans, (int)p->m, (int)p->n, (int)p->k, 1,
                p->a, (int)cpu_product_lda(p), p->b, (int)cpu_product_ldb(p), 0, p->c,
                (int)cpu_product_ldc(p));
}

/* The seconds of the median round */
static double median_of(const struct cpu_product *p, const struct cpu_kernel *kernel, int threads,
                        void *workspace, double budget)
{
    double rounds[MOST_ROUNDS], spent = 0;
    int count = -1; /* the first is not counted */
    while (count < LEAST_ROUNDS || (spent < budget && count < MOST_ROUNDS)) {
        double start = now(threads);
        if (kernel)
            ours(p, kernel, threads, workspace);
        else
            theirs(p, threads);
        double took = now(threads) - start;
        spent += took;
        if (count >= 0)
            rounds[count] = took;
        count++;
    }
    return times_median(rounds, count);
}

static bool is_wanted(const struct shape *shape, int argc, char **argv)
{
    return argc <= 3 || strcmp(shape->name, argv[3]) == 0;
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? atoi(argv[1]) : 1;
    double budget = argc > 2 ? atof(argv[2]) : 0.3, times[WAYS][SHAPES], total[WAYS] = {0};
    void *workspace = times_numbers((int64_t)cpu_gemm_bytes() / 4, threads);
    const struct cpu_kernel *kernels[WAYS] = {cpu_kernel(), cpu_kernel_bf16(), NULL};
    if (!kernels[0])
        return 1;
    for (int way = 0; way < WAYS; way++)
        for (int s = 0; s < SHAPES; s++) {
            if (!is_wanted(&shapes[s], argc, argv))
                continue;
            struct cpu_product p = {.m = shapes[s].m,
                                    .n = shapes[s].n,
                                    .k = shapes[s].k,
                                    .a_transposed = shapes[s].a_transposed,
                                    .b_transposed = shapes[s].b_transposed};
            float *a = times_numbers(p.m * p.k, threads), *b = times_numbers(p.k * p.n, threads);
            p.a = a;
            p.b = b;
            p.c = times_numbers(p.m * p.n, threads);
            times[way][s] = median_of(&p, kernels[way], threads, workspace, budget / WAYS);
            total[way] += s > 0 ? times[way][s] : 0;
            free(a);
            free(b);
            free(p.c);
        }
    printf("%d threads, GFLOP/s: %s, %s, OpenBLAS %s, %s to OpenBLAS\n", threads, kernels[0]->name,
           kernels[1] ? kernels[1]->name : "OpenBLAS", openblas_get_corename(), kernels[0]->name);
    for (int s = 0; s < SHAPES; s++) {
        double flops = 2e-9 * (double)(shapes[s].m * shapes[s].n * shapes[s].k);
        if (!is_wanted(&shapes[s], argc, argv))
            continue;
        printf("%-18s %8.1f %8.1f %8.1f %6.2f\n", shapes[s].name, flops / times[0][s],
               flops / times[1][s], flops / times[2][s], times[2][s] / times[0][s]);
    }
    if (argc <= 3)
        printf("%-18s %8.2f %8.2f %8.2f %6.2f ms\n", "all but 2048^3", 1e3 * total[0],
               1e3 * total[1], 1e3 * total[2], total[2] / total[0]);
    return 0;
}
