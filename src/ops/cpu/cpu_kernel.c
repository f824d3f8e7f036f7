/* cpu_kernel -- which kernels were compiled in, which of them run here, and which one is used.
 *
 * The variable SIFR_CPU_KERNEL names the one to use for fp32 ("openblas": none, and none for bf16
 * either), SIFR_CPU_KERNEL_BF16 the one for bf16 ("none").
 */
#include "ops/cpu/cpu_kernel.h"
#include <stdlib.h>
#include <string.h>
#include "base/text.h"
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

static const char *note = ""; /* set when kernels are chosen */

const char *cpu_kernel_note(void)
{
    cpu_kernel_bf16();
    return __atomic_load_n(&note, __ATOMIC_RELAXED);
}

#if defined(__x86_64__)
/* AMX's registers are large, so Linux lets a process use them only after it has asked. Threads
 * that exist when it asks may keep what they had: ask before they start. */
static bool amx_is_there(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, TILE_DATA = 18, AMX_BF16 = 22, AMX_TILE = 24 };
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> AMX_BF16 & 1) || !(d >> AMX_TILE & 1))
        return false;
    bool allowed = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0;
    if (!allowed)
        __atomic_store_n(&note, "the CPU has AMX, but the system does not allow it (arch_prctl)",
                         __ATOMIC_RELAXED);
    return allowed;
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

/* The variable that names a kernel, and the word for none */
struct choice {
    const char *variable, *none;
    int64_t packed_bytes;
};
static const struct choice fp32 = {"SIFR_CPU_KERNEL", "openblas", sizeof(float)};
static const struct choice bf16 = {"SIFR_CPU_KERNEL_BF16", "none", sizeof(uint16_t)};

/* The first that runs here and is not a model, or the one that the variable names */
static const struct cpu_kernel *choose(const struct choice *choice)
{
    const char *wanted = getenv(choice->variable);
    for (int i = 0; cpu_kernels[i] != NULL; i++) {
        const struct cpu_kernel *kernel = cpu_kernels[i];
        bool named = wanted ? strcmp(wanted, kernel->name) == 0 : kernel->model != NULL;
        if (named && kernel->packed_bytes == choice->packed_bytes && cpu_kernel_runs(kernel))
            return kernel;
    }
    return NULL;
}

static enum status check(struct env *env, const struct choice *choice)
{
    const char *wanted = getenv(choice->variable);
    if (!wanted || strcmp(wanted, choice->none) == 0 || choose(choice))
        return STATUS_OK;
    struct text known;
    text_init(&known, env);
    for (int i = 0; cpu_kernels[i] != NULL; i++)
        if (cpu_kernels[i]->packed_bytes == choice->packed_bytes && cpu_kernel_runs(cpu_kernels[i]))
            text_printf(&known, "'%s', ", cpu_kernels[i]->name);
    enum status st = FAIL(env, CONFIG, "%s=%s: this machine has no such kernel; use one of %s'%s'",
                          choice->variable, wanted, text_string(&known), choice->none);
    text_free(&known);
    return st;
}

enum status cpu_kernel_check(struct env *env)
{
    TRY(check(env, &fp32));
    return check(env, &bf16);
}

/* Chosen once. Two threads that choose at the same time choose the same. */
static const struct cpu_kernel *once(const struct choice *choice, const struct cpu_kernel **chosen,
                                     int *state)
{
    if (!__atomic_load_n(state, __ATOMIC_ACQUIRE)) {
        __atomic_store_n(chosen, choose(choice), __ATOMIC_RELAXED);
        __atomic_store_n(state, 1, __ATOMIC_RELEASE);
    }
    return __atomic_load_n(chosen, __ATOMIC_RELAXED);
}

const struct cpu_kernel *cpu_kernel(void)
{
    static const struct cpu_kernel *chosen;
    static int state;
    return once(&fp32, &chosen, &state);
}

const struct cpu_kernel *cpu_kernel_bf16(void)
{
    static const struct cpu_kernel *chosen;
    static int state;
    const struct cpu_kernel *kernel = once(&bf16, &chosen, &state);
    return cpu_kernel() ? kernel : NULL;
}
