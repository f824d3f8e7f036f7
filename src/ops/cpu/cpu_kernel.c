/* cpu_kernel -- which kernels were compiled in, which of them run here, and which set of them is
 * used.
 *
 * The variable SIFR_CPU_KERNEL names another one than the set's for fp32 ("openblas": none, and
 * none for bf16 either), SIFR_CPU_KERNEL_BF16 another one for bf16 ("none").
 */
#include "ops/cpu/cpu_kernel.h"
#include <stdlib.h>
#include <string.h>
#include "base/text.h"
#include "ops/cpu/cpu_level.h"
#include "ops/ops.h"
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

/* --- sets ----------------------------------------------------------------------------------- */

/* A kernel for fp32, one for bf16, and the level of the rest (cpu_level.h), so that processors of
 * different ages can be told to use the same. The fastest first; those after "openblas" only by
 * name. */
struct cpu_set {
    const char *name, *fp32, *bf16, *level;
};
static const struct cpu_set sets[] = {
#if defined(__x86_64__)
    {"amx", "AVX-512", "AMX", "avx512"},     {"avx512-bf16", "AVX-512", "AVX512-BF16", "avx512"},
    {"avx512", "AVX-512", "none", "avx512"}, {"avx2", "AVX2", "none", "avx2"},
#elif defined(__aarch64__)
    {"bfmmla", "NEON", "bfmmla", "bf16"},
    {"neon", "NEON", "none", ""},
#endif
    {"openblas", "openblas", "none", ""},    {"plain", "plain", "none", ""},
};
enum { SETS = sizeof sets / sizeof sets[0] };

/* The variable that names a kernel, and the word for none */
struct choice {
    const char *variable, *none;
    int64_t packed_bytes;
};
static const struct choice fp32 = {"SIFR_CPU_KERNEL", "openblas", sizeof(float)};
static const struct choice bf16 = {"SIFR_CPU_KERNEL_BF16", "none", sizeof(uint16_t)};

static const struct cpu_kernel *find(const struct choice *choice, const char *name)
{
    for (int i = 0; cpu_kernels[i] != NULL; i++)
        if (strcmp(name, cpu_kernels[i]->name) == 0 &&
            cpu_kernels[i]->packed_bytes == choice->packed_bytes && cpu_kernel_runs(cpu_kernels[i]))
            return cpu_kernels[i];
    return NULL;
}

static bool runs_or_none(const struct choice *choice, const char *name)
{
    return strcmp(name, choice->none) == 0 || find(choice, name);
}

static bool set_runs(const struct cpu_set *set)
{
    return runs_or_none(&fp32, set->fp32) && runs_or_none(&bf16, set->bf16) &&
           cpu_level_find(set->level);
}

static const struct cpu_set *fastest_set(void)
{
    int i = 0;
    while (!set_runs(&sets[i])) /* "openblas" does */
        i++;
    return &sets[i];
}

static enum status check(struct env *env, const struct choice *choice)
{
    const char *wanted = getenv(choice->variable);
    if (!wanted || runs_or_none(choice, wanted))
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

/* --- the one in use --------------------------------------------------------------------------- */

/* Chosen once, or by ops_cpu_use. Two threads that choose at the same time choose the same. */
static struct {
    const struct cpu_set *set;
    const struct cpu_kernel *fp32, *bf16;
    const struct cpu_level *level;
    int state;
} used;

static const struct cpu_kernel *named(const struct choice *choice, const char *of_set)
{
    const char *wanted = getenv(choice->variable);
    return find(choice, wanted ? wanted : of_set);
}

static void use(const struct cpu_set *set)
{
    const struct cpu_kernel *single = named(&fp32, set->fp32);
    const struct cpu_kernel *half = single ? named(&bf16, set->bf16) : NULL;
    __atomic_store_n(&used.set, set, __ATOMIC_RELAXED);
    __atomic_store_n(&used.fp32, single, __ATOMIC_RELAXED);
    __atomic_store_n(&used.bf16, half, __ATOMIC_RELAXED);
    __atomic_store_n(&used.level, cpu_level_find(set->level), __ATOMIC_RELAXED);
    __atomic_store_n(&used.state, 1, __ATOMIC_RELEASE);
}

static void choose(void)
{
    if (!__atomic_load_n(&used.state, __ATOMIC_ACQUIRE))
        use(fastest_set());
}

const struct cpu_kernel *cpu_kernel(void)
{
    choose();
    return __atomic_load_n(&used.fp32, __ATOMIC_RELAXED);
}

const struct cpu_kernel *cpu_kernel_bf16(void)
{
    choose();
    return __atomic_load_n(&used.bf16, __ATOMIC_RELAXED);
}

const struct cpu_level *cpu_level(void)
{
    choose();
    return __atomic_load_n(&used.level, __ATOMIC_RELAXED);
}

const char *cpu_kernel_set(void)
{
    choose();
    return __atomic_load_n(&used.set, __ATOMIC_RELAXED)->name;
}

enum status ops_cpu_use(struct env *env, const char *name)
{
    const struct cpu_set *set = NULL;
    struct text known;
    text_init(&known, env);
    if (strcmp(name, "auto") == 0)
        set = fastest_set();
    for (int i = 0; i < SETS; i++) {
        if (!set_runs(&sets[i]))
            continue;
        text_printf(&known, "%s, ", sets[i].name);
        set = strcmp(name, sets[i].name) == 0 ? &sets[i] : set;
    }
    enum status st =
        set ? STATUS_OK
            : FAIL(env, CONFIG, "run.kernels=%s: this machine has no such kernels; use %sor auto",
                   name, text_string(&known));
    text_free(&known);
    choose();
    if (st == STATUS_OK && set != __atomic_load_n(&used.set, __ATOMIC_RELAXED)) {
        if (cpu_blas_is_open())
            return FAIL(env, CONFIG,
                        "run.kernels=%s: this process already computes with %s; use the same "
                        "kernels for all jobs of a process",
                        name, cpu_kernel_set());
        use(set);
    }
    return st;
}
