/* cpu_kernel -- which kernels were compiled in, which of them run here, and which one is used.
 *
 * The variable SIFR_CPU_KERNEL names the one to use for fp32 ("openblas": none, and none for bf16
 * either), SIFR_CPU_KERNEL_BF16 the one for bf16 ("none").
 */
#include "ops/cpu/cpu_kernel.h"
#include <stdlib.h>
#include <string.h>
#if defined(__aarch64__)
#include <sys/auxv.h>
#elif defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

const struct cpu_kernel *const cpu_kernels[] = {
#if defined(__x86_64__)
    &cpu_kernel_avx512,
    &cpu_kernel_avx2,
    &cpu_kernel_amx,
    &cpu_kernel_avx512_bf16,
#elif defined(__aarch64__)
    &cpu_kernel_neon,
    &cpu_kernel_bfmmla,
#endif
    &cpu_kernel_plain,
    &cpu_kernel_bfmmla_model,
    &cpu_kernel_avx512_bf16_model,
    &cpu_kernel_amx_model,
    NULL,
};

#if defined(__x86_64__)
/* AMX's registers are large, so Linux lets a process use them only after it has asked. Threads
 * that exist when it asks keep what they had: ask before they start. */
static bool amx_is_there(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, TILE_DATA = 18, AMX_BF16 = 22, AMX_TILE = 24 };
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> AMX_BF16 & 1) || !(d >> AMX_TILE & 1))
        return false;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0;
}

bool cpu_kernel_runs(const struct cpu_kernel *kernel)
{
    bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("fma");
    if (kernel == &cpu_kernel_avx2)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (kernel == &cpu_kernel_avx512)
        return avx512;
    if (kernel == &cpu_kernel_avx512_bf16)
        return avx512 && __builtin_cpu_supports("avx512bf16");
    if (kernel == &cpu_kernel_amx)
        return avx512 && amx_is_there();
    return true;
}
#elif defined(__aarch64__)
bool cpu_kernel_runs(const struct cpu_kernel *kernel)
{
    enum { HWCAP2_HAS_BF16 = 1 << 14 };
    return kernel != &cpu_kernel_bfmmla || (getauxval(AT_HWCAP2) & HWCAP2_HAS_BF16);
}
#else
bool cpu_kernel_runs(const struct cpu_kernel *kernel)
{
    return kernel != NULL;
}
#endif

/* The first that runs here and is not a model, or the one that the variable names */
static const struct cpu_kernel *choose(const char *variable, size_t packed_bytes)
{
    const char *wanted = getenv(variable);
    for (int i = 0; cpu_kernels[i] != NULL; i++) {
        const struct cpu_kernel *kernel = cpu_kernels[i];
        bool named = wanted ? strcmp(wanted, kernel->name) == 0 : kernel->model != NULL;
        if (named && (size_t)kernel->packed_bytes == packed_bytes && cpu_kernel_runs(kernel))
            return kernel;
    }
    return NULL;
}

/* Chosen once. Two threads that choose at the same time choose the same. */
static const struct cpu_kernel *once(const struct cpu_kernel **chosen, int *state,
                                     const char *variable, size_t packed_bytes)
{
    if (!__atomic_load_n(state, __ATOMIC_ACQUIRE)) {
        __atomic_store_n(chosen, choose(variable, packed_bytes), __ATOMIC_RELAXED);
        __atomic_store_n(state, 1, __ATOMIC_RELEASE);
    }
    return __atomic_load_n(chosen, __ATOMIC_RELAXED);
}

const struct cpu_kernel *cpu_kernel(void)
{
    static const struct cpu_kernel *chosen;
    static int state;
    return once(&chosen, &state, "SIFR_CPU_KERNEL", sizeof(float));
}

const struct cpu_kernel *cpu_kernel_bf16(void)
{
    static const struct cpu_kernel *chosen;
    static int state;
    const struct cpu_kernel *kernel =
        once(&chosen, &state, "SIFR_CPU_KERNEL_BF16", sizeof(uint16_t));
    return cpu_kernel() ? kernel : NULL;
}
