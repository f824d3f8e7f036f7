/* cpu_info -- what the BLAS library reports, and the instruction set we were compiled for. */
#include <cblas.h>
#include "ops/ops_info.h"

static const char *vectors(void)
{
#if defined(__AVX512F__)
    return "AVX-512";
#elif defined(__AVX2__)
    return "AVX2";
#elif defined(__ARM_FEATURE_SVE)
    return "SVE and NEON";
#elif defined(__ARM_NEON)
    return "NEON";
#else
    return "none in particular";
#endif
}

static const char *flavour(void)
{
    switch (openblas_get_parallel()) {
    case OPENBLAS_OPENMP: return "openmp";
    case OPENBLAS_THREAD: return "pthread";
    default: return "serial";
    }
}

void ops_cpu_info(struct ops_info *info)
{
    *info = (struct ops_info){
        .blas = openblas_get_config(),
        .core = openblas_get_corename(),
        .flavour = flavour(),
        .vectors = vectors(),
        .openmp = _OPENMP,
    };
}
