/* cpu_kernel -- which kernels were compiled in, which of them run here, and which one is used. */
#include "ops/cpu/cpu_kernel.h"
#include <stdlib.h>
#include <string.h>

/* The fastest first */
const struct cpu_kernel *const cpu_kernels[] = {
#if defined(__x86_64__)
    &cpu_kernel_avx512,
    &cpu_kernel_avx2,
#elif defined(__aarch64__)
    &cpu_kernel_neon,
#endif
    &cpu_kernel_plain,
    NULL,
};

bool cpu_kernel_runs(const struct cpu_kernel *kernel)
{
#if defined(__x86_64__)
    if (kernel == &cpu_kernel_avx512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("fma");
    if (kernel == &cpu_kernel_avx2)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    return kernel != NULL;
}

static const struct cpu_kernel *choose(void)
{
    const char *wanted = getenv("SIFR_CPU_KERNEL");
    for (int i = 0; cpu_kernels[i] != NULL; i++) {
        const struct cpu_kernel *kernel = cpu_kernels[i];
        bool named = wanted && strcmp(wanted, kernel->name) == 0;
        if (cpu_kernel_runs(kernel) && (named || (!wanted && kernel != &cpu_kernel_plain)))
            return kernel;
    }
    return NULL;
}

const struct cpu_kernel *cpu_kernel(void)
{
    static const struct cpu_kernel *chosen;
    static int state; /* 1: chosen */
    if (!__atomic_load_n(&state, __ATOMIC_ACQUIRE)) {
        __atomic_store_n(&chosen, choose(), __ATOMIC_RELAXED);
        __atomic_store_n(&state, 1, __ATOMIC_RELEASE);
    }
    return __atomic_load_n(&chosen, __ATOMIC_RELAXED);
}
