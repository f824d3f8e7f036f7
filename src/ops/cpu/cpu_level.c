/* cpu_level -- the list of levels, and the table of the one in use. */
#include "ops/cpu/cpu_level.h"
#include <string.h>
#include "ops/cpu/cpu_impl.h"
#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

static bool always(void)
{
    return true;
}

#if defined(SIFR_CPU_LEVELS)
#define LEVEL(level)                                  \
    void cpu_fill_##level(struct ops_backend *table); \
    const char *cpu_vectors_##level(void);
#if defined(__x86_64__)
LEVEL(avx2)
LEVEL(avx512)

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#elif defined(__aarch64__)
LEVEL(bf16)

static bool has_bf16(void)
{
    enum { HWCAP2_HAS_BF16 = 1 << 14 };
    return getauxval(AT_HWCAP2) & HWCAP2_HAS_BF16;
}
#endif
#endif

static const struct cpu_level levels[] = {
    {"", always, cpu_fill, cpu_vectors},
#if defined(SIFR_CPU_LEVELS) && defined(__x86_64__)
    {"avx2", has_avx2, cpu_fill_avx2, cpu_vectors_avx2},
    {"avx512", has_avx512, cpu_fill_avx512, cpu_vectors_avx512},
#elif defined(SIFR_CPU_LEVELS) && defined(__aarch64__)
    {"bf16", has_bf16, cpu_fill_bf16, cpu_vectors_bf16},
#endif
};
enum { LEVELS = sizeof levels / sizeof levels[0] };

const struct cpu_level *cpu_level_find(const char *name)
{
    for (int i = 0; i < LEVELS; i++)
        if (strcmp(levels[i].name, name) == 0)
            return levels[i].runs() ? &levels[i] : NULL;
    return &levels[0];
}

void ops_cpu_fill(struct ops_backend *table)
{
    cpu_level()->fill(table);
}
