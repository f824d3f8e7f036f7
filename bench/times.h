/* times -- what programs that time ops of the CPU share: their operands, and the median. */
#ifndef BENCH_TIMES_H
#define BENCH_TIMES_H
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

/* Values between -0.5 and 0.5 in memory like sifr's: in large pages if they fill one, and first
 * written by as many threads as will use them. The caller frees them. */
static inline float *times_numbers(int64_t count, int threads)
{
    enum { LARGE = 1 << 21, LINE = 64 };
    size_t bytes = (size_t)count * sizeof(float), unit = bytes < LARGE ? LINE : LARGE;
    size_t whole = (bytes + unit - 1) / unit * unit;
    float *x = aligned_alloc(unit, whole);
    if (!x)
        abort();
    if (unit == LARGE)
        madvise(x, whole, MADV_HUGEPAGE);
#pragma omp parallel for num_threads(threads)
    for (int64_t i = 0; i < count; i++)
        x[i] = (float)((uint32_t)i * 2654435761u >> 8) * 0x1p-24f - 0.5f;
    return x;
}

static inline int times_compare(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* Sorts them. */
static inline double times_median(double *seconds, int rounds)
{
    qsort(seconds, (size_t)rounds, sizeof *seconds, times_compare);
    return (seconds[rounds / 2] + seconds[(rounds - 1) / 2]) / 2;
}

#endif
